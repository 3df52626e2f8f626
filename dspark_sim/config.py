"""A scenario: everything one simulation depends on, checked when it is written down."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pydantic

from dspark_sim.core import UserError, unknown_name

Whole = pydantic.NonNegativeInt
Positive = pydantic.PositiveFloat
Seconds = Annotated[pydantic.NonNegativeFloat, pydantic.AllowInfNan(False)]


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


class Belief(_Strict):
    """What the policy believes where it differs from the engine's truth.

    `profile` takes the cost table of another profile; `table` reads it "flat" (every batch costs
    the same), "monotone" or as it is; `draft = false` leaves the draft term out; `context = true`
    adds this step's context term, which engines' tables do not have; `context_tokens` instead puts
    the context of a table that was measured with so many KV tokens per request into every batch.

    The policy sees ``sigmoid((scale * logit(c_k) + bias) / T_k)`` where the drafter reports c_k at
    draft position k. `confidence_scale` and `confidence_bias` are drift: how the drafter's reports
    have moved since they were recorded or measured. `temperatures` gives T_k, the calibration that
    the engine applies to whatever it is told, hence last (arXiv 2607.05147, section 3.2.1): a file
    in SGLang's STS format, or "recorded" for those that a recording keeps. Truth is untouched.
    """

    profile: str | None = None
    table: Literal["as-is", "monotone", "flat"] = "as-is"
    lookup: Literal["captured", "linear", "floor"] | None = None
    draft: bool = True
    context: bool = False
    context_tokens: Whole = 0
    confidence_scale: Annotated[Positive, pydantic.AllowInfNan(False)] = 1.0
    confidence_bias: pydantic.FiniteFloat = 0.0
    temperatures: Annotated[str, pydantic.Field(min_length=1)] | None = None

    @pydantic.model_validator(mode="after")
    def _one_context(self) -> Self:
        if self.context and self.context_tokens:
            raise ValueError("give either context or context_tokens, not both")
        return self


class Prefill(_Strict):
    """How prompts are computed: inside the batch, by separate workers, or not at all."""

    mode: Literal["chunked", "separate", "none"] = "chunked"
    workers: pydantic.PositiveInt = 1


class Scenario(_Strict):
    """One simulation: a trace under a policy on an engine, with its load and its seed.

    Parameters
    ----------
    trace, profile, acceptance, policy : str
        Names, paths or `NAME:ARGS`, as on the command line.
    num_speculative_tokens : int
        γ for policies that do not set their own.
    concurrency : int, optional
        Closed loop: this many requests in flight, the next enters when one leaves.
    request_rate : float, optional
        Open loop: Poisson arrivals per second (`inf`: all at once). Without either, the trace's
        own times count.
    rate_scale : float
        Speeds up the trace's own times.
    requests : int, optional
        How many requests of the trace to run. Default: all of a file; of a generator, and always
        in a closed loop, at least max(1,000, 8 x concurrency).
    replicas, router : int, str
        Open loop: this many engines behind a router that gives each request to one of them,
        "round-robin" (in turn), "least-loaded" (fewest requests in it at the arrival) or "random"
        (by the seed).
    seed : int
        Of luck, generators and drawn arrivals.
    warmup_s, cooldown_s : float
        Open loop: cut off the measured window after the first and before the last arrival.
    goodput : dict
        SLOs in ms by metric (`ttft`, `tpot`, `e2el`), as in vLLM's `--goodput`.
    extend : bool
        Extend the profile's tables beyond what was measured; recorded in the result.
    profile_set : dict
        Overrides of profile.toml keys, e.g. `kv_tokens`.
    record : str
        Tables that are kept: "steps" (of requests and of steps), "requests", or "summary" (none).
    """

    trace: str = "synth:chat"
    profile: str
    acceptance: str = "chat-dspark"
    policy: str = "dspark-async"
    num_speculative_tokens: Whole = 7
    concurrency: pydantic.PositiveInt | None = None
    request_rate: Positive | None = None
    rate_scale: Positive = 1.0
    requests: Annotated[pydantic.PositiveInt, pydantic.Field(le=100_000_000)] | None = None
    prefill: Prefill = Prefill()
    belief: Belief = Belief()
    replicas: Annotated[pydantic.PositiveInt, pydantic.Field(le=10_000)] = 1
    router: Literal["round-robin", "least-loaded", "random"] = "round-robin"
    seed: Annotated[Whole, pydantic.Field(lt=2**63)] = 0
    warmup_s: Seconds = 0.0
    cooldown_s: Seconds = 0.0
    goodput: dict[Literal["ttft", "tpot", "e2el"], Positive] = {}
    extend: bool = False
    profile_set: dict[str, Any] = {}
    record: Literal["summary", "requests", "steps"] = "steps"

    @pydantic.model_validator(mode="after")
    def _one_load(self) -> Self:
        if self.concurrency is not None and self.request_rate is not None:
            raise ValueError("give either concurrency or request_rate, not both")
        if self.concurrency is not None and (self.warmup_s or self.cooldown_s):
            raise ValueError("warmup_s and cooldown_s belong to an open loop")
        if self.replicas > 1 and self.concurrency is not None:
            raise ValueError(
                "a closed loop has one replica: give replicas a rate or a trace's times"
            )
        if self.replicas > 1 and (self.warmup_s or self.cooldown_s):
            raise ValueError("several replicas are measured whole: no warmup_s or cooldown_s")
        if self.rate_scale != 1.0 and (self.concurrency or self.request_rate):
            raise ValueError("rate_scale speeds up the trace's own times: no other load with it")
        if not math.isfinite(self.rate_scale):
            raise ValueError("rate_scale must be finite")
        return self

    @classmethod
    def check(cls, values: dict[str, Any], where: str = "the scenario") -> Scenario:
        """Build a scenario; a mistake is a UserError that names its place, key and value."""
        try:
            return cls.model_validate(values)
        except pydantic.ValidationError as error:
            raise _as_user_error(error, where) from None


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a scenario file as a dict."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: is not valid TOML ({error})") from None


def with_settings(values: dict[str, Any], settings: list[str]) -> dict[str, Any]:
    """Apply `key=value` settings, dotted keys reaching into tables, to a scenario's dict.

    >>> with_settings({"prefill": {"mode": "none"}}, ["prefill.workers=2", "seed=3"])
    {'prefill': {'mode': 'none', 'workers': 2}, 'seed': 3}
    """
    result = {key: dict(v) if isinstance(v, dict) else v for key, v in values.items()}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path.strip():
            raise UserError(f"--set '{setting}' is not of the form key=value")
        *tables, key = path.strip().split(".")
        target = result
        for table in tables:
            target = target.setdefault(table, {})
            if not isinstance(target, dict):
                raise UserError(f"--set '{setting}': '{table}' is not a table")
        target[key] = _toml_value(text.strip())
    return result


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _as_user_error(error: pydantic.ValidationError, where: str) -> UserError:
    first = error.errors()[0]
    location = ".".join(str(part) for part in first["loc"] if part != "[key]")
    if first["type"] == "extra_forbidden":
        *tables, key = first["loc"]
        model: Any = Scenario
        for table in tables:
            model = model.model_fields[str(table)].annotation
        place = ".".join([where, *map(str, tables)]) if tables else where
        return unknown_name("key", str(key), model.model_fields, place)
    message = first["msg"].removeprefix("Value error, ")
    if not location:
        return UserError(f"{where}: {message}")
    message = message[0].lower() + message[1:]
    return UserError(f"{where}: {location} = {first['input']!r}: {message}")
