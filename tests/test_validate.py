"""The cases of validation: their form, the cheap ones whole, and the command."""

import json
import math
from pathlib import Path

import pytest
from command_line import call, strict

from dspark_sim.core import UserError
from dspark_sim.study.validate import (
    CASES,
    Check,
    Point,
    Settings,
    Validation,
    fixed_batch,
    format_validation,
    production,
    save_validation,
    thresholds,
    validate,
    vllm_policies,
)
from dspark_sim.study.validate.case import max_error, mean_error
from dspark_sim.study.validate.published import published, source
from dspark_sim.study.validate.text import accuracy_table

RECORDED = Path(__file__).parents[2] / "shared/data/acceptance/specdecode_bench"
SMALL = Validation(
    case="V0",
    title="a toy",
    fitted="one factor",
    fit_points=2,
    parameters=1,
    by_hand=("a factor",),
    points=(
        Point("vllm", "tok_s_user", 1.0, 100.0, 110.0),
        Point("vllm", "tok_s_user", 2.0, 50.0, 45.0, low=40.0, high=60.0),
        Point("none", "tok_s_user", 2.0, 10.0, 20.0, fitted=True),
    ),
    checks=(Check("largest error", 10.0, 6.0),),
)


def responses(*gains):
    return [fixed_batch.Response(10, one) for one in gains]


def test_errors_count_predicted_points_only():
    assert mean_error(SMALL.predicted) == pytest.approx(10.0)
    assert max_error(SMALL.predicted) == pytest.approx(10.0)
    assert max_error([]) is None


def test_an_error_may_be_a_share_of_something_else():
    assert Point("chat", "rejected", 0.5, 0.1, 0.2, of=5.0).error_pct == pytest.approx(2.0)


def test_a_bound_holds_up_to_its_value_and_never_for_no_number():
    assert Check("error", 3.0, 3.0).met
    assert not Check("error", 3.1, 3.0).met
    assert not Check("error", math.nan, 3.0).met


def test_a_case_that_did_not_run_is_neither_within_nor_out_of_bounds():
    skipped = Validation("V4", "toy", skipped="no data")
    assert skipped.within_bounds is None
    assert "skipped: no data" in format_validation(skipped)
    assert accuracy_table([skipped, SMALL])["within bounds"].tolist() == ["skipped", "no"]


def test_the_summary_is_plain_json_with_every_point():
    row = json.loads(json.dumps(SMALL.summary(), allow_nan=False))
    keys = {"case", "mean_abs_error", "max_abs_error", "within_bounds", "points"}
    assert keys <= row.keys()
    assert row["within_bounds"] is False
    assert row["degrees_of_freedom"] == 1
    assert len(row["points"]) == 3


def test_the_text_says_what_was_fitted_and_which_bound_is_not_met():
    text = format_validation(SMALL)
    assert "2 numbers, 1 parameters, 1 degrees of freedom" in text
    assert "by hand: a factor" in text
    assert "bound NOT MET: largest error 10 %" in text


def test_a_picture_is_written_as_png_and_svg(tmp_path):
    written = save_validation(SMALL, tmp_path / "v0.png")
    assert [path.name for path in written] == ["v0.png", "v0.svg"]
    assert all(path.stat().st_size > 1000 for path in written)


def test_an_unknown_case_is_named_before_anything_runs():
    with pytest.raises(UserError, match="unknown case 'V9'"):
        validate(["V9"])


def test_every_published_table_says_where_it_comes_from():
    folder = Path(fixed_batch.__file__).parent / "published"
    for path in folder.glob("*.csv"):
        assert len(source(path.stem)) > 40, path
        assert not published(path.stem).isna().any().any(), path


def test_every_case_is_one_module_with_one_function():
    from importlib import import_module

    assert all(callable(import_module(name).run) for name in CASES.values())


def test_copies_of_a_request_in_lockstep_have_the_latency_of_its_cost_model_by_hand():
    """One request, gains 2, 1, 1: prefill, then rounds of 4 tokens until 3 are out."""
    kv, token, once = fixed_batch.TARGET
    draft_kv, draft_token, draft = fixed_batch.DRAFT
    rounds = [10 + 1]  # the first round gains two and ends the response
    ms = kv * 10 + token * 10 + once + fixed_batch.OVERHEAD
    for context in rounds:
        ms += kv * context + token * 4 + once + fixed_batch.OVERHEAD
        ms += draft_kv * context + draft_token * 4 + draft
    plain = kv * 10 + token * 10 + once + fixed_batch.OVERHEAD
    plain += sum(kv * context + token + once + fixed_batch.OVERHEAD for context in (11, 12))
    found = fixed_batch.speedup(responses((2, 1, 1)), "fixed:3", 1)
    assert found == pytest.approx(plain / ms, rel=1e-6)


def test_the_recordings_of_specdecode_bench_reproduce_its_speed_ups():
    if not RECORDED.is_dir():
        pytest.skip("needs SpecDecode-Bench's recordings in ../shared/data/acceptance")
    (found,) = validate(["v4"], Settings(quick=True, data=RECORDED))
    assert found.within_bounds
    assert len(found.points) == 6


def test_without_recordings_the_case_is_skipped():
    (found,) = validate(["V4"])
    assert "--data" in found.skipped


def test_a_folder_of_recordings_that_is_not_there_is_told(tmp_path):
    with pytest.raises(UserError, match="nowhere: is no folder"):
        list(validate(["V4"], Settings(data=tmp_path / "nowhere")))


def test_mtps_step_times_give_back_mtps_throughput():
    table = published("dspark_fig8")
    mtp = table[(table["method"] == "MTP") & (table["quantity"] == "tok_s_gpu")]
    c, rate = mtp["concurrency"].to_numpy(float), mtp["value"].to_numpy(float)
    profile = production.Guess(mtp_layers=0).profile(c, rate)
    step_s = profile.verify_ms((2 * c).astype(int)) / 1e3
    assert production.MTP_LENGTH * c / step_s == pytest.approx(rate, rel=1e-9)


def test_over_confidence_is_read_off_the_reliability_diagram():
    scale, bias = thresholds.over_confidence()
    assert 1.15 < scale < 1.25
    assert 0.28 < bias < 0.38


def test_the_shifted_rates_give_the_benchmarks_length():
    drafter = thresholds.Drafter.on("math", "GSM8K", 10)
    length, reach = 1.0, 1.0
    for rate in drafter.rates:
        reach *= rate
        length += reach
    assert length == pytest.approx(6.11, abs=1e-6)


def test_no_predicted_policy_is_among_the_fitted_ones():
    assert not {"fixed:5", "fixed:6", vllm_policies.ADAPTIVE} & set(vllm_policies.FITTED)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["V1", "V3", "V5", "V6"])
def test_a_quick_run_keeps_its_bounds(case):
    (found,) = validate([case], Settings(quick=True))
    assert found.within_bounds, format_validation(found)


@pytest.mark.slow
def test_the_papers_throughput_is_predicted_from_the_mtp_line():
    (found,) = validate(["V2"], Settings(quick=True))
    (check,) = [check for check in found.checks if check.what.startswith("throughput, Fig. 8")]
    assert check.met, format_validation(found)


def test_the_command_prints_json_alone_and_a_skipped_case_is_no_failure():
    code, out, _ = call("validate", "V4", "--json")
    (row,) = strict(out)["cases"]
    assert code == 0
    assert row["within_bounds"] is None
