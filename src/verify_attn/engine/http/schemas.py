"""What a request may hold.  A field that is null counts as left out."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, model_validator

_LARGEST_ID = 2**31 - 1
_INT64 = 2**63
COMPLETION_TOKENS = 16  # OpenAI's default for completions

Tokens = list[int]


def one_prompt(value: Any) -> str | Tokens:
    """The one prompt: a text, its token ids, or a list of one of these."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise ValueError("it must be a text or a list of at least one token id")
    if any(isinstance(part, str | list) for part in value):
        raise ValueError(
            f"it holds {len(value)} prompts; this server takes one a request, so send as many "
            "requests"
        )
    if any(type(token) is not int for token in value):
        raise ValueError("a list must hold token ids, which are whole numbers")
    if min(value) < 0 or max(value) > _LARGEST_ID:
        raise ValueError(f"token ids are 0 to {_LARGEST_ID}; one is outside")
    return value


def text_of(content: Any) -> str:
    """A message's text; several text parts are paragraphs."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError("content must be a text or a list of text parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        text = part.get("text") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(text, str):
            shown = kind[:80] if isinstance(kind, str) else type(kind).__name__
            raise ValueError(
                f"a part is of type {shown!r}; this model reads text alone: "
                '{"type": "text", "text": ...}'
            )
        texts.append(text)
    return "\n".join(texts)


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Prompt = Annotated[
    str | Tokens,
    PlainValidator(one_prompt, json_schema_input_type=str | Tokens | list[str] | list[Tokens]),
]
Content = Annotated[str, PlainValidator(text_of, json_schema_input_type=str | list[dict[str, str]])]
Stop = Annotated[
    list[Annotated[str, Field(min_length=1)]], BeforeValidator(_listed), Field(max_length=4)
]


class _Body(BaseModel):
    """Strict, since "16" for 16 is a client's mistake; unknown fields are kept aside."""

    model_config = ConfigDict(strict=True, extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, raw: Any) -> Any:
        if isinstance(raw, dict):
            return {name: value for name, value in raw.items() if value is not None}
        return raw


class Message(_Body):
    """One turn of a chat."""

    role: str
    content: Content


class StreamOptions(_Body):
    """``include_usage``: a last event with the usage; the other: the usage so far in each event."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Generate(_Body):
    """What both endpoints take."""

    model: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=2, allow_inf_nan=False)
    top_p: float = Field(1.0, gt=0, le=1, allow_inf_nan=False)
    seed: int | None = Field(None, ge=-_INT64, lt=_INT64)
    stop: Stop = []
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    return_token_ids: bool = False

    @property
    def most_tokens(self) -> int | None:
        """How many tokens may be generated; the newer name wins."""
        given = self.max_completion_tokens
        return self.max_tokens if given is None else given


class Completion(Generate):
    """``POST /v1/completions``."""

    prompt: Prompt


class Chat(Generate):
    """``POST /v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1)


class Tokenize(_Body):
    """``POST /tokenize``: a prompt or messages, as vLLM has it."""

    prompt: Annotated[str, PlainValidator(text_of, json_schema_input_type=str)] | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True
