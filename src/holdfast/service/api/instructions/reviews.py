"""HTTP routes to administer instructions: coverage, approvals, signers, audit records, measures and probes."""

import msgspec

from holdfast.errors import InstructionError
from holdfast.instructions.access import InstructionCaller, check_owner_access
from holdfast.instructions.context import InstructionContext, make_agent, manifest_not_found_error
from holdfast.instructions.coverage.measure import classify_coverage, run_probes
from holdfast.instructions.coverage.metrics import RecallMetrics, compute_recall_metrics
from holdfast.instructions.coverage.schedule import measure_coverage, recertify
from holdfast.instructions.manifest.approvals import record_approvals
from holdfast.instructions.manifest.publish import name_approved_version, select_valid_approvals
from holdfast.instructions.manifest.validate import SubmittedApproval
from holdfast.instructions.models import (
    Agent,
    Approval,
    AuditRecord,
    CoverageRun,
    Probe,
    Signer,
    format_optional_time,
    format_time,
)
from holdfast.instructions.recall.answer import RecallReplay, replay_recall
from holdfast.instructions.units.signatures import KEY_BYTES, decode_base64url, encode_base64url
from holdfast.instructions.usage.shadow import make_shadow_report
from holdfast.service.api.instructions import schemas
from holdfast.service.api.instructions.routing import instruction_route
from holdfast.service.http.routes import EmptyRequest, Route, RouteResponse, copy_fields

DAY_MS = 86_400_000
_AGENT = "/v1/agents/{agent_id}"


def get_coverage(
    context: InstructionContext, caller: InstructionCaller, request: schemas.AgentRequest
) -> schemas.CoverageResponse:
    """Coverage: how well the units are found with paraphrased queries."""
    agent = context.records.agent(request.agent_id)
    check_owner_access(caller, request.agent_id, agent)
    if agent is None or context.records.manifest(agent.id) is None:
        raise manifest_not_found_error(request.agent_id)
    run = context.records.coverage(agent.id)
    if run is None:
        raise InstructionError("coverage_not_found", "coverage has not been measured yet")
    return _coverage_view(run, caller)


def run_coverage_now(
    context: InstructionContext, caller: InstructionCaller, request: schemas.AgentRequest
) -> schemas.CoverageResponse:
    """Measure coverage now."""
    agent = context.records.agent(request.agent_id)
    agent, instruction_set = context.require_instruction_set(request.agent_id, agent)
    last = context.records.coverage(agent.id)
    needs_certification = last is not None and last.recert_due is not None
    run = (
        recertify(context, agent, instruction_set.manifest)
        if needs_certification
        else measure_coverage(context, agent, instruction_set.manifest, kind="daily")
    )
    context.records.add_coverage(run)
    return _coverage_view(run, caller)


def record_approval(
    context: InstructionContext, caller: InstructionCaller, request: schemas.ApprovalRequest
) -> schemas.ApprovalResponse:
    """Record an approval for an agent's manifest or unit."""
    agent = context.records.agent(request.agent_id) or make_agent(context, request.agent_id)
    fields = {name: value for name, value in msgspec.structs.asdict(request).items() if name != "agent_id"}
    try:
        approval = msgspec.convert(fields, SubmittedApproval)
    except msgspec.ValidationError as error:
        raise InstructionError(
            "approval_invalid", "kind must be guarantee_load, force_prepend, task_types or skip_gate"
        ) from error
    if (approval.unit is None) != (approval.kind == "skip_gate"):
        raise InstructionError(
            "approval_invalid", "unit is required for every kind but skip_gate, which must not have one"
        )
    if approval.kind == "skip_gate" and approval.version is None:
        raise InstructionError("approval_invalid", "skip_gate requires the manifest version")
    approval = name_approved_version(context, agent, approval)
    accepted = select_valid_approvals(context, agent, (approval,), caller)
    if not accepted:
        raise InstructionError(
            "approval_invalid", "the approval is neither from the holder of this key nor signed by its author"
        )
    activated = record_approvals(context, agent, accepted, unit=approval.unit, version=approval.version)
    return schemas.ApprovalResponse(_approval_view(accepted[0]), activated)


