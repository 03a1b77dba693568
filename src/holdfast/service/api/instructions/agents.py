"""HTTP routes for instructions: agents, units, manifests, boot stubs, recall, heartbeats and audits."""

import functools
from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from holdfast.errors import InstructionError, StoreError, UserError
from holdfast.instructions.access import (
    FindAgent,
    InstructionCaller,
    access_denied_error,
    check_instruction_access,
    check_owner_access,
    check_recall_access,
)
from holdfast.instructions.context import InstructionContext, make_agent
from holdfast.instructions.manifest.publish import PublicationRequest, publish_manifest
from holdfast.instructions.manifest.validate import ManifestDraft
from holdfast.instructions.models import Agent, ManifestEntry, UnitCoverage, format_optional_time, format_time
from holdfast.instructions.recall.answer import (
    PreparedRecall,
    RecallAnswer,
    close_audit_record,
    prepare_recall,
    record_recalls,
)
from holdfast.instructions.recall.boot_stub import BODY_TOKENS_WARN, check_stub_size, with_published_contract
from holdfast.instructions.recall.heartbeat import PreloadedUnit, load_boot_stub, start_heartbeat
from holdfast.instructions.recall.selection import RecallQuery, SelectedChunk
from holdfast.instructions.units.write import SubmittedUnit, withdraw_unit, write_unit
from holdfast.instructions.uri import garden_id
from holdfast.instructions.usage.detect import record_trace_usage
from holdfast.instructions.usage.trace import check_trace_size
from holdfast.retrieval.index import StageWeights
from holdfast.service.api.instructions import deployments, reviews, schemas
from holdfast.service.api.instructions.routing import RETRY, instruction_route
from holdfast.service.http.routes import Route, RouteResponse, copy_fields

MARKDOWN = "text/markdown; charset=utf-8"
_encode = msgspec.json.Encoder().encode
_AGENT = "/v1/agents/{agent_id}"


def put_agent(
    context: InstructionContext, caller: InstructionCaller, request: schemas.AgentSettings
) -> schemas.AgentSettingsResponse:
    """Register an agent, or change the settings that are sent: role, supervisors, always-rules."""
    agent = context.records.agent(request.agent_id) or make_agent(context, request.agent_id)
    if isinstance(request.shortname, str):
        # Only to validate the name.
        make_agent(context, request.shortname)
    sent = ((name, value) for name, value in msgspec.structs.asdict(request).items() if name != "agent_id")
    agent = msgspec.structs.replace(agent, **{name: value for name, value in sent if value is not UNSET})
    tokens = check_stub_size(agent, context.records.manifest(agent.id))
    if not context.records.put_agent(agent):
        raise InstructionError("shortname_taken", "another agent already has this shortname")
    warnings = (
        (f"the boot stub has {tokens} tokens, more than {BODY_TOKENS_WARN}",) if tokens > BODY_TOKENS_WARN else ()
    )
    return _agent_view(context, agent, warnings)


def get_agent(
    context: InstructionContext, caller: InstructionCaller, request: schemas.AgentRequest
) -> schemas.AgentSettingsResponse:
    """The settings of an agent."""
    agent = context.records.agent(request.agent_id)
    check_owner_access(caller, request.agent_id, agent)
    if agent is None:
        raise InstructionError("agent_not_found", f"there is no agent {request.agent_id[:80]!a}")
    return _agent_view(context, agent, ())


def _agent_view(context: InstructionContext, agent: Agent, warnings: tuple[str, ...]) -> schemas.AgentSettingsResponse:
    named = agent.heartbeat_contract or with_published_contract(context.records, agent).heartbeat_contract
    return copy_fields(
        schemas.AgentSettingsResponse, agent, agent_id=agent.id, heartbeat_contract=named, warnings=warnings
    )


def put_unit(context: InstructionContext, caller: InstructionCaller, request: schemas.UnitRequest) -> RouteResponse:
    """Write a new version of a unit; versions are immutable."""
    written = write_unit(context, copy_fields(SubmittedUnit, request), caller)
    coverage = _coverage_line(written.coverage) if written.coverage else None
    view = copy_fields(schemas.UnitResponse, written, coverage=coverage, measured_for=written.measured_agents)
    # Writing the same version with the same content again is allowed, so that clients can retry.
    return RouteResponse(_encode(view), status=201 if written.is_new else 200)


