"""Compile the built-in Triton kernels for an architecture, with no GPU and no driver.

    for result in compile_kernels("sm_120"):
        print(result.label, result.resources, result.occupancy, result.problems)

Processes of `verify_attn.kernels.compile_worker` do the work: Triton decides at import whether it
interprets, and here it may be interpreting; and a compiler that crashes takes only its own process
along.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from verify_attn.kernels.base import KernelError
from verify_attn.kernels.resources import (
    Limits,
    Occupancy,
    Resources,
    broken_limits,
    limits_of,
    occupancy,
)

WORKER = (sys.executable, "-m", "verify_attn.kernels.compile_worker")
PROCESSES = 2


class CompilerError(KernelError):
    """Nothing can be compiled here; the message says what is missing."""


@dataclass(frozen=True)
class Setting:
    """Everything outside a kernel that its launches, and so its compiled code, depend on.

    ``geometry``   preset: its widths are compiled in, of its head count at most divisors
    ``page_size``  Triton compiles 1, multiples of 16 and other integers differently
    ``own_rows``   the nodes' KV rows come apart from the pool
    ``prefix``, ``nodes``   host bounds of one request
    ``ranges``     most ranges that the GPU has room for; with the bounds, they decide how many
    """

    kernel: str
    geometry: str = "kimi-k2.6-tp8"
    dtype: str = "bfloat16"
    page_size: int = 64
    own_rows: bool = False
    prefix: int = 100_000
    nodes: int = 60
    ranges: int = 9


def default_settings() -> list[Setting]:
    """What a real model on 8 GPUs may ask for, and more heads and nodes in the usual setting."""
    settings = []
    for kernel in ("triton-unsplit", "triton-split"):
        for dtype in ("bfloat16", "float16"):
            for page_size in (1, 64, 24):
                for own_rows in (False, True):
                    given = Setting(kernel, "kimi-k2.6-tp8", dtype, page_size, own_rows)
                    settings += [given, replace(given, **SHORT)]
        for geometry in ("deepseek-v3-tp8", "deepseek-v3-tp1"):
            given = Setting(kernel, geometry)
            settings += [given, replace(given, **SHORT)]
        settings.append(Setting(kernel, nodes=100))
    return settings + [Setting("triton-split", ranges=ranges) for ranges in RANGES]


# One tile of tokens: nothing to split.
SHORT: dict[str, Any] = {"prefix": 0, "nodes": 8}
# The merge is compiled for 16, 32, 64, 128 and 256 ranges; these are multiples of nothing.
RANGES = (17, 33, 66, 132)


@dataclass(frozen=True)
class Compiled:
    """One compiled configuration.

    ``function``   the Triton function; a kernel may launch several
    ``setting``    the first one that launches it
    ``constants``  compiled in, by argument name, and ``num_warps``, ``num_stages``
    ``resources``, ``occupancy``   None if it does not compile
    ``problems``   why it cannot be launched; empty if it can
    ``compiler``   versions of Triton and of its ptxas: another pair gives other figures
    """

    arch: str
    function: str
    label: str
    setting: Setting
    constants: dict[str, Any]
    resources: Resources | None
    occupancy: Occupancy | None
    problems: tuple[str, ...]
    seconds: float
    compiler: str


Progress = Callable[[int, int, Compiled], None]


def compile_kernels(
    arch: str,
    settings: Iterable[Setting] | None = None,
    *,
    tile: dict[str, int] | None = None,
    max_spill_bytes: int | None = None,
    processes: int = PROCESSES,
    progress: Progress | None = None,
) -> list[Compiled]:
    """Compile every distinct launch of the built-in kernels in these settings.

    ``tile`` replaces fields of the kernels' own tile (``{"block_m": 64}``), to try others.
    ``progress(done, total, result)`` is called after each, in the order in which they finish; the
    list is in the order of the settings.  Raises `ArchitectureError` or `CompilerError`; a
    configuration that fails is in the list, with its ``problems``.
    """
    limits = limits_of(arch)
    if importlib.util.find_spec("triton") is None:
        raise CompilerError(f"no Triton in {sys.prefix}; on Linux: pip install triton")
    chosen = default_settings() if settings is None else list(settings)
    request = {
        "capability": limits.capability,
        "settings": [asdict(setting) for setting in chosen],
        "tile": tile,
        "shares": processes,
    }
    answers: queue.Queue[dict[str, Any]] = queue.Queue()
    found: dict[int, Compiled] = {}
    with tempfile.TemporaryDirectory(prefix="verify-attn-") as cache:
        shares = [_Share(request | {"share": i}, Path(cache), answers) for i in range(processes)]
        try:
            for share in shares:
                share.start()
            started: dict[int, dict[str, Any]] = {}
            total, running = 0, len(shares)
            while running:
                answer = answers.get()
                if "fatal" in answer:
                    raise CompilerError(answer["fatal"])
                total = answer.get("total", total)
                if "start" in answer:
                    started[answer["start"]] = answer
                elif "done" in answer:
                    index = answer["done"]
                    found[index] = _result(limits, started[index], answer, max_spill_bytes)
                    if progress is not None:
                        progress(len(found), total, found[index])
                running -= "end" in answer
        finally:
            for share in shares:
                share.stop()
    return [found[index] for index in sorted(found)]


class _Share(threading.Thread):
    """One compiling process and its answers; started anew, past the culprit, if it dies."""

    def __init__(
        self, request: dict[str, Any], cache: Path, answers: queue.Queue[dict[str, Any]]
    ) -> None:
        super().__init__(daemon=True)
        self.request, self.cache, self.answers = request, cache, answers
        self.process: subprocess.Popen[str] | None = None
        self.stopped = False

    def run(self) -> None:
        try:
            self._work()
        except Exception as error:  # or the caller would wait for ever
            self.answers.put({"fatal": f"the compiling process failed: {error!r}"})

    def _work(self) -> None:
        after = -1
        with open(self.cache / f"stderr-{self.request['share']}", "w+") as stderr:
            while not self.stopped:
                started, ended = self._serve(self.request | {"after": after}, stderr)
                if ended or self.stopped:
                    return
                code = self.process.returncode if self.process else None
                stderr.seek(0)
                why = f"the compiling process ended with {code}: {stderr.read()[-1000:].strip()}"
                if started is None:
                    self.answers.put({"fatal": why})
                    return
                self.answers.put({"done": started, "seconds": 0.0, "resources": None, "error": why})
                after = started

    def _serve(self, request: dict[str, Any], stderr: Any) -> tuple[int | None, bool]:
        """Index of the launch it was at when it died, or None; and whether it came to the end."""
        self.process = subprocess.Popen(
            WORKER, env=_environment(self.cache), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
        )  # fmt: skip
        if self.stopped:
            self.process.kill()
        started, ended = None, False
        with self.process:
            stdin, stdout = self.process.stdin, self.process.stdout
            assert stdin is not None
            assert stdout is not None
            # It may have died at import; its exit status and stderr tell.
            with contextlib.suppress(BrokenPipeError):
                json.dump(request, stdin)
                stdin.close()
            for line in stdout:
                answer = json.loads(line)
                started = answer.get("start", None if "done" in answer else started)
                ended = ended or "end" in answer or "fatal" in answer
                self.answers.put(answer)
        return started, ended

    def stop(self) -> None:
        self.stopped = True
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        if self.is_alive():
            self.join(timeout=10)


def _environment(cache: Path) -> dict[str, str]:
    """Ours, but compiling, with an empty cache (a cached kernel has no log) and ptxas's log."""
    package = str(Path(__file__).parents[2])
    path = os.environ.get("PYTHONPATH")
    changed = {
        "TRITON_CACHE_DIR": str(cache),
        "TRITON_DUMP_PTXAS_LOG": "1",
        "PYTHONPATH": f"{package}{os.pathsep}{path}" if path else package,
    }
    return {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | changed


def _result(
    limits: Limits, start: dict[str, Any], done: dict[str, Any], max_spill_bytes: int | None
) -> Compiled:
    setting = Setting(**start["setting"])
    resources = Resources(**done["resources"]) if done["resources"] else None
    return Compiled(
        limits.name,
        start["function"],
        _label(start["function"], setting, start["arguments"], start["constants"]),
        setting,
        start["constants"],
        resources,
        occupancy(resources, limits) if resources else None,
        broken_limits(resources, limits, max_spill_bytes)
        if resources
        else (f"does not compile: {done['error']}",),
        done["seconds"],
        start.get("compiler", ""),
    )


def _label(function: str, setting: Setting, arguments: list[str], constants: dict[str, Any]) -> str:
    """The function, and those parts of the setting that it can tell apart."""
    words = [function, setting.dtype, setting.geometry, f"nodes={setting.nodes}"]
    if "page_size" in arguments:
        words.append(f"page={setting.page_size}")
    if constants.get("OWN_ROWS"):
        words.append("own rows")
    if "SPLIT" in constants:
        words.append("split" if constants["SPLIT"] else "whole")
    if "SPLITS" in constants:
        words.append(f"ranges<={constants['SPLITS']}")
    return " ".join(words)
