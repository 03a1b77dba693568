"""HTTP routes to administer instructions: coverage, approvals, signers, audit records, measures and probes."""

import msgspec

from holdfast.instructions.asking import Replayed, replay
from holdfast.instructions.callers import Caller, check_own
from holdfast.instructions.certifying import certified, run_coverage
from holdfast.instructions.coverage import run_probes, status_of
from holdfast.instructions.failures import InstructionError
from holdfast.instructions.library import Library, new_agent, no_manifest
from holdfast.instructions.measures import Measures, measured
from holdfast.instructions.publication import GivenApproval
from holdfast.instructions.publishing import counted
from holdfast.instructions.shadowing import shadow_report
from holdfast.instructions.signatures import KEY_BYTES, decoded, encoded
from holdfast.instructions.times import maybe_told_time, told_time
from holdfast.instructions.values import Agent, Approval, AuditRecord, CoverageRun, Probe, Signer
from holdfast.instructions.waiting import record_approved
from holdfast.service.instruction_routes import instruction_route
from holdfast.service.instruction_values import (
    ApprovalRecorded,
    ApprovalsTold,
    ApprovalTold,
    ApprovalWrite,
    AuditLine,
    AuditQuery,
    AuditTold,
    CoverageTold,
    CoverageUnitTold,
    MeasureQuery,
    OneAgent,
    OneSigner,
    ProbesTold,
    ProbeTold,
    ProbeWrite,
    ReplayAsk,
    ShadowQuery,
    ShadowTold,
    SignerLine,
    SignersTold,
    SignerTold,
    SignerWrite,
)
from holdfast.service.routes import Answer, Nothing, Route

DAY_MS = 86_400_000


def get_coverage(library: Library, caller: Caller, request: OneAgent) -> CoverageTold:
    agent = library.records.agent(request.agent_id)
    check_own(caller, request.agent_id, agent)
    if agent is None or library.records.manifest(agent.id) is None:
        raise no_manifest(request.agent_id)
    run = library.records.coverage(agent.id)
    if run is None:
        raise InstructionError("coverage_not_found", "coverage has not been measured yet")
    return _coverage_view(run, caller)


def run_coverage_now(library: Library, caller: Caller, request: OneAgent) -> CoverageTold:
    agent = library.records.agent(request.agent_id)
    agent, instruction_set = library.shelf(request.agent_id, agent)
    last = library.records.coverage(agent.id)
    needs_certification = last is not None and last.recert_due is not None
    run = (
        certified(library, agent, instruction_set.manifest)
        if needs_certification
        else run_coverage(library, agent, instruction_set.manifest, kind="daily")
    )
    library.records.add_coverage(run)
    return _coverage_view(run, caller)


def record_approval(library: Library, caller: Caller, request: ApprovalWrite) -> ApprovalRecorded:
    agent = library.records.agent(request.agent_id) or new_agent(library, request.agent_id)
    fields = {name: value for name, value in msgspec.structs.asdict(request).items() if name != "agent_id"}
    try:
        approval = msgspec.convert(fields, GivenApproval)
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
    accepted = counted(library, agent, (approval,), caller)
    if not accepted:
        raise InstructionError(
            "approval_invalid", "the approval is neither from the holder of this key nor signed by its author"
        )
    activated = record_approved(library, agent, accepted, unit=approval.unit, version=approval.version)
    return ApprovalRecorded(_approval_view(accepted[0]), activated)


def list_approvals(library: Library, caller: Caller, request: OneAgent) -> ApprovalsTold:
    agent = _require_agent(library, request.agent_id)
    return ApprovalsTold(tuple(map(_approval_view, library.records.approvals(agent.id))))


def register_signer(library: Library, caller: Caller, request: SignerWrite) -> SignerTold:
    raw = decoded(request.public_key)
    if caller.entity is None:
        raise InstructionError("signer_invalid", "only a key with an entity can register a public key")
    if raw is None or len(raw) != KEY_BYTES:
        raise InstructionError("signer_invalid", "public_key must be a raw Ed25519 key in base64url")
    # Re-encode: different base64 spellings of one key must be one signer.
    public_key = encoded(raw)
    library.records.add_signer(Signer(caller.entity, public_key, library.now()))
    return SignerTold(caller.entity, public_key)


def list_signers(library: Library, caller: Caller, request: Nothing) -> SignersTold:
    accepted = set(library.records.signers(at=library.now()))
    return SignersTold(
        tuple(
            SignerLine(signer.entity, signer.public_key, told_time(signer.created_at), signer in accepted)
            for signer in library.records.signers(at=None)
        )
    )


