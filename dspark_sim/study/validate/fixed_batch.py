"""V4: the batches of SpecDecode-Bench's simulator, in ours: its recordings, its cost model.

There a batch is `bs` copies of one request that start together, so they run in lockstep. Here it
is a closed loop of `bs` requests in which the next copies enter when the last ones leave, and
every request is tied to its recorded response. Speed-up is its measure: per batch, tokens over the
mean latency of its requests; the mean over batches with speculation over that without.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dspark_sim.acceptance import RecordedAcceptance
from dspark_sim.config import Scenario
from dspark_sim.core import UserError
from dspark_sim.simulator.simulate import Inputs, simulate
from dspark_sim.study.validate.case import Point, Settings, Validation, errors_within
from dspark_sim.study.validate.published import published, rows
from dspark_sim.throughput import EngineProfile
from dspark_sim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TITLE = "SpecDecode-Bench's simulator: fixed batches of Llama-3.1-8B + EAGLE on an H100"
REQUESTS = 300
# Its cost model, in ms: per KV token, per token and per pass.
TARGET = (3.92645679e-5, 2.10103129e-2, 5.88590713)
DRAFT = (2.37768493e-6, 8.41429603e-4, 2.13526175)
OVERHEAD = 1.20683946
_FIXED = 3
_BOUNDS = {"gsm8k": 1.0, "sharegpt": 2.0}
_POLICIES = {"FIXED_3": "fixed:3", "ORACLE": "oracle"}


@dataclass(frozen=True)
class Response:
    """A recorded response: its prompt's length, and what a round at each position would gain."""

    prompt_tokens: int
    gains: tuple[int, ...]


def run(settings: Settings) -> Validation:
    """Predict the published speed-ups from the recordings; nothing is fitted."""
    folder = settings.data
    if folder is None:
        return Validation("V4", TITLE, skipped="SpecDecode-Bench's files are not shipped: --data")
    if not folder.is_dir():
        raise UserError(f"{folder}: is no folder; it must hold SpecDecode-Bench's files")
    table = published("specdecode_bench")
    if settings.quick:
        table = table[(table["dataset"] == "gsm8k") & (table["batch_size"] <= 32)]
    points = []
    for dataset, part in table.groupby("dataset", sort=False):
        responses = read_responses(folder / f"combined_{dataset}.jsonl")
        for row in rows(part):
            found = speedup(responses, _POLICIES[row["policy"]], row["batch_size"])
            name, at = f"{row['policy']}, {dataset}", float(row["batch_size"])
            points.append(Point(name, "speedup", at, row["speedup"], found))
    return Validation(
        case="V4",
        title=TITLE,
        by_hand=(
            "step costs: its published coefficients for target, draft and overhead",
            "the drafter's cost takes the k + 1 tokens of one request, as there",
            f"the first {REQUESTS} requests of each file, outcomes of its `acc_eagle`",
        ),
        at="batch size",
        points=tuple(points),
        checks=tuple(
            check
            for dataset, bound in _BOUNDS.items()
            if (mine := [p for p in points if p.series.endswith(dataset)])
            for check in errors_within(dataset, mine, None, bound)
        ),
        notes=(
            "its prefill reads no KV tokens, ours those of the prompt; its drafter reads the KV "
            "tokens as the requests before it in the batch have left them, ours those at the "
            "start of the step: together below 0.1 %",
            "published speed-ups have two digits after the point: 0.3 % of the smallest",
        ),
    )


def read_responses(path: Path) -> list[Response]:
    """Read the first 300 requests of one of its JSONL files."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()[:REQUESTS]
        rows = [json.loads(line) for line in lines]
        return [
            Response(len(row["prompt_token_ids"]), tuple(row["acc_eagle"]["acc_len"]))
            for row in rows
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: cannot be read as a file of SpecDecode-Bench ({error})") from None


def speedup(responses: Sequence[Response], policy: str, batch_size: int) -> float:
    """Return the speed-up of a policy over plain decoding at a batch size."""
    recording = _recording(responses, batch_size)
    rates = [_rate(responses, recording, name, batch_size).mean() for name in (policy, "none")]
    return float(rates[0] / rates[1])


def _rate(
    responses: Sequence[Response], recording: RecordedAcceptance, policy: str, batch_size: int
) -> pd.Series[float]:
    """Return tokens over the mean latency of each batch, tok/s."""
    draft_len = recording.draft_len if policy == "oracle" else _FIXED
    scenario = Scenario(
        profile="specdecode-bench",
        policy=policy,
        num_speculative_tokens=draft_len,
        concurrency=batch_size,
        record="requests",
    )
    trace = _copies(responses, batch_size)
    inputs = Inputs(trace, _profile(trace, batch_size, draft_len), recording)
    rows = simulate(scenario, inputs).requests
    batch = np.arange(len(rows)) // batch_size
    latency_s = rows["e2el_ms"].groupby(batch).mean() / 1e3
    return rows["output_tokens"].groupby(batch).sum() / latency_s


def _copies(responses: Sequence[Response], batch_size: int) -> Trace:
    """Return every response `batch_size` times, one batch after the other."""
    rows = pd.DataFrame(
        {
            "arrival_s": 0.0,
            "prompt_tokens": [response.prompt_tokens for response in responses],
            "output_tokens": [len(response.gains) for response in responses],
        }
    )
    return Trace(rows.loc[np.repeat(rows.index, batch_size)].reset_index(drop=True))


def _recording(responses: Sequence[Response], batch_size: int) -> RecordedAcceptance:
    """Return the responses as a recording: a round at position p ≥ 1 gains `gains[p - 1]`."""
    accepted = [np.array([1, *response.gains]) - 1 for response in responses]
    names = [f"{index:04d}" for index in range(len(responses))]
    lengths = [len(values) for values in accepted]
    frame = pd.DataFrame(
        {
            "request_id": np.repeat(names, lengths),
            "position": np.concatenate([np.arange(length) for length in lengths]),
            "accepted": np.concatenate(accepted),
            "confidence": None,
            "category": "",
        }
    )
    tied = {i: names[i // batch_size] for i in range(len(responses) * batch_size)}
    longest = max(int(frame["accepted"].max()), _FIXED)
    return RecordedAcceptance("acc_eagle", frame, longest, mapping=tied)


def _profile(trace: Trace, batch_size: int, draft_len: int) -> EngineProfile:
    """Return its cost model as a profile that holds the largest batch of prompts."""
    per_kv, per_token, per_pass = TARGET
    largest = batch_size * max(int(trace.requests["prompt_tokens"].max()), 1 + draft_len)
    sizes = np.array([1, largest])
    draft_ms = DRAFT[2] + DRAFT[1] * (1 + draft_len)
    return EngineProfile(
        name="specdecode-bench",
        engine="SpecDecode-Bench's simulator",
        model="Llama-3.1-8B + EAGLE",
        gpu="H100",
        num_gpus=1,
        max_num_seqs=batch_size,
        max_num_batched_tokens=largest,
        kv_tokens=None,
        lookup="linear",
        drafter="block",
        provenance={"source": "the constants of SpecDecode-Bench/simulator"},
        overhead_ms=OVERHEAD,
        context_ms_per_kv_token=per_kv,
        draft_context_ms_per_kv_token=DRAFT[0],
        verify=pd.DataFrame({"batch_tokens": sizes, "ms": per_pass + per_token * sizes}),
        draft=pd.DataFrame(
            {"num_requests": [1, batch_size + 1], "draft_len": draft_len, "ms": draft_ms}
        ),
    )
