"""LLMServingSim's layer profiles: kernel times of one layer, summed to a step."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dspark_sim.core import UserError
from dspark_sim.throughput.additive import fit_additive
from dspark_sim.throughput.formats.build import Tables, build_profile
from dspark_sim.throughput.formats.source import read_csv, read_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from dspark_sim.throughput.formats.build import ImportOptions
    from dspark_sim.throughput.formats.source import CsvRow
    from dspark_sim.throughput.formats.terms import Floats, Sizes
    from dspark_sim.throughput.profile import EngineProfile

    Curve = tuple[Sizes, Floats]

ONCE = ("embedding", "final_layernorm")
TWICE = ("layernorm",)
US_PER_MS = 1000.0
_META = ("hardware", "model", "variant", "vllm_version", "max_num_batched_tokens", "max_num_seqs",
         "block_size")  # fmt: skip


def read_layers(folder: Path, options: ImportOptions) -> EngineProfile:
    """Read `dense.csv`, `per_sequence.csv`, `attention.csv` and, if there, `moe.csv`, meta.yaml.

    A step of R requests, M tokens and KV context c in each is

    embedding(M) + layers · (every dense layer(M), `layernorm` twice, attention(R, c))
    + final_layernorm(M) + lm_head(M) + sampler(R),

    interpolated as LLMServingSim does, lm_head for every token because every one is verified.
    Attention becomes α(R) + κ · R c by least squares. Times are µs in the files.
    """
    layers = options.num_layers
    if layers is None:
        raise UserError(
            f"{folder.name}: the files hold one layer; say how many the model has (--layers)"
        )
    if (folder / "linear_attention.csv").exists():
        raise UserError(f"{folder.name}: models with linear attention cannot be summed to a step")
    sizes, dense = _dense_ms(folder, layers)
    head = _curves(folder / "per_sequence.csv", "sequences")
    dense = dense + _beyond(sizes, *_part(head, "lm_head", folder)) / US_PER_MS
    alpha, kappa, worst = _attention(folder, layers, (sizes, dense), head.get("sampler"))
    told = {
        "lookup": "linear",
        "drafter": "none",
        "max_num_seqs": int(alpha["num_requests"].max()),
        "max_num_batched_tokens": int(sizes[-1]),
        "context_ms_per_kv_token": kappa,
        **_header(folder, _meta(folder)),
    }
    tables = Tables(
        verify=pd.DataFrame({"batch_tokens": sizes, "ms": dense}),
        requests=alpha,
        prefill=_prefill(folder, layers, (sizes, dense), head),
    )
    origin = "LLMServingSim layer profile"
    return build_profile(folder, options, origin, tables, told, _notes(layers, worst))


def _notes(layers: int, worst: float) -> dict[str, str]:
    return {
        "method": f"Kernel times of one layer, taken {layers} times (layernorm twice a layer, "
        "embedding and final_layernorm once), lm_head for every token, sampler for every request; "
        "attention is alpha(R) + kappa x KV tokens by least squares, which misses a step by at "
        f"most {worst:.1%}.",
        "left_out": "Scheduler and other host time, launch gaps, tensor-parallel communication "
        "and drafting are not in these files.",
    }


def _dense_ms(folder: Path, layers: int) -> tuple[Sizes, Floats]:
    """Return ms of everything that runs on tokens, lm_head apart, at every size of dense.csv."""
    curves = _curves(folder / "dense.csv", "tokens")
    if not curves.keys() - set(ONCE):
        raise UserError(f"{folder.name}/dense.csv: no layer's times are there")
    if (folder / "moe.csv").exists():
        curves["moe"] = _most_experts(read_csv(folder / "moe.csv", ("tokens", "time_us")))
    sizes = np.unique(np.concatenate([at for at, _ in curves.values()]))
    total = np.zeros(len(sizes))
    for name, curve in curves.items():
        times = 1 if name in ONCE else layers * (2 if name in TWICE else 1)
        total += times * _beyond(sizes, *curve)
    return sizes, total / US_PER_MS


def _most_experts(rows: list[CsvRow]) -> Curve:
    """Return µs by tokens at the most experts that were measured: evenly spread routing."""
    most: dict[int, tuple[int, float]] = {}
    for row in rows:
        tokens, experts = row.whole("tokens"), row.whole("activated_experts")
        if experts >= most.get(tokens, (0, 0.0))[0]:
            most[tokens] = experts, row.number("time_us", above=True)
    sizes = np.array(sorted(most))
    return sizes, np.array([most[size][1] for size in sizes])


def _curves(path: Path, size: str) -> dict[str, Curve]:
    """Return µs by size for every layer of a file."""
    found: dict[str, dict[int, float]] = {}
    for row in read_csv(path, ("layer", size, "time_us")):
        times = found.setdefault(row.cells["layer"].strip(), {})
        at = row.whole(size)
        if at in times:
            raise UserError(f"{row.where}: {row.cells['layer']} at {size} {at} is given twice")
        times[at] = row.number("time_us")
    return {
        name: (np.array(sorted(times)), np.array([times[at] for at in sorted(times)]))
        for name, times in found.items()
    }


def _part(curves: Mapping[str, Curve], name: str, folder: Path) -> Curve:
    if name not in curves:
        raise UserError(f"{folder.name}/per_sequence.csv: the layer '{name}' is missing")
    return curves[name]


def _beyond(at: Sizes, sizes: Sizes, us: Floats) -> Floats:
    """Interpolate, and carry the last slope on above the grid, as LLMServingSim does."""
    slope = (us[-1] - us[-2]) / (sizes[-1] - sizes[-2]) if len(sizes) > 1 else 0.0
    past = np.maximum(at - sizes[-1], 0)
    return np.asarray(np.interp(at, sizes, us) + max(slope, 0.0) * past)


def _attention_rows(folder: Path) -> list[tuple[int, int, int, float]]:
    """Return chunk, decoding requests, context and µs of rows with one query per request."""
    columns = ("prefill_chunk", "n_decode", "kv_decode", "time_us")
    rows = []
    for row in read_csv(folder / "attention.csv", columns):
        single = row.cells.get("decode_q_len", "1").strip() == "1"
        prefix = row.cells.get("kv_prefill", "0").strip()
        plain = row.cells.get("layer", "attention").strip() == "attention"
        if single and plain and float(prefix or 0) == 0:
            sizes = [row.whole(name, 0) for name in columns[:3]]
            rows.append((sizes[0], sizes[1], sizes[2], row.number("time_us")))
    return rows


def _attention(
    folder: Path, layers: int, dense: Curve, sampler: Curve | None
) -> tuple[pd.DataFrame, float, float]:
    """Return α(R) in ms, κ in ms per KV token, and the largest error as a share of a step."""
    rows = pd.DataFrame(
        [(n, n * kv, us) for chunk, n, kv, us in _attention_rows(folder) if not chunk and n],
        columns=["num_requests", "kv_tokens_read", "us"],
    )
    if rows.empty:
        raise UserError(f"{folder.name}/attention.csv: no rows of decoding alone are there")
    requests = rows["num_requests"].to_numpy()
    extra = np.zeros(len(rows)) if sampler is None else _beyond(requests, *sampler)
    rows["ms"] = (layers * rows["us"].to_numpy() + extra) / US_PER_MS
    step = rows["ms"].to_numpy() + np.interp(requests, *dense)
    form = fit_additive(rows.assign(batch_tokens=1), weights=1.0 / np.square(step))
    missed = np.abs(form.residuals["fitted_ms"] - form.residuals["ms"]) / step
    alpha = form.alpha.assign(ms=form.alpha["ms"] + form.bias_ms)
    return alpha, form.kappa_ms_per_kv_token, float(missed.max())


def _prefill(
    folder: Path, layers: int, dense: Curve, head: Mapping[str, Curve]
) -> pd.DataFrame | None:
    """Return a prompt alone in a worker: dense layers, its own attention, one row of lm_head."""
    chunks = {
        chunk: us for chunk, n, kv, us in _attention_rows(folder) if chunk and not n and not kv
    }
    if not chunks:
        return None
    sizes: NDArray[np.int64] = np.array(sorted(chunks))
    rows_of_head = _beyond(sizes, *head["lm_head"]) - head["lm_head"][1][0]
    attention = layers * np.array([chunks[size] for size in sizes])
    ms = np.interp(sizes, *dense) + (attention - rows_of_head) / US_PER_MS
    return pd.DataFrame({"tokens": sizes, "ms": ms})


def _meta(folder: Path) -> dict[str, str]:
    """Return the scalars of meta.yaml that a profile can use, wherever they stand in it."""
    path = next(
        (p for p in (folder / "meta.yaml", folder.parent / "meta.yaml") if p.exists()), None
    )
    text = read_text(path) if path is not None else ""
    found = {}
    for key in _META:
        if match := re.search(rf"^\s*{key}:[ \t]*['\"]?([^'\"\n]+)", text, re.MULTILINE):
            found[key] = match[1].strip()
    return found


def _header(folder: Path, meta: Mapping[str, str]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if tp := re.fullmatch(r"tp(\d+)", folder.name):
        told["num_gpus"] = int(tp[1])
    for key, source in (("model", "model"), ("gpu", "hardware"), ("dtype", "variant")):
        if source in meta:
            told[key] = meta[source]
    for key in ("max_num_batched_tokens", "max_num_seqs", "block_size"):
        if meta.get(key, "").isdecimal():
            told[key] = int(meta[key])
    if "vllm_version" in meta:
        told["engine"] = f"vLLM {meta['vllm_version']} (kernels, by LLMServingSim)"
    return told
