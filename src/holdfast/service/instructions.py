"""HTTP routes for instructions: agents, units, manifests, boot stubs, recall and heartbeats."""

import msgspec

from holdfast.errors import StoreError, UserError
from holdfast.instructions.addresses import garden_of
from holdfast.instructions.asking import Answered, ask
from holdfast.instructions.callers import Caller, check_has_instructions, check_may_recall, check_own, denied
from holdfast.instructions.failures import InstructionError
from holdfast.instructions.heartbeat import boot_stub, wake
from holdfast.instructions.library import Library, new_agent
from holdfast.instructions.publication import Draft
from holdfast.instructions.publishing import Publication, publish
from holdfast.instructions.recall import Picked, Question
from holdfast.instructions.stub import BODY_TOKENS_WARN, check_stub, contract_of
from holdfast.instructions.times import maybe_told_time, told_time
from holdfast.instructions.values import Entry, UnitCoverage
from holdfast.instructions.writing import GivenUnit, write_unit
from holdfast.retrieval.fusion import Weights
from holdfast.service import instruction_reviews, instruction_usage
from holdfast.service.instruction_routes import RETRY, instruction_route
from holdfast.service.instruction_values import (
    AgentSettings,
    AgentTold,
    Chunk,
    CoverageLine,
    DroppedTold,
    HeartbeatAsk,
    HeartbeatTold,
    ManifestPublished,
    ManifestTold,
    ManifestWrite,
    OneAgent,
    PreloadTold,
    RecallAsk,
    RecallTold,
    ScopeRecall,
    StageTold,
    StubQuery,
    UnitTold,
    UnitWrite,
    WarningTold,
    Weighting,
    WhyTold,
)
from holdfast.service.routes import Answer, Route

MARKDOWN = "text/markdown; charset=utf-8"

_encode = msgspec.json.Encoder().encode


def put_agent(library: Library, caller: Caller, request: AgentSettings) -> AgentTold:
    agent = library.records.agent(request.agent_id) or new_agent(library, request.agent_id)
    if request.shortname is not None:
        # Only to validate the name.
        new_agent(library, request.shortname)
    agent = msgspec.structs.replace(
        agent,
        role=request.role,
        shortname=request.shortname,
        supervisors=request.supervisors,
        heartbeat_contract=request.heartbeat_contract,
        always_rules=request.always_rules,
        sensitive=request.sensitive,
    )
    tokens = check_stub(agent, library.records.manifest(agent.id))
    if not library.records.put_agent(agent):
        raise InstructionError("shortname_taken", "another agent already has this shortname")
    warnings = (
        (f"the boot stub has {tokens} tokens, more than {BODY_TOKENS_WARN}",) if tokens > BODY_TOKENS_WARN else ()
    )
    return AgentTold(
        agent.id,
        agent.deployment,
        agent.role,
        agent.shortname,
        agent.supervisors,
        contract_of(agent),
        agent.always_rules,
        agent.sensitive,
        warnings,
    )


def put_unit(library: Library, caller: Caller, request: UnitWrite) -> Answer:
    unit = GivenUnit(request.fact_uri, request.content, request.authored_by, request.derived_from, request.signature)
    written = write_unit(library, unit, caller)
    coverage = _coverage_line(written.coverage) if written.coverage else None
    view = UnitTold(
        written.fact_uri, written.content_sha256, written.tokens, written.status, coverage, written.measured_for
    )
    # Writing the same version with the same content again is allowed, so that clients can retry.
    return Answer(_encode(view), status=201 if written.is_new else 200)


def get_stub(library: Library, caller: Caller, request: StubQuery) -> Answer:
    agent = library.records.agent(request.agent_id)
    check_own(caller, request.agent_id, agent)
    stub = boot_stub(library, request.agent_id, agent, request.profile)
    headers = {
        "x-stub-version": str(stub.stub_version),
        "x-manifest-version": stub.manifest_version,
        "x-token-count": str(stub.token_count),
        "x-body-token-count": str(stub.body_token_count),
    }
    return Answer(stub.body.encode(), MARKDOWN, headers=headers)


def get_manifest(library: Library, caller: Caller, request: OneAgent) -> ManifestTold:
    agent = library.records.agent(request.agent_id)
    check_own(caller, request.agent_id, agent)
    agent, instruction_set = library.shelf(request.agent_id, agent)
    manifest = instruction_set.manifest
    return ManifestTold(
        manifest.version,
        manifest.fact_uri,
        manifest.token_count,
        tuple(map(_entry_view, manifest.body)),
        told_time(manifest.created_at),
        instruction_set.index.embedding_model_version,
        manifest.migration_mode,
    )


