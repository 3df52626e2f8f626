"""Which points are timed, the most needed first, so that a short run still makes a profile.

A point's numbers of requests are powers of two: sizes then share them, and θ(M) and α(R) can be
told apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True)
class Point:
    """One thing to time.

    Parameters
    ----------
    kind : str
        "verify" (decode requests), "mixed" (and one prefill chunk), "prefill" (a chunk alone),
        "draft-block", "draft-autoregressive", "head" (no layers: LM head and sampling),
        "host" (what the host does between steps).
    requests, tokens, context : int
        Requests and target tokens; positions that each request's cache holds after the step.
    prefill : int
        Tokens of the prefill chunk among `tokens`.
    draft_len : int
        Of a draft.
    rows : int
        The captured size that runs: `tokens`, or the next larger; 0: not captured.
    uniform : bool
        All requests of one length, instead of lengths drawn at random.
    table : bool
        Goes into the profile's tables; if not, it is held against them.
    """

    kind: str
    requests: int
    tokens: int
    context: int
    prefill: int = 0
    draft_len: int = 0
    rows: int = 0
    uniform: bool = False
    table: bool = True

    def kv_positions(self) -> int:
        """Cache slots that it needs; a prefill chunk has a request of its own."""
        decoding = self.requests - (self.kind in ("mixed", "prefill"))
        return decoding * self.context + (max(self.context, self.prefill) if self.prefill else 0)


@dataclass(frozen=True)
class Scope:
    """How far a run goes; sizes in tokens.

    Parameters
    ----------
    core : sizes timed at every context and number of requests
    others : further sizes, at the main context
    eager : sizes above the capture limit, or beyond what decoding reaches
    contexts : the main one first
    requests : most that decode at once
    draft_len : γ, the longest draft; draft_lens the shorter ones that are timed too
    """

    core: tuple[int, ...]
    others: tuple[int, ...]
    eager: tuple[int, ...]
    contexts: tuple[int, ...]
    requests: int
    draft_len: int
    draft_lens: tuple[int, ...]
    prefills: tuple[int, ...]
    capture_limit: int
    kv_positions: int
    quick: bool

    @property
    def repeats(self) -> int:
        """Rounds of timings."""
        return 9 if self.quick else 15

    @property
    def captured(self) -> list[int]:
        """Sizes with a graph of their own."""
        return sorted(s for s in (*self.core, *self.others) if s <= self.capture_limit)


def powers(last: int, first: int = 1) -> list[int]:
    """Return the powers of two from `first`, or the next one above it, to `last`."""
    return [2**n for n in range(last.bit_length()) if first <= 2**n <= last]


def cpu_scope(
    quick: bool, draft_len: int, contexts: Sequence[int], requests: int, held: int
) -> Scope:
    """Return the scope on a CPU, which captures nothing: sizes dense enough for straight lines."""
    most = requests * (1 + draft_len)
    core = powers(most) if quick else sorted({*powers(most), 3, 6, 12, 24, 48, 96, 192})
    eager = (2 * most,) if quick else (most + most // 2, 2 * most)
    return Scope(
        core=tuple(size for size in core if size <= most),
        others=(),
        eager=eager,
        contexts=tuple(contexts),
        requests=requests,
        draft_len=draft_len,
        draft_lens=() if quick else (1,),
        prefills=(most,) if quick else (most // 2, most, 2 * most),
        capture_limit=0,
        kv_positions=min(held, max(2 * most, requests * max(contexts))),
        quick=quick,
    )


def gpu_scope(
    quick: bool, draft_len: int, contexts: Sequence[int], requests: int, limit: int, held: int
) -> Scope:
    """Return the scope on a GPU: vLLM's captured sizes, then eager ones."""
    captured = [1, 2, 4, *range(8, 257, 8), *range(272, limit + 1, 16)]
    core = sorted({*(s for s in powers(limit)), limit})
    most = requests * (1 + draft_len)
    eager = [limit + 16, limit + limit // 4, limit + limit // 2, 2 * limit, 4 * limit, 8 * limit]
    return Scope(
        core=tuple(core),
        others=() if quick else tuple(s for s in captured if s <= limit and s not in core),
        eager=tuple(eager[::2] if quick else eager),
        contexts=tuple(contexts),
        requests=requests,
        draft_len=draft_len,
        draft_lens=() if quick else (1,),
        prefills=tuple(powers(8 * limit, first=256)[:: 2 if quick else 1]),
        capture_limit=limit,
        kv_positions=min(held, max(most, requests * max(contexts))),
        quick=quick,
    )


def points(scope: Scope) -> list[Point]:
    """Return what to time, in the order in which it is needed."""
    main, *further = scope.contexts
    found = [
        *(_verify(scope, size, scope.contexts[:1], one=True) for size in scope.core),
        [Point("host", r, r, main) for r in powers(scope.requests)[::3]],
        _drafts(scope, main, [scope.draft_len], _drafting(scope), "draft-block"),
        *(_verify(scope, size, further, one=True) for size in scope.core),
        _drafts(scope, main, [scope.draft_len], _drafting(scope), "draft-autoregressive"),
        *(_beyond(scope, size, main) for size in scope.eager),
        *(_verify(scope, size, scope.contexts[:1]) for size in scope.core[:: 1 + scope.quick]),
        [Point("prefill", 1, p, p, prefill=p) for p in scope.prefills],
        *(_verify(scope, size, scope.contexts[:1], one=True) for size in scope.others),
        *([] if scope.quick else [_verify(scope, size, further) for size in scope.core]),
        *(_drafts(scope, c, [scope.draft_len], [scope.requests // 4 or 1]) for c in further),
        _drafts(scope, main, scope.draft_lens, _drafting(scope)),
        _heads(scope),
        _checks(scope),
    ]
    seen = dict.fromkeys(point for part in found for point in part)
    return [point for point in seen if point.kv_positions() <= scope.kv_positions]


def _rows(scope: Scope, size: int) -> int:
    return next((s for s in scope.captured if s >= size), 0)


def _holders(scope: Scope, size: int) -> list[int]:
    """Numbers of requests that this many tokens can belong to, the likeliest first."""
    full = -(-size // (1 + scope.draft_len))
    fit = powers(min(size, scope.requests), first=full)
    return sorted(fit, key=lambda r: abs(size / r - 3))


def _verify(scope: Scope, size: int, contexts: Sequence[int], one: bool = False) -> Iterator[Point]:
    holders = _holders(scope, size)
    for context in contexts:
        for requests in holders[:1] if one else holders:
            yield Point("verify", requests, size, context, rows=_rows(scope, size))


def _beyond(scope: Scope, size: int, context: int) -> Iterator[Point]:
    """Batches above the limit: decode alone while it reaches so far, then with a prefill chunk."""
    for requests in _holders(scope, size):
        yield Point("verify", requests, size, context)
    if not _holders(scope, size):
        for share in (2,) if scope.quick else (8, 2):
            decoding = max(1, scope.requests // share - 1)
            chunk = size - min(3, 1 + scope.draft_len) * decoding
            yield Point("mixed", decoding + 1, size, context, prefill=chunk)


def _drafting(scope: Scope) -> list[int]:
    """Numbers of requests that are drafted for; graphs also between the powers of two."""
    between = [3 * n for n in powers(scope.requests // 3, first=8)]
    captured = scope.capture_limit > 0 and not scope.quick
    return sorted({*powers(scope.requests), *(between if captured else [])})


def _drafts(
    scope: Scope, context: int, lengths: Sequence[int], requests: Sequence[int], *kinds: str
) -> Iterator[Point]:
    for kind in kinds or ("draft-block", "draft-autoregressive"):
        for length in lengths:
            for number in requests:
                tokens, rows = number * length, number if scope.capture_limit else 0
                yield Point(kind, number, tokens, context, draft_len=length, rows=rows)


def _heads(scope: Scope) -> Iterator[Point]:
    for size in scope.core[:: 3 if scope.quick else 1]:
        yield Point("head", 1, size, scope.contexts[0], rows=_rows(scope, size))


def _checks(scope: Scope) -> Iterator[Point]:
    """Points that are held against the tables: between sizes, uniform lengths, prefill mixed in."""
    main = scope.contexts[0]
    for low, high in zip(scope.core[2::2], scope.core[3::2], strict=False):
        size = high - max(1, (high - low) // 2)
        size -= size in scope.captured
        for requests in _holders(scope, size)[:1]:
            rows = _rows(scope, size)
            yield Point("verify", requests, size, main, rows=rows, table=False)
    for size in scope.core[3::3]:
        for requests in _holders(scope, size)[:1]:
            even = requests * (size // requests)
            point = Point("verify", requests, even, main, rows=_rows(scope, even), uniform=True)
            yield replace(point, table=False)
    for size in scope.core[4::3]:
        if size >= 8:
            rows = _rows(scope, size)
            yield Point("mixed", 3, size, main, prefill=size - 4, rows=rows, table=False)
