"""What the trace of a run shows of a record's units, beside what the agent says, and that it is kept once."""

from collections.abc import Sequence

import msgspec

from holdfast.instructions.asking import own_record, shelf_at
from holdfast.instructions.callers import Caller
from holdfast.instructions.failures import InstructionError
from holdfast.instructions.library import Library
from holdfast.instructions.marks import Unit
from holdfast.instructions.recall import Shelf
from holdfast.instructions.trace import Step, after_token, check_size
from holdfast.instructions.usage import detect
from holdfast.instructions.values import Agent, AuditRecord, Detected, Entry


class UsageSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Of one record, both columns; what was said is None before anybody has said it."""

    audit_token: str
    intent: str
    loaded: tuple[str, ...]
    said_used: tuple[str, ...] | None
    said_missed: tuple[str, ...] | None
    detected_used: tuple[str, ...]
    detected_missed: tuple[str, ...]
    detected: tuple[Detected, ...]
    kept: bool


def keep_trace(library: Library, token: str, caller: Caller, trace: Sequence[Step]) -> None:
    """The first trace is looked at, and not kept itself; later ones change nothing. Raises InstructionError."""
    check_size(trace)
    record = own_record(library, token, caller)
    if record.detected_at is None:
        library.records.keep_detected(token, detected_in(library, record, trace), at=library.now())


def look_at(library: Library, token: str, trace: Sequence[Step], *, keep: bool) -> UsageSeen:
    """For whoever may see all records. What was kept before stays, and is what is told."""
    check_size(trace)
    record = library.records.audit(token)
    if record is None:
        raise InstructionError("audit_not_found", "there is no such audit record")
    if record.detected_at is None:
        found = detected_in(library, record, trace)
        kept = keep and library.records.keep_detected(token, found, at=library.now())
        record = msgspec.structs.replace(record, detected=found, detected_at=library.now() if kept else None)
    closed = record.audit_closed is not None
    return UsageSeen(
        audit_token=token,
        intent=record.intent,
        loaded=tuple(one.name for one in record.loaded_chunks),
        said_used=record.used_chunks if closed else None,
        said_missed=record.missed_chunks if closed else None,
        detected_used=record.detected_used,
        detected_missed=record.detected_missed,
        detected=record.detected or (),
        kept=record.detected_at is not None,
    )


def detected_in(library: Library, record: AuditRecord, trace: Sequence[Step]) -> tuple[Detected, ...]:
    """By the texts as they were then. What another recall of the run has loaded is that one's affair."""
    agent = library.records.agent(record.agent_id)
    if agent is None:
        return ()
    shelf = _shelf_then(library, agent, record)
    if shelf is None:
        return ()
    units = tuple(_unit(entry, shelf) for entry in shelf.manifest.body)
    own = frozenset(one.name for one in record.loaded_chunks)
    run = library.records.audits_of_run(agent.id, record.heartbeat_id)
    elsewhere = frozenset(one.name for other in run for one in other.loaded_chunks) - own
    # In shadow all texts stand in the prompt, whatever was recalled beside it.
    in_shadow = record.event_type == "shadow"
    had = frozenset(unit.name for unit in units) if in_shadow else own
    found = detect(
        units,
        after_token(trace, record.audit_token),
        loaded=had,
        known=(record.intent, *agent.always_rules),
        listed=() if in_shadow else _listed(shelf),
    )
    return tuple(one for one in found if in_shadow or one.name not in elsewhere)


def _shelf_then(library: Library, agent: Agent, record: AuditRecord) -> Shelf | None:
    """What the record was loaded from: a heartbeat that began before the first manifest has asked that one."""
    for at in (record.detail.get("as_of", record.session_start), record.created_at):
        if isinstance(at, int) and library.records.manifest_at(agent.id, at) is not None:
            return shelf_at(library, agent, at, lifted=(), otherwise=None)
    return None


def _unit(entry: Entry, shelf: Shelf) -> Unit:
    content = shelf.contents.get(entry.name)
    uris = {entry.fact_uri, content.fact_uri if content else None}
    return Unit(entry.name, tuple(sorted(uri for uri in uris if uri)), content.text if content else "")


def _listed(shelf: Shelf) -> tuple[str, ...]:
    """What the index says of the units."""
    return tuple(
        text
        for entry in shelf.manifest.body
        for text in (entry.description, *entry.load_triggers.intents, *entry.load_triggers.keywords)
    )
