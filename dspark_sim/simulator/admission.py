"""Kernels of the queue: arrivals, admission, KV blocks, preemption and completion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark_sim.acceptance.luck import DIFFICULTY, normal, request_key
from dspark_sim.jit import kernel, kernel_inlined
from dspark_sim.simulator import state as s

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dspark_sim.simulator.state import Engine, State


@kernel
def issue(engine: Engine, state: State, request: int, now: int) -> None:
    """Let a request arrive: it waits from now on, or from the end of its separate prefill."""
    state.requests[s.ARRIVAL, request] = now
    state.clock[s.ISSUED] += 1
    ready = now
    if engine.prefill == s.PREFILL_SEPARATE:
        worker = 0
        for w in range(1, len(state.workers)):
            if state.workers[w] < state.workers[worker]:
                worker = w
        start = max(now, state.workers[worker])
        ready = start + engine.prefill_ns[state.requests[s.PROMPT, request]]
        state.workers[worker] = ready
    _enqueue(state, request, ready)


@kernel
def issue_all(
    engine: Engine, state: State, requests: NDArray[np.int64], arrival_ns: NDArray[np.int64]
) -> None:
    """Let these requests (n,) of an open loop arrive at their times; `arrival_ns` has all (N,)."""
    for request in requests:
        issue(engine, state, request, arrival_ns[request])


@kernel
def _enqueue(state: State, request: int, ready: int) -> None:
    clock, queue = state.clock, state.queue
    state.requests[s.READY, request] = ready
    place = clock[s.TAIL]
    while place > clock[s.VISIBLE]:
        before = queue[(place - 1) % len(queue)]
        if state.requests[s.READY, before] <= ready:
            break
        queue[place % len(queue)] = before
        place -= 1
    queue[place % len(queue)] = request
    clock[s.TAIL] += 1


@kernel_inlined
def ingest(engine: Engine, state: State, until: int) -> None:
    """Move requests that are ready by `until` from the future into the queue, in order of time."""
    clock, queue = state.clock, state.queue
    while clock[s.VISIBLE] < clock[s.TAIL]:
        request = queue[clock[s.VISIBLE] % len(queue)]
        ready = state.requests[s.READY, request]
        if ready > until:
            break
        clock[s.VISIBLE] += 1
        if engine.prefill == s.PREFILL_SEPARATE and emit_prefill_token(state, request, ready):
            for place in range(clock[s.VISIBLE] - 1, clock[s.HEAD], -1):
                queue[place % len(queue)] = queue[(place - 1) % len(queue)]
            clock[s.HEAD] += 1
            if state.requests[s.ADMITTED, request] < 0:
                state.requests[s.ADMITTED, request] = ready
            complete(engine, state, request, ready)


@kernel_inlined
def next_start(state: State) -> int:
    """Return when the next step can begin, given the requests issued so far."""
    clock = state.clock
    idle = clock[s.RUNNING] == 0 and clock[s.STACKED] == 0 and clock[s.HEAD] == clock[s.VISIBLE]
    if idle and clock[s.VISIBLE] < clock[s.TAIL]:
        following = state.queue[clock[s.VISIBLE] % len(state.queue)]
        return max(clock[s.NOW], state.requests[s.READY, following])
    return clock[s.NOW]


@kernel_inlined
def add_gap(state: State, request: int, now: int) -> None:
    """Record the time since the request's last chunk of output, runs of equal gaps as one row."""
    clock, gap = state.clock, now - state.requests[s.LAST_EMIT, request]
    last = clock[s.NUM_GAPS] - 1
    if last >= state.counters[s.C_GAPS] and state.gaps[last, 0] == gap:
        state.gaps[last, 1] += 1
    else:
        state.gaps[last + 1, 0] = gap
        state.gaps[last + 1, 1] = 1
        clock[s.NUM_GAPS] += 1
    state.requests[s.LAST_EMIT, request] = now


@kernel
def emit_prefill_token(state: State, request: int, now: int) -> bool:
    """Emit the token that a prefill ends in; return whether it was the request's last."""
    requests = state.requests
    if requests[s.EMITTED, request] == 0:
        requests[s.FIRST_TOKEN, request] = now
        requests[s.LAST_EMIT, request] = now
    else:
        add_gap(state, request, now)
    requests[s.EMITTED, request] += 1
    state.counters[s.C_TOKENS] += 1
    return requests[s.EMITTED, request] == requests[s.OUTPUT, request]


@kernel
def complete(engine: Engine, state: State, request: int, now: int) -> None:
    """Finish a request; in a closed loop the next one arrives, and the window may open or close."""
    clock = state.clock
    state.requests[s.FINISH, request] = now
    clock[s.COMPLETED] += 1
    state.counters[s.C_COMPLETED] += 1
    if engine.concurrency > 0:
        if clock[s.COMPLETED] == engine.concurrency:
            clock[s.WINDOW_NEXT] = 1
        if clock[s.ISSUED] < state.requests.shape[1]:
            issue(engine, state, clock[s.ISSUED], now)
            if clock[s.ISSUED] == state.requests.shape[1] and clock[s.WINDOW_NEXT] == 1:
                clock[s.WINDOW_NEXT] = 2


@kernel_inlined
def _blocks(engine: Engine, state: State, request: int) -> int:
    """Return the KV blocks a request holds: its context, a full draft and the bonus token.

    Without prefill the first token comes at admission, hence counts from there on.
    """
    emitted = state.requests[s.EMITTED, request]
    if engine.prefill == s.PREFILL_NONE:
        emitted = max(emitted, 1)
    tokens = state.requests[s.PROMPT, request] + emitted
    return (tokens + engine.gamma + engine.block_size) // engine.block_size


