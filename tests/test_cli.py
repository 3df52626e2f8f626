"""The command line: what it prints and what it writes."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import SMALL, call, strict, tree
from small_recording import recording_frame

from dspark_sim import Scenario, __version__, simulate
from dspark_sim.acceptance import write_recording
from dspark_sim.core import shipped_dir
from dspark_sim.policies import POLICIES
from dspark_sim.trace import load_trace, read_trace

SHARED = Path(__file__).parents[2] / "shared" / "data" / "traces"
PROFILES = sorted(path.parent.name for path in shipped_dir("profiles").glob("*/profile.toml"))
LATENCIES = [
    f"{name}_{key}_ms" for name in ("ttft", "tpot", "icl", "e2el")
    for key in ("mean", "p50", "p90", "p99")
]  # fmt: skip
METRICS = [
    "tok_s_gpu", "tok_s_user", "output_tok_s", "acceptance_length", "verify_budget",
    "wasted_tokens", "wasted_fraction", "batch_tokens", "utilisation", "mean_queue_requests",
    "request_throughput", "output_throughput", "total_token_throughput", "mean_ttft_ms",
    "median_tpot_ms", "p99_itl_ms", "p90_e2el_ms", *LATENCIES,
]  # fmt: skip


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Run every command in an empty folder."""
    monkeypatch.chdir(tmp_path)


def test_the_version_is_printed():
    assert call("--version") == (0, f"dspark-sim {__version__}\n", "")


def test_help_names_every_command():
    code, out, _ = call("--help")
    assert code == 0
    for command in ("demo", "simulate", "sweep", "pareto", "trace", "profile", "ls"):
        assert command in out


@pytest.mark.parametrize("command", [[], ["trace"], ["profile"]])
def test_without_a_command_help_is_shown(command):
    code, out, err = call(*command)
    assert code in (0, 2)
    assert "Usage" in out
    assert err == ""


@pytest.mark.parametrize(
    "command",
    [["simulate"], ["sweep"], ["pareto"], ["demo"], ["ls"], ["trace", "show"], ["trace", "synth"],
     ["trace", "convert"], ["profile", "show"]],
)  # fmt: skip
def test_every_command_has_help(command):
    code, out, err = call(*command, "--help")
    assert (code, err) == (0, "")
    assert "--out" in out or command == ["ls"]


def test_the_module_runs_as_a_program(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "dspark_sim", "--version"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"dspark-sim {__version__}\n", "")


def test_ls_lists_names_with_their_origin():
    code, out, err = call("ls", "--json")
    names = strict(out)
    assert (code, err) == (0, "")
    assert list(names) == ["profiles", "acceptance", "traces", "policies"]
    for rows in names.values():
        assert rows
        for row in rows:
            assert list(row) == ["name", "origin"]
            assert row["name"]
            assert row["origin"]
    listed = {kind: {row["name"] for row in rows} for kind, rows in names.items()}
    assert "dsv4-flash-b300-tp4" in listed["profiles"]
    laws = {f"{d}-{m}" for d in ("math", "code", "chat") for m in ("dspark", "dflash", "eagle3")}
    assert laws | {"golden-dsv4-pro-dspark", "golden-kimi-k3-dspark"} <= listed["acceptance"]
    assert {"synth:chat", "synth:code", "synth:reasoning"} <= listed["traces"]
    assert set(POLICIES) <= listed["policies"]
    text = call("ls")[1]
    assert all(name in text for rows in listed.values() for name in rows)


def test_simulate_prints_every_metric_and_json_prints_nothing_else():
    code, out, err = call("simulate", *SMALL, "--concurrency", 4, "--policy", "vllm", "--json")
    summary = strict(out)
    assert (code, err) == (0, "")
    assert set(METRICS) <= set(summary)
    identity = {"policy": "vllm", "profile": "llama3.1-8b-h100", "concurrency": 4, "seed": 0}
    assert identity.items() <= summary.items()
    assert summary["completed"] == 40
    text = call("simulate", *SMALL, "--concurrency", 4, "--policy", "vllm")[1]
    shown = [line.split()[0] for line in text.splitlines()]
    assert set(METRICS) <= set(shown)


def test_the_command_is_the_function_of_the_same_name():
    out = call("simulate", *SMALL, "--concurrency", 4, "--policy", "fixed:3", "--json")[1]
    scenario = Scenario(
        profile=SMALL[1], trace=SMALL[3], requests=40, concurrency=4, policy="fixed:3"
    )
    summary = simulate(scenario).summary
    printed = strict(out)
    for name in METRICS:
        assert printed[name] == summary[name]


