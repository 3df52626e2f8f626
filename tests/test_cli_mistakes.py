"""The command line: one sentence and exit code 2 for every mistake, and nothing half-written."""

import shutil
import sys

import pandas as pd
import pytest
from command_line import SMALL, call, strict, tree
from small_recording import recording_frame

from dspark_sim.acceptance import write_recording
from dspark_sim.core import shipped_dir


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Run every command in an empty folder."""
    monkeypatch.chdir(tmp_path)


def assert_one_line(done, *words):
    code, out, err = done
    assert (code, out) == (2, ""), err
    assert err.startswith("dspark-sim: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    for word in words:
        assert word.lower() in err.lower()


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n"
MOONCAKE = '{"timestamp": 0, "input_length": 5, "output_length": 5}\n'
TRACES = {
    "negative.jsonl": (MOONCAKE + MOONCAKE.replace("0,", "-5,", 1), "negative.jsonl:2", "negative"),
    "nan.jsonl": (MOONCAKE + MOONCAKE.replace("0,", "NaN,", 1), "nan.jsonl:2", "finite", "nan"),
    "infinite.jsonl": (MOONCAKE + MOONCAKE.replace("0,", "1e999,", 1), "infinite.jsonl:2"),
    "null.jsonl": (MOONCAKE.replace("0,", "null,", 1), "null.jsonl:1"),
    "falling.jsonl": (MOONCAKE.replace("0,", "9,", 1) + MOONCAKE, "falling.jsonl:2", "earlier"),
    "zero.jsonl": (MOONCAKE.replace("h\": 5}", "h\": 0}"), "zero.jsonl:1", "at least 1", "got 0"),
    "half.jsonl": (MOONCAKE.replace("h\": 5}", "h\": 1.5}"), "half.jsonl:1", "whole number"),
    "nan.csv": (AZURE + "NaN,5,5\n", "nan.csv:3", "TIMESTAMP"),
    "date.csv": (AZURE + "2023-13-16 18:15:46,5,5\n", "date.csv:3", "2023-13-16"),
    "ragged.csv": (AZURE + "2023-11-16 18:15:47,5\n", "ragged.csv:3", "2 cells"),
    "vidur.csv": (
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,5,5\n-1.0,5,5\n",
        "vidur.csv:3", "negative", "-1.0",
    ),
    "empty.jsonl": ("", "empty.jsonl", "no requests"),
    "blank.csv": ("\n\n", "blank.csv", "no requests"),
    "header.csv": ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "header.csv", "no requests"),
    "foreign.csv": ("a,b\n1,2\n", "foreign.csv:1", "Azure CSV"),
    "broken.jsonl": (MOONCAKE + '{"timestamp": \n', "broken.jsonl:2", "no JSON"),
    "twice.jsonl": (
        2 * MOONCAKE.replace("}", ', "request_id": "x"}'), "twice.jsonl:2", "unique",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRACES)
def test_a_wrong_trace_is_told_with_file_and_line(tmp_path, name):
    text, *words = TRACES[name]
    (tmp_path / name).write_text(text)
    done = call("simulate", "--trace", name, "--profile", "llama3.1-8b-h100", "--out", "o")
    assert_one_line(done, *words)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00\x01\x02", b"PK\x03\x04\xff", b"a\0b"])
def test_a_trace_that_is_no_text_is_told(tmp_path, content):
    (tmp_path / "t.csv").write_bytes(content)
    assert_one_line(call("trace", "show", "t.csv"), "t.csv", "not a text file")


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("vlm", ["unknown policy 'vlm'", "did you mean 'vllm'"]),
        ("dsparc", ["unknown policy 'dsparc'", "did you mean 'dspark'"]),
        ("", ["unknown policy ''"]),
        ("fixed", ["policy 'fixed' takes 1"]),
        ("fixed:x", ["policy 'fixed:x'", "number", "'x'"]),
        ("fixed:-1", ["whole number of 0 or more", "-1"]),
        ("fixed:1.5", ["whole number", "1.5"]),
        ("fixed:nan", ["finite"]),
        ("fixed:3,4", ["takes 1", "got 2"]),
        ("fixed:5,gamma=3", ["gamma must be at least K = 5"]),
        ("fixed:3,gama=7", ["unknown key 'gama'", "did you mean 'gamma'"]),
        ("fixed:3,gamma=7,gamma=8", ["given twice"]),
        ("fixed:100", ["100 draft tokens", "chat-dspark"]),
        ("threshold:2", ["0..1", "2"]),
        ("threshold:0.5,on=survivl", ["did you mean 'survival'"]),
        ("threshold:0.1..0.9:0.1", ["threshold"]),
        ("vllm:lag=9", ["0..3", "9"]),
        ("vllm:3", ["takes 0"]),
        ("none:1", ["takes 0"]),
        ("oracle:x=1", ["unknown key 'x'"]),
        ("no.such.module:Policy", ["cannot be imported"]),
        ("os.path:nothing", ["cannot be imported"]),
        ("os.path:sep", ["neither callable"]),
    ],
)
def test_a_wrong_policy_is_told(tmp_path, policy, words):
    done = call("simulate", *SMALL, "--policy", policy, "--concurrency", 2, "--out", "o")
    assert_one_line(done, *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--profile", "dsv4", ["unknown profile 'dsv4'", "dsv4-flash-b300-tp4"]),
        ("--profile", "a/b", ["there is no profile folder 'a/b'"]),
        ("--trace", "chat-1", ["unknown trace 'chat-1'", "did you mean 'chat-1k'"]),
        ("--trace", "a/b.csv", ["no trace file a/b.csv"]),
        ("--trace", "synth:caht", ["did you mean 'chat'"]),
        ("--trace", "synth:fixed,in=5", ["in= and out="]),
        ("--trace", "synth:fixed,in=5,out=0", ["output_tokens", "0"]),
        ("--trace", "synth:fixed,in=-5,out=5", ["-5"]),
        ("--trace", "synth:chat,rate=0", ["rate must be positive"]),
        ("--acceptance", "chat-dspak", ["did you mean 'chat-dspark'"]),
        ("--acceptance", "chat-dspark:noise=x", ["noise must be a number"]),
        ("--acceptance", "chat-dspark:nose=1", ["did you mean 'noise'"]),
        ("--acceptance", "chat-dspark:auc=0.999", ["0.999"]),
        ("--acceptance", "geometric:9", ["9"]),
        ("--acceptance", "geometric:0.5", ["0.5"]),
        ("--acceptance", "geometric", ["geometric:LENGTH"]),
        ("--acceptance", "mix:math=math-dspark", ["category"]),
        ("--acceptance", "absent.parquet", ["absent.parquet"]),
        ("--concurrency", "0", ["concurrency", "0"]),
        ("--concurrency", "-1", ["concurrency", "-1"]),
        ("--concurrency", "1.5", ["concurrency", "1.5"]),
        ("--concurrency", "abc", ["concurrency must be a number", "'abc'"]),
        ("--concurrency", "1..4", ["simulate takes one concurrency"]),
        ("--concurrency", "", ["concurrency"]),
        ("--request-rate", "0", ["request_rate", "0"]),
        ("--request-rate", "-3", ["request_rate", "-3"]),
        ("--request-rate", "nan", ["nan"]),
        ("--rate-scale", "0", ["rate_scale", "0"]),
        ("--rate-scale", "nan", ["rate_scale"]),
        ("--rate-scale", "inf", ["rate_scale"]),
        ("--requests", "0", ["requests", "0"]),
        ("--requests", "-5", ["requests", "-5"]),
        ("--num-speculative-tokens", "-1", ["num_speculative_tokens", "-1"]),
        ("--num-speculative-tokens", "100", ["100 draft tokens", "chat-dspark"]),
        ("--prefill", "chunk", ["prefill.mode", "'chunk'", "chunked"]),
        ("--goodput", "ttft", ["metric:milliseconds"]),
        ("--goodput", "tfft:5", ["tfft", "ttft"]),
        ("--goodput", "ttft:x", ["ttft", "'x'"]),
        ("--goodput", "ttft:-1", ["ttft", "-1"]),
        ("--seed", "-1", ["seed", "-1"]),
        ("--seed", 2**63, ["seed", str(2**63)]),
        ("--config", "absent.toml", ["absent.toml: cannot be read"]),
        ("--set", "sed=5", ["unknown key 'sed'", "did you mean 'seed'"]),
        ("--set", "belief.tabel=flat", ["unknown key 'tabel'", "did you mean 'table'"]),
        ("--set", "belief.profile=nowhere", ["unknown profile 'nowhere'"]),
        ("--set", "profile_set.kv_tokns=5", ["unknown key 'kv_tokns'", "did you mean 'kv_tokens'"]),
        ("--set", "profile_set.kv_tokens=-5", ["kv_tokens", "-5"]),
        ("--set", "profile_set.max_num_batched_tokens=4", ["max_num_batched_tokens", "4"]),
        ("--set", "profile_set.kv_tokens=32", ["can never fit", "kv_tokens"]),
        ("--set", "warmup_s=1e9", ["warmup_s"]),
    ],
)
def test_a_wrong_option_is_told(tmp_path, option, value, words):
    options = dict(zip(SMALL[::2], SMALL[1::2], strict=True)) | {option: value}
    flat = [part for pair in options.items() for part in pair]
    assert_one_line(call("simulate", *flat, "--out", "o"), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "no engine profile is given"),
        (["--concurrency", "4", "--request-rate", "4"], "concurrency"),
        (["--concurrency", "4", "--rate-scale", "4"], "rate_scale"),
        (["--policy", "vllm", "--policy", "none"], "simulate takes one policy, got 2"),
    ],
)
def test_options_that_exclude_each_other_are_told(options, words):
    given = SMALL if options else SMALL[2:]
    assert_one_line(call("simulate", *given, *options), words)


def test_a_typo_in_a_scenario_file_is_told_with_file_and_nearest_key(tmp_path):
    (tmp_path / "s.toml").write_text('profile = "llama3.1-8b-h100"\nconcurency = 4\n')
    done = call("simulate", "--config", "s.toml")
    assert_one_line(done, "s.toml", "unknown key 'concurency'", "did you mean 'concurrency'")
    (tmp_path / "s.toml").write_text('profile = "llama3.1-8b-h100"\n[prefill]\nmod = "none"\n')
    done = call("simulate", "--config", "s.toml")
    assert_one_line(done, "s.toml", "unknown key 'mod'", "did you mean 'mode'")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("profile = 5\n", ["s.toml", "profile", "5"]),
        ('policy = ["a"]\nprofile = "x"\n', ["s.toml", "policy"]),
        ('profile = "x"\nrequests = "many"\n', ["s.toml", "requests", "'many'"]),
        ('profile = "x"\nprefill = "none"\n', ["s.toml", "prefill"]),
        ('profile = "x"\nseed = nan\n', ["s.toml", "seed"]),
        ("profile = \n", ["s.toml", "TOML"]),
        ('profile = "x"\nprofile = "y"\n', ["s.toml", "TOML"]),
    ],
)
def test_a_wrong_scenario_file_is_told_with_file_and_key(tmp_path, text, words):
    (tmp_path / "s.toml").write_text(text)
    assert_one_line(call("simulate", "--config", "s.toml"), *words)


def copy_profile(tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree(shipped_dir("profiles") / "qwen3-8b-h20", folder)
    return folder


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("5,", ["verify.csv line", "ms"]),
        ("0,3.0", ["verify.csv line", "batch_tokens"]),
        ("1,-3.0", ["verify.csv line", "ms", "-3"]),
        ("1,nan", ["verify.csv line", "ms", "nan"]),
        ("1", ["verify.csv line"]),
        ("x,3.0", ["verify.csv line", "'x'"]),
        ("1.5,3.0", ["verify.csv line", "1.5"]),
    ],
)
def test_a_gap_or_a_wrong_number_in_a_profile_is_told_with_file_and_line(tmp_path, row, words):
    folder = copy_profile(tmp_path)
    (folder / "verify.csv").write_text(f"batch_tokens,ms\n{row}\n16384,9\n")
    done = call("simulate", *SMALL[2:], "--profile", "mine", "--out", "o")
    assert_one_line(done, *words)
    assert not (tmp_path / "o").exists()


def test_a_batch_beyond_the_profile_is_told_with_the_way_out(tmp_path):
    done = call(
        "simulate", "--profile", "qwen3-8b-h20", "--trace", "synth:fixed,in=90000,out=20",
        "--requests", 3, "--set", "profile_set.max_num_batched_tokens=100000", "--out", "o",
    )  # fmt: skip
    assert_one_line(done, "qwen3-8b-h20", "--extend")
    assert not (tmp_path / "o").exists()


def test_a_missing_table_or_key_of_a_profile_is_told(tmp_path):
    folder = copy_profile(tmp_path)
    (folder / "verify.csv").unlink()
    assert_one_line(call("profile", "show", "mine"), "verify.csv", "missing")
    (folder / "profile.toml").write_text("name = \n")
    assert_one_line(call("profile", "show", "./mine"), "profile.toml", "TOML")


def test_a_draft_longer_than_the_recording_is_told(tmp_path):
    rows = [{"request_id": "r", "position": p, "accepted": 1, "confidence": None, "category": ""}
            for p in range(4)]  # fmt: skip
    write_recording(tmp_path / "r.parquet", pd.DataFrame(rows), {"num_speculative_tokens": 3})
    options = [*SMALL, "--acceptance", "r.parquet", "--out", "o"]
    assert_one_line(call("simulate", *options), "7 draft tokens", "acceptance 'r'", "0 to 3")
    assert not (tmp_path / "o").exists()
    assert call("simulate", *options, "--num-speculative-tokens", 3)[0] == 0


RECORDED = ["belief.temperatures = 'recorded'", "keeps sts_temperatures", "file"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["sts.json: cannot be read"]),
        ("{", ["sts.json: is no JSON"]),
        ("{}", ["sts.json", "key 'temperatures' is missing"]),
        ('{"temperature": [1]}', ["sts.json", "did you mean 'temperatures'"]),
        ('{"temperatures": [1, -2]}', ["sts.json: temperatures[1]", "positive", "-2"]),
        ('{"temperatures": [1, 1, 1]}', ["'sts.json' holds 3 temperatures, but 7 tokens"]),
        ('{"temperatures": [1, 1, 1, 1, 1, 1, 1e-320]}', ["too extreme", "temperatures"]),
    ],
)
def test_wrong_temperatures_are_told(tmp_path, text, words):
    if text is not None:
        (tmp_path / "sts.json").write_text(text)
    done = call("simulate", *SMALL, "--set", "belief.temperatures=sts.json", "--out", "o")
    assert_one_line(done, *words)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    "name", ["chat-dspark", "mix:default=r.parquet,chat=r.parquet", "r.parquet"]
)
def test_temperatures_that_nobody_recorded_are_told(tmp_path, name):
    write_recording(tmp_path / "r.parquet", recording_frame())
    options = ["--acceptance", name, "--num-speculative-tokens", 3, "--out", "o"]
    done = call("simulate", *SMALL, *options, "--set", "belief.temperatures=recorded")
    assert_one_line(done, *RECORDED, f"acceptance '{name.removesuffix('.parquet')}")
    assert not (tmp_path / "o").exists()


def test_malformed_temperatures_of_a_recording_are_told_with_its_file(tmp_path):
    write_recording(tmp_path / "r.parquet", recording_frame(), {"sts_temperatures": [1, 2]})
    done = call("simulate", *SMALL, "--acceptance", "r.parquet", "--num-speculative-tokens", 3)
    assert_one_line(done, "r.parquet: sts_temperatures", "3 positive numbers", "[1, 2]")


def test_a_recording_that_is_no_parquet_is_told(tmp_path):
    (tmp_path / "r.parquet").write_text("no parquet")
    assert_one_line(call("simulate", *SMALL, "--acceptance", "r.parquet"), "r.parquet", "Parquet")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--concurrency", "0"], "concurrency"),
        (["--concurrency", "1.5"], "whole numbers of 1 or more, got 1.5"),
        (["--concurrency", "8..1"], "no rising range"),
        (["--concurrency", "abc"], "'abc'"),
        (["--concurrency", "1", "--request-rate", "1"], "not both"),
        (["--request-rate", "0"], "request_rate"),
        (["--seeds", "0"], "--seeds must be 1 or more"),
        (["--jobs", "0"], "jobs must be 1 or more"),
        (["--jobs", "-5"], "jobs must be 1 or more"),
        (["--backend", "dusk"], "did you mean 'dask'"),
        (["--backend", "dask"], "needs the address of its scheduler"),
        (["--scheduler", "tcp://127.0.0.1:8786"], "belongs to the backend dask"),
        (["--refine", "2"], "give at least two"),
        (["--refine", "2", "--request-rate", "1,2"], "give at least two"),
        (["--refine", "-1", "--concurrency", "1,2"], "refine must be 0 or more"),
        (["--policy", "vlm"], "did you mean 'vllm'"),
        (["--policy", "fixed:1..900:1"], "8 draft tokens"),
        (["--policy", "fixed:7..1"], "no rising range"),
        (["--policy", "threshold:0.5..1.5:0.5"], "TAU must lie in 0..1"),
        (["--profile", "nowhere"], "unknown profile"),
        (["--trace", "nowhere"], "unknown trace"),
        (["--acceptance", "nowhere"], "unknown acceptance"),
    ],
)
def test_a_wrong_sweep_is_told_before_anything_is_written(tmp_path, options, words):
    policy = [] if "--policy" in options else ["--policy", "none"]
    done = call("sweep", *SMALL, *policy, "--jobs", "1", *options, "--out", "o")
    assert_one_line(done, words)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_with_one_bad_policy_writes_nothing(tmp_path):
    done = call("sweep", *SMALL, "--policy", "none", "--policy", "fixed:100", "--out", "o")
    assert_one_line(done, "100")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        ["simulate", *SMALL, "--out", "file"],
        ["simulate", *SMALL, "--out", "file/below"],
        ["sweep", *SMALL, "--policy", "none", "--jobs", "1", "--out", "file"],
        ["trace", "synth", "chat", "--requests", "5", "--out", "file/t.jsonl"],
        ["trace", "synth", "chat", "--requests", "5", "--out", "folder"],
        ["trace", "show", "chat-1k", "--out", "file/t.png"],
        ["profile", "show", "qwen3-8b-h20", "--out", "file/p.png"],
    ],
)
def test_an_output_that_cannot_be_written_is_told_and_nothing_is_lost(tmp_path, command):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inner").write_text("mine too")
    before = tree(tmp_path)
    code, _, err = call(*command)
    assert code in (1, 2)
    assert err.count("\n") == 1, err
    assert err.startswith("dspark-sim: ")
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "command",
    [
        ["simulate", *SMALL, "--out", "."],
        ["simulate", *SMALL, "--out", "folder"],
        ["trace", "synth", "chat", "--requests", "5", "--out", "folder"],
        ["trace", "convert", "file.csv", "--out", "folder"],
    ],
)
def test_a_folder_of_other_things_is_never_replaced(tmp_path, command):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("years of work")
    (tmp_path / "file.csv").write_text(AZURE)
    code, _, err = call(*command)
    assert (tmp_path / "folder" / "thesis.txt").read_text() == "years of work"
    assert (tmp_path / "file.csv").read_text() == AZURE
    assert code == 0 or (code in (1, 2) and err.count("\n") == 1)


OWN = """
import numpy as np
def shape(view): return np.zeros((view.num_requests, 2), dtype=int)
def floats(view): return np.zeros(view.num_requests)
def negative(view): return np.full(view.num_requests, -1)
def long(view): return np.full(view.num_requests, 99)
def nothing(view): pass
def broken(view): raise ValueError("a bug of mine")
def good(view): return np.minimum(view.draft_len, 2)
class Needs:
    def __init__(self, other): pass
    def verify_lengths(self, view): return view.draft_len
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "ownpkg").mkdir()
    (tmp_path / "ownpkg" / "__init__.py").touch()
    (tmp_path / "ownpkg" / "rules.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "ownpkg.rules"
    for name in ("ownpkg", "ownpkg.rules"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shape", ["verify_lengths must return 4 whole numbers", "(4, 2)"]),
        ("floats", ["whole numbers", "float64"]),
        ("negative", ["-1", "allowed is 0 to 7"]),
        ("long", ["99", "allowed is 0 to 7"]),
        ("nothing", ["verify_lengths must return"]),
        ("Needs", ["Needs"]),
        ("Missing", ["cannot be imported"]),
    ],
)
def test_a_wrong_policy_of_the_users_own_is_told_by_its_name(own, tmp_path, name, words):
    done = call("simulate", *SMALL, "--concurrency", 4, "--policy", f"{own}:{name}", "--out", "o")
    assert_one_line(done, f"{own}:{name}", *words)
    assert not (tmp_path / "o").exists()


