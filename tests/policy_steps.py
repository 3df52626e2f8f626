"""Steps for policies to decide on: by hand, or drawn at random."""

import numpy as np
from hypothesis import strategies as st

from dspark_sim.policies import BelievedCost, SchedulerView

SIXTEENTHS = st.integers(0, 16).map(lambda n: n / 16)  # exact, with many ties, 0 and 1
NEARLY_EQUAL = st.integers(0, 9).map(lambda n: 0.75 + n / 2**16)
CONFIDENCE = st.one_of(SIXTEENTHS, NEARLY_EQUAL, st.floats(0.0, 1.0))


def step_view(
    confidence,
    verify_ns,
    *,
    draft_len=None,
    history=None,
    fixed_ns=0,
    draft_ns=None,
    prefill_tokens=0,
    num_sampling=None,
):
    """Return the view of one step; a new request has survival 1 in its history."""
    confidence = np.array(confidence, dtype=np.float64)
    num, gamma = confidence.shape
    lengths = np.full(num, gamma) if draft_len is None else np.array(draft_len)
    confidence[np.arange(gamma) >= lengths[:, None]] = 0.0
    draft = np.zeros((num + 1, gamma + 1)) if draft_ns is None else draft_ns
    cost = BelievedCost(
        np.array(verify_ns, dtype=np.int64), np.array(draft, dtype=np.int64), fixed_ns
    )
    return SchedulerView(
        time_s=0.0,
        request=np.arange(num),
        context_tokens=np.full(num, 100),
        output_tokens=np.full(num, 10),
        decode_steps=np.full(num, 3),
        last_verify_len=np.full(num, -1),
        last_accepted=np.full(num, -1),
        history=np.ones((num, 3, gamma)) if history is None else np.array(history),
        prefill_tokens=prefill_tokens,
        num_sampling=num if num_sampling is None else num_sampling,
        num_waiting=0,
        cost=cost,
        max_draft_len=gamma,
        draft_len=lengths.astype(np.int64),
        confidence=confidence,
    )


def blocks(num, gamma):
    """Confidences of `num` blocks, shape (num, gamma)."""
    flat = st.lists(CONFIDENCE, min_size=num * gamma, max_size=num * gamma)
    return flat.map(lambda values: np.array(values, dtype=np.float64).reshape(num, gamma))


def survivals(num, gamma):
    """Survival of `num` blocks, shape (num, gamma)."""
    return blocks(num, gamma).map(lambda confidence: np.cumprod(confidence, axis=1))


def costs(size):
    """Costs of 0 to size - 1 tokens: wild, or rising unevenly, so that long drafts may pay."""
    wild = st.lists(st.integers(1, 60), min_size=size, max_size=size)
    rises = st.lists(st.integers(-2, 8), min_size=size, max_size=size)
    return wild | rises.map(lambda r: np.maximum(10 + np.cumsum(r), 1).tolist())


@st.composite
def steps(draw, max_requests=6, max_gamma=5):
    """Any step: jagged costs that may end early, drafts of any length, prefill beside them."""
    num, gamma = draw(st.integers(1, max_requests)), draw(st.integers(1, max_gamma))
    prefill = draw(st.integers(0, 8))
    least = num + prefill + 1
    reach = draw(st.integers(least, least + num * gamma + 2))
    beyond = draw(st.integers(0, num * gamma + 2))
    draft_ns = draw(st.lists(st.integers(0, 30), min_size=gamma + 1, max_size=gamma + 1))
    return step_view(
        draw(blocks(num, gamma)),
        draw(costs(reach)) + [-1] * beyond,
        draft_len=draw(st.lists(st.integers(0, gamma), min_size=num, max_size=num)),
        history=draw(survivals(3 * num, gamma)).reshape(num, 3, gamma),
        fixed_ns=draw(st.integers(0, 30)),
        draft_ns=np.outer(np.arange(1, num + 2), draft_ns),
        prefill_tokens=prefill,
        num_sampling=num + draw(st.integers(0, 2)),
    )
