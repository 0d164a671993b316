"""How many drafts a live server accepts: from its counters, its answers and its log."""

from verify_attn.live.acceptance.counters import cached_between, from_counters
from verify_attn.live.acceptance.crosscheck import (
    ForeignTraffic,
    Own,
    foreign_running,
    foreign_traffic,
    own_total,
)
from verify_attn.live.acceptance.events import from_events
from verify_attn.live.acceptance.logs import LogReading, read_lines
from verify_attn.live.acceptance.model import Acceptance, NothingDrafted
from verify_attn.live.acceptance.prometheus import Samples, parse_metrics, read_metrics
from verify_attn.live.acceptance.server_info import from_server_info
from verify_attn.live.acceptance.sglang_routes import from_sglang_routes
from verify_attn.live.acceptance.tail import LogTail
from verify_attn.live.acceptance.timings import (
    ServerTimings,
    cached_tokens,
    filled_tokens,
    server_timings,
)

__all__ = [
    "Acceptance",
    "ForeignTraffic",
    "LogReading",
    "LogTail",
    "NothingDrafted",
    "Own",
    "Samples",
    "ServerTimings",
    "cached_between",
    "cached_tokens",
    "filled_tokens",
    "foreign_running",
    "foreign_traffic",
    "from_counters",
    "from_events",
    "from_server_info",
    "from_sglang_routes",
    "own_total",
    "parse_metrics",
    "read_lines",
    "read_metrics",
    "server_timings",
]
