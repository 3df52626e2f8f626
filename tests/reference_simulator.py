"""A plain-Python twin of one replica, written from the design's "The step, precisely".

It shares with the engine the acceptance law's outcomes, the profile's cost tables and the policies'
own verdicts; distorted and calibrated confidences, queues, slots, blocks, budget, time and records
are done again with lists and heaps.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path

import numpy as np
from scipy.special import expit, logit

from dspark_sim.policies import BelievedCost, DraftView, SchedulerView, policy_draft_len
from dspark_sim.throughput.tables import to_ns


@dataclass
class Request:
    index: int
    prompt: int
    output: int
    arrival: int = -1
    admitted: int = -1
    first_token: int = -1
    finish: int = -1
    emitted: int = 0
    prefilled: int = 0
    to_prefill: int = 0
    blocks: int = 0
    last_chunk: int = 0
    steps: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    preemptions: int = 0
    last: tuple = (-1, -1)
    history: list = field(default_factory=list)

    @property
    def context(self):
        return self.prompt + self.emitted

    @property
    def decodes(self):
        return self.prefilled >= self.to_prefill

    @property
    def done(self):
        return self.emitted >= self.output


class Twin:
    """Replay `trace` on `profile`; `run` fills `requests`, `steps`, `gaps`, `views`."""

    def __init__(self, scenario, trace, profile, source, policy):
        self.gamma = policy_draft_len(policy, scenario.num_speculative_tokens)
        self.scenario, self.profile, self.source, self.policy = scenario, profile, source, policy
        rows = trace.requests
        lengths = zip(rows["prompt_tokens"], rows["output_tokens"], strict=True)
        self.requests = [Request(i, int(p), int(o)) for i, (p, o) in enumerate(lengths)]
        self.mode = scenario.prefill.mode
        self.slots = min(
            profile.max_num_seqs,
            profile.max_num_batched_tokens // (1 + self.gamma),
            len(self.requests),
            scenario.concurrency or len(self.requests),
        )
        self.limit_blocks = (
            float("inf") if profile.kv_tokens is None else profile.kv_tokens // profile.block_size
        )
        self.truth = profile.tables(self.gamma, self.slots, scenario.extend)
        self.belief = self.believed()
        self.temperatures = np.ones(self.gamma)
        if scenario.belief.temperatures is not None:
            text = Path(scenario.belief.temperatures).read_text(encoding="utf-8")
            self.temperatures = np.array(json.loads(text)["temperatures"])[: self.gamma]
        self.now = self.sequence = self.issued = 0
        self.events, self.queue, self.preempted, self.running = [], [], [], []
        self.workers = [0] * scenario.prefill.workers
        self.outcomes = {}
        self.steps, self.views, self.gaps, self.order = [], [], Counter(), []
        self.running_ns = self.block_ns = 0
        self.load(trace)

    def believed(self):
        belief, tables = self.scenario.belief, self.truth
        if belief.table == "flat":
            tables = tables.flat()
        if belief.table == "monotone" or getattr(self.policy, "believes", "") == "monotone":
            tables = tables.monotone()
        return tables if belief.draft else tables.without_draft()

    # What arrives

    def load(self, trace):
        if self.scenario.concurrency is None:
            times = [int(t) for t in trace.arrival_ns]
        else:
            times = [0] * min(self.scenario.concurrency, len(self.requests))
        for time in times:
            self.issue(time)

    def issue(self, time):
        """Let the next request arrive; with prefill workers it is ready when one has run it."""
        request = self.requests[self.issued]
        self.issued += 1
        request.arrival = ready = time
        if self.mode == "separate":
            ready = max(time, heappop(self.workers)) + self.prefill_ns(request.prompt)
            heappush(self.workers, ready)
        self.schedule(ready, request)

    def schedule(self, time, request):
        heappush(self.events, (time, self.sequence, request))
        self.sequence += 1

    def deliver(self, until):
        """Let requests become ready up to a time, in order of time."""
        while self.events and self.events[0][0] <= until:
            time, _, request = heappop(self.events)
            if self.mode == "separate":
                self.emit(request, 1, time)
            if request.done:
                request.admitted = time if request.admitted < 0 else request.admitted
            else:
                self.queue.append(request)

    def prefill_ns(self, tokens):
        if self.profile.prefill is not None:
            return int(to_ns(self.profile.prefill_ms(tokens, self.scenario.extend)))
        chunk = self.profile.max_num_batched_tokens
        chunks = [min(chunk, tokens - done) for done in range(0, tokens, chunk)]
        return sum(self.truth.overhead_ns + int(self.truth.verify_ns[n]) for n in chunks)

    def emit(self, request, tokens, time):
        tokens = min(tokens, request.output - request.emitted)
        if request.emitted == 0:
            request.first_token = time
        else:
            self.gaps[time - request.last_chunk] += 1
        request.emitted += tokens
        request.last_chunk = time
        if request.done:
            request.finish = time
            if request in self.running:
                self.running.remove(request)
            request.blocks = 0
            if self.scenario.concurrency and self.issued < len(self.requests):
                self.issue(time)
        return tokens

    # Who takes part

    def blocks_for(self, request):
        first = int(self.mode == "none" and request.emitted == 0)  # comes at admission
        return -(-(request.context + first + self.gamma + 1) // self.profile.block_size)

    @property
    def free_blocks(self):
        return self.limit_blocks - sum(r.blocks for r in self.running)

    def reserve(self):
        for request in list(self.running):
            while request in self.running:
                growth = self.blocks_for(request) - request.blocks
                if growth <= self.free_blocks:
                    request.blocks += growth
                    break
                self.preempt(self.running[-1])

    def preempt(self, request):
        self.running.remove(request)
        request.blocks, request.preemptions = 0, request.preemptions + 1
        request.prefilled = request.to_prefill = 0
        request.history, request.last = [], (-1, -1)
        if self.mode == "separate":
            self.schedule(self.now + self.prefill_ns(request.context), request)
        else:
            self.preempted.append(request)

    def admit(self):
        """Return the decoding requests and the prefill chunks of this step."""
        self.reserve()
        budget = self.profile.max_num_batched_tokens
        budget -= sum(r.decodes for r in self.running) * (1 + self.gamma)
        chunks = {}
        for request in self.running:
            if not request.decodes and budget > 0:
                chunks[request.index] = min(budget, request.to_prefill - request.prefilled)
                budget -= chunks[request.index]
        while self.preempted or self.queue:
            request = self.preempted[-1] if self.preempted else self.queue[0]
            least = 1 if self.mode == "chunked" else 1 + self.gamma
            fits = len(self.running) < self.slots and least <= budget
            if not fits or self.blocks_for(request) > self.free_blocks:
                break
            (self.preempted.pop if self.preempted else lambda: self.queue.pop(0))()
            self.order.append(request.index)
            if request.admitted < 0:
                request.admitted = self.now
            if self.mode == "none" and request.emitted == 0:
                self.emit(request, 1, self.now)
                if request.done:
                    self.deliver(self.now)
                    continue
            self.running.append(request)
            request.blocks = self.blocks_for(request)
            if self.mode == "chunked":
                request.to_prefill = request.context
                chunks[request.index] = min(budget, request.to_prefill)
                budget -= chunks[request.index]
            else:
                budget -= 1 + self.gamma
        return [r for r in self.running if r.decodes], chunks

    # What a step does

    def run(self):
        while True:
            self.deliver(self.now)
            decoding, chunks = self.admit()
            if decoding or chunks:
                self.step(decoding, chunks)
            elif self.events:
                self.now = max(self.now, self.events[0][0])
            else:
                return self

    def outcome(self, request, length):
        """Confidence (γ,) and accepted length of a block at the request's next position."""
        padded = np.zeros(self.gamma)
        if length == 0:
            return padded, 0
        if length not in self.outcomes:
            pairs = [(r.index, p) for r in self.requests for p in range(r.output)]
            index, position = np.array(pairs).T
            found = self.source.block(index, position, length, self.scenario.seed)
            self.outcomes[length] = dict(zip(pairs, zip(*found, strict=True), strict=True))
        confidence, accepted = self.outcomes[length][request.index, request.emitted]
        padded[:length] = self.seen(confidence)
        return padded, int(accepted)

    def seen(self, reported):
        """What the policy sees of reported confidences: drifted, then calibrated."""
        belief, temperatures = self.scenario.belief, self.temperatures[: len(reported)]
        scale, bias = belief.confidence_scale, belief.confidence_bias
        if (scale, bias) == (1.0, 0.0) and (temperatures == 1.0).all():
            return reported
        return expit((scale * logit(reported) + bias) / temperatures)

    def cost(self, running, kv_read, drafting):
        belief, per_kv = self.belief, 0.0
        if self.scenario.belief.context or getattr(self.policy, "knows_outcomes", False):
            per_kv = belief.context_ns_per_kv_token
            per_kv += belief.draft_context_ns_per_kv_token if drafting else 0.0
        fixed = belief.overhead_ns + belief.request_ns[running] + np.rint(per_kv * kv_read)
        return BelievedCost(belief.verify_ns, belief.draft_ns, int(fixed))

    def view(self, decoding, chunks, kv_read):
        def ints(values):
            return np.array(list(values), dtype=np.int64)

        history = np.ones((len(decoding), 3, self.gamma))
        for row, request in enumerate(decoding):
            for age, survival in enumerate(request.history[:3]):
                history[row, age] = survival
        ending = [i for i, n in chunks.items() if self.ends(self.requests[i], n)]
        return {
            "time_s": self.now * 1e-9,
            "request": ints(r.index for r in decoding),
            "context_tokens": ints(r.context for r in decoding),
            "output_tokens": ints(r.emitted for r in decoding),
            "decode_steps": ints(r.steps for r in decoding),
            "last_verify_len": ints(r.last[0] for r in decoding),
            "last_accepted": ints(r.last[1] for r in decoding),
            "history": history,
            "prefill_tokens": sum(chunks.values()),
            "num_sampling": len(decoding) + len(ending),
            "num_waiting": len(self.queue) + len(self.preempted),
            "cost": self.cost(len(decoding) + len(chunks), kv_read, self.gamma > 0),
            "max_draft_len": self.gamma,
        }

    @staticmethod
    def ends(request, tokens):
        return request.prefilled + tokens >= request.to_prefill

    def decide(self, decoding, chunks, kv_read):
        """Draft and verify: returns draft_len, accepted and verify_len, a list each."""
        seen = self.view(decoding, chunks, kv_read)
        lengths = [self.gamma] * len(decoding)
        if hasattr(self.policy, "draft_lengths"):
            lengths = [int(n) for n in self.policy.draft_lengths(DraftView(**seen))]
        blocks = [self.outcome(r, n) for r, n in zip(decoding, lengths, strict=True)]
        confidence = np.array([c for c, _ in blocks]).reshape(len(decoding), self.gamma)
        accepted = [a for _, a in blocks]
        seen["cost"] = self.cost(len(decoding) + len(chunks), kv_read, any(lengths))
        view = SchedulerView(
            **seen, draft_len=np.array(lengths, dtype=np.int64), confidence=confidence
        )
        self.views.append(view)
        for request, length, survival in zip(decoding, lengths, view.survival, strict=True):
            if length > 0:
                request.history.insert(0, survival)
        if getattr(self.policy, "knows_outcomes", False):
            return lengths, accepted, oracle(view, accepted)
        return lengths, accepted, [int(n) for n in self.policy.verify_lengths(view)]

    def step(self, decoding, chunks):
        kv_read = sum(r.context for r in decoding)
        kv_read += sum(self.requests[i].prefilled + n for i, n in chunks.items())
        lengths = accepted = verify = []
        waiting = len(self.queue) + len(self.preempted)
        if decoding:
            lengths, accepted, verify = self.decide(decoding, chunks, kv_read)
        batch = len(decoding) + sum(verify) + sum(chunks.values())
        drafting = sum(n > 0 for n in lengths)
        running = len(decoding) + len(chunks)
        longest = max(lengths, default=0)
        cost = int(self.truth.step_ns(running, batch, kv_read, drafting, longest))
        assert cost > 0
        blocks = sum(r.blocks for r in self.running)
        self.running_ns += cost * len(self.running)
        self.block_ns += cost * blocks
        start, self.now = self.now, self.now + cost
        self.deliver(self.now - 1)  # what completes during the step issues before its end does
        counts = [min(a, v) for a, v in zip(accepted, verify, strict=True)]
        emitted = self.commit(decoding, lengths, verify, counts) + self.advance(chunks)
        self.steps.append(
            {
                "start_ns": start,
                "step_ns": cost,
                "num_requests": len(decoding),
                "prefill_tokens": sum(chunks.values()),
                "batch_tokens": batch,
                "draft_tokens": sum(lengths),
                "verify_tokens": sum(verify),
                "accepted_tokens": sum(counts),
                "output_tokens": emitted,
                "num_waiting": waiting,
                "kv_blocks": blocks,
                "eager": int(self.truth.eager[batch]),
            }
        )

    def commit(self, decoding, lengths, verify, counts):
        emitted = 0
        for request, drafted, verified, good in zip(decoding, lengths, verify, counts, strict=True):
            request.steps += 1
            request.drafted += drafted
            request.verified += verified
            request.accepted += good
            request.last = (verified, good)
            emitted += self.emit(request, good + 1, self.now)
        return emitted

    def advance(self, chunks):
        emitted = 0
        for index, tokens in chunks.items():
            request = self.requests[index]
            request.prefilled += tokens
            if request.decodes:
                emitted += self.emit(request, 1, self.now)
        return emitted


def oracle(view, accepted):
    """Most tokens per time out of those that will be accepted; fewest on ties, by position."""
    base = view.num_requests + view.prefill_tokens
    drafting, longest = int((view.draft_len > 0).sum()), int(view.draft_len.max(initial=0))
    fixed_ns = view.cost.fixed_ns + view.cost.draft_ns[drafting, longest]
    rates = []
    for budget in range(sum(accepted) + 1):
        time_ns = int(fixed_ns + view.cost.verify_ns[base + budget])
        rates.append((view.num_requests + budget) / time_ns)
    left = int(np.argmax(rates))
    order = sorted((p, r) for r, a in enumerate(accepted) for p in range(a))
    taken = Counter(r for _, r in order[:left])
    return [taken[r] for r in range(view.num_requests)]