def put_manifest(library: Library, caller: Caller, request: ManifestWrite) -> ManifestPublished:
    draft = Draft(request.version, request.entries, request.migration_mode)
    publication = Publication(
        agent_id=request.agent_id,
        draft=draft,
        skip_coverage_gate=request.skip_coverage_gate,
        approvals=request.approvals,
    )
    published = publish(library, publication, caller)
    lines = tuple(_coverage_line(unit, skipped=published.skipped) for unit in published.coverage)
    return ManifestPublished(published.manifest.fact_uri, published.manifest.token_count, lines, published.warnings)


def recall_instruction(library: Library, caller: Caller, request: RecallAsk) -> RecallTold:
    question = Question(
        intent=request.intent,
        max_chunks=request.max_chunks,
        token_budget=request.token_budget,
        manifest_hint=request.manifest_hint,
        use_floor=library.settings.use_floor if request.floor is None else request.floor,
    )
    return _recall(
        library,
        caller,
        request.agent_id,
        question,
        heartbeat_id=request.heartbeat_id,
        explain=request.explain,
        shadow=request.shadow,
    )


def recall_scope(library: Library, caller: Caller, request: ScopeRecall) -> RecallTold:
    check_has_instructions(caller)
    scheme, _, rest = request.scope.partition(":")
    parts = rest.split("/")
    # Both instruction:{deployment}/{agent} and instruction:{deployment}/agent/{agent} are in use.
    if len(parts) == 3 and parts[1] == "agent":
        del parts[1]
    if scheme != "instruction" or len(parts) != 2 or not all(parts):
        raise InstructionError("invalid_scope", "the scope must look like instruction:{deployment}/{agent}")
    deployment, agent_id = parts
    agent = library.records.agent(agent_id)
    check_may_recall(caller, agent_id, agent, library.records.agent)
    gardens = {garden_of(library.settings.deployment, name) for name in (agent_id, agent.id if agent else agent_id)}
    if deployment != library.settings.deployment or not gardens.issuperset(request.require_garden_ids):
        raise denied()
    question = Question(
        intent=request.intent if request.intent is not None else request.query or "",
        max_chunks=request.max_facts,
        token_budget=request.token_budget,
        use_floor=library.settings.use_floor if request.floor is None else request.floor,
        weights=_weights(request.weights),
    )
    return _recall(library, caller, agent_id, question, heartbeat_id=None, explain=request.explain)


def _recall(
    library: Library,
    caller: Caller,
    agent_id: str,
    question: Question,
    *,
    heartbeat_id: str | None,
    explain: bool,
    shadow: bool = False,
) -> RecallTold:
    try:
        agent = library.records.agent(agent_id)
        check_may_recall(caller, agent_id, agent, library.records.agent)
        if not question.intent.strip():
            raise InstructionError("intent_required", "say in `intent` what you are about to do")
        agent, instruction_set = library.shelf(agent_id, agent)
        response = ask(
            library, agent, instruction_set, question, caller=caller, heartbeat_id=heartbeat_id, shadow=shadow
        )
    except StoreError as error:
        raise InstructionError(RETRY, "the store is unavailable; try again") from error
    return _recall_view(response, explain=explain, caller=caller)


def begin_heartbeat(library: Library, caller: Caller, request: HeartbeatAsk) -> HeartbeatTold:
    agent = library.records.agent(request.agent_id)
    check_own(caller, request.agent_id, agent)
    heartbeat = wake(library, request.agent_id, agent, request.wake_token, caller=caller, profile=request.profile)
    return HeartbeatTold(
        heartbeat_id=heartbeat.heartbeat_id,
        session_start=told_time(heartbeat.session_start),
        stub=heartbeat.stub.body,
        preloads=tuple(
            PreloadTold(
                preload.name,
                preload.content.fact_uri,
                preload.content.text,
                preload.content.tokens,
                preload.content.version,
                "task_type_preload" if preload.content.source == "stigmem" else preload.content.source,
            )
            for preload in heartbeat.preloads
        ),
        warnings=tuple(WarningTold(warning.code, warning.message, warning.unit) for warning in heartbeat.warnings),
        total_tokens=heartbeat.total_tokens,
        audit_token=heartbeat.audit_token,
    )


def _weights(weighting: Weighting | None) -> Weights:
    if weighting is None:
        return Weights()
    semantic = weighting.semantic if weighting.semantic is not None else weighting.vector
    try:
        return Weights(weighting.lexical, semantic or 0.0, weighting.graph)
    except UserError as error:
        raise InstructionError("invalid_weights", str(error)) from error


def _coverage_line(unit: UnitCoverage, *, skipped: bool = False) -> CoverageLine:
    return CoverageLine(
        unit=unit.unit,
        coverage_pct=unit.coverage_pct,
        passed=unit.passed,
        status=unit.status,
        scaled_pct=unit.scaled_pct,
        chance=unit.chance,
        skipped=skipped,
        failures=tuple({"query": failure.query, "taken_by": failure.taken_by} for failure in unit.failures),
    )


