"""From timings to a profile: made-up timings whose truth is known, and one real short run."""

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import call

pytest.importorskip("torch", reason="the extra `model` (torch) is not installed")

from dspark_sim import simulate
from dspark_sim.config import Scenario
from dspark_sim.core import RunError, UserError
from dspark_sim.model import measure, timing
from dspark_sim.model.measure import (
    profile_from_timings,
    read_timings,
    write_measured,
)
from dspark_sim.model.timing.grid import cpu_scope, gpu_scope, points
from dspark_sim.throughput import load_profile

ROOT = Path(__file__).parents[1]
ALPHA, KAPPA, DRAFT_KAPPA = 0.02, 1e-5, 2e-6
CPU = cpu_scope(True, 7, (512, 128), 16, held=10**9)
CPU_FULL = cpu_scope(False, 7, (512, 128), 16, held=10**9)
GPU = gpu_scope(True, 7, (2048, 512), 64, 256, held=10**9)


def truth(point, limit):
    """Return (ms, KV tokens read) of a made-up machine: 5 ms, 0.05 per token, a cliff of 20 ms."""
    size = point.rows or point.tokens
    kv = point.requests * point.context - point.tokens + point.requests
    if point.kind == "host":
        return 0.3, 0
    if point.kind == "head":
        return 1.0 + 0.01 * size, 0
    if point.kind == "prefill":
        return 5.0 + 0.05 * size, point.context
    if point.kind.startswith("draft"):
        kv = point.requests * point.context
        rounds = 1 if point.kind == "draft-block" else point.draft_len
        return rounds * (0.8 + 0.01 * point.requests) + DRAFT_KAPPA * kv, kv
    cliff = 20.0 if limit and size > limit else 0.0
    return 5.0 + 0.05 * size + cliff + ALPHA * (point.requests - 1) + KAPPA * kv, kv


def made_up(scope, noise=0.0):
    """Return timings as the core would write them on that machine."""
    rng, limit = np.random.default_rng(0), scope.capture_limit
    rows = []
    for point in points(scope):
        ms, kv = truth(point, limit)
        samples = ms * np.exp(rng.normal(0.0, noise, 9)) if noise else np.full(9, ms)
        low, middle, high = np.quantile(samples, [0.1, 0.5, 0.9])
        rows.append(
            {
                "kind": point.kind, "requests": point.requests, "tokens": point.tokens,
                "context": point.context, "prefill": point.prefill, "draft_len": point.draft_len,
                "rows": point.rows, "lengths": "uniform" if point.uniform else "ragged",
                "table": point.table, "kv_tokens_read": kv, "captured": point.rows > 0,
                "attention": "flash", "roofline_ms": 0.5 * ms,
                "ms": middle, "p10_ms": low, "p90_ms": high, "n": 9, "outliers": 0,
                "samples_ms": samples.tolist(),
            }
        )  # fmt: skip
    device = "cuda" if limit else "cpu"
    settings = timing.Settings(
        "llama3.1-8b", device, quick=True, contexts=scope.contexts, capture_limit=limit or 1024
    ).filled()
    return {
        "format": "dspark-sim timings",
        "version": 1,
        "model": vars(timing.model_sizes("llama3.1-8b")),
        "settings": {**vars(settings), "contexts": list(settings.contexts)},
        "machine": {
            "name": "Some Device", "torch": "2.99", "device": device,
            "copy_gb_s": 100.0, "read_gb_s": 90.0, "matmul_tflop_s": 1.0,
        },
        "gpu_state": [{"clocks.sm": "1980 MHz", "temperature.gpu": "40"}] * 2 if limit else [],
        "kernels": {"flash": "off the reference by 0.01 at most"},
        "kv_tokens": 123_456,
        "reference": {
            "requests": 1, "tokens": 1, "samples_ms": [5.0] * 27, "drift": 0.0, "spread": 0.01
        },
        "points": rows,
        "left_out": [],
        "started": "a day",
        "seconds": 40.0,
    }  # fmt: skip


@pytest.fixture(scope="module")
def on_cpu():
    return profile_from_timings(made_up(CPU), "cpu")


@pytest.fixture(scope="module")
def on_gpu():
    return profile_from_timings(made_up(GPU), "gpu")


def test_the_timings_version_is_the_timing_cores():
    assert measure.VERSION == timing.VERSION


