"""The checks as a pytest suite, for any kernel::

    pytest --pyargs verify_attn.conformance.suite --verify-attn-kernel my_kernels:sdpa

Import `test_conformance` into a module of your own to have it there.
"""

from __future__ import annotations

import json

import pytest

from verify_attn.conformance.pool import Pool
from verify_attn.conformance.reproduce import reproduce
from verify_attn.conformance.session import Session, UnusableKernel


def test_conformance(
    verify_attn_kernel: str,
    verify_attn_check: str,
    verify_attn_pool: Pool,
    verify_attn_examples: int,
    request: pytest.FixtureRequest,
) -> None:
    """One check on one kernel."""
    session = Session(
        [verify_attn_kernel],
        [verify_attn_check],
        examples=verify_attn_examples,
        seed=request.config.getoption("verify_attn_seed"),
    )
    try:
        for _ in session.run(verify_attn_pool):
            pass
    except UnusableKernel as error:
        pytest.fail(str(error), pytrace=False)
    (case,) = session.cases
    if case["status"] == "skipped":
        pytest.skip(case["reason"])
    if case["status"] == "fail":
        failure = case["failures"][0]
        shown = json.dumps(failure["case"], separators=(",", ":"))
        again = reproduce(verify_attn_kernel, verify_attn_check, shown)
        pytest.fail(f"{failure['text']}\nreproduce: {again}", pytrace=False)
