"""The built-in rules once more, in plain Python from their definitions, to check the kernels."""

import math

import numpy as np


def fixed(view, k):
    """Every engine's default: min(k, drafted) for every request."""
    return [min(k, length) for length in view.draft_len.tolist()]


def auto_threshold(view, low=0.1, high=0.8):
    """vLLM pull request 43522: keep while confidence is at least the draft's clamped mean."""
    kept = []
    for row, length in zip(view.confidence, view.draft_len.tolist(), strict=True):
        tau = min(max(row[:length].mean(), low), high) if length else low
        below = [j for j in range(length) if row[j] < tau]
        kept.append(below[0] if below else length)
    return kept


def threshold(view, tau, on="confidence"):
    """arXiv 2607.05147, Fig. 5: keep while the confidence (or survival) is at least tau."""
    values = (view.confidence if on == "confidence" else view.survival).tolist()
    kept = []
    for row, length in zip(values, view.draft_len.tolist(), strict=True):
        below = [j for j in range(length) if row[j] < tau]
        kept.append(below[0] if below else length)
    return kept


def algorithm_1(view):
    """arXiv 2607.05147, Algorithm 1: sort, admit while Θ = τ · SPS(B) rises, stop at a miss.

    SPS is 1 / (overhead + draft + verify[B]), so Θ is written as τ over the step's time.
    """
    num = view.num_requests
    lengths = [0] * num
    batch, tau = num + view.prefill_tokens, float(num)
    theta = _over(tau, _step_ns(view, batch))
    for a, r in _sorted_candidates(view.survival, view.draft_len):
        admitted = _over(tau + a, _step_ns(view, batch + 1))
        if theta is None or admitted is None or admitted <= theta:
            break
        batch, tau, theta = batch + 1, tau + a, admitted
        lengths[r] += 1
    return lengths


def dspark_async(view, lag, **switches):
    """arXiv 2607.05147, section 5.2: a stale budget by global search, filled by live survival."""
    tokens, fixed = float(view.num_requests), view.cost.fixed_ns + _draft_ns(view)
    least = switches.get("least", 0)
    return _top(view, _searched(view, lag, tokens, fixed, **switches), least)


def vllm(view, lag, **switches):
    """vLLM pull request 47808: argmax_B (N_sampling + ΣS) / (draft[R] + verify[T + B])."""
    budget = _searched(view, lag, float(view.num_sampling), _draft_ns(view), **switches)
    return _top(view, budget, switches.get("least", 0))


def sglang(view, lag, **switches):
    """As the asynchronous form, without survivals below 1e-6; all beside a prefill."""
    if view.prefill_tokens:
        return view.draft_len.tolist()
    return dspark_async(view, lag, cut=1e-6, **switches)


def trt(view, lag, drain=0.0, tail=16, **switches):
    """At least one token each, a gain of 1 % over everything, and what is lost at the tail."""
    switches = {"least": 1, "guard": 0.01} | switches
    tokens, fixed = float(view.num_requests), view.cost.fixed_ns + _draft_ns(view)
    budget = _searched(view, lag, tokens, fixed, **switches)
    everything = int(view.draft_len.sum())
    others = view.num_requests + view.prefill_tokens
    if drain and everything and _verify_ns(view, others + everything) is not None:
        stale = view.lagged_survival(lag)
        chosen = _top(view, budget, switches["least"], stale)
        drafts = zip(view.draft_len.tolist(), chosen, stale.tolist(), strict=True)
        sums = [(sum(row[:drafted]), sum(row[:kept])) for drafted, kept, row in drafts]
        tau_all, tau = (tokens + sum(pair[side] for pair in sums) for side in (0, 1))
        table = view.cost.verify_ns.tolist()
        tail_ns = fixed + table[min(tail * (view.max_draft_len + 1), len(table) - 1)]
        saved = table[others + everything] - table[others + budget]
        if saved <= drain * (1.0 - tau / tau_all) * tail_ns:
            budget = everything
    return _top(view, budget, switches["least"])


def atom(view, lag, buckets=(1, 3, 6, 8)):
    """ATOM: stale early stop without the draft's time, lengths rounded up, new requests whole."""
    stale, drafted = view.lagged_survival(lag), view.draft_len.tolist()
    fresh = [n > 0 and stale[r, n - 1] == 1.0 for r, n in enumerate(drafted)]
    lengths = [n if new else 0 for n, new in zip(drafted, fresh, strict=True)]
    batch = view.num_requests + view.prefill_tokens + sum(lengths)
    tau = float(view.num_requests + sum(lengths))
    theta = _over(tau, _verify_ns(view, batch) or None)
    for a, r in _sorted_candidates(stale, view.draft_len):
        if fresh[r]:
            continue
        admitted = _over(tau + a, _verify_ns(view, batch + 1) or None)
        if theta is None or admitted is None or admitted <= theta:
            break
        batch, tau, theta = batch + 1, tau + a, admitted
        lengths[r] += 1
    rounded = []
    for length, limit in zip(lengths, drafted, strict=True):
        fits = [q - 1 for q in buckets if q >= length + 1]
        rounded.append(min(fits[0], limit) if fits else limit)
    return rounded


def k_table(view, adaptive_length):
    """vLLM's table with adaptive verification: R · K tokens of highest survival."""
    return _top(view, view.num_requests * adaptive_length)


def ratio(view, share, width=None):
    """D-Cut's ablation: the best ⌈ρ · drafted⌉ tokens, all of them in wide batches."""
    everything = int(view.draft_len.sum())
    wide = width is not None and view.num_requests > width
    return _top(view, everything if wide else math.ceil(share * everything))


