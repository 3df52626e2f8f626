"""Sweeps: one tidy table, whatever the worker count, and resumed where they stopped."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dspark_sim.acceptance import (
    SequentialTemperatureScaling,
    write_recording,
    write_temperatures,
)
from dspark_sim.config import Scenario
from dspark_sim.core import UserError, shipped_dir
from dspark_sim.policies import expand_policy
from dspark_sim.simulator import simulate
from dspark_sim.study import read_sweep, sweep
from dspark_sim.trace import load_trace, write_trace

ISSUE_COLUMNS = [
    "policy", "concurrency", "request_rate", "seed", "tok_s_gpu", "tok_s_user", "output_tok_s",
    "acceptance_length", "verify_budget", "wasted_fraction", "batch_tokens",
    *(f"{name}_{key}_ms" for name in ("ttft", "tpot", "icl", "e2el")
      for key in ("mean", "p50", "p90", "p99")),
]  # fmt: skip
POLICIES = ("none", "fixed:3", "vllm")
BLOCKS = [{"request_id": 0, "position": p, "accepted": 1, "confidence": None} for p in range(3)]


def scenario(**changes):
    keys = {
        "trace": "synth:fixed,in=64,out=24",
        "profile": "llama3.1-8b-h100",
        "requests": 40,
        "prefill": {"mode": "none"},
    }
    return Scenario.check(keys | changes)


def digests(out):
    """Return the bytes of sweep.csv and of all run folders, hashed, by path."""
    files = [out / "sweep.csv", *(out / "runs").glob("[!.]*/*")]
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


def folders(out):
    """Return the names of the finished runs."""
    return {path.name for path in (out / "runs").glob("[!.]*")}


def written(out):
    return {
        name: (out / "runs" / name / "summary.json").stat().st_mtime_ns for name in folders(out)
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder and the table of a sweep that ran through on one worker."""
    out = tmp_path_factory.mktemp("sweep") / "out"
    return out, sweep(scenario(), POLICIES, (1, 4), seeds=(0, 1), out=out)


def test_the_table_has_one_row_per_run_and_the_columns_of_the_design(finished):
    _, table = finished
    assert len(table) == 3 * 2 * 2
    assert [name for name in table.columns if name in ISSUE_COLUMNS] == ISSUE_COLUMNS
    assert table.columns[-1] == "run"
    assert table["policy"].tolist() == [name for name in POLICIES for _ in range(4)]
    assert table["concurrency"].tolist() == [1, 1, 4, 4] * 3
    assert table["seed"].tolist() == [0, 1] * 6
    assert table["request_rate"].isna().all()


def test_the_file_holds_the_table_to_the_last_digit(finished):
    out, table = finished
    pd.testing.assert_frame_equal(
        read_sweep(out), table.astype({"request_goodput": float}), check_dtype=False
    )
    pd.testing.assert_frame_equal(read_sweep(out), read_sweep(out / "sweep.csv"))


def test_every_row_names_the_folder_of_its_run_with_the_same_numbers(finished):
    out, table = finished
    assert table["run"].is_unique
    for _, row in table.iterrows():
        summary = json.loads((out / row["run"] / "summary.json").read_text())
        config = json.loads((out / row["run"] / "config.json").read_text())["scenario"]
        assert summary["tok_s_gpu"] == row["tok_s_gpu"]
        assert summary["e2el_p99_ms"] == row["e2el_p99_ms"]
        assert (config["policy"], config["concurrency"]) == (row["policy"], row["concurrency"])
        assert config["seed"] == row["seed"]
        assert sorted(path.name for path in (out / row["run"]).iterdir()) == [
            "config.json",
            "requests.parquet",
            "summary.json",
        ]


def test_a_row_is_what_a_single_simulation_reports(finished):
    _, table = finished
    row = table[(table["policy"] == "vllm") & (table["concurrency"] == 4)].iloc[1]
    summary = simulate(scenario(policy="vllm", concurrency=4, seed=1)).summary
    for name in ISSUE_COLUMNS[4:]:
        assert row[name] == summary[name], name


