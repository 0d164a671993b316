"""No kernel sees the same numbers twice, the right answer stays known, and cheats find no gap."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.perf.scripted import ScriptedDevice
from tests.perf.test_bench import CELL, RATES, Kernel, measured, steady
from verify_attn.generate import Case, build
from verify_attn.kernels.base import Capabilities, UnsupportedError
from verify_attn.kernels.torch_kernel import torch_verify
from verify_attn.perf import tested
from verify_attn.perf.device import Call, Launch, TimerError
from verify_attn.perf.fresh import EVERY, Moments, Signs
from verify_attn.perf.pedantic import Pedantic
from verify_attn.problem import VerifyBatch
from verify_attn.reference import oracle

ONE_HEAD = CELL.changed(heads=1)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"node_kv": True, "tail_rows": 2},
        {"dtype": "bfloat16", "pool": "row-stride", "q": "strided"},
        {"dtype": "bfloat16", "kv_dtype": "float8_e4m3fn", "page_size": 16, "tables": "strided"},
    ],
)
def test_the_answer_of_other_signs_is_known(changes: dict[str, Any]) -> None:
    batch = build(Case(((20, "random:5:1"), (3, "chain:2+1")), geometry="tiny/3", **changes))
    known, before = oracle(batch), batch.q.clone()
    signs = Signs(batch.geometry.qk_dim, batch.device)
    for _ in range(3):
        signs.turn([batch])
        found, right = oracle(batch), signs.answer(known)
        assert torch.equal(found.lse, right.lse)
        assert torch.equal(found.out, right.out)
    assert not torch.equal(batch.q[:5], before[:5])


def test_moments_come_often_and_never_in_step() -> None:
    taken = {tuple(n for n in range(3 * EVERY) if moments(n)) for moments in
             (Moments() for _ in range(50))}  # fmt: skip
    assert all(len(numbers) == 3 for numbers in taken)
    assert len(taken) > 5


class Fresh(Kernel):
    """Works only if ``prepare`` was just called."""

    fresh = True

    def prepare(self, batch: VerifyBatch, plan: Any) -> None:
        self.fresh = True

    def run(self, batch: VerifyBatch, plan: Any, out: torch.Tensor, lse: torch.Tensor) -> None:
        if self.fresh:
            super().run(batch, plan, out, lse)
        self.fresh = False


class InPrepare(Kernel):
    """Has its answer from ``prepare``."""

    def prepare(self, batch: VerifyBatch, plan: Any) -> None:
        shape = batch.rows, batch.geometry.heads
        self.kept = torch.empty(*shape, batch.geometry.latent_dim), torch.empty(shape)
        torch_verify(batch, *self.kept)

    def run(self, batch: VerifyBatch, plan: Any, out: torch.Tensor, lse: torch.Tensor) -> None:
        out.copy_(self.kept[0])
        lse.copy_(self.kept[1])


class RowsInPrepare(Kernel):
    """Has its KV rows from ``prepare``."""

    def prepare(self, batch: VerifyBatch, plan: Any) -> None:
        self.rows = batch.kv_pool.clone()

    def run(self, batch: VerifyBatch, plan: Any, out: torch.Tensor, lse: torch.Tensor) -> None:
        super().run(batch.with_fields(kv_pool=self.rows), plan, out, lse)


class Pointer(Kernel):
    """Has its answer by where q lies; with one head there is nothing to turn q by."""

    def run(self, batch: VerifyBatch, plan: Any, out: torch.Tensor, lse: torch.Tensor) -> None:
        kept = self.__dict__.setdefault("kept", {})
        if batch.q.data_ptr() not in kept:
            super().run(batch, plan, out, lse)
            kept[batch.q.data_ptr()] = out.clone(), lse.clone()
        out.copy_(kept[batch.q.data_ptr()][0])
        lse.copy_(kept[batch.q.data_ptr()][1])


class Late(Kernel):
    """Works as long as the least number of rounds."""

    calls = 0

    def run(self, batch: VerifyBatch, plan: Any, out: torch.Tensor, lse: torch.Tensor) -> None:
        self.calls += 1
        if self.calls < 45:
            super().run(batch, plan, out, lse)


@pytest.mark.parametrize("kind", [Fresh, InPrepare, RowsInPrepare, Pointer, Late])
def test_no_time_for_it(kind: type[Kernel]) -> None:
    def noisy(name: str, number: int) -> float:
        return 1e-3 * (1 + 3 * ((number * 7919) % 100) / 100)

    kernel = kind("a", capabilities=Capabilities())
    case = measured(kernel, cell=ONE_HEAD, timers=("events",), device=ScriptedDevice(noisy))["a"]
    assert (case["status"], case["metrics"]) == ("fail", {})
    assert "timed call is wrong" in case["reason"]


def test_an_answer_kept_by_values_is_never_asked_for_again() -> None:
    seen: list[torch.Tensor] = []

    def look(batch: VerifyBatch) -> None:
        assert not any(torch.equal(batch.q, q) for q in seen), "the same q again"
        seen.append(batch.q.clone())

    kernel = Kernel("a", before=look, capabilities=Capabilities())
    assert measured(kernel, timers=("events",))["a"]["status"] == "pass"


# -- what ends a kernel, and not the run ---------------------------------------------------------


class Launching(ScriptedDevice):
    """Calls before it times, as a GPU's does; has no timer for what is told."""

    without = "nobody"

    def once(self, launch: Launch, name: str = "") -> Call:
        if name.startswith(self.without):
            raise TimerError("no flush hides it")
        launch()
        return super().once(launch, name)


