"""What a command's options add up to."""

from pathlib import Path

import pytest

from dspark_sim.config import Scenario
from dspark_sim.core import UserError
from dspark_sim.options import numbers, one, options, scenario_from, whole_numbers

PROFILE = {"profile": "llama3.1-8b-h100"}


@pytest.fixture
def config(tmp_path):
    def write(text):
        path = tmp_path / "scenario.toml"
        path.write_text(text)
        return path

    return write


def test_only_options_that_were_given_count():
    given = {"trace": None, "profile": "p", "seed": 0, "extend": False, "goodput": None, "out": 1}
    assert options(given) == {"profile": "p", "seed": 0}


def test_prefill_extend_and_goodput_become_scenario_keys():
    given = {"prefill": "none", "extend": True, "goodput": ["ttft:500", "tpot:30"]}
    assert options(given) == {
        "prefill": {"mode": "none"},
        "extend": True,
        "goodput": {"ttft": 500.0, "tpot": 30.0},
    }
    scenario = Scenario.check({**PROFILE, **options(given)})
    assert scenario.goodput == {"ttft": 500.0, "tpot": 30.0}


def test_an_objective_without_a_limit_is_told():
    with pytest.raises(UserError, match=r"--goodput 'ttft' is not of the form .*ttft:500"):
        options({"goodput": ["ttft"]})


def test_options_win_over_the_file_and_settings_over_both(config):
    path = config('profile = "a"\nseed = 1\nrequests = 5\nrate_scale = 2.0\n')
    scenario = scenario_from({"seed": 2, "requests": 6}, path, ["requests=7"])
    assert (scenario.profile, scenario.seed, scenario.requests) == ("a", 2, 7)
    assert scenario.rate_scale == 2.0


def test_an_option_keeps_the_other_keys_of_its_table_in_the_file(config):
    path = config('profile = "a"\n[prefill]\nmode = "chunked"\nworkers = 4\n[goodput]\ntpot = 30\n')
    given = options({"prefill": "separate", "goodput": ["ttft:500"]})
    scenario = scenario_from(given, path, None)
    assert (scenario.prefill.mode, scenario.prefill.workers) == ("separate", 4)
    assert scenario.goodput == {"ttft": 500, "tpot": 30}


def test_a_setting_reaches_into_tables_and_reads_toml_values():
    scenario = scenario_from(
        PROFILE,
        None,
        ["prefill.mode=separate", "prefill.workers=2", "belief.draft=false", "trace=chat-1k"],
    )
    assert scenario.prefill.model_dump() == {"mode": "separate", "workers": 2}
    assert scenario.belief.draft is False
    assert scenario.trace == "chat-1k"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("seed", "--set 'seed' is not of the form key=value"),
        ("=3", "--set '=3' is not of the form key=value"),
        ("sed=3", "unknown key 'sed' in the scenario: did you mean 'seed'"),
        ("belief.tabel=flat", r"unknown key 'tabel' in the scenario\.belief: did you mean 'table'"),
        ("seed.x=3", "the scenario: seed = "),
        ("profile.x=3", "'profile' is not a table"),
        ("seed=-1", "seed = -1"),
        ("seed=1.5", "seed = 1.5"),
        (f"seed={2**63}", f"seed = {2**63}"),
        ("concurrency=true", "concurrency = True"),
        ("requests=0", "requests = 0"),
        ("rate_scale=nan", "rate_scale"),
        ("rate_scale=inf", "rate_scale"),
        ("rate_scale=0", "rate_scale = 0"),
        ("request_rate=nan", "request_rate = nan"),
        ("request_rate=-1", "request_rate = -1"),
        ("warmup_s=-1", "warmup_s = -1"),
        ("warmup_s=nan", "warmup_s"),
        ("warmup_s=inf", "warmup_s = inf"),
        ("cooldown_s=inf", "cooldown_s = inf"),
        ("goodput.ttft=-5", "goodput.ttft = -5"),
        ("goodput.ttft=nan", "goodput.ttft = nan"),
        ("goodput.tfft=5", "goodput"),
        ("prefill.workers=0", "prefill.workers = 0"),
        ("prefill.mode=chunk", "prefill.mode = 'chunk'"),
        ("belief.confidence_scale=0", "belief.confidence_scale = 0"),
        ("belief.confidence_bias=inf", "belief.confidence_bias = inf"),
        ("num_speculative_tokens=-1", "num_speculative_tokens = -1"),
        ("concurrency=0", "concurrency = 0"),
    ],
)
def test_a_wrong_setting_is_told_in_one_sentence_with_key_and_value(setting, words):
    with pytest.raises(UserError, match=words) as caught:
        scenario_from(PROFILE, None, [setting])
    assert "\n" not in str(caught.value)


