"""Scrapes for the tests of the readers: recorded files, and text written on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from verify_attn.live.acceptance import Samples, parse_metrics
from verify_attn.live.reply import Reply

DATA = Path(__file__).parent.parent / "data" / "live"
RECORDINGS = DATA / "recordings"


def reply(text: str | bytes, status: int = 200, content_type: str = "text/plain") -> Reply:
    return Reply(status, content_type, text.encode() if isinstance(text, str) else text)


def scrape(text: str | bytes, content_type: str = "text/plain") -> Samples:
    samples = parse_metrics(reply(text, content_type=content_type))
    assert isinstance(samples, Samples), samples
    return samples


def recorded(name: str) -> Samples:
    return scrape((RECORDINGS / name).read_bytes())


def events(name: str) -> list[Any]:
    """The JSON of every data line of a recorded stream."""
    lines = (RECORDINGS / name).read_text(errors="replace").splitlines()
    texts = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    return [json.loads(text) for text in texts]
