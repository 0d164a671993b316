"""The report in headless Chromium: drawn, quiet, and readable by everybody.

Skipped where there is no Chromium, unless VERIFY_ATTN_REQUIRE_BROWSER is set.
"""

import os
from itertools import pairwise
from pathlib import Path

import pytest

from tests.report import records
from tests.report.browser import PHONE, REQUIRED, WIDE, browser, missing

if not os.environ.get(REQUIRED):
    pytest.importorskip("selenium")
    pytest.importorskip("jinja2")
    if why := missing():
        pytest.skip(f"{why}; set {REQUIRED}=1 to fail instead", allow_module_level=True)

from selenium.webdriver.common.keys import Keys

from verify_attn.report.html import write_report
from verify_attn.report.verdict import judge

# A chart is drawn if something of it is: a line, a marker, a bar.
MARKS = ".scatterlayer path, .barlayer path"
DRAWN = (
    "return [...document.querySelectorAll('.chart')].map(box => [box.id, "
    f"box.querySelectorAll('{MARKS}').length, box.getBoundingClientRect().height])"
)


@pytest.fixture(scope="module")
def chromium():
    """One browser for all of these tests."""
    if why := missing():
        pytest.fail(f"{REQUIRED} is set, and {why}")
    with browser() as one:
        yield one


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Paths by name: everything there is, markup everywhere, nothing, the collapse."""
    folder = tmp_path_factory.mktemp("reports")

    def write(name, given, **more):
        write_report(given, judge(given), folder / f"{name}.html", **more)

    others = [records.real("h200/defragmentation.json"), records.real("h200/fragmentation.json")]
    whole = records.folder(
        Path("run"), run=records.run_record(), sweep=records.real("cpu/burst_prose.json"),
        check=records.failing_check(), bench=records.bench(),
    )  # fmt: skip
    write("whole", whole, against=records.real("cpu/burst_reasoning.json"), others=others)
    hostile = records.hostile()
    write("hostile", records.folder(Path(f"run{records.HOSTILE[:60]}"), **hostile),
          against=hostile["sweep"])  # fmt: skip
    write("empty", records.folder(Path("run"), run=records.record("verify-attn run", [])))
    write("collapse", records.folder(Path("run"), sweep=records.collapse()))
    return {path.stem: path for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["whole", "collapse", "empty"])
def test_every_chart_is_drawn_and_the_console_is_silent(chromium, reports, name):
    chromium.open(reports[name])
    assert chromium.console() == []
    drawn = chromium.script(DRAWN)
    assert len(drawn) == {"whole": 11, "collapse": 5, "empty": 0}[name]
    for chart, marks, height in drawn:
        assert marks > 0, chart
        assert height > 150, chart
    # Nothing was asked of any network, nor could it be.
    assert chromium.script("return performance.getEntriesByType('resource').length") == 0


def test_the_committed_example_says_its_verdict_on_the_first_screen(chromium):
    chromium.open(records.RESULTS / "h200/run/report.html")
    assert chromium.console() == []
    assert all(marks for _, marks, _ in chromium.script(DRAWN))
    headline = "document.querySelector('#headline')"
    shown = chromium.script(f"return {headline}.innerText")
    assert "decode falls from 237.7 to 108.9 tok/s at 184,341 tokens" in shown
    assert "no floor" in shown
    assert 0 < chromium.script(f"return {headline}.getBoundingClientRect().bottom") < WIDE[1]
    assert chromium.script("return scrollY") == 0


def test_text_of_others_stays_text(chromium, reports):
    chromium.open(reports["hostile"])
    assert chromium.console() == []
    assert chromium.script("return typeof window.hacked") == "undefined"
    # plotly's own way of making text bold or a link, and the page's.
    assert (
        chromium.script("return document.querySelectorAll('main img, svg a, main b').length") == 0
    )
    assert all(marks for _, marks, _ in chromium.script(DRAWN))
    shown = chromium.script(
        "return [...document.querySelectorAll('.legendtext')].map(t => t.textContent).join()"
    )
    assert "</script><script>" in shown
    # A hover box is written by plotly when it is needed.
    chromium.script(
        "const box = document.getElementById('kernels-context-chart');"
        "Plotly.Fx.hover(box, [{curveNumber: 1, pointNumber: 0}])"
    )
    hover = chromium.script(
        "return document.querySelector('#kernels-context-chart .hoverlayer').textContent"
    )
    assert "<script>window.hacked=1" in hover.replace("\n", "")
    chromium.redraw(dark=True)
    assert chromium.script("return typeof window.hacked") == "undefined"
    assert chromium.console() == []


def test_links_lead_to_their_places_and_open_them(chromium, reports):
    chromium.open(reports["whole"])
    for target in chromium.script(
        "return [...document.querySelectorAll('a[href^=\"#\"]')].map(a => a.hash.slice(1))"
    ):
        assert chromium.script("return !!document.getElementById(arguments[0])", target), target
    chromium.script("document.querySelector('#failure-0').open = false")
    chromium.script("document.querySelector('.matrix a').click()")
    chromium.wait("return document.querySelector('#failure-0').open")
    chromium.script("document.querySelector('nav a[href=\"#kernels\"]').click()")
    chromium.wait(
        "return Math.abs(document.getElementById('kernels').getBoundingClientRect().top) < 200"
    )


def test_the_scheme_may_change_while_it_is_open(chromium, reports):
    line = "return getComputedStyle(document.querySelector('#decode-chart .js-line')).stroke"
    body = "return getComputedStyle(document.body).backgroundColor"
    chromium.open(reports["collapse"])
    light = chromium.script(line), chromium.script(body)
    chromium.redraw(dark=True)
    assert chromium.script(line) == "rgb(109, 185, 242)"
    assert chromium.script(body) != light[1]
    ink = "return getComputedStyle(document.querySelector('#decode-chart .xtick text')).fill"
    assert chromium.script(ink) == "rgb(230, 235, 242)"
    assert chromium.console() == []


@pytest.mark.parametrize("name", ["whole", "hostile", "empty"])
def test_a_phone_scrolls_one_way_only(chromium, reports, name):
    chromium.open(reports[name], size=PHONE, touch=True)
    chromium.script("for (const each of document.querySelectorAll('details')) each.open = true")
    wide = chromium.script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert wide == [PHONE[0], PHONE[0]]
    # The verdict is on the first screen, and charts keep their width.
    seen = "return document.querySelector('#headline').getBoundingClientRect().top"
    assert chromium.script(seen) < 200
    widths = chromium.script(
        "return [...document.querySelectorAll('.chart svg.main-svg')].map(s => s.clientWidth)"
    )
    assert all(w < PHONE[0] for w in widths)


def test_a_keyboard_reaches_everything_in_order(chromium, reports):
    chromium.open(reports["collapse"])
    order = []
    for _ in range(60):
        chromium.press(Keys.TAB)
        tag = chromium.script(
            "const e = document.activeElement; return [e.tagName, e.className, "
            "e.getBoundingClientRect().top + scrollY, getComputedStyle(e).outlineStyle]"
        )
        if tag[0] == "BODY":
            break
        order.append(tag)
    assert order[0][1] == "skip"
    assert {tag for tag, *_ in order} >= {"A", "SUMMARY", "DIV"}
    # Down the page, each with a frame that shows where one is.
    tops = [top for *_, top, _ in order[1:]]
    assert sum(b < a - 60 for a, b in pairwise(tops)) == 0
    assert all(outline != "none" for *_, outline in order[1:])


def test_a_table_opens_by_its_key(chromium, reports):
    chromium.open(reports["collapse"])
    chromium.script("document.querySelector('#decode figure summary').focus()")
    chromium.press(Keys.ENTER)
    chromium.wait("return document.querySelector('#decode figure details').open")
    row = "return document.querySelector('#decode figure tbody tr').innerText"
    assert "25.72" in chromium.script(row)


def test_a_screen_reader_is_told_what_a_chart_shows(chromium, reports):
    """By the browser's own accessibility tree."""
    chromium.open(reports["collapse"])
    chromium.command("Accessibility.enable")
    tree = chromium.command("Accessibility.getFullAXTree")["nodes"]
    chromium.command("Accessibility.disable")
    known = [
        (n["role"]["value"], n.get("name", {}).get("value", ""))
        for n in tree if not n.get("ignored") and "role" in n
    ]  # fmt: skip
    images = [name for role, name in known if role in ("image", "img")]
    assert any("112.7 tok/s at 1,427 tokens, 1.785 at 184,679" in name for name in images)
    named = ("image", "img", "link", "region", "table", "DisclosureTriangle")
    assert [role for role, name in known if role in named and not name] == []
    roles = {role for role, _ in known}
    assert {"main", "navigation", "banner", "contentinfo", "heading"} <= roles


def test_every_text_has_contrast_where_it_stands(chromium, reports):
    """Of text against the background behind it, as the browser computes both."""
    script = (Path(__file__).parent / "contrast.js").read_text()
    chromium.open(reports["whole"])
    assert chromium.script(script) == []
    chromium.redraw(dark=True)
    assert chromium.script(script) == []
    chromium.script("document.querySelector('figcaption').style.color = '#333333'")
    assert len(chromium.script(script)) == 1, "the script does see what cannot be read"


def test_without_scripts_the_tables_are_there(chromium, reports):
    chromium.emulate(size=WIDE)
    chromium.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chromium.driver.get(reports["collapse"].as_uri())
        text = chromium.driver.page_source
        assert "Charts need JavaScript" in text
        assert "25.72" in text
    finally:
        chromium.command("Emulation.setScriptExecutionDisabled", value=False)
