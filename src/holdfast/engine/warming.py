"""Putting the head of the prompt into the cache before anybody waits for it."""

from decimal import Decimal

import msgspec

from holdfast.canonical.prompt import Plan
from holdfast.canonical.scroll import Scroll
from holdfast.canonical.usage import Usage
from holdfast.canonical.view import View
from holdfast.engine.conversation import Conversation
from holdfast.engine.empty import Empty, empty_parameters, send_empty
from holdfast.engine.gate import cross
from holdfast.engine.heeding import heed
from holdfast.engine.planned import claim_of, plan_next
from holdfast.layers.assemble import assemble
from holdfast.planning.closing import closing_behind


class Prewarming(msgspec.Struct, frozen=True):
    """What became of it. `reason` says why the head was not sent, where it was not."""

    sent: bool
    reason: str = ""
    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)


async def prewarm(talk: Conversation) -> Prewarming:
    """Send tools and stable system prompt, marked, and ask for nothing; no failure of that is raised.

    Nothing is sent where the head is known to be cached, be it because another session is just putting it there.
    """
    await heed(talk)
    parts = talk.parts
    parameters = empty_parameters(talk.parameters, parts.model)
    if isinstance(parameters, str):
        return Prewarming(False, parameters)
    scroll = _head(talk)
    marks = tuple(mark for mark in plan_next(talk, scroll, 0).marks if mark.piece < scroll.stable_count)
    claim = claim_of(talk, scroll, Plan(marks))
    if not claim.prefixes:
        return Prewarming(
            False,
            f"tools and system prompt have about {_tokens(talk, scroll)} tokens, and {parts.model.id} caches nothing "
            f"below {parts.model.cache.tokens_min}",
        )
    body = scroll.render(parts.adapter.opening(parameters), marks)
    wish = Empty(
        "warm", marks[-1].ttl, talk.state.calibration.corrected(scroll.tokens_total), "the caller asked for it"
    )
    async with cross(parts.gate, claim, parts.clock) as crossing:
        if not crossing.writes:
            return Prewarming(False, "the head is in the cache already")
        told = await send_empty(talk, body, wish)
        if isinstance(told, str):
            return Prewarming(False, told)
        crossing.begun()
    return Prewarming(True, usage=told.usage, cost_usd=told.cost_usd)


def _head(talk: Conversation) -> Scroll:
    draft = talk.new_draft()
    draft.update(assemble(View(head=talk.state.head, newest=(closing_behind(None),))))
    return draft.scroll


def _tokens(talk: Conversation, scroll: Scroll) -> int:
    return talk.state.calibration.corrected(sum(scroll.tokens[: scroll.stable_count]))