def test_a_metric_that_does_not_exist_is_null_in_json():
    out = call(
        "simulate", "--profile", "llama3.1-8b-h100", "--trace", "synth:fixed,in=8,out=1",
        "--requests", 1, "--json",
    )[1]  # fmt: skip
    summary = strict(out)
    assert summary["tpot_mean_ms"] is None
    assert summary["tok_s_user"] is None
    assert summary["request_goodput"] is None


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("AzureLLMInferenceTrace_conv.csv", ["--rate-scale", 4]),
        ("AzureLLMInferenceTrace_code.csv", []),
        ("mooncake_conversation.jsonl", []),
        ("vidur_splitwise_code.csv", []),
        ("llmservingsim_mixed.jsonl", ["--requests", 100]),
    ],
)
def test_a_public_trace_is_read_as_it_is_and_reports_every_metric(name, options):
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"the public trace {name} is not here")
    code, out, err = call(
        "simulate", "--trace", path, "--profile", "dsv4-flash-b300-tp4", "--policy",
        "dspark-async", "--requests", 500, "--out", "o", "--json", *options,
    )  # fmt: skip
    summary = strict(out)
    assert (code, err) == (0, "")
    assert all(np.isfinite(summary[key]) for key in METRICS)
    count = options[-1] if "--requests" in options else 500
    assert summary["completed"] == count
    requests = pd.read_parquet("o/requests.parquet")
    expected = read_trace(path).requests.head(count)
    assert requests["prompt_tokens"].tolist() == expected["prompt_tokens"].tolist()
    assert summary["total_output_tokens"] == expected["output_tokens"].sum()
    scale = options[-1] if "--rate-scale" in options else 1
    last = float(expected["arrival_s"].iloc[-1]) / scale
    assert requests["arrival_s"].iloc[-1] == pytest.approx(last, abs=1e-8)


def test_out_holds_config_summary_and_tables(tmp_path):
    out = call("simulate", *SMALL, "--concurrency", 4, "--out", "o", "--json")[1]
    assert sorted(tree(tmp_path / "o")) == [
        "config.json",
        "requests.parquet",
        "steps.parquet",
        "summary.json",
    ]
    printed, saved = strict(out), strict((tmp_path / "o" / "summary.json").read_text())
    assert saved.items() <= printed.items()
    config = strict((tmp_path / "o" / "config.json").read_text())
    assert config["scenario"]["concurrency"] == 4
    assert {"dspark-sim", "numpy", "numba"} <= set(config["versions"])
    assert config["hashes"]["trace"]
    assert config["hashes"]["profile"]


def test_the_same_command_writes_the_same_bytes(tmp_path):
    for folder in ("a", "b"):
        call("simulate", *SMALL, "--request-rate", 50, "--out", folder)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_a_saved_scenario_file_gives_the_same_numbers(tmp_path):
    (tmp_path / "s.toml").write_text(
        'profile = "llama3.1-8b-h100"\ntrace = "synth:fixed,in=64,out=24"\nrequests = 40\n'
        'policy = "vllm"\nconcurrency = 4\n[prefill]\nmode = "none"\n[goodput]\ntpot = 30\n'
    )
    from_file = call("simulate", "--config", "s.toml", "--json")
    options = ["--policy", "vllm", "--concurrency", 4, "--prefill", "none", "--goodput", "tpot:30"]
    assert from_file == call("simulate", *SMALL, *options, "--json")
    assert strict(from_file[1])["request_goodput"] > 0
    assert strict(call("simulate", "--config", "s.toml", "--seed", 3, "--json")[1])["seed"] == 3


def test_all_requests_at_once_is_a_rate_of_infinity():
    code, out, err = call("simulate", *SMALL, "--request-rate", "inf", "--out", "o", "--json")
    assert (code, err) == (0, "")
    assert (pd.read_parquet("o/requests.parquet")["arrival_s"] == 0).all()
    assert strict(out)["completed"] == 40


def test_an_extension_beyond_the_profile_is_asked_for_and_recorded():
    wide = (
        "--profile", "qwen3-8b-h20", "--trace", "synth:fixed,in=90000,out=4", "--requests", 3,
        "--set", "profile_set.max_num_batched_tokens=100000",
    )  # fmt: skip
    code, _, err = call("simulate", *wide)
    assert code == 2
    assert "--extend" in err
    summary = strict(call("simulate", *wide, "--extend", "--json")[1])
    assert summary["extended_step_fraction"] > 0


