import numpy as np
import pandas as pd
import pytest
from test_throughput_files import assert_same
from test_throughput_profile import profile, table

from dspark_sim.core import UserError
from dspark_sim.throughput import load_profile, summarize_profile, write_profile


def grid(rows, **changes):
    """Return a profile whose verify rows are (tokens, requests, kv, ms)."""
    columns = ["batch_tokens", "num_requests", "kv_tokens_read", "ms"]
    verify = pd.DataFrame(rows, columns=columns)
    keys = {"verify": verify, "lookup": "linear", "capture_limit": None, "overhead_ms": 0.0}
    return profile(**(keys | {"context_ms_per_kv_token": 0.0} | changes))


def test_a_size_may_be_measured_with_several_numbers_of_requests():
    toy = grid([(8, 2, 0, 4.2), (8, 8, 0, 4.8), (64, 8, 0, 9.8)])
    assert toy.request_ms([2, 8]).tolist() == pytest.approx([0.2, 0.8])
    assert toy.verify_ms([8, 64]).tolist() == pytest.approx([4.0, 9.0])
    assert toy.step_ms([2, 8], [8, 64]).tolist() == pytest.approx([4.2, 9.8])


def test_rows_of_one_size_are_averaged_by_relative_error():
    toy = grid([(8, 1, 0, 2.0), (8, 2, 0, 4.0)], requests=None)
    weights = np.array([1 / 4, 1 / 16])
    assert toy.verify_ms(8) == pytest.approx((weights @ [2.0, 4.0]) / weights.sum())


def test_several_contexts_of_a_size_agree_once_their_context_is_subtracted():
    toy = grid(
        [(8, 0, 1000, 5.0), (8, 0, 4000, 8.0), (64, 0, 1000, 10.0)],
        requests=None,
        context_ms_per_kv_token=1e-3,
    )
    assert toy.verify_ms([8, 64]).tolist() == pytest.approx([4.0, 9.0])


def test_dense_tables_answer_what_the_grid_does():
    toy = grid([(8, 2, 0, 4.2), (8, 8, 0, 4.8), (64, 8, 0, 9.8)])
    dense = toy.tables(3)
    assert dense.step_ns(8, 64) == pytest.approx(9.8e6, abs=2)
    assert dense.step_ns(2, 8) == pytest.approx(4.2e6, abs=2)


def test_the_optional_columns_stay_away_where_they_are_not_given(tmp_path):
    assert "num_requests" not in profile().verify
    folder = write_profile(profile(), tmp_path / "toy")
    header = (folder / "verify.csv").read_text(encoding="utf-8").splitlines()[0]
    assert header == "batch_tokens,kv_tokens_read,ms,p10_ms,p90_ms,n"


def test_a_grid_with_its_roofline_reads_back_unchanged(tmp_path):
    rows = pd.DataFrame(
        {
            "batch_tokens": [8, 8, 16],
            "num_requests": [2, 8, 8],
            "ms": [4.0, 5.0, 6.0],
            "roofline_ms": [3.0, np.nan, 4.0],
        }
    )
    toy = profile(verify=rows, capture_limit=16)
    assert_same(load_profile(write_profile(toy, tmp_path / "toy")), toy)
    assert len(summarize_profile(toy)) == 5


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([(8, 4, 0, 1.0), (8, 2, 0, 1.0)], "row 2: num_requests 2 comes after 4; rows must rise"),
        ([(8, 4, 9, 1.0), (8, 4, 3, 1.0)], "row 2: kv_tokens_read 3 comes after 9"),
        ([(8, 4, 9, 1.0), (8, 4, 9, 1.0)], "row 2: batch_tokens 8 is given twice"),
        ([(8, 4, 0, 1.0), (4, 4, 0, 1.0)], "row 2: batch_tokens 4 comes after 8"),
        ([(8, 9, 0, 1.0)], "row 1: num_requests must not be more than batch_tokens"),
        ([(8, 1.5, 0, 1.0)], "row 1: num_requests must be a whole number"),
        ([(8, 8, 0, 0.5)], "requests.csv and context_ms_per_kv_token = 0 leave nothing of"),
    ],
)
def test_a_faulty_grid_names_its_row(rows, sentence):
    with pytest.raises(UserError, match=sentence):
        grid(rows)


def test_a_roofline_must_be_positive():
    with pytest.raises(UserError, match="row 2: roofline_ms must be a finite number above 0"):
        profile(verify=table([1, 16], [4.0, 6.0], roofline_ms=[1.0, 0.0]))
