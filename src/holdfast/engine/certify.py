"""Certifies a stored session: its requests match the bytes rebuilt from the log, and its calls lost nothing.

Whether a call lost anything is its verdict, which this module reads and does not decide again.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec
from msgspec.structs import replace

from holdfast.catalog.lookup import Models
from holdfast.engine.history_transfer import model_provider
from holdfast.engine.reducer import apply_event
from holdfast.engine.request_draft import RequestDraft, build_sent_view
from holdfast.engine.state import SessionState
from holdfast.events.log import Event
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallFailed, ModelSwitched, RequestPrepared
from holdfast.events.payloads.session import EpochOpened, SessionStarted
from holdfast.layers.assemble import assemble_prompt
from holdfast.ledger.accounting import AccountingState, record_event
from holdfast.ledger.cache.verdicts import Verdict
from holdfast.providers.registry import find_adapter
from holdfast.types.json_encoding import JSON_ENCODING_VERSION
from holdfast.types.request_buffer import PrefixDigest, count_shared_blocks

CertificateResult = Literal["certified", "not certifiable", "broken"]


class Certificate(msgspec.Struct, frozen=True):
    """The first `prefix_bytes` of a call equal the previous call's, and it had to read `expected_read_tokens`.

    `broken` means that its bytes differ from those sent, that it changed the prefix, or that cached tokens were not
    read: `violation` says which, and `byte` where. `not certifiable`: the log of a wrapped or forwarded client has
    digests and no text, so that nothing can be rebuilt. `read_tokens` is None where the call got no response. A
    simulated cache may end with its process: a call that finds it empty is `is_restarted`, and only its bytes count.
    """

    call: int
    prefix_bytes: int
    equal_to_call: int | None
    expected_read_tokens: int
    read_tokens: int | None = None
    result: CertificateResult = "certified"
    violation: str | None = None
    byte: int | None = None
    is_restarted: bool = False


def certify(events: Iterable[Event], session_id: str, models: Models) -> Iterator[Certificate]:
    """One certificate per request, in order: its bytes are rebuilt from the log and compared."""
    state, accounting = SessionState(session_id), AccountingState()
    draft: RequestDraft | None = None
    pending: Certificate | None = None
    call_number = 0
    is_simulated = has_content = False
    for event in events:
        accounting, entry = record_event(accounting, event, models)
        match event.payload:
            case SessionStarted() as payload:
                is_simulated = payload.simulated
            case EpochOpened():
                has_content = True
            case RequestPrepared() as payload:
                if pending is not None:
                    yield pending
                call_number += 1
                pending = _describe_prefix(state, payload, call_number)
                if has_content:
                    draft = draft or RequestDraft(find_adapter(model_provider(state.model)), len)
                    draft.update(assemble_prompt(build_sent_view(state)))
                    pending = _check_bytes(pending, state, payload, draft)
                else:
                    pending = replace(pending, result="not certifiable")
            case ModelSwitched():
                draft = None
            case LlmCallCompleted() as payload if pending is not None:
                pending = replace(pending, read_tokens=payload.usage.cache_read)
                verdict = entry.verdict if entry is not None else None
                yield _check_verdict(pending, verdict, is_simulated=is_simulated) if verdict else pending
                pending = None
            case LlmCallFailed() if pending is not None:
                yield pending
                pending = None
            case _:
                pass
        state = apply_event(state, event)
    if pending is not None:
        yield pending


def _describe_prefix(state: SessionState, prepared: RequestPrepared, number: int) -> Certificate:
    shared_blocks = _count_claimed(state, prepared)
    return Certificate(
        call=number,
        prefix_bytes=state.digests[shared_blocks - 1].end if shared_blocks else 0,
        equal_to_call=number - 1 if shared_blocks else None,
        expected_read_tokens=prepared.plan.expected_read_tokens,
    )


def _count_claimed(state: SessionState, prepared: RequestPrepared) -> int:
    # A log that was tampered with may hold any number.
    return min(max(prepared.shared_blocks, 0), len(state.digests))


def _check_bytes(
    certificate: Certificate, state: SessionState, prepared: RequestPrepared, draft: RequestDraft
) -> Certificate:
    shared_blocks = _count_claimed(state, prepared)
    if shared_blocks != prepared.shared_blocks:
        claim = f"it claims {prepared.shared_blocks} shared blocks, but the previous call has {len(state.digests)}"
        return _break_certificate(certificate, claim)
    if prepared.encoding != JSON_ENCODING_VERSION:
        problem = f"it was encoded with {prepared.encoding}, which this version does not support"
        return _break_certificate(certificate, problem)
    recorded: tuple[PrefixDigest, ...] = (*state.digests[:shared_blocks], *prepared.digests)
    rebuilt = draft.buffer.digests
    equal_blocks = count_shared_blocks(recorded, rebuilt)
    if equal_blocks == max(len(recorded), len(rebuilt)):
        return certificate
    changed = (recorded if equal_blocks < len(recorded) else rebuilt)[equal_blocks]
    where = f"block {equal_blocks}, layer {changed.layer!r}, from byte {changed.start} on"
    return _break_certificate(
        certificate, f"the bytes rebuilt from the log differ from those sent: {where}", changed.start
    )


def _break_certificate(certificate: Certificate, violation: str, byte: int | None = None) -> Certificate:
    return replace(certificate, result="broken", violation=violation, byte=byte)


def _check_verdict(certificate: Certificate, verdict: Verdict, *, is_simulated: bool) -> Certificate:
    if certificate.result != "certified" or not verdict.is_unexpected:
        return certificate
    if verdict.kind in ("prefix_changed", "tail_rewritten"):
        where = f"layer {verdict.component!r}, from byte {verdict.byte} on; {verdict.detail}"
        return _break_certificate(certificate, f"the prefix changed: {where}", verdict.byte)
    if is_simulated and not verdict.read_tokens:
        return replace(certificate, is_restarted=True)
    missed = f"only {verdict.read_tokens} of {verdict.expected_tokens} cached tokens were read ({verdict.kind})"
    return _break_certificate(certificate, missed)
