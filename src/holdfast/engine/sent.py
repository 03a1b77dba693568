"""The turn in progress, and the newest completed call."""

from decimal import Decimal

import msgspec

from holdfast.canonical.prompt import Ttl
from holdfast.canonical.usage import Usage


class Turn(msgspec.Struct, frozen=True):
    """The turn in progress."""

    id: str
    started_at: float
    llm_calls: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)


class SentCall(msgspec.Struct, frozen=True):
    """A completed call: start time, TTL of its last breakpoint (None without one), and usage."""

    at: float
    ttl: Ttl | None
    usage: Usage = Usage()