def withdraw(
    context: InstructionContext, caller: InstructionCaller, request: schemas.UnitAddressRequest
) -> schemas.WithdrawnUnit:
    """Withdraw a unit version: nobody receives it from now on."""
    unit = withdraw_unit(context, request.fact_uri)
    return schemas.WithdrawnUnit(unit.uri, unit.status)


def get_stub(context: InstructionContext, caller: InstructionCaller, request: schemas.BootStubRequest) -> RouteResponse:
    """The agent's boot stub."""
    agent = context.records.agent(request.agent_id)
    check_owner_access(caller, request.agent_id, agent)
    stub = load_boot_stub(context, request.agent_id, agent, request.profile)
    headers = {
        "x-stub-version": str(stub.stub_version),
        "x-manifest-version": stub.manifest_version,
        "x-token-count": str(stub.token_count),
        "x-body-token-count": str(stub.body_token_count),
    }
    return RouteResponse(stub.body.encode(), MARKDOWN, headers=headers)


def get_manifest(
    context: InstructionContext, caller: InstructionCaller, request: schemas.AgentRequest
) -> schemas.ManifestResponse:
    """The agent's manifest: the units it can load."""
    agent = context.records.agent(request.agent_id)
    check_owner_access(caller, request.agent_id, agent)
    agent, instruction_set = context.require_instruction_set(request.agent_id, agent)
    manifest = instruction_set.manifest
    return schemas.ManifestResponse(
        manifest.version,
        manifest.fact_uri,
        manifest.token_count,
        tuple(map(_entry_view, manifest.body)),
        format_time(manifest.created_at),
        instruction_set.index.embedding_model_version,
        manifest.migration_mode,
    )


def put_manifest(
    context: InstructionContext, caller: InstructionCaller, request: schemas.ManifestRequest
) -> schemas.PublishResponse:
    """Publish a manifest if it passes all checks."""
    draft = ManifestDraft(request.version, request.entries, request.migration_mode)
    publication = PublicationRequest(
        agent_id=request.agent_id,
        draft=draft,
        skip_coverage_gate=request.skip_coverage_gate,
        approvals=request.approvals,
    )
    published = publish_manifest(context, publication, caller)
    lines = tuple(_coverage_line(unit, skipped=published.gate_skipped) for unit in published.coverage)
    return schemas.PublishResponse(
        published.manifest.fact_uri, published.manifest.token_count, lines, published.warnings
    )


def recall_instruction(
    context: InstructionContext, caller: InstructionCaller, request: schemas.RecallRequest
) -> schemas.RecallResponse:
    """Recall the units that match an intent."""
    (response,) = recall_for_all(context, [(caller, request)])
    if isinstance(response, Exception):
        raise response
    return response


def recall_for_all(
    context: InstructionContext, calls: Sequence[tuple[InstructionCaller, schemas.RecallRequest]]
) -> list[schemas.RecallResponse | Exception]:
    """Answer recalls together: each agent is read once, and the audit records are one transaction."""
    find = functools.cache(context.records.agent)
    prepared = [_try_to_prepare(context, find, caller, request) for caller, request in calls]
    recalls = [recall for recall in prepared if isinstance(recall, PreparedRecall)]
    answers = iter(record_recalls(context, recalls) if recalls else ())
    settled = [next(answers) if isinstance(recall, PreparedRecall) else recall for recall in prepared]
    return [
        _make_unavailable_error()
        if isinstance(answer, StoreError)
        else answer
        if isinstance(answer, Exception)
        else _recall_view(answer, explain=request.explain, caller=caller)
        for answer, (caller, request) in zip(settled, calls, strict=True)
    ]


def _try_to_prepare(
    context: InstructionContext, find: FindAgent, caller: InstructionCaller, request: schemas.RecallRequest
) -> PreparedRecall | Exception:
    question = RecallQuery(
        intent=request.intent,
        max_chunks=request.max_chunks,
        token_budget=request.token_budget,
        manifest_hint=request.manifest_hint,
        use_floor=context.settings.use_floor if request.floor is None else request.floor,
    )
    try:
        return _prepare(
            context,
            find,
            caller,
            agent_id=request.agent_id,
            question=question,
            heartbeat_id=request.heartbeat_id,
            shadow=request.shadow,
        )
    except Exception as error:  # noqa: BLE001 - raised for the caller of this recall, and for no other
        return error


