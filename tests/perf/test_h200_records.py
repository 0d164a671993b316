"""The H200's bench records, the tables made of them, and the benchmarks that read them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks import anchors, table

from verify_attn.record import read_record

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "results/h200"
BENCHES = [RECORDS / f"bench_{name}.json" for name in ("page1", "page64", "contiguous")]
CELL = {
    "kernel": "mine", "context": 1000, "nodes": 8, "page_size": 1, "layout": "shuffled",
    "tree": "tree", "requests": 1, "heads": 8, "dtype": "bfloat16",
}  # fmt: skip


def cases(*paths: Path) -> list[dict[str, Any]]:
    return [case for path in paths for case in read_record(path)["cases"]]


def case(ms: float = 1.0, status: str = "pass", **parameters: Any) -> dict[str, Any]:
    cell = CELL | parameters
    metrics = {"run_ms": ms, "limit_share": 0.25, "speedup": 4.0} if status == "pass" else {}
    return {
        "id": f"{cell['kernel']} c{cell['context']} n{cell['nodes']}", "parameters": cell,
        "status": status, "reason": None if status == "pass" else f"is {status}\nhere",
        "metrics": metrics,
    }  # fmt: skip


def record(tmp_path: Path, found: list[dict[str, Any]], name: str = "bench.json") -> Path:
    path = tmp_path / name
    whole = {"schema_version": 1, "command": "verify-attn bench", "started": "", "environment": {}}
    path.write_text(json.dumps(whole | {"cases": found}))
    return path


@pytest.mark.parametrize("page", ["README.md", "results/h200/README.md"])
def test_a_page_has_the_tables_that_its_command_makes(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = (ROOT / page).read_text()
    (command,) = re.findall(r"`python benchmarks/(table\.py [^`]*)`", shown)
    copy = tmp_path / "page.md"
    copy.write_text(re.sub(r"(<!-- table -->\n).*?\n(<!-- end)", r"\1\2", shown, flags=re.DOTALL))
    assert copy.read_text() != shown
    words = [str(copy) if word == page else word for word in command.split()]
    assert str(copy) in words
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", words)
    assert table.main() == 0
    assert copy.read_text() == shown


def test_figures_that_are_told_of_the_anchors(capsys: pytest.CaptureFixture[str]) -> None:
    assert anchors.main(BENCHES) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    told = (RECORDS / "README.md").read_text().replace("\n", " ")
    within, off, missing = map(int, re.findall(r"(\d+) (?:anchors|off|not)", last))
    assert f"{within} of {len(lines)} anchors within 10 %, {off} off, {missing} not" in told
    assert f"{within} of {within + off} lay" in (ROOT / "docs/bench.md").read_text()
    assert sum("more than 10% off" in line for line in lines) == off


def test_figures_that_are_told_of_fa2() -> None:
    ms = {
        tuple(c["parameters"][n] for n in ("kernel", "page_size", "context", "nodes")): c["metrics"]
        for c in cases(*BENCHES[:2])
    }
    ratios = [
        ms["flashinfer-fa2", *cell]["run_ms"] / m["run_ms"]
        for (kernel, *cell), m in ms.items()
        if kernel == "sm120"
    ]
    told = f"all {len(ratios)} cells that were timed ({min(ratios):.2f} to {max(ratios):.2f} times)"
    assert min(ratios) > 1
    assert told in (ROOT / "README.md").read_text().replace("\n", " ")


def test_figures_that_are_told_of_the_longest_cells() -> None:
    ms = {
        (c["parameters"]["kernel"], c["parameters"]["context"], c["parameters"]["nodes"]): c
        for c in cases(RECORDS / "bench_page1.json")
    }
    nodes = (8, 32, 64)
    ours, fa2, split = (
        [ms[kernel, 184_728, n]["metrics"]["run_ms"] for n in nodes]
        for kernel in ("sm120", "flashinfer-fa2", "triton-split")
    )
    ratios = [theirs / mine for theirs, mine in zip(fa2, ours, strict=True)]
    rows = [
        ("`sm120`, a tree", [f"{one:.3f}" for one in ours]),
        ("`flashinfer-fa2`, a chain", [f"{one:.3f}" for one in fa2]),
        ("fa2 / `sm120`", [f"{one:.2f}" for one in ratios]),
        ("`triton-split`, a tree", [f"{one:.3f}" for one in split]),
    ]
    told = (ROOT / "docs/kernels.md").read_text()
    for name, figures in rows:
        assert f"| {name} | {' | '.join(figures)} |" in told
    told = (ROOT / "README.md").read_text().replace("\n", " ")
    assert "takes {:.3f}, {:.3f} and {:.3f} ms, and fa2 {:.2f}, {:.2f} and {:.2f} times".format(
        *ours, *ratios
    ) in told  # fmt: skip
    passed = [key for key, c in ms.items() if c["status"] == "pass" and key[0] == "sm120"]
    assert len(passed) == 18
    assert all(
        ms["flashinfer-fa2", *key]["metrics"]["run_ms"] > ms["sm120", *key]["metrics"]["run_ms"]
        for _, *key in passed
    )


def test_figures_that_are_told_of_the_same_kernel() -> None:
    total: dict[str, dict[str, int]] = {"itself": {}, "slowed": {}}
    for one in cases(RECORDS / "same_kernel.json"):
        assert one["status"] == "pass"
        for verdict, count in one["metrics"]["verdicts"].items():
            of_kind = total[one["parameters"]["kind"]]
            of_kind[verdict] = of_kind.get(verdict, 0) + count
    assert total == {"itself": {"same": 56, "unclear": 4}, "slowed": {"worse": 59, "unclear": 1}}
    told = (ROOT / "docs/compare.md").read_text()
    assert re.search(r"none of 60 comparisons \(56 same, 4 unclear\)", told)
    assert re.search(r"worse in\s+59 of 60 \(1 unclear\)", told)


@pytest.mark.parametrize("path", sorted(RECORDS.glob("*.json")), ids=lambda path: path.name)
def test_commands_are_for_any_checkout(path: Path) -> None:
    assert not re.search(r"(^|[ =])/", json.loads(path.read_text()).get("command", ""))


class TestTable:
    def test_kernels_are_columns_and_chains_say_so(self) -> None:
        found = [case(1.0), case(0.5, kernel="theirs", tree="chain"), case(20.0, nodes=32)]
        lines = table.tables(found).splitlines()
        assert lines[2] == "| tokens | nodes | mine | theirs (chain) |"
        assert lines[4:] == [
            "| 1,000 | 8 | 1.00 (25 %) | 0.500 (25 %) |",
            "| 1,000 | 32 | 20.0 (25 %) | - |",
        ]

    def test_speedups_where_asked(self) -> None:
        assert "1.00 (25 %, 4.00x)" in table.tables([case()], speedup=True)

    def test_a_table_for_each_page_size_and_layout(self) -> None:
        text = table.tables([case(), case(page_size=64), case(layout="contiguous")])
        assert text.count("| tokens |") == 3
        assert "Page size 64, shuffled pages:" in text

    @pytest.mark.parametrize("status", ["fail", "skipped", "inconclusive"])
    def test_what_has_no_time_is_named_with_its_reason(self, status: str) -> None:
        text = table.tables([case(), case(kernel="theirs", status=status)])
        assert "theirs |" not in text
        assert f"Not timed: `theirs`, 1 cell: is {status} here." in text

    @pytest.mark.parametrize(
        ("make", "told"),
        [
            (lambda: table.tables([case(), case()]), "is there twice"),
            (lambda: table.tables([case()], [5]), "no case has the context 5; the records have 10"),
            (lambda: table.inserted("no marks", "text"), "must have <!-- table -->"),
        ],
    )
    def test_what_cannot_be(self, make: Callable[[], str], told: str) -> None:
        with pytest.raises(ValueError, match=told):
            make()


class TestAnchors:
    ROW = json.loads(anchors.ANCHORS.read_text())["rows"][0]

    def of(self, times: float) -> dict[str, Any]:
        names = ("context", "nodes", "page_size")
        same = {name: self.ROW[name] for name in names}
        return case(self.ROW["ms"] * times, kernel="sglang-extend", **same)

    @pytest.mark.parametrize(
        ("times", "code", "last"),
        [
            (1.09, 0, "1 anchors within 10%, 0 off, 0 not measured"),
            (0.89, 1, "0 anchors within 10%, 1 off, 0 not measured"),
            (None, 1, "0 anchors within 10%, 0 off, 1 not measured"),
        ],
    )
    def test_codes(
        self, times: float | None, code: int, last: str, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        one = tmp_path / "anchors.json"
        one.write_text(json.dumps({"rows": [self.ROW]}))
        monkeypatch.setattr(anchors, "ANCHORS", one)
        other = record(tmp_path, [case()], "other.json")
        mine = record(tmp_path, [] if times is None else [self.of(times)])
        assert anchors.main([other, mine]) == code
        assert capsys.readouterr().out.splitlines()[-1] == last

    def test_from_any_folder(self, tmp_path: Path) -> None:
        done = subprocess.run(
            [sys.executable, str(ROOT / "benchmarks/anchors.py"), "nothing.json"], cwd=tmp_path,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert "nothing.json" in done.stderr
