"""The bench around the timing: checks, cheats, interleaving, intervals, shares, speedups."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from tests.perf.scripted import ScriptedDevice
from verify_attn.conformance.trial import CheckFailed
from verify_attn.kernels.base import Capabilities, VerifyKernel
from verify_attn.kernels.torch_kernel import torch_verify
from verify_attn.perf import bench
from verify_attn.perf.axes import AXES, QUICK, AxisError, Cell, cells
from verify_attn.perf.bench import LEAST_ROUNDS, MOST_ROUNDS, WARM_UP, Bench
from verify_attn.perf.case import own_rates
from verify_attn.perf.device import Reading
from verify_attn.perf.roofline import Rates, limit, work_of
from verify_attn.perf.subject import MOST_COPIES, Shared, Subject
from verify_attn.problem import VerifyBatch

CELL = Cell(context=40, nodes=5, heads=4, geometry="tiny", dtype="float32")
RATES = Rates(1.0, 1.0, "scripted")  # so slow that no scripted time is above the ceiling


@dataclass(eq=False)
class Kernel:
    """The right answer, after whatever a test does around it."""

    name: str
    before: Callable[[VerifyBatch], object] = lambda batch: None
    after: Callable[[VerifyBatch, torch.Tensor, torch.Tensor], object] = lambda *_: None
    capabilities: Capabilities = field(default_factory=lambda: Capabilities(capture=True))
    plain_function: bool = False

    def unsupported(self, batch: VerifyBatch) -> str | None:
        return self.capabilities.refuses(batch)

    def plan(self, batch: VerifyBatch) -> None:
        return None

    def prepare(self, batch: VerifyBatch, plan: Any) -> None:
        return None

    def run(self, batch: VerifyBatch, plan: Any, out: torch.Tensor, lse: torch.Tensor) -> None:
        self.before(batch)
        torch_verify(batch, out, lse)
        self.after(batch, out, lse)


def steady(seconds: dict[str, float], jitter: float = 0.001) -> Callable[[str, int], float]:
    """A script: the kernel's seconds, a little up and down."""

    def script(name: str, number: int) -> float:
        kernel, _, _ = name.partition(" | ")
        return seconds[kernel] * (1 + jitter * ((number * 7) % 5 - 2))

    return script