def dcut(view, lag):
    """D-Cut: the share of four with the highest Σ of survivals over time; all if one is unknown."""
    stale = [a for a, _ in _sorted_candidates(view.lagged_survival(lag), view.draft_len)]
    budgets = [math.ceil(quarter * len(stale) / 4) for quarter in (1, 2, 3, 4)]
    others = view.num_requests + view.prefill_tokens
    times = [_step_ns(view, others + budget) for budget in budgets]
    if None in times:
        return view.draft_len.tolist()
    sums = _expected(0.0, stale)
    return _top(view, budgets[_argmax([sums[budget] for budget in budgets], times)])


def tetris(view, base, least_requests=1):
    """TETRIS: the K · R tokens of highest cumulative log-probability; all in small batches."""
    if view.num_requests < least_requests:
        return view.draft_len.tolist()
    return _top(view, base * view.num_requests)


def knee(view, target=None):
    """A pass of M tokens: by default where M · SPS(M) stands highest above its straight rise."""
    if target is None:
        known = {m: m / t for m, t in enumerate(view.cost.verify_ns.tolist()) if m and t > 0}
        reach, top = len(view.cost.verify_ns) - 1, max(known.values(), default=1.0)
        target = max(known, key=lambda m: (known[m] / top - m / reach, -m), default=1)
    return _top(view, max(target - view.num_requests - view.prefill_tokens, 0))


def filled(view, lengths):
    """Fill the captured size: further tokens, best first, while the pass costs the same."""
    lengths = list(lengths)
    batch = view.num_requests + view.prefill_tokens + sum(lengths)
    cost = _verify_ns(view, batch)
    left = [(-a, j, r) for r, row in enumerate(view.survival.tolist())
            for j, a in enumerate(row[: int(view.draft_len[r])]) if j >= lengths[r]]  # fmt: skip
    for _, _, r in sorted(left):
        batch += 1
        if cost is None or _verify_ns(view, batch) != cost:
            break
        lengths[r] += 1
    return lengths


def oracle(view, accepted):
    """Of the drafts that will be accepted, as many as maximise (R + B) / T(R + B)."""
    useful = [min(a, n) for a, n in zip(accepted, view.draft_len.tolist(), strict=True)]
    batch = view.num_requests + view.prefill_tokens
    tokens = [view.num_requests + budget for budget in range(sum(useful) + 1)]
    best = _argmax(tokens, [_step_ns(view, batch + budget) for budget in range(sum(useful) + 1)])
    places = sorted((j, r) for r, count in enumerate(useful) for j in range(count))
    return [sum(r == mine for _, mine in places[:best]) for r in range(view.num_requests)]


def _sorted_candidates(survival, draft_len, least=0):
    """Survival descending; ties by position, then by request (SGLang's order)."""
    places = [
        (-a, j, r)
        for r, row in enumerate(survival.tolist())
        for j, a in enumerate(row[: int(draft_len[r])])
        if j >= least
    ]
    return [(-a, r) for a, _, r in sorted(places)]


def _searched(
    view, lag, tokens, fixed_ns, least=0, guard=None, most=False, tiers=False, cut=0.0
):  # fmt: skip
    """K of the best (tokens + Σ of the K best) / (fixed + verify), `least` of each draft first."""
    stale = view.lagged_survival(lag)
    floor = [a for r, row in enumerate(stale.tolist()) for a in row[: view.draft_len[r]][:least]]
    rest = [a for a, _ in _sorted_candidates(stale, view.draft_len, least)]
    others, everything = view.num_requests + view.prefill_tokens, len(floor) + len(rest)
    sums, rates = _expected(tokens + sum(floor), rest), {}
    for more in range(len(rest) + 1):
        budget = len(floor) + more
        cost = _verify_ns(view, others + budget)
        if others + budget >= len(view.cost.verify_ns):
            break
        if cost is not None:
            rates[budget] = sums[more] / (fixed_ns + cost)
    table = view.cost.verify_ns.tolist()

    def considered(budget):
        size = others + budget
        edge = budget == everything or size + 1 == len(table) or table[size + 1] != table[size]
        worth = rest[budget - len(floor) - 1] if budget > len(floor) else 1.0
        return worth >= cut and (edge or not tiers)

    may = {budget: rate for budget, rate in rates.items() if considered(budget)}
    best = max(may, key=lambda b: (may[b], b if most else -b), default=len(floor))
    whole = rates.get(everything)
    if guard is not None and whole is not None and may.get(best, -1.0) < (1.0 + guard) * whole:
        return everything
    return best


def _top(view, budget, least=0, survival=None):
    lengths = np.minimum(view.draft_len, least).tolist()
    order = _sorted_candidates(
        view.survival if survival is None else survival, view.draft_len, least
    )
    for _, r in order[: max(budget - sum(lengths), 0)]:
        lengths[r] += 1
    return lengths


def _expected(tokens, survival):
    totals = [tokens]
    for a in survival:
        totals.append(totals[-1] + a)
    return totals


def _argmax(values, times):
    """Index of the first largest value over time, among those whose time is known; else 0."""
    rates = {i: v / t for i, (v, t) in enumerate(zip(values, times, strict=True)) if t is not None}
    return max(rates, key=lambda i: (rates[i], -i), default=0)


def _over(value, time):
    return None if time is None else value / time


def _verify_ns(view, batch_tokens):
    table = view.cost.verify_ns.tolist()
    known = batch_tokens < len(table) and table[batch_tokens] >= 0
    return table[batch_tokens] if known else None


def _draft_ns(view):
    drafted = view.draft_len.tolist()
    return int(view.cost.draft_ns[sum(n > 0 for n in drafted), max(drafted)])


def _step_ns(view, batch_tokens):
    verify = _verify_ns(view, batch_tokens)
    return None if verify is None else view.cost.fixed_ns + _draft_ns(view) + verify
