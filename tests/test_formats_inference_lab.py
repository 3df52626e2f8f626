import csv
import io

import numpy as np
import pytest
from engine_tables import profiles
from hypothesis import assume, given, settings
from test_throughput_profile import profile, table

from dspark_sim.core import UserError
from dspark_sim.throughput import ImportOptions, import_profile, load_profile
from dspark_sim.throughput.formats.inference_lab import steps_csv

HEADER = "batch_size,num_draft_tokens,step_seconds\n"


def read(folder, text, **options):
    path = folder / "steps.csv"
    path.write_text(text, encoding="utf-8")
    return import_profile(path, ImportOptions(**options))


def rows_of(text):
    for row in csv.DictReader(io.StringIO(text)):
        yield int(row["batch_size"]), int(row["num_draft_tokens"]), float(row["step_seconds"])


def answer(profile, requests, width):
    """Return what a profile answers for a row of the file, in seconds."""
    drafting = requests if width > 1 and profile.drafter != "none" else 0
    step = profile.step_ms(requests, requests * width, 0, drafting, width - 1 if drafting else 0)
    return float(step) / 1000.0


def test_an_additive_engine_is_read_with_its_drafter_apart(tmp_path):
    rows = [
        (r, w, 0.005 + 0.0002 * r + 0.00003 * r * w + (0.001 + 0.0001 * r) * (w > 1))
        for r in (1, 2, 4, 8)
        for w in (1, 2, 4, 8)
    ]
    loaded = read(tmp_path, HEADER + "".join(f"{r},{w},{s}\n" for r, w, s in rows))
    assert (loaded.lookup, loaded.drafter, loaded.max_num_seqs) == ("linear", "block", 8)
    for requests, width, seconds in rows:
        assert answer(loaded, requests, width) == pytest.approx(seconds)
    assert loaded.draft_ms([2, 4, 8], 7).tolist() == pytest.approx([1.2, 1.4, 1.8])
    assert loaded.step_ms(8, 40, 0, 8, 7) == pytest.approx(5 + 1.6 + 1.2 + 1.8)
    assert "misses the file's steps by at most 0.00%" in loaded.provenance["residuals"]


def test_a_file_that_is_not_additive_says_by_how_much(tmp_path):
    rows = [(r, w, 0.01 * (1 + 0.1 * ((r + w) % 2))) for r in (1, 2, 3, 4) for w in (1, 2, 3, 4)]
    loaded = read(tmp_path, HEADER + "".join(f"{r},{w},{s}\n" for r, w, s in rows))
    missed = max(abs(answer(loaded, r, w) / s - 1) for r, w, s in rows)
    assert missed > 0.01
    assert f"by at most {missed:.2%} (batch size" in loaded.provenance["residuals"]


def test_steps_that_are_no_sum_at_all_are_refused(tmp_path):
    text = HEADER + "1,2,0.010\n1,4,0.012\n2,2,0.020\n2,1,0.006\n4,1,0.007\n"
    with pytest.raises(UserError, match="no sum of terms of the batch size and of the tokens"):
        read(tmp_path, text)


def test_plain_steps_alone_have_no_drafter(tmp_path):
    loaded = read(tmp_path, HEADER + "1,1,0.010\n8,1,0.012\n")
    assert (loaded.drafter, loaded.requests) == ("none", None)
    assert loaded.verify_ms([1, 8]).tolist() == pytest.approx([10, 12])


def test_drafting_steps_alone_have_the_drafter_inside(tmp_path):
    loaded = read(tmp_path, HEADER + "8,5,0.018\n\n64,5,0.045\n")
    assert loaded.draft_in_verify
    assert answer(loaded, 64, 5) == pytest.approx(0.045)


@settings(max_examples=20)
@given(one=profiles())
def test_a_written_file_reads_back_to_the_same_steps(tmp_path_factory, one):
    assume(one.token_range[0] <= 8)
    text = steps_csv(one, None if one.drafter == "none" else 3, 0)
    loaded = read(tmp_path_factory.mktemp("out"), text)
    for requests, width, seconds in rows_of(text):
        assert answer(loaded, requests, width) == pytest.approx(seconds, rel=1e-6)


@pytest.mark.parametrize("name", ["dsv4-flash-b300-tp4", "qwen3-8b-h20", "qwen3.5-35b-a3b-h20"])
def test_shipped_profiles_are_written_step_by_step(tmp_path, name):
    one = load_profile(name)
    text = steps_csv(one, 7, 0)
    rows = list(rows_of(text))
    assert {width for _, width, _ in rows} == set(range(1, 9))
    loaded = read(tmp_path, text)
    for requests, width, seconds in rows:
        drafting = requests if width > 1 else 0
        step = one.step_ms(requests, requests * width, 0, drafting, width - 1)
        assert seconds == pytest.approx(float(step) / 1000)
        assert answer(loaded, requests, width) == pytest.approx(seconds)


def test_a_profile_that_no_batch_reaches_is_not_written():
    late = profile(
        lookup="floor", capture_limit=None, verify=table([60, 64], [1.0, 2.0]), max_num_seqs=8
    )
    with pytest.raises(UserError, match="covers 60 to 64 batch tokens, which 8 requests of width"):
        steps_csv(late, 3, 0)


def test_context_is_read_for_every_request():
    one = load_profile("llama3.1-8b-h100")
    less, more = (list(rows_of(steps_csv(one, 7, context))) for context in (0, 1000))
    extra = np.array([row[2] for row in more]) - [row[2] for row in less]
    kappa = one.context_ms_per_kv_token * np.array([row[0] for row in less])
    kappa += one.draft_context_ms_per_kv_token * np.array([row[0] * (row[1] > 1) for row in less])
    assert extra == pytest.approx(kappa)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("batch_size,num_draft_tokens\n1,1\n", "is in no known format"),
        (HEADER, "steps.csv: the table is empty"),
        (HEADER + "1,1,0.01\n1,1\n", "steps.csv line 3: 3 values are needed, got 2"),
        (HEADER + "1,0,0.01\n", "line 2: num_draft_tokens must be at least 1, got 0"),
        (HEADER + "1.5,1,0.01\n", "line 2: batch_size must be a whole number, got 1.5"),
        (HEADER + "1,1,0\n", "line 2: step_seconds must be above 0, got 0"),
        (HEADER + "1,1,nan\n", "line 2: step_seconds must be finite, got 'nan'"),
        (HEADER + "1,1,quick\n", "line 2: step_seconds must be a number, got 'quick'"),
        (HEADER + "1,1,0.01\n1,1,0.02\n", "line 3: batch_size 1 with width 1 is given twice"),
    ],
)
def test_a_faulty_file_names_line_and_column(tmp_path, text, sentence):
    with pytest.raises(UserError, match=sentence):
        read(tmp_path, text)
