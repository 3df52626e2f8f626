"""The draft-verify loop for a batch of requests: lossless, each with its own verify length.

One cycle (arXiv 2607.05147, section 2): draft γ tokens from the anchor, let the policy choose how
many of each request to verify, verify all requests in one target pass, commit the accepted prefix
and one token more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dspark_sim.core import UserError
from dspark_sim.model.drafters.base import Context, Drafter, all_features
from dspark_sim.model.generate import Decoding, cut, ended, last, prefill
from dspark_sim.model.sampling import (
    ACCEPT,
    COMMIT,
    DRAFT,
    block_counter,
    distribution,
    draw,
    residual,
    uniforms,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dspark_sim.model.transformer import KVCache, Transformer


@dataclass(frozen=True)
class Draft:
    """Drafted blocks: tokens (R, γ), confidence (R, γ), probabilities (R, γ, V)."""

    tokens: Tensor
    confidence: Tensor
    probabilities: Tensor


@dataclass(frozen=True)
class DraftView:
    """What a verify-length rule sees: request numbers (R,), output positions (R,), confidence."""

    requests: Tensor
    positions: Tensor
    confidence: Tensor


@dataclass(frozen=True)
class StepRecord:
    """One request's part of one step; `accepted` counts draft tokens, not the committed one."""

    step: int
    request: int
    position: int
    drafted: tuple[int, ...]
    confidence: tuple[float, ...]
    verify_len: int
    accepted: int


@dataclass
class Speculation:
    """Responses, and per-step records in order."""

    responses: list[list[int]]
    records: list[StepRecord] = field(default_factory=list)

    @property
    def acceptance_length(self) -> float:
        """Tokens per target pass and request, bonus included (uncapped)."""
        return 1 + sum(r.accepted for r in self.records) / max(1, len(self.records))


VerifyLengths = int | Callable[[DraftView], Tensor]
AcceptRule = Callable[[Tensor, Tensor, Tensor], Tensor]


def accept_rule(target: Tensor, draft: Tensor, u: Tensor) -> Tensor:
    """Return where u < p_t(x) / p_d(x), all of one shape: acceptance with min(1, p_t / p_d)."""
    return u * draft < target


@torch.no_grad()
def draft_block(
    drafter: Drafter,
    context: Context,
    anchors: Tensor,
    requests: Tensor,
    starts: Tensor,
    c: Decoding,
) -> Draft:
    """Draft γ tokens after anchors (R,) of requests (R,) whose blocks begin at `starts` (R,)."""
    block = drafter.begin(context, anchors[:, None], context.lengths[:, None])
    previous, tokens, confidence, probabilities = anchors, [], [], []
    for k in range(drafter.gamma):
        prediction = drafter.step(block, previous[:, None])
        p = distribution(prediction.logits[:, 0], c.temperature, c.top_p)
        index = draw(p, uniforms(c.seed, requests, block_counter(starts, k), DRAFT))
        previous = drafter.token_ids(index)
        tokens.append(previous)
        confidence.append(drafter.confidence(prediction, c.temperature)[:, 0])
        probabilities.append(drafter.full(p))
    return Draft(torch.stack(tokens, 1), torch.stack(confidence, 1), torch.stack(probabilities, 1))


def judge(
    draft: Draft,
    target: Tensor,
    verify_len: Tensor,
    luck: tuple[Tensor, Tensor],
    rule: AcceptRule = accept_rule,
) -> tuple[Tensor, Tensor]:
    """Return accepted draft tokens (R,) and the token committed after them (R,).

    Parameters
    ----------
    draft
        Blocks of γ tokens.
    target
        p_t (R, 1 + L, V) after the anchor and each of the first L draft tokens.
    verify_len
        (R,) tokens verified, at most L; what lies beyond is not looked at.
    luck
        Uniform numbers for acceptance (R, L) and for the committed token (R, 1 + L).
    """
    width = target.shape[1] - 1
    rows = torch.arange(len(verify_len), device=target.device)
    tokens = draft.tokens[:, :width, None]
    p = target[:, :width].gather(-1, tokens).squeeze(-1)
    q = draft.probabilities[:, :width].gather(-1, tokens).squeeze(-1)
    inside = torch.arange(width, device=target.device) < verify_len[:, None]
    passed = rule(p.double(), q.double(), luck[0]) & inside
    accepted = passed.long().cumprod(1).sum(1)
    p_next = target[rows, accepted]
    q_next = draft.probabilities[rows, accepted.clamp(max=draft.probabilities.shape[1] - 1)]
    rest = residual(p_next, q_next)
    source = torch.where((accepted < verify_len)[:, None], rest, p_next)
    return accepted, draw(source, luck[1][rows, accepted])


