"""The timing core: what runs on a machine that has torch and numpy alone."""

import ast
import json
import os
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the extra `model` (torch) is not installed")

from dspark_sim.core import RunError, UserError  # noqa: E402
from dspark_sim.model.timing import MODELS, VERSION, Settings, measure, model_sizes  # noqa: E402
from dspark_sim.model.timing import command as timing_command  # noqa: E402
from dspark_sim.model.timing.attention import KERNELS, masked, usable_kernels  # noqa: E402
from dspark_sim.model.timing.bench import Bench, Cell, Inputs  # noqa: E402
from dspark_sim.model.timing.clock import Clock, Spread  # noqa: E402
from dspark_sim.model.timing.grid import Point, cpu_scope, gpu_scope, points  # noqa: E402
from dspark_sim.model.timing.machine import find_device, roofline_ms  # noqa: E402
from dspark_sim.model.timing.network import (  # noqa: E402
    Layer,
    Network,
    Turn,
    Weights,
    choose,
    judge,
)
from dspark_sim.model.timing.plan import Group, Plan, ragged_lengths  # noqa: E402
from dspark_sim.model.timing.rounds import Budget, drift, prepare, time_rounds  # noqa: E402
from dspark_sim.model.timing.run import scale  # noqa: E402

CPU = torch.device("cpu")
TRIAL = model_sizes("trial")
CORE = Path(timing_command.__file__).parent
gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def weights(device=CPU, dtype=torch.float32):
    return Weights(device, dtype, torch.Generator(device).manual_seed(1))


def plan_of(*groups, rows=0, causal=True, share=1, device=CPU, dtype=torch.float32):
    tokens = sum(group.tokens for group in groups)
    return Plan(groups, rows or tokens, causal, device, share, dtype)


# --- what it needs


@pytest.mark.parametrize("path", sorted(CORE.glob("*.py")), ids=lambda path: path.stem)
def test_the_core_imports_torch_numpy_and_the_standard_library_alone(path):
    allowed = {*sys.stdlib_module_names, "torch", "numpy"}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            names = [node.module]
        for name in names:
            own = name == "dspark_sim.core" or name.startswith("dspark_sim.model.timing")
            assert own or name.partition(".")[0] in allowed, f"{path.name} imports {name}"


def test_the_folder_runs_where_nothing_else_is_installed(tmp_path):
    program = (
        "import runpy, sys\n"
        "class Bare:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in {'pandas', 'pydantic', 'scipy', 'numba', 'typer'}:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Bare())\n"
        f"sys.argv = ['timing', '--model', 'qwen4', '--out', {str(tmp_path / 'x.json')!r}]\n"
        f"runpy.run_path({str(CORE)!r}, run_name='__main__')\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    answer = subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300, check=False,
    )  # fmt: skip
    assert answer.returncode == 2
    assert answer.stderr.startswith("timing: unknown model 'qwen4': did you mean 'qwen3-4b'?")
    assert not answer.stdout


# --- dimensions


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("smollm2-135m", 0.1345),
        ("qwen3-4b", 4.02),
        ("qwen3-8b", 8.19),
        ("qwen3-14b", 14.77),
        ("llama3.1-8b", 8.03),
        ("small-moe", 1.33),
    ],
)
def test_the_models_have_their_published_number_of_weights(name, billions):
    sizes = model_sizes(name)
    assert sizes.weights_of(sizes.num_layers) / 1e9 == pytest.approx(billions, rel=0.005)


def test_the_smallest_model_is_as_large_as_the_verifier_that_speculates():
    from dspark_sim.model.transformer import model_config

    other, sizes = model_config("smollm2-135m"), model_sizes("smollm2-135m")
    for key in ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim"):
        assert getattr(sizes, key) == getattr(other, key)
    assert sizes.intermediate_size == other.intermediate_size
    assert sizes.draft_features == len(other.feature_layers)


