"""The routes by which people look after instructions: approvals, signers, coverage, probes, records, measures."""

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
        raise InstructionError("coverage_not_found", "coverage was not measured yet")
    return _coverage_told(run, caller)


def run_coverage_now(library: Library, caller: Caller, request: OneAgent) -> CoverageTold:
    agent = library.records.agent(request.agent_id)
    agent, shelf = library.shelf(request.agent_id, agent)
    last = library.records.coverage(agent.id)
    owed = last is not None and last.recert_due is not None
    run = (
        certified(library, agent, shelf.manifest)
        if owed
        else run_coverage(library, agent, shelf.manifest, kind="daily")
    )
    library.records.add_coverage(run)
    return _coverage_told(run, caller)


def record_approval(library: Library, caller: Caller, request: ApprovalWrite) -> ApprovalRecorded:
    agent = library.records.agent(request.agent_id) or new_agent(library, request.agent_id)
    fields = {name: value for name, value in msgspec.structs.asdict(request).items() if name != "agent_id"}
    try:
        given = msgspec.convert(fields, GivenApproval)
    except msgspec.ValidationError as error:
        raise InstructionError(
            "approval_invalid", "kind is guarantee_load, force_prepend, task_types or skip_gate"
        ) from error
    if (given.unit is None) != (given.kind == "skip_gate"):
        raise InstructionError("approval_invalid", "all kinds but skip_gate name a unit")
    if given.kind == "skip_gate" and given.version is None:
        raise InstructionError("approval_invalid", "skip_gate names the version of the manifest")
    found = counted(library, agent, (given,), caller)
    if not found:
        raise InstructionError(
            "approval_invalid", "it is neither the approval of this key's holder nor signed by its author"
        )
    activated = record_approved(library, agent, found, unit=given.unit, version=given.version)
    return ApprovalRecorded(_approval_told(found[0]), activated)


def list_approvals(library: Library, caller: Caller, request: OneAgent) -> ApprovalsTold:
    agent = _known(library, request.agent_id)
    return ApprovalsTold(tuple(map(_approval_told, library.records.approvals(agent.id))))


def register_signer(library: Library, caller: Caller, request: SignerWrite) -> SignerTold:
    raw = decoded(request.public_key)
    if caller.entity is None:
        raise InstructionError("signer_invalid", "only a key with an entity URI can register its holder's public key")
    if raw is None or len(raw) != KEY_BYTES:
        raise InstructionError("signer_invalid", "public_key is a raw Ed25519 key in base64url")
    # However it was spelled: one key is one signer.
    public_key = encoded(raw)
    library.records.add_signer(Signer(caller.entity, public_key, library.now()))
    return SignerTold(caller.entity, public_key)


def list_signers(library: Library, caller: Caller, request: Nothing) -> SignersTold:
    believed = set(library.records.signers(at=library.now()))
    return SignersTold(
        tuple(
            SignerLine(one.entity, one.public_key, told_time(one.created_at), one in believed)
            for one in library.records.signers(at=None)
        )
    )


def withdraw_signer(library: Library, caller: Caller, request: OneSigner) -> Answer:
    """For all who registered the key: whoever has it can sign as each of them."""
    raw = decoded(request.public_key)
    found = [one for one in library.records.signers(at=None) if raw is not None and decoded(one.public_key) == raw]
    if not found:
        raise InstructionError("signer_not_found", "no signer has registered this public key")
    library.records.remove_signers(found)
    return Answer(b"", status=204)


def list_audit(library: Library, caller: Caller, request: AuditQuery) -> AuditTold:
    agent = _known(library, request.agent_id)
    records = library.records.audits(agent.id, since=library.now() - request.days * DAY_MS)
    return AuditTold(tuple(map(_audit_told, records)))


def show_measures(library: Library, caller: Caller, request: MeasureQuery) -> Measures:
    agent = _known(library, request.agent_id)
    manifest = library.records.manifest(agent.id)
    records = library.records.audits(agent.id, since=library.now() - request.days * DAY_MS)
    return measured(records, manifest.body if manifest else (), k=request.k)


def judge_shadow(library: Library, caller: Caller, request: ShadowQuery) -> ShadowTold:
    agent = _known(library, request.agent_id)
    manifest = library.records.manifest(agent.id)
    if manifest is None:
        raise no_manifest(request.agent_id)
    records = library.records.audits(agent.id, since=library.now() - request.days * DAY_MS)
    report = shadow_report(records, manifest)
    return ShadowTold(report.passed, report)


def replay_record(library: Library, caller: Caller, request: ReplayAsk) -> Replayed:
    agent = _known(library, request.agent_id)
    record = library.records.audit(request.audit_token)
    if record is None or record.agent_id != agent.id:
        raise InstructionError("audit_not_found", "this agent has no such audit record")
    return replay(library, agent, record)


def put_probe(library: Library, caller: Caller, request: ProbeWrite) -> ProbesTold:
    agent = _known(library, request.agent_id)
    library.records.put_probe(Probe(request.probe_id, agent.id, request.intent, request.required_units, request.k))
    return _probes_told(library, agent)


def list_probes(library: Library, caller: Caller, request: OneAgent) -> ProbesTold:
    return _probes_told(library, _known(library, request.agent_id))


