"""What the server tells at /metrics, under vLLM's Prometheus names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dspark_sim.core import NS_PER_S

if TYPE_CHECKING:
    from dspark_sim.model.engine import Output, Request, StepReport

_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40,
    80, 160, 640, 2560,
)  # fmt: skip
_PER_TOKEN = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
_REQUEST = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)

_GAUGES = {
    "num_requests_running": "Requests in slots.",
    "num_requests_waiting": "Requests in the queue.",
    "kv_cache_usage_perc": "Slots in use, 1 for all.",
}
_COUNTERS = {
    "prompt_tokens": "Prompt tokens computed.",
    "generation_tokens": "Tokens generated.",
    "num_preemptions": "Always 0: a slot holds a whole request.",
}
_SPECULATION = {
    "spec_decode_num_drafts": "Drafted blocks, one per request and step.",
    "spec_decode_num_draft_tokens": "Draft tokens verified.",
    "spec_decode_num_accepted_tokens": "Draft tokens accepted.",
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": ("Arrival to first token.", _FIRST_TOKEN),
    "inter_token_latency_seconds": ("Between chunks, one per step and request.", _PER_TOKEN),
    "request_time_per_output_token_seconds": ("Per token after the first.", _PER_TOKEN),
    "e2e_request_latency_seconds": ("Arrival to last token.", _REQUEST),
    "request_queue_time_seconds": ("Arrival to admission.", _REQUEST),
    "request_prefill_time_seconds": ("Admission to first token.", _REQUEST),
    "request_decode_time_seconds": ("First to last token.", _REQUEST),
    "request_inference_time_seconds": ("Admission to last token.", _REQUEST),
    "iteration_tokens_total": ("Tokens per step.", _TOKENS),
    "request_prompt_tokens": ("Prompt tokens per request.", _TOKENS),
    "request_generation_tokens": ("Output tokens per request.", _TOKENS),
}


class ServerMetrics:
    """Counters, gauges and histograms of one engine, in a registry of their own.

    Beside vLLM's there are two of our own, by `num_requests`: `dspark_sim:decode_steps_total` and
    `dspark_sim:decode_step_seconds_total`, over steps without prompt tokens.
    """

    def __init__(self, model_name: str, slots: int, gamma: int) -> None:
        self._slots, self.registry = slots, CollectorRegistry()
        self._labels = {"model_name": model_name, "engine": "0"}
        names = [*self._labels]
        values = list(self._labels.values())
        self._gauges = {
            key: Gauge(f"vllm:{key}", text, names, registry=self.registry).labels(*values)
            for key, text in _GAUGES.items()
        }
        counters = _COUNTERS | (_SPECULATION if gamma else {})
        self._counters = {
            key: Counter(f"vllm:{key}", text, names, registry=self.registry).labels(*values)
            for key, text in counters.items()
        }
        self._histograms = {
            key: Histogram(
                f"vllm:{key}", text, names, buckets=buckets, registry=self.registry
            ).labels(*values)
            for key, (text, buckets) in _HISTOGRAMS.items()
        }
        self._positions = []
        if gamma:
            accepted = Counter(
                "vllm:spec_decode_num_accepted_tokens_per_pos",
                "Blocks accepted at least up to this draft position.",
                [*names, "position"],
                registry=self.registry,
            )
            self._positions = [accepted.labels(*values, str(k)) for k in range(gamma)]
        self._success = Counter(
            "vllm:request_success",
            "Finished requests.",
            [*names, "finished_reason"],
            registry=self.registry,
        )
        self._steps = Counter(
            "dspark_sim:decode_steps", "Steps.", [*names, "num_requests"], registry=self.registry
        )
        self._step_seconds = Counter(
            "dspark_sim:decode_step_seconds",
            "Their time.",
            [*names, "num_requests"],
            registry=self.registry,
        )

    def step(self, report: StepReport, running: int, waiting: int) -> None:
        """Count a step; `running` and `waiting` requests are there after it."""
        self._gauges["num_requests_running"].set(running)
        self._gauges["num_requests_waiting"].set(waiting)
        self._gauges["kv_cache_usage_perc"].set(running / self._slots)
        self._counters["prompt_tokens"].inc(report.prefill_tokens)
        self._counters["generation_tokens"].inc(report.output_tokens)
        self._histograms["iteration_tokens_total"].observe(report.batch_tokens)
        if self._positions:
            self._counters["spec_decode_num_drafts"].inc(report.drafting_requests)
            self._counters["spec_decode_num_draft_tokens"].inc(report.verify_tokens)
            self._counters["spec_decode_num_accepted_tokens"].inc(report.accepted_tokens)
            for position, counter in enumerate(self._positions):
                counter.inc(sum(accepted > position for accepted in report.accepted))
        if not report.prefill_tokens:
            labels = {**self._labels, "num_requests": str(report.num_requests)}
            self._steps.labels(**labels).inc()
            self._step_seconds.labels(**labels).inc(report.step_ns / NS_PER_S)

    def idle(self) -> None:
        """Note that nothing is left to do."""
        for gauge in self._gauges.values():
            gauge.set(0)

    def output(self, request: Request, output: Output, last_ns: int, now_ns: int) -> None:
        """Note a chunk of a response; `last_ns` is the time of the one before, -1 of the first."""
        if last_ns < 0:
            self._observe("time_to_first_token_seconds", now_ns - request.arrival_ns)
        else:
            self._observe("inter_token_latency_seconds", now_ns - last_ns)
        if output.finish_reason is not None:
            self._finished(request, output.finish_reason)

    def _finished(self, request: Request, reason: str) -> None:
        self._success.labels(**self._labels, finished_reason=reason).inc()
        decode_ns = request.finish_ns - request.first_token_ns
        self._observe("e2e_request_latency_seconds", request.finish_ns - request.arrival_ns)
        self._observe("request_queue_time_seconds", request.admitted_ns - request.arrival_ns)
        self._observe("request_prefill_time_seconds", request.first_token_ns - request.admitted_ns)
        self._observe("request_decode_time_seconds", decode_ns)
        self._observe("request_inference_time_seconds", request.finish_ns - request.admitted_ns)
        if len(request.tokens) > 1:
            per_token = decode_ns / (len(request.tokens) - 1)
            self._observe("request_time_per_output_token_seconds", per_token)
        self._histograms["request_prompt_tokens"].observe(len(request.prompt))
        self._histograms["request_generation_tokens"].observe(len(request.tokens))

    def _observe(self, name: str, ns: float) -> None:
        self._histograms[name].observe(ns / NS_PER_S)

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)