@kernel
def release(state: State, slot: int) -> None:
    """Give back a slot and its KV blocks; the caller takes it out of the running order."""
    clock = state.clock
    clock[s.KV_FREE] += state.slots[s.BLOCKS, slot]
    state.slots[s.FREE, clock[s.NUM_FREE]] = slot
    clock[s.NUM_FREE] += 1


@kernel_inlined
def grow(engine: Engine, state: State) -> None:
    """Reserve KV for the next step, oldest request first; preempt the youngest where it lacks."""
    clock, slots = state.clock, state.slots
    place = 0
    while place < clock[s.RUNNING]:
        slot = slots[s.ORDER, place]
        need = _blocks(engine, state, slots[s.REQUEST, slot]) - slots[s.BLOCKS, slot]
        while need > clock[s.KV_FREE] and place < clock[s.RUNNING]:
            _preempt_youngest(engine, state)
        if place < clock[s.RUNNING]:
            slots[s.BLOCKS, slot] += need
            clock[s.KV_FREE] -= need
        place += 1


@kernel
def _preempt_youngest(engine: Engine, state: State) -> None:
    clock, slots = state.clock, state.slots
    clock[s.RUNNING] -= 1
    slot = slots[s.ORDER, clock[s.RUNNING]]
    request = slots[s.REQUEST, slot]
    release(state, slot)
    state.requests[s.PREEMPTED, request] += 1
    state.counters[s.C_PREEMPTIONS] += 1
    if engine.prefill == s.PREFILL_SEPARATE:
        tokens = state.requests[s.PROMPT, request] + state.requests[s.EMITTED, request]
        _enqueue(state, request, clock[s.NOW] + engine.prefill_ns[tokens])
    else:
        state.stack[clock[s.STACKED]] = request
        clock[s.STACKED] += 1


@kernel_inlined
def schedule_prefill(engine: Engine, state: State) -> int:
    """Hand the token budget to decodes first, then to prefills under way; return what is left."""
    clock, slots = state.clock, state.slots
    budget = engine.max_batch_tokens
    for place in range(clock[s.RUNNING]):
        slot = slots[s.ORDER, place]
        slots[s.CHUNK, slot] = 0
        if slots[s.PREFILLED, slot] == slots[s.PREFILL_TARGET, slot]:
            budget -= 1 + engine.gamma
    for place in range(clock[s.RUNNING]):
        slot = slots[s.ORDER, place]
        missing = slots[s.PREFILL_TARGET, slot] - slots[s.PREFILLED, slot]
        if missing > 0:
            slots[s.CHUNK, slot] = min(budget, missing)
            budget -= slots[s.CHUNK, slot]
    return budget


@kernel_inlined
def admit(engine: Engine, state: State, budget: int) -> None:
    """Admit waiting requests first come, first served, while slots, KV and tokens allow."""
    clock = state.clock
    least = 1 if engine.prefill == s.PREFILL_CHUNKED else 1 + engine.gamma
    while clock[s.STACKED] > 0 or clock[s.HEAD] < clock[s.VISIBLE]:
        resumed = clock[s.STACKED] > 0
        if resumed:
            request = state.stack[clock[s.STACKED] - 1]
        else:
            request = state.queue[clock[s.HEAD] % len(state.queue)]
        blocks = _blocks(engine, state, request)
        full, short = clock[s.RUNNING] == engine.max_running, blocks > clock[s.KV_FREE]
        if full or short or budget < least:
            state.counters[s.C_SLOT_WAITS] += full
            state.counters[s.C_KV_WAITS] += short and not full
            break
        if resumed:
            clock[s.STACKED] -= 1
        else:
            clock[s.HEAD] += 1
        if state.requests[s.ADMITTED, request] < 0:
            state.requests[s.ADMITTED, request] = clock[s.NOW]
        if (
            engine.prefill == s.PREFILL_NONE
            and state.requests[s.EMITTED, request] == 0
            and emit_prefill_token(state, request, clock[s.NOW])
        ):
            complete(engine, state, request, clock[s.NOW])
            ingest(engine, state, clock[s.NOW])
        else:
            budget -= _occupy_slot(engine, state, request, budget, blocks)


@kernel
def _occupy_slot(engine: Engine, state: State, request: int, budget: int, blocks: int) -> int:
    """Give a request a slot; return the tokens of this step that it takes."""
    clock, slots, requests = state.clock, state.slots, state.requests
    clock[s.NUM_FREE] -= 1
    slot = slots[s.FREE, clock[s.NUM_FREE]]
    slots[s.ORDER, clock[s.RUNNING]] = slot
    clock[s.RUNNING] += 1
    clock[s.KV_FREE] -= blocks
    key = request_key(engine.seed, request)
    state.key[slot] = key
    state.level[slot] = normal(key, -1, DIFFICULTY)
    state.cursor[slot, 0] = 0
    state.cursor[slot, 1] = 0
    state.cursor[slot, 2] = -1
    slots[s.REQUEST, slot] = request
    slots[s.BLOCKS, slot] = blocks
    slots[s.LAST_VERIFY, slot] = -1
    slots[s.LAST_ACCEPTED, slot] = -1
    slots[s.HISTORY, slot] = 0
    state.history[slot] = 1.0
    slots[s.PREFILLED, slot] = 0
    slots[s.PREFILL_TARGET, slot] = 0
    slots[s.CHUNK, slot] = 0
    if engine.prefill != s.PREFILL_CHUNKED:
        return 1 + engine.gamma
    target = requests[s.PROMPT, request] + requests[s.EMITTED, request]
    slots[s.PREFILL_TARGET, slot] = target
    slots[s.CHUNK, slot] = min(budget, target)
    return slots[s.CHUNK, slot]
