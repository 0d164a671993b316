"""The page of `verify-attn history` in a browser, with text that would like to be markup."""

import pytest

from tests.report.test_history import bench, case, history, keep, levels

pytest.importorskip("selenium")

from selenium.webdriver.support.ui import WebDriverWait

from tests.report.browser import browser, missing


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_the_page_in_a_browser(tmp_path):
    evil = "</script><img src=x onerror=document.title=1><b>"
    flat = [bench(i, 0.1) for i in range(16)]
    for i, (record, ms) in enumerate(zip(flat, levels((0.1, 8), (0.13, 8)), strict=True)):
        record["cases"].append(case(1427, ms) | {"id": evil})
        record["commit"] = f"{i}{evil}"
    keep(tmp_path, *flat)
    history(tmp_path, "--metric", "run_ms", "--html", tmp_path / "page.html")
    drawn = "return document.querySelectorAll('.js-plotly-plot').length"
    with browser() as page:
        for dark in (False, True):
            page.open(tmp_path / "page.html", dark=dark)
            assert page.script(drawn) == 1  # what got worse is open
            page.script("document.querySelectorAll('summary').forEach(s => s.click())")
            WebDriverWait(page.driver, 10).until(lambda _: page.script(drawn) == 2)
            assert page.script("return document.images.length") == 0
            assert page.script("return document.title").startswith("History: 2 series: 1 got")
            assert page.console() == []
