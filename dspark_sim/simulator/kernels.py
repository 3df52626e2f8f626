"""Kernels of the step: draft, decide, price, commit; and the loop over steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.acceptance.kernels import draft_block
from dspark_sim.jit import kernel, kernel_inlined
from dspark_sim.policies.kernel_policy import Decision
from dspark_sim.policies.rules import decide, draft_length
from dspark_sim.simulator import state as s
from dspark_sim.simulator.account import account
from dspark_sim.simulator.admission import (
    add_gap,
    admit,
    complete,
    emit_prefill_token,
    grow,
    ingest,
    next_start,
    release,
    schedule_prefill,
)

if TYPE_CHECKING:
    from dspark_sim.acceptance.kernels import AcceptanceTables
    from dspark_sim.simulator.state import Engine, Rule, State


@kernel_inlined
def begin_step(engine: Engine, state: State) -> int:
    """Admit, and gather the step's rows; jump over idle time. Return DONE or READY_TO_DRAFT."""
    clock = state.clock
    while True:
        ingest(engine, state, clock[s.NOW])
        grow(engine, state)
        admit(engine, state, schedule_prefill(engine, state))
        if clock[s.RUNNING] > 0:
            _gather(state)
            return s.READY_TO_DRAFT
        if clock[s.VISIBLE] == clock[s.TAIL]:
            return s.DONE
        following = state.queue[clock[s.VISIBLE] % len(state.queue)]
        clock[s.NOW] = max(clock[s.NOW], state.requests[s.READY, following])


@kernel_inlined
def _gather(state: State) -> None:
    """Collect decoding requests into rows, in order of admission, and count the prefill.

    The KV tokens that the step reads are every decode's context and every chunk up to its end.
    """
    clock, slots, rows, requests = state.clock, state.slots, state.rows, state.requests
    decodes = prefill_tokens = prefill_requests = ending = decode_kv = chunk_kv = 0
    for place in range(clock[s.RUNNING]):
        slot = slots[s.ORDER, place]
        missing = slots[s.PREFILL_TARGET, slot] - slots[s.PREFILLED, slot]
        if missing == 0:
            rows[s.ROW_SLOT, decodes] = slot
            rows[s.ROW_LAST_VERIFY, decodes] = slots[s.LAST_VERIFY, slot]
            rows[s.ROW_LAST_ACCEPTED, decodes] = slots[s.LAST_ACCEPTED, slot]
            request = slots[s.REQUEST, slot]
            decode_kv += requests[s.PROMPT, request] + requests[s.EMITTED, request]
            decodes += 1
        elif slots[s.CHUNK, slot] > 0:
            chunk_kv += slots[s.PREFILLED, slot] + slots[s.CHUNK, slot]
            prefill_tokens += slots[s.CHUNK, slot]
            prefill_requests += 1
            ending += slots[s.CHUNK, slot] == missing
    clock[s.DECODES] = decodes
    clock[s.PREFILL_TOKENS] = prefill_tokens
    clock[s.PREFILL_REQUESTS] = prefill_requests
    clock[s.SAMPLING] = decodes + ending
    clock[s.DECODE_KV] = decode_kv
    clock[s.CHUNK_KV] = chunk_kv


@kernel_inlined
def plan_drafts(engine: Engine, rule: Rule, state: State) -> None:
    """Let every request draft what the rule says: γ tokens, or a length for all by their number."""
    num = state.clock[s.DECODES]
    length = draft_length(rule.rule, rule.params, num, engine.gamma)
    for r in range(num):
        state.rows[s.ROW_DRAFT, r] = length