def test_one_token_moves_every_weight_once_and_works_twice_per_weight():
    sizes = model_sizes("llama3.1-8b")
    moved, work = sizes.traffic(1, 1, 0, 0, sizes.num_layers, 2)
    embedding = sizes.vocab_size * sizes.hidden_size
    assert moved == pytest.approx(2 * (sizes.weights_of(32) - embedding), rel=0.001)
    assert work == pytest.approx(2 * (sizes.weights_of(32) - embedding), rel=1e-6)


def test_a_long_context_adds_its_keys_and_values_to_what_moves():
    sizes = model_sizes("llama3.1-8b")
    near, far = (sizes.traffic(1, 1, kv, kv, 32, 2)[0] for kv in (1_000, 2_000))
    assert far - near == 1_000 * 32 * 2 * 8 * 128 * 2


def test_a_mixture_of_experts_touches_more_of_them_the_larger_the_batch():
    sizes = model_sizes("small-moe")
    touched = [sizes.touched_experts(tokens) for tokens in (1, 4, 16, 1024)]
    assert touched[0] == pytest.approx(sizes.experts_per_token)
    assert touched == sorted(touched)
    assert touched[-1] == pytest.approx(sizes.experts)


def test_the_roofline_is_the_slower_of_memory_and_arithmetic():
    limits = {"copy_gb_s": 100.0, "read_gb_s": 200.0, "matmul_tflop_s": 1.0}
    assert roofline_ms(2e9, 1e9, limits) == pytest.approx(10.0)
    assert roofline_ms(2e6, 5e12, limits) == pytest.approx(5000.0)


# --- batches


@given(st.integers(1, 64), st.integers(0, 7), st.integers(0, 10_000))
def test_ragged_lengths_add_up_and_stay_within_the_block(requests, drafts, seed):
    rng = np.random.default_rng(seed)
    tokens = requests + int(rng.integers(0, requests * drafts + 1))
    lengths = ragged_lengths(requests, tokens, 1 + drafts, rng)
    assert len(lengths) == requests
    assert sum(lengths) == tokens
    assert min(lengths) >= 1
    assert max(lengths) <= 1 + drafts


def test_ragged_lengths_differ_between_requests():
    assert len(set(ragged_lengths(32, 96, 8, np.random.default_rng(0)))) > 3


def test_a_plan_says_where_every_token_stands_and_what_it_overwrites():
    plan = plan_of(Group((1, 3), 8), Group((2,), 4, prompt=True), rows=8)
    assert plan.positions.tolist() == [7, 5, 6, 7, 2, 3, 0, 0]
    assert plan.slots.tolist() == [7, 13, 14, 15, 18, 19, 20, 20]
    assert plan.query_starts.tolist() == [0, 1, 4, 6]
    assert plan.key_starts.tolist() == [0, 8, 16, 20]
    assert plan.cache_slots == 20


def test_a_plan_counts_kv_tokens_as_the_simulator_does():
    decoding, chunk = Group((1, 3), 8), Group((4,), 12, prompt=True)
    assert decoding.kv_tokens() == 8 + 6  # up to each request's anchor
    assert chunk.kv_tokens() == 12  # up to the chunk's end


def test_a_plan_counts_the_pairs_that_causal_attention_computes():
    group = Group((1, 3), 8)
    assert group.pairs(causal=True) == 8 + (6 + 7 + 8)
    assert group.pairs(causal=False) == 4 * 8


def test_whole_pages_are_told_from_broken_ones():
    whole = plan_of(Group((1, 2), 512), Group((9,), 256))
    assert whole.paged
    assert whole.block_table.tolist() == [[0, 1], [2, 3], [4, 4]]
    assert not plan_of(Group((1,), 300)).paged


# --- attention


