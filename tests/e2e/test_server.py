"""A live server's floors: ``pytest tests/e2e --verify-attn-server URL``."""

from verify_attn.live.suite import test_holds_its_floor

__all__ = ["test_holds_its_floor"]
