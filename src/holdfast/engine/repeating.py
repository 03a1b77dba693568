"""Answers a byte-identical request from the response cache, without calling the provider."""

import msgspec

from holdfast.canonical.encoding import canonical_json, chain, digest
from holdfast.canonical.prompt import Parameters, Plan
from holdfast.canonical.reply import Delta, Reply, ReplyFinished, ReplyStarted
from holdfast.canonical.usage import Usage
from holdfast.engine.completions import Heard, is_worth_keeping
from holdfast.engine.conversation import Conversation


def completion_key(conversation: Conversation, parameters: Parameters, plan: Plan, *, start: int) -> str:
    """A key that is equal for byte-identical requests, headers included, to the same model and account.

    `parameters` must not contain the diagnosis request, which does not change the reply. Blocks before `start` are not
    sent. Empty if no replies are stored.
    """
    deps, digests = conversation.parts, conversation.draft.scroll.links
    if deps.completions is None:
        return ""
    breakpoints = tuple((breakpoint.piece, breakpoint.ttl) for breakpoint in plan.marks)
    scope = canonical_json((deps.account, deps.model.id, deps.adapter.endpoint(parameters), breakpoints, start))
    return chain(
        chain(digest(scope), deps.adapter.opening(parameters)), digests[-1].digest.encode() if digests else b""
    )


def kept_deltas(conversation: Conversation, key: str) -> tuple[Delta, ...]:
    """The stored reply's deltas with zero usage; empty if none is stored."""
    completions = conversation.parts.completions
    chunks = (
        completions.cache.find(key, conversation.parts.clock(), completions.seconds)
        if completions is not None
        else None
    )
    reader = conversation.parts.adapter.stream_reader()
    return tuple(_without_usage(delta) for chunk in chunks or () for delta in reader.feed(chunk))


def finished(deltas: tuple[Delta, ...]) -> Reply | None:
    return next((delta.reply for delta in deltas if isinstance(delta, ReplyFinished)), None)


def keep_reply(conversation: Conversation, key: str, received: Heard, reply: Reply) -> bool:
    """Store the reply for identical requests, if it is worth it; returns whether it was stored."""
    completions = conversation.parts.completions
    if completions is None or not received.chunks or not is_worth_keeping(reply):
        return False
    return completions.cache.keep(key, received.chunks, conversation.parts.clock(), completions.seconds)


def _without_usage(delta: Delta) -> Delta:
    match delta:
        case ReplyStarted():
            return msgspec.structs.replace(delta, usage=Usage())
        case ReplyFinished(reply=reply):
            return ReplyFinished(msgspec.structs.replace(reply, usage=Usage()))
        case _:
            return delta