def attend_slowly(q, k, v, plan, share):
    """Attend token by token, head by head, in float64."""
    out = torch.zeros_like(q)
    token = slot = 0
    for length, span in zip(plan.lengths, plan.spans, strict=True):
        for place in range(length):
            seen = span - length + place + 1 if plan.causal else span
            for head in range(q.shape[1]):
                keys = k[slot : slot + seen, head // share].double()
                scores = (keys @ q[token, head].double()) / q.shape[2] ** 0.5
                values = v[slot : slot + seen, head // share].double()
                out[token, head] = (scores.softmax(0)[:, None] * values).sum(0).to(q.dtype)
            token += 1
        slot += span
    return out


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "groups",
    [
        (Group((1, 1, 1), 9),),
        (Group((3, 3), 9),),
        (Group((1, 4, 2), 9),),
        (Group((2, 1), 7), Group((5,), 5, prompt=True)),
        (Group((1, 2), 6), Group((3,), 11, prompt=True)),
    ],
    ids=["single", "uniform", "ragged", "mixed with a prompt", "mixed with a later chunk"],
)
def test_padded_attention_equals_attention_token_by_token(groups, causal):
    plan = plan_of(*groups, rows=sum(g.tokens for g in groups) + 2, causal=causal, share=2)
    chance = torch.Generator().manual_seed(0)
    q = torch.randn(plan.rows, 4, 8, generator=chance)
    k, v = (torch.randn(plan.cache_slots + 1, 2, 8, generator=chance) for _ in range(2))
    found = masked(q, k, v, plan)
    torch.testing.assert_close(found, attend_slowly(q, k, v, plan, 2), atol=1e-5, rtol=1e-5)


def test_a_cpu_has_one_kernel_and_says_which():
    assert usable_kernels(CPU, torch.float32) == (
        ["masked"],
        {"masked": "scaled_dot_product_attention on the CPU"},
    )


@gpu
@needs_gpu
def test_every_gpu_kernel_that_works_agrees_with_the_reference():
    good, said = usable_kernels(torch.device("cuda", 0), torch.bfloat16)
    assert {"flash", "varlen"} <= set(good), said


@gpu
@needs_gpu
@pytest.mark.parametrize("name", ["flash", "varlen", "paged"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_gpu_kernel_equals_the_masked_one_on_a_ragged_batch(name, causal):
    device, dtype = torch.device("cuda", 0), torch.bfloat16
    if name not in usable_kernels(device, dtype)[0]:
        pytest.skip(f"{name} is not in torch {torch.__version__}")
    groups = (Group((1, 4, 8, 2), 512), Group((100,), 256, prompt=True))
    plan = plan_of(*groups, causal=causal, share=4, device=device, dtype=dtype, rows=120)
    q = torch.randn(120, 8, 128, device=device, dtype=dtype)
    k, v = (torch.randn(plan.cache_slots + 1, 2, 128, device=device, dtype=dtype) for _ in "kv")
    found, wanted = KERNELS[name](q, k, v, plan), masked(q, k, v, plan)
    torch.testing.assert_close(found, wanted, atol=2e-2, rtol=2e-2)


# --- the model


@torch.inference_mode()
def test_tokens_in_two_passes_get_the_logits_of_one_pass():
    network = Network(TRIAL, weights(), layers=2, slots=16)
    tokens = torch.tensor([5, 9, 3, 7, 1])
    whole = network.logits(tokens, plan_of(Group((5,), 5), share=2), masked, None, 2)
    network.logits(tokens[:3], plan_of(Group((3,), 3), share=2), masked, None, 2)
    rest = network.logits(tokens[3:], plan_of(Group((2,), 5), share=2), masked, None, 2)
    torch.testing.assert_close(rest, whole[3:], atol=1e-5, rtol=1e-4)


@torch.inference_mode()
def test_padding_changes_no_token_that_counts():
    network = Network(TRIAL, weights(), layers=2, slots=32)
    groups = (Group((1, 3), 16),)
    tokens = torch.tensor([5, 9, 3, 7, 0, 0, 0, 0])
    plain = network.logits(tokens[:4], plan_of(*groups, share=2), masked, None, 2)
    padded = network.logits(tokens, plan_of(*groups, rows=8, share=2), masked, None, 2)
    torch.testing.assert_close(padded[:4], plain, atol=1e-5, rtol=1e-4)


@torch.inference_mode()
def test_rotary_scores_depend_on_the_distance_alone():
    x = torch.randn(2, 1, 16)
    near, far = (Turn.at(torch.tensor(p), 16, torch.float32).apply(x) for p in ([3, 8], [53, 58]))
    near, far = (pair[0, 0] @ pair[1, 0] for pair in (near, far))
    torch.testing.assert_close(near, far, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(near, x[0, 0] @ x[1, 0], atol=1e-2)


@torch.inference_mode()
def test_sorted_experts_equal_every_token_sent_to_its_own():
    sizes = replace(TRIAL, experts=4, experts_per_token=2, intermediate_size=32)
    layer, x = Layer(sizes, weights()), torch.randn(6, sizes.hidden_size)
    chance, chosen = (x @ layer.router.T).softmax(-1).topk(2)
    wanted = torch.zeros_like(x)
    for token in range(6):
        for weight, expert in zip(chance[token], chosen[token], strict=True):
            gate, up = (x[token] @ layer.gate_up[expert].T).chunk(2)
            hidden = torch.nn.functional.silu(gate) * up
            wanted[token] += weight * (hidden @ layer.down[expert].T)
    torch.testing.assert_close(layer.feed_forward(x), wanted, atol=1e-5, rtol=1e-4)


def test_tokens_are_drawn_from_their_distribution():
    logits = torch.tensor([[0.5, 0.25, 0.25]]).log().expand(1000, 3)
    tokens, p = choose(logits, (torch.arange(1000) + 0.5) / 1000)
    assert torch.bincount(tokens).tolist() == pytest.approx([500, 250, 250], abs=2)
    torch.testing.assert_close(p[0], torch.tensor([0.5, 0.25, 0.25]))


def test_a_draft_passes_with_the_ratio_of_its_probabilities():
    p = torch.tensor([[0.1, 0.9], [0.1, 0.9]])  # against an even drafter: 0.2 and at least 1
    assert judge(p, torch.tensor([0, 1]), torch.tensor([0.3, 0.99])).tolist() == [False, True]
    assert judge(p, torch.tensor([0, 0]), torch.tensor([0.1, 0.3])).tolist() == [True, False]


# --- which points


def cpu_points(quick=True):
    return points(cpu_scope(quick, 7, (512, 128), 16, held=10**9))


def h200_points(quick=False):
    return points(gpu_scope(quick, 7, (2048, 512, 8192), 256, 1024, held=600_000))


@pytest.mark.parametrize("found", [cpu_points(True), cpu_points(False), h200_points()])
def test_every_point_can_be_laid_out(found):
    for point in found:
        if point.kind in ("verify", "mixed"):
            decoding = point.requests - (point.kind == "mixed")
            tokens = point.tokens - point.prefill
            assert decoding <= tokens <= decoding * 8, point
        assert point.rows == 0 or point.rows >= point.tokens or point.kind.startswith("draft")
    assert len(set(found)) == len(found)


def test_a_quick_run_has_few_points_and_a_profile_after_the_first_dozens():
    found = cpu_points()
    assert len(found) < 70
    assert {p.tokens for p in found[:8] if p.kind == "verify"} == {2**n for n in range(8)}
    assert {"draft-block", "host"} <= {p.kind for p in found[:20]}


def test_numbers_of_requests_are_shared_between_sizes():
    table = [p for p in cpu_points(False) if p.kind in ("verify", "mixed") and p.table]
    assert {p.requests for p in table} == {1, 2, 4, 8, 16}
    middle = {p.requests for p in table if p.tokens == 16}
    assert len(middle) > 2  # the same size with few and with many requests


def test_a_gpu_run_captures_what_vllm_captures_and_runs_larger_batches_eagerly():
    table = [p for p in h200_points() if p.kind in ("verify", "mixed") and p.table]
    captured = {p.tokens for p in table if p.rows}
    assert captured == {1, 2, 4, *range(8, 257, 8), *range(272, 1025, 16)}
    assert {p.tokens for p in table if not p.rows} == {1040, 1280, 1536, 2048, 4096, 8192}
    assert all(p.rows in (0, p.tokens) for p in table)


def test_sizes_between_captured_ones_run_padded_and_are_in_no_table():
    between = [p for p in h200_points() if p.kind == "verify" and not p.table and not p.uniform]
    assert len(between) >= 4
    assert all(p.rows > p.tokens for p in between)


def test_no_point_needs_more_cache_than_there_is():
    found = h200_points()
    assert max(p.kv_positions() for p in found) <= 600_000
    assert any(p.context == 8192 and p.requests == 64 for p in found)
    assert not any(p.context == 8192 and p.requests == 256 for p in found)


# --- settings


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"model": "trail"}, "unknown model 'trail': did you mean 'trial'?"),
        ({"dtype": "fp8"}, "dtype must be one of float32, bfloat16, float16, not 'fp8'"),
        ({"layers": 3}, "trial has 2 layers, layers cannot be 3"),
        ({"draft_len": 0}, "draft_len must be at least 1, got 0"),
        ({"max_seconds": -1.0}, "max_seconds must be at least 1, got -1"),
        ({"contexts": (512, 8)}, "contexts must be at least 16 tokens for a draft of 7, got 8"),
        ({"capture_limit": 4}, "capture_limit must be at least 8 tokens, got 4"),
    ],
)
def test_a_wrong_setting_is_one_sentence(given, sentence):
    with pytest.raises(UserError) as error:
        Settings(**{"model": "trial", **given}).filled()
    assert str(error.value).startswith(sentence)


