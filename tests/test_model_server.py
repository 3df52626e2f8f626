from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch", reason="the extra `model` (torch) is not installed")
pytest.importorskip("tokenizers", reason="the extra `model` (tokenizers) is not installed")
for package in ("starlette", "uvicorn", "httpx", "prometheus_client"):
    pytest.importorskip(package, reason=f"the extra `serve` ({package}) is not installed")

import httpx  # noqa: E402
from command_line import call  # noqa: E402
from model_lively import lively_target  # noqa: E402
from model_nano import nano_drafter  # noqa: E402

from dspark_sim.core import RunError, UserError  # noqa: E402
from dspark_sim.model.corpus import FORMAT, train_tokenizer  # noqa: E402
from dspark_sim.model.engine import Engine, Limits, Sampling  # noqa: E402
from dspark_sim.model.generate import Decoding, generate  # noqa: E402
from dspark_sim.model.server import Server, Service, listen, serve  # noqa: E402
from dspark_sim.model.server.text import Detokenizer  # noqa: E402
from dspark_sim.model.weights import save_weights  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TARGET = lively_target(300)
TOKENIZER = train_tokenizer(["a b c"], 300)
LONGEST = 2048
MUCH = 1900
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
TIMEOUT_S = 60


def new_service(policy: str = "threshold:0.3") -> Service:
    drafter = nano_drafter("dspark-markov", TARGET)
    limits = Limits(2, 64, LONGEST)
    engine = Engine(TARGET, drafter, policy, limits, sampling=Sampling(1.0))
    engine.warm_up()
    return Service(engine, TOKENIZER, FORMAT, "nano")


@contextlib.contextmanager
def running(service: Service) -> Iterator[httpx.Client]:
    """A client of a server that runs in a thread of this process."""
    server = Server(service)
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT_S) as client:
                wait_for(lambda: server.started)
                yield client
        finally:
            server.leave()
            thread.join()


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with running(new_service()) as found:
        yield found


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def greedy_text(prompt: str | list[int], tokens: int) -> str:
    ids = TOKENIZER.encode(prompt).ids if isinstance(prompt, str) else prompt
    (answer,) = generate(TARGET, [ids], Decoding(tokens, temperature=0.0))
    return TOKENIZER.decode(answer, skip_special_tokens=True)


