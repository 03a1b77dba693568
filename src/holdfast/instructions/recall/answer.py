"""Answer a recall and write its audit record, render its texts, and close, look up and replay audit records."""

import hashlib
from collections.abc import Sequence

import msgspec

from holdfast.errors import InstructionError, StoreError
from holdfast.instructions.access import InstructionCaller, is_same_agent
from holdfast.instructions.context import InstructionContext, manifest_not_found_error
from holdfast.instructions.models import Agent, AuditRecord, LoadedUnit, Manifest
from holdfast.instructions.recall.boot_stub import render_prompt_index, render_stub_body
from holdfast.instructions.recall.selection import InstructionSet, RecallQuery, RecallSelection
from holdfast.instructions.usage.shadow import measure_prompt_tokens
from holdfast.retrieval.index import QUERY_CHARACTERS_MAX

AUDIT_TOKEN_AGE_MS_MAX = 24 * 3_600_000
HEARTBEAT_AGE_MS_MAX = 24 * 3_600_000
"""How long a heartbeat adds its wake reason to the recalls that name it."""


class RecallAnswer(msgspec.Struct, frozen=True):
    """`audit_token` is empty if the audit record could not be written: nothing can be reported on this recall."""

    result: RecallSelection
    audit_token: str
    snapshot_id: str
    embedding_model_version: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(chunk.name for chunk in self.result.chunks)


class RecallReplay(msgspec.Struct, frozen=True):
    """`same_snapshot`: texts, encoder and lifts are the same as at the time of the record."""

    loaded_then: tuple[str, ...]
    loaded_now: tuple[str, ...]
    same_order: bool
    same_snapshot: bool


class PreparedRecall(msgspec.Struct, frozen=True):
    """An answer that may be given once its audit record is written."""

    answer: RecallAnswer
    record: AuditRecord


def answer_recall(
    context: InstructionContext,
    agent: Agent,
    instruction_set: InstructionSet,
    question: RecallQuery,
    *,
    caller: InstructionCaller,
    heartbeat_id: str | None,
    shadow: bool = False,
) -> RecallAnswer:
    """Raises InstructionError `recall_backend_unavailable`. A failed audit write does not fail the recall,
    unless the deployment requires records: then StoreError.

    With `shadow` all instructions are in the prompt anyway, and the recalled units are only recorded.
    """
    prepared = prepare_recall(
        context, agent, instruction_set, question, caller=caller, heartbeat_id=heartbeat_id, shadow=shadow
    )
    (answer,) = record_recalls(context, [prepared])
    if isinstance(answer, StoreError):
        raise answer
    return answer


def record_recalls(
    context: InstructionContext, recalls: Sequence[PreparedRecall]
) -> tuple[RecallAnswer | StoreError, ...]:
    """Write the audit records in one transaction; an answer has no token if its record could not be written, and is an
    error if the deployment requires records."""
    errors: tuple[StoreError | None, ...]
    try:
        errors = context.records.add_audits([recall.record for recall in recalls])
    except StoreError as error:
        errors = (error,) * len(recalls)
    for failure in filter(None, errors):
        context.warn(f"audit_write_failed: {type(failure).__name__}")
    return tuple(
        recall.answer
        if failure is None
        else failure
        if context.settings.audit_required
        else msgspec.structs.replace(recall.answer, audit_token="")
        for recall, failure in zip(recalls, errors, strict=True)
    )


def prepare_recall(
    context: InstructionContext,
    agent: Agent,
    instruction_set: InstructionSet,
    question: RecallQuery,
    *,
    caller: InstructionCaller,
    heartbeat_id: str | None,
    shadow: bool = False,
) -> PreparedRecall:
    """Choose the units and make the audit record, without writing it. Raises as `answer_recall` does."""
    now = context.now()
    heartbeat = context.records.heartbeat(agent.id, heartbeat_id) if heartbeat_id else None
    if heartbeat is not None and now - heartbeat.session_start > HEARTBEAT_AGE_MS_MAX:
        heartbeat = None
    if heartbeat is not None:
        # A heartbeat only adds its wake reason: the texts are those of now, because a unit that was withdrawn,
        # replaced or taken off the manifest must be gone for everyone at once (seed 003, 21.4.2).
        question = msgspec.structs.replace(question, task_type=heartbeat.wake_reason)
    recalled = instruction_set.recall(question)
    # Another replica's clock may be ahead, so a version can be active before it starts by our clock.
    as_of = max(now, instruction_set.active_since)
    # Retrieval reads no more than this, so the truncated intent is enough for a replay.
    intent = question.intent[:QUERY_CHARACTERS_MAX]
    record = AuditRecord(
        id=context.new_id("audevent"),
        agent_id=agent.id,
        heartbeat_id=heartbeat_id or context.new_id("run"),
        session_start=heartbeat.session_start if heartbeat is not None else now,
        intent=intent,
        loaded_chunks=tuple(
            LoadedUnit(chunk.name, content.version, content.source, rank, chunk.score, content.tokens)
            for rank, chunk in enumerate(recalled.chunks, start=1)
            for content in (chunk.content,)
        ),
        audit_token=context.new_id("audi"),
        created_at=now,
        event_type="shadow" if shadow else "recall",
        detail={
            "principal": caller.scope,
            "key_id": caller.key_id,
            "snapshot_id": instruction_set.snapshot_id,
            "manifest_version": instruction_set.manifest.version,
            "lifted": sorted(instruction_set.lifted),
            "as_of": as_of,
            "question": msgspec.to_builtins(msgspec.structs.replace(question, intent=intent)),
            **(msgspec.structs.asdict(measure_prompt_tokens(agent, instruction_set)) if shadow else {}),
        },
    )
    encoder_version = instruction_set.index.embedding_model_version
    answer = RecallAnswer(recalled, record.audit_token, instruction_set.snapshot_id, encoder_version)
    return PreparedRecall(answer, record)


