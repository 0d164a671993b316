"""What one event of a chat or completions stream says, whoever sent it.

The shapes are those of OpenAI's API and of what SGLang, vLLM, llama.cpp, TensorRT-LLM, TGI and
`transformers serve` make of it: nulls where objects are expected, `reasoning` for
`reasoning_content`, usage on any event, errors inside a stream that began with 200.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from verify_attn.live.acceptance.figures import count
from verify_attn.live.server.errors import error_message

DONE = "[DONE]"


@dataclass(frozen=True, slots=True)
class Usage:
    """The server's own count, where it is a count at all."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    def over(self, before: Usage | None) -> Usage:
        """With an earlier event's counts where this one has none."""
        if before is None:
            return self
        prompt, completion = self.prompt_tokens, self.completion_tokens
        return Usage(
            before.prompt_tokens if prompt is None else prompt,
            before.completion_tokens if completion is None else completion,
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """One JSON event.

    ``content``, ``reasoning``, ``tool``  the text of each kind
    ``has_choice``  it belongs to the answer, even if it carries no text (a role, a held-back byte)
    ``role_only``   it only opens the message
    ``tokens``      how many tokens it carries by its own word (token ids, logprobs), or None
    ``usage``       counts that it brings along, or None
    ``finish``      its finish reason, or None
    """

    content: str = ""
    reasoning: str = ""
    tool: str = ""
    has_choice: bool = False
    role_only: bool = False
    tokens: int | None = None
    usage: Usage | None = None
    finish: str | None = None

    @property
    def text_chars(self) -> int:
        """Characters of all kinds."""
        return len(self.content) + len(self.reasoning) + len(self.tool)


def error_in(body: dict[str, Any]) -> str | None:
    """The server's words in an event that is an error, in any engine's form; else None."""
    if body.get("error") or ("choices" not in body and not body.get("usage")):
        return error_message(body)
    return None


def parse_chunk(body: dict[str, Any]) -> Chunk:
    """Read one JSON object; anything of an unexpected type counts as not there."""
    usage = _usage(body.get("usage"))
    choices = body.get("choices")
    content = reasoning = tool = ""
    finish: str | None = None
    tokens: int | None = None
    has_choice = has_role = False
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, dict):
            continue
        has_choice = True
        delta = choice.get("delta")
        delta = delta if isinstance(delta, dict) else {}
        has_role = has_role or bool(delta.get("role"))
        content += _text(delta.get("content")) + _text(choice.get("text"))
        # Some servers send both names with the same text: it counts once.
        reasoning += _text(delta.get("reasoning_content")) or _text(delta.get("reasoning"))
        tool += _tool_text(delta)
        if isinstance(choice.get("finish_reason"), str):
            finish = choice["finish_reason"]
        carried = _carried(choice)
        if carried is not None:
            tokens = (tokens or 0) + carried
    empty = not (content or reasoning or tool or tokens)
    return Chunk(
        content=content,
        reasoning=reasoning,
        tool=tool,
        has_choice=has_choice,
        role_only=empty and has_role and finish is None,
        tokens=tokens,
        usage=usage,
        finish=finish,
    )


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):  # content parts
        return "".join(_text(part.get("text")) for part in value if isinstance(part, dict))
    return ""


def _tool_text(delta: dict[str, Any]) -> str:
    calls = delta.get("tool_calls")
    functions = [call.get("function") for call in calls or () if isinstance(call, dict)] if (
        isinstance(calls, list)
    ) else []  # fmt: skip
    functions.append(delta.get("function_call"))
    text = _text(delta.get("refusal"))
    for function in functions:
        if isinstance(function, dict):
            text += _text(function.get("name")) + _text(function.get("arguments"))
    return text


def _carried(choice: dict[str, Any]) -> int | None:
    """Tokens by token ids, or by the length of the log-probabilities where those were asked for."""
    if isinstance(choice.get("token_ids"), list):
        return len(choice["token_ids"])
    logprobs = choice.get("logprobs")
    if isinstance(logprobs, dict):
        for name in ("content", "tokens"):
            if isinstance(logprobs.get(name), list):
                return len(logprobs[name])
    return None


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    usage = Usage(count(value.get("prompt_tokens")), count(value.get("completion_tokens")))
    return None if usage == Usage() else usage
