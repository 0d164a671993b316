"""docs/records.md names every field that real records have."""

import json
import re

import pytest

from tests.docs.pages import ROOT
from verify_attn.record import SCHEMA_VERSION, STATUSES, new_record

PAGE = (ROOT / "docs/records.md").read_text()
NAMED = set(re.findall(r"`([A-Za-z_]+)`", PAGE))
# Two figures of several streams, and lowest and highest of others, are named by how they begin.
BEGIN = ("total_", "stream_")
RECORDS = (
    ROOT / "results/cpu/check.json", ROOT / "results/h200/check.json",
    ROOT / "results/cpu/burst_prose.json", *sorted((ROOT / "tests/data/report").glob("*.json")),
)  # fmt: skip


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_field_is_named(path):
    record = json.loads(path.read_text())
    fields = {*record, *record["environment"]}
    for gpu in record["environment"]["gpus"]:
        fields |= set(gpu)
    for case in record["cases"]:
        fields |= {*case, *case["parameters"], *case["metrics"]}
        for listed in ("floors", "findings", "attribution", "failures"):
            for one in case.get(listed, ()):
                fields |= set(one)
    known = {f for f in fields if f in NAMED or f.startswith(BEGIN) or f.endswith("_share")}
    assert fields - known == set()


def test_what_every_record_has():
    assert f"| `schema_version` | {SCHEMA_VERSION}." in PAGE
    assert set(STATUSES) <= NAMED
    assert set(new_record(["x"])) <= NAMED
    assert set(new_record(["x"])["environment"]) <= NAMED
