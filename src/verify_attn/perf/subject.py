"""A kernel on a cell, checked, and the calls that are timed.

No time is taken of a wrong kernel: the answer is held to the reference first, and again for some of
the calls that are timed.  Every timed call is on numbers that the kernel has not seen, nor has its
``prepare``, so that an answer kept from before, or work left out while the clock runs, is found.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from verify_attn.assemble import Content
from verify_attn.conformance.trial import (
    CheckFailed,
    NotApplicable,
    Output,
    Trial,
    guards_written,
    poisoned_outputs,
)
from verify_attn.cuda_graph import first_line
from verify_attn.generate import contents
from verify_attn.kernels.base import VerifyKernel
from verify_attn.perf.axes import Cell
from verify_attn.perf.device import Call, Device, Launch, TimerError
from verify_attn.perf.fresh import Signs
from verify_attn.perf.roofline import Work, work_of
from verify_attn.problem import VerifyBatch
from verify_attn.reference import Reference

TIMERS = ("events", "graph", "cupti")
MOST_COPIES = 64
WRONG = "the kernel differs from the reference"
WRONG_TIMED = "the answer of a timed call is wrong (it was right when nobody timed it)"


class Shared:
    """What subjects of one cell have in common: contents and reference, by case."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[list[Content], Reference | None]] = {}

    def lend(self, trial: Trial) -> None:
        """Give a trial what another one of the same case has made already.

        Raises ``NotApplicable`` before the reference is made, which takes long.
        """
        key = trial.case.to_json()
        if key not in self._made:
            self._made[key] = contents(trial.case, trial.device), None
        made, reference = self._made[key]
        trial.__dict__["contents"] = made
        _ = trial.batch
        if reference is None:
            self._made[key] = made, trial.reference
        else:
            trial.__dict__["reference"] = reference


