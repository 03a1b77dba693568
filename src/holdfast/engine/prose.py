"""How a model is asked for the reasons that a record lacks: by the request it would get anyway, and one line more."""

from contextlib import aclosing
from decimal import Decimal

import msgspec

from holdfast.canonical.blocks import Text, ToolUse, text_of
from holdfast.canonical.pieces import shared_links
from holdfast.canonical.prompt import Passage
from holdfast.canonical.reply import Reply, ReplyFinished
from holdfast.canonical.usage import Usage
from holdfast.catalog.tokens import count_tokens
from holdfast.compaction.prose import INSTRUCTION, checked_prose
from holdfast.economics.cost import cost_usd
from holdfast.engine.compacting import Proposal, Standing, Unhelpful, checked
from holdfast.engine.conversation import Conversation
from holdfast.engine.planned import plan_next
from holdfast.errors import BudgetError, ProviderError
from holdfast.events.payloads_compaction import RecordSegment
from holdfast.extraction.calls import plain_text


async def with_prose(talk: Conversation, standing: Standing, found: Proposal) -> Proposal:
    """The proposal with what the model adds to its record; the record alone where that cannot be had."""
    reply, reason = await _asked(talk)
    usage = reply.usage if reply else Usage()
    text, dropped = "", 0
    if reply is not None:
        said = "\n".join(plain_text(one.content) for one in standing.raw())
        prose = checked_prose(text_of(reply.content), said, count=lambda line: count_tokens(line))
        text, dropped = prose.text, prose.dropped
        reason = reason or ("" if text else "nothing that the model wrote could be shown to be so")
    record, note = found.event.segments
    notes = (reason,) if reason else (f"{dropped} lines of the model's were dropped",) if dropped else ()
    event = msgspec.structs.replace(
        found.event,
        segments=(record, RecordSegment("prose", text), note) if text else (record, note),
        usage=usage,
        cost_usd=cost_usd(usage, talk.price(usage.tokens_sent)) if reply else Decimal(0),
        notes=notes,
    )
    longer = checked(standing, event, found.record)
    if isinstance(longer, Unhelpful):
        return msgspec.structs.replace(found, event=msgspec.structs.replace(event, segments=(record, note)))
    return longer


async def _asked(talk: Conversation) -> tuple[Reply | None, str]:
    """The reply, and why it is of no use, if it is not."""
    scroll = talk.draft.scroll
    keep = len(scroll.pieces)
    scroll.extend(talk.draft.spelled(Passage("user", (Text(INSTRUCTION),))))
    try:
        plan = plan_next(talk, scroll, shared_links(talk.state.links, scroll.links))
        body = scroll.render(talk.parts.adapter.opening(talk.parameters), plan.marks)
        tokens = talk.state.calibration.corrected(scroll.tokens_total)
    finally:
        scroll.cut(keep)
    try:
        with talk.promise(tokens):
            reply = await _reply(talk, body)
    except (ProviderError, BudgetError) as error:
        return None, f"the model could not be asked: {error}"
    if any(isinstance(block, ToolUse) for block in reply.content):
        return reply, "the model called a tool instead"
    return reply, "" if reply.stop_reason == "end_turn" else f"the model stopped early ({reply.stop_reason})"


async def _reply(talk: Conversation, body: bytes) -> Reply:
    parts = talk.parts
    reader = parts.adapter.stream_reader()
    async with aclosing(parts.wire.send(parts.adapter.endpoint(talk.parameters), body)) as chunks:
        async for chunk in chunks:
            for delta in reader.feed(chunk):
                if isinstance(delta, ReplyFinished):
                    return delta.reply
    raise ProviderError("network", "the reply ended before it was complete")
