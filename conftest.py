"""Settings of this repository's own tests; the plugin itself is `verify_attn.pytest_plugin`."""

from verify_attn.kernels.registry import choose_triton_mode

pytest_plugins = ["pytester"]

choose_triton_mode()  # before a test module imports a Triton kernel