def recall_scope(
    context: InstructionContext, caller: InstructionCaller, request: schemas.ScopeRecallRequest
) -> schemas.RecallResponse:
    """Recall by scope, with optional weights."""
    check_instruction_access(caller)
    scheme, _, rest = request.scope.partition(":")
    parts = rest.split("/")
    # Both instruction:{deployment}/{agent} and instruction:{deployment}/agent/{agent} are in use.
    if len(parts) == 3 and parts[1] == "agent":
        del parts[1]
    if scheme != "instruction" or len(parts) != 2 or not all(parts):
        raise InstructionError("invalid_scope", "the scope must look like instruction:{deployment}/{agent}")
    deployment, agent_id = parts
    agent = context.records.agent(agent_id)
    check_recall_access(caller, agent_id, agent, context.records.agent)
    gardens = {garden_id(context.settings.deployment, name) for name in (agent_id, agent.id if agent else agent_id)}
    if deployment != context.settings.deployment or not gardens.issuperset(request.require_garden_ids):
        raise access_denied_error()
    question = RecallQuery(
        intent=request.intent if request.intent is not None else request.query or "",
        max_chunks=request.max_facts,
        token_budget=request.token_budget,
        use_floor=context.settings.use_floor if request.floor is None else request.floor,
        weights=_weights(request.weights),
    )
    prepared = _prepare(context, context.records.agent, caller, agent_id=agent_id, question=question)
    (answer,) = record_recalls(context, [prepared])
    if isinstance(answer, StoreError):
        raise _make_unavailable_error() from answer
    return _recall_view(answer, explain=request.explain, caller=caller)


def _prepare(
    context: InstructionContext,
    find: FindAgent,
    caller: InstructionCaller,
    *,
    agent_id: str,
    question: RecallQuery,
    heartbeat_id: str | None = None,
    shadow: bool = False,
) -> PreparedRecall:
    try:
        agent = find(agent_id)
        check_recall_access(caller, agent_id, agent, find)
        if not question.intent.strip():
            raise InstructionError("intent_required", "say in `intent` what you are about to do")
        agent, instruction_set = context.require_instruction_set(agent_id, agent)
        return prepare_recall(
            context, agent, instruction_set, question, caller=caller, heartbeat_id=heartbeat_id, shadow=shadow
        )
    except StoreError as error:
        raise _make_unavailable_error() from error


def _make_unavailable_error() -> InstructionError:
    return InstructionError(RETRY, "the store is unavailable; try again")


def begin_heartbeat(
    context: InstructionContext, caller: InstructionCaller, request: schemas.HeartbeatRequest
) -> schemas.HeartbeatResponse:
    """Begin a heartbeat with the signed wake token of its trigger."""
    agent = context.records.agent(request.agent_id)
    check_owner_access(caller, request.agent_id, agent)
    heartbeat = start_heartbeat(
        context, request.agent_id, agent, request.wake_token, caller=caller, profile=request.profile
    )
    return copy_fields(
        schemas.HeartbeatResponse,
        heartbeat,
        session_start=format_time(heartbeat.session_start),
        stub=heartbeat.stub.body,
        preloads=tuple(map(_preload_row, heartbeat.preloads)),
        warnings=tuple(copy_fields(schemas.HeartbeatWarning, warning) for warning in heartbeat.warnings),
    )


def _preload_row(preload: PreloadedUnit) -> schemas.PreloadRow:
    content = preload.content
    source = "task_type_preload" if content.source == "stigmem" else content.source
    return copy_fields(schemas.PreloadRow, content, name=preload.name, content=content.text, source=source)


def close_audit(
    context: InstructionContext, caller: InstructionCaller, request: schemas.CloseAuditRequest
) -> RouteResponse:
    """Report which loaded units were used and which were missed, or send a trace."""
    check_instruction_access(caller)
    trace = request.trace or ()
    # Check what could be refused before anything is written.
    check_trace_size(trace)
    used, missed = request.used_chunks, request.missed_chunks
    if request.trace is UNSET or used is not UNSET or missed is not UNSET:
        close_audit_record(context, request.audit_token, caller, used=used or (), missed=missed or ())
    if request.trace is not UNSET:
        record_trace_usage(context, request.audit_token, caller, trace)
    return RouteResponse(b"", status=204)


