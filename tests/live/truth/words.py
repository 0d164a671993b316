"""The vocabulary: pieces of text of 1 to 9 characters, so that text is no count of tokens."""

from __future__ import annotations

import json
import random

_TEXT = """
a I we he it to of in is on as at by or an be so no up if the and for not but was are you all can
had her one our out day get has him his how man new now old see two way who did its let say she too
use that with have this will your from they know want been good much some time very when come here
just like long make many more only over such take than them well were what about after again every
first great house large learn never other place plant point right small sound spell still study
their there these thing think three water where which world would write across always answer
attend before better branch change common driver enough family follow letter memory mother number
people prefix school second should simple system though toward verify window between century
country kernel nothing picture problem science several special started surface through
"""
_SUFFIXES = "s ed ing ly er est ion al ment ness ity ous ive ize th age ance able"
_WORDS, _ENDINGS = _TEXT.split(), _SUFFIXES.split()
_MARKS = [
    ",",
    ".",
    ";",
    ":",
    "!",
    "?",
    '"',
    "'",
    "(",
    ")",
    "\n",
    "\n\n",
    " \u2013",
    " é",
    "ü",
    "\\",
    "/",
]
_MARKS += ["=", " +", " {", "}", "[", "]", "->", "0", "1", "12", "7", "100"]


def _vocabulary() -> list[str]:
    rng = random.Random("vocabulary")
    spaced = [" " + w for w in _WORDS]
    capital = [" " + w.capitalize() for w in _WORDS[:60]]
    joined = [" " + rng.choice(_WORDS)[:4] + rng.choice(_ENDINGS) for _ in range(160)]
    # Words are likelier than marks, as in text.
    return [p[:9] for p in spaced + capital + joined + _ENDINGS + _MARKS]


PIECES: tuple[str, ...] = tuple(_vocabulary())
# Each piece as it stands inside a JSON string.
ESCAPED: tuple[str, ...] = tuple(json.dumps(p, ensure_ascii=False)[1:-1] for p in PIECES)


def text_of(ids: list[int] | tuple[int, ...]) -> str:
    """The text of some tokens."""
    return "".join(PIECES[i] for i in ids)