@kernel_inlined
def draft(acceptance: AcceptanceTables, state: State, want_confidence: bool, lag: int) -> None:
    """Draft the rows' blocks: confidence for the policy, and the outcome hidden from it.

    Each request's live survivals join its history; `stale` is what they were `lag` drafts ago.
    """
    rows, slots, requests = state.rows, state.slots, state.requests
    for r in range(state.clock[s.DECODES]):
        slot = rows[s.ROW_SLOT, r]
        request = slots[s.REQUEST, slot]
        length = rows[s.ROW_DRAFT, r]
        if length == 0 and not want_confidence:
            rows[s.ROW_ACCEPTED, r] = 0
            continue
        rows[s.ROW_ACCEPTED, r] = draft_block(
            acceptance,
            request,
            state.key[slot],
            state.level[slot],
            requests[s.EMITTED, request],
            length,
            want_confidence,
            state.cursor[slot],
            state.odds[slot],
            state.confidence[r],
        )
        if want_confidence:
            _multiply(state, r, slot, length, lag)


@kernel_inlined
def _multiply(state: State, row: int, slot: int, length: int, lag: int) -> None:
    """Write live and stale survivals of a drafted row, and keep the live ones."""
    past = (state.slots[s.HISTORY, slot] + 1 - lag) & (s.KEPT - 1)
    newest = (state.slots[s.HISTORY, slot] + (length > 0)) & (s.KEPT - 1)
    survival = 1.0
    for j in range(state.confidence.shape[1]):
        if j >= length:
            state.confidence[row, j] = 0.0
        survival *= state.confidence[row, j]
        state.survival[row, j] = survival
        if length > 0:
            state.history[slot, newest, j] = survival
        state.stale[row, j] = state.history[slot, past, j] if lag > 0 else survival
    state.slots[s.HISTORY, slot] = newest


@kernel_inlined
def _drafting(state: State) -> tuple[int, int, int]:
    """Return requests that draft, their longest draft and all draft tokens."""
    num = longest = total = 0
    for r in range(state.clock[s.DECODES]):
        length = state.rows[s.ROW_DRAFT, r]
        num += length > 0
        longest = max(longest, length)
        total += length
    return num, longest, total


@kernel_inlined
def _context_ns(per_token: float, drafting_per_token: float, state: State) -> int:
    """Return the context term: a cost per KV token read, more in a step that drafts."""
    per_token += drafting_per_token if _drafting(state)[0] > 0 else 0.0
    kv_tokens = state.clock[s.DECODE_KV] + state.clock[s.CHUNK_KV]
    return int(np.rint(per_token * kv_tokens)) if per_token > 0.0 else 0


@kernel_inlined
def believed_fixed_ns(rule: Rule, state: State) -> int:
    """Return what the policy believes this step costs whatever it drafts and verifies."""
    requests = state.clock[s.DECODES] + state.clock[s.PREFILL_REQUESTS]
    context_ns = _context_ns(rule.context_ns, rule.draft_context_ns, state)
    return rule.overhead_ns + rule.request_ns[requests] + context_ns


@kernel_inlined
def apply_rule(rule: Rule, state: State) -> None:
    """Let a built-in rule write the rows' verify lengths."""
    clock, rows = state.clock, state.rows
    num = clock[s.DECODES]
    drafting, longest, _ = _drafting(state)
    state.decision[0] = num
    state.decision[1] = clock[s.PREFILL_TOKENS]
    state.decision[2] = clock[s.SAMPLING]
    state.decision[3] = believed_fixed_ns(rule, state)
    state.decision[4] = rule.draft_ns[drafting, longest]
    decision = Decision(
        state.decision,
        rows[s.ROW_DRAFT],
        state.confidence,
        state.survival,
        state.stale,
        rows[s.ROW_LAST_VERIFY],
        rows[s.ROW_LAST_ACCEPTED],
        rule.verify_ns,
        rule.memory,
        rule.switches,
        rows[s.ROW_ACCEPTED],
        rows[s.ROW_VERIFY],
        state.scratch,
    )
    decide(rule.rule, rule.params, decision)


