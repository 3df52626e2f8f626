"""From a point to work that can be timed: its batch, its kernel, its inputs, its graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dspark_sim.model.timing.attention import KERNELS, fastest_kernel
from dspark_sim.model.timing.drafting import new_drafters
from dspark_sim.model.timing.machine import roofline_ms
from dspark_sim.model.timing.network import Network, Weights, choose, judge
from dspark_sim.model.timing.plan import Group, Plan, ragged_lengths

if TYPE_CHECKING:
    from dspark_sim.model.timing.clock import Clock, Work
    from dspark_sim.model.timing.grid import Point
    from dspark_sim.model.timing.sizes import ModelSizes

_SETS = 8


@dataclass
class Inputs:
    """Tokens, drafts and luck that work reads; `rotate` gives it others, as real traffic does."""

    tokens: Tensor
    drafts: Tensor
    luck: Tensor
    sets: tuple[Tensor, Tensor]
    turn: int = 0

    @classmethod
    def new(cls, rows: int, vocab: int, weights: Weights) -> Inputs:
        """Draw several sets of inputs for so many rows."""
        where = {"device": weights.device, "generator": weights.chance}
        tokens = torch.randint(0, vocab, (_SETS, 2, rows), **where)  # type: ignore[call-overload]
        luck = torch.rand(_SETS, rows, **where)  # type: ignore[call-overload]
        first, chance = tokens[0].clone(), luck[0].clone()
        return cls(first[0], first[1], chance, (tokens, luck))

    def rotate(self) -> None:
        """Put the next set in place of the last."""
        self.turn = (self.turn + 1) % _SETS
        tokens, luck = self.sets
        self.tokens.copy_(tokens[self.turn, 0])
        self.drafts.copy_(tokens[self.turn, 1])
        self.luck.copy_(luck[self.turn])


@dataclass
class Cell:
    """A point with its work, ready to be timed again and again."""

    point: Point
    work: Work
    inputs: Inputs | None
    attention: str
    captured: bool
    warm_ms: float
    moved: float = 0.0
    flops: float = 0.0
    kv_tokens: int = 0
    longest: int = 0
    samples: list[float] = field(default_factory=list)

    def time(self, clock: Clock) -> float:
        """Return one timing (ms) with inputs that the last one did not have."""
        if self.inputs is None:
            return clock.host_ms(self.work)
        self.inputs.rotate()
        return clock.ms(self.work)

    def row(self, limits: dict[str, float]) -> dict[str, object]:
        """Return what is known beforehand: the point, its kernel and its physical limit."""
        point = self.point
        about: dict[str, object] = {
            "kind": point.kind,
            "requests": point.requests,
            "tokens": point.tokens,
            "context": point.context,
            "prefill": point.prefill,
            "draft_len": point.draft_len,
            "rows": point.rows,
            "lengths": "uniform" if point.uniform else "ragged",
            "longest": self.longest,
            "table": point.table,
            "kv_tokens_read": self.kv_tokens,
            "captured": self.captured,
            "attention": self.attention,
        }
        if self.moved:
            about["roofline_ms"] = roofline_ms(self.moved, self.flops, limits)
        return about


class Bench:
    """A model with its drafters in memory, and the cells that time it."""

    def __init__(
        self, sizes: ModelSizes, layers: int, slots: int, weights: Weights, clock: Clock,
        kernels: list[str], longest: int, seed: int,
    ) -> None:  # fmt: skip
        self.sizes, self.weights, self.clock, self.kernels = sizes, weights, clock, kernels
        self.longest = longest
        self.itemsize = torch.empty(0, dtype=weights.dtype).element_size()
        self.network = Network(sizes, weights, layers, slots)
        self.drafters = new_drafters(self.network, weights, slots)
        self.rng = np.random.default_rng(seed)

    @torch.inference_mode()
    def cell(self, point: Point) -> Cell:
        """Lay a point's batch out, choose its kernel and warm its work up."""
        if point.kind == "host":
            return self._host(point)
        if point.kind == "head":
            return self._head(point)
        if point.kind.startswith("draft-"):
            return self._draft(point)
        return self._target(point)

    def _plan(self, groups: list[Group], rows: int, causal: bool = True) -> Plan:
        share = self.sizes.num_heads // self.sizes.num_kv_heads
        where, kind = self.weights.device, self.weights.dtype
        return Plan(tuple(groups), rows, causal, where, share, kind)

    def _kernel(self, plan: Plan, cache: Tensor) -> str:
        sizes = self.sizes
        shape = (plan.rows, sizes.num_heads, sizes.head_dim)
        q = torch.randn(shape, device=plan.device, dtype=self.weights.dtype)
        return fastest_kernel(self.kernels, q, cache[0], cache[1], plan, self.clock)

    def _groups(self, point: Point) -> list[Group]:
        chunks = [Group((point.prefill,), max(point.context, point.prefill), prompt=True)]
        if point.kind == "prefill":
            return chunks
        mixed = point.kind == "mixed"
        decoding, tokens = point.requests - mixed, point.tokens - point.prefill
        if point.uniform:
            lengths = (tokens // decoding,) * decoding
        else:
            lengths = ragged_lengths(decoding, tokens, self.longest, self.rng)
        return [Group(lengths, point.context), *(chunks if mixed else [])]

    def _target(self, point: Point) -> Cell:
        plan = self._plan(self._groups(point), max(point.rows, point.tokens))
        name = self._kernel(plan, self.network.caches[0])
        kernel, inputs = KERNELS[name], self._inputs(plan.rows)
        drafts = point.tokens - point.prefill
        wanted = [*range(drafts), plan.tokens - 1] if point.prefill else None
        rows = None if wanted is None else torch.tensor(wanted, device=plan.device)
        layers = len(self.network.layers)

        def step() -> object:
            logits = self.network.logits(inputs.tokens, plan, kernel, rows, layers)
            chosen, p = choose(logits, inputs.luck)
            return chosen, judge(p, inputs.drafts[: len(p)], inputs.luck[: len(p)])

        pairs = sum(group.pairs(causal=True) for group in plan.groups)
        logit_rows = plan.rows if rows is None else len(rows)
        moved, flops = self.sizes.traffic(
            plan.tokens, logit_rows, plan.cache_slots, pairs, self.sizes.num_layers, self.itemsize
        )
        return self._ready(point, step, inputs, name, moved, flops, plan.groups)

    def _head(self, point: Point) -> Cell:
        plan = self._plan([Group((1,) * point.tokens, 1)], point.tokens)
        inputs = self._inputs(plan.rows)

        def step() -> object:
            logits = self.network.logits(inputs.tokens, plan, KERNELS["masked"], None, 0)
            chosen, p = choose(logits, inputs.luck)
            return chosen, judge(p, inputs.drafts, inputs.luck)

        moved, flops = self.sizes.traffic(point.tokens, point.tokens, 0, 0, 0, self.itemsize)
        return self._ready(point, step, inputs, "none", moved, flops)

    def _draft(self, point: Point) -> Cell:
        kind = point.kind.removeprefix("draft-")
        drafter, requests, length = self.drafters[kind], point.requests, point.draft_len
        plans = [
            self._plan([group], group.tokens, causal)
            for group, causal in drafter.plans(requests, length, point.context)
        ]
        name = self._kernel(plans[1], drafter.caches[0])
        inputs, weights = self._inputs(requests), self.weights
        count = drafter.features * self.sizes.hidden_size
        states = torch.randn(plans[0].tokens, count, device=weights.device, dtype=weights.dtype)

        def draft() -> object:
            return drafter.propose(states, inputs.tokens, inputs.luck, plans, KERNELS[name])

        moved, flops = drafter.traffic(requests, length, point.context, self.itemsize)
        groups = (Group((1,) * requests, point.context),)
        return self._ready(point, draft, inputs, name, moved, flops, groups)

    def _host(self, point: Point) -> Cell:
        """Time what a plain loop does between steps: lists to tensors, results to lists."""
        lengths = [1 + index % self.longest for index in range(point.requests)]
        drafts = [[7] * length for length in lengths]
        outputs: list[list[int]] = [[] for _ in lengths]
        accepted = torch.ones(2, sum(lengths), dtype=torch.long, device=self.weights.device)

        def between() -> object:
            plan = self._plan([Group(tuple(lengths), point.context)], sum(lengths))
            tokens = torch.tensor([t for one in drafts for t in one], device=plan.device)
            made = (plan.positions, plan.slots, plan.query_starts, plan.key_starts, tokens)
            passed, chosen = accepted.tolist()
            at = 0
            for row, length in enumerate(lengths):
                run = next((k for k in range(length) if not passed[at + k]), length - 1)
                outputs[row] = [*outputs[row][-64:], *drafts[row][:run], chosen[at + run]]
                at += length
            return made

        return Cell(point, between, None, "none", False, self.clock.host_ms(between))

    def _inputs(self, rows: int) -> Inputs:
        return Inputs.new(rows, self.sizes.vocab_size, self.weights)

    def _ready(
        self, point: Point, work: Work, inputs: Inputs, attention: str,
        moved: float, flops: float, groups: tuple[Group, ...] = (),
    ) -> Cell:  # fmt: skip
        prepared, warm_ms = self.clock.prepare(work, captured=point.rows > 0)
        captured = self.clock.on_gpu and point.rows > 0
        kv = sum(group.kv_tokens() for group in groups)
        longest = max((group.width for group in groups), default=0)
        return Cell(
            point, prepared, inputs, attention, captured, warm_ms, moved, flops, kv, longest
        )
