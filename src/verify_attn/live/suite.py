"""A live server's floors as a pytest suite, one test a context point::

    pytest --pyargs verify_attn.live.suite --verify-attn-server http://localhost:8000 \\
        --verify-attn-floors floors.toml

Import `test_holds_its_floor` into a module of your own to have it there.
"""

from __future__ import annotations

import pytest

from verify_attn.live.server_test import ServerSweep, check_point


@pytest.mark.e2e
def test_holds_its_floor(
    verify_attn_sweep: ServerSweep,
    verify_attn_point: tuple[int, int],
    request: pytest.FixtureRequest,
) -> None:
    """One point of the sweep."""
    case = verify_attn_sweep.measure(*verify_attn_point)
    for name, value in case["metrics"].items():
        if isinstance(value, int | float):
            request.node.user_properties.append((name, value))
    check_point(case)
