"""Requests that ask for nothing: sent for what the provider keeps of them, paid for, recorded, and never missed."""

import logging

import msgspec

from holdfast.canonical.prompt import Parameters, Ttl
from holdfast.catalog.lookup import price_at, utc_date
from holdfast.catalog.rows import Model
from holdfast.economics.cost import cost_usd
from holdfast.engine.conversation import Conversation
from holdfast.errors import ProviderError
from holdfast.events.payloads import CachePinged, PingKind
from holdfast.providers.capabilities import capabilities_of
from holdfast.providers.emptying import AsksForNothing
from holdfast.providers.registry import adapter_for
from holdfast.providers.wire import OnRetry, whole_answer

ANSWER_BYTES_MAX = 1_000_000

logger = logging.getLogger(__name__)


class Empty(msgspec.Struct, frozen=True):
    """Why a request is sent that asks for nothing: how long its last mark lives, and the size of its prompt.

    `piece` is where that mark stands, among `pieces` of the conversation; behind them it says `closing_tokens`.
    """

    kind: PingKind
    ttl: Ttl
    estimated_tokens: int
    reason: str = ""
    piece: int | None = None
    pieces: int = 0
    closing_tokens: int = 0


def empty_parameters(parameters: Parameters, model: Model) -> Parameters | str:
    """The parameters of such a request; or the reason why there can be none."""
    adapter = adapter_for(model.provider)
    match capabilities_of(model).caching:
        case "none":
            return f"{model.id} is not known to cache"
        case "prefix":
            return f"{model.id} keeps what it likes, and takes no marks"
        case "marks" if not isinstance(adapter, AsksForNothing):
            return f"no request to {model.provider} can ask for nothing through us"
        case "marks":
            emptied = adapter.emptied(parameters)
            conflict = adapter.conflict_with_empty(emptied)
            return f"{model.provider} refuses a request for nothing with {conflict}" if conflict else emptied


def refusal_of(parameters: Parameters, model: Model) -> str | None:
    """Why no request that asks for nothing can be sent with these parameters; None where one can.

    Without what is in the way it would be another request, and another part of the cache.
    """
    ping_parameters = empty_parameters(parameters, model)
    return ping_parameters if isinstance(ping_parameters, str) else None


def why_not_alive(conversation: Conversation) -> str | None:
    """Why the cache of this session cannot be kept alive, whatever that would save; None where it can."""
    if conversation.state.profile == "seed":
        # What a ping keeps beyond the head, no later request of the seed would look for.
        return "the seed profile marks no more than tools and system prompt"
    if conversation.state.limits.marks_max is not None:
        return "the provider refused marks"
    return refusal_of(conversation.parameters, conversation.parts.model)


async def send_empty(conversation: Conversation, body: bytes, ping: Empty) -> CachePinged | str:
    """What was recorded of the request; or why it came to nothing, which is logged and is nobody's failure.

    `body` is spelled with `empty_parameters`. It is not sent where it would not leave enough money for a call.
    """
    deps = conversation.parts
    parameters = empty_parameters(conversation.parameters, deps.model)
    if isinstance(parameters, str):
        return parameters
    cost_max = conversation.prompt_cost_usd_max(ping.estimated_tokens) + conversation.worst_cost_usd(
        ping.estimated_tokens
    )
    if not conversation.can_spend(cost_max):
        return f"with it, too little of the ${deps.spend_max_usd or 0:f} could be left for a call"
    sent_at = deps.clock()
    try:
        sending = deps.wire.send(deps.adapter.endpoint(parameters), body, on_retry=_no_late_retry(ping))
        answer = await whole_answer(sending, bytes_max=ANSWER_BYTES_MAX)
        usage = deps.adapter.read_reply(answer).usage
    except ProviderError as error:
        logger.warning("a request that asks for nothing (%s) failed: %s", ping.kind, error)
        return str(error)
    # Another model may be spoken to by now.
    price = price_at(deps.model, utc_date(deps.clock()), usage.tokens_sent)
    pinged = CachePinged(
        kind=ping.kind,
        model=deps.model.id,
        ttl=ping.ttl,
        usage=usage,
        cost_usd=cost_usd(usage, price),
        pricing_version=deps.pricing_version,
        reason=ping.reason,
        sent_at=sent_at,
        piece=ping.piece,
        pieces=ping.pieces,
        marked_tokens=max(0, usage.tokens_sent - ping.closing_tokens),
    )
    await conversation.record("system", pinged)
    return pinged


def _no_late_retry(ping: Empty) -> OnRetry | None:
    """What keeps a cache alive is not sent again: by then the cache may be gone, and it would pay for all of it."""
    return None if ping.kind == "warm" else _raise_failure


def _raise_failure(attempt: int, error: ProviderError) -> None:
    raise error