def withdraw_signer(library: Library, caller: Caller, request: OneSigner) -> Answer:
    """Withdraws the key for every entity that registered it, because its holder can sign as each of them."""
    raw = decoded(request.public_key)
    all_signers = library.records.signers(at=None)
    signers = [signer for signer in all_signers if raw is not None and decoded(signer.public_key) == raw]
    if not signers:
        raise InstructionError("signer_not_found", "no signer has registered this public key")
    library.records.remove_signers(signers)
    return Answer(b"", status=204)


def list_audit(library: Library, caller: Caller, request: AuditQuery) -> AuditTold:
    agent = _require_agent(library, request.agent_id)
    records = library.records.audits(agent.id, since=library.now() - request.days * DAY_MS)
    return AuditTold(tuple(map(_audit_line, records)))


def show_measures(library: Library, caller: Caller, request: MeasureQuery) -> Measures:
    agent = _require_agent(library, request.agent_id)
    manifest = library.records.manifest(agent.id)
    records = library.records.audits(agent.id, since=library.now() - request.days * DAY_MS)
    return measured(records, manifest.body if manifest else (), k=request.k)


def judge_shadow(library: Library, caller: Caller, request: ShadowQuery) -> ShadowTold:
    agent = _require_agent(library, request.agent_id)
    manifest = library.records.manifest(agent.id)
    if manifest is None:
        raise no_manifest(request.agent_id)
    records = library.records.audits(agent.id, since=library.now() - request.days * DAY_MS)
    report = shadow_report(records, manifest)
    return ShadowTold(report.passed, report)


def replay_record(library: Library, caller: Caller, request: ReplayAsk) -> Replayed:
    agent = _require_agent(library, request.agent_id)
    record = library.records.audit(request.audit_token)
    if record is None or record.agent_id != agent.id:
        raise InstructionError("audit_not_found", "this agent has no such audit record")
    return replay(library, agent, record)


def put_probe(library: Library, caller: Caller, request: ProbeWrite) -> ProbesTold:
    agent = _require_agent(library, request.agent_id)
    library.records.put_probe(Probe(request.probe_id, agent.id, request.intent, request.required_units, request.k))
    return _probes_view(library, agent)


def list_probes(library: Library, caller: Caller, request: OneAgent) -> ProbesTold:
    return _probes_view(library, _require_agent(library, request.agent_id))


def _probes_view(library: Library, agent: Agent) -> ProbesTold:
    probes = library.records.probes(agent.id)
    instruction_set = library.shelves.current(agent)
    results = run_probes(instruction_set, probes, use_floor=library.settings.use_floor) if instruction_set else ()
    by_id = {result.probe_id: result for result in results}
    rows = tuple(
        ProbeTold(
            probe.probe_id,
            probe.intent,
            probe.required_units,
            probe.k,
            by_id[probe.probe_id].coverage_at_k if probe.probe_id in by_id else None,
            by_id[probe.probe_id].hit if probe.probe_id in by_id else None,
        )
        for probe in probes
    )
    count = len(results)
    return ProbesTold(
        rows,
        sum(result.coverage_at_k for result in results) / count if count else None,
        sum(result.hit for result in results) / count if count else None,
    )


def _require_agent(library: Library, agent_id: str) -> Agent:
    agent = library.records.agent(agent_id)
    if agent is None:
        raise no_manifest(agent_id)
    return agent


def _coverage_view(run: CoverageRun, caller: Caller) -> CoverageTold:
    return CoverageTold(
        manifest_version=run.manifest_version,
        embedding_model_version=run.model_id,
        evaluated_at=told_time(run.finished_at),
        kind=run.kind,
        skipped=run.skipped,
        stale=run.stale,
        recert_due=maybe_told_time(run.recert_due),
        units=tuple(
            CoverageUnitTold(
                name=unit.unit,
                coverage_pct=unit.coverage_pct,
                hit_at_10=unit.hit_at_10,
                probe_count=unit.probe_count,
                last_evaluated_at=told_time(run.finished_at),
                coverage_status=status_of(unit) if caller.is_admin else None,
            )
            for unit in run.units
        ),
    )


def _approval_view(approval: Approval) -> ApprovalTold:
    return ApprovalTold(
        id=approval.id,
        kind=approval.kind,
        unit=approval.unit,
        version=approval.version,
        authored_by=approval.authored_by,
        authored_at=told_time(approval.authored_at),
        reason=approval.reason,
    )


