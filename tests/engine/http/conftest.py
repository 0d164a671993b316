from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.engine.http.serving import Engine, serving


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Engine, str]]:
    """One server a module: its engine is reset before each test."""
    engine = Engine()
    with serving(engine) as url:
        yield engine, url


@pytest.fixture
def engine(served: tuple[Engine, str]) -> Engine:
    served[0].reset()
    return served[0]


@pytest.fixture(scope="module")
def url(served: tuple[Engine, str]) -> str:
    return served[1]


@pytest.fixture(scope="module")
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=20, trust_env=False) as client:
        yield client
