"""Where the bytes of a call leave those of the call before, as they were sent: made anew from the log."""

from collections.abc import Iterable

import msgspec

from holdfast.canonical.pieces import common_length
from holdfast.catalog.lookup import Models, find_model
from holdfast.engine.draft import Draft
from holdfast.engine.state import State, apply
from holdfast.engine.views import sent_view
from holdfast.events.envelope import Event
from holdfast.events.payloads import ModelSwitched, RequestPrepared
from holdfast.layers.assemble import assemble
from holdfast.providers.registry import adapter_for

BYTES_BEFORE = 120
BYTES_AFTER = 240


class Divergence(msgspec.Struct, frozen=True):
    """`byte` is the first cacheable byte that differs; None where all bytes of the call before stand here too.

    `shared` is what stands in front of it, `before` and `after` what follows there in the one call and the other.
    """

    byte: int | None
    bytes_before: int
    bytes_after: int
    shared: str = ""
    before: str = ""
    after: str = ""


def divergence(events: Iterable[Event], session_id: str, models: Models, *, ordinal: int) -> Divergence | None:
    """Of the request with this number; None where there is none, or none before it that it could be compared with."""
    state, draft, number = State(session_id), None, 0
    before: bytes | None = None
    for event in events:
        match event.payload:
            case RequestPrepared():
                number += 1
                draft = draft or Draft(adapter_for(find_model(state.model, models).provider), len)
                draft.update(assemble(sent_view(state)))
                if number == ordinal:
                    return None if before is None else compared(before, draft.scroll.cacheable_bytes())
                if number == ordinal - 1:
                    before = draft.scroll.cacheable_bytes()
            case ModelSwitched():
                draft, before = None, None
            case _:
                pass
        state = apply(state, event)
    return None


def compared(before: bytes, after: bytes) -> Divergence:
    byte = common_length(before, after)
    if byte == len(before):
        return Divergence(None, len(before), len(after))
    return Divergence(
        byte=byte,
        bytes_before=len(before),
        bytes_after=len(after),
        shared=before[max(0, byte - BYTES_BEFORE) : byte].decode(errors="replace"),
        before=before[byte : byte + BYTES_AFTER].decode(errors="replace"),
        after=after[byte : byte + BYTES_AFTER].decode(errors="replace"),
    )
