"""Publish a manifest: run the checks from cheap to expensive, then commit only if the checked state is current."""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from holdfast.errors import InstructionError
from holdfast.instructions.access import InstructionCaller
from holdfast.instructions.context import InstructionContext, make_agent
from holdfast.instructions.coverage.measure import GATE_K, scale_k
from holdfast.instructions.coverage.schedule import run_coverage
from holdfast.instructions.manifest import validate
from holdfast.instructions.manifest.approvals import (
    PendingUnit,
    date_after_version,
    find_releasable_unit,
    find_unit_version,
    list_pending_units,
    required_approvals,
)
from holdfast.instructions.manifest.check import credential_warnings, guarantee_warnings
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
    context: InstructionContext, request: PublicationRequest, caller: InstructionCaller
) -> PublicationResult:
    """Raises InstructionError for the first check that fails; then nothing was changed."""
    return _Publication(context, request, caller).run()


class _Publication:
    """One publication in progress. `_added` are the approvals sent along that are valid."""

    def __init__(self, context: InstructionContext, request: PublicationRequest, caller: InstructionCaller) -> None:
        self._context, self._records, self._settings = context, context.records, context.settings
        self._request, self._caller = request, caller
        self._draft, self._skip = request.draft, request.skip_coverage_gate
        self._agent = context.records.agent(request.agent_id) or make_agent(context, request.agent_id)
        self._added: tuple[Approval, ...] = ()

    def run(self) -> PublicationResult:
        draft, agent = self._draft, self._agent
        validate.check_entries(draft)
        validate.check_unique_names(draft)
        validate.check_pointers(draft, deployment=self._settings.deployment, agent_names=agent.names)
        for entry in draft.entries:
            if entry.path is not None:
                check_entry_path(self._settings.root, agent.id, entry)
        validate.check_task_types(draft, self._settings.wake_reasons)
        self._added = self._bind_approvals()
        approvals = self._applicable_approvals(self._served_units(self._released_units()))
        cosigners = self._cosigners(approvals)
        if self._skip:
            validate.check_gate_skip(draft, cosigners)
        validate.check_guaranteed_cap(draft)
        validate.check_manifest_size(draft)
        approval_ids = tuple(approval.id for approval in approvals)
        skippers = cosigners if self._skip else ()
        provenance = Provenance(self._caller.author, approval_ids, self._skip, skippers, self._request.began_at)
        for _ in range(ATTEMPTS_MAX):
            published = self._attempt(provenance)
            if published is not None:
                return published
        message = "other publications for this agent kept winning the race; try again"
        raise InstructionError("manifest_version_conflict", message)

    def _attempt(self, provenance: Provenance) -> PublicationResult | None:
        """Return None if another manifest was published meanwhile, or if another version of a unit became active."""
        draft, agent, records = self._draft, self._agent, self._records
        current = records.manifest(agent.id)
        current_version = current.version if current else None
        validate.check_manifest_version(draft.version, current_version, earlier=records.manifest_versions(agent.id))
        manifest = self._build_manifest(current, provenance)
        check_stub_size(agent, manifest)
        released = self._released_units()
        served = self._served_units(released)
        # Checked again per attempt: a text written since the last attempt has no approval yet.
        self._applicable_approvals(served)
        instead = {pending.entry.name: pending.unit for pending in released}
        instruction_set = self._context.instruction_sets.build(agent, manifest, instead=instead)
        run = run_coverage(self._context, instruction_set, kind="gate")
        failing_units = tuple(unit for unit in run.units if not unit.passed)
        if failing_units and not self._skip:
            raise _coverage_failure_error(failing_units)
        if self._skip:
            run = msgspec.structs.replace(run, skipped=True, recert_due=run.started_at + RECERT_MS)
        activates = {
            pending.unit.uri: (pending.unit, pending.replaces_uri, pending.judged_manifest_ids) for pending in released
        }
        # Everything that the checks relied on is passed along: the store commits only if it is all still true.
        is_committed = records.publish(
            manifest,
            replaces_id=current.id if current else None,
            agent=agent,
            run=run,
            approvals=self._added,
            # A skipped gate is still measured, and the real numbers are stored and audited.
            events=(_bypass_record(self._context, manifest, failing_units),) if self._skip else (),
            activates=tuple(activates.values()),
            pinned_uris=self._pinned_uris(served, replaced=instead.keys()),
        )
        if not is_committed:
            return None
        warnings = self._warnings(run.units, {name: content.text for name, content in instruction_set.contents.items()})
        return PublicationResult(manifest, run.units, self._skip, warnings)

    def _bind_approvals(self) -> tuple[Approval, ...]:
        """Bind approvals sent along with a manifest to the versions it names, dated no earlier than those versions."""
        named, entries = _versions(self._draft.entries), {entry.name: entry for entry in self._draft.entries}
        bound = []
        for approval in select_valid_approvals(self._context, self._agent, self._request.approvals, self._caller):
            unit = approval.unit or ""
            # The version is part of the signed message: filling it in would invalidate the signature.
            may_bind = approval.signature is None and approval.kind != "skip_gate"
            version = approval.version or (named.get(unit) if may_bind else None)
            text = find_unit_version(self._context, self._agent, entries.get(unit), version)
            bound.append(date_after_version(msgspec.structs.replace(approval, version=version), text))
        return tuple(bound)

    def _released_units(self) -> tuple[PendingUnit, ...]:
        """Pending versions that become active with this manifest and the approvals sent along with it.

        An approval sent along that names no version applies to the version that the manifest names.
        """
        context, agent, versions = self._context, self._agent, _versions(self._draft.entries)
        approvals = list(self._records.approvals(agent.id))
        for approval in self._added:
            version = approval.version if approval.version is not None else versions.get(approval.unit or "")
            approvals.append(msgspec.structs.replace(approval, version=version))
        candidates = [
            (unit_key(entry, agent), find_releasable_unit(context, agent, entry, approvals))
            for entry in self._draft.entries
        ]
        # If two entries point at one unit, it is released for both or for neither.
        return tuple(
            pending
            for unit, pending in candidates
            if pending is not None
            and all(other and other.unit.uri == pending.unit.uri for same, other in candidates if same == unit)
        )

    def _served_units(self, released: Sequence[PendingUnit]) -> dict[str, UnitVersion]:
        """By entry name, the version that recalls will serve: the newest released one, whatever the manifest names."""
        pointers = {entry.name: unit_key(entry, self._agent) for entry in self._draft.entries}
        owners = sorted({owner for owner, _ in pointers.values() if owner})
        newest = select_newest_units(self._records.units_at(owners, None))
        active = {name: unit for name, address in pointers.items() if (unit := newest.get(address)) is not None}
        return active | {pending.entry.name: pending.unit for pending in released}

    def _applicable_approvals(self, served: Mapping[str, UnitVersion]) -> tuple[Approval, ...]:
        """The approvals that apply to the served versions. Raises InstructionError if one is missing."""
        named, versions = _versions(self._draft.entries), {name: unit.version for name, unit in served.items()}
        current = self._records.manifest(self._agent.id)
        # A recorded approval without a version is for the version that was listed when it was recorded.
        before = named | (_versions(current.body) if current else {})
        candidates = [(approval, before) for approval in self._records.approvals(self._agent.id)]
        candidates += [(approval, named) for approval in self._added]
        approvals = tuple(approval for approval, defaults in candidates if self._applies(approval, defaults, versions))
        validate.check_approvals(self._draft, approvals, versions)
        return approvals

    def _applies(self, approval: Approval, defaults: Mapping[str, str], served_versions: Mapping[str, str]) -> bool:
        """An approval covers one version of a unit and no other; a file has no versions."""
        if approval.kind == "skip_gate":
            return approval.version in (None, self._draft.version)
        unit = approval.unit or ""
        if unit not in served_versions and unit not in defaults:
            return True
        return (approval.version or defaults.get(unit)) == served_versions.get(unit, defaults.get(unit))

    def _cosigners(self, approvals: Sequence[Approval]) -> tuple[str, ...]:
        """Distinct people by entity URI, because two keys of one person count once."""
        version, entity = self._draft.version, self._caller.entity
        skips = (approval for approval in approvals if approval.kind == "skip_gate" and approval.version == version)
        authors = {approval.authored_by for approval in skips} | ({entity} if entity else set())
        return tuple(sorted(author for author in authors if not author.startswith("key:")))

    def _build_manifest(self, current: Manifest | None, provenance: Provenance) -> Manifest:
        draft, agent, now = self._draft, self._agent, self._context.now()
        return Manifest(
            self._context.new_id("manifest"),
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

    def _pinned_uris(self, served: Mapping[str, UnitVersion], *, replaced: Collection[str]) -> tuple[str, ...]:
        """URIs of approved or preloaded versions that must still be the active ones when the manifest is committed."""
        preloaded = (entry.name for entry in self._draft.entries if required_approvals(entry))
        return tuple(sorted({served[name].uri for name in preloaded if name in served and name not in replaced}))

    def _warnings(self, units: Sequence[UnitCoverage], texts: Mapping[str, str]) -> tuple[str, ...]:
        entries, warnings = self._draft.entries, []
        k = scale_k(len(entries))
        for unit in units:
            if unit.status == "no_probes":
                warnings.append(f"{unit.unit}: it has no intents, so its coverage is unknown")
            elif k < GATE_K and unit.scaled_pct is not None and unit.scaled_pct < 0.8 <= (unit.coverage_pct or 0.0):
                found = f"only {unit.scaled_pct:.0%} of its paraphrases rank it among the first {k}"
                warnings.append(f"{unit.unit}: {found}")
        warnings += [f"{unit.unit}: unit_unavailable; {unit.obstacle}" for unit in units if unit.obstacle is not None]
        warnings += describe_pending_units(self._context, self._agent, entries)
        warnings += credential_warnings(entries, texts)
        soft_max = self._settings.guaranteed_units_soft_max
        return (*warnings, *guarantee_warnings(entries, self._records.guaranteed_count(), soft_max))


def name_approved_version(context: InstructionContext, agent: Agent, approval: SubmittedApproval) -> SubmittedApproval:
    """An approval that names no version is for the newest one there is; a signed one says what its author signed."""
    if approval.unit is None or approval.version is not None or approval.signature is not None:
        return approval
    manifest = context.records.manifest(agent.id)
    listed = manifest.body if manifest else ()
    entry = next((entry for entry in listed if entry.name == approval.unit), None)
    owner, name = unit_key(entry, agent) if entry is not None else (agent.id, approval.unit)
    versions = context.records.list_unit_versions(owner, name) if owner else ()
    trusted = [version for version in versions if version.status != "quarantined"]
    newest = select_newest_units(trusted).get((owner, name))
    return approval if newest is None else msgspec.structs.replace(approval, version=newest.version)


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


def describe_pending_units(
    context: InstructionContext, agent: Agent, entries: Sequence[ManifestEntry]
) -> tuple[str, ...]:
    """One line per unit that has a newer version pending approval."""
    approvals = context.records.approvals(agent.id)
    newest_pending = (list_pending_units(context, agent, entry, approvals)[-1:] for entry in entries)
    return tuple(pending.summary for pending_units in newest_pending for pending in pending_units)


def _versions(entries: Sequence[ManifestEntry]) -> dict[str, str]:
    return {entry.name: parse_unit_uri(entry.fact_uri).version for entry in entries if entry.fact_uri is not None}


def _coverage_failure_error(failing: Sequence[UnitCoverage]) -> InstructionError:
    details = [
        {
            "unit": unit.unit,
            "coverage_pct": unit.coverage_pct,
            "scaled_pct": unit.scaled_pct,
            "obstacle": unit.obstacle,
            "failures": [{"query": probe.query, "found_instead": probe.found_instead} for probe in unit.failures],
        }
        for unit in failing
    ]
    message = f"too few paraphrases of the intents find these units: {', '.join(map(describe_failing_unit, failing))}"
    return InstructionError("manifest_coverage_failure", message, details={"units": details})


def describe_failing_unit(unit: UnitCoverage) -> str:
    return unit.unit if unit.obstacle is None else f"{unit.unit} ({unit.obstacle})"


def _bypass_record(context: InstructionContext, manifest: Manifest, failing: Sequence[UnitCoverage]) -> AuditRecord:
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
            "published_by": manifest.provenance.published_by,
            "cosigned_by": manifest.provenance.cosigned_by,
        },
    )
