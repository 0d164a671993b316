"""Kernels that take few layers: they are asked which, and every check has cases for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verify_attn.conformance import CHECK_NAMES
from verify_attn.conformance.fitting import REFUSED, fitted
from verify_attn.conformance.fuzz import Fuzz
from verify_attn.conformance.strategies import CPU, GPU, Profile, cases, with_heads
from verify_attn.generate import Case
from verify_attn.kernels.base import Capabilities, ObjectKernel
from verify_attn.kernels.torch_kernel import torch_verify
from verify_attn.problem import VerifyBatch

HERE = torch.device("cpu")
WIDE = (512, 64)
# What needs a GPU.
ELSEWHERE = {"capture", "stream", "no-allocation"}


@dataclass
class Narrow:
    """Right, for these widths and heads alone; with what it was asked."""

    widths: tuple[tuple[int, int], ...] = (WIDE,)
    heads: tuple[int, ...] | None = None
    asked: int = 0
    ran: set[tuple[int, int]] = field(default_factory=set)

    def unsupported(self, batch: VerifyBatch) -> str | None:
        self.asked += 1
        geometry = batch.geometry
        if (geometry.latent_dim, geometry.rope_dim) not in self.widths:
            return f"D_c is {geometry.latent_dim}; it must be 512"
        if self.heads is not None and geometry.heads not in self.heads:
            return f"{geometry.heads} heads"
        return None

    def run(self, batch: VerifyBatch, plan: Any, out: torch.Tensor, lse: torch.Tensor) -> None:
        self.ran.add((batch.geometry.latent_dim, batch.geometry.rope_dim))
        torch_verify(batch, out, lse)


def kernel(target: object, **declared: Any) -> ObjectKernel:
    return ObjectKernel("narrow", target, Capabilities(**declared))


def fit(profile: Profile, target: object, **declared: Any) -> Profile:
    return fitted(profile, kernel(target, **declared), HERE, lambda case: None)


class TestProfile:
    @pytest.mark.parametrize("profile", [CPU, GPU], ids=lambda p: p.name)
    def test_a_kernel_that_takes_all_widths_keeps_all(self, profile: Profile) -> None:
        assert fit(profile, Narrow(((32, 16), (64, 16), WIDE))) is profile

    @pytest.mark.parametrize("profile", [CPU, GPU], ids=lambda p: p.name)
    def test_most_cases_are_of_layers_that_it_takes_and_some_are_not(
        self, profile: Profile
    ) -> None:
        found = fit(profile, Narrow()).geometries
        counted = Counter(name for name, _ in found)
        assert found[0][0] == "kimi-k2.6-tp8"  # the one to shrink to
        wrong = len(found) - counted["kimi-k2.6-tp8"]
        assert 0 < wrong <= len(found) / REFUSED
        assert {name for name, _ in profile.geometries} <= set(counted)

    def test_head_counts_are_asked_for_too(self) -> None:
        """Those that are drawn more often still are."""
        found = fit(GPU, Narrow(heads=(8, 16))).geometries
        kimi = Counter(heads for name, heads in found if name == "kimi-k2.6-tp8")
        assert set(kimi) == {(8, 8, 8, 16), (1, 3, 64, 128)}
        assert kimi[1, 3, 64, 128] == 1

    @pytest.mark.parametrize("profile", [CPU, GPU], ids=lambda p: p.name)
    def test_one_that_takes_none_is_drawn_as_ever(self, profile: Profile) -> None:
        assert fit(profile, Narrow(())) is profile

    def test_one_that_raises_is_left_to_its_checks(self) -> None:
        class Raises(Narrow):
            def unsupported(self, batch: VerifyBatch) -> str | None:
                raise ValueError("of its own")

        assert fit(CPU, Raises()) is CPU

    def test_it_is_asked_in_a_way_that_it_declares(self) -> None:
        found = fit(GPU, Narrow(), page_sizes=(48,), dtypes=(torch.float16,))
        assert found.geometries[0][0] == "kimi-k2.6-tp8"

    def test_a_refusal_of_rows_in_the_pool_is_none_of_the_widths(self) -> None:
        class Apart(Narrow):
            def unsupported(self, batch: VerifyBatch) -> str | None:
                return super().unsupported(batch) or (
                    "wants node_kv" if batch.node_kv is None else None
                )

        assert fit(GPU, Apart()).geometries[0][0] == "kimi-k2.6-tp8"

    def test_whoever_watches_knows_of_each_case_before(self) -> None:
        told: list[Case] = []
        narrow = Narrow()
        fitted(CPU, kernel(narrow), HERE, told.append)
        assert len(told) == narrow.asked > 0


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_head_count_alone_has_cases_within_what_the_machine_bears(data: st.DataObject) -> None:
    """Of many heads there are fewer requests."""
    heads = data.draw(st.sampled_from([1, 8, 17, 64, 128]))
    profile = replace(CPU, geometries=(("kimi-k2.6-tp8", (heads,)),))
    case = data.draw(cases(profile, Capabilities()))
    assert case.attention_geometry.heads == heads
    assert len(case.requests) == 1 or len(case.requests) * heads <= CPU.tiles


def test_names_of_geometries() -> None:
    assert with_heads("kimi-k2.6-tp8", 8) == "kimi-k2.6-tp8"
    assert with_heads("kimi-k2.6-tp8", 3) == "kimi-k2.6-tp8/3"
    assert with_heads("tiny", 1) == "tiny/1"


def test_every_check_has_cases_for_a_kernel_of_one_width() -> None:
    narrow, events = Narrow(), list[dict[str, Any]]()
    checks = [c for c in CHECK_NAMES if c not in ELSEWHERE]
    fuzz = Fuzz(kernel(narrow, deterministic=True), HERE, list(checks), events.append, seed=5)
    fuzz.run(30)
    assert [e for e in events if e["event"] == "failure"] == []
    ended = [e for e in events if e["event"] == "check"]
    ran = Counter(e["check"] for e in ended if e["status"] == "pass")
    assert set(ran) == set(checks)
    assert narrow.ran == {WIDE}
    refused = [e for e in ended if "it must be 512" in e.get("reason", "")]
    assert 0 < len(refused) < len(ended) / 4
