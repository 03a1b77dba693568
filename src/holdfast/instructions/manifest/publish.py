"""Publish a manifest: run the checks from cheap to expensive, then commit only if the checked state is current."""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.instructions.access import InstructionCaller
from holdfast.instructions.context import InstructionContext, make_agent
from holdfast.instructions.coverage.measure import GATE_K, scale_k
from holdfast.instructions.coverage.schedule import run_coverage
from holdfast.instructions.errors import InstructionError
from holdfast.instructions.manifest import validate
from holdfast.instructions.manifest.approvals import (
    PendingUnit,
    date_after_version,
    find_releasable_unit,
    find_unit_version,
    list_pending_units,
    required_approvals,
)
from holdfast.instructions.manifest.lint import credential_warnings, guarantee_warnings
from holdfast.instructions.manifest.validate import ManifestDraft, SubmittedApproval
from holdfast.instructions.models import (
    Agent,
    Approval,
    AuditRecord,
    Manifest,
    ManifestEntry,
    Provenance,
    UnitCoverage,
    UnitVersion,
)
from holdfast.instructions.recall.boot_stub import check_stub_size
from holdfast.instructions.recall.snapshot import select_newest_units, unit_key
from holdfast.instructions.units.files import check_entry_path
from holdfast.instructions.units.signatures import is_signed_by_author
from holdfast.instructions.uri import parse_unit_uri

# The gate runs outside of the transaction, because it takes long; the commit is a compare-and-swap on the current
# manifest, and a lost race is tried again this often.
ATTEMPTS_MAX = 3
RECERT_MS = 7 * 86_400_000


class PublicationResult(msgspec.Struct, frozen=True):
    manifest: Manifest
    coverage: tuple[UnitCoverage, ...]
    gate_skipped: bool
    warnings: tuple[str, ...]


