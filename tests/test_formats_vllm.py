from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_sim.core import UserError
from dspark_sim.throughput import (
    ImportOptions,
    batch_size_schedule,
    import_profile,
    load_profile,
    speculative_config,
)

LINE = "DEBUG 08-14 [adaptive_verification.py:237] DSpark cost tables: "


def dense(curve, last, limit=None):
    """Build vLLM's table from 0 to `last`: padded up to the limit, smooth beyond, running max."""
    sizes, ms = np.array(list(curve)), np.maximum.accumulate(list(curve.values()))
    at = np.arange(last + 1)
    table = ms[np.minimum(np.searchsorted(sizes, at), len(sizes) - 1)]
    if limit is not None and (sizes > limit).any():
        smooth, above = at > limit, sizes > limit
        table[smooth] = np.interp(at[smooth], sizes[above], ms[above])
    return table


VERIFY = dense({1: 5.0, 4: 4.5, 8: 6.0, 16: 7.0, 24: 50.0, 32: 60.0, 48: 100.0}, 48, 16)
DRAFT = dense({1: 0.9, 4: 1.0, 8: 1.5}, 8)


def read(folder, text, **options):
    path = folder / "server.log"
    path.write_text(text, encoding="utf-8")
    return import_profile(path, ImportOptions(**options))


def printed(*tables):
    with np.printoptions(threshold=10**6, linewidth=75):
        return f"INFO start\n{LINE}{tables}\nINFO ready\n"


@pytest.mark.parametrize("limit", [None, 16])
def test_a_logged_table_is_answered_at_every_size(tmp_path, limit):
    keys = {} if limit is None else {"capture_limit": limit}
    loaded = read(tmp_path, printed(DRAFT, VERIFY), keys=keys)
    assert loaded.verify_ms(np.arange(1, 49)).tolist() == pytest.approx(VERIFY[1:].tolist())
    draft = loaded.draft_ms(np.arange(1, 9), 7)
    assert draft.tolist() == pytest.approx(DRAFT[1:].tolist())
    assert (loaded.max_num_seqs, loaded.max_num_batched_tokens) == (8, 48)
    assert len(loaded.draft) == 3


def test_a_given_capture_limit_makes_the_tail_eager(tmp_path):
    loaded = read(tmp_path, printed(DRAFT, VERIFY), keys={"capture_limit": 16})
    assert loaded.regime([16, 17]).tolist() == ["captured", "eager"]
    assert loaded.verify["batch_tokens"].tolist() == [4, 8, 16, 17, 24, 32, 48]
    assert "CUDA graphs end at 16 tokens, as given" in loaded.provenance["capture"]


def test_the_blog_engines_table_survives_its_log(tmp_path):
    shipped = load_profile("dsv4-flash-b300-tp4")
    tokens = np.arange(16385)
    table = np.maximum.accumulate(shipped.verify_ms(tokens))
    table[0] = table[1]
    draft = np.append(0.883, shipped.draft_ms(np.arange(1, 257), 7))
    loaded = read(tmp_path, printed(draft, table), keys={"capture_limit": 1024})
    assert np.allclose(loaded.verify_ms(tokens[1:]), table[1:], rtol=1e-6)
    assert len(loaded.verify) < 100


def test_the_last_tables_of_a_log_count_and_lists_do_too(tmp_path):
    old = printed(DRAFT * 2, VERIFY * 2)
    text = f"{old}DSpark cost tables: ({DRAFT.tolist()}, {VERIFY.tolist()})"
    assert read(tmp_path, text).verify_ms(4) == VERIFY[4]


def test_curves_keep_their_dips(tmp_path):
    text = (
        "DSpark boot draft curve (reqs, ms): [(1, 0.9), (8, 1.5)]\n"
        "DSpark boot verify curve (tokens, ms): [(1, 5.0), (4, 4.5), (16, 7.0), (32, 60.0)]\n"
    )
    keys = {"capture_limit": 16}
    loaded = read(tmp_path, text, keys=keys, draft_len=5)
    assert loaded.verify_ms([1, 4, 9, 16, 17]).tolist() == [5.0, 4.5, 7.0, 7.0, 60.0]
    assert loaded.draft["draft_len"].tolist() == [5, 5]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f"\n{LINE}(array([0.9, 1., ..., 2.]), array([5., 6.]))", "line 2: the draft table is sho"),
        (f"{LINE}(array([0.9, fast]), array([5., 6.]))", "the draft table must be a number"),
        (f"{LINE}(array([0.9, nan]), array([5., 6.]))", "the draft table must be finite"),
        (f"{LINE}(array([0.9]), array([5., 6.]))", "must reach from 0 to the largest size, got 1"),
        (f"{LINE}(array([0.9, 1.]), ", "line 1: the verify table is missing"),
        ("draft curve: [(1, 2)]\nverify curve: []", "line 2: the verify curve must be a list of"),
        ("draft curve: [(1, 2)]\nverify curve: [(4, 1), (2, 3)]", "whole sizes from 1 on that"),
        ("draft curve: [(1, 2)]\nverify curve: [(1, 0)]", "ms must be a finite number above 0"),
        ("nothing of the kind", "is in no known format; allowed: sglang"),
    ],
)
def test_a_faulty_log_names_its_line(tmp_path, text, sentence):
    with pytest.raises(UserError, match=sentence):
        read(tmp_path, text)


def test_a_log_without_tables_that_is_named_as_one_is_refused(tmp_path):
    (tmp_path / "server.log").write_text("verify curve: [(1, 2)]\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"server\.log: no line 'DSpark cost tables: …' is there"):
        import_profile(tmp_path / "server.log", format="vllm")


def test_a_schedule_becomes_ranges_of_batch_sizes():
    assert batch_size_schedule({256: 0, 128: 8, 64: 16}) == [
        [1, 64, 16],
        [65, 128, 8],
        [129, 256, 0],
    ]
    assert speculative_config({1: 7, 16: 7, 64: 3}) == {
        "num_speculative_tokens": 7,
        "num_speculative_tokens_per_batch_size": [[1, 16, 7], [17, 64, 3]],
    }


@given(st.dictionaries(st.integers(1, 300), st.integers(0, 7), min_size=1, max_size=8))
def test_ranges_are_inclusive_without_gaps_and_answer_the_schedule(schedule):
    ranges = batch_size_schedule(schedule)
    assert ranges[0][0] == 1
    assert ranges[-1][1] == max(schedule)
    assert all(low == before[1] + 1 for before, (low, _, _) in pairwise(ranges))
    for size, length in schedule.items():
        assert next(k for low, high, k in ranges if low <= size <= high) == length


@pytest.mark.parametrize("schedule", [{}, {0: 3}, {4: -1}])
def test_an_impossible_schedule_is_refused(schedule):
    with pytest.raises(UserError, match="the schedule"):
        batch_size_schedule(schedule)