def test_a_model_that_does_not_fit_says_what_would():
    settings = Settings("qwen3-14b").filled()
    with pytest.raises(UserError, match=r"qwen3-14b needs .* GiB in float32 and 12\.0 GiB can be"):
        settings.scope(20 * 2**30)
    fewer = Settings("qwen3-14b", dtype="bfloat16", layers=4).filled()
    assert fewer.scope(20 * 2**30)[1] == 0  # timed with 4 layers; as a whole it holds nothing


def test_the_cache_an_engine_could_hold_is_what_weights_leave():
    settings = Settings("llama3.1-8b", "cuda").filled()
    _, held = settings.scope(139 * 2**30)
    assert 500_000 < held < 900_000


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_a_missing_gpu_is_one_sentence():
    with pytest.raises(UserError, match="no CUDA device is to be seen"):
        measure(Settings("trial", "cuda"))
    with pytest.raises(UserError, match="must be cpu or cuda, not 'tpu'"):
        find_device("tpu")


# --- timing


def test_a_spread_is_a_median_with_percentiles_and_its_outliers():
    spread = Spread.of([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 9.0])
    assert (spread.ms, spread.n, spread.outliers) == (1.0, 7, 1)
    assert spread.p10_ms <= spread.ms <= spread.p90_ms
    assert Spread.of([2.0]) == Spread(2.0, 2.0, 2.0, 1, 0)


