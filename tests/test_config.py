import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_sim.config import Belief, Prefill, Scenario, read_toml, with_settings
from dspark_sim.core import UserError


def check(**values):
    return Scenario.check({"profile": "dsv4-flash-b300-tp4"} | values, "run.toml")


def test_a_scenario_needs_only_a_profile():
    scenario = check()
    assert scenario.policy == "dspark-async"
    assert scenario.num_speculative_tokens == 7
    assert scenario.prefill == Prefill(mode="chunked", workers=1)
    assert scenario.belief == Belief()


def test_a_missing_profile_is_named():
    with pytest.raises(UserError, match="profile"):
        Scenario.check({}, "run.toml")


def test_a_scenario_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        check().seed = 3


def test_a_scenario_survives_its_own_json():
    scenario = check(concurrency=8, prefill={"mode": "none"}, goodput={"ttft": 200, "tpot": 30})
    assert Scenario.check(scenario.model_dump(mode="json")) == scenario


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("polcy", "policy"),
        ("num_speculative_token", "num_speculative_tokens"),
        ("concurency", "concurrency"),
        ("request-rate", "request_rate"),
        ("seeds", "seed"),
    ],
)
def test_a_misspelt_key_names_the_nearest_one(typo, meant):
    with pytest.raises(UserError) as error:
        check(**{typo: 1})
    assert f"unknown key '{typo}' in run.toml: did you mean '{meant}'?" in str(error.value)
    assert "allowed: " in str(error.value)


@pytest.mark.parametrize(
    ("table", "typo", "meant"),
    [("prefill", "worker", "workers"), ("belief", "confidence_scal", "confidence_scale")],
)
def test_a_misspelt_key_of_a_table_names_the_nearest_one_there(table, typo, meant):
    with pytest.raises(UserError) as error:
        check(**{table: {typo: 1}})
    expected = f"unknown key '{typo}' in run.toml.{table}: did you mean '{meant}'?"
    assert expected in str(error.value)
    assert "concurrency" not in str(error.value)


def test_a_key_like_no_other_lists_what_is_allowed_without_a_guess():
    with pytest.raises(UserError) as error:
        check(xyzzy=1)
    assert "did you mean" not in str(error.value)
    assert "allowed: acceptance, belief, concurrency" in str(error.value)


def test_an_unknown_slo_of_goodput_is_an_error_that_lists_the_known_ones():
    with pytest.raises(UserError, match=r"run\.toml.*goodput\.ttfb.*'ttft', 'tpot' or 'e2el'"):
        check(goodput={"ttfb": 200})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_speculative_tokens", -1),
        ("num_speculative_tokens", 2.5),
        ("concurrency", 0),
        ("concurrency", -4),
        ("request_rate", 0),
        ("request_rate", -1.0),
        ("request_rate", float("nan")),
        ("rate_scale", 0.0),
        ("rate_scale", float("nan")),
        ("rate_scale", float("inf")),
        ("requests", 0),
        ("seed", -1),
        ("seed", "one"),
        ("warmup_s", -0.1),
        ("warmup_s", float("nan")),
        ("cooldown_s", float("nan")),
        ("cooldown_s", float("inf")),
        ("prefill.mode", "fused"),
        ("prefill.workers", 0),
        ("belief.table", "steep"),
        ("belief.lookup", "nearest"),
        ("belief.confidence_scale", 0),
        ("belief.confidence_scale", float("nan")),
        ("belief.confidence_scale", float("inf")),
        ("belief.confidence_bias", float("nan")),
        ("belief.temperatures", ""),
        ("belief.temperatures", [1.0, 2.0]),
        ("goodput.ttft", -5),
        ("goodput.ttft", float("nan")),
        ("extend", "perhaps"),
        ("record", "everything"),
        ("policy", 3),
        ("profile_set", [1]),
    ],
)
def test_a_bad_value_is_told_in_one_sentence_with_its_key_and_itself(key, value):
    table, _, inner = key.partition(".")
    with pytest.raises(UserError) as error:
        check(**{table: {inner: value} if inner else value})
    said = str(error.value)
    assert said.startswith("run.toml: ")
    assert key in said
    assert repr(value) in said or "finite" in said
    assert "\n" not in said


