"""``sm120``: split-KV verify attention in CUDA C++, within what a block has on sm_120.

The kernels are in ``csrc``; here they are built, planned and launched.  The same
source runs on sm_80, sm_90 and sm_120, and takes no more shared memory on any of them than sm_120
has.  The schedule is made on the device from the lengths there, so a captured graph follows them.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import torch

from verify_attn.geometry import AttentionGeometry
from verify_attn.kernels.base import Capabilities, UnsupportedError
from verify_attn.kernels.cuda_launch import Launch, check_status
from verify_attn.kernels.nvrtc import Built, ToolchainError, Unit, build, nvrtc
from verify_attn.kernels.nvrtc_load import explain_load_failure
from verify_attn.problem import VerifyBatch

LOG2_E = 1.4426950408889634
SOURCE = "verify_sm120.cu"
# One after the other they are the source: NVRTC finds no files.
PARTS = ("sm120_common.cuh", "sm120_schedule.cuh", "sm120_scores.cuh", "sm120_values.cuh", SOURCE)
# What differs by architecture, the instruction that waits at a barrier apart: nothing but names.
ARCHITECTURES = {(8, 0): "sm_80", (9, 0): "sm_90", (12, 0): "sm_120"}
SHARED_LIMIT = 101_376  # bytes of one block on sm_120; kept to everywhere

# As in the source.
ROWS, TILE, WARPS = 64, 16, 12
VALUE_COLUMNS = 128  # D_c is a multiple: 8 warps of 16 columns
STAGES = 4
MERGE_GROUPS = 4
# pointers, strides, scale, then requests, heads, page_size, blocks, merge_rows
PARAMS = struct.Struct("<11Q11qf5i")
MOST_REQUESTS = MOST_UNITS = 65_535  # of a grid's third and second dimension
# The device counts tiles in 32 bits, and multiplies those of one request by its blocks.
MOST_TILES, MOST_TILES_OF_ONE = 2**31, 2**24


def shared_bytes(latent: int, rope: int, stages: int = STAGES) -> int:
    """Dynamic shared memory of one block of ``verify_split``, in bytes."""
    width = latent + rope
    ring = stages * TILE * (width * 2 + 16)
    weights = 2 * ROWS * TILE * 2
    q = (width // 16 - 1) // 4 * 128 * 16
    sums = 4 * 2 * 32 * 16
    fades, barriers, walks = 2 * ROWS * 4, (2 * stages + 4) * 8, 21 * 36 + 12
    return -(-(ring + weights + q + sums + fades + barriers + walks) // 16) * 16


def unit(latent: int, rope: int, stages: int = STAGES) -> Unit:
    """The compilation for these widths."""
    shared = shared_bytes(latent, rope, stages)
    return Unit(
        label=f"D_c={latent} D_r={rope}",
        source=source(),
        name=SOURCE,
        defines={
            "LATENT": latent, "ROPE": rope, "STAGES": stages,
            "SHARED_BYTES": shared, "PARAMS_BYTES": PARAMS.size,
        },
        functions={
            "verify_split": (WARPS, shared),
            "verify_merge": (MERGE_GROUPS * latent // 4 // 32, 0),
        },
    )  # fmt: skip


def builds(arch: str) -> list[Unit]:
    """What is compiled for real models; the source is the same on every architecture."""
    return [unit(512, 64), unit(256, 64)]


@cache
def source() -> str:
    """The CUDA source."""
    folder = resources.files("verify_attn.kernels").joinpath("csrc")
    return "".join(f'#line 1 "{name}"\n{folder.joinpath(name).read_text()}' for name in PARTS)


@dataclass(frozen=True)
class _Loaded:
    """Handles of both kernels, and what keeps them alive."""

    split: int
    merge: int
    shared: int
    merge_threads: int
    overlaps: bool  # verify_merge may be launched while verify_split ends
    owner: Any


@cache
def _load(latent: int, rope: int, device: int) -> _Loaded:
    from cuda.bindings import driver
    from cuda.core import Device, ObjectCode

    arch = ARCHITECTURES[torch.cuda.get_device_capability(device)]
    wanted = unit(latent, rope)
    built: Built = build(wanted.source, wanted.name, arch, wanted.defines)
    with torch.cuda.device(device):
        torch.cuda.current_stream().synchronize()  # the context is there from here on
        Device(device).set_current()
        try:
            code = ObjectCode.from_cubin(built.cubin)
            kernels = [code.get_kernel(name) for name in wanted.functions]
        except Exception as error:  # cuda.core's errors have no public base
            raise explain_load_failure(error, built, gpu=arch) from error
        handles = [int(kernel.handle) for kernel in kernels]
        shared = wanted.functions["verify_split"][1]
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (status,) = driver.cuKernelSetAttribute(
            attribute, shared, driver.CUkernel(handles[0]), driver.CUdevice(device)
        )
        check_status(int(status), "cuKernelSetAttribute")
    merge_threads = wanted.functions["verify_merge"][0] * 32
    overlaps = torch.cuda.get_device_capability(device) >= (9, 0)
    return _Loaded(handles[0], handles[1], shared, merge_threads, overlaps, (code, kernels))


@dataclass(eq=False)
class Workspace:
    """``part_out`` [slots, 64, D_c] and ``part_sum`` [slots, 64, 2] float32, one slot a segment."""

    blocks: int  # of verify_split
    merge_grid: tuple[int, int, int]
    merge_rows: int
    part_out: torch.Tensor
    part_sum: torch.Tensor

    @classmethod
    def of(cls, batch: VerifyBatch, blocks: int) -> Workspace:
        """For a batch on a GPU of so many multiprocessors."""
        units = max(1, -(-batch.max_nodes * batch.geometry.heads // ROWS))
        slots = blocks + units * batch.requests
        few = units * batch.requests * ROWS // MERGE_GROUPS <= 2 * blocks
        merge_rows = 1 if few else MERGE_GROUPS

        def empty(last: int) -> torch.Tensor:
            return torch.empty(slots, ROWS, last, dtype=torch.float32, device=batch.device)

        grid = ROWS // merge_rows, units, batch.requests
        return cls(blocks, grid, merge_rows, empty(batch.geometry.latent_dim), empty(2))


class Plan:
    """A workspace, and both kernels as they are launched."""

    def __init__(self, work: Workspace, loaded: _Loaded, device: int) -> None:
        self.work, self.device = work, device
        self.params = ctypes.create_string_buffer(PARAMS.size)
        self.split = Launch(
            "verify_split", loaded.split, (work.blocks, 1, 1), WARPS * 32, loaded.shared,
            self.params,
        )  # fmt: skip
        self.merge = Launch(
            "verify_merge", loaded.merge, work.merge_grid, loaded.merge_threads, 0, self.params,
            loaded.overlaps,
        )  # fmt: skip


def pack(
    params: ctypes.Array[ctypes.c_char],
    batch: VerifyBatch,
    work: Workspace,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """``Params`` of the source; raises ``UnsupportedError`` where copies would not be aligned."""
    q, pool, node_kv = batch.q, batch.kv_pool, batch.node_kv
    table, mask = batch.page_table, batch.tree_mask
    q_node, q_head, _ = q.stride()
    page_stride, row_stride, _ = pool.stride()
    out_node, out_head, _ = out.stride()
    lse_node, lse_head = lse.stride()
    q_at, pool_at = q.data_ptr(), pool.data_ptr()
    node_at = 0 if node_kv is None else node_kv.data_ptr()
    if (pool_at | node_at) & 15 or q_at & 3:  # the plan's batch was asked, this one may differ
        raise UnsupportedError(_unaligned(batch) or "rows are not aligned")
    PARAMS.pack_into(
        params, 0,
        q_at, pool_at, node_at,
        table.data_ptr(), batch.prefix_lens.data_ptr(), batch.node_offsets.data_ptr(),
        mask.data_ptr(), out.data_ptr(), lse.data_ptr(),
        work.part_out.data_ptr(), work.part_sum.data_ptr(),
        q_node, q_head, page_stride, row_stride,
        0 if node_kv is None else node_kv.stride(0), table.stride(0), mask.stride(0),
        out_node, out_head, lse_node, lse_head,
        batch.softmax_scale * LOG2_E,
        batch.requests, q.shape[1], pool.shape[1], work.blocks, work.merge_rows,
    )  # fmt: skip


class Sm120:
    """See the module's first lines."""

    def __init__(self) -> None:
        self.missing: str | None = None
        try:
            nvrtc()
        except ToolchainError as error:
            self.missing = str(error)
        self.capabilities = Capabilities(
            architectures=tuple(ARCHITECTURES), dtypes=(torch.bfloat16,),
            capture=True, deterministic=True,
        )  # fmt: skip

    def unsupported(self, batch: VerifyBatch) -> str | None:
        """No compiler, widths that its tiles do not divide, rows that its copies cannot reach."""
        refused = self.capabilities.refuses(batch) or self.missing or _elsewhere(batch.device)
        return refused or _outside(batch.geometry) or _too_many(batch) or _unaligned(batch)

    def plan(self, batch: VerifyBatch) -> Plan:
        geometry, device = batch.geometry, batch.device
        if reason := self.unsupported(batch):
            raise UnsupportedError(reason)
        index = device.index if device.index is not None else torch.cuda.current_device()
        loaded = _load(geometry.latent_dim, geometry.rope_dim, index)
        blocks = torch.cuda.get_device_properties(device).multi_processor_count
        work = Workspace.of(batch, blocks)
        return Plan(work, loaded, index)

    def run(self, batch: VerifyBatch, plan: Plan, out: torch.Tensor, lse: torch.Tensor) -> None:
        pack(plan.params, batch, plan.work, out, lse)
        # The stream's handle alone: torch.cuda.current_stream makes an object around it.
        stream = torch._C._cuda_getCurrentRawStream(plan.device)
        plan.split(stream)
        plan.merge(stream)