@dataclass
class _Batch:
    """The requests still running: numbers (R,), caches, anchors (R,) and output positions (R,)."""

    index: Tensor
    requests: Tensor
    cache: KVCache
    context: Context
    anchors: Tensor
    starts: Tensor

    def keep(self, rows: Tensor) -> _Batch:
        """Return the batch of these rows."""
        return _Batch(
            self.index[rows],
            self.requests[rows],
            self.cache.keep(rows),
            self.context.keep(rows),
            self.anchors[rows],
            self.starts[rows],
        )


@torch.no_grad()
def speculate(
    model: Transformer,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    c: Decoding,
    verify_lengths: VerifyLengths | None = None,
    *,
    requests: Sequence[int] | None = None,
    rule: AcceptRule = accept_rule,
) -> Speculation:
    """Decode every prompt with draft and verification; the output law is the target's own.

    `verify_lengths` is a number, or a rule from a `DraftView` to (R,) lengths in 0..γ; all γ by
    default. At temperature 0 the responses equal greedy decoding.
    """
    batch, result = _start(model, drafter, prompts, c, requests)
    for step in range(c.max_tokens):
        going = [
            row
            for row, index in enumerate(batch.index.tolist())
            if not ended(result.responses[index], c)
        ]
        if not going:
            break
        if len(going) < len(batch.index):
            batch = batch.keep(torch.tensor(going, device=batch.index.device))
        _cycle(model, drafter, batch, c, verify_lengths, rule, step, result)
    result.responses = [cut(response, c) for response in result.responses]
    return result


def _start(
    model: Transformer,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    c: Decoding,
    requests: Sequence[int] | None,
) -> tuple[_Batch, Speculation]:
    cache, output, tokens, counts = prefill(model, prompts, c.max_tokens + drafter.gamma)
    index = torch.arange(len(prompts), device=tokens.device)
    names = index if requests is None else torch.tensor(requests, device=tokens.device)
    p = distribution(model.logits(last(output.hidden, counts)), c.temperature, c.top_p)
    luck = uniforms(c.seed, names, block_counter(torch.zeros_like(index), 0), COMMIT)
    first = draw(p, luck)
    following = torch.roll(tokens, -1, 1)
    following[index, counts - 1] = first
    context = drafter.new_context(all_features(output), following, counts)
    batch = _Batch(index, names, cache, context, first, torch.ones_like(index))
    return batch, Speculation([[token] for token in first.tolist()])


def _cycle(
    model: Transformer,
    drafter: Drafter,
    batch: _Batch,
    c: Decoding,
    verify_lengths: VerifyLengths | None,
    rule: AcceptRule,
    step: int,
    result: Speculation,
) -> None:
    """One draft, one target pass, one commit for every running request; updates in place."""
    draft = draft_block(drafter, batch.context, batch.anchors, batch.requests, batch.starts, c)
    verify = _lengths(verify_lengths, batch, draft, drafter.gamma)
    width = int(verify.max())
    tokens = torch.cat([batch.anchors[:, None], draft.tokens[:, :width]], 1)
    before = batch.cache.lengths
    output = model(tokens, batch.cache, 1 + verify)
    target = distribution(model.logits(output.hidden), c.temperature, c.top_p)
    columns = torch.arange(width + 1, device=tokens.device)
    counters = block_counter(batch.starts[:, None], 0) + columns
    luck = [uniforms(c.seed, batch.requests[:, None], counters, s) for s in (ACCEPT, COMMIT)]
    accepted, committed = judge(draft, target, verify, (luck[0][:, :width], luck[1]), rule)
    batch.cache.lengths = before + 1 + accepted
    following = torch.roll(tokens, -1, 1).scatter(1, accepted[:, None], committed[:, None])
    drafter.extend(batch.context, all_features(output), following, 1 + accepted)
    _note(result, batch, draft, verify, accepted, committed, step)
    batch.anchors, batch.starts = committed, batch.starts + 1 + accepted


def _lengths(rule: VerifyLengths | None, batch: _Batch, draft: Draft, gamma: int) -> Tensor:
    if rule is None or isinstance(rule, int):
        lengths = torch.full_like(batch.index, gamma if rule is None else rule)
    else:
        view = DraftView(batch.requests, batch.starts, draft.confidence)
        lengths = rule(view).to(batch.index)
    if lengths.min() < 0 or lengths.max() > gamma:
        raise UserError(
            f"verify lengths must lie in 0..{gamma}, got {int(lengths.min())}..{int(lengths.max())}"
        )
    return lengths


def _note(
    result: Speculation,
    batch: _Batch,
    draft: Draft,
    verify: Tensor,
    accepted: Tensor,
    committed: Tensor,
    step: int,
) -> None:
    rows = zip(
        batch.index.tolist(),
        batch.starts.tolist(),
        draft.tokens.tolist(),
        draft.confidence.tolist(),
        verify.tolist(),
        accepted.tolist(),
        committed.tolist(),
        strict=True,
    )
    for request, start, tokens, confidence, length, taken, token in rows:
        result.responses[request] += [*tokens[:taken], token]
        result.records.append(
            StepRecord(step, request, start, tuple(tokens), tuple(confidence), length, taken)
        )
