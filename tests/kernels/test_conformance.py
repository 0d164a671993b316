"""Our kernels, or those of ``--verify-attn-kernel``, through every check."""

from verify_attn.conformance.suite import test_conformance

__all__ = ["test_conformance"]
