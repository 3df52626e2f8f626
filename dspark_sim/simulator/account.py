"""Kernel that splits the time of each step into what it was spent on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dspark_sim.jit import kernel_inlined
from dspark_sim.simulator import state as s

if TYPE_CHECKING:
    from dspark_sim.simulator.state import Engine, State


@kernel_inlined
def account(
    engine: Engine, state: State, batch_tokens: int, drafting: int, longest: int, step_ns: int
) -> None:
    """Add a step's time to the counters of its parts, before its tokens are committed.

    Of verify[M], what the captured size costs more than M itself is padding, and the cheapest
    target pass of the table is the pass. The rest is shared by the M tokens alike: the anchors and
    accepted drafts (committed), the rejected drafts, the prompt tokens. A step without a decoding
    request is prefill but for its draft, overhead and padding. The parts add up to `step_ns`.
    """
    clock, counters, rows = state.clock, state.counters, state.rows
    rejected = 0
    for r in range(clock[s.DECODES]):
        rejected += max(rows[s.ROW_VERIFY, r] - rows[s.ROW_ACCEPTED, r], 0)
    verify_ns, exact_ns = engine.verify_ns[batch_tokens], engine.exact_ns[batch_tokens]
    requests = clock[s.DECODES] + clock[s.PREFILL_REQUESTS]
    overhead_ns = engine.overhead_ns + engine.request_ns[requests]
    draft_ns = engine.draft_ns[drafting, longest]
    context_ns = step_ns - overhead_ns - draft_ns - verify_ns
    prefill_ns = 0
    if context_ns > 0:
        decode_kv, chunk_kv = clock[s.DECODE_KV], clock[s.CHUNK_KV]
        if drafting > 0:
            own = int(np.rint(engine.draft_context_ns * (decode_kv + chunk_kv)))
            draft_ns += own
            context_ns -= own
        prefill_ns = int(np.rint(context_ns * (chunk_kv / (decode_kv + chunk_kv))))
        context_ns -= prefill_ns
    pass_ns = min(engine.pass_ns, exact_ns) if clock[s.DECODES] > 0 else 0
    shared_ns = exact_ns - pass_ns
    prompt_ns = int(np.rint(shared_ns * (clock[s.PREFILL_TOKENS] / max(batch_tokens, 1))))
    rejected_ns = int(np.rint(shared_ns * (rejected / max(batch_tokens, 1))))
    counters[s.C_OVERHEAD_NS] += overhead_ns
    counters[s.C_DRAFT_NS] += draft_ns
    counters[s.C_CONTEXT_NS] += context_ns
    counters[s.C_PADDING_NS] += verify_ns - exact_ns
    counters[s.C_PASS_NS] += pass_ns
    counters[s.C_PREFILL_NS] += prefill_ns + prompt_ns
    counters[s.C_REJECTED_NS] += rejected_ns
    counters[s.C_COMMITTED_NS] += shared_ns - prompt_ns - rejected_ns
