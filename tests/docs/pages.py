"""The commands that the pages show: every line of a fenced or indented block that is one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "ci/README.md", *(f"docs/{p.name}" for p in sorted(ROOT.glob("docs/*.md"))))
# A block without a language whose first word is one of these is commands; else it is output.
PROGRAMS = {
    "bash", "cp", "curl", "flock", "git", "mkdir", "pip", "pytest", "python", "python3", "tar",
    "torchrun", "verify-attn",
}  # fmt: skip
_FENCE = re.compile(r"(\s*)```(\w*)\s*$")


@dataclass(frozen=True)
class Command:
    """A command as it is shown, on one line, its comment left out."""

    text: str
    page: str
    line: int


def blocks(page: str, language: str) -> list[tuple[int, list[str]]]:
    """(line, text) of each fenced block of a language; with "" of indented ones as well."""
    found: list[tuple[int, list[str]]] = []
    inside: str | None = None
    indent, before_blank, block = 0, False, list[str]()
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and inside is None:
            indent, inside = len(fence[1]), fence[2]
            block = []
            if inside == language:
                found.append((number + 1, block))
        elif fence:
            inside = None
        elif inside is not None:
            block.append(line[indent:])
        elif language == "" and line.startswith("    ") and line.strip():
            if before_blank:
                block = []
                found.append((number, block))
            block.append(line[4:])
        before_blank = not line.strip()
    return found


def commands(page: str) -> list[Command]:
    """In the order of the page."""
    found = []
    for first, block in blocks(page, ""):
        prompts = any(line.startswith("$ ") for line in block)
        if not prompts and (not block or block[0].split(" ")[0] not in PROGRAMS):
            continue
        text, begun = "", first
        for number, line in enumerate(block, first):
            if prompts and not text and not line.startswith("$ "):
                continue
            begun = begun if text else number
            text += line.removeprefix("$ ") if prompts else line
            if text.endswith("\\"):
                text = text[:-1]
                continue
            plain = re.sub(r"\s+# .*$", "", " ".join(text.split()))
            if plain:
                found.append(Command(plain, page, begun))
            text = ""
    return found