@kernel_inlined
def finish_step(engine: Engine, state: State) -> int:
    """Price the step, let its time pass, commit its tokens. Return OUT_OF_RANGE or DONE."""
    clock, counters, rows = state.clock, state.counters, state.rows
    drafting, longest, drafted = _drafting(state)
    verified = 0
    for r in range(clock[s.DECODES]):
        verified += rows[s.ROW_VERIFY, r]
    batch_tokens = clock[s.DECODES] + verified + clock[s.PREFILL_TOKENS]
    step_ns = _step_ns(engine, state, batch_tokens, drafting, longest)
    if step_ns < 0:
        clock[s.BAD_TOKENS] = batch_tokens
        return s.OUT_OF_RANGE
    account(engine, state, batch_tokens, drafting, longest, step_ns)
    start = clock[s.NOW]
    clock[s.NOW] = start + step_ns
    waiting = clock[s.VISIBLE] - clock[s.HEAD] + clock[s.STACKED]
    ingest(engine, state, clock[s.NOW] - 1)
    tokens, accepted = counters[s.C_TOKENS], counters[s.C_ACCEPTED]
    held = engine.kv_blocks - clock[s.KV_FREE]
    counters[s.C_STEPS] += 1
    counters[s.C_DECODE_STEPS] += clock[s.DECODES] > 0
    counters[s.C_REQUEST_STEPS] += clock[s.DECODES]
    counters[s.C_DRAFTS] += drafting
    counters[s.C_DRAFTED] += drafted
    counters[s.C_VERIFIED] += verified
    counters[s.C_EAGER] += engine.eager[batch_tokens]
    requests = clock[s.DECODES] + clock[s.PREFILL_REQUESTS]
    counters[s.C_EXTENDED] += engine.extended[batch_tokens] or engine.extended_requests[requests]
    counters[s.C_CLAMPED] += engine.clamped[batch_tokens]
    counters[s.C_BATCH_TOKENS] += batch_tokens
    counters[s.C_PREFILL_TOKENS] += clock[s.PREFILL_TOKENS]
    counters[s.C_BUSY_NS] += step_ns
    counters[s.C_KV_BLOCK_NS] += held * step_ns
    counters[s.C_RUNNING_NS] += clock[s.RUNNING] * step_ns
    _commit(engine, state)
    if engine.record_steps and (counters[s.C_STEPS] - 1) % clock[s.RECORD_EVERY] == 0:
        record = state.steps[clock[s.NUM_STEPS]]
        record[0] = start
        record[1] = step_ns
        record[2] = clock[s.DECODES]
        record[3] = clock[s.PREFILL_TOKENS]
        record[4] = batch_tokens
        record[5] = drafted
        record[6] = verified
        record[7] = counters[s.C_ACCEPTED] - accepted
        record[8] = counters[s.C_TOKENS] - tokens
        record[9] = waiting
        record[10] = held
        record[11] = engine.eager[batch_tokens]
        clock[s.NUM_STEPS] += 1
    _watch_window(engine, state)
    return s.DONE


@kernel_inlined
def _step_ns(engine: Engine, state: State, batch_tokens: int, drafting: int, longest: int) -> int:
    """Return overhead + draft + verify + requests + context, or -1 outside the table."""
    if engine.verify_ns[batch_tokens] < 0:
        return -1
    requests = state.clock[s.DECODES] + state.clock[s.PREFILL_REQUESTS]
    step_ns = engine.overhead_ns + engine.draft_ns[drafting, longest]
    step_ns += engine.verify_ns[batch_tokens] + engine.request_ns[requests]
    return step_ns + _context_ns(engine.context_ns, engine.draft_context_ns, state)


