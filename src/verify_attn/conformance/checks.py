"""The named checks: importing this module fills `CHECKS`.

Each takes a `Trial` and raises `CheckFailed`, or `NotApplicable`.
"""

from verify_attn.conformance import against_oracle, asked_otherwise, bit_for_bit
from verify_attn.conformance.check import CHECKS, Check

__all__ = ["CHECKS", "Check", "against_oracle", "asked_otherwise", "bit_for_bit"]
