"""A server whose truth is known: scripted times and bytes, for tests of whatever measures servers.

with TruthServer(Scenario()) as server:
    ...                         # talk to server.url
    log = server.requests()     # what was asked, and what was sent when
"""

from tests.live.truth.log import RequestLog, Sent, StepLog
from tests.live.truth.process import TruthServer
from tests.live.truth.scenario import Decode, Fault, Prefill, Scenario, Side, Tokenizer, Wire

__all__ = [
    "Decode",
    "Fault",
    "Prefill",
    "RequestLog",
    "Scenario",
    "Sent",
    "Side",
    "StepLog",
    "Tokenizer",
    "TruthServer",
    "Wire",
]
