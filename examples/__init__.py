"""Other people's kernels as kernels of this harness."""
