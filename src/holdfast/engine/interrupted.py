"""Accounts for child sessions that were running when their parent's process ended, from their own logs."""

from decimal import Decimal

from holdfast.canonical.usage import Usage
from holdfast.engine.conversation import Conversation
from holdfast.engine.state import fold
from holdfast.events.log import Log
from holdfast.events.payloads import DelegationCompleted


async def take_over_interrupted(conversation: Conversation) -> None:
    """Add the cost of interrupted children to their parent. Children that still run report their own completion."""
    running = {child.state.session_id for child in conversation.children}
    for session_id in sorted(conversation.state.delegating):
        if session_id not in running:
            usage, cost = _total_cost(conversation.parts.log, session_id)
            await conversation.record("system", DelegationCompleted(session_id, "interrupted", usage, cost))


def _total_cost(log: Log, session_id: str) -> tuple[Usage, Decimal]:
    state = fold(log.read(session_id), session_id)
    usage, cost = state.usage, state.cost_usd
    for child_id in state.delegating:
        child_usage, child_cost = _total_cost(log, child_id)
        usage, cost = usage + child_usage, cost + child_cost
    return usage, cost