@kernel_inlined
def _commit(engine: Engine, state: State) -> None:
    """Emit the tokens of all rows and prefills, and close up the running order."""
    clock, slots = state.clock, state.slots
    row, kept = 0, 0
    for place in range(clock[s.RUNNING]):
        slot = slots[s.ORDER, place]
        request = slots[s.REQUEST, slot]
        finished = False
        if slots[s.PREFILLED, slot] == slots[s.PREFILL_TARGET, slot]:
            finished = _commit_row(state, row, slot, request)
            row += 1
        elif slots[s.CHUNK, slot] > 0:
            slots[s.PREFILLED, slot] += slots[s.CHUNK, slot]
            if slots[s.PREFILLED, slot] == slots[s.PREFILL_TARGET, slot]:
                finished = emit_prefill_token(state, request, clock[s.NOW])
        if finished:
            release(state, slot)
            complete(engine, state, request, clock[s.NOW])
        else:
            slots[s.ORDER, kept] = slot
            kept += 1
    clock[s.RUNNING] = kept
    state.counters[s.C_GAPS] = clock[s.NUM_GAPS]


@kernel_inlined
def _commit_row(state: State, row: int, slot: int, request: int) -> bool:
    """Commit min(accepted, verify_len) + 1 tokens of one request; return whether it is done."""
    clock, slots, rows, requests = state.clock, state.slots, state.rows, state.requests
    counters = state.counters
    verified = rows[s.ROW_VERIFY, row]
    accepted = min(rows[s.ROW_ACCEPTED, row], verified)
    emitted = min(accepted + 1, requests[s.OUTPUT, request] - requests[s.EMITTED, request])
    requests[s.EMITTED, request] += emitted
    requests[s.STEPS, request] += 1
    requests[s.DRAFTED, request] += rows[s.ROW_DRAFT, row]
    requests[s.VERIFIED, request] += verified
    requests[s.ACCEPTED, request] += accepted
    counters[s.C_ACCEPTED] += accepted
    counters[s.C_COMMITTED] += accepted + 1
    counters[s.C_TOKENS] += emitted
    slots[s.LAST_VERIFY, slot] = verified
    slots[s.LAST_ACCEPTED, slot] = accepted
    add_gap(state, request, clock[s.NOW])
    return requests[s.EMITTED, request] == requests[s.OUTPUT, request]


@kernel_inlined
def _watch_window(engine: Engine, state: State) -> None:
    """Note the counters when the measured window opens and when it closes."""
    clock = state.clock
    if engine.concurrency == 0:
        if clock[s.WINDOW_NEXT] == 0 and clock[s.NOW] >= engine.window_start_ns:
            clock[s.WINDOW_NEXT] = 1
        elif clock[s.WINDOW_NEXT] == 1 and clock[s.NOW] >= engine.window_end_ns:
            clock[s.WINDOW_NEXT] = 2
    if clock[s.WINDOW_NEXT] == clock[s.WINDOW] + 1:
        state.counters[s.C_TIME] = clock[s.NOW]
        for c in range(len(state.counters)):
            state.window[clock[s.WINDOW], c] = state.counters[c]
        clock[s.WINDOW] += 1


@kernel
def advance(
    engine: Engine, acceptance: AcceptanceTables, rule: Rule, state: State, until_ns: int
) -> int:
    """Run the steps that begin before `until_ns` under a built-in rule; return why it stopped."""
    clock = state.clock
    while True:
        if records_full(engine, state):
            return s.RECORDS_FULL
        if next_start(state) >= until_ns:
            return s.HORIZON
        if begin_step(engine, state) == s.DONE:
            return s.DONE
        if clock[s.DECODES] > 0:
            plan_drafts(engine, rule, state)
            draft(acceptance, state, rule.want_confidence, rule.lag)
            apply_rule(rule, state)
        if finish_step(engine, state) == s.OUT_OF_RANGE:
            return s.OUT_OF_RANGE


@kernel_inlined
def records_full(engine: Engine, state: State) -> bool:
    """Return whether the next step could find no room for its records."""
    clock = state.clock
    if engine.record_steps and clock[s.NUM_STEPS] >= len(state.steps):
        return True
    most = 2 * len(state.level)
    if engine.prefill == s.PREFILL_SEPARATE:
        most += clock[s.TAIL] - clock[s.VISIBLE]
    return clock[s.NUM_GAPS] + most > len(state.gaps)
