"""Peak rates of GPUs, from their makers' data sheets, for judging what a slope means."""

from __future__ import annotations

from dataclasses import dataclass


class HardwareError(ValueError):
    """A GPU that is not in the table."""


@dataclass(frozen=True)
class GpuModel:
    """Peaks by the sheet that ``source`` names.

    ``gb_per_s``  of the memory, in 1e9 bytes a second
    ``tflops``    of dense bf16 products added up in float32, in 1e12 operations a second
    ``drivers``   what the driver calls it: this model alone, no other of the same family
    """

    name: str
    gb_per_s: float
    tflops: float
    source: str
    drivers: tuple[str, ...] = ()


GPUS = {
    model.name: model
    for model in (
        GpuModel(
            "h200", 4800, 989.5, "NVIDIA H200 Tensor Core GPU data sheet: 4.8 TB/s",
            ("NVIDIA H200",),
        ),
        GpuModel(
            "h100", 3350, 989.5, "NVIDIA H100 Tensor Core GPU data sheet, SXM: 3.35 TB/s",
            ("NVIDIA H100 80GB HBM3",),
        ),
        GpuModel(
            "b200", 8000, 2250, "NVIDIA DGX B200 data sheet: 64 TB/s for 8 GPUs",
            ("NVIDIA B200",),
        ),
        GpuModel(
            "rtx-pro-6000", 1792, 503.8, "NVIDIA RTX PRO 6000 Blackwell data sheet: 1,792 GB/s",
            ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition",),
        ),
        GpuModel(
            "rtx-pro-6000-server", 1597, 480,
            "NVIDIA RTX PRO 6000 Blackwell Server Edition data sheet: 1,597 GB/s; 120 TFLOP/s in "
            "float32, and four times that in bf16 as on the Workstation Edition",
            ("NVIDIA RTX PRO 6000 Blackwell Server Edition",),
        ),
        GpuModel(
            "rtx-pro-6000-max-q", 1792, 438.9,
            "NVIDIA RTX Blackwell PRO GPU Architecture 1.1, table 4: 1,792 GB/s, 438.9 TFLOP/s",
            ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",),
        ),
        GpuModel(
            "a100", 2039, 312, "NVIDIA A100 80GB data sheet, SXM: 2,039 GB/s",
            ("NVIDIA A100-SXM4-80GB",),
        ),
        GpuModel(
            "l40s", 864, 362, "NVIDIA L40S data sheet: 864 GB/s", ("NVIDIA L40S",),
        ),
        GpuModel(
            "rtx-5090", 1792, 209.5, "NVIDIA GeForce RTX 5090 specifications: 1,792 GB/s",
            ("NVIDIA GeForce RTX 5090",),
        ),
        GpuModel(
            "rtx-4090", 1008, 165.2, "NVIDIA GeForce RTX 4090 specifications: 1,008 GB/s",
            ("NVIDIA GeForce RTX 4090",),
        ),
    )
}  # fmt: skip


def gpu_model(name: str) -> GpuModel:
    """The GPU of that name; an unknown one raises `HardwareError` with the list of names."""
    try:
        return GPUS[name]
    except KeyError:
        raise HardwareError(f"no GPU {name!r}; there are: {', '.join(GPUS)}") from None


def sheet_of(name: str) -> GpuModel | None:
    """The data sheet of a GPU by the driver's name of it, such as "NVIDIA H200"; None: not here."""
    return next((model for model in GPUS.values() if name in model.drivers), None)