def list_approvals(
    context: InstructionContext, caller: InstructionCaller, request: schemas.AgentRequest
) -> schemas.ApprovalsResponse:
    """The agent's approvals."""
    agent = _require_agent(context, request.agent_id)
    return schemas.ApprovalsResponse(tuple(map(_approval_view, context.records.approvals(agent.id))))


def register_signer(
    context: InstructionContext, caller: InstructionCaller, request: schemas.SignerRequest
) -> schemas.SignerResponse:
    """Register the public key that the holder of this key signs with."""
    raw = decode_base64url(request.public_key)
    if caller.entity is None:
        raise InstructionError("signer_invalid", "only a key with an entity can register a public key")
    if raw is None or len(raw) != KEY_BYTES:
        raise InstructionError("signer_invalid", "public_key must be a raw Ed25519 key in base64url")
    # Re-encode: different base64 spellings of one key must be one signer.
    public_key = encode_base64url(raw)
    context.records.add_signer(Signer(caller.entity, public_key, context.now()))
    return schemas.SignerResponse(caller.entity, public_key)


def list_signers(
    context: InstructionContext, caller: InstructionCaller, request: EmptyRequest
) -> schemas.SignersResponse:
    """Registered public keys, and whether their signatures are accepted now."""
    accepted = set(context.records.signers(at=context.now()))
    return schemas.SignersResponse(
        tuple(
            schemas.SignerRow(signer.entity, signer.public_key, format_time(signer.created_at), signer in accepted)
            for signer in context.records.signers(at=None)
        )
    )


def withdraw_signer(
    context: InstructionContext, caller: InstructionCaller, request: schemas.PublicKeyRequest
) -> RouteResponse:
    """Withdraw a public key; its signatures are no longer accepted.

    Withdraws the key for every entity that registered it, because its holder can sign as each of them.
    """
    raw = decode_base64url(request.public_key)
    all_signers = context.records.signers(at=None)
    signers = [signer for signer in all_signers if raw is not None and decode_base64url(signer.public_key) == raw]
    if not signers:
        raise InstructionError("signer_not_found", "no signer has registered this public key")
    context.records.remove_signers(signers)
    return RouteResponse(b"", status=204)


def list_audit_records(
    context: InstructionContext, caller: InstructionCaller, request: schemas.AuditRecordsRequest
) -> schemas.AuditRecordsResponse:
    """Audit records: units loaded, used and missed."""
    agent = _require_agent(context, request.agent_id)
    records = context.records.audits(agent.id, since=context.now() - request.days * DAY_MS)
    return schemas.AuditRecordsResponse(tuple(map(_audit_line, records)))


def get_measures(
    context: InstructionContext, caller: InstructionCaller, request: schemas.MeasuresRequest
) -> RecallMetrics:
    """Recall, hits and misses over the last days."""
    agent = _require_agent(context, request.agent_id)
    manifest = context.records.manifest(agent.id)
    records = context.records.audits(agent.id, since=context.now() - request.days * DAY_MS)
    return compute_recall_metrics(records, manifest.body if manifest else (), k=request.k)


def get_shadow_report(
    context: InstructionContext, caller: InstructionCaller, request: schemas.ShadowRequest
) -> schemas.ShadowResponse:
    """Shadow report: whether lazy recall would have sufficed in turns that had all instructions."""
    agent = _require_agent(context, request.agent_id)
    manifest = context.records.manifest(agent.id)
    if manifest is None:
        raise manifest_not_found_error(request.agent_id)
    records = context.records.audits(agent.id, since=context.now() - request.days * DAY_MS)
    report = make_shadow_report(records, manifest)
    return schemas.ShadowResponse(report.passed, report)


def replay_record(
    context: InstructionContext, caller: InstructionCaller, request: schemas.ReplayRequest
) -> RecallReplay:
    """Repeat a recorded recall against the instructions of that time."""
    agent = _require_agent(context, request.agent_id)
    record = context.records.audit(request.audit_token)
    if record is None or record.agent_id != agent.id:
        raise InstructionError("audit_not_found", "this agent has no such audit record")
    return replay_recall(context, agent, record)


def put_probe(
    context: InstructionContext, caller: InstructionCaller, request: schemas.ProbeRequest
) -> schemas.ProbesResponse:
    """Define a probe: the units that an intent must find."""
    agent = _require_agent(context, request.agent_id)
    context.records.put_probe(Probe(request.probe_id, agent.id, request.intent, request.required_units, request.k))
    return _probes_view(context, agent)


