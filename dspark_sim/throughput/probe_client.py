"""Asking an OpenAI-compatible server, and what each of its failures is called (httpx)."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dspark_sim.core import UserError
from dspark_sim.throughput.probe_metrics import Metrics, read_metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

_PATIENCE_S = 30.0
_LONGEST_WORDS = 200
NO_METRICS = Metrics({}, {}, {})


@dataclass
class Answer:
    """One streamed answer, as it comes in.

    Attributes
    ----------
    sent_s : float
        When it was asked for, on the clock of `time.perf_counter`.
    chunks_s : list of float
        When each chunk with output came.
    tokens, prompt_tokens : int or None
        What the server's usage counts so far, if it counts.
    ended : bool
        Whether the server ended it.
    """

    sent_s: float
    chunks_s: list[float] = field(default_factory=list)
    tokens: int | None = None
    prompt_tokens: int | None = None
    ended: bool = False

    def take(self, event: dict[str, Any], now_s: float) -> None:
        """Note an event of the stream; one without new output is no chunk."""
        before, usage = self.tokens, event.get("usage")
        if isinstance(usage, dict):
            self.tokens = _count(usage, "completion_tokens")
            self.prompt_tokens = _count(usage, "prompt_tokens")
        for choice in event.get("choices") or []:
            said = choice.get("delta") or choice
            ending = choice.get("finish_reason") is not None
            if isinstance(usage, dict) and self.tokens is not None:
                new = self.tokens > (before or 0)
            else:
                new = bool(said.get("text") or said.get("content")) or not ending
            if new:
                self.chunks_s.append(now_s)
            self.ended |= ending


def _count(usage: dict[str, Any], key: str) -> int | None:
    value = usage.get(key)
    return value if isinstance(value, int) else None


class Endpoint:
    """A server under test; every failure of it is a UserError of one sentence.

    Parameters
    ----------
    client : httpx.AsyncClient
    base_url : str
        With or without the trailing /v1.
    """

    def __init__(self, client: httpx.AsyncClient, base_url: str) -> None:
        self._client = client
        self.url = base_url.rstrip("/").removesuffix("/v1")
        self.model: str | None = None

    async def find_model(self, name: str | None) -> str:
        """Return the model to ask for: the named one, if the server has it, or its first."""
        response = await self._get("/v1/models")
        if response.status_code == 404 and name is not None:
            known = [name]
        else:
            known = self._models(response)
        if name is not None and name not in known:
            raise UserError(f"{self.url} has no model '{name}'; it has: {', '.join(known)}")
        self.model = known[0] if name is None else name
        return self.model

    def _models(self, response: httpx.Response) -> list[str]:
        self._check(response, response.text)
        body = self._json(response.text, "/v1/models")
        data = body.get("data")
        names = [m.get("id") for m in data if isinstance(m, dict)] if isinstance(data, list) else []
        known = [name for name in names if isinstance(name, str)]
        if not known:
            raise UserError(f"{self.url}/v1/models names no model: not an OpenAI-compatible list")
        return known

    async def metrics(self) -> Metrics:
        """Return what /metrics says; a server without it says nothing."""
        response = await self._get("/metrics")
        return read_metrics(response.text) if response.status_code == 200 else NO_METRICS

    async def health_s(self) -> float | None:
        """Return the time of one /health; None where the server has none."""
        start = time.perf_counter()
        response = await self._get("/health")
        return time.perf_counter() - start if response.status_code == 200 else None

    async def complete(self, answer: Answer, prompt: str, tokens: int, temperature: float) -> None:
        """Stream one completion of exactly `tokens` tokens into `answer`."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": temperature,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        async with (
            self._sentences(),
            self._client.stream("POST", f"{self.url}/v1/completions", json=body) as response,
        ):
            _acknowledge(response)
            if response.status_code != 200:
                self._check(response, (await response.aread()).decode(errors="replace"))
            kind = response.headers.get("content-type", "")
            if "event-stream" not in kind:
                raise UserError(
                    f"{self.url} does not stream: it answered '{kind}' to a streamed completion"
                )
            async for line in response.aiter_lines():
                now_s = time.perf_counter()
                _acknowledge(response)
                self._take(answer, line, now_s)
        if not answer.ended:
            raise UserError(f"{self.url} broke a stream off after {len(answer.chunks_s)} chunks")

    def _take(self, answer: Answer, line: str, now_s: float) -> None:
        """Note a line of a stream."""
        field_name, colon, value = line.partition(":")
        if field_name != "data" or not colon:
            return
        if value.strip() == "[DONE]":
            answer.ended = bool(answer.chunks_s)
            return
        event = self._json(value, "a stream")
        if "error" in event:
            raise UserError(f"{self.url} broke a stream off: {_message(event)}")
        try:
            answer.take(event, now_s)
        except (AttributeError, TypeError):
            raise UserError(f"{self.url} streams no OpenAI chunks: {_brief(value)}") from None

    async def _get(self, path: str) -> httpx.Response:
        async with self._sentences():
            return await self._client.get(self.url + path)

    def _json(self, text: str, where: str) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = None
        if not isinstance(value, dict):
            raise UserError(f"{self.url} sent invalid JSON in {where}: {_brief(text)}")
        return value

    def _check(self, response: httpx.Response, text: str) -> None:
        """Raise for an answer that is not 200."""
        if response.status_code == 200:
            return
        try:
            said = _message(json.loads(text))
        except json.JSONDecodeError:
            said = _brief(text)
        path = response.request.url.path
        raise UserError(f"{self.url} answered HTTP {response.status_code} to {path}: {said}")

    @asynccontextmanager
    async def _sentences(self) -> AsyncIterator[None]:
        import httpx

        try:
            yield
        except httpx.ConnectError:
            raise UserError(
                f"nobody answers at {self.url}: the connection was refused or the host is unknown"
            ) from None
        except httpx.TimeoutException:
            raise UserError(
                f"{self.url} is too slow: it said nothing for {self._client.timeout.read:g} s"
            ) from None
        except httpx.InvalidURL as error:
            raise UserError(f"'{self.url}' is no address: {error}") from None
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise UserError(f"{self.url} broke the connection off: {_brief(reason)}") from None


def _acknowledge(response: httpx.Response) -> None:
    """Acknowledge what came at once (Linux): a server with Nagle's algorithm waits for it."""
    stream = response.extensions.get("network_stream")
    link = None if stream is None else stream.get_extra_info("socket")
    if link is not None and hasattr(socket, "TCP_QUICKACK"):
        with suppress(OSError):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _message(body: Any) -> str:
    """Return the words of an error body, in OpenAI's shape or another."""
    error = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return _brief(str(error))


def _brief(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_WORDS else line[: _LONGEST_WORDS - 1] + "…"


@asynccontextmanager
async def connected(base_url: str, max_seconds: float) -> AsyncIterator[Endpoint]:
    """Give an endpoint whose connections are closed at the end; `OPENAI_API_KEY` is sent if set."""
    try:
        import httpx
    except ModuleNotFoundError as error:
        raise UserError(
            f"'{error.name}' is missing: probing needs pip install 'dspark-sim[serve]'"
        ) from None
    timeout = httpx.Timeout(min(_PATIENCE_S, max_seconds))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(timeout=timeout, limits=limits, headers=headers) as client:
        yield Endpoint(client, base_url)
