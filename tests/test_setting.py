import pytest

from dspark_sim.study.setting import exported

PROFILE = "dsv4-flash-b300-tp4"


def test_lengths_by_load_are_vllms_schedule():
    best = {"4": "fixed:7", "64": "fixed:3", "256": "none"}
    assert exported(best, 7, PROFILE) == {
        "note": "no setting of vLLM or SGLang is known for this policy"
    }
    best["256"] = "fixed:0"
    assert exported(best, 7, PROFILE)["vllm"] == {
        "num_speculative_tokens": 7,
        "num_speculative_tokens_per_batch_size": [[1, 4, 7], [5, 64, 3], [65, 256, 0]],
    }


def test_one_length_for_all_loads_is_a_number():
    found = exported({"all loads": "fixed:3"}, 7, PROFILE)
    assert found["vllm"] == {"num_speculative_tokens": 3}
    assert found["sglang"]["flags"] == ["--speculative-num-draft-tokens 4"]


def test_a_lag_is_sglangs_and_the_rule_is_vllms():
    found = exported({"4": "vllm:lag=2", "64": "vllm:lag=2"}, 7, PROFILE)
    assert found["vllm"] == {"num_speculative_tokens": 7, "enable_adaptive_verification": True}
    assert found["sglang"]["environment"] == {
        "SGLANG_RAGGED_VERIFY_MODE": "compact",
        "SGLANG_DSPARK_CONFIDENCE_RELAY_LAG_STEPS": "2",
    }
    assert PROFILE in found["sglang"]["table"]


def test_a_least_gain_and_a_fill_are_sglangs():
    found = exported({"4": "sglang:guard=0.02,fill=tier"}, 7, PROFILE)["sglang"]
    assert found["schedule"] == {"min_predicted_gain": 0.02}
    assert found["flags"][1:] == ["--speculative-dspark-align-verify-tokens-to-graph-tier"]
    assert "schedule" not in exported({"4": "sglang"}, 7, PROFILE)["sglang"]


@pytest.mark.parametrize(
    ("best", "word"),
    [
        ({"4": "threshold:0.6"}, "no static confidence threshold"),
        ({"4": "fixed:3,gamma=7"}, "verifies fewer"),
        ({"4.5": "fixed:3", "9": "fixed:2"}, "by batch size"),
        ({"4": "oracle"}, "no setting"),
    ],
)
def test_what_no_engine_has_is_said(best, word):
    assert word in exported(best, 7, PROFILE)["note"]


def test_one_threshold_is_ds4s():
    found = exported({"all loads": "threshold:0.65"}, 7, PROFILE)
    assert found["others"] == {"antirez/ds4": "--dspark-confidence 0.65"}