def test_an_even_run_has_no_outliers():
    assert Spread.of([1.0] * 9 + [1.004]).outliers == 0


def test_drift_compares_the_last_third_with_the_first():
    assert drift([1.0] * 4 + [1.1] * 4 + [1.2] * 4)["drift"] == pytest.approx(0.2)
    assert drift([1.0, 2.0]) == {}


class Ticking:
    """A clock that stands still but for what is timed: each call of it costs a second."""

    def __init__(self):
        self.seconds = 0.0

    def now(self):
        return self.seconds

    def cell(self, point):
        self.seconds += 1.0
        cell = Cell(
            point, work=lambda: None, inputs=None, attention="", captured=False, warm_ms=1e3
        )
        cell.time = lambda clock: self.tick()
        return cell

    def tick(self):
        self.seconds += 1.0
        return self.seconds


def some_points(count):
    return [Point("verify", 1, size, 64) for size in range(1, count + 1)]


def test_the_least_needed_points_are_left_out_of_a_short_run():
    ticking = Ticking()
    budget = Budget(0.0, 20.0, ticking.now)
    cells, left_out = prepare(ticking, some_points(10), budget)
    assert [cell.point.tokens for cell in cells] == [1, 2, 3, 4, 5]
    assert [point.tokens for point in left_out] == [6, 7, 8, 9, 10]