def _audit_line(record: AuditRecord) -> AuditLine:
    return AuditLine(
        id=record.id,
        agent_id=record.agent_id,
        heartbeat_id=record.heartbeat_id,
        session_start=told_time(record.session_start),
        intent=record.intent,
        loaded_chunks=tuple(chunk.name for chunk in record.loaded_chunks),
        used_chunks=record.used_chunks,
        missed_chunks=record.missed_chunks,
        audit_token=record.audit_token,
        audit_closed=maybe_told_time(record.audit_closed),
        created_at=told_time(record.created_at),
        event_type=record.event_type,
        loaded=tuple(msgspec.to_builtins(chunk) for chunk in record.loaded_chunks),
        detail=record.detail,
        detected_used=None if record.detected is None else record.detected_used,
        detected_missed=None if record.detected is None else record.detected_missed,
        detected=record.detected,
        detected_at=maybe_told_time(record.detected_at),
    )


_AGENT = "/v1/agents/{agent_id}"

ROUTES: tuple[Route, ...] = (
    instruction_route(
        "GET",
        f"{_AGENT}/instruction-manifest/coverage",
        get_coverage,
        request=OneAgent,
        reply=CoverageTold,
        summary="Coverage: how well the units are found with paraphrased queries.",
    ),
    instruction_route(
        "POST",
        f"{_AGENT}/instruction-manifest/coverage",
        run_coverage_now,
        request=OneAgent,
        reply=CoverageTold,
        rule="admin",
        summary="Measure coverage now.",
    ),
    instruction_route(
        "POST",
        f"{_AGENT}/approvals",
        record_approval,
        request=ApprovalWrite,
        reply=ApprovalRecorded,
        rule="admin",
        summary="Record an approval for an agent's manifest or unit.",
        unfit=lambda field: "approval_invalid",
    ),
    instruction_route(
        "GET",
        f"{_AGENT}/approvals",
        list_approvals,
        request=OneAgent,
        reply=ApprovalsTold,
        rule="admin",
        summary="The agent's approvals.",
    ),
    instruction_route(
        "PUT",
        "/v1/instruction/signer",
        register_signer,
        request=SignerWrite,
        reply=SignerTold,
        rule="admin",
        summary="Register the public key that the holder of this key signs with.",
        unfit=lambda field: "signer_invalid",
    ),
    instruction_route(
        "GET",
        "/v1/instruction/signer",
        list_signers,
        request=Nothing,
        reply=SignersTold,
        rule="admin",
        summary="Registered public keys, and whether their signatures are accepted now.",
    ),
    instruction_route(
        "DELETE",
        "/v1/instruction/signer/{public_key}",
        withdraw_signer,
        request=OneSigner,
        rule="admin",
        summary="Withdraw a public key; its signatures are no longer accepted.",
        successes=(204,),
    ),
    instruction_route(
        "GET",
        f"{_AGENT}/instruction-audit",
        list_audit,
        request=AuditQuery,
        reply=AuditTold,
        rule="admin",
        summary="Audit records: units loaded, used and missed.",
    ),
    instruction_route(
        "GET",
        f"{_AGENT}/instruction-measures",
        show_measures,
        request=MeasureQuery,
        reply=Measures,
        rule="admin",
        summary="Recall, hits and misses over the last days.",
    ),
    instruction_route(
        "GET",
        f"{_AGENT}/instruction-shadow",
        judge_shadow,
        request=ShadowQuery,
        reply=ShadowTold,
        rule="admin",
        summary="Shadow report: whether lazy recall would have sufficed in turns that had all instructions.",
    ),
    instruction_route(
        "POST",
        f"{_AGENT}/instruction-replay",
        replay_record,
        request=ReplayAsk,
        reply=Replayed,
        rule="admin",
        summary="Repeat a recorded recall against the instructions of that time.",
    ),
    instruction_route(
        "PUT",
        f"{_AGENT}/instruction-probes",
        put_probe,
        request=ProbeWrite,
        reply=ProbesTold,
        rule="admin",
        summary="Define a probe: the units that an intent must find.",
    ),
    instruction_route(
        "GET",
        f"{_AGENT}/instruction-probes",
        list_probes,
        request=OneAgent,
        reply=ProbesTold,
        rule="admin",
        summary="The agent's probes and their results.",
    ),
)
