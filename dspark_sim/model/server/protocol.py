"""The requests and responses of OpenAI's completions and chat, as vLLM understands them."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST = 2**31
_ONLY: dict[str, tuple[Any, ...]] = {  # what is accepted of options that this server does not have
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "prompt_logprobs": (None,),
    "suffix": (None, ""),
    "stop": (None, "", []),
    "stop_token_ids": (None, []),
    "min_tokens": (None, 0),
    "top_k": (None, 0, -1),
    "min_p": (None, 0),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
    "response_format": (None, {"type": "text"}),
    "tools": (None, []),
    "use_beam_search": (None, False),
}


class ApiError(Exception):
    """An answer other than 200: status, message, and which parameter is to blame."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def body(self) -> dict[str, Any]:
        """Return OpenAI's error object."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


class StreamOptions(BaseModel):
    """Whether a stream ends with usage, and whether every chunk carries it (vLLM)."""

    model_config = ConfigDict(strict=True)

    include_usage: bool = False
    continuous_usage_stats: bool = False


class _Generation(BaseModel):
    model_config = ConfigDict(strict=True)

    kind: ClassVar[str]
    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=_LONGEST)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**62)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False

    @model_validator(mode="before")
    @classmethod
    def _supported(cls, body: Any) -> Any:
        for key in _ONLY.keys() & body.keys() if isinstance(body, dict) else ():
            if body[key] not in _ONLY[key]:
                raise ValueError(f"{key} = {body[key]!r} is not supported by this server")
        return body


def _single_prompt(value: Any) -> str | list[int]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str) or (
        isinstance(value, list) and all(type(token) is int for token in value)
    ):
        return value
    raise ValueError("must be one text or one list of token ids")


class CompletionRequest(_Generation):
    """A body of /v1/completions; `prompt` is text or token ids, or a list with one of these."""

    kind: ClassVar[str] = "text_completion"
    prompt: Annotated[str | list[int], PlainValidator(_single_prompt)]
    max_tokens: Annotated[int, Field(ge=1, lt=_LONGEST)] | None = 16


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)

    type: Literal["text"]
    text: str


class _Message(BaseModel):
    model_config = ConfigDict(strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_Part]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatRequest(_Generation):
    """A body of /v1/chat/completions."""

    kind: ClassVar[str] = "chat.completion"
    messages: Annotated[list[_Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=_LONGEST)] | None = None

    @property
    def turns(self) -> list[str]:
        """Turns user, assistant, …, user; what the system says goes in front of the first."""
        said = [m.text for m in self.messages if m.role in ("system", "developer")]
        talk = [m for m in self.messages if m.role in ("user", "assistant")]
        roles = [m.role for m in talk]
        if len(roles) % 2 == 0 or roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
            raise ApiError(
                400, "messages must alternate user, assistant, … and end with user", "messages"
            )
        first, *rest = [m.text for m in talk]
        return ["\n\n".join([*said, first]), *rest]


def parse(kind: type[_Generation], body: bytes) -> Any:
    """Read a body or say what is wrong with it."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param = ".".join(str(part) for part in first["loc"]) or None
        message = first["msg"].removeprefix("Value error, ")
        raise ApiError(400, f"{param}: {message}" if param else message, param) from None


class Envelope:
    """What the chunks of one response have in common."""

    def __init__(self, kind: str, model: str, prompt_tokens: int) -> None:
        self._chat, self._kind = kind == ChatRequest.kind, kind
        prefix = "chatcmpl" if self._chat else "cmpl"
        self._head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time())}
        self._model, self._prompt_tokens = model, prompt_tokens
        self._opened = False

    def usage(self, tokens: int) -> dict[str, int]:
        """Return token counts after `tokens` of output."""
        total = self._prompt_tokens + tokens
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": total,
        }

    def whole(self, text: str, finish_reason: str, tokens: int) -> dict[str, Any]:
        """Return the response that is not streamed."""
        said: Mapping[str, Any] = {"text": text}
        if self._chat:
            said = {"message": {"role": "assistant", "content": text}}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish_reason}
        return self._object(self._kind, [choice], usage=self.usage(tokens))

    def chunk(self, text: str, finish_reason: str | None, **extra: Any) -> dict[str, Any]:
        """Return one chunk of a stream; the first of a chat also tells the role."""
        said: Mapping[str, Any] = {"text": text}
        if self._chat:
            role = {} if self._opened else {"role": "assistant"}
            said = {"delta": {**role, "content": text}}
        self._opened = True
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish_reason}
        return self._object(self._chunk_kind, [choice], **extra)

    def last(self, tokens: int) -> dict[str, Any]:
        """Return the chunk that holds nothing but usage."""
        return self._object(self._chunk_kind, [], usage=self.usage(tokens))

    @property
    def _chunk_kind(self) -> str:
        return f"{self._kind}.chunk" if self._chat else self._kind

    def _object(self, kind: str, choices: list[Any], **extra: Any) -> dict[str, Any]:
        head = {**self._head, "object": kind, "model": self._model}
        return {**head, "choices": choices, **extra}
