"""Certifies a stored session: its requests match the bytes rebuilt from the log, and expected cache reads happened."""

from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import replace

from holdfast.catalog.lookup import Models, find_model
from holdfast.engine.reducer import apply_event
from holdfast.engine.request_draft import RequestDraft, build_sent_view
from holdfast.engine.state import SessionState
from holdfast.events.log import Event
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallFailed, ModelSwitched, RequestPrepared
from holdfast.events.payloads.session import SessionStarted
from holdfast.layers.assemble import assemble_prompt
from holdfast.ledger.cache.verdicts import DROP_TOKENS_MIN
from holdfast.providers.registry import find_adapter
from holdfast.types.json_encoding import JSON_ENCODING_VERSION
from holdfast.types.request_buffer import count_shared_blocks


class Certificate(msgspec.Struct, frozen=True):
    """The first `prefix_bytes` of a call equal the previous call's, and it had to read `expected_read_tokens`.

    `violation` says which of the two does not hold; `read_tokens` is None where the call got no response. A simulated
    cache ends with its process: a call that finds it empty is `is_restarted`, and only its bytes are checked.
    """

    call: int
    prefix_bytes: int
    equal_to_call: int | None
    expected_read_tokens: int
    read_tokens: int | None = None
    violation: str | None = None
    is_restarted: bool = False


def certify(
    events: Iterable[Event], session_id: str, models: Models, *, drop_tokens_min: int = DROP_TOKENS_MIN
) -> Iterator[Certificate]:
    """One certificate per request, in order: its bytes are rebuilt from the log and compared."""
    state = SessionState(session_id)
    draft: RequestDraft | None = None
    pending: Certificate | None = None
    call_number = 0
    simulated = False
    for event in events:
        match event.payload:
            case SessionStarted() as payload:
                simulated = payload.simulated
            case RequestPrepared() as payload:
                if pending is not None:
                    yield pending
                call_number += 1
                draft = draft or RequestDraft(find_adapter(find_model(state.model, models).provider), len)
                draft.update(assemble_prompt(build_sent_view(state)))
                pending = _certify_bytes(state, payload, draft, call_number)
            case ModelSwitched():
                draft = None
            case LlmCallCompleted() as payload if pending is not None:
                yield _with_read(pending, payload.usage.cache_read, drop_tokens_min, simulated=simulated)
                pending = None
            case LlmCallFailed() if pending is not None:
                yield pending
                pending = None
            case _:
                pass
        state = apply_event(state, event)
    if pending is not None:
        yield pending


def _certify_bytes(state: SessionState, prepared: RequestPrepared, draft: RequestDraft, number: int) -> Certificate:
    previous_digests = state.digests
    # A log that was tampered with may hold any number.
    shared_blocks = min(max(prepared.shared_blocks, 0), len(previous_digests))
    recorded = (*previous_digests[:shared_blocks], *prepared.digests)
    certificate = Certificate(
        call=number,
        prefix_bytes=previous_digests[shared_blocks - 1].end if shared_blocks else 0,
        equal_to_call=number - 1 if shared_blocks else None,
        expected_read_tokens=prepared.plan.expected_read_tokens,
    )
    if shared_blocks != prepared.shared_blocks:
        claim = f"it claims {prepared.shared_blocks} shared blocks, but the previous call has {len(previous_digests)}"
        return replace(certificate, violation=claim)
    if prepared.encoding != JSON_ENCODING_VERSION:
        problem = f"it was encoded with {prepared.encoding}, which this version does not support"
        return replace(certificate, violation=problem)
    rebuilt = draft.buffer.digests
    equal_blocks = count_shared_blocks(recorded, rebuilt)
    if equal_blocks < max(len(recorded), len(rebuilt)):
        changed, block = (recorded if equal_blocks < len(recorded) else rebuilt)[equal_blocks], equal_blocks
        problem = "the bytes rebuilt from the log differ from those sent"
    elif shared_blocks < min(len(previous_digests), state.answered_blocks):
        changed, block, problem = previous_digests[shared_blocks], shared_blocks, "the prefix changed"
    else:
        return certificate
    where = f"block {block}, layer {changed.layer!r}, from byte {changed.start} on"
    return replace(certificate, violation=f"{problem}: {where}")


def _with_read(certificate: Certificate, read: int, drop_tokens_min: int, *, simulated: bool) -> Certificate:
    with_usage = replace(certificate, read_tokens=read)
    if with_usage.violation is None and certificate.expected_read_tokens - read >= drop_tokens_min:
        if simulated and not read:
            return replace(with_usage, is_restarted=True)
        missed = f"only {read} of {certificate.expected_read_tokens} cached tokens were read"
        return replace(with_usage, violation=missed)
    return with_usage