def _entry_view(entry: Entry) -> dict[str, object]:
    """All fields of the contract, including those the author omitted."""
    fields: dict[str, object] = {
        "name": entry.name,
        "description": entry.description,
        "required_by_task_types": entry.required_by_task_types,
        "guarantee_load": entry.guarantee_load,
        "load_triggers": msgspec.structs.asdict(entry.load_triggers),
        "fact_uri": entry.fact_uri,
        "path": entry.path,
        "token_estimate": entry.token_estimate,
    }
    return fields | ({"force_position": entry.force_position} if entry.force_position else {})


def _recall_view(response: Answered, *, explain: bool, caller: Caller) -> RecallTold:
    recalled = response.recalled
    dropped = tuple(DroppedTold(unit.name, unit.reason, unit.score) for unit in recalled.dropped)
    return RecallTold(
        chunks=tuple(_chunk(picked, explain=explain, caller=caller) for picked in recalled.chunks),
        total_tokens=recalled.total_tokens,
        truncated=recalled.truncated,
        missed_hints=recalled.missed_hints,
        dropped_hints=recalled.dropped_hints,
        unavailable=recalled.unavailable,
        audit_token=response.audit_token,
        snapshot_id=response.snapshot_id,
        embedding_model_version=response.embedding_model_version,
        dropped=dropped if explain else None,
    )


def _chunk(picked: Picked, *, explain: bool, caller: Caller) -> Chunk:
    why = picked.why
    explanation = None
    if explain and why is not None:
        stages = tuple(StageTold(stage.stage, stage.fit, stage.added) for stage in why.stages)
        lifted = why.lifted if caller.is_admin else None
        explanation = WhyTold(
            picked.kind, why.relevance, stages, why.matched_terms, why.links, lifted, why.fits_task_type
        )
    content = picked.content
    return Chunk(
        name=picked.name,
        fact_uri=content.fact_uri,
        content=content.text,
        tokens=content.tokens,
        valid_until=maybe_told_time(content.valid_until),
        version=content.version,
        score=picked.score,
        source=content.source,
        why=explanation,
    )


_AGENT = "/v1/agents/{agent_id}"

ROUTES: tuple[Route, ...] = (
    instruction_route(
        "PUT",
        _AGENT,
        put_agent,
        request=AgentSettings,
        reply=AgentTold,
        rule="admin",
        summary="Register or update an agent: role, supervisors and always-rules.",
        refusals=(409,),
    ),
    instruction_route(
        "PUT",
        "/v1/instruction/units",
        put_unit,
        request=UnitWrite,
        reply=UnitTold,
        rule="admin",
        summary="Write a new version of a unit; versions are immutable.",
        refusals=(409,),
        successes=(200, 201),
    ),
    instruction_route(
        "GET",
        f"{_AGENT}/boot-stub",
        get_stub,
        request=StubQuery,
        summary="The agent's boot stub.",
        content_type=MARKDOWN,
    ),
    instruction_route(
        "GET",
        f"{_AGENT}/instruction-manifest",
        get_manifest,
        request=OneAgent,
        reply=ManifestTold,
        summary="The agent's manifest: the units it can load.",
    ),
    instruction_route(
        "PUT",
        f"{_AGENT}/instruction-manifest",
        put_manifest,
        request=ManifestWrite,
        reply=ManifestPublished,
        rule="admin",
        summary="Publish a manifest if it passes all checks.",
        unfit=lambda field: "manifest_entry_invalid",
        refusals=(409,),
    ),
    instruction_route(
        "POST",
        f"{_AGENT}/recall-instruction",
        recall_instruction,
        request=RecallAsk,
        reply=RecallTold,
        who=check_may_recall,
        retry_code=RETRY,
        summary="Recall the units that match an intent.",
        unfit=lambda field: "intent_required" if field == "intent" else "invalid_body",
        refusals=(503,),
    ),
    instruction_route(
        "POST",
        "/v1/recall",
        recall_scope,
        request=ScopeRecall,
        reply=RecallTold,
        who=check_has_instructions,
        retry_code=RETRY,
        summary="Recall by scope, with optional weights.",
        unfit=lambda field: {"intent": "intent_required", "scope": "invalid_scope"}.get(field, "invalid_body"),
        refusals=(503,),
    ),
    *instruction_usage.ROUTES,
    instruction_route(
        "POST",
        f"{_AGENT}/heartbeat",
        begin_heartbeat,
        request=HeartbeatAsk,
        reply=HeartbeatTold,
        summary="Begin a heartbeat with the signed wake token of its trigger.",
        unfit=lambda field: "wake_token_required",
        refusals=(409, 503),
    ),
    *instruction_reviews.ROUTES,
)