def _probes_told(library: Library, agent: Agent) -> ProbesTold:
    kept = library.records.probes(agent.id)
    shelf = library.shelves.current(agent)
    results = run_probes(shelf, kept, use_floor=library.settings.use_floor) if shelf else ()
    by_id = {one.probe_id: one for one in results}
    told = tuple(
        ProbeTold(
            one.probe_id,
            one.intent,
            one.required_units,
            one.k,
            by_id[one.probe_id].coverage_at_k if one.probe_id in by_id else None,
            by_id[one.probe_id].hit if one.probe_id in by_id else None,
        )
        for one in kept
    )
    count = len(results)
    return ProbesTold(
        told,
        sum(one.coverage_at_k for one in results) / count if count else None,
        sum(one.hit for one in results) / count if count else None,
    )


def _known(library: Library, said: str) -> Agent:
    agent = library.records.agent(said)
    if agent is None:
        raise no_manifest(said)
    return agent


def _coverage_told(run: CoverageRun, caller: Caller) -> CoverageTold:
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
                name=one.unit,
                coverage_pct=one.coverage_pct,
                hit_at_10=one.hit_at_10,
                probe_count=one.probe_count,
                last_evaluated_at=told_time(run.finished_at),
                coverage_status=status_of(one) if caller.is_admin else None,
            )
            for one in run.units
        ),
    )


def _approval_told(approval: Approval) -> ApprovalTold:
    return ApprovalTold(
        id=approval.id,
        kind=approval.kind,
        unit=approval.unit,
        version=approval.version,
        authored_by=approval.authored_by,
        authored_at=told_time(approval.authored_at),
        reason=approval.reason,
    )


def _audit_told(record: AuditRecord) -> AuditLine:
    return AuditLine(
        id=record.id,
        agent_id=record.agent_id,
        heartbeat_id=record.heartbeat_id,
        session_start=told_time(record.session_start),
        intent=record.intent,
        loaded_chunks=tuple(one.name for one in record.loaded_chunks),
        used_chunks=record.used_chunks,
        missed_chunks=record.missed_chunks,
        audit_token=record.audit_token,
        audit_closed=maybe_told_time(record.audit_closed),
        created_at=told_time(record.created_at),
        event_type=record.event_type,
        loaded=tuple(msgspec.to_builtins(one) for one in record.loaded_chunks),
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
        summary="How well the units are found by those who say it otherwise.",
    ),
    instruction_route(
        "POST",
        f"{_AGENT}/instruction-manifest/coverage",
        run_coverage_now,
        request=OneAgent,
        reply=CoverageTold,
        rule="admin",
        summary="Measure it now.",
    ),
    instruction_route(
        "POST",
        f"{_AGENT}/approvals",
        record_approval,
        request=ApprovalWrite,
        reply=ApprovalRecorded,
        rule="admin",
        summary="Approve what an agent's manifest or unit needs approved.",
        unfit=lambda field: "approval_invalid",
    ),
    instruction_route(
        "GET",
        f"{_AGENT}/approvals",
        list_approvals,
        request=OneAgent,
        reply=ApprovalsTold,
        rule="admin",
        summary="Who has approved what.",
    ),
    instruction_route(
        "PUT",
        "/v1/instruction/signer",
        register_signer,
        request=SignerWrite,
        reply=SignerTold,
        rule="admin",
        summary="Register the public key by which the holder of this key signs.",
        unfit=lambda field: "signer_invalid",
    ),
    instruction_route(
        "GET",
        "/v1/instruction/signer",
        list_signers,
        request=Nothing,
        reply=SignersTold,
        rule="admin",
        summary="Who has registered which public key, and whether it counts now.",
    ),
    instruction_route(
        "DELETE",
        "/v1/instruction/signer/{public_key}",
        withdraw_signer,
        request=OneSigner,
        rule="admin",
        summary="Withdraw a public key: what it signs from now on counts for nothing.",
        successes=(204,),
    ),
    instruction_route(
        "GET",
        f"{_AGENT}/instruction-audit",
        list_audit,
        request=AuditQuery,
        reply=AuditTold,
        rule="admin",
        summary="What was loaded, used and missed.",
    ),
    instruction_route(
        "GET",
        f"{_AGENT}/instruction-measures",
        show_measures,
        request=MeasureQuery,
        reply=Measures,
        rule="admin",
        summary="Recall, hits and misses of the last days.",
    ),
    instruction_route(
        "GET",
        f"{_AGENT}/instruction-shadow",
        judge_shadow,
        request=ShadowQuery,
        reply=ShadowTold,
        rule="admin",
        summary="Whether lazy recall would have done in turns that had all instructions.",
    ),
    instruction_route(
        "POST",
        f"{_AGENT}/instruction-replay",
        replay_record,
        request=ReplayAsk,
        reply=Replayed,
        rule="admin",
        summary="Ask again what a record has asked, of what there was then.",
    ),
    instruction_route(
        "PUT",
        f"{_AGENT}/instruction-probes",
        put_probe,
        request=ProbeWrite,
        reply=ProbesTold,
        rule="admin",
        summary="Say what an intent must find.",
    ),
    instruction_route(
        "GET",
        f"{_AGENT}/instruction-probes",
        list_probes,
        request=OneAgent,
        reply=ProbesTold,
        rule="admin",
        summary="Whether each probe finds what it must.",
    ),
)
