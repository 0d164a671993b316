"""Settings of this repository's own tests; the plugin itself is `verify_attn.pytest_plugin`."""

import os

import torch

from verify_attn.kernels.registry import choose_triton_mode

pytest_plugins = ["pytester"]

choose_triton_mode()  # before a test module imports a Triton kernel
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # there are as many workers as cores