def test_poisson_arrivals_may_come_all_at_once():
    assert check(request_rate=float("inf")).request_rate == float("inf")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"concurrency": 4, "request_rate": 2.0}, "either concurrency or request_rate, not both"),
        ({"concurrency": 4, "warmup_s": 1.0}, "belong to an open loop"),
        ({"concurrency": 4, "cooldown_s": 1.0}, "belong to an open loop"),
        ({"concurrency": 4, "rate_scale": 2.0}, "rate_scale"),
        ({"request_rate": 4.0, "rate_scale": 2.0}, "rate_scale"),
    ],
)
def test_loads_exclude_each_other(values, said):
    with pytest.raises(UserError, match=said) as error:
        check(**values)
    assert str(error.value).startswith("run.toml: ")


@pytest.mark.parametrize(
    "values",
    [
        {"concurrency": 4},
        {"request_rate": 4.0, "warmup_s": 1.0, "cooldown_s": 2.0},
        {"rate_scale": 4.0, "warmup_s": 1.0},
        {"concurrency": 4, "rate_scale": 1.0},
    ],
)
def test_one_load_alone_is_fine(values):
    assert check(**values)


def test_settings_reach_into_tables_and_keep_what_is_there():
    values = {"seed": 1, "prefill": {"mode": "none"}}
    changed = with_settings(
        values, ["seed=4", "prefill.workers=2", "belief.draft=false", "policy=fixed:3,gamma=7"]
    )
    assert changed == {
        "seed": 4,
        "prefill": {"mode": "none", "workers": 2},
        "belief": {"draft": False},
        "policy": "fixed:3,gamma=7",
    }
    assert values == {"seed": 1, "prefill": {"mode": "none"}}


def test_a_setting_is_toml_or_else_plain_text():
    changed = with_settings({}, ["a=1e-3", "b='x'", "c=[1, 2]", "d = plain words", "e=", "f=x=y"])
    assert changed == {"a": 1e-3, "b": "x", "c": [1, 2], "d": "plain words", "e": "", "f": "x=y"}


def test_a_later_setting_wins():
    assert with_settings({}, ["seed=1", "seed=2"]) == {"seed": 2}


@pytest.mark.parametrize("setting", ["seed", "", "=3", "  = 3"])
def test_a_setting_without_key_or_value_is_an_error(setting):
    with pytest.raises(UserError, match="is not of the form key=value"):
        with_settings({}, [setting])


@pytest.mark.parametrize("setting", ["prefill.=3", ".mode=none", "a..b=1"])
def test_a_setting_with_a_hole_in_its_key_is_an_error(setting):
    with pytest.raises(UserError, match=r"--set"):
        Scenario.check(with_settings({"profile": "p"}, [setting]), "--set")


def test_a_setting_below_a_value_is_an_error():
    with pytest.raises(UserError, match="'seed' is not a table"):
        with_settings({"seed": 1}, ["seed.deep=3"])


@given(st.text(max_size=30))
def test_any_text_is_a_setting_or_a_user_error(text):
    said = "--set"
    try:
        assert isinstance(with_settings({}, [text]), dict)
    except UserError as error:
        said = str(error)
    assert "--set" in said


@given(
    st.dictionaries(
        st.sampled_from([*Scenario.model_fields, "tpyo"]),
        st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=5),
        max_size=4,
    )
)
def test_any_scenario_is_checked_or_refused_with_a_user_error(values):
    said = "run.toml"
    try:
        assert isinstance(Scenario.check(values, "run.toml"), Scenario)
    except UserError as error:
        said = str(error)
    assert "run.toml" in said


def test_a_file_is_read_as_it_stands(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('policy = "vllm"\n[prefill]\nmode = "none"\n', encoding="utf-8")
    assert read_toml(path) == {"policy": "vllm", "prefill": {"mode": "none"}}


def test_a_file_that_is_no_toml_says_where(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('policy = "vllm"\nseed = = 3\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"run\.toml: is not valid TOML .*line 2"):
        read_toml(path)


def test_a_file_that_is_no_text_is_a_user_error(tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"run\.toml: is not valid TOML"):
        read_toml(path)


def test_a_file_that_is_not_there_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match=r"absent\.toml: cannot be read \(No such file"):
        read_toml(tmp_path / "absent.toml")


def test_a_folder_in_place_of_a_file_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_toml(tmp_path)
