"""A virtual environment for each server nobody here wrote, made once in ``.servers/``.

    python -m tests.live.real.venvs llamacpp hf vllm      # makes them (0.2, 1 and 2.5 GB)

A test whose server has no environment is skipped and says so, since gigabytes are not installed
unasked.  With VERIFY_ATTN_REQUIRE_SERVERS=1 in the environment (CI sets it) a missing environment
is made, and where that fails, the test fails.

An environment is known by a hash of its pins (``constraints-NAME.txt``) and of the interpreter.
It counts only once its stamp is written, the last step.  Whoever finds it without one takes it
for half made and starts again, under a lock that pip holds too: it outlives a killed builder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
HOME = HERE.parents[2] / ".servers"
REQUIRE = "VERIFY_ATTN_REQUIRE_SERVERS"
STAMP = "made"


@dataclass(frozen=True)
class Environment:
    """What one server needs."""

    name: str
    arguments: tuple[str, ...]  # of pip install
    size_mb: int  # for the reason of a skip

    @property
    def pins(self) -> Path:
        """Every distribution of the environment with its version."""
        return HERE / f"constraints-{self.name}.txt"

    @property
    def directory(self) -> Path:
        """Changes with the pins and the interpreter, so that neither is ever out of date."""
        seed = [*self.arguments, self.pins.read_text(), sys.version, sys.base_prefix]
        return HOME / f"{self.name}-{hashlib.sha256(repr(seed).encode()).hexdigest()[:12]}"

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.directory / "bin" / "python"

    @property
    def is_made(self) -> bool:
        """Was it finished?"""
        return (self.directory / STAMP).is_file()

    def make(self) -> None:
        """Make it unless it is there; waits for another process that is at it."""
        with locked(self.name) as lock:
            if self.is_made:
                return
            started = time.monotonic()
            shutil.rmtree(self.directory, ignore_errors=True)
            pip = [str(self.python), "-m", "pip", "install", "--quiet", *self.arguments]
            for command in ([sys.executable, "-m", "venv", str(self.directory)], pip):
                _run(command, lock)
            seconds = time.monotonic() - started
            (self.directory / STAMP).write_text(f"{seconds:.0f} s\n")


def _run(command: list[str], lock: int) -> None:
    # The child inherits the lock.  Were this process killed, no other would build beside the child.
    done = subprocess.run(
        command, check=False, pass_fds=(lock,), cwd=HERE, capture_output=True, text=True
    )
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{tail}")


@contextmanager
def locked(name: str) -> Iterator[int]:
    """Hold the lock of that name in ``.servers/``; gives its file descriptor."""
    HOME.mkdir(exist_ok=True)
    with (HOME / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


# vLLM without torchvision, torchaudio and torchcodec, whose published builds do not load beside
# its torch and break transformers' import, and without Triton (1 GB, no CPU back end): hence every
# distribution by name and no dependencies.
ENVIRONMENTS = {
    e.name: e
    for e in (
        Environment("llamacpp", ("-c", "constraints-llamacpp.txt", "xllamacpp", "gguf"), 200),
        Environment(
            "hf",
            ("-c", "constraints-hf.txt", "torch", "transformers[serving]", "requests"),
            1000,
        ),
        Environment("vllm", ("--no-deps", "-r", "constraints-vllm.txt"), 2500),
    )
}


class NotMade(Exception):
    """There is no environment, and nobody asked to make it."""


def required() -> bool:
    """Must every server that a test asks for be there?"""
    return os.environ.get(REQUIRE, "") not in ("", "0")


def environment(name: str) -> Environment:
    """The environment, made if it must be.  Raises NotMade with the reason of a skip."""
    found = ENVIRONMENTS[name]
    if required():
        found.make()
    elif not found.is_made:
        raise NotMade(
            f"no environment for {name} ({found.size_mb} MB): make it with "
            f"python -m tests.live.real.venvs {name}, or set {REQUIRE}=1"
        )
    return found


def main(names: list[str]) -> None:
    """Make the named environments."""
    unknown = set(names) - set(ENVIRONMENTS)
    if unknown or not names:
        sys.exit(f"usage: python -m tests.live.real.venvs {' '.join(ENVIRONMENTS)}")
    for name in names:
        started = time.monotonic()
        ENVIRONMENTS[name].make()
        print(f"{name}: {ENVIRONMENTS[name].directory} ({time.monotonic() - started:.1f} s)")


if __name__ == "__main__":
    main(sys.argv[1:])
