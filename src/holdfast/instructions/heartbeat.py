"""What an agent gets when it is woken: its stub, and the units that its wake reason requires."""

from collections.abc import Mapping

import msgspec

from holdfast.instructions.asking import put_on_record
from holdfast.instructions.callers import Caller
from holdfast.instructions.failures import InstructionError
from holdfast.instructions.library import Library, no_manifest
from holdfast.instructions.recall import Content
from holdfast.instructions.stub import known_profile, render_stub, stub_key
from holdfast.instructions.values import WAKE_INTENT, Agent, AuditRecord, EventType, Loaded, Manifest, Stub
from holdfast.instructions.wake import Wake, read_wake

BUDGET_TOKENS_WARN = 2000


class Preloaded(msgspec.Struct, frozen=True):
    name: str
    content: Content


class Warned(msgspec.Struct, frozen=True):
    code: str
    message: str
    unit: str | None = None


class Heartbeat(msgspec.Struct, frozen=True):
    heartbeat_id: str
    session_start: int
    stub: Stub
    preloads: tuple[Preloaded, ...]
    warnings: tuple[Warned, ...]
    total_tokens: int
    audit_token: str


def boot_stub(library: Library, said: str, agent: Agent | None, profile: str) -> Stub:
    """The kept one, or a new one; the same bytes on every replica. Raises InstructionError `boot_stub_not_found`."""
    manifest = library.records.manifest(agent.id) if agent else None
    if agent is None or manifest is None:
        raise InstructionError("boot_stub_not_found", f"agent {said[:80]!a} has no boot stub: it has no manifest")
    profile = known_profile(profile)
    key = stub_key(agent, manifest, profile)
    kept = library.records.stub(agent.id, profile)
    if kept is None or kept.cache_key != key:
        made = render_stub(agent, manifest, profile, at=library.now())
        library.records.keep_stub(made)
        # Another replica may have been faster, and its time is the one that is told.
        kept = library.records.stub(agent.id, profile)
        kept = kept if kept is not None and kept.cache_key == key else made
    return kept


def wake(
    library: Library, said: str, agent: Agent | None, token: str | None, *, caller: Caller, profile: str
) -> Heartbeat:
    """Raises InstructionError; a guaranteed unit that is not there ends the heartbeat before it begins."""
    woken = _verified(library, said, agent, token)
    if agent is None:
        raise no_manifest(said)
    if woken.wake_reason not in library.settings.wake_reasons:
        raise InstructionError("task_type_unknown", "the wake reason is none of this deployment")
    now = library.now()
    if not library.records.use_wake(woken.jti, expires_at=int(woken.exp * 1000) + 60_000, at=now):
        raise InstructionError("wake_token_used", "this wake token was used before")
    agent, shelf = library.shelf(said, agent)
    # Recalls of this heartbeat see what held when it began: what it is told now belongs to that.
    now = max(now, shelf.since)
    stub = boot_stub(library, said, agent, profile)
    preloads, warnings = _preloads(shelf.manifest, shelf.contents, woken.wake_reason)
    total = stub.token_count + sum(one.content.tokens for one in preloads)
    if total > BUDGET_TOKENS_WARN:
        warnings.append(
            Warned("preload_budget_warning", f"stub and preloads have {total} tokens, over {BUDGET_TOKENS_WARN}")
        )
    fatal = _fatal(shelf.manifest, warnings)
    token_out = library.new_id("audi")
    kind: EventType = "preload_error" if fatal else "preload"
    record = _record(
        library, agent, woken, caller, preloads=preloads, warnings=warnings, kind=kind, token=token_out, at=now
    )
    put_on_record(library, record)
    if fatal is not None:
        raise InstructionError(
            "preload_unit_unavailable",
            f"the guaranteed unit {fatal[:80]!a} is not available; the heartbeat is not begun",
            details={"unit": fatal},
        )
    return Heartbeat(woken.heartbeat_id, now, stub, tuple(preloads), tuple(warnings), total, token_out)


def _verified(library: Library, said: str, agent: Agent | None, token: str | None) -> Wake:
    trust = library.settings.wake
    if trust is None:
        raise InstructionError("wake_token_invalid", "no issuer of wake tokens is configured")
    if not token:
        raise InstructionError("wake_token_required", "a heartbeat needs the signed wake_token of its trigger")
    woken = read_wake(token, trust, now=library.now() / 1000)
    if woken.sub not in ({said} if agent is None else {agent.id}):
        raise InstructionError("wake_token_invalid", "the wake token is refused: it wakes another agent")
    return woken


def _preloads(manifest: Manifest, contents: Mapping[str, Content], reason: str) -> tuple[list[Preloaded], list[Warned]]:
    found: list[Preloaded] = []
    warnings: list[Warned] = []
    for entry in manifest.body:
        if reason not in entry.required_by_task_types:
            continue
        content = contents.get(entry.name)
        if content is None:
            message = f"unit {entry.name[:80]!a} cannot be had now"
            warnings.append(Warned("preload_unit_unavailable", message, entry.name))
        else:
            found.append(Preloaded(entry.name, content))
    return found, warnings


def _fatal(manifest: Manifest, warnings: list[Warned]) -> str | None:
    guaranteed = {entry.name for entry in manifest.body if entry.guarantee_load}
    return next((one.unit for one in warnings if one.unit in guaranteed), None)


def _record(
    library: Library,
    agent: Agent,
    woken: Wake,
    caller: Caller,
    *,
    preloads: list[Preloaded],
    warnings: list[Warned],
    kind: EventType,
    token: str,
    at: int,
) -> AuditRecord:
    loaded = tuple(
        Loaded(
            one.name,
            one.content.version,
            "task_type_preload" if one.content.source == "stigmem" else one.content.source,
            rank,
            1.0,
            one.content.tokens,
        )
        for rank, one in enumerate(preloads, start=1)
    )
    return AuditRecord(
        id=library.new_id("audevent"),
        agent_id=agent.id,
        heartbeat_id=woken.heartbeat_id,
        session_start=at,
        intent=f"{WAKE_INTENT}{woken.wake_reason}",
        loaded_chunks=loaded,
        audit_token=token,
        created_at=at,
        event_type=kind,
        detail={
            "principal": caller.scope,
            "jti": woken.jti,
            "warnings": [{"code": one.code, "unit": one.unit, "message": one.message} for one in warnings],
        },
    )