def test_one_that_raises_at_its_second_launch() -> None:
    calls: list[int] = []

    def second(batch: VerifyBatch) -> None:
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("no more")

    device = Launching(steady({"a": 1e-3, "b": 1e-3}))
    cases = measured(Kernel("a", before=second), Kernel("b"), device=device)
    assert cases["a"]["status"] == "error"
    assert "no more" in cases["a"]["reason"]
    assert cases["b"]["status"] == "pass"


def test_a_baseline_without_a_time_of_run() -> None:
    device = Launching(steady({"a": 1e-3, "b": 1e-3}))
    device.without = "a"
    cases = measured(Kernel("a"), Kernel("b"), device=device)
    assert [c["status"] for c in cases.values()] == ["pass", "pass"]
    assert "speedup" not in cases["b"]["metrics"]
    assert any("no speedup: a has no time of run" in note for note in cases["b"]["notes"])


def test_a_baseline_that_failed_is_told() -> None:
    wrong = Kernel("a", after=lambda batch, out, lse: out.mul_(1.5))
    case = measured(wrong, Kernel("b"), seconds={"a": 1e-3, "b": 1e-3})["b"]
    assert any("no speedup: a has no time of run" in note for note in case["notes"])


def test_a_speedup_over_a_tree_is_told_for_a_kernel_of_chains() -> None:
    chains = Kernel("b", capabilities=Capabilities(tree_mask=False))
    case = measured(Kernel("a"), chains, seconds={"a": 2e-3, "b": 1e-3})["b"]
    assert case["parameters"]["tree"] == "chain"
    assert f"the speedup is over a on {CELL.id}" in case["notes"]


@pytest.mark.parametrize("where", ["contents", "poisoned_outputs"])
def test_memory_that_runs_out_is_said_with_what_would_fit(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 5 GiB.")

    monkeypatch.setattr(f"verify_attn.perf.subject.{where}", full)
    case = measured(Kernel("a"))["a"]
    assert (case["status"], case["metrics"]) == ("skipped", {})
    assert "Tried to allocate 5 GiB" in case["reason"]
    assert "fewer requests or a shorter context" in case["reason"]


def test_ctrl_c_while_a_kernel_is_checked_is_no_failure_of_it() -> None:
    def interrupted(batch: VerifyBatch) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(Kernel("a", before=interrupted), Kernel("b"))


def past_the_end(out: torch.Tensor) -> None:
    out.new_empty(0).set_(out.untyped_storage())[-10:] = 1  # type: ignore[call-overload]


def another_storage(out: torch.Tensor) -> None:
    out.set_(out.clone())  # type: ignore[call-overload]


@pytest.mark.parametrize("tamper", [past_the_end, another_storage])
def test_memory_around_the_outputs_of_timed_calls(tamper: Any) -> None:
    calls: list[int] = []

    def later(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
        calls.append(1)
        if len(calls) > 1:  # the first is checked by itself
            tamper(out)

    case = measured(Kernel("a", after=later), timers=("events",))["a"]
    assert case["status"] == "fail"
    assert "memory that is not its own" in case["reason"]


def test_what_a_plan_says_is_outside_what_it_declares_is_skipped() -> None:
    class Picky(Kernel):
        def plan(self, batch: VerifyBatch) -> None:
            raise UnsupportedError("not this one")

    case = measured(Picky("a"))["a"]
    assert (case["status"], case["reason"]) == ("skipped", "not this one")


def test_a_baseline_that_raises_at_a_later_launch_is_no_fault_of_the_measured_kernel() -> None:
    calls: list[int] = []

    def second(batch: VerifyBatch) -> None:
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("no more")

    believed = tested.Tested(Launching(steady({"a": 1e-3})), RATES)
    pedantic = Pedantic(believed, "triton-unsplit")
    pedantic.baseline = Kernel("a", before=second)
    assert pedantic._baseline(CELL) == "no more"
