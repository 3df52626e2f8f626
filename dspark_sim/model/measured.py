"""What a measured profile says about its origin: machine, method, noise, limits, assumptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dspark_sim.throughput.summary import find_dips

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pandas as pd

    from dspark_sim.throughput import AdditiveForm, EngineProfile

NOISY = 0.10
_FEW, _SHOWN, _LINES = 3, 5, 10


def describe_run(
    timings: Mapping[str, Any],
    points: pd.DataFrame,
    profile: EngineProfile,
    form: AdditiveForm | None,
    checks: pd.DataFrame,
) -> dict[str, str]:
    """Return the provenance of a measured profile."""
    return {
        "source": "measured by dspark-sim profile measure: the forward of a real decoder-only "
        "model at its true dimensions, with random weights and a KV cache of random numbers",
        "command": command(timings["settings"]),
        "date": timings["started"],
        "machine": _machine(timings),
        "method": _method(timings, points),
        "attention": _attention(timings, points),
        "lookup": _lookup(timings, profile),
        "context": _context(timings),
        "additive": _additive(form),
        "checks": _checks(checks),
        "noise": _noise(points),
        "drift": _drift(timings),
        "dips": _dips(profile),
        "roofline": _roofline(points, timings["settings"]["contexts"][0]),
        "drafter": _drafter(timings, points, profile),
        "host": _host(points, profile),
        "assumed": _assumed(timings),
        "left_out": _left_out(timings),
        "licence": "measured by the authors of this file with this program",
    }


def command(settings: Mapping[str, Any]) -> str:
    """Return the command that measures the same again."""
    given = [f"dspark-sim profile measure --model {settings['model']}"]
    given.append("--quick" if settings["quick"] else "")
    keys = ["device", "dtype", "max_requests", "layers", "max_seconds", "seed"]
    keys += ["capture_limit"] if settings["device"] == "cuda" else []
    given += [f"--{key.replace('_', '-')} {settings[key]}" for key in keys]
    given.append(f"--num-speculative-tokens {settings['draft_len']}")
    given.append("--contexts " + ",".join(map(str, settings["contexts"])))
    return " ".join(filter(None, given))


def _machine(timings: Mapping[str, Any]) -> str:
    told = dict(timings["machine"])
    speeds = (
        f"copy {told.pop('copy_gb_s'):.4g} GB/s (read and written), read "
        f"{told.pop('read_gb_s'):.4g} GB/s, {timings['settings']['dtype']} matrix product "
        f"{told.pop('matmul_tflop_s'):.4g} TFLOP/s, measured before the run"
    )
    name = told.pop("name")
    return f"{name}: " + ", ".join(f"{key} {value}" for key, value in told.items()) + f"; {speeds}"


def _method(timings: Mapping[str, Any], points: pd.DataFrame) -> str:
    depth, run = timings["model"]["num_layers"], timings["settings"]["layers"]
    layers = (
        f"All {depth} layers ran."
        if run == depth
        else f"ONLY {run} OF {depth} LAYERS RAN: their share of every verify, mixed and prefill "
        "time is multiplied up, LM head and sampling are not."
    )
    clock = "CUDA events" if timings["settings"]["device"] == "cuda" else "the wall clock"
    return (
        f"{layers} A pass is embedding, layers, LM head on every verified token, softmax and the "
        f"draw of a token from each row, timed by {clock}. Every point was warmed up, then all "
        f"were timed in turn in a new random order, {int(points['n'].max())} rounds, with other "
        "tokens each time; ms is the median, p10 and p90 are linear quantiles. Requests verify "
        "1 + l tokens with l drawn at random (ragged), numbers of requests are powers of two. "
        f"The whole run took {timings['seconds']:g} s."
    )


def _attention(timings: Mapping[str, Any], points: pd.DataFrame) -> str:
    passes = points[points["kind"].isin(["verify", "mixed", "prefill"])]
    counts = passes["attention"].value_counts()
    used = ", ".join(f"{name} at {count} points" for name, count in counts.items())
    said = "; ".join(f"{name}: {text}" for name, text in timings["kernels"].items())
    return f"Used: {used}. Known: {said}. Where several work, the fastest on one layer is taken."


def _lookup(timings: Mapping[str, Any], profile: EngineProfile) -> str:
    if profile.capture_limit is None:
        return (
            "Nothing was captured: every size runs as it is, so a size between two measured ones "
            "is read off the line between them."
        )
    return (
        f"Graphs were captured at each size up to {profile.capture_limit} tokens; a smaller batch "
        "is padded to the next of them. Beyond, steps ran eager and are interpolated."
    )


def _context(timings: Mapping[str, Any]) -> str:
    texts = ", ".join(map(str, timings["settings"]["contexts"]))
    return (
        f"Requests held {texts} KV tokens after the step (the first is the main one), all equal "
        "within a batch. kv_tokens_read counts each decode up to its anchor and each prefill chunk "
        "to its end, as the simulator does."
    )


def _additive(form: AdditiveForm | None) -> str:
    if form is None:
        return (
            "The grid is too noisy to tell requests and context from size: alpha and kappa are "
            "left at 0 and stay inside the rows."
        )
    lines = [line.strip() for line in form.report().splitlines()]
    more = [f"and {len(lines) - _LINES} lines more"] if len(lines) > _LINES else []
    return "; ".join(lines[:_LINES] + more).replace(":;", ":")


def _checks(checks: pd.DataFrame) -> str:
    """Say how far the profile is off points that are in no table (profile / measured - 1)."""
    named = {
        "sizes between the table's": checks["kind"].eq("verify") & checks["lengths"].eq("ragged"),
        "uniform instead of ragged lengths": checks["lengths"].eq("uniform"),
        "prefill in place of decode tokens": checks["kind"].eq("mixed"),
    }
    told = []
    for name, chosen in named.items():
        rows = checks[chosen]
        if len(rows):
            worst = rows.iloc[int(rows["error"].abs().to_numpy().argmax())]
            told.append(
                f"{name}: median error {rows['error'].abs().median():.1%}, largest "
                f"{worst['error']:+.1%} at M = {worst['batch_tokens']} ({len(rows)} points)"
            )
    text = "; ".join(told) if told else "none were timed"
    return f"What the tables say of points they do not hold, against what was measured: {text}."


def _noise(points: pd.DataFrame) -> str:
    passes = points[points["kind"] != "host"]
    width = (passes["p90_ms"] - passes["p10_ms"]) / passes["ms"]
    noisy = passes[width > NOISY]
    text = (
        f"p10 to p90 spans {width.median():.1%} of the median at the middle point; "
        f"{int(passes['outliers'].sum())} of {int(passes['n'].sum())} timings are outliers (kept)."
    )
    if (few := passes["n"] < _FEW).any():
        text += f" TOO LITTLE TIME: {few.sum()} points were timed fewer than {_FEW} times."
    if noisy.empty:
        return f"{text} No point spans more than {NOISY:.0%}."
    worst = noisy.assign(width=width).nlargest(_SHOWN, "width")
    return f"{text} NOISY, more than {NOISY:.0%}: {len(noisy)} points, worst " + "; ".join(
        f"{row.kind} R = {row.requests}, M = {row.tokens}: {row.p10_ms:.4g} to {row.p90_ms:.4g} ms"
        for row in worst.itertuples()
    )


def _drift(timings: Mapping[str, Any]) -> str:
    told = timings["reference"]
    if "drift" not in told:
        return "not known: the reference point was not timed often enough"
    state = " to ".join(
        f"{one['clocks.sm']} and {one['temperature.gpu']} C"
        for one in timings["gpu_state"]
        if "clocks.sm" in one
    )
    return (
        f"The reference (R = {told['requests']}, M = {told['tokens']}) was timed "
        f"{len(told['samples_ms'])} times through the run: last third {told['drift']:+.1%} against "
        f"the first, p10 to p90 {told['spread']:.1%} of the median"
        + (f"; GPU clock and temperature {state}" if state else "")
    )


def _dips(profile: EngineProfile) -> str:
    sizes = ", ".join(str(size) for size in find_dips(profile))
    if not sizes:
        return "No size costs 2 % less than the next smaller one."
    return f"Kept as measured: cheaper by 2 % or more than the next smaller size at M = {sizes}."


def _roofline(points: pd.DataFrame, context: int) -> str:
    rows = points[points["kind"].eq("verify") & points["table"] & points["context"].eq(context)]
    shown = [
        f"M = {size}: {rows.loc[at, 'ms'] / rows.loc[at, 'roofline_ms']:.3g}"
        for size in (1, 64, 256, 1024)
        for at in rows.index[rows["tokens"] == size][:1]
    ]
    return (
        "roofline_ms is the larger of bytes moved (weights, KV, logits) over the measured "
        "bandwidth and operations over the measured matrix rate. Measured time over it, main "
        f"context: {', '.join(shown) or 'no such size was timed'}."
    )


def _drafter(timings: Mapping[str, Any], points: pd.DataFrame, profile: EngineProfile) -> str:
    sizes = timings["model"]
    if profile.draft is None:
        return "No drafter's cost is in this profile."
    other = "autoregressive" if profile.drafter == "block" else "block"
    rows = points[points["kind"] == f"draft-{other}"]
    known = ", ".join(
        f"{row.ms:.4g} ms (R = {row.requests}, k = {row.draft_len})"
        for row in rows[rows["context"] == timings["settings"]["contexts"][0]].itertuples()
    )
    return (
        f"draft.csv is the {profile.drafter} drafter's. block: {sizes['draft_layers']} layers of "
        f"the model's own kind, {sizes['draft_features']} hidden states fused and injected for "
        f"1 + k new tokens a request, Markov head of rank {sizes['draft_rank']}, confidence head. "
        f"autoregressive: 1 layer on [token; feature], {sizes['draft_vocab_size']} tokens. Both "
        f"draw every token. The {other} one took {known or 'no time: it was not timed'}."
    )


def _host(points: pd.DataFrame, profile: EngineProfile) -> str:
    rows = points[points["kind"] == "host"]
    told = ", ".join(f"{row.ms:.3g} ms at R = {row.requests}" for row in rows.itertuples())
    return (
        "overhead_ms is what a plain Python loop does between steps (lists to tensors, results to "
        f"lists), not overlapped with the device: {told or 'not timed'}; the median is taken. An "
        "engine that schedules ahead hides it: set overhead_ms = 0 for such a one."
    )


def _assumed(timings: Mapping[str, Any]) -> str:
    experts = timings["model"]["experts"]
    routing = (
        f" Random weights route tokens nearly evenly over the {experts} experts." if experts else ""
    )
    if not timings["kv_tokens"]:
        return (
            "The whole model with a cache does not fit into this machine: kv_tokens is unlimited."
            + routing
        )
    return (
        "kv_tokens is what the free memory holds after weights and drafter, a tenth of it kept "
        "back (on a CPU four tenths); block_size 16 is a label, the cache is contiguous." + routing
    )


def _left_out(timings: Mapping[str, Any]) -> str:
    def names() -> Iterator[str]:
        for point in timings["left_out"][:_SHOWN]:
            yield f"{point['kind']} R = {point['requests']}, M = {point['tokens']}"

    count = len(timings["left_out"])
    if not count:
        return "nothing: all planned points were timed"
    return f"{count} planned points did not fit into the time given: {'; '.join(names())}, ..."