def _elsewhere(device: torch.device) -> str | None:
    if device.type != "cuda" or device.index in (None, torch.cuda.current_device()):
        return None
    return (
        f"the batch is on {device}, the current device is cuda:{torch.cuda.current_device()}; "
        f"launches go to the current one: torch.cuda.set_device({device.index})"
    )


def _outside(geometry: AttentionGeometry) -> str | None:
    latent, rope = geometry.latent_dim, geometry.rope_dim
    if latent % VALUE_COLUMNS or latent > 512:
        return f"D_c is {latent}; it must be a multiple of {VALUE_COLUMNS}, at most 512"
    if rope % 32 or shared_bytes(latent, rope) > SHARED_LIMIT:
        return f"D_r is {rope}; it must be a multiple of 32 that leaves the tiles in shared memory"
    return None


def _too_many(batch: VerifyBatch) -> str | None:
    units = -(-batch.max_nodes * batch.geometry.heads // ROWS)
    tiles = -(-(batch.max_prefix_len + batch.max_nodes) // TILE)
    if batch.requests == 0:
        return "the batch has no request: there is nothing to launch"
    if batch.requests > MOST_REQUESTS or units > MOST_UNITS:
        return (
            f"{batch.requests:,} requests of up to {units:,} units of {ROWS} rows (node x head): a "
            f"launch has at most {MOST_REQUESTS:,} of either"
        )
    if tiles >= MOST_TILES_OF_ONE or batch.requests * units * tiles >= MOST_TILES:
        return (
            f"{batch.requests:,} requests of up to {units:,} units of {tiles:,} tiles of {TILE} "
            f"tokens: it counts to {MOST_TILES_OF_ONE:,} tiles a request, {MOST_TILES:,} in all"
        )
    return None


def _unaligned(batch: VerifyBatch) -> str | None:
    rows = {"kv_pool": batch.kv_pool, "node_kv": batch.node_kv}
    for name, tensor in rows.items():
        if tensor is not None and _misplaced(tensor, 16):
            return f"rows of {name} do not begin at multiples of 16 bytes, which its copies need"
    if _misplaced(batch.q, 4):
        return "rows of q do not begin at multiples of 4 bytes, which its loads need"
    return None


def _misplaced(tensor: torch.Tensor, unit: int) -> bool:
    size = tensor.element_size()
    strides = (s for s, n in zip(tensor.stride()[:-1], tensor.shape[:-1], strict=True) if n > 1)
    return tensor.data_ptr() % unit != 0 or any(s * size % unit for s in strides)
