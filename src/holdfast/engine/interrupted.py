"""What sessions took that worked for another one when its process ended: read from their own logs, and counted."""

from decimal import Decimal

from holdfast.canonical.usage import Usage
from holdfast.engine.conversation import Conversation
from holdfast.engine.state import fold
from holdfast.events.log import Log
from holdfast.events.payloads import DelegationCompleted


async def take_over_interrupted(talk: Conversation) -> None:
    """Count what nobody could count any more; sessions that still work are left to whoever waits for them."""
    working = {child.state.session_id for child in talk.children}
    for session_id in sorted(talk.state.delegating):
        if session_id not in working:
            usage, cost = _taken(talk.parts.log, session_id)
            await talk.record("system", DelegationCompleted(session_id, "interrupted", usage, cost))


def _taken(log: Log, session_id: str) -> tuple[Usage, Decimal]:
    state = fold(log.read(session_id), session_id)
    usage, cost = state.usage, state.cost_usd
    for below in state.delegating:
        more, dearer = _taken(log, below)
        usage, cost = usage + more, cost + dearer
    return usage, cost
