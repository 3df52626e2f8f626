"""Running the models for a step: draft, verify, judge, and write what was committed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dspark_sim.model.drafters import all_features
from dspark_sim.model.engine.drafting import Rows, SlotDraft, distributions, draft_rows
from dspark_sim.model.engine.judging import judge_greedy, judge_sampled
from dspark_sim.model.engine.packed import PackedBatch, Piece, pack, packed_forward
from dspark_sim.model.engine.slots import SlotCache, rows_of
from dspark_sim.model.sampling import COMMIT, draw
from dspark_sim.model.transformer import Output

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from dspark_sim.model.drafters import Drafter
    from dspark_sim.model.engine.schedule import Plan, Request
    from dspark_sim.model.transformer import Transformer


@dataclass(frozen=True)
class Pass:
    """A target pass that has run.

    Attributes
    ----------
    plan : Plan
    pieces : list of Piece
        Decoding requests by slot, then prompt chunks.
    first : list of int
        Where each piece begins in the batch, and where the batch ends.
    batch : PackedBatch
    hidden : Output
    verify : (R,)
        Draft tokens verified.
    logits : (n, V)
        After every decode token, then after every prompt that ends.
    """

    plan: Plan
    pieces: list[Piece]
    first: list[int]
    batch: PackedBatch
    hidden: Output
    verify: Tensor
    logits: Tensor

    @property
    def num_decode_tokens(self) -> int:
        """Anchors and verified drafts."""
        return self.first[len(self.plan.decodes)]


@dataclass(frozen=True)
class Verdict:
    """Tokens of a pass: accepted drafts (R,) and what follows them (R,); first ones of prompts."""

    accepted: list[int]
    committed: list[int]
    opening: list[int]


class Runner:
    """The models and the slots.

    Parameters
    ----------
    target, drafter
        On one device; without a drafter every step is plain decoding.
    slots, capacity : int
        Requests at once, positions of each.
    seed : int
    """

    def __init__(
        self, target: Transformer, drafter: Drafter | None, slots: int, capacity: int, seed: int
    ) -> None:
        self.target, self.drafter, self.seed = target, drafter, seed
        self.device = target.embedding.weight.device
        self.cache = SlotCache.allocate(target, drafter, slots, capacity)

    @torch.inference_mode()
    def draft(
        self, decodes: Sequence[Request], draft_len: NDArray[np.int64], report: bool
    ) -> SlotDraft | None:
        """Draft for the requests whose `draft_len` (R,) is above 0; None if there are none.

        `report` asks for confidences.
        """
        if self.drafter is None or not draft_len.any():
            return None
        everyone = Rows.of(decodes, self.seed, self.device)
        where = torch.from_numpy(draft_len.nonzero()[0]).to(self.device)
        chosen = [decodes[place] for place in where.tolist()]
        known = [r.computed for r in chosen]
        context = self.cache.context_of(
            rows_of([r.slot for r in chosen], self.device),
            torch.tensor(known, device=self.device),
            max(known),
        )
        anchors = torch.tensor([r.tokens[-1] for r in chosen], device=self.device)
        length = int(draft_len.max())
        draft = draft_rows(self.drafter, context, anchors, everyone.keep(where), length, report)
        return draft if len(chosen) == len(decodes) else draft.spread(where, len(decodes))

    @torch.inference_mode()
    def verify(self, plan: Plan, draft: SlotDraft | None, verify: NDArray[np.int64]) -> Pass:
        """Run the target over anchors, `verify` (R,) drafts of each request, and prefill chunks."""
        drafted = [[]] * len(plan.decodes) if draft is None else draft.tokens.tolist()
        decodes = [
            Piece(r.slot, r.computed, [r.tokens[-1], *tokens[:length]])
            for r, tokens, length in zip(plan.decodes, drafted, verify.tolist(), strict=True)
        ]
        chunks = [
            Piece(c.request.slot, c.start, c.request.prompt[c.start : c.end]) for c in plan.chunks
        ]
        config = self.target.config
        queries = config.num_heads // config.num_kv_heads
        batch = pack(decodes, chunks, queries, self.device)
        hidden = packed_forward(self.target, batch, self.cache)
        pieces = [*decodes, *chunks]
        first = list(accumulate((len(piece.tokens) for piece in pieces), initial=0))
        emitting = hidden.hidden
        if chunks:
            after = zip(plan.chunks, first[len(decodes) + 1 :], strict=True)
            ends = [end - 1 for chunk, end in after if chunk.is_last]
            emitting = emitting[[*range(first[len(decodes)]), *ends]]
        logits = self.target.logits(emitting)
        lengths = torch.from_numpy(verify).to(self.device)
        return Pass(plan, pieces, first, batch, hidden, lengths, logits)

    @torch.inference_mode()
    def judge(self, done: Pass, draft: SlotDraft | None) -> Verdict:
        """Return which drafts are accepted, and the next token of every request that gets one."""
        count = done.num_decode_tokens
        accepted: list[int] = []
        committed: list[int] = []
        opening: list[int] = []
        if done.plan.decodes:
            accepted, committed = self._decoded(done, done.logits[:count], draft)
        ending = [chunk.request for chunk in done.plan.chunks if chunk.is_last]
        if ending:
            opening = self._opening(ending, done.logits[count:])
        return Verdict(accepted, committed, opening)

    def _decoded(
        self, done: Pass, logits: Tensor, draft: SlotDraft | None
    ) -> tuple[list[int], list[int]]:
        decodes = done.plan.decodes
        rows = Rows.of(decodes, self.seed, self.device)
        first = torch.tensor(done.first[: len(decodes)], device=self.device)
        if rows.greedy:
            found = judge_greedy(logits.argmax(-1), first, done.verify, draft)
        else:
            both = zip(decodes, done.pieces, strict=False)
            kinds = [request.sampling for request, piece in both for _ in piece.tokens]
            target = distributions(logits, kinds)
            found = judge_sampled(target, first, done.verify, draft, rows, self.drafter)
        return found[0].tolist(), found[1].tolist()

    def _opening(self, requests: list[Request], logits: Tensor) -> list[int]:
        rows = Rows.of(requests, self.seed, self.device)
        if rows.greedy:
            return list(logits.argmax(-1).tolist())
        p = distributions(logits, rows.kinds)
        return list(draw(p, rows.luck(1, COMMIT)[:, 0]).tolist())

    @torch.inference_mode()
    def extend(self, done: Pass, verdict: Verdict) -> None:
        """Write what was committed into the drafter's context: anchors, accepted drafts, chunks."""
        if self.drafter is None:
            return
        places: list[int] = []
        following: list[int] = []
        for place, (kept, token) in enumerate(_committed(done.plan, verdict)):
            places += range(done.first[place], done.first[place] + kept)
            following += [*done.pieces[place].tokens[1:kept], token]
        at = torch.tensor(places, device=self.device)
        features = all_features(
            Output(done.hidden.hidden[at], [f[at] for f in done.hidden.features])
        )
        slots, positions = done.batch.slots[at], done.batch.positions[at]
        after = torch.tensor(following, device=self.device)
        new = self.drafter.project(features[None], after[None], positions[None])
        for array, values in zip(self.cache.context, new, strict=True):
            array[slots, positions] = values[0]


def _committed(plan: Plan, verdict: Verdict) -> Iterator[tuple[int, int]]:
    """Yield how many tokens of each piece are kept, and the token that follows them."""
    for accepted, token in zip(verdict.accepted, verdict.committed, strict=True):
        yield 1 + accepted, token
    opening = iter(verdict.opening)
    for chunk in plan.chunks:
        yield chunk.count, next(opening) if chunk.is_last else chunk.request.prompt[chunk.end]
