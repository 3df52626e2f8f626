"""One closed loop from a result file of `vllm bench serve --save-result`."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dspark_sim.core import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from dspark_sim.throughput.formats.source import JsonObject

K = "num_speculative_tokens"
_CONFIG = "speculative_config"
_FIXED_WITHIN = 0.03  # the last draft of a request may be cut short


@dataclass(frozen=True)
class ClosedLoopResult:
    """What one closed loop measured.

    Attributes
    ----------
    source : str
        File or policy.
    num_speculative_tokens, concurrency : int
        k and c; k is -1 where it is not fixed or not known.
    tok_s_user : float
        1000 / mean TPOT in ms. Over requests of equal length the mean TPOT is step time over
        acceptance length pooled over rounds; the median is not.
    output_tok_s, acceptance_length : float
        NaN where they are not reported; the length includes the bonus token.
    position_rates : tuple of float or None
        Share of rounds that accept the first j drafts, j = 1, 2, ….
    """

    source: str
    num_speculative_tokens: int
    concurrency: int
    tok_s_user: float
    output_tok_s: float = math.nan
    acceptance_length: float = math.nan
    position_rates: tuple[float, ...] | None = None


def read_loop(result: JsonObject, path: Path, told: int | None) -> ClosedLoopResult:
    """Read one result; `told` is the draft length for a file that does not tell its own."""
    if result.values.get("max_concurrency") is None:
        raise UserError(
            f"{path}: max_concurrency is missing: only closed loops can be fitted "
            "(vllm bench serve --max-concurrency C --request-rate inf)"
        )
    concurrency = result.whole("max_concurrency")
    tpot = _positive(result, "mean_tpot_ms")
    k = agree(told, _own_draft_len(result, concurrency), str(path))
    if k is None:
        raise UserError(
            f"{path}: the key '{K}' is missing: tell the draft length, as in "
            f"--draft-len '{path.name}=3' (0 without speculation)"
        )
    totals = result.values.get("output_throughput")
    return ClosedLoopResult(
        path.name,
        k,
        concurrency,
        1000.0 / tpot,
        math.nan if totals is None else _positive(result, "output_throughput"),
        _acceptance_length(result, k),
        _position_rates(result),
    )


def agree(told: int | None, own: int | None, where: str) -> int | None:
    """Return a draft length that was told or that the result tells, if they do not contradict."""
    if told is not None and own is not None and told != own:
        raise UserError(f"{where}: drafts {own} tokens a step, but --draft-len says {told}")
    return told if own is None else own


def check_length(length: float, draft_len: int, where: str) -> float:
    """Return an acceptance length that is possible, bonus token included."""
    if not 1.0 <= length <= draft_len + 1:
        raise UserError(
            f"{where} must lie in 1..{draft_len + 1} for {draft_len} draft tokens (the bonus token "
            f"is included), got {length:g}"
        )
    return length


def _positive(result: JsonObject, key: str) -> float:
    value = result.number(key)
    if value == 0.0:
        raise UserError(f"{result.where(key)} must be above 0")
    return value


def _acceptance_length(result: JsonObject, draft_len: int) -> float:
    key = "spec_decode_acceptance_length"
    if draft_len == 0 or result.values.get(key) is None:
        return math.nan
    return check_length(result.number(key), draft_len, result.where(key))


def _position_rates(result: JsonObject) -> tuple[float, ...] | None:
    key = "spec_decode_per_position_acceptance_rates"
    if not result.values.get(key):
        return None
    rates = result.numbers(key)
    if (rates > 1.0).any():
        raise UserError(f"{result.where(key)} must hold shares in 0..1, got {rates.max():g}")
    return tuple(map(float, rates))


def _own_draft_len(result: JsonObject, concurrency: int) -> int | None:
    """Return the draft length that a result tells, by its settings or its counters, or None."""
    told = _configured(result, concurrency)
    drafts, tokens = "spec_decode_num_drafts", "spec_decode_draft_tokens"
    if not result.values.get(drafts) or result.values.get(tokens) is None:
        return told
    mean = result.number(tokens) / result.number(drafts)
    whole = round(mean) if told is None else told
    if abs(mean - whole) > _FIXED_WITHIN * max(whole, 1):
        expected = "" if told is None else f", not {told}"
        raise UserError(
            f"{result.where(tokens)} is {mean:.2f} per draft{expected}: "
            "only results with a fixed draft length can be fitted"
        )
    return whole


def _configured(result: JsonObject, concurrency: int) -> int | None:
    """Return what the settings say that `--metadata` or `vllm bench sweep` leave in a result."""
    values = result.values
    config = values.get(_CONFIG)
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except ValueError:
            raise UserError(f"{result.where(_CONFIG)} is no valid JSON") from None
    inner = config if isinstance(config, dict) else {}
    nested = {f"{_CONFIG}.{key}": value for key, value in inner.items()}
    for key in (f"{K}_per_batch_size", K):
        for name in (key, f"{_CONFIG}.{key}"):
            value = values.get(name, nested.get(name))
            if value is not None:
                return _as_draft_len(value, concurrency, f"{result.path}: {name}")
    return 0 if _CONFIG in values and config is None else None


def _as_draft_len(value: Any, concurrency: int, where: str) -> int:
    """Return a whole number, given as such, as text, or as vLLM's schedule of batch sizes."""
    if isinstance(value, list) and all(isinstance(row, list) and len(row) == 3 for row in value):
        reached = [k for low, _, k in value if low <= concurrency]
        value = reached[-1] if reached else value
    if isinstance(value, bool) or not re.fullmatch(r"\d+", str(value).strip()):
        raise UserError(f"{where} must be a whole number of draft tokens, got {value!r}")
    return int(value)
