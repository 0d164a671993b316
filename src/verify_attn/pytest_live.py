"""The pytest plugin for live servers: one test a context point, measured by one sweep.

Light to import, since every pytest run of the environment imports it.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from verify_attn.embedded import EMBEDDED, serving

if TYPE_CHECKING:
    from verify_attn.live.server_test import ServerSweep

DEFAULT_CONTEXTS = "1k,4k,16k,64k,128k"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options, all of them ``--verify-attn-...``."""
    group = parser.getgroup("verify-attn-server", "floors of a live LLM server")
    add = group.addoption
    text = "the OpenAI-compatible server to measure, or embedded: start verify-attn serve tiny"
    add("--verify-attn-server", metavar="URL", help=text)
    text = f"prompt lengths in tokens, k is 1,024 [{DEFAULT_CONTEXTS}]"
    add("--verify-attn-contexts", default=DEFAULT_CONTEXTS, metavar="SIZES", help=text)
    text = "streams side by side [1]"
    add("--verify-attn-concurrency", default="1", metavar="SIZES", help=text)
    add("--verify-attn-max-tokens", type=int, default=1500, metavar="N", help="a point [1500]")
    text = "the least decode rates allowed (TOML)"
    add("--verify-attn-floors", type=Path, metavar="FILE", help=text)
    text = "a saved run's record to compare with"
    add("--verify-attn-against", type=Path, metavar="FILE", help=text)
    add("--verify-attn-model", metavar="NAME", help="[the first of /v1/models]")
    add("--verify-attn-log", metavar="SOURCE", help="its log: a file, or journal:UNIT")
    text = "for repeats of undecided points, from the first request on [900]"
    add("--verify-attn-budget", type=_seconds, default=900.0, metavar="SECONDS", help=text)
    text = "with --verify-attn-gpu: judge slopes by the KV to read (kimi-k2.6-tp8 ...)"
    add("--verify-attn-geometry", metavar="NAME", help=text)
    add("--verify-attn-gpu", metavar="NAME", help="h200, rtx-pro-6000 ...")
    kinds = ("bf16", "fp8")
    add("--verify-attn-kv-dtype", choices=kinds, default="bf16", help="of the KV [bf16]")
    add("--verify-attn-record", type=Path, metavar="FILE", help="write the run record here")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if seconds < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds")
    return seconds


def pytest_configure(config: pytest.Config) -> None:
    """Two workers would measure each other's load."""
    if config.getoption("verify_attn_server") and getattr(config.option, "numprocesses", None):
        raise pytest.UsageError(
            "--verify-attn-server measures one point at a time: leave out -n (pytest-xdist)"
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a point, for whatever asks for ``verify_attn_point``."""
    if "verify_attn_point" not in metafunc.fixturenames:
        return
    config = metafunc.config
    if not config.getoption("verify_attn_server"):
        why = "no live server was named: give --verify-attn-server URL"
        skipped = pytest.param(None, marks=pytest.mark.skip(reason=why), id="no-server")
        metafunc.parametrize("verify_attn_point", [skipped])
        return
    from verify_attn.live.settings import point_name
    from verify_attn.sweep_command import BAD_INPUT, prepare

    option = config.getoption
    try:
        points = _settings(config).points()
        server = option("verify_attn_server")
        prepare(
            "http://127.0.0.1" if server == EMBEDDED else server, _settings(config),
            geometry=option("verify_attn_geometry"), gpu=option("verify_attn_gpu"),
            kv_dtype=option("verify_attn_kv_dtype"),
        )  # fmt: skip
    except BAD_INPUT as wrong:
        raise pytest.UsageError(str(wrong)) from None
    metafunc.parametrize("verify_attn_point", points, ids=[point_name(*p) for p in points])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A point has its own time limits; pytest-timeout's, made for unit tests, would cut it."""
    if config.pluginmanager.hasplugin("timeout"):
        for item in items:
            if "verify_attn_point" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.timeout(0))


def _settings(config: pytest.Config) -> Any:
    from verify_attn.live.settings import Settings, parse_sizes

    option = config.getoption
    return Settings(
        contexts=parse_sizes(option("verify_attn_contexts")),
        concurrency=parse_sizes(option("verify_attn_concurrency")),
        max_tokens=option("verify_attn_max_tokens"),
        model=option("verify_attn_model"),
        log=option("verify_attn_log"),
        budget_s=option("verify_attn_budget"),
        floors=option("verify_attn_floors"),
        against=option("verify_attn_against"),
    )


@pytest.fixture(scope="session")
def verify_attn_sweep(request: pytest.FixtureRequest) -> Iterator[ServerSweep]:
    """The sweep that all points of the session belong to."""
    config, option = request.config, request.config.getoption
    with contextlib.ExitStack() as stack:
        url = option("verify_attn_server")
        if url == EMBEDDED:
            url = stack.enter_context(serving())
        yield stack.enter_context(_sweep(config, url))


def _sweep(config: pytest.Config, url: str) -> ServerSweep:
    from verify_attn.live.server_test import ServerSweep

    option = config.getoption
    return ServerSweep(
        url,
        _settings(config),
        option("verify_attn_record"),
        config.invocation_params.args,
        geometry=option("verify_attn_geometry"),
        gpu=option("verify_attn_gpu"),
        kv_dtype=option("verify_attn_kv_dtype"),
    )