def _weights(weighting: schemas.RecallWeights | None) -> StageWeights:
    if weighting is None:
        return StageWeights()
    semantic = weighting.semantic if weighting.semantic is not None else weighting.vector
    try:
        return StageWeights(weighting.lexical, semantic or 0.0, weighting.graph)
    except UserError as error:
        raise InstructionError("invalid_weights", str(error)) from error


def _coverage_line(unit: UnitCoverage, *, skipped: bool = False) -> schemas.CoverageReportRow:
    return copy_fields(
        schemas.CoverageReportRow,
        unit,
        skipped=skipped,
        failures=tuple({"query": failure.query, "found_instead": failure.found_instead} for failure in unit.failures),
    )


def _entry_view(entry: ManifestEntry) -> dict[str, object]:
    """All fields of the contract, including those the author omitted."""
    fields = msgspec.structs.asdict(entry) | {"load_triggers": msgspec.structs.asdict(entry.load_triggers)}
    return {name: value for name, value in fields.items() if name != "force_position" or value}


def _recall_view(response: RecallAnswer, *, explain: bool, caller: InstructionCaller) -> schemas.RecallResponse:
    recalled = response.result
    dropped = tuple(schemas.DroppedUnit(unit.name, unit.reason, unit.score) for unit in recalled.dropped)
    return copy_fields(
        schemas.RecallResponse,
        recalled,
        chunks=tuple(_chunk(picked, explain=explain, caller=caller) for picked in recalled.chunks),
        audit_token=response.audit_token,
        snapshot_id=response.snapshot_id,
        embedding_model_version=response.embedding_model_version,
        dropped=dropped if explain else None,
    )


def _chunk(picked: SelectedChunk, *, explain: bool, caller: InstructionCaller) -> schemas.RecallChunk:
    why = picked.why
    explanation = None
    if explain and why is not None:
        stages = tuple(schemas.StageScore(stage.stage, stage.score, stage.contribution) for stage in why.stages)
        lifted = why.is_lifted if caller.is_admin else None
        explanation = schemas.RecallExplanation(
            picked.kind, why.relevance, stages, why.matched_terms, why.links, lifted, why.fits_task_type
        )
    content = picked.content
    return copy_fields(
        schemas.RecallChunk,
        content,
        name=picked.name,
        content=content.text,
        valid_until=format_optional_time(content.valid_until),
        score=picked.score,
        why=explanation,
    )


ROUTES: tuple[Route, ...] = (
    instruction_route("PUT", _AGENT, put_agent, rule="admin", error_statuses=(409,)),
    instruction_route("GET", _AGENT, get_agent),
    instruction_route(
        "PUT",
        "/v1/instruction/units",
        put_unit,
        reply=schemas.UnitResponse,
        rule="admin",
        error_statuses=(409,),
        success_statuses=(200, 201),
    ),
    instruction_route("POST", "/v1/instruction/units/withdraw", withdraw, rule="admin"),
    instruction_route("GET", f"{_AGENT}/boot-stub", get_stub, content_type=MARKDOWN),
    instruction_route("GET", f"{_AGENT}/instruction-manifest", get_manifest),
    instruction_route(
        "PUT",
        f"{_AGENT}/instruction-manifest",
        put_manifest,
        rule="admin",
        field_error_code=lambda field: "manifest_entry_invalid",
        error_statuses=(409,),
    ),
    instruction_route(
        "POST",
        f"{_AGENT}/recall-instruction",
        recall_instruction,
        run_all=recall_for_all,
        check_access=check_recall_access,
        retry_code=RETRY,
        field_error_code=lambda field: "intent_required" if field == "intent" else "invalid_body",
        error_statuses=(503,),
    ),
    instruction_route(
        "POST",
        "/v1/recall",
        recall_scope,
        check_access=check_instruction_access,
        retry_code=RETRY,
        field_error_code=lambda field: {"intent": "intent_required", "scope": "invalid_scope"}.get(
            field, "invalid_body"
        ),
        error_statuses=(503,),
    ),
    instruction_route(
        "POST",
        "/v1/instruction/audit",
        close_audit,
        check_access=check_instruction_access,
        field_error_code=lambda field: "audit_token_invalid" if field in ("audit_token", "") else "invalid_body",
        success_statuses=(204,),
    ),
    instruction_route(
        "POST",
        f"{_AGENT}/heartbeat",
        begin_heartbeat,
        field_error_code=lambda field: "wake_token_required",
        error_statuses=(409, 503),
    ),
    *reviews.ROUTES,
    *deployments.ROUTES,
)
