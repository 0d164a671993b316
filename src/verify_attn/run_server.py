"""The server that `verify-attn run` starts where it is given none."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from verify_attn.embedded import NotReadyError, serving
from verify_attn.environment import gpus
from verify_attn.hardware import sheet_of
from verify_attn.run_steps import Steps

OWN = "no --url: the package's own {what} was served, no server of yours"


@dataclass(frozen=True)
class Model:
    """What is served, and how it is swept.

    ``arguments``   of `verify-attn serve`
    ``contexts``    and of a first look; lengths that it answers in seconds
    ``start_s``, ``point_s``  about how long it takes to come up and to answer; for the plan
    """

    what: str
    arguments: tuple[str, ...]
    contexts: str
    quick_contexts: str
    ready_limit_s: float
    start_s: float
    point_s: float
    options: dict[str, str] = field(default_factory=dict)

    def sweep(self, quick: bool) -> dict[str, str]:
        """Options of a sweep of it."""
        contexts = self.quick_contexts if quick else self.contexts
        return {"--contexts": contexts, "--max-tokens": "600", "--budget": "60", **self.options}


TINY = Model("small model", ("tiny",), "512,1k,2k", "512,1k", 120.0, 5.0, 4.0)
# What a step takes at a length is the rank's in full.  Prompts are not computed, for at 180k that
# alone takes minutes, and random weights accept nothing: both are set, which the server says too.
RANK = Model(
    "k2.6-rank (random weights; random KV in place of computed prompts, 4 tokens committed a step "
    "by decree: step times are real, prefill and acceptance are not measured)",
    ("k2.6-rank", "--drafter", "replay", "--pin", "4", "--fill-prompts", "7", "--no-prefix-cache"),
    "1k,8k,32k,64k,128k,180k", "1k,8k,32k,128k", 300.0, 45.0, 8.0,
    {"--decode-limit": "30"},
)  # fmt: skip


def first_choice(gpu: bool) -> Model:
    """What is served where it can be."""
    if not gpu:
        return TINY
    found = gpus()
    sheet = sheet_of(found[0].name) if found else None
    if sheet is None:
        return RANK
    weigh = {"--geometry": "kimi-k2.6-tp8", "--gpu": sheet.name}
    return Model(**(vars(RANK) | {"options": RANK.options | weigh}))


class Embedded:
    """``kernels``: to serve with, the first that the engine can run; else its default.
    ``notes``: what is already known of the choice.  On a GPU that is too small for a rank of K2.6,
    the small model is served."""

    def __init__(self, gpu: bool, kernels: Sequence[str], notes: Sequence[str], log: Path) -> None:
        self.model = first_choice(gpu)
        models = [self.model] if self.model is TINY else [self.model, TINY]
        self._choices = [(m, kernel) for m in models for kernel in (*kernels, None)]
        self._log = log
        self.notes = list(notes)
        self.command = ""
        self.problem: str | None = None

    @staticmethod
    def missing() -> str | None:
        """Why there cannot be one, or None."""
        for name in ("fastapi", "uvicorn"):
            if importlib.util.find_spec(name) is None:
                return (
                    f"no --url was given, and the package's own server needs {name}, which is not "
                    "here: pip install 'verify-attn[serve]'"
                )
        return None

    def start(self, stack: ExitStack, steps: Steps) -> str | None:
        """Its URL; None where none comes up, and `problem` says why.  ``stack`` ends it."""
        for model, kernel in self._choices:
            if steps.stopped:
                break
            arguments = [*model.arguments, *(() if kernel is None else ("--kernel", kernel))]
            try:
                url = stack.enter_context(serving(
                    arguments, limit_s=model.ready_limit_s, log=self._log,
                    stopped=lambda: steps.stopped,
                ))  # fmt: skip
            except NotReadyError as wrong:
                self.problem = str(wrong)
                if (model, kernel) != self._choices[-1]:
                    why = str(wrong).strip().splitlines()[-1].removeprefix("error: ")
                    what = model.arguments[0] if kernel is None else kernel
                    on = f" on {model.arguments[0]}" if kernel and model is not TINY else ""
                    self.notes.append(f"the server cannot run {what}{on}: {why}")
                continue
            self.model = model
            self.notes.insert(0, OWN.format(what=model.what))
            self.command = shlex.join(["verify-attn", "serve", *arguments])
            return url
        if steps.stopped:
            self.problem = "interrupted before the server was up"
        return None
