"""What projecting a time from one GPU to another takes to know of both, each with its source.

Data sheets are in `verify_attn.hardware`, an architecture's limits in `kernels.resources`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

SHARED_BYTES_PER_CLOCK = 128  # of a multiprocessor: 32 banks of 4 bytes


@dataclass(frozen=True)
class Assumption:
    """Something that the projection takes for true; all of them are listed wherever it is shown.

    ``slow``, ``central``, ``fast``  its value at each end of the range and between; equal where
                                     one value is used
    ``source``                       where the value is from, or "assumed"
    """

    id: str
    text: str
    slow: float
    central: float
    fast: float
    source: str

    def as_record(self) -> dict[str, Any]:
        """For a run record."""
        return asdict(self)


@dataclass(frozen=True)
class Three:
    """A figure at the slow end, between, and at the fast end; ``source`` or "assumed"."""

    slow: float
    central: float
    fast: float
    source: str


@dataclass(frozen=True)
class Chip:
    """A GPU beyond its data sheet.

    ``gpu``         its name in `verify_attn.hardware.GPUS`
    ``sms``         multiprocessors
    ``boost_mhz``   the clock that the sheet's rates are at
    ``mma_flops``   operations a clock of a multiprocessor in bf16 ``mma.sync``, added up in float32
    ``sustained``   the share of the sheet's rate that long bf16 products keep, clocks and power
                    as they come; None: nothing is projected on it, and as a source its clock is
                    in the record
    ``l2_bytes``, ``l2_gb_per_s``   its L2, and what can be read from it
    """

    gpu: str
    arch: str
    sms: int
    boost_mhz: float
    mma_flops: Three
    sustained: Three | None
    l2_bytes: int
    l2_gb_per_s: Three
    source: str


# Dense bf16 of Hopper is 4,096 operations a clock and multiprocessor, by wgmma alone.
_WGMMA = 4096
_HOPPER_MMA = Three(
    0.653 * _WGMMA, 0.629 * _WGMMA, 0.629 * _WGMMA,
    "arXiv 2501.12084, section 6.2 and table 7: mma reaches 62.9 % of Hopper's peak on average, "
    "m16n8k16 with float32 sums 65.3 %; the peak: NVIDIA/cudnn-frontend#650",
)  # fmt: skip
_SM120_MMA = Three(
    1024, 1024, 1024,
    "503.8 TFLOP/s over 188 multiprocessors and 2,617 MHz; sm_120 has no other tensor instruction "
    "for bf16 (NVIDIA RTX Blackwell PRO GPU Architecture 1.1, table 4)",
)  # fmt: skip
_GB202_L2 = Three(5_000, 7_000, 9_000, "assumed")
_MATMULS = "zzc0721/torch-performance-test-data"

CHIPS = {
    chip.gpu: chip
    for chip in (
        Chip(
            "h200", "sm_90", 132, 1_830, _HOPPER_MMA, None, 50 << 20,
            Three(5_500, 5_500, 5_500, "assumed"),
            "NVIDIA H100 Tensor Core GPU Architecture: 132 multiprocessors, 50 MB of L2",
        ),
        Chip(
            "rtx-pro-6000", "sm_120", 188, 2_617, _SM120_MMA,
            Three(
                0.695, 0.83, 0.923,
                f"350 of 503.8 TFLOP/s in a product of 8192 ({_MATMULS}#160), 417 on the Server "
                "Edition (#162); 2,415 of 2,617 MHz under a language model "
                "(ggml-org/llama.cpp#28196)",
            ),
            128 << 20, _GB202_L2,
            "NVIDIA RTX Blackwell PRO GPU Architecture 1.1, tables 1 and 4",
        ),
        Chip(
            "rtx-pro-6000-server", "sm_120", 188, 2_493, _SM120_MMA,
            Three(
                0.8, 0.869, 0.969,
                f"417 of 480 TFLOP/s in a product of 8192 ({_MATMULS}#162); 2,415 MHz under a "
                "language model (ggml-org/llama.cpp#28196); the slow end is assumed",
            ),
            128 << 20, _GB202_L2, "the clock from 480 TFLOP/s; else as the Workstation Edition",
        ),
        Chip(
            "rtx-pro-6000-max-q", "sm_120", 188, 2_280, _SM120_MMA,
            Three(
                0.522, 0.553, 0.7,
                "229 of 438.9 TFLOP/s by cuBLAS, 243 by a kernel of mma.sync, at 8192 "
                "(waynehacking8/blackwell-tensorcore-kernels); the fast end is assumed",
            ),
            128 << 20, _GB202_L2, "the clock from 438.9 TFLOP/s; else as the Workstation Edition",
        ),
    )
}  # fmt: skip
