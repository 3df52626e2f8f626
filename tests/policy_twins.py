"""The built-in rules once more, in plain Python from their definitions, to check the kernels."""


def fixed(view, k):
    """Every engine's default: min(k, drafted) for every request."""
    return [min(k, length) for length in view.draft_len.tolist()]


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


def dspark_async(view, lag):
    """arXiv 2607.05147, section 5.2: a stale budget by global search, filled by live survival."""
    stale = [a for a, _ in _sorted_candidates(view.lagged_survival(lag), view.draft_len)]
    batch = view.num_requests + view.prefill_tokens
    times = [_step_ns(view, batch + budget) for budget in range(len(stale) + 1)]
    return _top(view, _argmax(_expected(float(view.num_requests), stale), times))


def vllm(view, lag):
    """vLLM pull request 47808: argmax_B (N_sampling + ΣS) / (draft[R] + verify[T + B])."""
    stale = [a for a, _ in _sorted_candidates(view.lagged_survival(lag), view.draft_len)]
    others = view.num_requests + view.prefill_tokens
    draft = _draft_ns(view)
    verify = [_verify_ns(view, others + budget) for budget in range(len(stale) + 1)]
    times = [None if cost is None else draft + cost for cost in verify]
    return _top(view, _argmax(_expected(float(view.num_sampling), stale), times))


def oracle(view, accepted):
    """Of the drafts that will be accepted, as many as maximise (R + B) / T(R + B)."""
    useful = [min(a, n) for a, n in zip(accepted, view.draft_len.tolist(), strict=True)]
    batch = view.num_requests + view.prefill_tokens
    tokens = [view.num_requests + budget for budget in range(sum(useful) + 1)]
    best = _argmax(tokens, [_step_ns(view, batch + budget) for budget in range(sum(useful) + 1)])
    places = sorted((j, r) for r, count in enumerate(useful) for j in range(count))
    return [sum(r == mine for _, mine in places[:best]) for r in range(view.num_requests)]


def _sorted_candidates(survival, draft_len):
    """Survival descending; ties by position, then by request (SGLang's order)."""
    places = [
        (-a, j, r)
        for r, row in enumerate(survival.tolist())
        for j, a in enumerate(row[: int(draft_len[r])])
    ]
    return [(-a, r) for a, _, r in sorted(places)]


def _top(view, budget):
    lengths = [0] * view.num_requests
    for _, r in _sorted_candidates(view.survival, view.draft_len)[:budget]:
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
