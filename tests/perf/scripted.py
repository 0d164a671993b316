"""A device whose times are written down beforehand, for the logic around the timing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from verify_attn.perf.device import Call, Launch, Method, Reading, Sample, TimerError

Script = Callable[[str, int], float]  # (name of the call, how many were taken before) -> seconds

IDENTITY = {
    "name": "Scripted GPU", "compute_capability": "9.0", "memory_bytes": 1 << 37,
    "driver": "580.1", "power_limit_w": 700.0,
}  # fmt: skip


class ScriptedDevice:
    """Runs every launch for real, on the CPU, and answers with the script's time."""

    torch_device = torch.device("cpu")
    l2_bytes = 1 << 16

    def __init__(
        self,
        script: Script,
        identity: dict[str, Any] | None = None,
        readings: Callable[[str, int], Reading] = lambda name, taken: Reading(
            1980, 2600, 400.0, 40
        ),
        no_cupti: str = "",
    ) -> None:
        self.script, self.readings, self.no_cupti = script, readings, no_cupti
        self._identity = IDENTITY if identity is None else identity
        self.taken: dict[str, int] = {}
        self.order: list[str] = []

    def identity(self) -> dict[str, Any]:
        return dict(self._identity)

    def once(self, launch: Launch, name: str = "") -> Call:
        return Call(launch, Method("events", "flushed by the script"), name)

    def whole(self, launch: Launch, name: str = "") -> Call:
        return Call(launch, Method("events", "flushed by the script", drained=True), name)

    def replay(self, launches: Sequence[Launch], copy_bytes: int, name: str = "") -> Call:
        def all_of_them() -> None:
            for launch in launches:
                launch()

        l2 = f"rotated through {len(launches)} copies of {copy_bytes} bytes"
        return Call(all_of_them, Method("graph", l2, calls=len(launches)), name)

    def profiled(self, launch: Launch, name: str = "") -> Call:
        if self.no_cupti:
            raise TimerError(self.no_cupti)
        return Call(launch, Method("cupti", "flushed by the script"), name)

    def sample(self, call: Call) -> Sample:
        number = self.taken.get(call.name, 0)
        self.taken[call.name] = number + 1
        self.order.append(call.name)
        call.launch()
        seconds = self.script(call.name, number)
        if not seconds > 0:
            raise TimerError(f"a time of {seconds} s; every one must be a positive number")
        return Sample(seconds, self.readings(call.name, number))
