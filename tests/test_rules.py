import dataclasses

import numpy as np
import policy_twins as twins
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_steps import step_view, steps

from dspark_sim.core import UserError
from dspark_sim.policies import load_policy
from dspark_sim.policies.kernel_policy import ORACLE, Decision
from dspark_sim.policies.rules import decide
from dspark_sim.policies.search import new_scratch
from dspark_sim.policies.switches import AS_IS

TWINS = {
    "none": lambda view: twins.fixed(view, 0),
    "fixed:0": lambda view: twins.fixed(view, 0),
    "fixed:2": lambda view: twins.fixed(view, 2),
    "fixed:3,gamma=7": lambda view: twins.fixed(view, 3),
    "threshold:0": lambda view: twins.threshold(view, 0.0),
    "threshold:0.5": lambda view: twins.threshold(view, 0.5),
    "threshold:1": lambda view: twins.threshold(view, 1.0),
    "threshold:0.5,on=survival": lambda view: twins.threshold(view, 0.5, "survival"),
    "dspark": twins.algorithm_1,
    "dspark-async": lambda view: twins.dspark_async(view, 2),
    "dspark-async:lag=0": lambda view: twins.dspark_async(view, 0),
    "dspark-async:lag=1": lambda view: twins.dspark_async(view, 1),
    "dspark-async:lag=3": lambda view: twins.dspark_async(view, 3),
    "vllm": lambda view: twins.vllm(view, 1),
    "vllm:lag=0": lambda view: twins.vllm(view, 0),
    "vllm:lag=3": lambda view: twins.vllm(view, 3),
    "threshold:0.5,on=rejection": lambda view: twins.threshold(view, 0.5, "survival"),
    "threshold:auto": twins.auto_threshold,
    "threshold:auto,low=0.3,high=0.6": lambda view: twins.auto_threshold(view, 0.3, 0.6),
    "sglang": lambda view: twins.sglang(view, 2),
    "sglang:min=2,guard=0.1,tie=most": lambda view: twins.sglang(
        view, 2, least=2, guard=0.1, most=True
    ),
    "trt": lambda view: twins.trt(view, 0),
    "trt:budgets=tiers,lag=1,guard=0.04": lambda view: twins.trt(view, 1, tiers=True, guard=0.04),
    "trt:drain=1.5,tail=1,guard=0": lambda view: twins.trt(view, 0, 1.5, 1, guard=0.0),
    "atom": lambda view: twins.atom(view, 2),
    "atom:lag=0,buckets=1+2+4": lambda view: twins.atom(view, 0, (1, 2, 4)),
    "k-table:1-2:4,4-9:1,adaptive=yes": lambda view: twins.k_table(
        view, min(4 if view.num_requests < 4 else 1, view.max_draft_len)
    ),
    "k-table:1-3:2": lambda view: view.draft_len.tolist(),
    "dcut": lambda view: twins.dcut(view, 0),
    "dcut:lag=1": lambda view: twins.dcut(view, 1),
    "ratio:0.3": lambda view: twins.ratio(view, 0.3),
    "ratio:0.75,width=2": lambda view: twins.ratio(view, 0.75, 2),
    "tetris:2": lambda view: twins.tetris(view, 2),
    "tetris:1,extra=3,from=3": lambda view: twins.tetris(view, 1, 3),
    "knee": twins.knee,
    "knee:9": lambda view: twins.knee(view, 9),
    "vllm:min=1,fill=tier": lambda view: twins.filled(view, twins.vllm(view, 1, least=1)),
    "dspark-async:guard=0.05,tie=most": lambda view: twins.dspark_async(
        view, 2, guard=0.05, most=True
    ),
    "threshold:0.5,min=2": lambda view: np.maximum(
        twins.threshold(view, 0.5), np.minimum(view.draft_len, 2)
    ).tolist(),
    "dspark:fill=tier": lambda view: twins.filled(view, twins.algorithm_1(view)),
    "fixed:1,gamma=5,fill=tier": lambda view: twins.filled(view, twins.fixed(view, 1)),
}


@pytest.mark.parametrize("spec", TWINS)
@settings(max_examples=40)
@given(view=steps())
def test_the_kernel_decides_as_its_plain_twin(spec, view):
    assert load_policy(spec).verify_lengths(view).tolist() == TWINS[spec](view)


@given(steps(), st.data())
def test_the_oracle_decides_as_its_plain_twin(view, data):
    counts = [data.draw(st.integers(0, view.max_draft_len)) for _ in view.request]
    assert oracle_lengths(view, counts) == twins.oracle(view, counts)


@given(steps(), st.data())
def test_the_oracle_never_wastes_a_token(view, data):
    counts = [data.draw(st.integers(0, view.max_draft_len)) for _ in view.request]
    assert (np.array(oracle_lengths(view, counts)) <= counts).all()


def oracle_lengths(view, accepted):
    """Open the oracle's door: what the engine hands the kernel and no view holds."""
    num = view.num_requests
    longest = int(view.draft_len.max())
    draft_ns = view.cost.draft_ns[(view.draft_len > 0).sum(), longest]
    clock = [num, view.prefill_tokens, view.num_sampling, view.cost.fixed_ns, draft_ns]
    decision = Decision(
        clock=np.array(clock, dtype=np.int64),
        draft_len=view.draft_len,
        confidence=view.confidence,
        survival=view.survival,
        stale=view.survival,
        last_verify_len=view.last_verify_len,
        last_accepted=view.last_accepted,
        verify_ns=view.cost.verify_ns,
        memory=np.zeros(0),
        switches=np.array(AS_IS.packed()),
        accepted=np.array(accepted, dtype=np.int64),
        verify_len=np.full(num, 99),
        scratch=new_scratch(*view.confidence.shape),
    )
    decide(ORACLE, np.zeros(1), decision)
    return decision.verify_len.tolist()


