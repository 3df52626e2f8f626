"""Probing servers that behave, each engine's metrics, and servers that do not."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pytest

for package in ("starlette", "uvicorn", "httpx"):
    pytest.importorskip(package, reason=f"the extra `serve` ({package}) is not installed")

import uvicorn  # noqa: E402
from command_line import call, strict  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from starlette.applications import Starlette  # noqa: E402
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse  # noqa: E402
from starlette.routing import Route  # noqa: E402

from dspark_sim.core import UserError  # noqa: E402
from dspark_sim.throughput import ProbeSettings, load_profile, probe_server  # noqa: E402
from dspark_sim.throughput.probe_client import Answer  # noqa: E402
from dspark_sim.throughput.probe_loop import Loop, bursts, steady_gaps  # noqa: E402
from dspark_sim.throughput.probe_metrics import engine_step_ms, read_metrics, speculation  # noqa: E402

TIMEOUT_S = 30
STEP_S = 0.004
OUTPUT = 16


@dataclass
class Fake:
    """A server whose every chunk takes a step; `fault` says how it misbehaves from `from_load`."""

    fault: str = ""
    from_load: int = 1
    tokens_per_chunk: int = 1
    usage: bool = True
    metrics: str = ""
    slots: int = 99
    running: int = 0
    bodies: list = field(default_factory=list)
    keys: list = field(default_factory=list)
    chunks: int = 0
    requests: int = 0
    on_load: int = 0
    then: Callable[[], None] = lambda: None

    def app(self):
        return Starlette(
            routes=[
                Route("/v1/models", self.models),
                Route("/v1/completions", self.complete, methods=["POST"]),
                Route("/health", lambda request: Response()),
                Route("/metrics", self.show_metrics),
            ]
        )

    async def models(self, request):
        if self.fault == "no models":
            return PlainTextResponse("<html>a shop</html>")
        return JSONResponse({"data": [{"id": "mini"}]})

    async def show_metrics(self, request):
        if not self.metrics:
            return Response(status_code=404)
        steps = self.chunks - self.requests
        return PlainTextResponse(self.metrics.format(drafts=steps, **per_step(steps)))

    async def complete(self, request):
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("authorization"))
        if self.running + 1 == self.on_load:
            self.then()
        fault = self.fault if self.running + 1 >= self.from_load else ""
        if fault == "HTTP 500":
            return JSONResponse({"error": {"message": "out of memory"}}, 500)
        if fault == "one piece":
            return JSONResponse({"choices": [{"text": "a b c", "finish_reason": "length"}]})
        return StreamingResponse(self.events(body, fault), media_type="text/event-stream")

    async def events(self, body, fault):
        while self.running >= self.slots:
            await asyncio.sleep(STEP_S)
        self.running += 1
        self.requests += 1
        try:
            for done in self.progress(body["max_tokens"]):
                if done > 1 and fault != "one chunk":
                    await next_step()
                if fault == "slow":
                    await asyncio.sleep(TIMEOUT_S)
                if fault == "one chunk" and done < body["max_tokens"]:
                    continue
                if fault == "invalid JSON" and done > 1:
                    yield "data: {oops\n\n"
                if fault == "broken off" and done > 1:
                    return
                if fault == "error event" and done > 1:
                    yield 'data: {"error": {"message": "engine died"}}\n\n'
                self.chunks += 1
                yield f"data: {json.dumps(self.chunk(done, body['max_tokens']))}\n\n"
            yield "data: [DONE]\n\n"
        finally:
            self.running -= 1

    def progress(self, tokens):
        return [*range(1, tokens, self.tokens_per_chunk), tokens]

    def chunk(self, done, tokens):
        ending = "length" if done >= tokens else None
        chunk = {"choices": [{"text": "a", "finish_reason": ending}]}
        if self.usage:
            chunk["usage"] = {"prompt_tokens": 5, "completion_tokens": done}
        return chunk


async def next_step():
    """Wait as if one engine stepped for all streams."""
    end = (time.monotonic() // STEP_S + 1) * STEP_S
    while (left := end - time.monotonic()) > 0:
        await asyncio.sleep(left)


def per_step(steps):
    return {
        "doubled": 2 * steps,
        "tokens": 3 * steps,
        "accepted": 1.5 * steps,
        "seconds": steps * STEP_S / 2,
    }


VLLM = """# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="mini"}} {drafts}
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="mini"}} {tokens}
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="mini"}} {accepted}
"""
LLAMA = VLLM.replace("vllm:", "llamacpp:").replace('{{engine="0",model_name="mini"}}', "")
SGLANG = """sglang:spec_accept_length{{model_name="mini",tp_rank="0"}} 2.5
sglang:spec_accept_length{{model_name="mini",tp_rank="1"}} 2.5
sglang:spec_num_draft_tokens{{model_name="mini"}} 4
"""
OURS = """dspark_sim:decode_steps_total{{num_requests="1"}} {drafts}
dspark_sim:decode_step_seconds_total{{num_requests="1"}} {seconds}
"""


@contextlib.contextmanager
def serving(app):
    """The address of a server in a thread of this process."""
    config = uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while not server.started:
                assert time.monotonic() < deadline
                time.sleep(0.005)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def probe(fake, *concurrency, **settings):
    with serving(fake.app()) as url:
        asked = {"output_tokens": OUTPUT, "max_seconds": TIMEOUT_S, "steps": 10, **settings}
        return probe_server(ProbeSettings(url, concurrency=concurrency, **asked))


def run(url, *more):
    return call("profile", "probe", "--base-url", url, "--out", "mine", "--steps", 10, *more)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_load_gets_a_row_of_steps_that_take_as_long_as_they_do():
    fake = Fake()
    probed = probe(fake, 4, 1)
    levels = probed.levels
    assert list(levels["num_requests"]) == list(levels["batch_tokens"]) == [1, 4]
    assert (levels["n"] >= 8).all()
    assert (levels["ms"] > 1e3 * STEP_S / 2).all()
    assert (levels["p10_ms"] <= levels["ms"]).all()
    assert (levels["ms"] <= levels["p90_ms"]).all()
    assert levels["overhead_ms"].isna().all()
    assert (probed.model, probed.engine, probed.failure, probed.left_out) == (
        "mini", None, None, (),
    )  # fmt: skip
    assert probed.health_ms > 0
    assert probed.request_ms > 0
    body = fake.bodies[-1]
    assert (body["max_tokens"], body["temperature"], body["ignore_eos"]) == (OUTPUT, 0.0, True)
    assert len({body["prompt"] for body in fake.bodies}) > 4


@pytest.mark.parametrize(
    ("text", "engine"), [(VLLM, "vLLM"), (LLAMA, "llama.cpp"), (SGLANG, "SGLang")]
)
def test_reported_speculation_tells_what_a_step_verifies(text, engine):
    probed = probe(Fake(metrics=text, tokens_per_chunk=2), 2)
    (row,) = probed.levels.to_dict("records")
    assert probed.engine == engine
    assert row["num_speculative_tokens"] == pytest.approx(3)
    assert row["batch_tokens"] == 2 * (1 + 3)
    assert row["acceptance_length"] == pytest.approx(2.5)
    assert 1.5 < row["tokens_per_chunk"] <= 2


def test_a_server_that_tells_its_own_steps_has_their_overhead_in_a_column_of_its_own(folder):
    with serving(Fake(metrics=OURS).app()) as url:
        code, out, err = run(url, "--concurrency", "1", "--output-tokens", OUTPUT, "--json")
    assert code == 0, err
    about = strict(out)
    (row,) = about["levels"]
    assert row["engine_ms"] == pytest.approx(1e3 * STEP_S / 2)
    assert row["engine_steps"] > 0
    assert row["overhead_ms"] > 0
    assert row["net_ms"] == pytest.approx(row["ms"] - row["overhead_ms"])
    mine = load_profile("./mine")
    assert mine.verify_ms(1) == pytest.approx(row["net_ms"], abs=1e-5)
    assert "Subtracted" in mine.provenance["overhead"]
    assert pd.read_csv("mine/probe.csv")["ms"][0] == pytest.approx(row["ms"], abs=1e-5)


def test_the_profile_of_a_probe_is_swept(folder):
    with serving(Fake(metrics=VLLM).app()) as url:
        code, out, err = run(
            url, "--concurrency", "1,2", "--output-tokens", OUTPUT,
            "--set", "gpu=H100",
        )  # fmt: skip
    assert code == 0, err
    assert "batch_tokens" in out
    assert "Nothing is subtracted" in out
    mine = load_profile("./mine")
    assert mine.provenance["assumed"].startswith("Not told by the server")
    assert (mine.gpu, mine.drafter, mine.draft_in_verify) == ("H100", "block", True)
    assert list(mine.verify["batch_tokens"]) == [4, 8]
    assert list(mine.verify["num_requests"]) == [1, 2]
    code, out, err = call(
        "sweep", "--profile", "./mine", "--trace", "synth:fixed,in=8,out=8", "--policy", "fixed:3",
        "--concurrency", "1,2", "--requests", "8", "--prefill", "none", "--extend",
        "--json", "--jobs", "1",
    )  # fmt: skip
    assert code == 0, err
    assert len(strict(out)) == 2


def test_speculation_that_is_not_reported_is_noted_and_can_be_told(folder):
    with serving(Fake(tokens_per_chunk=3).app()) as url:
        command = (url, "--concurrency", "1", "--output-tokens", "24")
        assert run(*command)[0] == 0
        untold = load_profile("./mine")
        assert run(*command, "--num-speculative-tokens", "5")[0] == 0
    assert untold.drafter == "none"
    assert "reports no drafts" in untold.provenance["speculation"]
    assert list(load_profile("./mine").verify["batch_tokens"]) == [6]


def test_a_server_whose_chunks_hold_several_steps_is_found_out(folder):
    double = VLLM.replace("{drafts}", "{doubled}")
    with serving(Fake(metrics=double, tokens_per_chunk=4).app()) as url:
        code, out, _ = run(url, "--concurrency", "1", "--output-tokens", "48")
    assert code == 0
    assert "bundled: The server counts up to 2 drafts per chunk" in out
    assert "bundled" in load_profile("./mine").provenance


def test_a_server_without_usage_is_counted_by_its_chunks():
    (row,) = probe(Fake(usage=False), 2).levels.to_dict("records")
    assert row["n"] >= 8
    assert np.isnan(row["tokens_per_chunk"])
    assert row["kv_tokens_read"] == 0


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("HTTP 500", "answered HTTP 500 to /v1/completions: out of memory"),
        ("one piece", "does not stream: it answered 'application/json'"),
        ("one chunk", "does not stream: 64 tokens came as one chunk"),
        ("invalid JSON", "sent invalid JSON in a stream: {oops"),
        ("broken off", "broke a stream off after 1 chunks"),
        ("error event", "broke a stream off: engine died"),
        ("no models", "sent invalid JSON in /v1/models: <html>a shop</html>"),
        ("slow", "is too slow"),
    ],
)
def test_a_bad_server_is_one_sentence(folder, fault, words):
    short = ("--max-seconds", "0.5") if fault == "slow" else ()
    with serving(Fake(fault).app()) as url:
        code, out, err = run(url, "--concurrency", "1", *short)
    assert (code, out) == (2, "")
    sentence = err.splitlines()[-1]
    assert sentence.startswith(f"dspark-sim: {url}")
    assert words in sentence
    assert "Traceback" not in err
    assert not (folder / "mine").exists()


@pytest.mark.parametrize("fault", ["HTTP 500", "invalid JSON", "broken off"])
def test_what_was_measured_before_a_fault_is_kept(folder, fault):
    with serving(Fake(fault, from_load=2).app()) as url:
        code, out, err = run(url, "--concurrency", "1..4", "--output-tokens", OUTPUT)
    assert code == 2
    assert "num_requests" in out
    assert err.splitlines()[-1].endswith("; mine keeps R = 1")
    mine = load_profile("./mine")
    assert list(mine.verify["num_requests"]) == [1]
    assert (
        "R = 2: the server failed; R = 4: the server failed before" in mine.provenance["left_out"]
    )


def test_an_interrupted_probe_keeps_what_it_has(folder):
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    fake = Fake(on_load=2, then=lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        with serving(fake.app()) as url:
            code, out, err = run(url, "--concurrency", "1..4", "--output-tokens", OUTPUT)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert code == 2
    assert "num_requests" in out
    assert err.splitlines()[-1] == "dspark-sim: interrupted; mine keeps R = 1"
    left_out = load_profile("./mine").provenance["left_out"]
    assert left_out == "R = 2: it was interrupted; R = 4: it was interrupted before."


def test_the_key_of_a_protected_server_is_sent(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    fake = Fake()
    probe(fake, 1)
    assert set(fake.keys) == {"Bearer secret"}


def test_a_load_that_never_decodes_at_once_is_named_and_the_rest_kept():
    probed = probe(Fake(slots=2), 2, 4, max_seconds=3.0)
    assert list(probed.levels["num_requests"]) == [2]
    assert probed.failure is None
    assert [reason.partition(":")[0] for reason in probed.left_out] == ["R = 4"]


def test_what_the_time_does_not_reach_is_named_and_the_rest_kept():
    probed = probe(Fake("slow", from_load=2), 1, 2, 4, max_seconds=4.0)
    assert list(probed.levels["num_requests"]) == [1]
    assert probed.failure is None
    assert [reason.partition(" (")[0] for reason in probed.left_out] == [
        "R = 2: its time was up",
        "R = 4: its time was up",
    ]


def test_a_refused_connection_a_foreign_model_and_a_wrong_address_are_named(folder):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    code, _, err = run(f"http://127.0.0.1:{port}")
    assert (code, err.count("\n")) == (2, 1)
    assert "nobody answers" in err
    with serving(Fake().app()) as url:
        code, _, err = run(f"{url}/v1", "--model", "maxi")
    assert (code, err) == (2, f"dspark-sim: {url} has no model 'maxi'; it has: mini\n")
    code, _, err = run("nowhere")
    assert (code, err.count("\n")) == (2, 1)
    assert "is no address" in err
    code, _, err = run("http://127.0.0.1:99999")
    assert (code, err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--set", "gpus=1"), "unknown key 'gpus'"),
        (("--set", "num_gpus=0"), "num_gpus must be"),
        (("--out", "taken"), "taken: is a file, a folder is needed"),
        (("--concurrency", "0"), "--concurrency must be whole numbers"),
        (("--output-tokens", "2"), "output_tokens must be 8 or more"),
    ],
)
def test_a_mistake_is_told_before_the_server_is_asked(folder, more, words):
    (folder / "taken").write_text("", encoding="utf-8")
    code, _, err = run("http://127.0.0.1:1", *more)
    assert (code, err.count("\n")) == (2, 1)
    assert words in err


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"concurrency": ()}, "concurrency must be"),
        ({"output_tokens": 4}, "output_tokens must be 8 or more, got 4"),
        ({"max_seconds": 0.0}, "max_seconds must be above 0, got 0"),
        ({"max_seconds": float("nan")}, "max_seconds must be above 0"),
        ({"temperature": -1.0}, "temperature must be 0 or more, got -1"),
        ({"draft_len": -1}, "draft_len must be 0 or more"),
        ({"steps": 3}, "steps must be 8 or more, got 3"),
    ],
)
def test_a_setting_out_of_range_is_named(settings, words):
    with pytest.raises(UserError, match=words):
        ProbeSettings("http://x", **settings)


def test_only_gaps_count_in_which_all_decode():
    first, second = np.arange(0.0, 10.0), np.arange(3.0, 8.0)
    assert list(steady_gaps([first, second], 2)) == [1.0] * 8
    assert list(steady_gaps([first, second], 1)) == [1.0] * 5
    assert len(steady_gaps([first, second], 3)) == 0
    assert len(steady_gaps([], 1)) == 0


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(2, 9)), min_size=1, max_size=6))
def test_steady_gaps_are_those_that_a_plain_count_finds(spans):
    requests = [np.arange(start, start + count, dtype=float) for start, count in spans]
    for load in range(1, len(requests) + 1):
        expected = 0
        for times in requests:
            for start in times[:-1]:
                decoding = sum(r[0] <= start < r[-1] for r in requests)
                expected += decoding == load
        assert len(steady_gaps(requests, load)) == expected


def test_chunks_of_one_burst_are_one_step():
    answer = Answer(0.0, [0.0, 1.0, 1.01, 1.02, 2.0, 2.01, 3.0])
    (times,) = bursts([answer])
    assert list(times) == [0.0, 1.0, 2.0, 3.0]
    assert bursts([Answer(0.0)]) == []
    answer.tokens, answer.ended = 7, True
    assert Loop(1, [answer]).tokens_per_chunk() == 2.0


def test_a_rare_short_gap_is_a_step():
    times = [*range(20), 19.01]
    assert list(bursts([Answer(0.0, times)])[0]) == times


def test_a_last_chunk_without_output_is_no_step():
    answer = Answer(0.0)
    answer.take({"choices": [{"text": "a", "finish_reason": None}]}, 1.0)
    answer.take({"choices": [{"text": "", "finish_reason": None}]}, 2.0)
    answer.take({"choices": [{"text": "", "finish_reason": "length"}]}, 2.1)
    answer.take({"choices": [], "usage": {"completion_tokens": 2}}, 2.2)
    assert (answer.chunks_s, answer.ended, answer.tokens) == ([1.0, 2.0], True, 2)


def test_metrics_text_is_summed_over_labels_and_counted_from_before_to_after():
    before = read_metrics(VLLM.format(drafts=10, tokens=30, accepted=10))
    after = read_metrics(
        VLLM.format(drafts=30, tokens=90, accepted=40)
        + 'vllm:x{a="1"} 1\nvllm:x{a="2",b="q\\"}"} 2 1700000000\nvllm:x NaN\nrubbish\nbad{ one\n'
    )
    assert (after.engine, after.counts["vllm:x"]) == ("vLLM", 2)
    found = speculation(before, after)
    assert (found.draft_len, found.acceptance_length) == (3, 2.5)
    reset = speculation(after, before)
    assert np.isnan(reset.draft_tokens)
    assert engine_step_ms(before, after, 1)[1] == 0
    own = [
        read_metrics(OURS.format(drafts=steps, seconds=seconds))
        for steps, seconds in [(10, 1), (20, 2)]
    ]
    assert engine_step_ms(*own, 1) == (pytest.approx(100.0), 10)
    assert engine_step_ms(*own, 2)[1] == 0


def test_the_real_server_is_probed_with_its_own_steps_beside():
    pytest.importorskip("torch", reason="the extra `model` (torch) is not installed")
    pytest.importorskip("tokenizers", reason="the extra `model` (tokenizers) is not installed")
    pytest.importorskip("prometheus_client", reason="the extra `serve` is not installed")
    from test_model_server import new_service, running

    with running(new_service()) as client:
        settings = ProbeSettings(
            str(client.base_url), concurrency=(1, 2), output_tokens=32, steps=20
        )
        probed = probe_server(settings)
    levels = probed.levels
    assert (probed.engine, probed.model, probed.failure) == ("dspark-sim serve", "nano", None)
    assert list(levels["num_requests"]) == [1, 2]
    assert (levels["engine_steps"] > 0).all()
    assert (levels["overhead_ms"] >= 0).all()
    assert (levels["net_ms"] > 0).all()
    assert (levels["batch_tokens"] >= levels["num_requests"]).all()
    assert (levels["acceptance_length"] >= 1).all()