def test_a_run_stops_when_its_time_is_over_and_keeps_what_it_has():
    ticking = Ticking()
    cells, _ = prepare(ticking, some_points(3), Budget(0.0, 100.0, ticking.now))
    ticking.seconds = 0.0
    time_rounds(cells, None, 1000, Budget(0.0, 30.0, ticking.now))
    assert 30.0 <= ticking.seconds <= 32.0
    assert min(len(cell.samples) for cell in cells) >= 4


def test_rounds_time_every_cell_once_and_the_reference_again():
    ticking = Ticking()
    cells, _ = prepare(ticking, some_points(6), Budget(0.0, 1e6, ticking.now))
    reference = time_rounds(cells, None, 5, Budget(0.0, 1e6, ticking.now))
    assert {len(cell.samples) for cell in cells} == {5}
    assert len(reference) == 15


def test_a_point_that_does_not_fit_into_memory_is_left_out():
    class Full(Ticking):
        def cell(self, point):
            if point.tokens == 2:
                raise torch.OutOfMemoryError
            return super().cell(point)

    full = Full()
    cells, left_out = prepare(full, some_points(3), Budget(0.0, 1e6, full.now))
    assert [cell.point.tokens for cell in cells] == [1, 3]
    assert [point.tokens for point in left_out] == [2]


def test_inputs_rotate_and_stay_in_place():
    inputs = Inputs.new(4, 100, weights())
    where, seen = inputs.tokens.data_ptr(), set()
    for _ in range(8):
        inputs.rotate()
        seen.add(tuple(inputs.tokens.tolist()))
    assert inputs.tokens.data_ptr() == where
    assert len(seen) == 8


@gpu
@needs_gpu
@torch.inference_mode()
def test_a_graph_replays_what_eager_work_does():
    device = torch.device("cuda", 0)
    clock = Clock(device)
    bench = Bench(TRIAL, 2, 4096, weights(device, torch.bfloat16), clock, ["flash"], 8, 0)
    plan = plan_of(Group((1, 4, 3), 256), share=2, device=device, dtype=torch.bfloat16)
    tokens, kept = torch.arange(8, device=device), {}

    def work():
        kept["logits"] = bench.network.logits(tokens, plan, KERNELS["flash"], None, 2)

    work()
    eager = kept["logits"].clone()
    replay, _ = clock.prepare(work, captured=True)
    replay()
    torch.testing.assert_close(kept["logits"], eager)
    tokens.add_(1)
    replay()
    assert not torch.equal(kept["logits"], eager)


# --- the whole


@pytest.fixture(scope="module")
def timings():
    settings = Settings(
        "trial", quick=True, contexts=(64, 32), max_requests=2, draft_len=3, max_seconds=30.0
    )
    return measure(settings)


def test_a_run_tells_everything_about_itself(timings):
    assert timings["version"] == VERSION
    assert json.loads(json.dumps(timings)) == timings
    assert timings["machine"]["device"] == "cpu"
    assert min(timings["machine"][key] for key in ("copy_gb_s", "read_gb_s", "matmul_tflop_s")) > 0
    assert timings["settings"]["dtype"] == "float32"
    assert timings["kv_tokens"] > 0
    kinds = {row["kind"] for row in timings["points"]}
    assert {"verify", "draft-block", "draft-autoregressive", "host", "head"} <= kinds


