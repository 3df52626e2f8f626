"""The state of one replica as a handful of arrays, one row per quantity.

N requests, S slots (requests that may run at once), γ longest draft. All times are int64
nanoseconds, all counts int64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dspark_sim.acceptance.kernels import ring_size
from dspark_sim.policies.search import Scratch, new_scratch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

# Rows of `requests` (…, N)
(
    PROMPT,
    OUTPUT,
    ARRIVAL,
    READY,
    ADMITTED,
    FIRST_TOKEN,
    FINISH,
    LAST_EMIT,
    EMITTED,
    STEPS,
    DRAFTED,
    VERIFIED,
    ACCEPTED,
    PREEMPTED,
) = range(14)
NUM_REQUEST_ROWS = 14

# Rows of `slots` (…, S)
(
    REQUEST,
    PREFILLED,
    PREFILL_TARGET,
    CHUNK,
    BLOCKS,
    LAST_VERIFY,
    LAST_ACCEPTED,
    HISTORY,
    ORDER,
    FREE,
) = range(10)
NUM_SLOT_ROWS = 10

# Rows of `rows` (…, S): the decoding requests of the step, in order of admission
(
    ROW_SLOT,
    ROW_DRAFT,
    ROW_ACCEPTED,
    ROW_VERIFY,
    ROW_LAST_VERIFY,
    ROW_LAST_ACCEPTED,
) = range(6)
NUM_ROW_ROWS = 6

# Entries of `clock`
(
    NOW,
    RUNNING,
    NUM_FREE,
    HEAD,
    VISIBLE,
    TAIL,
    STACKED,
    KV_FREE,
    COMPLETED,
    ISSUED,
    NUM_STEPS,
    NUM_GAPS,
    WINDOW,
    WINDOW_NEXT,
    DECODES,
    PREFILL_TOKENS,
    PREFILL_REQUESTS,
    SAMPLING,
    BAD_TOKENS,
    RECORD_EVERY,
    DECODE_KV,
    CHUNK_KV,
) = range(22)
NUM_CLOCK = 22

# Entries of `counters`; `window` holds them as they stood when the window opened and closed
(
    C_TIME,
    C_GAPS,
    C_TOKENS,
    C_COMMITTED,
    C_REQUEST_STEPS,
    C_DRAFTS,
    C_DRAFTED,
    C_VERIFIED,
    C_ACCEPTED,
    C_STEPS,
    C_DECODE_STEPS,
    C_EAGER,
    C_EXTENDED,
    C_BATCH_TOKENS,
    C_PREFILL_TOKENS,
    C_PREEMPTIONS,
    C_COMPLETED,
    C_BUSY_NS,
    C_KV_BLOCK_NS,
    C_RUNNING_NS,
    C_CLAMPED,
    C_KV_WAITS,
    C_SLOT_WAITS,
    C_OVERHEAD_NS,
    C_DRAFT_NS,
    C_CONTEXT_NS,
    C_PADDING_NS,
    C_PASS_NS,
    C_PREFILL_NS,
    C_REJECTED_NS,
    C_COMMITTED_NS,
) = range(31)
NUM_COUNTERS = 31

# Columns of a step record
STEP_COLUMNS = (
    "start_ns",
    "step_ns",
    "num_requests",
    "prefill_tokens",
    "batch_tokens",
    "draft_tokens",
    "verify_tokens",
    "accepted_tokens",
    "output_tokens",
    "num_waiting",
    "kv_blocks",
    "eager",
)

PREFILL_NONE, PREFILL_CHUNKED, PREFILL_SEPARATE = 0, 1, 2
DONE, RECORDS_FULL, OUT_OF_RANGE, HORIZON, READY_TO_DRAFT = range(5)
KEPT = 4  # drafts whose survivals are kept of a request, the live one included; a power of two
NEVER = np.iinfo(np.int64).max
FIRST_STEPS = 2**10  # room for records of steps to begin with
MOST_STEPS = 2**20  # records of a long run: beyond, every second, fourth, ... step is kept


class Engine(NamedTuple):
    """What does not change in a run: limits, loads and the true cost of a step."""

    seed: int
    gamma: int
    max_running: int
    max_batch_tokens: int
    block_size: int
    kv_blocks: int
    concurrency: int  # 0: open loop
    prefill: int
    record_steps: bool
    window_start_ns: int  # open loop only
    window_end_ns: int
    overhead_ns: int
    context_ns: float  # per KV token read
    draft_context_ns: float
    verify_ns: Ints  # (M + 1,)
    exact_ns: Ints  # (M + 1,), verify without the padding to the captured size
    pass_ns: int  # the cheapest target pass
    draft_ns: Ints  # (S + 1, γ + 1)
    request_ns: Ints  # (S + 1,)
    eager: NDArray[np.bool_]  # (M + 1,)
    extended: NDArray[np.bool_]  # (M + 1,)
    clamped: NDArray[np.bool_]  # (M + 1,)
    extended_requests: NDArray[np.bool_]  # (S + 1,)
    prefill_ns: Ints  # separate prefill: cost by tokens; else empty


class Rule(NamedTuple):
    """The policy as the kernel needs it, with its belief about costs."""

    rule: int
    lag: int
    want_confidence: bool
    params: Floats
    memory: Floats
    switches: Floats
    overhead_ns: int
    context_ns: float
    draft_context_ns: float
    verify_ns: Ints
    draft_ns: Ints
    request_ns: Ints


class State(NamedTuple):
    """What changes. `queue` is a ring: waiting requests, then those yet to come, by time."""

    requests: Ints  # (14, N)
    slots: Ints  # (10, S)
    key: NDArray[np.uint64]  # (S,)
    level: Floats  # (S,)
    history: Floats  # (S, KEPT, γ), a ring; HISTORY is the place of the newest
    cursor: Ints  # (S, 3)
    odds: Floats  # (S, ring_size(γ))
    rows: Ints  # (6, S)
    confidence: Floats  # (S, γ)
    survival: Floats  # (S, γ)
    stale: Floats  # (S, γ)
    decision: Ints  # (5,) what the rules are told of the step
    scratch: Scratch  # of the rules
    queue: Ints  # (N + 1,)
    stack: Ints  # (S,) preempted requests, the next to resume on top
    workers: Ints  # (W,) when each prefill worker is free
    clock: Ints
    counters: Ints
    window: Ints  # (2, counters)
    steps: Ints  # (capacity, columns)
    gaps: Ints  # (capacity, 2): gap in ns, number of chunks


def new_state(engine: Engine, prompt: Ints, output: Ints, num_workers: int) -> State:
    """Return the state before the first arrival."""
    num, slots, gamma = len(prompt), engine.max_running, max(engine.gamma, 1)
    requests = np.zeros((NUM_REQUEST_ROWS, num), dtype=np.int64)
    requests[PROMPT], requests[OUTPUT] = prompt, output
    requests[ARRIVAL : LAST_EMIT + 1] = -1
    slot_rows = np.zeros((NUM_SLOT_ROWS, slots), dtype=np.int64)
    slot_rows[FREE] = np.arange(slots)[::-1]
    clock = np.zeros(NUM_CLOCK, dtype=np.int64)
    clock[NUM_FREE], clock[KV_FREE] = slots, engine.kv_blocks
    clock[RECORD_EVERY] = 1
    num_steps = FIRST_STEPS if engine.record_steps else 0
    return State(
        requests=requests,
        slots=slot_rows,
        key=np.zeros(slots, dtype=np.uint64),
        level=np.zeros(slots),
        history=np.ones((slots, KEPT, gamma)),
        cursor=np.zeros((slots, 3), dtype=np.int64),
        odds=np.zeros((slots, ring_size(gamma))),
        rows=np.zeros((NUM_ROW_ROWS, slots), dtype=np.int64),
        confidence=np.zeros((slots, gamma)),
        survival=np.zeros((slots, gamma)),
        stale=np.zeros((slots, gamma)),
        decision=np.zeros(5, dtype=np.int64),
        scratch=new_scratch(slots, gamma),
        queue=np.zeros(num + 1, dtype=np.int64),
        stack=np.zeros(slots, dtype=np.int64),
        workers=np.zeros(max(num_workers, 1), dtype=np.int64),
        clock=clock,
        counters=np.zeros(NUM_COUNTERS, dtype=np.int64),
        window=np.zeros((2, NUM_COUNTERS), dtype=np.int64),
        steps=np.zeros((num_steps, len(STEP_COLUMNS)), dtype=np.int64),
        gaps=np.zeros((4096 + 2 * slots, 2), dtype=np.int64),
    )


def with_room(state: State, engine: Engine) -> State:
    """Return the state with room for more records: of steps or, where there is some, of gaps.

    Steps beyond `MOST_STEPS` take the room of every second one before them.
    """
    clock, steps = state.clock, state.steps
    if not engine.record_steps or clock[NUM_STEPS] < len(steps):
        return state._replace(gaps=_doubled(state.gaps))
    if len(steps) < MOST_STEPS:
        return state._replace(steps=_doubled(steps))
    kept = steps[: clock[NUM_STEPS] : 2].copy()
    steps[: len(kept)] = kept
    clock[NUM_STEPS] = len(kept)
    clock[RECORD_EVERY] *= 2
    return state


def _doubled(table: Ints) -> Ints:
    grown = np.empty((2 * len(table), table.shape[1]), dtype=table.dtype)
    grown[: len(table)] = table
    return grown
