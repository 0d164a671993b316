"""Options that would change the answer and that this server does not have: refused, not ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verify_attn.engine.http.errors import ApiError

# Option -> values that ask for nothing.  null always does.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "logit_bias": ({},),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "top_k": (0, -1),
    "min_p": (0, 0.0),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "include_stop_str_in_output": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "modalities": (["text"],),
    "audio": (),
    "chat_template": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}


def refuse_unsupported(extra: Mapping[str, Any]) -> None:
    """Raise `ApiError` for the first option in the way; names that nobody knows are ignored."""
    for name, neutral in _NEUTRAL.items():
        given = extra.get(name)
        # By type too: logprobs 0 asks for log-probabilities, and equals False.
        if given is None or any(type(given) is type(v) and given == v for v in neutral):
            continue
        allowed = f" other than {neutral[0]!r}" if neutral else ""
        raise ApiError(
            400, f"{name}{allowed} is not supported here; leave it out", param=name,
            code="unsupported_parameter",
        )  # fmt: skip
