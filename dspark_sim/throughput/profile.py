"""EngineProfile: what one step of a serving engine costs, measured or fitted, with its origin."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dspark_sim.core import UserError
from dspark_sim.throughput.draft import DraftCost
from dspark_sim.throughput.grid import points_by_size
from dspark_sim.throughput.lookup import Curve
from dspark_sim.throughput.schema import TABLES, Place, ProfileHeader, check_header, check_table
from dspark_sim.throughput.tables import CostTables, dense_tables

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike, NDArray

    from dspark_sim.throughput.lookup import Rule
    from dspark_sim.throughput.schema import Drafter, DraftRule


@dataclass(frozen=True, eq=False, kw_only=True)
class EngineProfile:
    """Step time of one engine: overhead + draft[R, k] + verify[M] + α(R) + κ · KV tokens read.

    Parameters
    ----------
    name, engine, model, gpu, dtype : str
        What was measured.
    num_gpus : int
        GPUs that one replica occupies.
    max_num_seqs, max_num_batched_tokens : int
        Requests and tokens that one step may hold.
    kv_tokens : int or None
        KV cache capacity in tokens after weights and drafter; None when unlimited or unpublished.
    block_size : int
        Tokens per KV block.
    capture_limit : int or None
        Largest batch with a CUDA graph; larger ones run eager. None: all sizes are captured.
    lookup : "captured", "linear" or "floor"
        How `verify` is read between its points: next captured size (vLLM), interpolation
        (TensorRT-LLM), the point at or below (SGLang's flat table). See `lookup.Curve`.
    draft_lookup : "captured" or "linear"
        How `draft` is read between numbers of requests.
    drafter : "block", "autoregressive" or "none"
        A block drafter's cost holds for every length; an autoregressive one's is linear in it.
    draft_in_verify : bool
        The drafter's time is inside `verify` (published so); `draft` is then absent and costs 0.
    overhead_ms, context_ms_per_kv_token, draft_context_ms_per_kv_token : float
        Per step; per KV token read in it (κ); the same again for the drafter.
    verify : DataFrame
        batch_tokens, num_requests (optional), kv_tokens_read, ms, p10_ms, p90_ms, n, roofline_ms
        (optional). Where κ > 0, the context that a row was measured at is subtracted from its ms;
        where κ is 0 it is part of it. Likewise α(num_requests), where a row states its requests.
        Rows of one size are then averaged: see `grid.points_by_size`.
    draft : DataFrame, optional
        num_requests, draft_len, ms, p10_ms, p90_ms, n.
    requests : DataFrame, optional
        num_requests, ms: the additive term α(R); interpolated, held below its first point.
    prefill : DataFrame, optional
        tokens, ms: a prefill in a worker of its own, interpolated.
    provenance : dict of str
        source (required), method, date, licence and whatever else a reader has to know.

    Raises
    ------
    UserError
        One sentence for the first value that is missing, unknown, negative or out of order.
    """

    name: str
    engine: str
    model: str
    gpu: str
    num_gpus: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_tokens: int | None
    lookup: Rule
    drafter: Drafter
    provenance: dict[str, str]
    verify: pd.DataFrame
    draft: pd.DataFrame | None = None
    requests: pd.DataFrame | None = None
    prefill: pd.DataFrame | None = None
    dtype: str = "not stated"
    block_size: int = 16
    capture_limit: int | None = None
    draft_lookup: DraftRule = "captured"
    draft_in_verify: bool = False
    overhead_ms: float = 0.0
    context_ms_per_kv_token: float = 0.0
    draft_context_ms_per_kv_token: float = 0.0

    def __post_init__(self) -> None:
        where = f"profile '{self.name}'"
        checked = check_header(self.header(), where)
        for spec in TABLES:
            table = getattr(self, spec.name)
            place = Place(f"{where}, {spec.name} table")
            checked[spec.name] = None if table is None else check_table(table, spec, place)
        for key, value in checked.items():
            object.__setattr__(self, key, value)
        self._check_whole(where)

    def _check_whole(self, where: str) -> None:
        """Check what no key or table can tell alone."""
        limit = self.capture_limit
        if self.lookup == "captured" and limit is not None and limit not in self._verify.sizes:
            raise UserError(f"{where}: verify.csv has no row at the capture_limit, {limit} tokens")
        if self.draft is None and self.drafter != "none" and not self.draft_in_verify:
            raise UserError(
                f"{where}: drafter = '{self.drafter}' needs a draft.csv "
                "(or draft_in_verify = true, or drafter = 'none')"
            )
        if self.draft is not None and (self.drafter == "none" or self.draft_in_verify):
            raise UserError(f"{where}: draft.csv contradicts drafter = 'none' or draft_in_verify")
        if (self._verify.ms <= 0).any():
            size = self._verify.sizes[np.argmax(self._verify.ms <= 0)]
            row = self.verify[self.verify["batch_tokens"] == size].iloc[0]
            taken = f"context_ms_per_kv_token = {self.context_ms_per_kv_token:g} leaves"
            if "num_requests" in self.verify:
                taken = f"requests.csv and {taken.removesuffix('s')}"
            raise UserError(
                f"{where}: {taken} nothing of the {row['ms']:g} ms at {row['batch_tokens']:.0f} "
                f"batch_tokens, measured with {row['kv_tokens_read']:.0f} KV tokens"
            )

    def header(self) -> dict[str, Any]:
        """Return the keys of profile.toml: everything but the tables."""
        return {key: getattr(self, key) for key in ProfileHeader.model_fields}

    @cached_property
    def verify_points(self) -> pd.DataFrame:
        """The verify table as it is looked up: one row per size, zero context, without α(R)."""
        own = self.context_ms_per_kv_token * self.verify["kv_tokens_read"].to_numpy()
        if "num_requests" in self.verify and self._requests is not None:
            requests = self.verify["num_requests"].to_numpy()
            own = own + np.where(requests > 0, self._requests.cost_ms(requests), 0.0)
        return points_by_size(self.verify, own)

    @cached_property
    def _verify(self) -> Curve:
        points = self.verify_points
        sizes, ms = points["batch_tokens"].to_numpy(), points["ms"].to_numpy()
        return Curve(sizes, ms, self.lookup, self.capture_limit)

    @cached_property
    def _draft(self) -> DraftCost | None:
        if self.draft is None:
            return None
        return DraftCost.from_table(self.draft, self.draft_lookup, self.drafter == "autoregressive")

    @cached_property
    def _requests(self) -> Curve | None:
        if self.requests is None:
            return None
        sizes, ms = self.requests["num_requests"].to_numpy(), self.requests["ms"].to_numpy()
        return Curve(sizes, ms, "linear", clamp_below=True)

    def _refuse(self, at: ArrayLike, outside: NDArray[np.bool_], covered: str) -> None:
        """Raise for the first size outside a table."""
        if outside.any():
            value = np.broadcast_to(at, outside.shape)[outside].flat[0]
            raise UserError(
                f"profile '{self.name}': {covered}, not {value}; "
                "measure further or allow extension (--extend)"
            )

    def verify_ms(self, batch_tokens: ArrayLike, extend: bool = False) -> NDArray[np.float64]:
        """Cost in ms of verifying `batch_tokens` target tokens at zero context; 0 for none.

        Outside the table: UserError, or with `extend` the last measured slope carried on.
        """
        at = np.asarray(batch_tokens)
        if not extend:
            first, last = self.token_range
            covered = f"verify.csv covers {first} to {last} batch tokens"
            self._refuse(at, (at != 0) & self._verify.extended(at), covered)
        return np.where(at == 0, 0.0, self._verify.cost_ms(at))

    @property
    def token_range(self) -> tuple[int, int]:
        """Smallest and largest batch (tokens) that `verify` answers without extension."""
        sizes = self._verify.sizes
        return 1 if self.lookup == "captured" else int(sizes[0]), int(sizes[-1])

    def draft_ms(
        self, num_requests: ArrayLike, draft_len: ArrayLike, extend: bool = False
    ) -> NDArray[np.float64]:
        """Cost in ms of drafting `draft_len` tokens for each of `num_requests`; 0 for none."""
        requests, length = np.broadcast_arrays(num_requests, draft_len)
        drafting = (requests > 0) & (length > 0)
        if self.drafter == "none" and drafting.any():
            raise UserError(
                f"profile '{self.name}' has no drafter, so draft_len can only be 0, "
                f"not {length[drafting].flat[0]}"
            )
        if self._draft is None:
            return np.zeros(requests.shape)
        if not extend:
            far = drafting & self._draft.extended_requests(requests)
            first, last = self._draft.request_range
            self._refuse(requests, far, f"draft.csv covers {first} to {last} requests")
            long = drafting & self._draft.extended_length(length)
            longest = self._draft.lengths[-1]
            self._refuse(length, long, f"draft.csv covers draft lengths up to {longest}")
        return self._draft.cost_ms(requests, length)

    def request_ms(self, num_requests: ArrayLike, extend: bool = False) -> NDArray[np.float64]:
        """Additive cost α(R) in ms of holding `num_requests` in the step; 0 for none."""
        at = np.asarray(num_requests)
        if self._requests is None:
            return np.zeros(at.shape)
        if not extend:
            last = self._requests.sizes[-1]
            covered = f"requests.csv covers up to {last} requests"
            self._refuse(at, self._requests.extended(at), covered)
        return np.where(at == 0, 0.0, self._requests.cost_ms(at))

    def prefill_ms(self, tokens: ArrayLike, extend: bool = False) -> NDArray[np.float64]:
        """Cost in ms of prefilling `tokens` in a worker of its own; needs a prefill table."""
        if self.prefill is None:
            raise UserError(f"profile '{self.name}' has no prefill.csv")
        curve = Curve(self.prefill["tokens"].to_numpy(), self.prefill["ms"].to_numpy(), "linear")
        if not extend:
            covered = f"prefill.csv covers {curve.sizes[0]} to {curve.sizes[-1]} tokens"
            self._refuse(tokens, curve.extended(tokens), covered)
        return curve.cost_ms(tokens)

    def step_ms(
        self,
        num_requests: ArrayLike,
        batch_tokens: ArrayLike,
        kv_tokens_read: ArrayLike = 0,
        drafting_requests: ArrayLike = 0,
        draft_len: ArrayLike = 0,
        extend: bool = False,
    ) -> NDArray[np.float64]:
        """Step time in ms, broadcast over all arguments (design: "The step, precisely", 4).

        Parameters
        ----------
        num_requests : requests that run in the step, R
        batch_tokens : target tokens in it, M: anchors, verified drafts and prefill
        kv_tokens_read : KV tokens that its attention reads, over all requests
        drafting_requests, draft_len : how many requests draft, and how long
        extend : carry the last slopes on outside the tables instead of raising UserError
        """
        drafting = (np.asarray(drafting_requests) > 0) & (np.asarray(draft_len) > 0)
        per_kv = self.context_ms_per_kv_token + drafting * self.draft_context_ms_per_kv_token
        return (
            self.overhead_ms
            + self.draft_ms(drafting_requests, draft_len, extend)
            + self.verify_ms(batch_tokens, extend)
            + self.request_ms(num_requests, extend)
            + per_kv * np.asarray(kv_tokens_read)
        )

    def steps_per_second(
        self,
        batch_tokens: ArrayLike,
        num_requests: ArrayLike | None = None,
        draft_len: ArrayLike = 0,
        extend: bool = False,
    ) -> NDArray[np.float64]:
        """SPS(B) of the paper's Algorithm 1: 1 / (overhead + draft[R] + verify[B] + α(R)).

        Without `num_requests` the terms that depend on it are left out.
        """
        requests = 0 if num_requests is None else num_requests
        step = self.step_ms(requests, batch_tokens, 0, requests, draft_len, extend)
        return 1000.0 / step

    def regime(self, batch_tokens: ArrayLike) -> NDArray[np.str_]:
        """How each batch is read: "captured", "eager", "table" (linear, floor) or "extended"."""
        at = np.asarray(batch_tokens)
        names = np.full(at.shape, "table", dtype="U8")
        if self.lookup == "captured":
            names = np.where(at > self._verify.last_captured, "eager", "captured")
        return np.where((at != 0) & self._verify.extended(at), "extended", names)

    def tables(
        self,
        max_draft_len: int,
        max_requests: int | None = None,
        extend: bool = False,
        max_batch_tokens: int | None = None,
    ) -> CostTables:
        """Dense costs in whole nanoseconds for the simulator's kernels; see `CostTables`.

        Parameters
        ----------
        max_draft_len : longest draft, γ
        max_requests, max_batch_tokens : table sizes; by default the profile's own limits
        extend : extend the tables beyond what was measured; if not, batch tokens outside are -1
            and requests or lengths outside raise UserError
        """
        return dense_tables(
            self,
            max_draft_len,
            self.max_num_seqs if max_requests is None else max_requests,
            self.max_num_batched_tokens if max_batch_tokens is None else max_batch_tokens,
            extend,
        )

    def outside_verify(self, batch_tokens: ArrayLike) -> NDArray[np.bool_]:
        """Where a batch lies outside the measured verify table."""
        return self.regime(batch_tokens) == "extended"

    def clamped(self, batch_tokens: ArrayLike) -> NDArray[np.bool_]:
        """Where an eager batch is smaller than any that was measured and costs as much as it."""
        return self._verify.clamped(batch_tokens)

    def padding_ms(self, batch_tokens: ArrayLike) -> NDArray[np.float64]:
        """How much of `verify_ms` pads the batch to its captured size; see `Curve.padding_ms`."""
        return self._verify.padding_ms(batch_tokens)

    def outside_requests(self, num_requests: ArrayLike, draft_len: int) -> NDArray[np.bool_]:
        """Where a number of requests lies outside the measured draft or request table."""
        at = np.asarray(num_requests)
        outside = np.zeros(at.shape, dtype=bool)
        if self._draft is not None:
            outside |= self._draft.extended(at, draft_len)
        if self._requests is not None:
            outside |= self._requests.extended(at)
        return outside