def test_a_cpus_profile_is_read_along_straight_lines(on_cpu):
    profile = on_cpu.profile
    assert (profile.lookup, profile.draft_lookup, profile.capture_limit) == ("linear",) * 2 + (
        None,
    )
    assert "Nothing was captured" in profile.provenance["lookup"]
    assert profile.token_range == (1, 256)
    assert profile.max_num_seqs == 16
    assert profile.kv_tokens == 123_456


@pytest.mark.parametrize(
    ("requests", "tokens", "context"), [(1, 1, 900), (5, 20, 300), (16, 99, 64)]
)
def test_a_measured_profile_answers_any_step_of_the_machine(on_cpu, requests, tokens, context):
    profile, kv = on_cpu.profile, requests * context
    wanted = 5.0 + 0.05 * tokens + ALPHA * (requests - 1) + KAPPA * kv
    assert profile.step_ms(requests, tokens, kv) == pytest.approx(0.3 + wanted, rel=1e-6)


def test_the_cost_of_requests_and_context_is_told_from_that_of_tokens(on_cpu):
    profile = on_cpu.profile
    assert profile.context_ms_per_kv_token == pytest.approx(KAPPA, rel=1e-6)
    assert profile.request_ms(16) - profile.request_ms(1) == pytest.approx(ALPHA * 15, rel=1e-6)
    assert "wrong by more than 5% at 0 of" in profile.provenance["additive"]


def test_a_gpus_batch_is_padded_to_the_next_graph_and_falls_off_the_cliff(on_gpu):
    profile = on_gpu.profile
    assert (profile.lookup, profile.capture_limit) == ("captured", 256)
    assert profile.verify_ms(100) == profile.verify_ms(128)
    assert profile.verify_ms(257) - profile.verify_ms(256) == pytest.approx(20.8, rel=1e-3)
    assert not profile.clamped(272)
    assert profile.token_range[1] == max(GPU.eager)


def test_points_outside_the_tables_are_held_against_them(on_cpu, on_gpu):
    for measured in (on_cpu, on_gpu):
        assert set(measured.checks["kind"]) == {"verify", "mixed"}
        assert set(measured.checks["lengths"]) == {"ragged", "uniform"}
        assert measured.checks["error"].abs().max() < 1e-6
    assert "sizes between the table's: median error 0.0%" in on_cpu.profile.provenance["checks"]


def test_a_draft_is_stored_without_its_context(on_gpu):
    profile = on_gpu.profile
    assert profile.drafter == "block"
    assert profile.draft_context_ms_per_kv_token == pytest.approx(DRAFT_KAPPA, rel=1e-6)
    assert profile.draft_ms(8, 7) == pytest.approx(0.88, rel=1e-6)
    assert profile.draft_ms(8, 3) == profile.draft_ms(8, 7)


def test_the_other_drafter_can_be_taken_instead():
    profile = profile_from_timings(made_up(CPU_FULL), "x", "autoregressive").profile
    assert profile.drafter == "autoregressive"
    assert profile.draft_ms(8, 3) == pytest.approx(3 * 0.88, rel=1e-6)
    none = profile_from_timings(made_up(CPU), "x", "none").profile
    assert (none.drafter, none.draft) == ("none", None)
    with pytest.raises(UserError, match="unknown drafter 'blok': did you mean 'block'"):
        profile_from_timings(made_up(CPU), "x", "blok")


def test_a_draft_length_that_was_cut_short_does_not_shorten_the_table():
    timings = made_up(CPU_FULL)
    timings["points"] = [
        row
        for row in timings["points"]
        if not (row["kind"] == "draft-block" and row["draft_len"] == 1 and row["requests"] > 4)
    ]
    profile = profile_from_timings(timings, "x").profile
    assert set(profile.draft["draft_len"]) == {7}
    assert profile.max_num_seqs == 16


def test_prompts_of_their_own_are_tabulated(on_cpu):
    assert on_cpu.profile.prefill_ms(128) == pytest.approx(5.0 + 0.05 * 128)


