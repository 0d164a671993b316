"""Real servers, each started when the first test asks for it and stopped between tests.

A test gets a ``tests.live.real.process.Server``: ``url``, ``model``, ``pid``, ``log``, and as
``truth`` and ``draft`` what it must answer and how many drafts it accepts (see models.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack

import pytest

from tests.live.real import servers
from tests.live.real.process import Server
from tests.live.real.venvs import NotMade
from tests.live.said import Say

Start = Callable[..., AbstractContextManager[Server]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever starts a real server is marked so: one copy of each, not one a worker."""
    for item in items:
        if "start_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.real_server)


@pytest.fixture
def say(
    capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> Iterator[Say]:
    """Onto the terminal and into the report: a retry that nobody sees hides a defect."""
    said: list[str] = []

    def out(text: str) -> None:
        said.append(text)
        with capsys.disabled():
            print(f"\n{text}")

    yield out
    record_property("sweeps", 1 + len(said))


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """``start_server(servers.llamacpp, slots=1)``: the one server of those options, all session."""
    running: dict[str, Server] = {}
    with ExitStack() as stack:

        def start(kind: Start, **options: object) -> Server:
            key = f"{kind.__name__} {sorted(options.items())}"
            if key not in running or running[key].has_ended:
                directory = tmp_path_factory.mktemp(kind.__name__)
                try:
                    running[key] = stack.enter_context(kind(directory, **options))
                except NotMade as reason:
                    pytest.skip(str(reason))
            return running[key]

        yield start


def _server(kind: Start, **options: object) -> Callable[..., Iterator[Server]]:
    @pytest.fixture
    def server(start_server: Callable[..., Server]) -> Iterator[Server]:
        with start_server(kind, **options).awake() as awake:
            yield awake

    return server


llamacpp = _server(servers.llamacpp)
llamacpp_synth4 = _server(servers.llamacpp, speculation="draft", synth_len=4.0)
llamacpp_synth2 = _server(servers.llamacpp, speculation="draft", synth_len=2.0)
llamacpp_self_draft = _server(servers.llamacpp, speculation="draft")
# Right for over 150 tokens, then wrong for as many, and so on.
llamacpp_half_draft = _server(servers.llamacpp, speculation="draft", draft_knows=0.5)
llamacpp_ngram = _server(servers.llamacpp, speculation="ngram", cycle=32)
llamacpp_tied = _server(servers.llamacpp, tied=True)
hf_serve = _server(servers.hf_serve)
hf_serve_tied = _server(servers.hf_serve, tied=True)
vllm_plain = _server(servers.vllm)
vllm_ngram = _server(servers.vllm, speculation="ngram", drafts=5, cycle=32)
vllm_self_draft = _server(servers.vllm, speculation="draft", drafts=7)


@pytest.fixture
def vllm_to_kill(vllm_plain: Server) -> Iterator[Server]:
    """The plain one, ended afterwards in any case; who asks for it again gets a new one."""
    yield vllm_plain
    vllm_plain.end()


@pytest.fixture
def vllm_ngram_to_kill(vllm_ngram: Server) -> Iterator[Server]:
    """For the last test that needs it: a new vLLM takes half a minute to come up."""
    yield vllm_ngram
    vllm_ngram.end()
