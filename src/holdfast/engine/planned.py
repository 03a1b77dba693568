"""The cache plan of the next request, and the prefixes that it reads or writes."""

import msgspec

from holdfast.canonical.encoding import chain, digest
from holdfast.canonical.prompt import Plan
from holdfast.canonical.scroll import Scroll
from holdfast.engine.conversation import Conversation
from holdfast.engine.empty import why_not_alive
from holdfast.engine.gate import Claim, MarkedPrefix
from holdfast.engine.limits import limited
from holdfast.engine.state import waited_for
from holdfast.planning.memory import moved
from holdfast.planning.ours import first_above
from holdfast.planning.plan import plan
from holdfast.planning.policy import Moment
from holdfast.providers.capabilities import capabilities_of


def plan_next(conversation: Conversation, buffer: Scroll, shared: int) -> Plan:
    """The cache plan of the next call; empty if the model does not cache.

    `shared` is the number of leading blocks that equal the previous call's.
    """
    model, state = conversation.parts.model, conversation.state
    if not capabilities_of(model).supports_prompt_caching:
        return Plan()
    memory = state.memory if shared >= len(state.links) else moved(state.memory)
    # Until the provider has reported this prompt's size it is an estimate, so breakpoints near the floor are kept.
    next_plan = plan(
        moment_of(conversation, buffer),
        memory,
        conversation.parts.learned,
        profile=state.profile,
        keep_small=not memory.pieces,
        ttl=None if state.control.ttl == "auto" else state.control.ttl,
    )
    next_plan = limited(next_plan, state.limits, model.cache)
    if conversation.parts.keep_alive is not None and (reason := why_not_alive(conversation)):
        return msgspec.structs.replace(next_plan, notes=(*next_plan.notes, f"no keep-alive: {reason}"))
    return next_plan


def moment_of(conversation: Conversation, buffer: Scroll) -> Moment:
    """The current moment, as the planner needs it."""
    state, at = conversation.state, conversation.parts.clock()
    idle_seconds = None if state.memory.last_at is None else at - state.memory.last_at
    price = conversation.price(state.calibration.corrected(buffer.tokens_total))
    return Moment(buffer, conversation.parts.model.cache, price, at, idle_seconds, waited_for(state))


def claim_of(conversation: Conversation, buffer: Scroll, plan: Plan) -> Claim:
    """The single-flight key: the prefixes that end at a breakpoint and reach the floor. Scans no further than that."""
    deps, rules = conversation.parts, conversation.parts.model.cache
    # The floor counts the provider's tokens; dividing by the calibration factor converts it to our estimates.
    first_block = first_above(buffer.tokens, rules.tokens_min / conversation.state.calibration.factor)
    prefixes = tuple(
        MarkedPrefix(
            buffer.links[breakpoint.piece].digest,
            buffer.links[breakpoint.piece].end,
            rules.ttls_seconds[breakpoint.ttl],
        )
        for breakpoint in plan.marks
        if breakpoint.piece >= first_block
    )
    return Claim(_scope(conversation, deps.account), prefixes) if prefixes else Claim("")


def _scope(conversation: Conversation, account: str) -> str:
    """The account, the model, and all request parameters that a cache entry may depend on."""
    deps = conversation.parts
    # Output limit, streaming, stop sequences and temperature are in no provider's list of what invalidates a cache.
    parameters = msgspec.structs.replace(
        conversation.parameters, output_tokens_max=0, stream=False, stop_sequences=(), temperature=None
    )
    headers = repr(deps.adapter.endpoint(parameters).headers).encode()
    return chain(digest(f"{account}\n{deps.model.id}".encode()), deps.adapter.opening(parameters) + headers)
