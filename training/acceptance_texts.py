"""Makes ``tests/engine/acceptance_texts``: ``python -m training.acceptance_texts CORPUS DIR``.

Run once, before the first training; the files are in the repository and stay as they are.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from training import corpora, reasoning

SEPARATOR = "\n\f\n"
CHARS = 500  # of a text


def make(corpus: Path, directory: Path) -> None:
    """Write eight texts of each kind."""
    from verify_attn.live import prompts  # only here: reading the texts needs none of it

    rng = random.Random(2026)
    held_out = corpora.texts(corpus, held_out=True)
    addresses = [_excerpt(t, rng) for t in rng.sample(held_out["addresses"], 4)]
    novel = [_excerpt(t, rng) for t in rng.sample(held_out["moby-dick"], 2)]
    topics = [t for t in held_out["topics"] if len(t) > 3 * CHARS]
    prose = [*addresses, *novel, *(_excerpt(t, rng) for t in rng.sample(topics, 2))]

    worked = []
    for seed in range(reasoning.HELD_OUT, reasoning.HELD_OUT + 4):
        pairs = [reasoning.problem(seed * 10 + i) for i in range(4)]
        worked.append("\n\n".join(f"{q}\n{a}" for q, a in pairs)[:CHARS])
    sweep = [prompts._text("reasoning", CHARS, seed) for seed in range(4)]

    sentences = [t[:90].rsplit(" ", 1)[0] + "." for t in addresses]
    repetitive = [
        prompts._text("repetitive", CHARS, 0),
        *(((s + " ") * 60)[:CHARS] for s in sentences[:3]),
        "\n".join(f"request {i} served in 12 ms, status 200, bytes 5120" for i in range(100, 110)),
        "\n".join(f"{i}. {sentences[3]}" for i in range(1, 9))[:CHARS],
        "yes no yes yes no\n" * 27,
        "0,0,1,0;0,1,0,0;1,0,0,0;\n" * 20,
    ]
    for kind, chosen in (("prose", prose), ("reasoning", [*worked, *sweep]),
                         ("repetitive", repetitive)):  # fmt: skip
        (directory / f"{kind}.txt").write_text(SEPARATOR.join(chosen), encoding="utf-8")


def load(directory: Path) -> dict[str, list[str]]:
    """The texts by kind."""
    return {
        path.stem: path.read_text("utf-8").split(SEPARATOR)
        for path in sorted(directory.glob("*.txt"))
    }


def _excerpt(text: str, rng: random.Random) -> str:
    """From a sentence's beginning, somewhere in the first half."""
    at = text.find(". ", rng.randrange(len(text) // 2))
    return text[at + 2 : at + 2 + CHARS]


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