def test_a_closed_and_an_open_loop_exclude_each_other():
    with pytest.raises(UserError, match="either concurrency or request_rate"):
        scenario_from({**PROFILE, "concurrency": 4, "request_rate": 2.0}, None, None)


def test_a_load_on_the_command_line_replaces_the_files_load(config):
    path = config('profile = "a"\nconcurrency = 4\n')
    scenario = scenario_from({"request_rate": 2.0}, path, None)
    assert (scenario.concurrency, scenario.request_rate) == (None, 2.0)
    path = config('profile = "a"\nrate_scale = 3.0\n')
    scenario = scenario_from({"concurrency": 2}, path, None)
    assert (scenario.concurrency, scenario.rate_scale) == (2, 1.0)


def test_a_byte_order_mark_in_the_file_does_not_matter(tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_bytes(b'\xef\xbb\xbfprofile = "a"\n')
    assert scenario_from({}, path, None).profile == "a"


def test_a_typo_in_the_key_of_the_profile_is_told_as_a_typo(config):
    path = config('profil = "llama3.1-8b-h100"\n')
    with pytest.raises(UserError, match=r"unknown key 'profil' in .*did you mean 'profile'"):
        scenario_from({}, path, None)


def test_the_nearest_key_is_named_for_a_typo_in_the_file(config):
    path = config('profile = "a"\nconcurency = 4\n')
    with pytest.raises(UserError, match=r"unknown key 'concurency' in .*'concurrency'"):
        scenario_from({}, path, None)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"seed = \n", "is not valid TOML"),
        (b"seed = 1\nseed = 2\n", "is not valid TOML"),
        (b"\xff\xfe\x00", "is not valid TOML"),
    ],
)
def test_a_file_that_is_no_toml_is_told_in_one_line(tmp_path, content, words):
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words) as caught:
        scenario_from(PROFILE, path, None)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    with pytest.raises(UserError, match=r"absent\.toml: cannot be read"):
        scenario_from(PROFILE, tmp_path / "absent.toml", None)
    with pytest.raises(UserError, match="cannot be read"):
        scenario_from(PROFILE, Path(tmp_path), None)


def test_a_missing_profile_is_told_with_the_way_to_find_one():
    with pytest.raises(UserError, match=r"--profile NAME \(dspark-sim ls lists them\)"):
        scenario_from({}, None, None)


def test_one_value_takes_its_place_and_several_belong_to_a_sweep():
    chosen = {}
    one(chosen, "policy", None)
    assert chosen == {}
    one(chosen, "policy", ["vllm"])
    assert chosen == {"policy": "vllm"}
    with pytest.raises(UserError, match="simulate takes one policy, got 2; sweep takes several"):
        one(chosen, "policy", ["vllm", "none"])


def test_numbers_expand_and_nothing_is_an_empty_list():
    assert numbers(None, "rate") == []
    assert numbers("0.5..2", "rate") == [0.5, 1, 2]


def test_whole_numbers_are_whole_and_at_least_one():
    assert whole_numbers("1..8", "concurrency") == [1, 2, 4, 8]
    assert all(isinstance(value, int) for value in whole_numbers("1,2", "concurrency"))
    for text in ("1.5", "0", "-3", "0..4:2"):
        with pytest.raises(UserError, match="concurrency must be whole numbers of 1 or more"):
            whole_numbers(text, "concurrency")