def test_a_sweep_prints_a_table_and_writes_pictures(tmp_path):
    code, out, err = call(
        "sweep", *SMALL, "--policy", "none", "--policy", "fixed:1..3:2", "--policy", "vllm",
        "--policy", "none", "--concurrency", "1..4", "--prefill", "none", "--jobs", 1,
        "--out", "out",
    )  # fmt: skip
    assert (code, err) == (0, "")
    for text in ("tok/s/GPU", "tok/s/user", "verify budget", "fixed:3", "vllm", "out/sweep.csv"):
        assert text in out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    pictures = {f"{n}.{e}" for n in ("pareto", "load", "latency", "waste") for e in ("png", "svg")}
    assert names == {"sweep.csv", "pareto.csv", "runs"} | pictures
    table = pd.read_csv(tmp_path / "out" / "sweep.csv")
    assert table["policy"].tolist() == ["none"] * 3 + ["fixed:1"] * 3 + ["fixed:3"] * 3 + (
        ["vllm"] * 3
    )


def test_a_sweep_as_json_is_its_table(tmp_path):
    code, out, err = call(
        "sweep", *SMALL, "--policy", "none", "--policy", "vllm", "--request-rate", "5,10",
        "--seeds", 2, "--seed", 7, "--jobs", 1, "--out", "out", "--json",
    )  # fmt: skip
    rows = strict(out)
    assert (code, err) == (0, "")
    table = pd.read_csv(tmp_path / "out" / "sweep.csv")
    assert list(rows[0]) == list(table.columns)
    assert [row["seed"] for row in rows] == [7, 8] * 4
    assert [row["tok_s_gpu"] for row in rows] == pytest.approx(table["tok_s_gpu"].tolist())
    assert rows[0]["concurrency"] is None


