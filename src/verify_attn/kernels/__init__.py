"""Verify kernels: the contract (`base`), the names (`registry`), one file a kernel."""
