"""A NaN that a kernel reads must come out: an answer of 0 in its place hides memory gone bad."""

from __future__ import annotations

import pytest
import torch

from verify_attn.conformance.trial import NotApplicable, Trial, is_poison
from verify_attn.generate import Case
from verify_attn.kernels.builtin import BUILTIN
from verify_attn.kernels.registry import load

GPU = torch.cuda.is_available()
# Where there is a GPU, on the GPU: `pytest -m gpu` is to run them too.
pytestmark = [pytest.mark.gpu] if torch.cuda.is_available() else []
# Triton's interpreter has no bfloat16.
SPOILED = Case(
    ((300, "random:5:1"), (90, "star:3"), (0, "chain:2")),
    geometry="kimi-k2.6-tp8/2", dtype="bfloat16" if GPU else "float32", page_size=16,
    layout="shuffled",
)  # fmt: skip


@pytest.mark.parametrize("token", [0, 150, 299])
@pytest.mark.parametrize("name", BUILTIN)
def test_all_that_see_it_tell(name: str, token: int) -> None:
    kernel, device = load(name), torch.device("cuda" if GPU else "cpu")
    trial = Trial(kernel, SPOILED, device)
    try:
        batch = trial.batch
    except NotApplicable as why:
        pytest.skip(str(why))
    page = int(batch.page_table[0, token // batch.page_size])
    batch.kv_pool[page, token % batch.page_size, 7] = torch.nan
    output = trial.run(batch)
    out, lse = output.out, output.lse
    assert not is_poison(out).any()
    assert not is_poison(lse).any()
    spoiled = batch.offset_list[1]
    assert out[:spoiled].isnan().all()
    assert lse[:spoiled].isnan().all()
    assert out[spoiled:].isfinite().all()
    assert lse[spoiled:].isfinite().all()
