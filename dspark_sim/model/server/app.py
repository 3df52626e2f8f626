"""The HTTP side: OpenAI's completions and chat over one engine (ASGI)."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from dspark_sim.core import RunError, UserError
from dspark_sim.model.engine import Sampling
from dspark_sim.model.server.metrics import ServerMetrics
from dspark_sim.model.server.protocol import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    Envelope,
    StreamOptions,
    parse,
)
from dspark_sim.model.server.text import Detokenizer
from dspark_sim.model.server.worker import Stream, Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send
    from tokenizers import Tokenizer

    from dspark_sim.model.corpus import ChatFormat
    from dspark_sim.model.engine import Engine


@dataclass(frozen=True)
class _Job:
    """A request that the engine has taken, and how its answer is told."""

    stream: Stream
    envelope: Envelope
    text: Detokenizer

    async def whole(self) -> dict[str, Any]:
        """Return the response once it is complete."""
        text, tokens, finish_reason = "", 0, None
        while finish_reason is None:
            chunk = await self.stream.next()
            finish_reason = chunk.finish_reason
            text += self.text.add(chunk.tokens, last=finish_reason is not None)
            tokens += len(chunk.tokens)
        return self.envelope.whole(text, finish_reason, tokens)

    async def events(self, options: StreamOptions) -> AsyncIterator[str]:
        """Yield server-sent events: one per engine step, usage if asked for, and the end."""
        tokens, finish_reason = 0, None
        try:
            while finish_reason is None:
                chunk = await self.stream.next()
                finish_reason = chunk.finish_reason
                text = self.text.add(chunk.tokens, last=finish_reason is not None)
                tokens += len(chunk.tokens)
                usage = self.envelope.usage(tokens)
                extra = {"usage": usage} if options.continuous_usage_stats else {}
                yield _event(self.envelope.chunk(text, finish_reason, **extra))
            if options.include_usage:
                yield _event(self.envelope.last(tokens))
        except RunError as error:
            yield _event(ApiError(500, str(error)).body())
        yield "data: [DONE]\n\n"


class _EventStream(StreamingResponse):
    """A stream whose reader may leave: then the request is dropped."""

    def __init__(self, events: AsyncIterator[str], stream: Stream) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.close()


class Service:
    """One engine behind the HTTP routes.

    Parameters
    ----------
    engine : Engine
        Its own sampling counts where a request names none.
    tokenizer
    form : ChatFormat
        How the target is spoken to, and the token that ends its answers.
    name : str
        The model's name for clients.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer, form: ChatFormat, name: str) -> None:
        self.engine, self.name = engine, name
        self._tokenizer, self._form = tokenizer, form
        self.metrics = ServerMetrics(name, engine.max_running, engine.gamma)
        self.worker = Worker(engine, self.metrics)

    def app(self) -> Starlette:
        """Return the ASGI application; the engine runs as long as it does."""

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            self.worker.start()
            yield
            await self.worker.stopped()

        return Starlette(
            routes=[
                Route("/v1/completions", self.completions, methods=["POST"]),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/models", self.models),
                Route("/health", self.health),
                Route("/metrics", self.show_metrics),
            ],
            exception_handlers={
                ApiError: _api_error,
                HTTPException: _http_error,
                RunError: _run_error,
            },
            lifespan=lifespan,
        )

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        body: CompletionRequest = parse(CompletionRequest, await request.body())
        prompt = body.prompt
        tokens = self._tokenizer.encode(prompt).ids if isinstance(prompt, str) else prompt
        return await self._answer(request, body, tokens, body.max_tokens)

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions; without a limit the answer may fill the context."""
        body: ChatRequest = parse(ChatRequest, await request.body())
        tokens = self._tokenizer.encode(self._form.prompt(body.turns)).ids
        limit = body.max_completion_tokens or body.max_tokens
        return await self._answer(request, body, tokens, limit)

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        model = {
            "id": self.name,
            "object": "model",
            "created": 0,
            "owned_by": "dspark-sim",
            "max_model_len": self.engine.limits.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def health(self, request: Request) -> Response:
        """GET /health: 200 while requests are served, else 503."""
        return Response(status_code=200 if self.worker.alive else 503)

    async def show_metrics(self, request: Request) -> Response:
        """GET /metrics."""
        return Response(self.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _answer(
        self,
        request: Request,
        body: CompletionRequest | ChatRequest,
        prompt: list[int],
        max_tokens: int | None,
    ) -> Response:
        if body.model not in (None, self.name):
            message = f"the model '{body.model}' does not exist; this server has '{self.name}'"
            raise ApiError(404, message, "model", "model_not_found")
        job = _Job(
            self._submit(body, prompt, max_tokens),
            Envelope(body.kind, self.name, len(prompt)),
            Detokenizer(self._tokenizer),
        )
        if body.stream:
            options = body.stream_options or StreamOptions()
            return _EventStream(job.events(options), job.stream)
        try:
            return await _unless_gone(request, job)
        finally:
            job.stream.close()

    def _submit(
        self, body: CompletionRequest | ChatRequest, prompt: list[int], max_tokens: int | None
    ) -> Stream:
        """Hand a request to the engine; seeds hang on numbers that no request's own id takes."""
        own = self.engine.sampling
        sampling = Sampling(
            own.temperature if body.temperature is None else body.temperature,
            own.top_p if body.top_p is None else body.top_p,
        )
        room = max(1, self.engine.limits.max_model_len - len(prompt))
        try:
            return self.worker.submit(
                prompt,
                room if max_tokens is None else max_tokens,
                sampling,
                None if body.ignore_eos else self._form.end,
                None if body.seed is None else -1 - body.seed,
            )
        except UserError as error:
            raise ApiError(400, str(error)) from None


async def _unless_gone(request: Request, job: _Job) -> Response:
    """Return the whole response, or an empty one if the client leaves before."""
    whole = asyncio.ensure_future(job.whole())
    gone = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait((whole, gone), return_when=asyncio.FIRST_COMPLETED)
        if whole.done():
            return JSONResponse(whole.result())
        return Response(status_code=499)
    finally:
        whole.cancel()
        gone.cancel()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), error.status)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body = ApiError(error.status_code, error.detail).body()
    return JSONResponse(body, error.status_code, error.headers)


async def _run_error(request: Request, error: Exception) -> Response:
    return JSONResponse(ApiError(500, str(error)).body(), 500)
