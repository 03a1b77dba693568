"""Start a heartbeat: verify the wake token, then return the boot stub and the units that the wake reason requires."""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.errors import InstructionError
from holdfast.instructions.access import InstructionCaller
from holdfast.instructions.context import InstructionContext, manifest_not_found_error
from holdfast.instructions.models import WAKE_INTENT_PREFIX, Agent, AuditRecord, BootStub, LoadedUnit, Manifest
from holdfast.instructions.recall.answer import issue_audit_token
from holdfast.instructions.recall.boot_stub import (
    normalize_profile,
    render_stub,
    stub_cache_key,
    with_published_contract,
)
from holdfast.instructions.recall.selection import UnitContent
from holdfast.instructions.recall.wake_token import WakeClaims, verify_wake_token

BUDGET_TOKENS_WARN = 2000


class PreloadedUnit(msgspec.Struct, frozen=True):
    name: str
    content: UnitContent


class PreloadWarning(msgspec.Struct, frozen=True):
    code: str
    message: str
    unit: str | None = None


class Heartbeat(msgspec.Struct, frozen=True):
    heartbeat_id: str
    session_start: int
    stub: BootStub
    preloads: tuple[PreloadedUnit, ...]
    warnings: tuple[PreloadWarning, ...]
    total_tokens: int
    audit_token: str


def load_boot_stub(context: InstructionContext, agent_name: str, agent: Agent | None, profile: str) -> BootStub:
    """The stored stub, or a newly rendered one; the same bytes on every replica.

    Raises InstructionError `boot_stub_not_found`.
    """
    manifest = context.records.manifest(agent.id) if agent else None
    if agent is None or manifest is None:
        raise InstructionError("boot_stub_not_found", f"agent {agent_name[:80]!a} has no boot stub: it has no manifest")
    profile = normalize_profile(profile)
    agent = with_published_contract(context.records, agent)
    key = stub_cache_key(agent, manifest, profile)
    stub = context.records.stub(agent.id, profile)
    if stub is None or stub.cache_key != key:
        rendered = render_stub(agent, manifest, profile, at=context.now())
        context.records.save_stub(rendered)
        # Another replica may have stored its stub first; its generated_at wins, so that all replicas serve equal bytes.
        stub = context.records.stub(agent.id, profile)
        stub = stub if stub is not None and stub.cache_key == key else rendered
    return stub


def start_heartbeat(
    context: InstructionContext,
    agent_name: str,
    agent: Agent | None,
    token: str | None,
    *,
    caller: InstructionCaller,
    profile: str,
) -> Heartbeat:
    """Raises InstructionError, also if a guaranteed unit is unavailable: then the heartbeat must not start."""
    claims = _verify_wake_token(context, agent_name, agent, token)
    if agent is None:
        raise manifest_not_found_error(agent_name)
    if claims.wake_reason not in context.settings.wake_reasons:
        raise InstructionError("task_type_unknown", "this deployment does not know the wake reason")
    now = context.now()
    # Consumed only after the checks above, so that a request that they refuse does not use up its token.
    if not context.records.consume_wake_token(claims.jti, expires_at=int(claims.exp * 1000) + 60_000, at=now):
        raise InstructionError("wake_token_used", "this wake token was used before")
    agent, instruction_set = context.require_instruction_set(agent_name, agent)
    # A replay of this heartbeat uses the state at its start time, which must include the units returned here.
    now = max(now, instruction_set.active_since)
    stub = load_boot_stub(context, agent_name, agent, profile)
    preloads, warnings = _preloads(instruction_set.manifest, instruction_set.contents, claims.wake_reason)
    total = stub.token_count + sum(preload.content.tokens for preload in preloads)
    if total > BUDGET_TOKENS_WARN:
        message = f"stub and preloads have {total} tokens, over {BUDGET_TOKENS_WARN}"
        warnings.append(PreloadWarning("preload_budget_warning", message))
    guaranteed = {entry.name for entry in instruction_set.manifest.body if entry.guarantee_load}
    fatal = next((warning.unit for warning in warnings if warning.unit in guaranteed), None)
    record = AuditRecord(
        id=context.new_id("audevent"),
        agent_id=agent.id,
        heartbeat_id=claims.heartbeat_id,
        session_start=now,
        intent=f"{WAKE_INTENT_PREFIX}{claims.wake_reason}",
        loaded_chunks=_loaded_units(preloads),
        audit_token=context.new_id("audi"),
        created_at=now,
        event_type="preload_error" if fatal else "preload",
        detail={"principal": caller.scope, "jti": claims.jti, "warnings": list(map(msgspec.structs.asdict, warnings))},
    )
    audit_token = issue_audit_token(context, record)
    if fatal is not None:
        raise InstructionError(
            "preload_unit_unavailable",
            f"the guaranteed unit {fatal[:80]!a} is unavailable; the heartbeat was not started",
            details={"unit": fatal},
        )
    return Heartbeat(claims.heartbeat_id, now, stub, tuple(preloads), tuple(warnings), total, audit_token)


def _verify_wake_token(
    context: InstructionContext, agent_name: str, agent: Agent | None, token: str | None
) -> WakeClaims:
    trust = context.settings.wake
    if trust is None:
        raise InstructionError("wake_token_invalid", "no issuer of wake tokens is configured")
    if not token:
        raise InstructionError("wake_token_required", "a heartbeat requires the signed wake_token of its trigger")
    claims = verify_wake_token(token, trust, now=context.now() / 1000)
    if claims.sub not in ({agent_name} if agent is None else {agent.id}):
        raise InstructionError("wake_token_invalid", "the wake token is refused: it is for another agent")
    return claims


def _preloads(
    manifest: Manifest, contents: Mapping[str, UnitContent], reason: str
) -> tuple[list[PreloadedUnit], list[PreloadWarning]]:
    preloads: list[PreloadedUnit] = []
    warnings: list[PreloadWarning] = []
    for entry in manifest.body:
        if reason not in entry.required_by_task_types:
            continue
        content = contents.get(entry.name)
        if content is None:
            message = f"unit {entry.name[:80]!a} is unavailable"
            warnings.append(PreloadWarning("preload_unit_unavailable", message, entry.name))
        else:
            preloads.append(PreloadedUnit(entry.name, content))
    return preloads, warnings


def _loaded_units(preloads: Sequence[PreloadedUnit]) -> tuple[LoadedUnit, ...]:
    loaded = []
    for rank, preload in enumerate(preloads, start=1):
        content = preload.content
        source = "task_type_preload" if content.source == "stigmem" else content.source
        loaded.append(LoadedUnit(preload.name, content.version, source, rank, 1.0, content.tokens))
    return tuple(loaded)