def test_provenance_tells_what_a_reader_has_to_know(on_cpu, on_gpu):
    told = on_gpu.profile.provenance
    assert "Some Device" in told["machine"]
    assert "copy 100 GB/s" in told["machine"]
    assert told["command"].startswith("dspark-sim profile measure --model llama3.1-8b --quick")
    assert "--device cuda --dtype bfloat16" in told["command"]
    assert "CUDA events" in told["method"]
    assert "the wall clock" in on_cpu.profile.provenance["method"]
    assert "flash at" in told["attention"]
    assert "M = 1: 2, M = 64: 2, M = 256: 2" in told["roofline"]
    assert "1980 MHz" in told["drift"]
    assert told["left_out"].startswith("nothing")
    assert "No point spans more than 10%" in told["noise"]


def test_the_command_in_the_provenance_can_be_given_again(on_gpu, tmp_path, monkeypatch):
    asked = {}

    def remember(settings, progress):
        asked["settings"] = settings
        return made_up(GPU)

    monkeypatch.setattr(timing, "measure", remember)
    words = on_gpu.profile.provenance["command"].split()[1:]
    code, _, err = call(*words, "--out", tmp_path / "again")
    assert code == 0, err
    settings = asked["settings"]
    assert settings == settings.filled()
    assert vars(settings) == {**made_up(GPU)["settings"], "contexts": (2048, 512)}


def test_noise_is_named_with_its_interval():
    measured = profile_from_timings(made_up(CPU, noise=0.15), "noisy")
    told = measured.profile.provenance["noise"]
    assert "NOISY, more than 10%" in told
    assert " ms" in told
    assert measured.profile.verify["p90_ms"].gt(measured.profile.verify["p10_ms"]).all()


def test_a_point_timed_too_seldom_is_no_quiet_point():
    timings = made_up(CPU)
    timings["points"][0]["n"] = 1
    told = profile_from_timings(timings, "x").profile.provenance["noise"]
    assert "TOO LITTLE TIME: 1 points were timed fewer than 3 times" in told


def test_little_noise_moves_step_times_little():
    profile = profile_from_timings(made_up(CPU, noise=0.02), "x").profile
    for requests, tokens in ((1, 1), (4, 16), (16, 128)):
        wanted = 5.3 + 0.05 * tokens + ALPHA * (requests - 1) + KAPPA * 512 * requests
        assert profile.step_ms(requests, tokens, 512 * requests) == pytest.approx(wanted, rel=0.04)


def test_dips_are_kept_and_named():
    timings = made_up(GPU)
    for row in timings["points"]:
        if row["kind"] == "verify" and row["tokens"] == 128:
            for key in ("ms", "p10_ms", "p90_ms"):
                row[key] *= 0.6
    profile = profile_from_timings(timings, "x").profile
    assert profile.verify_ms(128) < profile.verify_ms(64)
    assert "M = 128" in profile.provenance["dips"]


def test_noise_that_leaves_nothing_of_a_row_costs_the_terms_not_the_profile():
    timings = made_up(CPU)
    for row in timings["points"]:
        if row["kind"] == "verify" and row["requests"] == 16:
            for key in ("ms", "p10_ms", "p90_ms"):
                row[key] = 0.01 if row["tokens"] == 128 else 400.0
    measured = profile_from_timings(timings, "x")
    assert measured.form is None
    assert measured.profile.context_ms_per_kv_token == 0.0
    assert "too noisy" in measured.profile.provenance["additive"]


def test_layers_that_did_not_run_are_announced():
    timings = made_up(CPU)
    timings["settings"]["layers"] = 4
    profile = profile_from_timings(timings, "x").profile
    assert profile.provenance["method"].startswith("ONLY 4 OF 32 LAYERS RAN")


def test_a_run_cut_short_keeps_what_was_measured_and_names_the_rest():
    timings = made_up(CPU)
    timings["left_out"] = [dict(timings["points"][5])] * 40
    timings["points"] = timings["points"][:8]
    profile = profile_from_timings(timings, "x").profile
    assert profile.drafter == "none"
    assert profile.token_range == (1, 128)
    assert profile.provenance["left_out"].startswith("40 planned points")


def test_nothing_measured_is_an_error_of_the_run():
    timings = made_up(CPU)
    timings["points"] = []
    with pytest.raises(RunError, match="no batch was timed in the time that was given"):
        profile_from_timings(timings, "x")


