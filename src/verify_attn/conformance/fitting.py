"""Which of a profile's layers a kernel takes: it is asked before cases are drawn.

A kernel of few widths would else refuse most cases, and a rare check would never have one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import torch

from verify_attn.conformance.strategies import (
    Geometries,
    Profile,
    dtypes_of,
    kv_dtypes_of,
    page_sizes_of,
    with_heads,
)
from verify_attn.conformance.trial import NotApplicable, Trial
from verify_attn.generate import Case
from verify_attn.kernels.base import UnsupportedError, VerifyKernel

REFUSED = 8  # of so many cases one has a layer that was refused: the reason stays in the record


def fitted(
    profile: Profile, kernel: VerifyKernel, device: torch.device, before: Callable[[Case], None]
) -> Profile:
    """The profile with mostly such layers as the kernel takes; the same one where it takes all of
    them, or none, not of the profile's others either.

    ``before`` is told each case that the kernel is about to be asked of.
    """

    def takes(geometry: str) -> bool:
        for case in _smallest(profile, kernel, geometry):
            before(case)
            if _takes(Trial(kernel, case, device)):
                return True
        return False

    taken, refused = _parted(profile.geometries, takes)
    if not refused:
        return profile
    if not taken:
        taken, _ = _parted(profile.others, takes)
    if not taken:
        return profile
    times = math.ceil((REFUSED - 1) * len(refused) / len(taken))
    return replace(profile, geometries=(*taken * times, *refused))


def _parted(geometries: Geometries, takes: Callable[[str], bool]) -> tuple[Geometries, Geometries]:
    """Those that are taken and those that are not, each with its head counts."""
    parts: tuple[list[tuple[str, tuple[int, ...]]], ...] = ([], [])
    for name, heads in geometries:
        known = {h: takes(with_heads(name, h)) for h in dict.fromkeys(heads)}
        for part, wanted in zip(parts, (True, False), strict=True):
            if mine := tuple(h for h in heads if known[h] == wanted):
                part.append((name, mine))
    return tuple(parts[0]), tuple(parts[1])


def _smallest(profile: Profile, kernel: VerifyKernel, geometry: str) -> Iterator[Case]:
    """One node behind a few tokens, in ways of which a kernel may take one and not another."""
    able = kernel.capabilities
    for dtype, node_kv in product(dtypes_of(profile, able), (False, True)):
        yield Case(
            requests=((5, "chain:1"),), geometry=geometry, dtype=dtype, node_kv=node_kv,
            page_size=page_sizes_of(able)[0], kv_dtype=kv_dtypes_of(able)[0],
        )  # fmt: skip


def _takes(trial: Trial) -> bool:
    try:
        _ = trial.batch
    except (NotApplicable, UnsupportedError):
        return False
    except Exception:  # the kernel raised: its checks shall say so
        return True
    return True
