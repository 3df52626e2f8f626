"""The engines' rules on cases worked out by hand from their definitions."""

from dataclasses import replace

import numpy as np
import pytest
from policy_steps import step_view

from dspark_sim.policies import load_policy
from dspark_sim.policies.knee import knee_of

FLAT = [0] + [10] * 40
FOURS = [0, *(10 * (1 + (m - 1) // 4) for m in range(1, 41))]  # captured sizes 4, 8, 12, …


def lengths(spec, view, gamma=None):
    return load_policy(spec, gamma or view.max_draft_len).verify_lengths(view).tolist()


def test_tetris_verifies_the_six_likeliest_tokens_of_its_published_example():
    log_probs = [[-0.1, -0.2, -0.5, -0.7], [-0.5, -0.7, -0.8, -1], [-0.05, -0.15, -0.1, -0.3]]
    view = step_view(np.exp(log_probs), FLAT)
    assert lengths("tetris:2,extra=2", view) == [2, 1, 3]


def test_tetris_drafts_its_extra_tokens_in_batches_of_some_size_alone():
    policy = load_policy("tetris:2,extra=3,from=3")
    assert policy.max_draft_len == 5
    for num, drafted in ((2, 2), (3, 5)):
        view = step_view(np.full((num, 5), 0.5), FLAT)
        assert policy.draft_lengths(view).tolist() == [drafted] * num
    small = step_view(np.full((2, 5), 0.5), FLAT, draft_len=[2, 2])
    assert lengths("tetris:2,extra=3,from=3", small) == [2, 2]


def test_a_table_drafts_by_the_number_of_requests_and_gaps_inherit():
    # vLLM pull request 45953: [[1, 64, 16], [65, 128, 8], [129, 256, 0]], here with a gap.
    policy = load_policy("k-table:1-2:9,3-4:2,7-8:0", 5)
    expected = {1: 5, 2: 5, 3: 2, 4: 2, 5: 2, 6: 2, 7: 0, 8: 0, 9: 0}
    for num, drafted in expected.items():
        view = step_view(np.full((num, 5), 0.5), FLAT + [10] * 40)
        assert policy.draft_lengths(view).tolist() == [drafted] * num


def test_a_table_with_confidence_spends_r_times_k_where_survival_is_high():
    view = step_view([[0.9, 0.9, 0.9], [0.2, 0.2, 0.2]], FLAT)
    assert lengths("k-table:1-9:2,adaptive=yes", view) == [3, 1]
    policy = load_policy("k-table:1-1:2,2-9:0,adaptive=yes", 3)
    assert policy.draft_lengths(view).tolist() == [0, 0]
    assert policy.draft_lengths(step_view([[0.9, 0.9, 0.9]], FLAT)).tolist() == [3]


def test_specdec_plus_plus_stops_where_a_rejection_has_become_likely():
    # 1 − Π c: 0.1, 0.28, 0.496.
    view = step_view([[0.9, 0.8, 0.7]], FLAT)
    found = [lengths(f"threshold:{h},on=rejection", view)[0] for h in (0.05, 0.1, 0.3, 0.5)]
    assert found == [0, 1, 2, 3]


def test_a_self_adjusting_threshold_is_the_mean_confidence_within_its_limits():
    # Means 0.6, 0.05 (held up to 0.1) and 0.95 (held down to 0.8).
    view = step_view([[0.9, 0.6, 0.3], [0.05, 0.05, 0.05], [0.96, 0.94, 0.95]], FLAT)
    assert lengths("threshold:auto", view) == [2, 0, 3]
    assert lengths("threshold:auto,min=1", view) == [2, 1, 3]


def test_sglang_does_not_schedule_beside_a_prefill_and_skips_hopeless_tokens():
    dear = [0, *(10 + 30 * m for m in range(40))]
    history = np.full((1, 3, 2), 0.1)
    view = step_view([[0.1, 0.1]], dear, history=history)
    assert lengths("sglang", view) == [0]
    assert lengths("sglang", replace(view, prefill_tokens=1)) == [2]
    free = step_view([[1e-4, 1e-4]], FLAT, history=np.array([[[1e-4, 1e-8]] * 3]))
    assert lengths("sglang", free) == [1]
    assert lengths("dspark-async", free) == [2]


def test_sglang_without_a_table_verifies_everything():
    view = step_view(np.full((3, 4), 0.2), FLAT, history=np.full((3, 3, 4), 0.2))
    assert lengths("sglang", view) == [4, 4, 4]


def test_trt_keeps_one_token_each_and_verifies_all_unless_the_gain_is_large_enough():
    dear = [0, *(10 + 30 * m for m in range(40))]
    view = step_view([[0.1, 0.1], [0.1, 0.1]], dear)
    assert lengths("trt", view) == [1, 1]
    # All four tokens: 2.22 / 130 ns; one each: 2.2 / 128: 0.6 % better, and 1 % is asked for.
    close = [0, 100, 100, 127, 128, 129, 130]
    assert lengths("trt", step_view([[0.1, 0.1], [0.1, 0.1]], close)) == [2, 2]
    assert lengths("trt:guard=0", step_view([[0.1, 0.1], [0.1, 0.1]], close)) == [1, 1]


def test_trt_considers_the_ends_of_captured_sizes_alone_if_told_to():
    # Passes of 2 + 4 = 6 tokens would be best by rate, but sizes end at 4 and 8.
    view = step_view([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]], FOURS)
    assert lengths("trt:budgets=all,guard=0", view) in ([2, 2], [1, 1])
    tiers = lengths("trt:budgets=tiers,guard=0", view)
    assert 2 + sum(tiers) in (4, 8)


def test_trts_drain_guard_counts_the_steps_that_a_given_up_token_costs_at_the_tail():
    # Trimming one token saves 15 ns; it is 0.3 of 2.8 tokens, hence 0.107 of a step at the tail.
    costs = [0, 100, 100, 115, 115, 400]
    view = step_view([[0.9, 0.5 / 0.9 * 0.6]], [*costs[:2], 100, 130, 130, 130])
    free = lengths("trt:guard=0", view)
    assert free == [1]
    saved, lost = 30, 0.3 / (1 + 0.9 + 0.3)
    tail = 130  # a request alone with both drafts
    assert saved > lost * tail
    assert lengths("trt:guard=0,drain=1,tail=1", view) == [1]
    heavy = saved / (lost * tail)
    assert lengths(f"trt:guard=0,drain={1.01 * heavy},tail=1", view) == [2]


def test_atom_reads_old_survivals_only_and_rounds_each_length_up_to_a_bucket():
    history = np.array([[[0.9, 0.8, 0.2, 0.1]] * 3, [[0.3, 0.1, 0.1, 0.1]] * 3])
    cheap = [0, *(100 + m for m in range(40))]
    view = step_view([[0.0] * 4, [1.0] * 4], cheap, history=history)
    # τ / verify rises while survival exceeds about τ / 100: 2 + 1.7 + 0.3 + 0.2 + … all pay.
    assert lengths("atom:buckets=1+2+3+4+5", view) == [4, 4]
    steep = [0, *(10 + 5 * m for m in range(40))]
    view = step_view([[0.0] * 4, [1.0] * 4], steep, history=history)
    # 2 / 20 < 2.9 / 25 < 3.7 / 30; then 4.0 / 35 is less.
    assert lengths("atom:buckets=1+2+3+4+5", view) == [2, 0]
    assert lengths("atom:buckets=1+4", view) == [3, 0]
    fresh = step_view([[0.0] * 4, [1.0] * 4], steep)
    assert lengths("atom:buckets=1+4", fresh) == [4, 4]


def test_d_cut_takes_the_best_of_four_shares():
    # 8 drafts; budgets 2, 4, 6, 8 with sums 1.8, 2.3, 2.4, 2.41 of survival.
    view = step_view([[0.9, 0.3, 0.1, 0.01], [0.9, 0.25, 0.05, 0.1]], [0, *range(20, 60)])
    sums = np.cumsum(sorted(view.survival.ravel(), reverse=True))
    rates = {n: sums[n - 1] / (20 + 2 + n - 1) for n in (2, 4, 6, 8)}
    assert sum(lengths("dcut", view)) == max(rates, key=rates.get) == 4
    assert lengths("dcut", step_view(np.full((2, 4), 0.9), FLAT)) == [4, 4]
    unknown = step_view(view.confidence, [*range(20, 30), -1])
    assert lengths("dcut", unknown) == [4, 4]


def test_a_fixed_ratio_rounds_up_and_holds_for_narrow_batches_alone():
    view = step_view([[0.9, 0.9, 0.9], [0.5, 0.5, 0.5]], FLAT)
    assert lengths("ratio:0.5", view) == [3, 0]
    assert lengths("ratio:0.6", view) == [3, 1]
    assert lengths("ratio:0.5,width=1", view) == [3, 3]


def test_the_knee_is_where_a_staircase_ends_and_a_pass_is_filled_up_to_it():
    costs = np.array([0, *[10] * 8, *range(60, 100)])
    assert knee_of(costs) == 8
    view = step_view(np.full((3, 4), 0.5), costs)
    assert sum(lengths("knee", view)) == 5
    assert sum(lengths("knee:12", view)) == 9
    assert lengths("knee:2", view) == [0, 0, 0]


@pytest.mark.parametrize("spec", ["vllm", "dspark-async", "sglang", "trt:lag=1", "dcut:lag=1"])
def test_a_budget_may_be_kept_for_some_steps(spec):
    low, high = np.tile([0.3, 0.01, 0.001], (2, 3, 1)), np.full((2, 3, 3), 0.99)
    costs = [0, *(10 + 3 * m for m in range(12))]
    views = [step_view(np.full((2, 3), 0.5), costs, history=h) for h in (low, high, high, high)]
    kept = load_policy(f"{spec}{',' if ':' in spec else ':'}every=3", 3)
    live = load_policy(spec, 3)
    spent = [int(kept.verify_lengths(view).sum()) for view in views]
    wanted = [int(live.verify_lengths(view).sum()) for view in views]
    assert wanted[0] < wanted[1] == wanted[2] == wanted[3]
    assert spent == [wanted[0]] * 3 + [wanted[3]]


def test_a_guard_a_tie_and_a_floor_change_a_budget_as_they_say():
    # K = 0, 1, 2 promise 1 / 10, 1.5 / 15, 2 / 20: a tie.
    view = step_view([[0.5, 1.0]], [0, 10, 15, 20])
    assert lengths("vllm:lag=0", view) == [0]
    assert lengths("vllm:lag=0,tie=most", view) == [2]
    assert lengths("vllm:lag=0,guard=0", view) == [0]
    assert lengths("vllm:lag=0,guard=0.01", view) == [2]
    assert lengths("vllm:lag=0,min=1", view) == [1]


def test_a_guard_does_not_send_a_pass_beyond_the_table():
    view = step_view([[0.0]], [1, 1], history=np.zeros((1, 3, 1)))
    assert lengths("vllm:guard=0.5", view) == [0]


def test_padding_is_filled_with_the_best_of_what_was_trimmed():
    view = step_view([[0.9, 0.4, 0.1], [0.9, 0.3, 0.2]], FOURS)
    # 0.5 keeps one token each: 4 in the batch, a full size. 0.95 keeps none: two places are free.
    assert lengths("threshold:0.5,fill=tier", view) == [1, 1]
    assert lengths("threshold:0.95,fill=tier", view) == [1, 1]
    assert lengths("threshold:0.35,on=survival,fill=tier", view) == [3, 3]