def issue_audit_token(context: InstructionContext, record: AuditRecord) -> str:
    """Write the record and return its token; empty if that failed. Raises StoreError if records are required."""
    error = write_audit_record(context, record)
    if error is not None and context.settings.audit_required:
        raise error
    return "" if error else record.audit_token


def write_audit_record(context: InstructionContext, record: AuditRecord) -> StoreError | None:
    """The reason why the record could not be written, which is also logged."""
    try:
        context.records.add_audit(record)
    except StoreError as error:
        context.warn(f"audit_write_failed: {type(error).__name__}")
        return error
    return None


def close_audit_record(
    context: InstructionContext,
    token: str,
    caller: InstructionCaller,
    *,
    used: tuple[str, ...],
    missed: tuple[str, ...],
) -> None:
    """Close a record; the first close wins and later ones change nothing. Raises InstructionError."""
    if find_own_record(context, token, caller).audit_closed is None:
        context.records.close_audit(token, used=used, missed=missed, at=context.now())


def find_own_record(context: InstructionContext, token: str, caller: InstructionCaller) -> AuditRecord:
    """A record that the caller may report on: closed, or at most 24 hours old. Raises InstructionError."""
    record = context.records.audit(token)
    if record is None or not _is_owner(context, record, caller):
        # The same error for an unknown token and another agent's, so that tokens cannot be probed.
        raise InstructionError("audit_token_invalid", "there is no such audit token; the answer to a recall has one")
    if record.audit_closed is None and context.now() - record.created_at > AUDIT_TOKEN_AGE_MS_MAX:
        raise InstructionError("audit_token_expired", "this audit token is older than 24 hours")
    return record


def _is_owner(context: InstructionContext, record: AuditRecord, caller: InstructionCaller) -> bool:
    """Admins, the agent of the record, and the principal that made the recall; agents by id or shortname."""
    principal = InstructionCaller(str(record.detail.get("principal", "")), "")
    if caller.is_admin or caller.scope == principal.scope:
        return True
    if is_same_agent(caller, record.agent_id, context.records.agent(record.agent_id)):
        return True
    agent = context.records.agent(caller.agent_name) if caller.agent_name else None
    return agent is not None and is_same_agent(principal, agent.id, agent)


def replay_recall(context: InstructionContext, agent: Agent, record: AuditRecord) -> RecallReplay:
    """Run the recorded recall again on the state of that time."""
    as_of, encoded_question, lifted_names = (record.detail.get(name) for name in ("as_of", "question", "lifted"))
    if record.event_type not in ("recall", "shadow") or not isinstance(as_of, int):
        raise InstructionError("replay_not_possible", "only a recall can be replayed")
    question = msgspec.convert(encoded_question, RecallQuery)
    names = tuple(str(name) for name in lifted_names) if isinstance(lifted_names, list | tuple) else ()
    manifest = context.records.manifest_at(agent.id, as_of)
    if manifest is None:
        raise manifest_not_found_error(agent.id)
    instruction_set = context.instruction_sets.build(agent, manifest, at=as_of, lifted=names)
    loaded_now = tuple(chunk.name for chunk in instruction_set.recall(question).chunks)
    loaded_then = tuple(chunk.name for chunk in record.loaded_chunks)
    same_snapshot = instruction_set.snapshot_id == record.detail.get("snapshot_id")
    return RecallReplay(loaded_then, loaded_now, loaded_then == loaded_now, same_snapshot)


def render_recall(answered: RecallAnswer) -> str:
    recalled = answered.result
    parts = [f"# {chunk.name}\n\n{chunk.content.text}\n" for chunk in recalled.chunks]
    if not parts:
        parts.append("No instruction unit fits this intent.\n")
    unknown_hints = [f"There is no unit {name!a}.\n" for name in recalled.missed_hints]
    report = (f"When done, call submit_usage with audit_token {answered.audit_token}",) if answered.audit_token else ()
    return "\n".join((*parts, *unknown_hints, *report))


def render_standing_instructions(agent: Agent, manifest: Manifest, profile: str) -> str:
    """Stub and index; byte-identical while both are unchanged, so that the prompt prefix stays cached."""
    return f"{render_stub_body(agent, manifest, profile)}\n{render_prompt_index(manifest.body)}"


def render_all_instructions(agent: Agent, instruction_set: InstructionSet) -> str:
    """All rules and all texts in manifest order; byte-identical while they are unchanged."""
    rules = "".join(f"- {rule}\n" for rule in agent.always_rules)
    texts = (
        f"## {entry.name}\n\n{instruction_set.contents[entry.name].text.strip()}\n"
        for entry in instruction_set.manifest.body
        if entry.name in instruction_set.contents
    )
    return "\n".join(part for part in (rules, *texts) if part)


def manifest_digest(manifest: Manifest) -> str:
    """The digest by which a session pins the manifest it accepts."""
    return hashlib.sha256(msgspec.json.encode((manifest.fact_uri, manifest.body))).hexdigest()