class PublicationRequest(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    draft: ManifestDraft
    skip_coverage_gate: bool = False
    approvals: tuple[SubmittedApproval, ...] = ()
    began_at: int | None = None


def publish_manifest(
    context: InstructionContext, publication: PublicationRequest, caller: InstructionCaller
) -> PublicationResult:
    """Raises InstructionError for the first check that fails; then nothing was changed."""
    draft = publication.draft
    registered = context.records.agent(publication.agent_id)
    agent = registered or make_agent(context, publication.agent_id)
    validate.check_entries(draft)
    validate.check_unique_names(draft)
    validate.check_pointers(draft, deployment=context.settings.deployment, agent_names=agent.names)
    for entry in draft.entries:
        if entry.path is not None:
            check_entry_path(context.settings.root, agent.id, entry)
    validate.check_task_types(draft, context.settings.wake_reasons)
    valid = select_valid_approvals(context, agent, publication.approvals, caller)
    added = _bind_approvals(context, agent, draft, valid)
    served = _served_units(context, agent, draft, _released_units(context, agent, draft, added))
    approvals = _applicable_approvals(context, agent, draft, served=served, added=added)
    cosigners = _cosigners(draft, approvals, caller)
    if publication.skip_coverage_gate:
        validate.check_gate_skip(draft, cosigners)
    validate.check_guaranteed_cap(draft)
    validate.check_manifest_size(draft)
    provenance = Provenance(
        caller.author,
        tuple(approval.id for approval in approvals),
        publication.skip_coverage_gate,
        cosigners if publication.skip_coverage_gate else (),
        publication.began_at,
    )
    for _ in range(ATTEMPTS_MAX):
        published = _attempt(context, publication, agent, added=added, provenance=provenance)
        if published is not None:
            return published
    message = "other publications for this agent kept winning the race; try again"
    raise InstructionError("manifest_version_conflict", message)


def _attempt(
    context: InstructionContext,
    publication: PublicationRequest,
    agent: Agent,
    *,
    added: Sequence[Approval],
    provenance: Provenance,
) -> PublicationResult | None:
    """Return None if another manifest was published meanwhile, or if another version of a unit became active."""
    draft, skip = publication.draft, publication.skip_coverage_gate
    current = context.records.manifest(agent.id)
    current_version = current.version if current else None
    validate.check_manifest_version(draft.version, current_version, earlier=context.records.manifest_versions(agent.id))
    manifest = _build_manifest(context, draft, agent, current=current, provenance=provenance)
    check_stub_size(agent, manifest)
    released = _released_units(context, agent, draft, added)
    served = _served_units(context, agent, draft, released)
    # Checked again per attempt: a text written since the last attempt has no approval yet.
    _applicable_approvals(context, agent, draft, served=served, added=added)
    instead = {pending.entry.name: pending.unit for pending in released}
    instruction_set = context.instruction_sets.build(agent, manifest, instead=instead)
    run = run_coverage(context, instruction_set, kind="gate")
    failing_units = tuple(unit for unit in run.units if not unit.passed)
    if failing_units and not skip:
        raise coverage_failure_error(failing_units)
    if skip:
        run = msgspec.structs.replace(run, skipped=True, recert_due=run.started_at + RECERT_MS)
    # A skipped gate is still measured, and the real numbers are stored and audited.
    events = (_bypass_record(context, manifest, failing_units, provenance),) if skip else ()
    activates = {
        pending.unit.uri: (pending.unit, pending.replaces_uri, pending.judged_manifest_ids) for pending in released
    }
    # Everything that the checks relied on is passed along: the store commits only if it is all still true.
    is_committed = context.records.publish(
        manifest,
        over=current.id if current else None,
        registers=agent,
        run=run,
        approvals=added,
        events=events,
        activates=tuple(activates.values()),
        holds=_pinned_uris(draft, served, released),
    )
    if not is_committed:
        return None
    soft_max = context.settings.guaranteed_units_soft_max
    warnings = (
        *_warnings(manifest, run.units, tuple(instruction_set.contents)),
        *describe_pending_units(context, agent, draft.entries),
        *credential_warnings(draft.entries, {name: content.text for name, content in instruction_set.contents.items()}),
        *guarantee_warnings(draft.entries, context.records.guaranteed_count(), soft_max),
    )
    return PublicationResult(manifest, run.units, skip, warnings)


def _build_manifest(
    context: InstructionContext, draft: ManifestDraft, agent: Agent, *, current: Manifest | None, provenance: Provenance
) -> Manifest:
    now = context.now()
    return Manifest(
        context.new_id("manifest"),
        agent.id,
        draft.version,
        validate.manifest_address(agent.deployment, agent.id, draft.version).uri,
        draft.token_count,
        draft.entries,
        # Two manifests within one millisecond still need distinct start times, so that a lookup by time finds one.
        max(now, current.created_at + 1) if current else now,
        validate.infer_migration_mode(draft.entries),
        provenance,
    )


def describe_pending_units(
    context: InstructionContext, agent: Agent, entries: Sequence[ManifestEntry]
) -> tuple[str, ...]:
    """One line per unit that has a newer version pending approval."""
    approvals = context.records.approvals(agent.id)
    newest_pending = (list_pending_units(context, agent, entry, approvals)[-1:] for entry in entries)
    return tuple(pending.summary for pending_units in newest_pending for pending in pending_units)


def _released_units(
    context: InstructionContext, agent: Agent, draft: ManifestDraft, added: Sequence[Approval]
) -> tuple[PendingUnit, ...]:
    """Pending versions that become active with this manifest and the approvals sent along with it.

    An approval sent along that names no version applies to the version that the manifest names.
    """
    versions = _versions(draft.entries)
    versioned = (
        msgspec.structs.replace(approval, version=versions.get(approval.unit or ""))
        if approval.version is None
        else approval
        for approval in added
    )
    approvals = (*context.records.approvals(agent.id), *versioned)
    entries = draft.entries
    candidates = [(unit_key(entry, agent), find_releasable_unit(context, agent, entry, approvals)) for entry in entries]
    # If two entries point at one unit, it is released for both or for neither.
    return tuple(
        pending
        for unit, pending in candidates
        if pending is not None
        and all(other and other.unit.uri == pending.unit.uri for same, other in candidates if same == unit)
    )


def select_valid_approvals(
    context: InstructionContext, agent: Agent, submitted: Sequence[SubmittedApproval], caller: InstructionCaller
) -> tuple[Approval, ...]:
    """The approvals that are valid: the caller's own, and those signed by their authors."""
    valid = []
    for submission in submitted:
        approval_id = context.new_id("approval")
        approval = submission.as_approval(approval_id, agent.id, sender=caller.author, at=context.now())
        is_own = approval.authored_by == caller.author
        if is_own or is_signed_by_author(approval, context.records.signers(at=context.now())):
            valid.append(approval)
    return tuple(valid)


def coverage_failure_error(failing: Sequence[UnitCoverage]) -> InstructionError:
    details = [
        {
            "unit": unit.unit,
            "coverage_pct": unit.coverage_pct,
            "scaled_pct": unit.scaled_pct,
            "failures": [{"query": probe.query, "found_instead": probe.found_instead} for probe in unit.failures],
        }
        for unit in failing
    ]
    names = ", ".join(unit.unit for unit in failing)
    return InstructionError(
        "manifest_coverage_failure",
        f"too few paraphrases of the intents find these units: {names}",
        details={"units": details},
    )


def _served_units(
    context: InstructionContext, agent: Agent, draft: ManifestDraft, ready: Sequence[PendingUnit]
) -> dict[str, UnitVersion]:
    """By entry name, the version that recalls will serve: the newest released one, whatever the manifest names."""
    pointers = {entry.name: unit_key(entry, agent) for entry in draft.entries}
    owners = sorted({owner for owner, _ in pointers.values() if owner})
    newest = select_newest_units(context.records.units_at(owners, None))
    active = {name: unit for name, address in pointers.items() if (unit := newest.get(address)) is not None}
    return active | {pending.entry.name: pending.unit for pending in ready}


def _applicable_approvals(
    context: InstructionContext,
    agent: Agent,
    draft: ManifestDraft,
    *,
    served: Mapping[str, UnitVersion],
    added: Sequence[Approval],
) -> tuple[Approval, ...]:
    """The approvals that apply to the served versions. Raises InstructionError if one is missing."""
    named, versions = _versions(draft.entries), {name: unit.version for name, unit in served.items()}
    current = context.records.manifest(agent.id)
    # A recorded approval without a version is for the version that was listed when it was recorded.
    before = named | (_versions(current.body) if current else {})
    candidates = [(approval, before) for approval in context.records.approvals(agent.id)]
    candidates += [(approval, named) for approval in added]
    approvals = tuple(
        approval
        for approval, defaults in candidates
        if _applies(approval, draft, default_versions=defaults, served_versions=versions)
    )
    validate.check_approvals(draft, approvals, versions)
    return approvals


def _applies(
    approval: Approval, draft: ManifestDraft, *, default_versions: Mapping[str, str], served_versions: Mapping[str, str]
) -> bool:
    """An approval covers one version of a unit and no other; a file has no versions."""
    if approval.kind == "skip_gate":
        return approval.version in (None, draft.version)
    unit = approval.unit or ""
    if unit not in served_versions and unit not in default_versions:
        return True
    return (approval.version or default_versions.get(unit)) == served_versions.get(unit, default_versions.get(unit))


def _bind_approvals(
    context: InstructionContext, agent: Agent, draft: ManifestDraft, added: Sequence[Approval]
) -> tuple[Approval, ...]:
    """Bind approvals sent along with a manifest to the versions it names, dated no earlier than those versions."""
    named, entries, resolved = _versions(draft.entries), {entry.name: entry for entry in draft.entries}, []
    for approval in added:
        unit = approval.unit or ""
        # The version is part of the signed message: filling it in would invalidate the signature.
        may_bind = approval.signature is None and approval.kind != "skip_gate"
        version = approval.version or (named.get(unit) if may_bind else None)
        text = find_unit_version(context, agent, entries.get(unit), version)
        resolved.append(date_after_version(msgspec.structs.replace(approval, version=version), text))
    return tuple(resolved)


def _pinned_uris(
    draft: ManifestDraft, served: Mapping[str, UnitVersion], ready: Sequence[PendingUnit]
) -> tuple[str, ...]:
    """URIs of approved or preloaded versions that must still be the active ones when the manifest is committed."""
    replaced = {pending.entry.name for pending in ready}
    preloaded = (entry.name for entry in draft.entries if required_approvals(entry))
    return tuple(sorted({served[name].uri for name in preloaded if name in served and name not in replaced}))


def _versions(entries: Sequence[ManifestEntry]) -> dict[str, str]:
    return {entry.name: parse_unit_uri(entry.fact_uri).version for entry in entries if entry.fact_uri is not None}


def _cosigners(draft: ManifestDraft, approvals: Sequence[Approval], caller: InstructionCaller) -> tuple[str, ...]:
    """Distinct people by entity URI, because two keys of one person count once."""
    skips = (approval for approval in approvals if approval.kind == "skip_gate" and approval.version == draft.version)
    authors = {approval.authored_by for approval in skips} | ({caller.entity} if caller.entity else set())
    return tuple(sorted(author for author in authors if not author.startswith("key:")))


def _bypass_record(
    context: InstructionContext, manifest: Manifest, failing: Sequence[UnitCoverage], provenance: Provenance
) -> AuditRecord:
    now = context.now()
    return AuditRecord(
        id=context.new_id("audevent"),
        agent_id=manifest.agent_id,
        heartbeat_id=manifest.id,
        session_start=now,
        intent=f"coverage_bypass:{manifest.version}",
        loaded_chunks=(),
        audit_token=context.new_id("audi"),
        created_at=now,
        event_type="coverage_bypass",
        detail={
            "units": [{"unit": unit.unit, "coverage_pct": unit.coverage_pct} for unit in failing],
            "published_by": provenance.published_by,
            "cosigned_by": provenance.cosigned_by,
        },
    )


def _warnings(manifest: Manifest, units: Sequence[UnitCoverage], available: Sequence[str]) -> tuple[str, ...]:
    warnings = []
    k = scale_k(len(manifest.body))
    for unit in units:
        if unit.status == "no_probes":
            warnings.append(f"{unit.unit}: it has no intents, so its coverage is unknown")
        elif k < GATE_K and unit.scaled_pct is not None and unit.scaled_pct < 0.8 <= (unit.coverage_pct or 0.0):
            warnings.append(f"{unit.unit}: only {unit.scaled_pct:.0%} of its paraphrases rank it among the first {k}")
    warnings += [
        f"{entry.name}: unit_unavailable; it has no text that can be recalled"
        for entry in manifest.body
        if entry.name not in available
    ]
    return tuple(warnings)
