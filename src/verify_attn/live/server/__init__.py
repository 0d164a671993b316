"""What a live server is, what it says about itself, and how it refuses."""

from verify_attn.live.server.configuration import read_server
from verify_attn.live.server.errors import context_overflow, error_message, error_status
from verify_attn.live.server.facts import Engine, Fact, ServerFacts
from verify_attn.live.server.flush import Flush, flush_cache
from verify_attn.live.server.secrets import redact

__all__ = [
    "Engine",
    "Fact",
    "Flush",
    "ServerFacts",
    "context_overflow",
    "error_message",
    "error_status",
    "flush_cache",
    "read_server",
    "redact",
]
