"""A live server's floors: ``pytest tests/e2e --verify-attn-server URL``; without it, our own."""

import pytest

from verify_attn.live.suite import test_holds_its_floor

pytestmark = pytest.mark.timing

__all__ = ["test_holds_its_floor"]
