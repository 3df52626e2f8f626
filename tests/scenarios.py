"""Random small scenarios for the simulator's tests: traces, profiles, laws, loads, policies."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from dspark_sim.acceptance import AcceptanceSource, geometric, load_acceptance
from dspark_sim.config import Scenario
from dspark_sim.policies import load_policy, policy_draft_len
from dspark_sim.simulator import Inputs, simulate
from dspark_sim.throughput import EngineProfile
from dspark_sim.trace import Trace

BUILT_IN = [
    "none",
    "fixed:1",
    "fixed:2,gamma=4",
    "fixed:5",
    "threshold:0.6",
    "threshold:0.3,on=survival",
    "dspark",
    "dspark-async",
    "dspark-async:lag=1",
    "dspark-async:lag=0",
    "vllm",
    "vllm:lag=3",
    "vllm:min=1,guard=0.01,fill=tier,every=3",
    "threshold:auto,min=1",
    "sglang",
    "trt:budgets=tiers,drain=1,tail=2",
    "atom",
    "k-table:1-2:4,3-3:1,4-9:0",
    "k-table:1-3:2,4-9:1,adaptive=yes",
    "dcut:lag=1",
    "ratio:0.5",
    "tetris:1,extra=2,from=3",
    "knee",
    "smartspec",
    "dsd-online:ks=0+1+3",
    "sgl-ema:every=2,warmup=1",
    "gate-off:1,window=2",
    "sticky-off:1,probe=2",
    "dspark-async:conf=ema,lag=1",
    "forecast",
    "oracle",
]


@dataclass(frozen=True)
class Case:
    """One simulation with every input in memory."""

    scenario: Scenario
    trace: Trace
    profile: EngineProfile
    source: AcceptanceSource

    def policy(self):
        return load_policy(self.scenario.policy, self.scenario.num_speculative_tokens)

    @property
    def gamma(self):
        return policy_draft_len(self.policy(), self.scenario.num_speculative_tokens)

    def run(self, policy=None, **options):
        return simulate(
            self.scenario, Inputs(self.trace, self.profile, self.source, policy), **options
        )

    def __repr__(self):
        table = self.trace.requests[["arrival_s", "prompt_tokens", "output_tokens"]]
        header = {k: v for k, v in self.profile.header().items() if k != "provenance"}
        changed = self.scenario.model_dump(exclude_defaults=True)
        return f"Case({changed}, {header}, {table.to_numpy().tolist()}, {self.source.name})"

    def _repr_pretty_(self, printer, cycle):
        printer.text(repr(self))


def make_trace(arrival_s, prompt, output):
    return Trace(
        pd.DataFrame({"arrival_s": arrival_s, "prompt_tokens": prompt, "output_tokens": output})
    )


def make_profile(**changes):
    """Return a small profile: 1 ms per step, 0.1 ms per token, no drafter cost, no limits."""
    sizes = np.arange(1, 513)
    keys = {
        "name": "toy",
        "engine": "none",
        "model": "none",
        "gpu": "none",
        "num_gpus": 1,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 512,
        "kv_tokens": None,
        "lookup": "linear",
        "drafter": "block",
        "provenance": {"source": "a test"},
        "verify": pd.DataFrame({"batch_tokens": sizes, "ms": 1.0 + 0.1 * sizes}),
        "draft": pd.DataFrame({"num_requests": [1, 64], "draft_len": [1, 1], "ms": [0.0, 0.0]}),
    }
    return EngineProfile(**(keys | changes))


def _cost(draw, low, high):
    return draw(st.integers(low, high)) / 1000


@st.composite
def profiles(draw, gamma, tightest_kv):
    """Draw a profile with captured steps and a cliff, every term of the step, and small limits."""
    edges = sorted(draw(st.sets(st.integers(1, 40), min_size=1, max_size=5)))
    limit = edges[-1]
    beyond = [limit + n for n in sorted(draw(st.sets(st.integers(1, 30), max_size=2)))]
    sizes = [*edges, *beyond, *([] if limit >= 96 else [96])]
    ms = np.cumsum([_cost(draw, 0, 900) for _ in sizes]) + 1
    ms[np.array(sizes) > limit] += draw(st.sampled_from([0, 3, 20]))
    block_size = draw(st.sampled_from([1, 4, 16]))
    least = -(-tightest_kv // block_size) * block_size
    kv_tokens = draw(st.sampled_from([None, least, least, least + least // 4, 2 * least]))
    autoregressive = draw(st.booleans())
    draft_rows = pd.DataFrame({"num_requests": [1, 3, 32], "draft_len": 2, "ms": 0.0})
    draft_rows["ms"] = np.cumsum([_cost(draw, 0, 400) for _ in range(3)])
    return make_profile(
        max_num_seqs=draw(st.sampled_from([1, 2, 3, 6])),
        max_num_batched_tokens=draw(st.integers(1 + gamma, 96) | st.integers(48, 96)),
        kv_tokens=kv_tokens,
        block_size=block_size,
        capture_limit=limit,
        lookup="captured",
        draft_lookup=draw(st.sampled_from(["captured", "linear"])),
        drafter="autoregressive" if autoregressive else "block",
        overhead_ms=_cost(draw, 0, 500),
        context_ms_per_kv_token=draw(st.sampled_from([0.0, 1e-3, 3.7e-5])),
        draft_context_ms_per_kv_token=draw(st.sampled_from([0.0, 1e-4])),
        verify=pd.DataFrame({"batch_tokens": sizes, "ms": ms}),
        draft=draft_rows,
        requests=draw(
            st.none() | st.just(pd.DataFrame({"num_requests": [1, 2, 32], "ms": [0.1, 0.2, 0.9]}))
        ),
        prefill=draw(
            st.none() | st.just(pd.DataFrame({"tokens": [1, 10, 200], "ms": [0.5, 1.0, 9.0]}))
        ),
    )


@st.composite
def traces(draw):
    """Draw up to 12 requests with ties in arrival, outputs of one token and some long prompts."""
    n = draw(st.integers(1, 12))
    longest = draw(st.sampled_from([5, 20, 120]))
    outputs = draw(st.sampled_from([[1, 1, 2, 3, 7, 15, 30], [20, 25, 30]]))
    gaps = draw(st.lists(st.sampled_from([0, 0, 1, 2, 5, 40]), min_size=n, max_size=n))
    prompt = draw(st.lists(st.integers(1, longest), min_size=n, max_size=n))
    output = draw(st.lists(st.sampled_from(outputs), min_size=n, max_size=n))
    return make_trace(np.cumsum(gaps) / 1000, prompt, output)


@st.composite
def cases(draw, policies=tuple(BUILT_IN)):
    """Draw a whole simulation."""
    policy = draw(st.sampled_from(policies))
    gamma = draw(st.integers(1, 5))
    trace = draw(traces())
    load = draw(st.sampled_from(["open", "closed"]))
    scenario = Scenario(
        profile="toy",
        policy=policy,
        num_speculative_tokens=gamma,
        concurrency=draw(st.integers(1, 6)) if load == "closed" else None,
        prefill={
            "mode": draw(st.sampled_from(["chunked", "separate", "none"])),
            "workers": draw(st.integers(1, 3)),
        },
        belief={
            "table": draw(st.sampled_from(["as-is", "as-is", "flat", "monotone"])),
            "draft": draw(st.booleans()),
            "context": draw(st.booleans()),
        },
        seed=draw(st.integers(0, 5)),
    )
    used = policy_draft_len(load_policy(policy, gamma), gamma)
    rows = trace.requests
    tightest = int((rows["prompt_tokens"] + rows["output_tokens"]).max()) + used + 1
    profile = draw(profiles(used, tightest))
    source = draw(
        st.sampled_from([load_acceptance("chat-dspark"), geometric(2.5, 7), geometric(6.0, 7)])
    )
    return Case(scenario, trace, profile, source)