def test_the_oracle_takes_the_fewest_tokens_on_a_tie_and_fills_position_by_position():
    # 3 / 30 = 5 / 50: two more tokens at the same rate are not worth their while.
    view = step_view([[0.5] * 3] * 3, [0, 9, 9, 30, 60, 50, 90])
    assert oracle_lengths(view, [1, 0, 2]) == [0, 0, 0]
    view = step_view([[0.5] * 3] * 3, [0, 9, 9, 30, 60, 45, 90])
    assert oracle_lengths(view, [0, 3, 3]) == [0, 1, 1]


def test_the_oracle_refuses_a_view_because_no_view_holds_outcomes():
    with pytest.raises(UserError, match="policy 'oracle' needs true outcomes"):
        load_policy("oracle").verify_lengths(step_view([[0.5]], [0, 1, 1]))


@given(st.sampled_from(list(TWINS)), steps())
def test_a_rule_verifies_no_more_than_was_drafted_and_leaves_the_view_alone(spec, view):
    before = {field.name: np.copy(getattr(view, field.name)) for field in array_fields(view)}
    lengths = load_policy(spec).verify_lengths(view)
    assert (lengths >= 0).all()
    assert (lengths <= view.draft_len).all()
    for name, value in before.items():
        assert np.array_equal(getattr(view, name), value)


def array_fields(view):
    return [f for f in dataclasses.fields(view) if isinstance(getattr(view, f.name), np.ndarray)]


@given(st.sampled_from(["dspark", "dspark-async", "vllm", "dspark-async:lag=0"]), steps())
def test_a_searching_rule_stays_where_its_cost_table_reaches(spec, view):
    batch = view.num_requests + view.prefill_tokens + load_policy(spec).verify_lengths(view).sum()
    assert view.cost.verify_ns[batch] >= 0


@pytest.mark.parametrize("spec", TWINS)
def test_a_step_without_decoding_requests_is_decided(spec):
    view = step_view(np.zeros((0, 4)), [5] * 20, prefill_tokens=8, num_sampling=1)
    assert load_policy(spec).verify_lengths(view).tolist() == []


@pytest.mark.parametrize("spec", TWINS)
def test_a_step_without_drafts_is_decided(spec):
    view = step_view(np.zeros((3, 0)), [5] * 20)
    assert load_policy(spec).verify_lengths(view).tolist() == [0, 0, 0]


@pytest.mark.parametrize(("spec", "rows"), [("dspark-async", 2), ("vllm", 1)])
@pytest.mark.parametrize("lag", [None, 1, 2, 3])
def test_the_budget_comes_from_as_many_steps_ago_as_the_lag_says(spec, rows, lag):
    # Worthwhile for one token only if the survival that is read is 1.
    history = np.zeros((1, 3, 1))
    history[0, (lag or rows) - 1, 0] = 1.0
    view = step_view([[0.0]], [0, 10, 15], history=history)
    named = spec if lag is None else f"{spec}:lag={lag}"
    assert load_policy(named).verify_lengths(view).tolist() == [1]
    history = 1.0 - history
    view = step_view([[0.0]], [0, 10, 15], history=history)
    assert load_policy(named).verify_lengths(view).tolist() == [0]


@pytest.mark.parametrize("spec", ["dspark-async", "vllm"])
def test_a_new_request_counts_survival_1_and_the_tokens_go_where_survival_is_high(spec):
    history = np.full((2, 3, 2), 0.1)
    history[0] = 1.0
    view = step_view([[0.2, 0.2], [0.9, 0.9]], [0, 9, 9, 11, 13, 20, 30], history=history)
    # The new first request makes two tokens seem worth it; the live order gives both to the other.
    assert load_policy(spec).verify_lengths(view).tolist() == [0, 2]


def test_vllm_counts_who_samples_and_leaves_overhead_out_of_its_ratio():
    # 2 sampling of 1 decoding: (2 + 1) / 14 < 2 / 9; with one: 2 / 14 > 1 / 9.
    costs = [0, 9, 14]
    one, two = (step_view([[1.0]], costs, num_sampling=n) for n in (1, 2))
    assert load_policy("vllm").verify_lengths(one).tolist() == [1]
    assert load_policy("vllm").verify_lengths(two).tolist() == [0]
    late = step_view([[1.0]], [0, 9, 19], fixed_ns=1_000)
    assert load_policy("vllm").verify_lengths(late).tolist() == [0]
    assert load_policy("dspark-async").verify_lengths(late).tolist() == [1]


def test_a_costly_draft_pass_makes_verifying_more_of_it_worthwhile():
    costs, free, costly = [0, 10, 25], np.zeros((2, 2)), np.full((2, 2), 40)
    for spec in ("dspark", "dspark-async", "vllm"):
        lengths = [
            load_policy(spec).verify_lengths(step_view([[0.9]], costs, draft_ns=draft)).tolist()
            for draft in (free, costly)
        ]
        assert lengths == [[0], [1]]


def test_prefill_tokens_take_the_cheap_places_of_the_batch():
    costs = [0, 10, 10, 10, 10, 100, 100]
    for spec in ("dspark", "dspark-async", "vllm"):
        lengths = [
            int(load_policy(spec).verify_lengths(
                step_view([[0.9, 0.9, 0.9]], costs, prefill_tokens=tokens)
            )[0])
            for tokens in (0, 2, 3)
        ]  # fmt: skip
        assert lengths == [3, 1, 0]
