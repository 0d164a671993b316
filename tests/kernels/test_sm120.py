"""What `sm120` takes and refuses, on the host; its answers are tested where there is a GPU."""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import replace
from typing import Any

import pytest
import torch

from verify_attn.conformance.trial import Trial
from verify_attn.generate import Case, build
from verify_attn.kernels import cuda_launch, sm120
from verify_attn.kernels.nvrtc import ToolchainError
from verify_attn.kernels.registry import load
from verify_attn.problem import VerifyBatch

CASE = Case(((40, "random:9:1"), (3, "star:3")), geometry="kimi-k2.6-tp8", dtype="bfloat16")


@pytest.fixture
def batch() -> VerifyBatch:
    return build(CASE)


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> sm120.Sm120:
    """The kernel, if this machine had the right GPU."""
    kernel = sm120.Sm120()
    kernel.missing = None
    kernel.capabilities = replace(kernel.capabilities, architectures=None)
    return kernel


def test_without_a_gpu_it_is_listed_and_skipped(batch: VerifyBatch) -> None:
    assert "needs a GPU" in str(load("sm120").unsupported(batch))


def test_without_a_compiler_it_is_listed_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, batch: VerifyBatch
) -> None:
    def none() -> None:
        raise ToolchainError("no NVRTC; pip install 'verify-attn[cuda]'")

    monkeypatch.setattr(sm120, "nvrtc", none)
    kernel = sm120.Sm120()
    kernel.capabilities = replace(kernel.capabilities, architectures=None)
    assert kernel.unsupported(batch) == "no NVRTC; pip install 'verify-attn[cuda]'"


def test_what_real_models_ask_for_is_taken(anywhere: sm120.Sm120, batch: VerifyBatch) -> None:
    assert anywhere.unsupported(batch) is None
    own = build(CASE.changed(node_kv=True, page_size=64, layout="shuffled"))
    assert anywhere.unsupported(own) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"geometry": "tiny"}, "D_c is 32; it must be a multiple of 128, at most 512"),
        ({"dtype": "float16"}, "declares dtypes bfloat16, q is float16"),
        ({"kv_dtype": "float8_e4m3fn"}, "declares KV dtypes bfloat16"),
    ],
)
def test_other_cases_are_refused(
    anywhere: sm120.Sm120, changes: dict[str, object], reason: str
) -> None:
    assert reason in str(anywhere.unsupported(build(CASE.changed(**changes))))


def test_rope_rows_of_half_a_step_are_refused(anywhere: sm120.Sm120, batch: VerifyBatch) -> None:
    narrow = batch.with_fields(geometry=replace(batch.geometry, rope_dim=16))
    assert "D_r is 16; it must be a multiple of 32" in str(anywhere.unsupported(narrow))


def moved(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """The same numbers, so many elements behind a multiple of 512 bytes."""
    storage = torch.empty(tensor.numel() + elements, dtype=tensor.dtype)
    other = storage[elements:].view(tensor.shape)
    return other.copy_(tensor)


@pytest.mark.parametrize(
    ("field", "elements", "taken"),
    [
        ("kv_pool", 8, True), ("kv_pool", 4, False), ("node_kv", 8, True), ("node_kv", 1, False),
        ("q", 2, True), ("q", 1, False),
    ],
)  # fmt: skip
def test_rows_begin_where_copies_can_reach_them(
    anywhere: sm120.Sm120, field: str, elements: int, taken: bool
) -> None:
    batch = build(CASE.changed(node_kv=True))
    batch = batch.with_fields(**{field: moved(getattr(batch, field), elements)})
    reason = anywhere.unsupported(batch)
    assert reason is None if taken else f"rows of {field} do not begin at multiples" in str(reason)


def test_strides_count_too(anywhere: sm120.Sm120, batch: VerifyBatch) -> None:
    pool = batch.kv_pool
    wide = torch.zeros(*pool.shape[:2], pool.shape[2] + 4, dtype=pool.dtype)
    skew = batch.with_fields(kv_pool=wide[..., : pool.shape[2]])
    assert "rows of kv_pool" in str(anywhere.unsupported(skew))


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        ({"max_prefix_len": 16 * 2**24}, "it counts to 16,777,216 tiles a request"),
        ({"max_nodes": 64 * 65_536}, "a launch has at most 65,535 of either"),
        ({"max_prefix_len": 16 * (2**24 - 2), "max_nodes": 8 * 64}, "2,147,483,648 in all"),
    ],
)
def test_counts_that_the_device_could_not_hold(
    anywhere: sm120.Sm120, batch: VerifyBatch, bounds: dict[str, int], reason: str
) -> None:
    assert reason in str(anywhere.unsupported(batch.with_fields(**bounds)))


def test_the_shared_memory_is_that_of_the_source() -> None:
    """The source asserts that its own count fits; here that it is no more than what is asked."""
    for unit in sm120.builds("sm_120"):
        _, shared = unit.functions["verify_split"]
        assert shared == unit.defines["SHARED_BYTES"] <= sm120.SHARED_LIMIT


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["chain-1", "long", "many", "none"])
def test_hand_made_cases_on_a_gpu(name: str) -> None:
    from verify_attn.conformance.checks import CHECKS
    from verify_attn.conformance.trial import NotApplicable

    cases = {
        "chain-1": ((40, "chain:1"),),
        "long": ((60_000, "random:33:1"),),
        "many": tuple((100 + 37 * i, f"random:{1 + i % 9}:{i}") for i in range(70)),
        "none": ((0, "chain:8"), (300, "random:130:2"), (0, "padding:2")),
    }
    kernel = load("sm120")
    case = Case(cases[name], layout="shuffled", geometry="kimi-k2.6-tp8", dtype="bfloat16")
    ran = 0
    for check in CHECKS.values():
        with contextlib.suppress(NotApplicable):
            check.run(Trial(kernel, case, torch.device("cuda")))
            ran += 1
    assert ran >= 12


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the driver would have been asked: grid, block, shared memory, stream, number of
    attributes; function; the parameter's bytes.  It refuses function 13."""
    seen: list[tuple[Any, ...]] = []

    def launch(how: int, function: int, pointers: int, extra: None) -> int:
        words = (ctypes.c_uint * 7).from_address(how)
        stream = ctypes.c_uint64.from_address(how + 32).value
        attributes = ctypes.c_uint.from_address(how + 48).value
        at = ctypes.c_void_p.from_address(pointers).value
        assert at is not None
        seen.append((*words, stream, attributes, function, ctypes.string_at(at, 4)))
        return 700 if function == 13 else 0

    monkeypatch.setattr(cuda_launch, "launcher", lambda: launch)
    return seen


def test_a_launch_says_what_it_was_made_with_and_the_stream_of_now(
    launched: list[tuple[Any, ...]],
) -> None:
    params = ctypes.create_string_buffer(b"old ")
    launch = cuda_launch.Launch("verify_merge", 12, (5, 6, 7), 128, 99, params, overlaps=True)
    params.raw = b"new \0"
    for stream in (0, 4_000, 4_000, 0):
        launch(stream)
    head = 5, 6, 7, 128, 1, 1, 99
    assert launched == [(*head, stream, 1, 12, b"new ") for stream in (0, 4_000, 4_000, 0)]


def test_a_launch_that_the_driver_refuses_is_told(launched: list[tuple[Any, ...]]) -> None:
    launch = cuda_launch.Launch("verify_split", 13, (1, 1, 1), 1, 0, ctypes.create_string_buffer(4))
    with pytest.raises(RuntimeError, match=r"launching verify_split failed: .*ILLEGAL_ADDRESS"):
        launch(0)
