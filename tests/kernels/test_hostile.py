"""Every hostile kernel is caught by the check one would expect, with the reason one would want."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from tests.kernels.hostile import HOSTILE, right
from tests.kernels.hostile_rare import RARE
from verify_attn.conformance import CHECK_NAMES, fuzz
from verify_attn.conformance.fuzz import Fuzz, attempt
from verify_attn.generate import Case
from verify_attn.kernels.base import FunctionKernel, ObjectKernel, VerifyKernel, declared

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Where there is a GPU, on the GPU: `pytest -m gpu` is to run them too.
pytestmark = [pytest.mark.gpu] if torch.cuda.is_available() else []


def as_kernel(name: str, target: Any) -> VerifyKernel:
    kind = ObjectKernel if hasattr(target, "run") else FunctionKernel
    return kind(name, target, declared(target))


ALL = HOSTILE | RARE


@pytest.mark.parametrize("name", ALL)
def test_fuzz_catches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "SHRINK_S", 2.0)  # what is found matters here, not how small
    monkeypatch.setattr(fuzz, "SHRINK_INTERPRETED_S", 2.0)
    target, check, reason = ALL[name]
    events: list[dict[str, Any]] = []
    Fuzz(as_kernel(name, target), DEVICE, [check], events.append, seed=3).run(150)
    failures = [e for e in events if e["event"] == "failure" and e["final"]]
    assert failures, f"{name}: {check} passed 150 cases"
    assert re.search(reason, failures[0]["text"]), failures[0]["text"]


def test_the_right_kernel_passes() -> None:
    events: list[dict[str, Any]] = []
    Fuzz(as_kernel("right", right), DEVICE, list(CHECK_NAMES), events.append, seed=4).run(40)
    assert [e for e in events if e["event"] == "failure"] == []
    ran = {e["check"] for e in events if e["event"] == "check" and e["status"] == "pass"}
    assert ran >= set(CHECK_NAMES) - {"capture", "stream", "no-allocation", "reference"}


LENGTHS = (1_000, 32_000, 185_000)
# Mistakes that need a shape of their own; the others show in the long request of any case.
SHAPES = {
    "unused page id read": {"slack": 64},
    "page size taken as 16": {"page_size": 64, "check": "oracle"},
    "mask of the wrong request": {"second": "star:7"},
    "batch changes a request": {"second": "star:7"},
}


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("name", HOSTILE)
def test_caught_at_length(name: str, tokens: int) -> None:
    """The planted keys make every mistake show, however long the context."""
    target, check, _ = HOSTILE[name]
    shape = dict(SHAPES.get(name, {}))
    check = str(shape.pop("check", check))
    tree = "random:66:1" if tokens < 2_000 or "word" in name else "[-1,0,0,1,1,3,4]"
    requests = [(tokens - 3, tree)]
    if "second" in shape:
        requests.append((40, str(shape.pop("second"))))
    case = Case(
        requests=tuple(requests), geometry="tiny/2", layout="shuffled", tail_rows=2, seed=11,
        **{"page_size": 16, **shape},
    )  # fmt: skip
    outcome = attempt(as_kernel(name, target), case, check, DEVICE, explain=False)
    assert outcome["status"] == "fail", f"{name} passes {check} at {tokens} tokens: {outcome}"


@pytest.mark.parametrize("tokens", LENGTHS)
def test_right_at_length(tokens: int) -> None:
    case = Case(((tokens - 3, "[-1,0,0,1,1,3,4]"),), geometry="tiny/2", page_size=16, seed=11)
    for check in ("oracle", "lse"):
        assert attempt(as_kernel("right", right), case, check, DEVICE)["status"] == "pass"