def test_every_timed_point_has_its_spread_and_its_physical_limit(timings):
    for row in timings["points"]:
        assert 0 < row["p10_ms"] <= row["ms"] <= row["p90_ms"]
        assert row["n"] == len(row["samples_ms"])
        assert row["kind"] == "host" or row["roofline_ms"] > 0
        assert not row["captured"]


def test_a_sample_of_every_kind_runs_on_a_mixture_of_experts():
    sizes = replace(TRIAL, experts=4, experts_per_token=2, intermediate_size=32)
    bench = Bench(sizes, 1, 512, weights(), Clock(CPU), ["masked"], 4, 0)
    for point in (
        Point("verify", 2, 5, 32),
        Point("mixed", 2, 12, 32, prefill=9),
        Point("draft-block", 2, 6, 32, draft_len=3),
        Point("draft-autoregressive", 2, 6, 32, draft_len=3),
    ):
        cell = bench.cell(point)
        with torch.inference_mode():
            assert cell.time(bench.clock) > 0
        assert cell.moved > 0
        assert cell.kv_tokens > 0


def test_layers_that_did_not_run_are_multiplied_in_but_the_head_is_not():
    rows = [
        {"kind": "head", "tokens": 4, "prefill": 0, "ms": 1.0, "p10_ms": 1.0, "p90_ms": 1.0},
        {"kind": "verify", "tokens": 4, "prefill": 0, "ms": 3.0, "p10_ms": 2.0, "p90_ms": 4.0},
        {"kind": "draft-block", "tokens": 4, "prefill": 0, "ms": 3.0, "p10_ms": 2.0, "p90_ms": 4},
    ]
    scale(rows, 5.0)
    assert [row["ms"] for row in rows] == [1.0, 11.0, 3.0]
    assert (rows[1]["p10_ms"], rows[1]["p90_ms"]) == (6.0, 16.0)
    with pytest.raises(RunError, match="LM head"):
        scale(rows[1:], 5.0)


def test_the_command_writes_the_timings_and_prints_a_table(tmp_path, capsys, monkeypatch, timings):
    monkeypatch.setattr(timing_command, "measure", lambda settings, progress: timings)
    out = tmp_path / "trial.json"
    assert timing_command.main(["--model", "trial", "--out", str(out)]) == 0
    assert json.loads(out.read_text()) == timings
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("trial float32 on ")
    assert sum(line.startswith("verify") for line in lines) >= 6


def test_the_command_shows_no_progress_where_there_is_no_terminal(capsys):
    timing_command.show_progress({"stage": "timing", "step": 1, "steps": 2})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("model", [name for name in MODELS if name != "trial"])
def test_the_command_knows_every_model(model):
    assert model in timing_command.parser().format_help().replace("\n", "")


def test_running_the_module_within_the_package_changes_nothing(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["timing", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("dspark_sim.model.timing", run_name="__main__")
    assert ended.value.code == 0
    assert hasattr(sys.modules["dspark_sim"], "Scenario")


@gpu
@needs_gpu
def test_a_quick_run_on_a_gpu_captures_graphs_and_goes_eager_beyond():
    settings = Settings(
        "trial", "cuda", quick=True, contexts=(256, 512), max_requests=16, capture_limit=64,
        max_seconds=60.0,
    )  # fmt: skip
    found = measure(settings)
    rows = [row for row in found["points"] if row["kind"] == "verify" and row["table"]]
    assert {row["captured"] for row in rows if row["tokens"] <= 64} == {True}
    assert {row["captured"] for row in rows if row["tokens"] > 64} == {False}
    assert {row["attention"] for row in rows} <= {"flash", "varlen", "paged"}
    assert found["gpu_state"]