def measured(
    *kernels: VerifyKernel, seconds: dict[str, float] | None = None, cell: Cell = CELL,
    device: ScriptedDevice | None = None, **options: Any,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """The one cell's cases, by kernel."""
    device = device or ScriptedDevice(steady(seconds or {k.name: 1e-3 for k in kernels}))
    options = {"baseline": kernels[0].name} | options
    bench = Bench(device, {k.name: k for k in kernels}, [cell], RATES, **options)
    (cases,) = bench.cases()
    return {case["parameters"]["kernel"]: case for case in cases}


def test_figures_of_a_cell() -> None:
    cases = measured(Kernel("slow"), Kernel("fast"), seconds={"slow": 4e-3, "fast": 1e-3})
    case = cases["fast"]
    m, work = case["metrics"], work_of(CELL.case())
    assert case["status"] == "pass"
    assert case["id"] == "fast | tiny r1 c40 n5 h4 p1 shuffled tree float32"
    assert m["run_ms"] == pytest.approx(1, rel=0.01)
    assert m["run_low_ms"] <= m["run_ms"] <= m["run_high_ms"]
    assert m["gb_per_s"] == pytest.approx(work.total_bytes / m["run_ms"] / 1e6)
    assert m["tflop_per_s"] == pytest.approx(work.flops / m["run_ms"] / 1e9)
    assert m["memory_share"] == pytest.approx(m["gb_per_s"] / RATES.gb_per_s)
    assert m["arithmetic_share"] == pytest.approx(m["tflop_per_s"] / RATES.tflops)
    least = limit(work, RATES)
    assert m["binds"] == least.binds
    assert m["limit_share"] == pytest.approx(least.seconds / (m["run_ms"] / 1e3))
    assert m["speedup"] == pytest.approx(4, rel=0.01)
    assert m["speedup_low"] <= m["speedup"] <= m["speedup_high"]
    assert m["against_baseline"] == "better"
    assert "speedup" not in cases["slow"]["metrics"]
    assert set(case["methods"]) == {"run", "prepare_run", "graph"}
    assert case["methods"]["prepare_run"]["drained"]
    assert all(len(taken) == m["samples"] for taken in case["samples_ms"].values())


def test_kernels_take_turns_and_neither_always_goes_first() -> None:
    device = ScriptedDevice(steady({"a": 1e-3, "b": 1e-3}))
    measured(Kernel("a"), Kernel("b"), device=device, timers=("events",))
    names = [name.partition(" | ")[0] for name in device.order if name.endswith(" run")]
    rounds = [names[i : i + 2] for i in range(0, len(names), 2)]
    assert all(set(pair) == {"a", "b"} for pair in rounds)
    assert {tuple(pair) for pair in rounds} == {("a", "b"), ("b", "a")}
    assert len(rounds) == WARM_UP + LEAST_ROUNDS


def test_a_noisy_kernel_gets_more_samples_and_if_need_be_no_result() -> None:
    def script(name: str, number: int) -> float:
        return 1e-3 * (1 + 3 * ((number * 7919) % 100) / 100)

    case = measured(Kernel("a"), device=ScriptedDevice(script))["a"]
    assert case["metrics"]["samples"] == MOST_ROUNDS
    assert case["status"] == "inconclusive"
    assert "wider than 5% of the median" in case["reason"]


def test_copies_push_each_other_out_of_the_cache() -> None:
    device = ScriptedDevice(steady({"a": 1e-3}))
    case = measured(Kernel("a"), device=device)["a"]
    copies = case["methods"]["graph"]["calls"]
    assert copies <= MOST_COPIES
    assert (copies - 1) * work_of(CELL.case()).total_bytes >= 2 * device.l2_bytes


def test_no_capture_no_graph_and_it_is_said() -> None:
    case = measured(Kernel("a", capabilities=Capabilities()))["a"]
    assert "graph_ms" not in case["metrics"]
    assert any("does not declare capture" in note for note in case["notes"])


def test_cupti_that_is_not_usable_is_said() -> None:
    device = ScriptedDevice(steady({"a": 1e-3}), no_cupti="no GPU activity was recorded")
    case = measured(Kernel("a"), device=device, timers=("cupti", "events"))["a"]
    assert case["status"] == "pass"
    assert any("no GPU activity was recorded" in note for note in case["notes"])


@pytest.mark.parametrize("timer", ["cupti", "graph"])
def test_a_kernel_of_which_no_time_was_taken_did_not_pass(timer: str) -> None:
    device = ScriptedDevice(steady({"a": 1e-3}), no_cupti="no GPU activity was recorded")
    kernel = Kernel("a", capabilities=Capabilities())  # without capture
    case = measured(kernel, device=device, timers=(timer,))["a"]
    assert case["status"] == "inconclusive"
    assert case["reason"].startswith(f"no time of the kernel could be taken: {timer}: ")


def test_chains_alone_are_timed_on_a_chain_and_once() -> None:
    kernel = Kernel("chain", capabilities=Capabilities(tree_mask=False))
    device = ScriptedDevice(steady({"chain": 1e-3}))
    bench = Bench(device, {"chain": kernel}, [CELL, CELL.changed(tree="chain")], RATES)
    first, second = bench.cases()
    assert [case["parameters"]["tree"] for case in first] == ["chain"]
    assert first[0]["status"] == "pass"
    assert second == []


def test_what_a_kernel_does_not_declare_is_skipped() -> None:
    kernel = Kernel("a", capabilities=Capabilities(page_sizes=(64,)))
    case = measured(kernel)["a"]
    assert (case["status"], case["metrics"]) == ("skipped", {})
    assert "page sizes" in case["reason"]


class TestCheats:
    """No time for any of them."""

    def test_a_wrong_kernel(self) -> None:
        case = measured(Kernel("a", after=lambda batch, out, lse: out.mul_(1.5)))["a"]
        assert (case["status"], case["metrics"]) == ("fail", {})
        assert "differs from the reference" in case["reason"]

    def test_a_wrong_lse(self) -> None:
        case = measured(Kernel("a", after=lambda batch, out, lse: lse.add_(1)))["a"]
        assert case["status"] == "fail"

    @pytest.mark.parametrize("timers", [("events",), ("graph",)])
    def test_an_answer_kept_from_before(self, timers: tuple[str, ...]) -> None:
        kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def once(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
            known = kept.setdefault(batch.q.data_ptr(), (out.clone(), lse.clone()))
            out.copy_(known[0])
            lse.copy_(known[1])

        case = measured(Kernel("a", after=once), timers=timers)["a"]
        assert (case["status"], case["metrics"]) == ("fail", {})
        assert "timed call is wrong" in case["reason"]

    def test_work_left_out_while_the_clock_runs(self) -> None:
        device = ScriptedDevice(steady({"a": 1e-3}))

        def lazy(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
            if device.order:
                out.zero_()

        case = measured(Kernel("a", after=lazy), device=device)["a"]
        assert case["status"] == "fail"

    def test_faster_than_the_hardware(self) -> None:
        work = work_of(CELL.case())
        seconds = limit(work, RATES).seconds
        right = measured(Kernel("a"), seconds={"a": seconds * 1.01})["a"]
        wrong = measured(Kernel("a"), seconds={"a": seconds / 1.2})["a"]
        assert right["status"] == "pass"
        assert (wrong["status"], wrong["metrics"]) == ("error", {})

    @pytest.mark.parametrize("time", [0.0, float("nan"), -1e-3])
    def test_times_that_are_none(self, time: float) -> None:
        device = ScriptedDevice(lambda name, number: time if number == 9 else 1e-3)
        case = measured(Kernel("a"), device=device)["a"]
        assert (case["status"], case["metrics"]) == ("error", {})
        assert str(time) in case["reason"]

    def test_one_that_raises_while_it_is_timed(self) -> None:
        device = ScriptedDevice(steady({"a": 1e-3, "b": 1e-3}))

        def tired(batch: VerifyBatch) -> None:
            if len(device.order) > 20:
                raise RuntimeError("no more")

        cases = measured(Kernel("a", before=tired), Kernel("b"), device=device)
        assert cases["a"]["status"] == "error"
        assert re.match(
            r"the kernel raised while it was timed \((run|prepare_run|graph)\)\n",
            cases["a"]["reason"],
        )
        assert "no more" in cases["a"]["reason"]
        assert cases["b"]["status"] == "pass"
        assert "speedup" not in cases["b"]["metrics"]


class TestWhichTimedPartFailed:
    """The reason says it: that is where to look."""

    @staticmethod
    def wrong_from(copy: int, device: ScriptedDevice) -> Kernel:
        """Right in the first ``copy - 1`` calls of a replay, and wherever else it is called."""
        calls = 0

        def after(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
            nonlocal calls
            replaying = bool(device.order) and device.order[-1].endswith(" graph")
            calls = calls + 1 if replaying else 0
            if replaying and (calls - 1) % copies(device) == copy - 1:
                out.zero_()

        return Kernel("a", after=after)

    def test_a_second_copy_alone(self) -> None:
        device = ScriptedDevice(steady({"a": 1e-3}))
        case = measured(self.wrong_from(2, device), device=device, timers=("graph",))["a"]
        assert (case["status"], case["metrics"]) == ("fail", {})
        told = f"timed part: graph, copy 2 of {copies(device)} (1 of them wrong): "
        assert told in case["reason"]

    def test_every_copy(self) -> None:
        device = ScriptedDevice(steady({"a": 1e-3}))

        def after(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
            if device.order:
                lse.add_(1)

        case = measured(Kernel("a", after=after), device=device, timers=("graph",))["a"]
        n = copies(device)
        assert case["reason"].startswith(
            f"lse differs from the oracle's; timed part: graph, copy 1 of {n} ({n} of them wrong): "
        )

    @pytest.mark.parametrize("part", ["run", "prepare_run", "cupti"])
    def test_calls_of_one_problem(self, part: str) -> None:
        device = ScriptedDevice(steady({"a": 1e-3}))

        def after(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
            if device.order and device.order[-1].endswith(f" {part}"):
                out.zero_()

        timers = ("events", "graph", "cupti")
        case = measured(Kernel("a", after=after), device=device, timers=timers)["a"]
        assert case["status"] == "fail"
        assert f"timed part: {part}: " in case["reason"]


def copies(device: ScriptedDevice) -> int:
    """Of the cell in a graph."""
    return min(MOST_COPIES, max(2, 1 + -(-2 * device.l2_bytes // work_of(CELL.case()).total_bytes)))


def test_fp8_products_are_held_to_twice_the_arithmetic() -> None:
    rates = Rates(10.0, 1.0, "scripted")
    assert own_rates(rates, Capabilities()) == rates
    assert own_rates(rates, Capabilities(products=torch.float8_e4m3fn)).tflops == 2.0


def test_two_modes_are_said() -> None:
    script = lambda name, number: 1e-3 if number % 3 else 1.3e-3  # noqa: E731
    case = measured(Kernel("a"), device=ScriptedDevice(script))["a"]
    assert any(note.startswith("run has two modes, 1 and 1.3 ms") for note in case["notes"])


def test_samples_under_held_down_clocks_are_marked() -> None:
    def readings(name: str, number: int) -> Reading:
        return Reading(1200 if number == 8 else 1980, 2600, 690.0, 84,
                       "thermal slowdown" if number == 8 else None)  # fmt: skip

    device = ScriptedDevice(steady({"a": 1e-3}), readings=readings)
    case = measured(Kernel("a"), device=device, timers=("events",))["a"]
    assert case["metrics"]["throttled_samples"] == 2  # of run and of prepare_run
    assert case["throttled"]["run"].index("thermal slowdown") == 8 - WARM_UP
    assert case["metrics"]["sm_clock_mhz_least"] == 1200
    assert any("thermal slowdown" in note for note in case["notes"])


class TestAxes:
    def test_one_axis_at_a_time(self) -> None:
        found = cells()
        centre = Cell()
        for cell in found:
            changed = [n for n in AXES if getattr(cell, n) != getattr(centre, n)]
            assert len(changed) <= 1
        for name, values in AXES.items():
            assert {getattr(c, name) for c in found} >= set(values)
        assert len(found) == len(set(found)) <= 150
        assert {17, 33, 65} <= {c.nodes for c in found}

    def test_a_grid_is_all_combinations(self) -> None:
        found = cells({"context": (10, 20), "nodes": (3, 4), "tree": ("chain",)}, grid=True)
        assert len(found) == 4
        assert {c.tree for c in found} == {"chain"}

    def test_given_axes_alone(self) -> None:
        found = cells({"context": (10, 20), "nodes": (3, 4)})
        assert [(c.context, c.nodes) for c in found] == [(10, 3), (20, 3), (10, 4)]

    def test_quick(self) -> None:
        assert len(cells(QUICK)) == 3

    def test_requests_are_of_unequal_lengths(self) -> None:
        lengths = Cell(requests=16, context=32_000).prefix_lens
        assert lengths[0] == 32_000
        assert lengths[-1] == 2_000
        assert len(set(lengths)) == 16

    def test_too_many_cells_need_the_grid(self) -> None:
        with pytest.raises(AxisError, match="at most 150"):
            cells({"context": tuple(range(200))})

    @pytest.mark.parametrize(
        ("axes", "told"),
        [
            ({"contexts": (1,)}, "no axis 'contexts'"),
            ({"nodes": ()}, "no values"),
            ({"nodes": (0,)}, "nodes is 0"),
            ({"context": (1 << 30,)}, "context is"),
            ({"tree": ("bush",)}, "tree is 'bush'"),
            ({"layout": ("heap",)}, "layout is 'heap'"),
            ({"heads": (0,)}, "heads is 0"),
            ({"page_size": (0,)}, "page_size is 0"),
            ({"dtype": ("int8",)}, "dtype is 'int8'"),
        ],
    )
    def test_what_cannot_be(self, axes: dict[str, Any], told: str) -> None:
        with pytest.raises(ValueError, match=told):
            cells(axes)


def test_a_cells_memory_is_given_back_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Subjects and their graphs are in reference cycles."""
    alive: list[weakref.ref[Subject]] = []
    left: list[int] = []

    class Watched(Subject):
        def __init__(self, *args: Any) -> None:
            left.append(sum(one() is not None for one in alive))
            super().__init__(*args)
            alive.append(weakref.ref(self))

    monkeypatch.setattr(bench, "Subject", Watched)
    gc.disable()  # as if it never came round to it
    try:
        cells = [CELL.changed(context=c) for c in (20, 30, 40)]
        device = ScriptedDevice(steady({"a": 1e-3}))
        for _ in Bench(device, {"a": Kernel("a")}, cells, RATES, baseline="a").cases():
            pass
        assert left == [0, 0, 0]
        assert [one() for one in alive] == [None] * 3
    finally:
        gc.enable()


class TestOutOfMemory:
    """In a part that comes after the graph's: that one stays, and is judged."""

    class Full(ScriptedDevice):
        def whole(self, launch: Any, name: str = "") -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")

    def test_the_graph_s_copies_stay(self) -> None:
        device = self.Full(steady({"a": 1e-3}))
        wrong = Kernel("a", after=lambda batch, out, lse: out.mul_(1 if len(calls) < 9 else 2))
        calls: list[int] = []
        wrong.before = lambda batch: calls.append(1)
        subject = Subject(wrong, CELL, device, Shared(), ("graph", "events"))
        assert "does not fit into the GPU's memory" in subject.absent["prepare_run"]
        calls.extend([1] * 9)
        subject.disturb("graph")
        device.sample(subject.calls["graph"])
        with pytest.raises(CheckFailed, match="timed part: graph"):
            subject.judge("graph")

    def test_a_graph_that_does_not_fit_leaves_no_copies(self) -> None:
        class Full(ScriptedDevice):
            def replay(self, launches: Any, copy_bytes: int, name: str = "") -> Any:
                raise torch.OutOfMemoryError("CUDA out of memory")

        subject = Subject(Kernel("a"), CELL, Full(steady({"a": 1e-3})), Shared())
        assert set(subject.calls) == {"run", "prepare_run"}
        assert "does not fit" in subject.absent["graph"]
        assert subject._copies == []

    def test_memory_that_runs_out_while_judging_is_no_fault_of_the_kernels(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(self: Subject, part: str) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr(Subject, "judge", full)
        case = measured(Kernel("a"))["a"]
        assert case["status"] == "skipped"
        assert "out of GPU memory" in case["reason"]
