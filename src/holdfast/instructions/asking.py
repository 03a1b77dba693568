"""How a recall is answered and put on record, and how a record is asked again."""

import msgspec

from holdfast.errors import StoreError
from holdfast.instructions.callers import Caller, is_self
from holdfast.instructions.failures import InstructionError
from holdfast.instructions.library import Library, no_manifest
from holdfast.instructions.recall import Picked, Question, Recalled, Shelf, names_of
from holdfast.instructions.shadowing import weighed
from holdfast.instructions.values import Agent, AuditRecord, ChunkSource, Loaded
from holdfast.retrieval.index import QUERY_CHARACTERS_MAX

TOKEN_MS_MAX = 24 * 3_600_000


class Answered(msgspec.Struct, frozen=True):
    recalled: Recalled
    audit_token: str
    snapshot_id: str
    embedding_model_version: str

    @property
    def names(self) -> tuple[str, ...]:
        return names_of(self.recalled.chunks)


class Replayed(msgspec.Struct, frozen=True):
    """`same_snapshot`: the texts, the model and the lifts are those of then."""

    loaded_then: tuple[str, ...]
    loaded_now: tuple[str, ...]
    same_order: bool
    same_snapshot: bool


def ask(
    library: Library,
    agent: Agent,
    shelf: Shelf,
    question: Question,
    *,
    caller: Caller,
    heartbeat_id: str | None,
    shadow: bool = False,
) -> Answered:
    """Raises InstructionError `recall_backend_unavailable`. A record that cannot be written blocks nothing.

    `shadow`: all instructions are in force meanwhile, and nobody is handed what is recalled.
    """
    now = library.now()
    begun = library.records.heartbeat(agent.id, heartbeat_id) if heartbeat_id else None
    start = begun.session_start if begun else None
    if begun is not None and start is not None:
        question = msgspec.structs.replace(question, task_type=begun.wake_reason)
        # A heartbeat sees what held when it began, however long it takes.
        shelf = shelf_at(library, agent, start, lifted=tuple(shelf.lifted), otherwise=shelf)
    recalled = shelf.recall(question)
    # What is told may have begun by a clock that is ahead of ours.
    as_of = start if start is not None else max(now, shelf.since)
    token = library.new_id("audi")
    # No more of it is read to find anything, and so the record says all that a replay needs.
    intent = question.intent[:QUERY_CHARACTERS_MAX]
    record = AuditRecord(
        id=library.new_id("audevent"),
        agent_id=agent.id,
        heartbeat_id=heartbeat_id or library.new_id("run"),
        session_start=start if start is not None else now,
        intent=intent,
        loaded_chunks=loaded(recalled.chunks),
        audit_token=token,
        created_at=now,
        event_type="shadow" if shadow else "recall",
        detail={
            "principal": caller.scope,
            "key_id": caller.key_id,
            "snapshot_id": shelf.snapshot_id,
            "manifest_version": shelf.manifest.version,
            "lifted": sorted(shelf.lifted),
            "as_of": as_of,
            "question": msgspec.to_builtins(msgspec.structs.replace(question, intent=intent)),
            **(msgspec.structs.asdict(weighed(agent, shelf)) if shadow else {}),
        },
    )
    put_on_record(library, record)
    return Answered(recalled, token, shelf.snapshot_id, shelf.index.embedding_model_version)


def put_on_record(library: Library, record: AuditRecord) -> None:
    try:
        library.records.add_audit(record)
    except StoreError as error:
        library.warn(f"audit_write_failed: {type(error).__name__}")


def shelf_at(library: Library, agent: Agent, at: int, *, lifted: tuple[str, ...], otherwise: Shelf | None) -> Shelf:
    manifest = library.records.manifest_at(agent.id, at)
    if manifest is None:
        if otherwise is None:
            raise no_manifest(agent.id)
        return otherwise
    made = library.shelves.made(agent, manifest, at=at, lifted=lifted)
    # What was found ready is as good, if it is the same.
    return otherwise if otherwise is not None and otherwise.snapshot_id == made.snapshot_id else made


def loaded(chunks: tuple[Picked, ...], source: ChunkSource | None = None) -> tuple[Loaded, ...]:
    return tuple(
        Loaded(one.name, one.content.version, source or one.content.source, rank, one.score, one.content.tokens)
        for rank, one in enumerate(chunks, start=1)
    )


def close(library: Library, token: str, caller: Caller, *, used: tuple[str, ...], missed: tuple[str, ...]) -> None:
    """The first to close a record does so; whoever comes later changes nothing. Raises InstructionError."""
    if own_record(library, token, caller).audit_closed is None:
        library.records.close_audit(token, used=used, missed=missed, at=library.now())


def own_record(library: Library, token: str, caller: Caller) -> AuditRecord:
    """A record that the caller may say something of: closed, or young. Raises InstructionError."""
    record = library.records.audit(token)
    if record is None or not _is_owner(library, record, caller):
        raise InstructionError("audit_token_invalid", "there is no such audit token")
    if record.audit_closed is None and library.now() - record.created_at > TOKEN_MS_MAX:
        raise InstructionError("audit_token_expired", "this audit token is older than 24 hours")
    return record


def _is_owner(library: Library, record: AuditRecord, caller: Caller) -> bool:
    """Admins, the agent whose record it is, and whoever asked for it; agents under either of their names."""
    asker = Caller(str(record.detail.get("principal", "")), "")
    if caller.is_admin or caller.scope == asker.scope:
        return True
    if is_self(caller, record.agent_id, library.records.agent(record.agent_id)):
        return True
    known = library.records.agent(caller.agent_name) if caller.agent_name else None
    return known is not None and is_self(asker, known.id, known)


def replay(library: Library, agent: Agent, record: AuditRecord) -> Replayed:
    """Ask what was asked, of what there was then."""
    as_of, told, lifted = (record.detail.get(name) for name in ("as_of", "question", "lifted"))
    if record.event_type not in ("recall", "shadow") or not isinstance(as_of, int):
        raise InstructionError("replay_not_possible", "only a recall can be asked again")
    question = msgspec.convert(told, Question)
    names = tuple(str(name) for name in lifted) if isinstance(lifted, list | tuple) else ()
    shelf = shelf_at(library, agent, as_of, lifted=names, otherwise=None)
    now = names_of(shelf.recall(question).chunks)
    then = tuple(one.name for one in record.loaded_chunks)
    return Replayed(then, now, then == now, shelf.snapshot_id == record.detail.get("snapshot_id"))
