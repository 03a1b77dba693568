"""A stored session checked again: are its requests the bytes that the log makes, and was read what had to be?"""

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.canonical.encoding import ENCODING
from holdfast.canonical.pieces import shared_links
from holdfast.catalog.lookup import Models, find_model
from holdfast.engine.draft import Draft
from holdfast.engine.state import State, apply
from holdfast.engine.views import sent_view
from holdfast.events.envelope import Event
from holdfast.events.payloads import LlmCallCompleted, LlmCallFailed, ModelSwitched, RequestPrepared, SessionStarted
from holdfast.layers.assemble import assemble
from holdfast.ledger.verdicts import DROP_TOKENS_MIN
from holdfast.providers.registry import adapter_for


class Certificate(msgspec.Struct, frozen=True):
    """The first `prefix_bytes` of a call equal those of the call before, and it had to read `expected_read_tokens`.

    `violation` says what was found not to be so; `read_tokens` is None where the call was not answered. A simulated
    cache ends with its process: where nothing was left of it the call is `restarted`, and only its bytes are judged.
    """

    call: int
    prefix_bytes: int
    equal_to_call: int | None
    expected_read_tokens: int
    read_tokens: int | None = None
    violation: str | None = None
    restarted: bool = False


def certify(
    events: Iterable[Event], session_id: str, models: Models, *, drop_tokens_min: int = DROP_TOKENS_MIN
) -> Iterator[Certificate]:
    """One for every request of a session, in order: its bytes are made anew from the log and compared."""
    state = State(session_id)
    draft: Draft | None = None
    open_one: Certificate | None = None
    number = 0
    simulated = False
    for event in events:
        match event.payload:
            case SessionStarted() as it:
                simulated = it.simulated
            case RequestPrepared() as it:
                if open_one is not None:
                    yield open_one
                number += 1
                draft = draft or Draft(adapter_for(find_model(state.model, models).provider), len)
                draft.update(assemble(sent_view(state)))
                open_one = _checked(state, it, draft, number)
            case ModelSwitched():
                draft = None
            case LlmCallCompleted() as it if open_one is not None:
                yield _with_read(open_one, it.usage.cache_read, drop_tokens_min, simulated=simulated)
                open_one = None
            case LlmCallFailed() if open_one is not None:
                yield open_one
                open_one = None
            case _:
                pass
        state = apply(state, event)
    if open_one is not None:
        yield open_one


def _checked(state: State, prepared: RequestPrepared, draft: Draft, number: int) -> Certificate:
    before = state.links
    # A log that was tampered with may name any number.
    shared = min(max(prepared.shared_blocks, 0), len(before))
    recorded = (*before[:shared], *prepared.links)
    made = Certificate(
        call=number,
        prefix_bytes=before[shared - 1].end if shared else 0,
        equal_to_call=number - 1 if shared else None,
        expected_read_tokens=prepared.plan.expected_read_tokens,
    )
    if shared != prepared.shared_blocks:
        return _refused(made, f"it says that it shares {prepared.shared_blocks} blocks with a call of {len(before)}")
    if prepared.encoding != ENCODING:
        return _refused(made, f"it was spelled by {prepared.encoding}, which this version does not know")
    made_anew = draft.scroll.links
    same = shared_links(recorded, made_anew)
    if same < max(len(recorded), len(made_anew)):
        moved = (recorded if same < len(recorded) else made_anew)[same]
        where = f"block {same}, layer {moved.layer!r}, from byte {moved.start} on"
        return _refused(made, f"the log makes other bytes than were sent: {where}")
    if shared < min(len(before), state.answered_links):
        moved = before[shared]
        where = f"block {shared}, layer {moved.layer!r}, from byte {moved.start} on"
        return _refused(made, f"the prefix moved: {where}")
    return made


def _with_read(made: Certificate, read: int, drop_tokens_min: int, *, simulated: bool) -> Certificate:
    told = msgspec.structs.replace(made, read_tokens=read)
    if told.violation is None and made.expected_read_tokens - read >= drop_tokens_min:
        if simulated and not read:
            return msgspec.structs.replace(told, restarted=True)
        return _refused(told, f"{read} tokens were read of {made.expected_read_tokens} that were there")
    return told


def _refused(made: Certificate, violation: str) -> Certificate:
    return msgspec.structs.replace(made, violation=violation)
