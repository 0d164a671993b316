"""Without ``--verify-attn-server`` the server is the package's own, in a process beside pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from verify_attn.embedded import EMBEDDED


def pytest_configure(config: pytest.Config) -> None:
    option = config.option
    if option.verify_attn_server:
        return
    option.verify_attn_server = EMBEDDED
    option.verify_attn_contexts = "256,1k"
    option.verify_attn_max_tokens = 300
    option.verify_attn_floors = Path(__file__).with_name("embedded_floors.toml")
