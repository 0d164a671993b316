"""Is a kernel right?  Generated cases, named checks, and what exactly is wrong."""

# Exit code of a worker whose GPU context is lost: nothing that it says afterwards counts.
POISONED_EXIT = 86

# The checks by name, here so that listing them imports nothing (`checks.CHECKS` has the code).
CHECK_NAMES = (
    "oracle",
    "lse",
    "reference",
    "written",
    "empty",
    "page-size",
    "batch-alone",
    "padding",
    "node-vs-chain",
    "chain-is-causal",
    "plan-reuse",
    "capture",
    "stream",
    "high-slots",
    "deterministic",
    "page-permutation",
    "inputs-untouched",
    "non-ancestor",
    "no-allocation",
)