def list_probes(
    context: InstructionContext, caller: InstructionCaller, request: schemas.AgentRequest
) -> schemas.ProbesResponse:
    """The agent's probes and their results."""
    return _probes_view(context, _require_agent(context, request.agent_id))


def _probes_view(context: InstructionContext, agent: Agent) -> schemas.ProbesResponse:
    probes = context.records.probes(agent.id)
    instruction_set = context.instruction_sets.load_current(agent)
    results = run_probes(instruction_set, probes, use_floor=context.settings.use_floor) if instruction_set else ()
    by_id = {result.probe_id: result for result in results}
    rows = tuple(
        copy_fields(
            schemas.ProbeRow, probe, coverage_at_k=result.coverage_at_k if result else None, hit=result and result.hit
        )
        for probe, result in ((probe, by_id.get(probe.probe_id)) for probe in probes)
    )
    count = len(results)
    return schemas.ProbesResponse(
        rows,
        sum(result.coverage_at_k for result in results) / count if count else None,
        sum(result.hit for result in results) / count if count else None,
    )


def _require_agent(context: InstructionContext, agent_id: str) -> Agent:
    agent = context.records.agent(agent_id)
    if agent is None:
        raise manifest_not_found_error(agent_id)
    return agent


def _coverage_view(run: CoverageRun, caller: InstructionCaller) -> schemas.CoverageResponse:
    return copy_fields(
        schemas.CoverageResponse,
        run,
        embedding_model_version=run.model_id,
        evaluated_at=format_time(run.finished_at),
        recert_due=format_optional_time(run.recert_due),
        units=tuple(
            copy_fields(
                schemas.UnitCoverageRow,
                unit,
                name=unit.unit,
                last_evaluated_at=format_time(run.finished_at),
                coverage_status=classify_coverage(unit) if caller.is_admin else None,
            )
            for unit in run.units
        ),
    )


def _approval_view(approval: Approval) -> schemas.ApprovalRow:
    return copy_fields(schemas.ApprovalRow, approval, authored_at=format_time(approval.authored_at))


def _audit_line(record: AuditRecord) -> schemas.AuditRecordRow:
    return copy_fields(
        schemas.AuditRecordRow,
        record,
        session_start=format_time(record.session_start),
        loaded_chunks=tuple(chunk.name for chunk in record.loaded_chunks),
        audit_closed=format_optional_time(record.audit_closed),
        created_at=format_time(record.created_at),
        loaded=tuple(msgspec.to_builtins(chunk) for chunk in record.loaded_chunks),
        detected_used=None if record.detected is None else record.detected_used,
        detected_missed=None if record.detected is None else record.detected_missed,
        detected_at=format_optional_time(record.detected_at),
    )


ROUTES: tuple[Route, ...] = (
    instruction_route("GET", f"{_AGENT}/instruction-manifest/coverage", get_coverage),
    instruction_route("POST", f"{_AGENT}/instruction-manifest/coverage", run_coverage_now, rule="admin"),
    instruction_route(
        "POST", f"{_AGENT}/approvals", record_approval, rule="admin", field_error_code=lambda field: "approval_invalid"
    ),
    instruction_route("GET", f"{_AGENT}/approvals", list_approvals, rule="admin"),
    instruction_route(
        "PUT", "/v1/instruction/signer", register_signer, rule="admin", field_error_code=lambda field: "signer_invalid"
    ),
    instruction_route("GET", "/v1/instruction/signer", list_signers, rule="admin"),
    instruction_route(
        "DELETE", "/v1/instruction/signer/{public_key}", withdraw_signer, rule="admin", success_statuses=(204,)
    ),
    instruction_route("GET", f"{_AGENT}/instruction-audit", list_audit_records, rule="admin"),
    instruction_route("GET", f"{_AGENT}/instruction-measures", get_measures, rule="admin"),
    instruction_route("GET", f"{_AGENT}/instruction-shadow", get_shadow_report, rule="admin"),
    instruction_route("POST", f"{_AGENT}/instruction-replay", replay_record, rule="admin"),
    instruction_route("PUT", f"{_AGENT}/instruction-probes", put_probe, rule="admin"),
    instruction_route("GET", f"{_AGENT}/instruction-probes", list_probes, rule="admin"),
)