def give_back(device: torch.device) -> None:
    """The memory of subjects that nobody has any more: they, and their graphs, are in reference
    cycles."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def own_cell(kernel: VerifyKernel, cell: Cell) -> Cell:
    """The cell, or for kernels of chains alone a chain of the same size."""
    return cell if kernel.capabilities.tree_mask else cell.changed(tree="chain")


class Subject:
    """Made only of a kernel whose answer is right on the cell.

    Raises ``NotApplicable`` (a cell that it does not declare, or that does not fit here) and
    ``CheckFailed``.  ``calls`` by part: ``run``, ``prepare_run``, ``graph``, ``cupti``; ``absent``
    says why a part that was asked for is missing.
    """

    def __init__(
        self,
        kernel: VerifyKernel,
        cell: Cell,
        device: Device,
        shared: Shared,
        timers: tuple[str, ...] = ("events", "graph"),
    ) -> None:
        self.kernel, self.cell, self.device = kernel, cell, device
        self.name = f"{kernel.name} | {cell.id}"
        self.case = cell.case()
        self.work: Work = work_of(self.case)
        self.calls: dict[str, Call] = {}
        self.absent: dict[str, str] = {}
        self._copies: list[tuple[VerifyBatch, tuple[torch.Tensor, torch.Tensor]]] = []
        with self._in_memory():
            self._check(shared)
            self._make_calls(timers)

    @contextmanager
    def _in_memory(self) -> Iterator[None]:
        """Memory that runs out, whoever asked for it, is no fault of the kernel's."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            told = first_line(error)[:200]
            raise NotApplicable(
                f"does not fit into the GPU's memory ({told}); its KV alone is "
                f"{self.work.kv_bytes / 2**30:.2f} GiB, and is held about three times: ask for "
                "fewer requests or a shorter context"
            ) from None

    def _check(self, shared: Shared) -> None:
        self.trial = Trial(self.kernel, self.case, self.device.torch_device)
        shared.lend(self.trial)
        self._judge(self.trial.output, self.trial.reference, WRONG)
        self.plan = self.trial.plan(self.trial.batch)
        self.trial.prepare(self.trial.batch, self.plan)
        self.outputs = poisoned_outputs(self.trial.batch)
        wide = self.trial.batch.geometry.qk_dim
        device = self.device.torch_device
        self.signs = Signs(wide, device), Signs(wide, device)  # the second: of the graph's copies

    def _make_calls(self, timers: tuple[str, ...]) -> None:
        run = self._launch(self.trial.batch, self.plan, *self.outputs)

        def prepare_and_run() -> None:
            self.kernel.prepare(self.trial.batch, self.plan)
            run()

        makers: dict[str, dict[str, Callable[[], Call]]] = {
            "events": {
                "run": lambda: self.device.once(run, f"{self.name} run"),
                "prepare_run": lambda: self.device.whole(
                    prepare_and_run, f"{self.name} prepare_run"
                ),
            },
            "graph": {"graph": self._graph},
            "cupti": {"cupti": lambda: self.device.profiled(run, f"{self.name} cupti")},
        }
        for timer in timers:
            for part, make in makers[timer].items():
                try:
                    with self._in_memory():
                        self.calls[part] = make()
                except (TimerError, NotApplicable) as reason:
                    self.absent[part] = str(reason)
                else:
                    continue
                give_back(self.device.torch_device)  # after the frames that hold what did fit

    def _launch(self, batch: VerifyBatch, plan: Any, *outputs: torch.Tensor) -> Launch:
        return lambda: self.kernel.run(batch, plan, *outputs)

    def _graph(self) -> Call:
        """The run on as many copies as push each other out of the L2, captured together."""
        if not self.kernel.capabilities.capture:
            raise TimerError("the kernel does not declare capture")
        try:
            return self._graph_of_copies()
        except BaseException:
            self._copies.clear()
            raise

    def _graph_of_copies(self) -> Call:
        copy_bytes = max(1, self.work.total_bytes)
        count = min(MOST_COPIES, max(2, 1 + -(-2 * self.device.l2_bytes // copy_bytes)))
        launches = []
        for seed in range(1, count + 1):
            how = self.case.arrangement.changed(seed=self.case.seed + seed)
            batch = self.trial.arrange(self.trial.contents, how)
            plan = self.trial.plan(batch)
            self.trial.prepare(batch, plan)
            outputs = poisoned_outputs(batch)
            self._copies.append((batch, outputs))
            launches.append(self._launch(batch, plan, *outputs))
        return self.device.replay(launches, copy_bytes, f"{self.name} graph")

    def disturb(self, part: str) -> None:
        """Before every timed call: other numbers, and outputs that say nothing.

        Without a ``prepare``, which comes once per step and not once per layer: what ``run`` reads
        are the numbers that are there when it is called.
        """
        batches = self._of(part)
        self.signs[part == "graph"].turn([batch for batch, _ in batches])
        for _, outputs in batches:
            for tensor in outputs:
                tensor.fill_(torch.nan)

    def judge(self, part: str) -> None:
        """After it: raises ``CheckFailed`` if the answer is not that of those numbers.

        Of a graph's copies all are looked at, and the failure tells the first wrong one and how
        many are: one of them, or the whole replay.
        """
        right = self.signs[part == "graph"].answer(self.trial.reference)
        batches = self._of(part)
        assert batches, f"{part} was timed on nothing"
        wrong: list[tuple[int, CheckFailed]] = []
        for number, (batch, outputs) in enumerate(batches, 1):
            try:
                self._judge_call(batch, outputs, right)
            except CheckFailed as failure:
                wrong.append((number, failure))
        if wrong:
            number, first = wrong[0]
            where = part
            if part == "graph":
                where = f"graph, copy {number} of {len(batches)} ({len(wrong)} of them wrong)"
            first.summary += f"; timed part: {where}"
            first.args = (first.summary,)
            raise first

    def _judge_call(
        self,
        batch: VerifyBatch,
        outputs: tuple[torch.Tensor, torch.Tensor],
        right: Reference,
    ) -> None:
        live = batch.offset_list[-1]
        out, lse = outputs
        self._judge(Output(out[:live], lse[:live]), right, WRONG_TIMED)
        for name, tensor in (("out", out), ("lse", lse)):
            if side := guards_written(tensor):
                raise CheckFailed(
                    f"a timed call wrote {side} of {name}, into memory that is not its own, or "
                    "gave it other storage"
                )

    def _of(self, part: str) -> list[tuple[VerifyBatch, tuple[torch.Tensor, torch.Tensor]]]:
        return self._copies if part == "graph" else [(self.trial.batch, self.outputs)]

    def _judge(self, output: Output, reference: Reference, what: str) -> None:
        self.trial.compare(output, reference, self.trial.batch, what)
        if self.kernel.capabilities.lse:
            self.trial.compare_lse(output, reference, self.trial.batch)