def test_without_a_folder_nothing_is_written_and_the_numbers_are_the_same(
    finished, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    table = sweep(scenario(), POLICIES, (1, 4), seeds=(0, 1))
    pd.testing.assert_frame_equal(
        table.drop(columns="run"), finished[1].drop(columns="run"), check_dtype=False
    )
    assert table["run"].tolist() == [""] * len(table)
    assert list(tmp_path.iterdir()) == []


def test_one_worker_and_two_write_the_same_bytes(finished, tmp_path):
    sweep(scenario(), POLICIES, (1, 4), seeds=(0, 1), out=tmp_path / "out", jobs=2)
    assert digests(tmp_path / "out") == digests(finished[0])


def test_only_runs_that_are_missing_or_broken_run_again(finished, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(finished[0], out)
    names = sorted(folders(out))
    before = written(out)
    shutil.rmtree(out / "runs" / names[0])
    (out / "runs" / names[1] / "summary.json").unlink()
    (out / "runs" / names[2] / "summary.json").write_text('{"tok_s_gpu": 1.0,')
    (out / "sweep.csv").unlink()
    sweep(scenario(), POLICIES, (1, 4), seeds=(0, 1), out=out)
    assert digests(out) == digests(finished[0])
    assert {name for name, time in written(out).items() if time != before[name]} == set(names[:3])


@pytest.mark.parametrize("text", ["{}", "[]", "null", '{"tok_s_gpu": 1.0}'])
def test_a_summary_that_lacks_metrics_counts_as_missing(finished, tmp_path, text):
    out = tmp_path / "out"
    shutil.copytree(finished[0], out)
    (out / "runs" / min(folders(out)) / "summary.json").write_text(text)
    sweep(scenario(), POLICIES, (1, 4), seeds=(0, 1), out=out)
    assert digests(out) == digests(finished[0])


KILLED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the parent does
import pyarrow.parquet as pq
from dspark_sim.config import Scenario
from dspark_sim.study import sweep

write, calls = pq.ParquetWriter.write_table, []

def write_table(writer, table):
    calls.append(table)
    write(writer, table)
    if len(calls) == 5:
        os.kill(os.getpid(), signal.{signal})

pq.ParquetWriter.write_table = write_table
scenario = Scenario.model_validate_json(sys.argv[1])
sweep(scenario, {policies}, (1, 4), seeds=(0, 1), out=sys.argv[2])
"""


@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT"])
def test_a_sweep_killed_in_the_middle_of_a_write_resumes_to_the_same_bytes(
    finished, tmp_path, name
):
    out = tmp_path / "out"
    program = KILLED.replace("{signal}", name).replace("{policies}", repr(POLICIES))
    command = [sys.executable, "-c", program, scenario().model_dump_json(), str(out)]
    assert subprocess.run(command, check=False, capture_output=True).returncode != 0
    assert [path.name for path in out.iterdir()] == ["runs"]
    before = written(out)
    assert len(before) == 4
    assert name == "SIGKILL" or len(list((out / "runs").iterdir())) == 4
    assert name == "SIGINT" or len(list((out / "runs").iterdir())) == 5
    sweep(scenario(), POLICIES, (1, 4), seeds=(0, 1), out=out)
    assert digests(out) == digests(finished[0])
    assert {run: time for run, time in written(out).items() if run in before} == before
    assert len(list((out / "runs").iterdir())) == 12


def test_another_scenario_has_other_run_folders(tmp_path):
    changes = [
        {}, {"requests": 41}, {"acceptance": "math-dspark"}, {"num_speculative_tokens": 5},
        {"trace": "synth:fixed,in=64,out=25"}, {"belief": {"table": "flat"}}, {"extend": True},
        {"profile_set": {"max_num_seqs": 2}},
    ]  # fmt: skip
    for change in changes:
        sweep(scenario(**change), ["vllm"], [2], out=tmp_path)
    assert len(folders(tmp_path)) == len(changes)


def copied_profile(tmp_path, name="mine"):
    shutil.copytree(shipped_dir("profiles") / "llama3.1-8b-h100", tmp_path / name)
    return tmp_path / name


def dearer(folder):
    """Make every step of a profile dearer."""
    table = pd.read_csv(folder / "verify.csv")
    table["ms"] += 5
    table.to_csv(folder / "verify.csv", index=False)


def own_trace(path, output):
    write_trace(load_trace(f"synth:fixed,in=64,out={output}", 40), path)
    return str(path)


def own_recording(path, accepted):
    frame = pd.DataFrame(BLOCKS).assign(accepted=accepted, category="chat")
    write_recording(path, frame, {"num_speculative_tokens": 7})
    return str(path)


def test_a_changed_profile_has_other_run_folders_and_numbers(tmp_path):
    folder = copied_profile(tmp_path)
    first = sweep(scenario(profile=str(folder)), ["none"], [2], out=tmp_path / "out")
    again = sweep(scenario(profile=str(folder)), ["none"], [2], out=tmp_path / "out")
    assert len(folders(tmp_path / "out")) == 1
    dearer(folder)
    second = sweep(scenario(profile=str(folder)), ["none"], [2], out=tmp_path / "out")
    assert len(folders(tmp_path / "out")) == 2
    assert first["tok_s_gpu"].item() == again["tok_s_gpu"].item() > second["tok_s_gpu"].item()


def changed_trace(tmp_path, version):
    return {"trace": own_trace(tmp_path / "own.jsonl", 20 + version)}


def changed_source_of_lengths(tmp_path, version):
    return {"trace": f"synth:empirical,from={own_trace(tmp_path / 'own.jsonl', 20 + version)}"}


def changed_recording(tmp_path, version):
    return {"acceptance": own_recording(tmp_path / "own.parquet", 1 + version)}


def changed_part_of_a_mixture(tmp_path, version):
    path = own_recording(tmp_path / "own.parquet", 1 + version)
    return {"acceptance": f"mix:chat={path},default=math-dspark"}


def changed_belief(tmp_path, version):
    if version == 0:
        return {"belief": {"profile": str(copied_profile(tmp_path))}}
    dearer(tmp_path / "mine")
    return {"belief": {"profile": str(tmp_path / "mine")}}


def changed_temperatures(tmp_path, version):
    scaling = SequentialTemperatureScaling((2.0 + version,) * 7)
    write_temperatures(scaling, tmp_path / "sts.json")
    return {"belief": {"temperatures": str(tmp_path / "sts.json")}}


@pytest.mark.parametrize(
    "change",
    [
        changed_trace,
        changed_source_of_lengths,
        changed_recording,
        changed_part_of_a_mixture,
        changed_belief,
        changed_temperatures,
    ],
)
def test_a_changed_file_has_other_run_folders_under_the_same_name(tmp_path, change):
    for version in (0, 1):
        sweep(scenario(**change(tmp_path, version)), ["vllm"], [2], out=tmp_path / "out")
        assert len(folders(tmp_path / "out")) == version + 1


def test_calibrated_confidences_are_the_same_whatever_the_worker_count(tmp_path):
    calibrated = scenario(**changed_temperatures(tmp_path, 0))
    for jobs in (1, 2):
        sweep(calibrated, ["vllm"], (1, 8), seeds=(0, 1), out=tmp_path / str(jobs), jobs=jobs)
    assert digests(tmp_path / "1") == digests(tmp_path / "2")


def test_too_few_temperatures_for_one_policy_are_told_before_anything_runs(tmp_path):
    write_temperatures(SequentialTemperatureScaling((1.0,) * 3), tmp_path / "sts.json")
    calibrated = scenario(belief={"temperatures": str(tmp_path / "sts.json")})
    with pytest.raises(UserError, match=r"sts\.json' holds 3 temperatures, but 4 tokens"):
        sweep(calibrated, ["fixed:3", "fixed:4"], [2], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_changed_policy_of_the_users_own_runs_again(tmp_path):
    program = (
        "import sys\nfrom dspark_sim.config import Scenario\nfrom dspark_sim.study import sweep\n"
        "run = Scenario.model_validate_json(sys.argv[1])\n"
        "print(sweep(run, ['own.rules:mine'], [2], out='out')['verify_budget'].item())"
    )
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").touch()
    budgets = []
    for length in (1, 2):
        (tmp_path / "own" / "rules.py").write_text(
            f"import numpy as np\ndef mine(view): return np.full(view.num_requests, {length})\n"
        )
        command = [sys.executable, "-B", "-c", program, scenario().model_dump_json()]
        budgets.append(subprocess.check_output(command, cwd=tmp_path, text=True, env=environment()))
    assert [float(budget) for budget in budgets] == [2, 3]


def environment():
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}


def test_ranges_expand_to_policies():
    assert expand_policy("threshold:0.1..0.3:0.1") == [
        "threshold:0.1",
        "threshold:0.2",
        "threshold:0.3",
    ]
    assert expand_policy("fixed:1..7:2,gamma=7") == [f"fixed:{k},gamma=7" for k in (1, 3, 5, 7)]
    assert expand_policy("vllm") == ["vllm"]
    assert expand_policy("my.module:Policy") == ["my.module:Policy"]


def test_policies_and_seeds_given_twice_run_once():
    table = sweep(scenario(), ["none", "fixed:3", "none"], [2, 4], seeds=[1, 0, 1])
    assert table["policy"].tolist() == ["none"] * 4 + ["fixed:3"] * 4
    assert table["seed"].tolist() == [1, 0] * 4


def test_concurrencies_given_twice_run_once():
    table = sweep(scenario(), ["none"], [2, 4, 2])
    assert table["concurrency"].tolist() == [2, 4]


def test_policies_that_differ_only_in_spelling_keep_folders_of_their_own(tmp_path):
    table = sweep(scenario(), ["fixed:3,gamma=7", "fixed:3"], [2], out=tmp_path)
    assert table["run"].nunique() == len(folders(tmp_path)) == 2


@pytest.mark.parametrize(("concurrency", "requests"), [(1, 1000), (125, 1000), (256, 2048)])
def test_requests_are_at_least_a_thousand_and_eight_per_slot(tmp_path, concurrency, requests):
    table = sweep(
        scenario(requests=None, trace="synth:fixed,in=8,out=4"), ["none"], [concurrency],
        out=tmp_path,
    )  # fmt: skip
    assert len(pd.read_parquet(tmp_path / table["run"].item() / "requests.parquet")) == requests


def test_a_short_trace_is_repeated_to_fill_a_closed_loop(tmp_path):
    path = own_trace(tmp_path / "own.jsonl", 4)
    table = sweep(scenario(requests=None, trace=path), ["none"], [2], out=tmp_path)
    assert len(pd.read_parquet(tmp_path / table["run"].item() / "requests.parquet")) == 1000


def test_a_refined_sweep_is_the_sweep_over_the_concurrencies_it_found(tmp_path):
    refined = sweep(scenario(), POLICIES, (16, 1), seeds=(0, 1), refine=2, out=tmp_path)
    loads = refined["concurrency"].unique().tolist()
    assert len(loads) == 4
    assert loads == sorted(loads)
    assert refined["policy"].tolist() == [name for name in POLICIES for _ in range(8)]
    plain = sweep(scenario(), POLICIES, loads, seeds=(0, 1))
    pd.testing.assert_frame_equal(
        refined.drop(columns="run"), plain.drop(columns="run"), check_dtype=False
    )
    pd.testing.assert_frame_equal(read_sweep(tmp_path), refined, check_dtype=False)


def test_refining_further_keeps_what_was_there(tmp_path):
    before = {}
    for count in (0, 1, 2):
        table = sweep(scenario(), ["none", "vllm"], (1, 16), refine=count, out=tmp_path)
        assert table["concurrency"].nunique() == 2 + count
        assert before.items() <= written(tmp_path).items()
        before = written(tmp_path)
        assert len(before) == 2 * (2 + count)


def test_refining_ends_where_there_is_no_room():
    table = sweep(scenario(), ["none"], (1, 4), refine=100)
    assert table["concurrency"].tolist() == [1, 2, 3, 4]


def test_open_loops_sweep_over_request_rates():
    table = sweep(scenario(), ["none", "fixed:3"], request_rate=[0.5, 200])
    assert table["request_rate"].tolist() == [0.5, 200] * 2
    assert table["concurrency"].isna().all()
    slow, fast = table["output_tok_s"][:2]
    assert slow < fast


def test_without_a_load_the_traces_own_times_count():
    table = sweep(scenario(trace="chat-1k", requests=30), ["none"])
    assert len(table) == 1
    assert table[["concurrency", "request_rate"]].isna().all().all()


def test_the_same_seeds_mean_the_same_requests_for_every_policy(finished):
    out, table = finished
    for _, rows in table.groupby(["concurrency", "seed"]):
        ids = [
            pd.read_parquet(out / run / "requests.parquet")[["prompt_tokens", "output_tokens"]]
            for run in rows["run"]
        ]
        for other in ids[1:]:
            pd.testing.assert_frame_equal(ids[0], other)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"policies": ["vlm"]}, "unknown policy 'vlm'.*did you mean 'vllm'"),
        ({"policies": ["none", "fixed"]}, "policy 'fixed' takes 1 plain argument"),
        ({"concurrency": [2], "request_rate": [1.0]}, "either concurrencies or request rates"),
        ({"jobs": 0}, "jobs must be 1 or more, or -1 for all cores, got 0"),
        ({"jobs": -2}, "jobs must be 1 or more, or -1"),
        ({"concurrency": [0]}, "concurrency = 0"),
        ({"request_rate": [-1.0]}, "request_rate = -1"),
        ({"seeds": [-1]}, "seed = -1"),
        ({"backend": "loki"}, "unknown backend 'loki': did you mean 'loky'"),
        ({"backend": "dask"}, "backend dask needs the address of its scheduler"),
        ({"scheduler": "tcp://127.0.0.1:1"}, "scheduler .* belongs to the backend dask"),
        ({"refine": -1, "concurrency": [1, 2]}, "refine must be 0 or more, got -1"),
        ({"refine": 1}, "refine adds concurrencies between others: give at least two"),
        ({"refine": 1, "concurrency": [2, 2]}, "refine adds concurrencies between others"),
        ({"refine": 1, "request_rate": [1.0, 2.0]}, "refine adds concurrencies between others"),
        ({"policies": []}, "at least one policy"),
        ({"seeds": []}, "at least one seed"),
    ],
)
def test_a_mistake_is_told_before_anything_runs_or_is_written(tmp_path, arguments, words):
    keys = {"policies": ["none"], "out": tmp_path / "out"} | arguments
    with pytest.raises(UserError, match=words):
        sweep(scenario(), keys.pop("policies"), **keys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, r"sweep\.csv: cannot be read"),
        (b"", r"sweep\.csv: cannot be read"),
        (b"\xff\xfe\x00\x01", r"sweep\.csv: cannot be read"),
        (b'a,b\n1,2\n"3', r"sweep\.csv: cannot be read"),
    ],
)
def test_a_file_that_is_no_sweep_is_told_in_one_line(tmp_path, content, words):
    if content is not None:
        (tmp_path / "sweep.csv").write_bytes(content)
    with pytest.raises(UserError, match=words) as caught:
        read_sweep(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_gain_at_one_concurrency_does_not_depend_on_the_others(finished):
    _, table = finished
    alone = sweep(scenario(), ["vllm"], [4], seeds=[1])
    row = table[(table["policy"] == "vllm") & (table["concurrency"] == 4) & (table["seed"] == 1)]
    assert np.array_equal(
        alone[ISSUE_COLUMNS[4:]].to_numpy(float), row[ISSUE_COLUMNS[4:]].to_numpy(float)
    )