def test_a_policy_of_the_users_own_that_raises_is_not_hidden(own, tmp_path):
    with pytest.raises(ValueError, match="a bug of mine"):
        call("simulate", *SMALL, "--policy", f"{own}:broken", "--out", "o")
    assert not (tmp_path / "o").exists()


def test_a_policy_of_the_users_own_runs_wherever_a_name_does(own):
    code, out, _ = call("simulate", *SMALL, "--policy", f"{own}:good", "--json")
    assert code == 0
    assert strict(out)["verify_budget"] == 3
    code, out, _ = call(
        "sweep", *SMALL, "--policy", f"{own}:good", "--policy", "none", "--jobs", 1, "--json"
    )
    assert code == 0
    assert [row["verify_budget"] for row in strict(out)] == [3, 1]


def test_a_failed_run_leaves_the_results_of_before(tmp_path):
    call("simulate", *SMALL, "--concurrency", 4, "--out", "o")
    before = tree(tmp_path)
    assert call("simulate", *SMALL, "--acceptance", "geometric:9", "--out", "o")[0] == 2
    assert tree(tmp_path) == before


def test_an_interruption_is_told_in_one_line_and_keeps_what_is_done(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("dspark_sim.trace.load_trace", interrupt)
    code, out, err = call("trace", "show", "chat-1k")
    assert (code, out) == (130, "")
    assert err.count("\n") == 1
    assert "interrupted" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["simulte"], "simulte"),
        (["simulate", "--polcy", "vllm"], "--policy"),
        (["simulate", "--requests", "many"], "'many'"),
        (["sweep", "--seeds", "1.5"], "1.5"),
        (["trace", "synth", "chat"], "--out"),
        (["pareto"], "source"),
        (["profile", "show"], "name"),
    ],
)
def test_a_command_line_that_does_not_parse_is_told_in_one_line(arguments, words):
    assert_one_line(call(*arguments), words)


@pytest.fixture(scope="module")
def sweep_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "out"
    policies = ("--policy", "none", "--policy", "vllm")
    call("sweep", *SMALL, *policies, "--concurrency", "1,2", "--jobs", 1, "--out", folder)
    return folder


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere: "),
        (["out", "--policy", "vllm"], "--policy needs --baseline"),
        (["out", "--policy", "vlm", "--baseline", "none"], "did you mean 'vllm'"),
        (["out", "--policy", "vllm", "--baseline", "nne"], "did you mean 'none'"),
        (["out", "--policy", "vllm", "--baseline", "none", "--at-tok-s-user", "x"], "'x'"),
        (["out/runs"], "sweep"),
        (["table.csv"], "lacks the column 'policy'"),
    ],
)
def test_a_wrong_pareto_command_is_told_in_one_line(sweep_folder, tmp_path, arguments, words):
    shutil.copytree(sweep_folder, tmp_path / "out")
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    before = tree(tmp_path)
    assert_one_line(call("pareto", *arguments), words)
    assert tree(tmp_path) == before
