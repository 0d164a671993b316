"""The one line that makes a failure again."""

import shlex


def reproduce(kernel: str, check: str, case: str) -> str:
    """A `verify-attn check` command line for one kernel, check and case (one line of JSON)."""
    return f"verify-attn check {shlex.quote(kernel)} --only {check} --case {shlex.quote(case)}"
