"""A device that may be believed: its timers were held against another clock, its ceilings are
known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verify_attn.perf.device import Device
from verify_attn.perf.roofline import Rates


@dataclass(frozen=True)
class Tested:
    """``rates``: what its times are held against; the rest is JSON for records."""

    device: Device
    rates: Rates
    ceilings: Mapping[str, Any] = field(default_factory=dict)
    self_test: Mapping[str, Any] = field(default_factory=dict)


def believed_cuda_device(index: int = 0) -> Tested:
    """GPU ``index`` of torch's, after its self-test; takes some seconds and 2 GiB of its memory.

    Raises `TimerError` where a timer and the host's clock differ.
    """
    from verify_attn.perf.ceilings import ceilings, self_test, sheet_of
    from verify_attn.perf.cuda_device import CudaDevice

    device = CudaDevice(index)
    tested = self_test(device, sheet_of(device.identity()["name"]))
    top = ceilings(device)
    return Tested(device, top.rates, top.as_record(), tested)
