"""What the pages point to is there: other pages, their headings, files, modules of the tour."""

import re

import pytest

from tests.docs.pages import PAGES, ROOT

PACKAGE = ROOT / "src/verify_attn"


def anchors(path):
    """The ids that GitHub gives a page's headings."""
    titles = re.findall(r"(?m)^#+ (.*)$", path.read_text())
    return {re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    here = ROOT / page
    text = re.sub(r"(?ms)^```.*?^```", "", here.read_text())
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith(("http:", "https:")):
            continue
        name, _, anchor = target.partition("#")
        path = (here.parent / name).resolve() if name else here
        assert path.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors(path), f"{page}: {target}"


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_are_there(page):
    text = re.sub(r"(?ms)^```.*?^```", "", (ROOT / page).read_text())
    named = re.findall(r"`((?:src|tests|benchmarks|examples|results|ci)/[\w./-]*\w)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_tours_modules_are_there():
    rows = [line for line in (ROOT / "docs/tour.md").read_text().splitlines() if "|" in line]
    missing = []
    for row in rows[2:]:
        folder = PACKAGE
        for name in re.findall(r"`([\w./]+(?:\.py|/))`", row.split("|")[1]):
            path = folder / name if (folder / name).exists() else PACKAGE / name
            folder = path.parent
            if not path.exists():
                missing.append(name)
    assert missing == []


def test_the_index_names_every_page():
    index = (ROOT / "docs/README.md").read_text()
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert {page for page in pages if f"({page})" not in index} == set()
