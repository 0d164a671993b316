"""Settings of this repository's own tests; the plugin itself is `verify_attn.pytest_plugin`."""

import os
import signal

import pytest
import torch

from verify_attn.kernels.registry import choose_triton_mode

pytest_plugins = ["pytester"]

TIMEOUT_S = 600  # of one test


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Not in pyproject.toml: without pytest-timeout that would be an unknown option, an error."""
    if config.pluginmanager.hasplugin("timeout") and config.option.timeout is None:
        config.option.timeout = TIMEOUT_S


# A shell ignores Ctrl-C for what it starts in the background, and so do that one's own children:
# tests that interrupt a command would wait for ever.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

choose_triton_mode()  # before a test module imports a Triton kernel
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # there are as many workers as cores
