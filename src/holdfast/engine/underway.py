"""What a turn and a call have taken so far."""

from decimal import Decimal

import msgspec

from holdfast.canonical.prompt import Ttl
from holdfast.canonical.usage import Usage


class Turn(msgspec.Struct, frozen=True):
    """The turn that is under way."""

    id: str
    started_at: float
    llm_calls: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)


class SentCall(msgspec.Struct, frozen=True):
    """A call: when it began, the lifetime of its last mark, if it had one, and what it took once it was answered."""

    at: float
    ttl: Ttl | None
    usage: Usage = Usage()