def test_a_refined_sweep_adds_concurrencies():
    code, out, err = call(
        "sweep", *SMALL, "--policy", "none", "--policy", "vllm", "--concurrency", "1,16",
        "--refine", 2, "--jobs", 1, "--json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    loads = [row["concurrency"] for row in strict(out)]
    assert len(set(loads)) == 4
    assert loads == sorted(set(loads)) * 2


def test_pareto_prints_the_frontier_and_compares_two_policies(tmp_path):
    policies = ("--policy", "none", "--policy", "fixed:3", "--policy", "vllm")
    call("sweep", *SMALL, *policies, "--concurrency", "1..4", "--jobs", 1, "--out", "out")
    before = tree(tmp_path / "out")
    code, out, err = call("pareto", "out", "--policy", "vllm", "--baseline", "none")
    assert (code, err) == (0, "")
    assert "frontier" in out
    assert "vllm against none" in out
    after = tree(tmp_path / "out")
    assert after.keys() == before.keys()
    assert after["sweep.csv"] == before["sweep.csv"]
    code, out, err = call(
        "pareto", "out/sweep.csv", "--policy", "vllm", "--baseline", "fixed:3",
        "--at-tok-s-user", "150,200", "--out", "elsewhere", "--json",
    )  # fmt: skip
    tables = strict(out)
    assert (code, err) == (0, "")
    assert [row["at"] for row in tables["vllm against fixed:3"]] == [150, 200]
    assert (tmp_path / "elsewhere" / "pareto.png").is_file()


def test_trace_show_describes_and_draws(tmp_path):
    code, out, err = call("trace", "show", "chat-1k", "--out", "t.png", "--json")
    summary = strict(out)
    assert (code, err) == (0, "")
    assert summary["num_requests"] == 1000
    assert summary["prompt_tokens"]["p50"] == pytest.approx(1020, rel=0.1)
    assert (tmp_path / "t.png").stat().st_size > 1000
    text = call("trace", "show", "chat-1k", "--rate-scale", 2)[1]
    for word in ("num_requests", "interarrival_cv", "p99", "request_rate_per_s"):
        assert word in text
    assert strict(call("trace", "show", "chat-1k", "--rate-scale", 2, "--json")[1])[
        "duration_s"
    ] == pytest.approx(summary["duration_s"] / 2)


def test_trace_synth_writes_what_the_function_draws(tmp_path):
    code, out, err = call(
        "trace", "synth", "chat", "--requests", 50, "--seed", 3, "--out", "t.jsonl"
    )
    assert (code, out) == (0, "")
    assert err == "wrote 50 requests to t.jsonl\n"
    pd.testing.assert_frame_equal(
        read_trace(tmp_path / "t.jsonl").requests, load_trace("synth:chat", 50, 3).requests
    )


def test_trace_convert_keeps_times_lengths_and_names_a_category(tmp_path):
    (tmp_path / "azure.csv").write_bytes(
        b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        b"2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109\r\n"
    )
    code, out, err = call(
        "trace", "convert", "azure.csv", "--out", "own.jsonl", "--category", "math"
    )
    assert (code, out, err) == (0, "", "wrote 2 requests to own.jsonl\n")
    frame = read_trace(tmp_path / "own.jsonl").requests
    assert frame["arrival_s"].tolist() == [0.0, 4.314579]
    assert frame["prompt_tokens"].tolist() == [374, 396]
    assert set(frame["category"]) == {"math"}


@pytest.mark.parametrize("name", PROFILES)
def test_profile_show_prints_and_draws_every_shipped_profile(tmp_path, name):
    code, out, err = call("profile", "show", name, "--requests", 8, "--out", "p.png", "--json")
    profile = strict(out)
    assert (code, err) == (0, "")
    assert profile["name"] == name
    assert profile["provenance"]["source"]
    assert profile["steps"]
    assert (tmp_path / "p.png").stat().st_size > 1000
    text = call("profile", "show", name)[1]
    assert name in text
    assert "source: " in text


def test_the_demo_prints_its_table_and_writes_its_picture(tmp_path, monkeypatch):
    monkeypatch.setattr("dspark_sim.cli.DEMO_POLICIES", ("none", "vllm"))
    code, out, err = call("demo", "--jobs", 1)
    assert code == 0
    assert "published cost table" in err
    for text in ("concurrency", "tok/s/GPU", "256", "vllm", "demo-out/pareto.png"):
        assert text in out
    assert (tmp_path / "demo-out" / "pareto.png").stat().st_size > 10_000
    table = pd.read_csv(tmp_path / "demo-out" / "sweep.csv")
    assert len(table) == 2 * 5


def test_lossless_tells_biased_rules_from_lossless_ones():
    policies = ("--policy", "vllm", "--policy", "vllm:lag=0")
    rows = strict(call("lossless", *policies, "--json")[1])
    assert [(row["policy"], row["lossless"]) for row in rows] == [
        ("vllm", True),
        ("vllm:lag=0", False),
    ]
    assert rows[1]["tv_bias"] == pytest.approx(0.15)
    assert "lossless" in call("lossless", *policies)[1]


def test_acceptance_show_prints_conditional_rates_and_their_calibration():
    found = strict(call("acceptance", "show", "chat-dspark", "--json")[1])
    assert found["acceptance_length"] == pytest.approx(3.5, abs=0.3)
    assert [row["position"] for row in found["positions"]] == [1, 2, 3, 4, 5, 6, 7]
    assert max(row["ece"] for row in found["positions"]) < 0.05
    assert "acceptance length" in call("acceptance", "show", "chat-dspark")[1]


def test_acceptance_show_prints_the_temperatures_kept_with_a_recording(tmp_path):
    about = {"sts_temperatures": [1.25, 0.8, 2]}
    write_recording(tmp_path / "kept.parquet", recording_frame(), about)
    write_recording(tmp_path / "bare.parquet", recording_frame())
    assert "temperatures 1.25 0.8 2 " in call("acceptance", "show", "kept.parquet")[1]
    assert "temperatures" not in call("acceptance", "show", "bare.parquet")[1]
    found = strict(call("acceptance", "show", "kept.parquet", "--json")[1])
    assert found["temperatures"] == [1.25, 0.8, 2.0]


def test_calibrated_temperatures_undo_a_law_that_is_too_sure_of_itself(tmp_path):
    sure = ("--acceptance", "chat-dspark:scale=3")
    call("acceptance", "calibrate", sure[1], "--out", "sts.json")
    given = ("simulate", "--trace", "synth:chat", "--profile", "dsv4-flash-b300-tp4",
             "--requests", 400, "--concurrency", 64, "--prefill", "none", "--json")  # fmt: skip
    calibrated = ("--set", "belief.temperatures=sts.json")
    truth, raw, mended = (
        strict(call(*given, *more)[1])["verify_budget"] for more in ((), sure, sure + calibrated)
    )
    assert abs(mended - truth) < abs(raw - truth) / 3


def test_acceptance_calibrate_writes_temperatures_and_a_picture(tmp_path):
    code, out, _ = call("acceptance", "calibrate", "chat-dspark:scale=1.8", "--out", "sts.json")
    assert code == 0
    assert "sts.png" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sts.json", "sts.png", "sts.svg"]
    temperatures = strict((tmp_path / "sts.json").read_text())["temperatures"]
    assert temperatures[0] == pytest.approx(1.8, rel=0.2)
