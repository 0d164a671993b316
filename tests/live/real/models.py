"""Tiny models, made on the spot by a server's own environment and kept in ``.servers/``."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice, takewhile
from pathlib import Path

from tests.live.real.venvs import HERE, HOME, Environment, locked

SCRIPTS = ("make_model.py", "bpe.py")


@dataclass(frozen=True)
class Spec:
    """Which model; make_model.py says what the fields do to its weights."""

    form: str  # "gguf" or "hf"
    cycle: int = 0  # tokens after which a greedy answer repeats; 0: all printable ones, over 300
    knows: float = 1.0  # share of each cycle in which its successors are those of the whole model
    tied: bool = False  # answers only <|assistant|>, whose text is empty
    context: int = 16384
    seed: int = 0


@dataclass(frozen=True)
class Model:
    """A model on disk, and what it must answer."""

    spec: Spec
    directory: Path

    @property
    def path(self) -> Path:
        """What a server is given: a file for llama.cpp, else the folder."""
        return self.directory / "model.gguf" if self.spec.form == "gguf" else self.directory

    @cached_property
    def _truth(self) -> dict:
        return json.loads((self.directory / "truth.json").read_text(encoding="utf-8"))

    def follow(self, token: int) -> Iterator[int]:
        """The greedy answer's tokens after ``token``, without end."""
        while True:
            token = self._truth["successors"][token]
            yield token

    def text(self, token: int) -> str:
        """A printable token's text."""
        text = self._truth["texts"][token]
        assert text is not None, f"token {token} is no text"
        return text

    def ids(self, said: str, tokens: int) -> list[int] | None:
        """The tokens of a greedy answer of so many; None where it is not what must be said."""
        for start, text in enumerate(self._truth["texts"]):
            if text and said.startswith(text):
                found = [start, *islice(self.follow(start), tokens - 1)]
                if "".join(map(self.text, found)) == said:
                    return found
        return None

    def steps(self, draft: Model, ids: list[int], drafts: int) -> list[int]:
        """Committed tokens of each step, with so many draft tokens a step; the prompt's gives 1."""
        found, at = [1], 0
        while (left := len(ids) - at - 1) > 0:
            pairs = zip(self.follow(ids[at]), draft.follow(ids[at]), strict=False)
            agreed = takewhile(lambda pair: pair[0] == pair[1], islice(pairs, drafts))
            found.append(min(sum(1 for _ in agreed) + 1, left))
            at += found[-1]
        return found


def make(spec: Spec, environment: Environment) -> Model:
    """The model, made if it is not there yet; finished by renaming."""
    content = [json.dumps(asdict(spec)), *((HERE / name).read_text() for name in SCRIPTS)]
    key = hashlib.sha256(repr(content).encode()).hexdigest()[:12]
    model = Model(spec, HOME / f"model-{spec.form}-{key}")
    with locked("models"):
        if not model.directory.exists():
            half = model.directory.with_suffix(f".{os.getpid()}")
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir()
            command = [str(environment.python), str(HERE / SCRIPTS[0]), content[0], str(half)]
            subprocess.run(command, check=True, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"})
            half.rename(model.directory)
    return model
