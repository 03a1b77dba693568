"""Finds the first byte in which a call differs from the previous one, by rebuilding both requests from the log."""

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

# Enough context to recognize the place, for a view of one line each.
BYTES_BEFORE = 120
BYTES_AFTER = 240


class Divergence(msgspec.Struct, frozen=True):
    """`byte` is the first cacheable byte that differs; null if the call extends the previous one.

    `shared` is the text before that byte; `before` and `after` follow it in the previous and in this call.
    """

    byte: int | None
    bytes_before: int
    bytes_after: int
    shared: str = ""
    before: str = ""
    after: str = ""


def divergence(events: Iterable[Event], session_id: str, models: Models, *, ordinal: int) -> Divergence | None:
    """For request number `ordinal`; None if it does not exist or has no predecessor with the same model."""
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
            # Another model has its own cache, and maybe another encoding: nothing to compare with.
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
