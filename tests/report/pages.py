"""The page of a report taken apart."""

from html.parser import HTMLParser
from pathlib import Path

from tests.report import records
from verify_attn.report.html import page
from verify_attn.report.html.page import sections
from verify_attn.report.verdict import Reason, Verdict, judge

LIMIT_BYTES = 8_000_000
VERDICT = Verdict("fail", "FAIL: a reason", (Reason("check", "fail", "a reason", ""),), ("x",), 1)


class Page(HTMLParser):
    """Tags with their attributes, in order, and the text outside of scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self._inside = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data):
        if self._inside not in ("script", "style"):
            self.text.append(data)

    def all(self, name):
        return [attrs for tag, attrs in self.tags if tag == name]


def made(folder, verdict=None, **more):
    return page.page(folder, verdict or judge(folder), **more)


def whole():
    """A folder with something in every section."""
    return records.folder(
        Path("run"), run=records.run_record(), sweep=records.real("cpu/burst_prose.json"),
        check=records.failing_check(), bench=records.bench(),
    )  # fmt: skip


def by_id(folder, against=None, others=()):
    return {s.id: s for s in sections(folder, against, others)}


def charts(found):
    return {c.id: c for s in found.values() for c in s.charts}