def events(client: httpx.Client, url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a stream, which must end as OpenAI's do."""
    with client.stream("POST", url, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def metrics(client: httpx.Client) -> dict[str, float]:
    """Every sample of /metrics by name and labels, those of the one engine left out."""
    found = {}
    for line in client.get("/metrics").text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name = re.sub(r'(engine|model_name)="[^"]*",?', "", name).replace("{}", "")
            found[name.replace(",}", "}")] = float(value)
    return found


@pytest.mark.parametrize("prompt", ["abc cab", [5, 6, 7], ["abc cab"], [[5, 6, 7]]])
def test_a_completion_is_the_targets_own(client: httpx.Client, prompt: Any) -> None:
    body = {"model": "nano", "prompt": prompt, "max_tokens": 12, **GREEDY}
    answer = client.post("/v1/completions", json=body).json()
    single = prompt[0] if isinstance(prompt[0], str | list) and len(prompt) == 1 else prompt
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"] == greedy_text(single, 12)
    assert answer["choices"][0]["finish_reason"] == "length"
    count = len(TOKENIZER.encode(single).ids if isinstance(single, str) else single)
    assert answer["usage"] == {
        "prompt_tokens": count,
        "completion_tokens": 12,
        "total_tokens": count + 12,
    }


def test_a_stream_says_the_same_in_one_chunk_per_step(client: httpx.Client) -> None:
    before = metrics(client)
    body = {"prompt": "abc", "max_tokens": 20, **GREEDY}
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    *chunks, last = events(client, "/v1/completions", body | options)
    assert "".join(c["choices"][0]["text"] for c in chunks) == greedy_text("abc", 20)
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + [
        "length"
    ]
    assert last["choices"] == []
    counts = [c["usage"]["completion_tokens"] for c in chunks]
    assert counts[0] == 1
    assert counts[-1] == 20 == last["usage"]["completion_tokens"]
    steps = metrics(client)["vllm:iteration_tokens_total_count"]
    assert len(chunks) == steps - before["vllm:iteration_tokens_total_count"]
    assert len({c["id"] for c in [*chunks, last]}) == 1


def test_a_stream_without_options_has_no_usage(client: httpx.Client) -> None:
    chunks = events(client, "/v1/completions", {"prompt": "a", "max_tokens": 3, **GREEDY})
    assert all("usage" not in chunk for chunk in chunks)


def test_chat_speaks_in_the_targets_format(client: httpx.Client) -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    body = {"messages": messages, "max_completion_tokens": 9, **GREEDY}
    expected = greedy_text(FORMAT.prompt(["be brief\n\nab", "c", "d"]), 9)
    answer = client.post("/v1/chat/completions", json=body).json()
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": expected}
    chunks = events(client, "/v1/chat/completions", body)
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert [delta.get("role") for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(delta["content"] for delta in deltas) == expected


def test_an_answer_ends_at_the_end_token_unless_that_is_ignored(client: httpx.Client) -> None:
    body = {"prompt": "abc", "max_tokens": 40, "seed": 33, "temperature": 2.0}
    stopped = client.post("/v1/completions", json=body).json()
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert stopped["usage"]["completion_tokens"] < 40
    ignored = client.post("/v1/completions", json={**body, "ignore_eos": True}).json()
    assert ignored["usage"]["completion_tokens"] == 40
    assert ignored["choices"][0]["text"].startswith(stopped["choices"][0]["text"])


def test_a_seed_repeats_a_sampled_answer(client: httpx.Client) -> None:
    def text(**more: Any) -> str:
        body = {"prompt": "abc", "max_tokens": 16, "ignore_eos": True, **more}
        return client.post("/v1/completions", json=body).json()["choices"][0]["text"]

    assert text(seed=1) == text(seed=1) != text(seed=2)
    assert text() != text()


def test_requests_beyond_the_slots_wait_and_are_all_served(client: httpx.Client) -> None:
    answers: dict[int, str] = {}

    def ask(length: int) -> None:
        body = {"prompt": "abc", "max_tokens": length, **GREEDY}
        found = client.post("/v1/completions", json=body).json()
        answers[length] = found["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(length,)) for length in range(10, 16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {length: greedy_text("abc", length) for length in range(10, 16)}


def test_metrics_move_under_vllms_names(client: httpx.Client) -> None:
    before = metrics(client)
    body = {"prompt": "abc", "max_tokens": 30, **GREEDY}
    chunks = events(client, "/v1/completions", body)
    after = metrics(client)

    def grown(name: str) -> float:
        return after[f"vllm:{name}"] - before.get(f"vllm:{name}", 0.0)

    steps = len(chunks) - 1
    assert grown("generation_tokens_total") == 30
    assert grown("prompt_tokens_total") == len(TOKENIZER.encode("abc").ids)
    assert grown("spec_decode_num_drafts_total") == steps
    assert steps + grown("spec_decode_num_accepted_tokens_total") >= 29
    positions = [
        f'spec_decode_num_accepted_tokens_per_pos_total{{position="{k}"}}' for k in range(4)
    ]
    by_position = [grown(name) for name in positions]
    assert sum(by_position) == grown("spec_decode_num_accepted_tokens_total")
    assert by_position == sorted(by_position, reverse=True)
    assert grown("time_to_first_token_seconds_count") == 1
    assert grown("inter_token_latency_seconds_count") == steps
    for name in ("e2e_request_latency", "request_queue_time", "request_prefill_time"):
        assert grown(f"{name}_seconds_count") == 1
    assert grown('request_success_total{finished_reason="length"}') == 1
    mine = 'dspark_sim:decode_steps_total{num_requests="1"}'
    assert after[mine] - before.get(mine, 0.0) == steps
    assert after["vllm:num_requests_running"] == after["vllm:num_requests_waiting"] == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot(client: httpx.Client, stream: bool) -> None:
    before = metrics(client)["vllm:generation_tokens_total"]
    body = {"prompt": "abc", "max_tokens": MUCH, "stream": stream, **GREEDY}
    if stream:
        with client.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_lines())
    else:
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/completions", json=body, timeout=0.2)
    wait_for(lambda: metrics(client)["vllm:num_requests_running"] == 0)
    assert metrics(client)["vllm:generation_tokens_total"] - before < MUCH


def test_models_and_health_answer(client: httpx.Client) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == ("nano", LONGEST)
    assert client.get("/health").status_code == 200


TALK = [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("url", "body", "status", "param", "message"),
    [
        ("completions", "{", 400, None, "Invalid JSON"),
        ("completions", "[1]", 400, None, "an object"),
        ("completions", {}, 400, "prompt", "prompt: Field required"),
        ("completions", {"prompt": 5}, 400, "prompt", "one text or one list of token ids"),
        ("completions", {"prompt": ["a", "b"]}, 400, "prompt", "one text or one list"),
        ("completions", {"prompt": ""}, 400, None, "the prompt is empty"),
        ("completions", {"prompt": [300]}, 400, None, "prompt tokens must lie in 0..299"),
        ("completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens", "greater than"),
        ("completions", {"prompt": "a", "max_tokens": 4096}, 400, None, "context length of 2048"),
        ("completions", {"prompt": "a", "temperature": -1}, 400, "temperature", "greater than"),
        ("completions", {"prompt": "a", "stream": "yes"}, 400, "stream", "valid boolean"),
        ("completions", {"prompt": "a", "n": 2}, 400, None, "n = 2 is not supported"),
        ("completions", {"prompt": "a", "stop": ["x"]}, 400, None, "stop = ['x'] is not supported"),
        ("completions", {"prompt": "a", "model": "gpt"}, 404, "model", "'gpt' does not exist"),
        ("chat/completions", {"messages": []}, 400, "messages", "at least 1 item"),
        ("chat/completions", {"messages": TALK * 2}, 400, "messages", "must alternate"),
        ("chat/completions", {"messages": [{"role": "x"}]}, 400, "messages.0.role", "Input should"),
        ("nowhere", {}, 404, None, "Not Found"),
    ],
)  # fmt: skip
def test_a_bad_request_gets_openais_error(
    client: httpx.Client, url: str, body: Any, status: int, param: str | None, message: str
) -> None:
    content = body if isinstance(body, str) else json.dumps(body)
    answer = client.post(f"/v1/{url}", content=content)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert message in error["message"]


def test_what_vllms_benchmark_sends_is_accepted(client: httpx.Client) -> None:
    body = {
        "model": "nano", "prompt": "a", "max_tokens": 3, "temperature": 0.0, "top_p": 1.0,
        "repetition_penalty": 1.0, "logprobs": None, "best_of": 1, "n": 1, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True}, "user": "me",
    }  # fmt: skip
    assert events(client, "/v1/completions", body)[-1]["usage"]["completion_tokens"] == 3


def test_small_chunks_are_not_held_back_to_be_sent_together() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # asyncio turns Nagle's algorithm off for it


def test_an_engine_that_fails_ends_its_answers_with_an_error_and_the_server() -> None:
    service = new_service()

    def broken() -> None:
        raise ValueError("no luck")

    service.engine.step = broken  # type: ignore[method-assign,assignment]
    message = "the engine failed: ValueError: no luck"
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        raised: list[BaseException] = []

        def run() -> None:
            try:
                serve(service, listener)
            except RunError as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT_S) as client:
            wait_for(lambda: service.worker.alive)
            answer = client.post("/v1/completions", json={"prompt": "a"})
        thread.join()
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == message
    assert [str(error) for error in raised] == [message]


def test_stopping_ends_open_answers_as_aborted() -> None:
    service = new_service("fixed:1")
    with running(service) as client:
        body = {"prompt": "abc", "max_tokens": MUCH, "stream": True, **GREEDY}
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = (line for line in response.iter_lines() if line)
            next(lines)
            service.worker.stop()
            *_, last, done = lines
        assert done == "data: [DONE]"
        choice = json.loads(last.removeprefix("data: "))["choices"][0]
        assert choice["finish_reason"] == "abort"
        assert client.get("/health").status_code == 503


def test_text_waits_for_the_rest_of_a_character() -> None:
    ids = TOKENIZER.encode("aé☃b").ids
    whole, text = Detokenizer(TOKENIZER), ""
    pieces = [whole.add([token], last=index == len(ids) - 1) for index, token in enumerate(ids)]
    assert "".join(pieces) == "aé☃b"
    assert len(ids) == 7
    assert pieces[1] == pieces[3] == text
    assert Detokenizer(TOKENIZER).add(ids[:2], last=True) == "a\ufffd"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org"])
def test_only_the_loopback_is_listened_on(host: str) -> None:
    code, out, err = call("serve", "--host", host)
    assert (code, out) == (2, "")
    assert err.startswith(f"dspark-sim: --host {host}: ")
    assert "this machine only; allowed: 127.0.0.1, localhost, ::1" in err


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"--port {port}: cannot listen on 127.0.0.1"):
            listen("127.0.0.1", port)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    place = tmp_path / "nano"
    place.mkdir()
    TOKENIZER.save(str(place / "tokenizer.json"))
    save_weights(place / "target.safetensors", TARGET, TARGET.config)
    drafter = nano_drafter("dspark-markov", TARGET)
    save_weights(place / "dspark-markov.safetensors", drafter, drafter.config)
    return tmp_path


def test_the_command_serves_until_it_is_interrupted(weights: Path) -> None:
    command = [sys.executable, "-m", "dspark_sim", "serve", "--target", "nano", "--port", "0"]
    command += ["--drafter", "dspark-markov", "--max-num-seqs", "2", "--weights", str(weights)]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert process.stderr is not None
    try:
        url = next(
            line.split()[-1] for line in process.stderr if line.startswith("serving nano at ")
        )
        body = {"prompt": "abc", "max_tokens": 5, **GREEDY}
        wait_for(lambda: healthy(url))
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=TIMEOUT_S).json()
        assert answer["usage"]["completion_tokens"] == 5
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.stderr.close()


def healthy(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/health", timeout=TIMEOUT_S).status_code == 200
    return False
