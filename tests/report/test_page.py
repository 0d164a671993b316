"""The page itself: links, headings, colours, policy, and how it is written."""

import hashlib
import re
from importlib import resources
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("jinja2")

from tests.report import records
from tests.report.pages import LIMIT_BYTES, VERDICT, Page, by_id, charts, made, whole
from verify_attn.report.html import figure as fig
from verify_attn.report.html import page, write_report


@pytest.fixture
def bare(monkeypatch):
    """Pages without plotly.js: a hundredth of the size."""
    monkeypatch.setattr("verify_attn.report.html.page.plotly_js", lambda: "var Plotly;")


def test_links_ids_and_headings(bare):
    found = Page(made(whole()))
    ids = [attrs["id"] for _, attrs in found.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = [attrs["href"][1:] for attrs in found.all("a")]
    assert set(targets) <= set(ids)
    assert "failure-0" in targets
    levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    labelled = [attrs["aria-labelledby"] for _, attrs in found.tags if "aria-labelledby" in attrs]
    assert set(labelled) <= set(ids)
    assert found.all("html") == [{"lang": "en"}]
    for needed in ("title", "main", "nav", "header", "footer"):
        assert found.all(needed), needed
    assert all(attrs.get("scope") in ("col", "row") for attrs in found.all("th"))


def test_the_policy_allows_its_own_two_scripts_and_nothing_else(bare):
    text = made(whole())
    policy = next(a["content"] for a in Page(text).all("meta") if "http-equiv" in a)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    for scripts in re.findall("<script>(.*?)</script>", text, re.S):
        assert page._policy(scripts).split("'sha256-")[1].split("'")[0] in policy
    # Nothing is loaded: no attribute that could name another place.
    for _, attrs in Page(text).tags:
        assert not {"src", "srcset", "action", "data", "poster"} & set(attrs)


def test_plotly_is_inside_once(tmp_path):
    write_report(whole(), VERDICT, tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text()
    assert text.count("* plotly.js (basic - minified) v") == 1
    assert len(text.encode()) < LIMIT_BYTES


def test_the_librarys_checksum_is_the_one_that_is_written_beside_it():
    place = resources.files("verify_attn.report.html").joinpath("plotly")
    data = place.joinpath("plotly-basic.min.js").read_bytes()
    said = place.joinpath("README.md").read_text()
    assert hashlib.sha256(data).hexdigest() in said
    assert f"version {re.search(rb'minified[)] v([0-9.]+)', data)[1].decode()} of" in said
    # It can stand inside a script element.
    assert not re.search(rb"</script|<!--|\r", data, re.I)


def test_every_colour_has_its_place_in_the_dark():
    folder = records.folder(Path("run"), sweep=records.real("h200/collapse.json"),
                            bench=records.bench())  # fmt: skip
    others = [records.real("h200/fragmentation.json"), records.real("h200/defragmentation.json")]
    used = set()

    def walk(value, colour=False):
        if isinstance(value, dict):
            for key, item in value.items():
                walk(item, colour or key.endswith("color"))
        elif isinstance(value, list):
            for item in value:
                walk(item, colour)
        elif colour:
            used.add(value)

    for chart in charts(by_id(folder, records.collapse(), others)).values():
        walk(chart.figure)
    assert used - {"rgba(0,0,0,0)"} <= set(fig.DARK)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_aa_in_both_schemes():
    css = resources.files("verify_attn.report.html").joinpath("templates/style.css").read_text()
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part))
        for part in css.split("@media (prefers-color-scheme: dark)")[:2]
    )
    assert set(light) == set(dark)
    for scheme in (light, dark):
        for name in ("ink", "muted", "link", "pass", "fail", "unsure"):
            assert contrast(scheme[name], scheme["card"]) >= 4.5, name
            assert contrast(scheme[name], scheme["page"]) >= 4.5, name
        assert contrast(scheme["node"], scheme["card"]) >= 3
        assert contrast(scheme["ink"], scheme["hit"]) >= 4.5
    for colour in (*fig.COLOURS, fig.LIMIT, fig.MUTED, fig.INK):
        assert contrast(colour, fig.SURFACE) >= 4.5, colour  # some of it is text in charts
        assert contrast(fig.DARK[colour], fig.DARK[fig.SURFACE]) >= 4.5, colour


def test_what_was_there_stays_where_writing_fails(tmp_path, monkeypatch):
    out = tmp_path / "out.html"
    out.write_text("old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        write_report(whole(), VERDICT, out)
    assert [p.name for p in tmp_path.iterdir()] == ["out.html"]
    assert out.read_text() == "old"


def test_headline_without_the_status_that_the_badge_says(bare):
    found = "".join(Page(made(whole(), VERDICT)).text)
    assert "FAIL: a reason" not in found
    assert found.count("a reason") == 1, "a reason that is the headline is not said twice"


def test_the_commit_is_short_and_says_what_was_not_committed(bare):
    run = records.run_record() | {"commit": "0123456789abcdef0123456789abcdef01234567-dirty"}
    found = made(records.folder(Path("run"), run=run, sweep=records.collapse()))
    assert "<dt>Commit</dt><dd>0123456789ab-dirty</dd>" in found
