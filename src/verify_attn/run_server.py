"""The server that `verify-attn run` starts where it is given none."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from verify_attn.embedded import NotReadyError, serving
from verify_attn.run_steps import Steps

OWN = "no --url: the package's own small model was served, no server of yours"
# Lengths that the small model answers in seconds on two cores.
CONTEXTS, QUICK_CONTEXTS = "512,1k,2k", "512,1k"
MAX_TOKENS, BUDGET_S = "600", "60"


class Embedded:
    """``kernels``: to serve with, the first that the engine can run; else its default.
    ``notes``: what is already known of the choice."""

    def __init__(self, kernels: Sequence[str], notes: Sequence[str], log: Path) -> None:
        self._choices = [["tiny", "--kernel", kernel] for kernel in kernels] + [["tiny"]]
        self._log = log
        self.notes = [OWN, *notes]
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

    @staticmethod
    def sweep(quick: bool) -> dict[str, str]:
        """Options of a sweep of it."""
        return {
            "--contexts": QUICK_CONTEXTS if quick else CONTEXTS, "--max-tokens": MAX_TOKENS,
            "--budget": BUDGET_S,
        }  # fmt: skip

    def start(self, stack: ExitStack, steps: Steps) -> str | None:
        """Its URL; None where none comes up, and `problem` says why.  ``stack`` ends it."""
        for arguments in self._choices:
            if steps.stopped:
                self.problem = "interrupted before the server was up"
                return None
            try:
                url = stack.enter_context(serving(arguments, log=self._log))
            except NotReadyError as wrong:
                self.problem = str(wrong)
                if len(arguments) > 1:
                    why = str(wrong).strip().splitlines()[-1].removeprefix("error: ")
                    self.notes.append(f"the server cannot run {arguments[-1]}: {why}")
                continue
            self.command = shlex.join(["verify-attn", "serve", *arguments])
            return url
        if steps.stopped:
            self.problem = "interrupted before the server was up"
        return None
