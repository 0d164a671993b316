"""A sweep that is driven point by point, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from verify_attn.live.case import case_of
from verify_attn.live.run import scrub
from verify_attn.live.session import Dead, Unusable
from verify_attn.live.settings import Settings
from verify_attn.live.show import failure_text
from verify_attn.record import check_writable, write_record
from verify_attn.sweep_command import BAD_INPUT, prepare


class ServerSweep:
    """Opens the session with the server at the first point; writes the record at the end."""

    def __init__(
        self,
        url: str,
        settings: Settings,
        record: Path | None,
        args: Sequence[str],
        *,
        geometry: str | None = None,
        gpu: str | None = None,
        kv_dtype: str = "bf16",
    ) -> None:
        """Bad input fails the first test, with the message that the command would print."""
        try:
            self.run = prepare(url, settings, geometry=geometry, gpu=gpu, kv_dtype=kv_dtype)
            if record is not None:
                check_writable(record)
        except BAD_INPUT as wrong:
            pytest.fail(str(wrong), pytrace=False)
        self._record, self._args = record, args
        self._loop = asyncio.Runner()
        self._broken: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.run.close()
        self._loop.close()
        if self._record is not None:
            write_record(self._record, self.run.record(["pytest", *self._args]))

    def measure(self, context: int, streams: int) -> dict[str, Any]:
        """Measure a point until it is decided; returns its case."""
        if self._broken is not None:
            pytest.fail(self._broken, pytrace=False)
        try:
            return self._loop.run(self._measure(context, streams))
        except (Dead, Unusable) as wrong:
            self._broken = self.run.target.scrub(str(wrong))
        pytest.fail(self._broken, pytrace=False)

    async def _measure(self, context: int, streams: int) -> dict[str, Any]:
        run = self.run
        if run.session is None:
            await run.open(lambda now: None)
        point = await run.visit(context, streams)
        await run.settle([point])
        case = case_of(point, run.verdict(point), run.splits(point), run.settings.corpus)
        # What the points so far say together belongs to the one that shows it.
        case["findings"] += [
            finding.as_json()
            for finding in run.overview(streams).findings
            if not finding.points or point.name in finding.points
        ]
        scrubbed = scrub(case, run.target)
        assert isinstance(scrubbed, dict)
        return scrubbed


def check_point(case: dict[str, Any]) -> None:
    """Fail or skip as the case says."""
    if case["status"] == "skipped":
        pytest.skip(case["reason"])
    if case["status"] != "pass":
        pytest.fail(failure_text(case), pytrace=False)
