"""Detect and store the units that the trace of a run shows as used, next to what the agent reported."""

from collections.abc import Sequence

import msgspec

from holdfast.instructions.access import InstructionCaller
from holdfast.instructions.context import InstructionContext
from holdfast.instructions.errors import InstructionError
from holdfast.instructions.models import Agent, AuditRecord, DetectedUnit, ManifestEntry
from holdfast.instructions.recall.answer import find_own_record, instruction_set_at
from holdfast.instructions.recall.ranking import InstructionSet
from holdfast.instructions.usage.detect import detect_usage
from holdfast.instructions.usage.fingerprints import UnitText
from holdfast.instructions.usage.trace import TraceStep, check_trace_size, trace_after_token


class UsageComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Reported and detected usage of one record; the reported columns are None until the record is closed."""

    audit_token: str
    intent: str
    loaded: tuple[str, ...]
    reported_used: tuple[str, ...] | None
    reported_missed: tuple[str, ...] | None
    detected_used: tuple[str, ...]
    detected_missed: tuple[str, ...]
    detected: tuple[DetectedUnit, ...]
    is_stored: bool


def record_trace_usage(
    context: InstructionContext, token: str, caller: InstructionCaller, trace: Sequence[TraceStep]
) -> None:
    """Analyse the first trace without storing it; later traces change nothing. Raises InstructionError."""
    check_trace_size(trace)
    record = find_own_record(context, token, caller)
    if record.detected_at is None:
        context.records.save_detected_usage(token, detect_record_usage(context, record, trace), at=context.now())


def analyse_trace(
    context: InstructionContext, token: str, trace: Sequence[TraceStep], *, keep: bool
) -> UsageComparison:
    """Analyse a trace for an admin; a stored detection takes precedence and is not replaced."""
    check_trace_size(trace)
    record = context.records.audit(token)
    if record is None:
        raise InstructionError("audit_not_found", "there is no such audit record")
    if record.detected_at is None:
        detected = detect_record_usage(context, record, trace)
        is_stored = keep and context.records.save_detected_usage(token, detected, at=context.now())
        record = msgspec.structs.replace(record, detected=detected, detected_at=context.now() if is_stored else None)
    is_closed = record.audit_closed is not None
    return UsageComparison(
        audit_token=token,
        intent=record.intent,
        loaded=tuple(chunk.name for chunk in record.loaded_chunks),
        reported_used=record.used_chunks if is_closed else None,
        reported_missed=record.missed_chunks if is_closed else None,
        detected_used=record.detected_used,
        detected_missed=record.detected_missed,
        detected=record.detected or (),
        is_stored=record.detected_at is not None,
    )


def detect_record_usage(
    context: InstructionContext, record: AuditRecord, trace: Sequence[TraceStep]
) -> tuple[DetectedUnit, ...]:
    """Detect with the texts of that time. Units that another recall of the run loaded are credited to that recall."""
    agent = context.records.agent(record.agent_id)
    if agent is None:
        return ()
    instruction_set = _instruction_set_of(context, agent, record)
    if instruction_set is None:
        return ()
    units = tuple(_unit(entry, instruction_set) for entry in instruction_set.manifest.body)
    own = frozenset(chunk.name for chunk in record.loaded_chunks)
    run = context.records.list_run_audits(agent.id, record.heartbeat_id)
    elsewhere = frozenset(chunk.name for other in run for chunk in other.loaded_chunks) - own
    # In shadow mode all texts are in the prompt, whatever the recall loaded.
    is_shadow = record.event_type == "shadow"
    loaded = frozenset(unit.name for unit in units) if is_shadow else own
    detected = detect_usage(
        units,
        trace_after_token(trace, record.audit_token),
        loaded=loaded,
        earlier_texts=(record.intent, *agent.always_rules),
        index_texts=() if is_shadow else _index_texts(instruction_set),
    )
    return tuple(detection for detection in detected if is_shadow or detection.name not in elsewhere)


def _instruction_set_of(context: InstructionContext, agent: Agent, record: AuditRecord) -> InstructionSet | None:
    """The set that the record was loaded from; a heartbeat that started before the first manifest used that one."""
    for at in (record.detail.get("as_of", record.session_start), record.created_at):
        if isinstance(at, int) and context.records.manifest_at(agent.id, at) is not None:
            return instruction_set_at(context, agent, at, lifted=(), otherwise=None)
    return None


def _unit(entry: ManifestEntry, instruction_set: InstructionSet) -> UnitText:
    content = instruction_set.contents.get(entry.name)
    uris = {entry.fact_uri, content.fact_uri if content else None}
    return UnitText(entry.name, tuple(sorted(uri for uri in uris if uri)), content.text if content else "")


def _index_texts(instruction_set: InstructionSet) -> tuple[str, ...]:
    return tuple(
        text
        for entry in instruction_set.manifest.body
        for text in (entry.description, *entry.load_triggers.intents, *entry.load_triggers.keywords)
    )
