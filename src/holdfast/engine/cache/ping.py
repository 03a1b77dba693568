"""Ping requests: sent without asking for output, for their effect on the provider's cache.

They are paid for and recorded; a failed one is logged and never raised.
"""

import logging

import msgspec

from holdfast.catalog.lookup import price_at, utc_date
from holdfast.catalog.schema import Model
from holdfast.economics.cost import cost_usd
from holdfast.engine.budget import call_cost_usd_max, can_spend, prompt_cost_usd_max
from holdfast.engine.conversation import Conversation
from holdfast.errors import ProviderError
from holdfast.events.payloads.cache import CachePinged, PingKind
from holdfast.providers.adapter import PingAdapter, model_capabilities
from holdfast.providers.registry import get_adapter
from holdfast.providers.wire_request import read_whole_response
from holdfast.types.prompt import Parameters, Ttl

PING_RESPONSE_BYTES_MAX = 1_000_000
"""A ping's response has no content; anything longer than this is not one."""

logger = logging.getLogger(__name__)


class PingRequest(msgspec.Struct, frozen=True):
    """An encoded ping: its purpose, the TTL of its last breakpoint, and the size of its prompt.

    `body` must be encoded with `build_ping_parameters`. `block` is the block of that breakpoint among the
    conversation's `blocks` blocks; `closing_tokens` follow them. `new_tokens` are not cached yet.
    """

    body: bytes
    kind: PingKind
    ttl: Ttl
    estimated_tokens: int
    reason: str = ""
    block: int | None = None
    blocks: int = 0
    closing_tokens: int = 0
    new_tokens: int = 0


def build_ping_parameters(parameters: Parameters, model: Model) -> Parameters | str:
    """The parameters of a ping; or the reason why none can be sent."""
    adapter = get_adapter(model.provider)
    match model_capabilities(model).caching:
        case "none":
            return f"{model.id} is not known to cache"
        case "prefix":
            return f"{model.id} caches automatically, and takes no breakpoints"
        case "breakpoints" if not isinstance(adapter, PingAdapter):
            return f"pings are not supported for {model.provider}"
        case "breakpoints":
            emptied = adapter.ping_parameters(parameters)
            conflict = adapter.find_ping_conflict(emptied)
            return f"{model.provider} refuses a ping with {conflict}" if conflict else emptied


def ping_refusal(parameters: Parameters, model: Model) -> str | None:
    """Why no ping can be sent with these parameters; None where one can.

    Dropping the conflicting parameter is no way out: the ping would then use another cache entry.
    """
    ping_parameters = build_ping_parameters(parameters, model)
    return ping_parameters if isinstance(ping_parameters, str) else None


def keep_alive_refusal(conversation: Conversation) -> str | None:
    """Why keep-alive is impossible for this session; None where it is possible."""
    if conversation.state.profile == "seed":
        # Requests of the seed profile have no breakpoint in the history, so they would not read what a ping refreshes.
        return "the seed profile places breakpoints on tools and system prompt only"
    if conversation.state.limits.breakpoints_max is not None:
        return "the provider refused breakpoints"
    return ping_refusal(conversation.parameters, conversation.deps.model)


async def send_ping(conversation: Conversation, ping: PingRequest) -> CachePinged | str:
    """Send a ping; returns the recorded event, or why there was none. Failures are logged, not raised.

    It is not sent if too little budget would be left for a call.
    """
    deps = conversation.deps
    parameters = build_ping_parameters(conversation.parameters, deps.model)
    if isinstance(parameters, str):
        return parameters
    tokens = ping.estimated_tokens
    if not can_spend(conversation, prompt_cost_usd_max(conversation, tokens) + call_cost_usd_max(conversation, tokens)):
        return f"too little of the ${deps.spend_max_usd or 0:f} budget could be left for a call"
    sent_at = deps.clock()
    # A refresh is not retried: by then the cache may have expired, and the retry would pay for a full write.
    on_retry = None if ping.kind == "prewarm" else _raise_failure
    try:
        sending = deps.transport.send(deps.adapter.endpoint(parameters), ping.body, on_retry=on_retry)
        answer = await read_whole_response(sending, bytes_max=PING_RESPONSE_BYTES_MAX)
        usage = deps.adapter.decode_reply(answer).usage
    except ProviderError as error:
        logger.warning("ping (%s) failed: %s", ping.kind, error)
        return str(error)
    # `conversation.price` may be another model's by now: the session can switch while the ping is in progress.
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
        breakpoint_block=ping.block,
        block_count=ping.blocks,
        prefix_tokens=max(0, usage.tokens_sent - ping.closing_tokens),
    )
    await conversation.record("system", pinged)
    return pinged


def _raise_failure(attempt: int, error: ProviderError) -> None:
    raise error