def test_a_written_profile_reads_back_and_simulates(on_gpu, tmp_path):
    timings = made_up(GPU)
    written = write_measured(timings, tmp_path / "mine").profile
    assert written.name == "mine"
    again = load_profile(tmp_path / "mine")
    assert again.header() == written.header()
    assert json.loads((tmp_path / "mine" / "timings.json").read_text()) == timings
    scenario = Scenario(
        profile=str(tmp_path / "mine"), policy="dspark", trace="synth:fixed,in=64,out=32",
        concurrency=8, requests=20,
    )  # fmt: skip
    assert simulate(scenario).summary["tok_s_gpu"] > 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is no valid JSON"),
        ("[1]", "not a file of timings of version 1"),
        ('{"format": "dspark-sim timings", "version": 7}', "not a file of timings of version 1"),
    ],
)
def test_a_file_that_holds_no_timings_is_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(UserError, match=sentence) as error:
        read_timings(path)
    assert str(error.value).startswith(str(path))
    with pytest.raises(UserError, match="cannot be read"):
        read_timings(tmp_path / "none.json")


# --- the command


def test_the_command_measures_and_its_profile_sweeps(tmp_path):
    code, out, err = call(
        "profile", "measure", "--model", "trial", "--quick", "--max-seconds", "30",
        "--contexts", "64,32", "--max-requests", "2", "--num-speculative-tokens", "3",
        "--out", tmp_path / "p",
    )  # fmt: skip
    assert code == 0, err
    assert "batch_tokens" in out
    assert "noise: " in out
    assert f"wrote profile 'p' to {tmp_path / 'p'}" in err
    rows = json.loads((tmp_path / "p" / "timings.json").read_text())["points"]
    assert {"verify", "mixed", "draft-block"} <= {row["kind"] for row in rows}
    code, out, err = call(
        "sweep", "--profile", tmp_path / "p", "--policy", "none", "--policy", "fixed:3",
        "--concurrency", "1,2", "--trace", "synth:fixed,in=8,out=8", "--requests", "6",
        "--num-speculative-tokens", "3", "--prefill", "none", "--json",
    )  # fmt: skip
    assert code == 0, err
    assert len(json.loads(out)) == 4


def test_timings_from_another_machine_become_a_profile(tmp_path):
    path = tmp_path / "timings.json"
    path.write_text(json.dumps(made_up(GPU)))
    code, out, err = call(
        "profile", "measure", "--timings", path, "--out", tmp_path / "q", "--json"
    )
    assert code == 0, err
    about = json.loads(out)
    assert about["capture_limit"] == 256
    assert about["provenance"]["source"].startswith("measured by dspark-sim profile measure")
    assert load_profile(tmp_path / "q").name == "q"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "give --model NAME to measure, or --timings FILE to convert; one of them"),
        (("--model", "gpt"), "unknown model 'gpt'"),
        (("--model", "trial", "--device", "tpu"), "the device must be cpu or cuda, not 'tpu'"),
        (("--model", "trial", "--contexts", "8"), "contexts must be at least 16 tokens"),
        (("--model", "trial", "--drafter", "eagle"), "unknown drafter 'eagle'"),
        (("--timings", "nowhere.json"), "nowhere.json: cannot be read"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, words, sentence):
    code, out, err = call("profile", "measure", *words, "--out", tmp_path / "p")
    assert code == 2
    assert err.startswith(f"dspark-sim: {sentence}")
    assert len(err.splitlines()) == 1
    assert not out
    assert not (tmp_path / "p").exists()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_script_for_a_gpu_runs_on_a_cpu(tmp_path):
    environment = {
        **os.environ, "MODELS": "trial", "SECONDS_EACH": "20", "PYTHON": sys.executable,
    }  # fmt: skip
    words = ["--device", "cpu", "--quick", "--contexts", "64,32", "--max-requests", "2"]
    script = ROOT / "benchmarks" / "gpu_profile.sh"
    subprocess.run(
        ["bash", script, tmp_path / "out", *words], env=environment, check=True, timeout=600
    )
    log = (tmp_path / "out" / "gpu_profile.log").read_text()
    assert "== trial" in log
    assert "copy" in log
    assert load_profile(tmp_path / "out" / "trial").model.startswith("trial")


def test_timings_are_not_changed_by_being_read():
    timings = made_up(CPU)
    before = copy.deepcopy(timings)
    profile_from_timings(timings, "x")
    assert timings == before
