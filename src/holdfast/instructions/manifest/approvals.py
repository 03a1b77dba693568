"""Pending unit versions: which approvals a new text needs before it replaces the active version."""

from collections.abc import Sequence

import msgspec

from holdfast.instructions.context import InstructionContext
from holdfast.instructions.models import Agent, Approval, ApprovalKind, Manifest, ManifestEntry, UnitVersion
from holdfast.instructions.recall.snapshot import select_newest_units, unit_key
from holdfast.instructions.uri import is_newer, is_shared_owner, parse_version_numbers

ATTEMPTS_MAX = 3


class PendingUnit(msgspec.Struct, frozen=True):
    """`replaces_uri` is the URI of the version that is active meanwhile; `missing_approvals` are this agent's.

    `agents_missing_approval` are the ids of other agents whose approval is missing; `judged_manifest_ids` are the ids
    of their manifests.
    """

    entry: ManifestEntry
    unit: UnitVersion
    replaces_uri: str | None
    judged_manifest_ids: tuple[str, ...]
    missing_approvals: tuple[ApprovalKind, ...]
    agents_missing_approval: tuple[str, ...]

    @property
    def is_ready(self) -> bool:
        return not (self.missing_approvals or self.agents_missing_approval)

    @property
    def summary(self) -> str:
        """One line that names the missing approvals."""
        kinds = [*self.missing_approvals, *(f"that of {agent_id}" for agent_id in self.agents_missing_approval)]
        return f"{self.entry.name}: {self.unit.version} is not active until it is approved ({', '.join(kinds)})"


def required_approvals(entry: ManifestEntry) -> tuple[ApprovalKind, ...]:
    """Which approvals a new version needs before it replaces the active one."""
    kinds: list[ApprovalKind] = []
    if entry.guarantee_load:
        kinds.append("guarantee_load")
    if entry.force_position:
        kinds.append("force_prepend")
    if entry.required_by_task_types:
        kinds.append("task_types")
    return tuple(kinds)


def missing_approvals(
    entry: ManifestEntry, unit: UnitVersion, approvals: Sequence[Approval]
) -> tuple[ApprovalKind, ...]:
    """The approvals that are missing for this version; `force_prepend` counts only with a review as its reason.

    An approval dated before the version was written does not count, because its author cannot have seen the text.
    """
    approved_kinds = {
        approval.kind
        for approval in approvals
        if (approval.unit, approval.version) == (entry.name, unit.version)
        and approval.authored_at >= unit.authored_at
        and (approval.kind != "force_prepend" or approval.reason.strip())
    }
    return tuple(kind for kind in required_approvals(entry) if kind not in approved_kinds)


def find_active_version(versions: Sequence[UnitVersion]) -> UnitVersion | None:
    active = [unit for unit in versions if unit.status == "active" and unit.valid_until is None]
    return next(iter(select_newest_units(active).values()), None)


def list_pending_units(
    context: InstructionContext, agent: Agent, entry: ManifestEntry, approvals: Sequence[Approval]
) -> tuple[PendingUnit, ...]:
    """Pending versions of a unit that are newer than the active one, oldest first; older ones are obsolete."""
    owner, name = unit_key(entry, agent)
    manifest_ids = _other_manifest_ids(context, agent, owner, name)
    versions = context.records.list_unit_versions(owner, name) if owner else ()
    active = find_active_version(versions)
    return tuple(
        PendingUnit(
            entry,
            unit,
            active.uri if active else None,
            manifest_ids,
            missing_approvals(entry, unit, approvals),
            _agents_missing_approval(context, agent, unit),
        )
        for unit in versions
        if unit.status == "pending" and (active is None or may_replace(unit, active))
    )


def find_releasable_unit(
    context: InstructionContext, agent: Agent, entry: ManifestEntry, approvals: Sequence[Approval]
) -> PendingUnit | None:
    """The newest pending version that has all its approvals."""
    ready = [pending for pending in list_pending_units(context, agent, entry, approvals) if pending.is_ready]
    newest_unit = next(iter(select_newest_units([pending.unit for pending in ready]).values()), None)
    return next((pending for pending in ready if pending.unit is newest_unit), None)


def record_approvals(
    context: InstructionContext, agent: Agent, approvals: Sequence[Approval], *, unit: str | None, version: str | None
) -> tuple[str, ...]:
    """Record approvals of one version; activate it if none is missing any more, and return its URI then."""
    _, entries = _entries_for(context, agent, unit)
    approved_version = find_unit_version(context, agent, entries[0] if entries else None, version)
    for approval in approvals:
        context.records.add_approval(date_after_version(approval, approved_version), agent=agent)
    # Another replica may activate or publish meanwhile; the store then refuses, and the state is read again.
    for _ in range(ATTEMPTS_MAX):
        listing, entries = _entries_for(context, agent, unit)
        recorded = context.records.approvals(agent.id)
        pending_by_entry = (list_pending_units(context, agent, entry, recorded) for entry in entries)
        requested = [pending for units in pending_by_entry for pending in units if pending.unit.version == version]
        if not requested or not all(pending.is_ready for pending in requested):
            return ()
        ready = requested[0]
        manifest_ids = (*ready.judged_manifest_ids, listing)
        if context.records.activate_unit(
            ready.unit, replaces_uri=ready.replaces_uri, manifest_ids=manifest_ids, at=context.now()
        ):
            return (ready.unit.uri,)
    return ()


def date_after_version(approval: Approval, unit: UnitVersion | None) -> Approval:
    """Date an approval no earlier than the version it is for, because the clocks of two replicas may differ."""
    at = approval.authored_at if unit is None else max(approval.authored_at, unit.authored_at)
    return msgspec.structs.replace(approval, authored_at=at)


def _entries_for(context: InstructionContext, agent: Agent, unit: str | None) -> tuple[str, tuple[ManifestEntry, ...]]:
    """The id of the agent's manifest, its entry of this name, and other entries that point at the same unit."""
    manifest = context.records.manifest(agent.id)
    entry = next((listed for listed in manifest.body if listed.name == unit), None) if manifest else None
    if manifest is None or entry is None:
        return "", ()
    key = unit_key(entry, agent)
    same = (listed for listed in manifest.body if listed is not entry and unit_key(listed, agent) == key)
    return manifest.id, (entry, *same)


def _other_manifest_ids(context: InstructionContext, agent: Agent, owner: str, name: str) -> tuple[str, ...]:
    """Ids of other agents' manifests; read before the checks, so that the store can detect one published since."""
    manifests = context.records.manifests_listing(owner, name) if is_shared_owner(owner) else ()
    return tuple(manifest.id for manifest in manifests if manifest.agent_id != agent.id)


def find_unit_version(
    context: InstructionContext, agent: Agent, entry: ManifestEntry | None, version: str | None
) -> UnitVersion | None:
    owner, name = unit_key(entry, agent) if entry else ("", "")
    versions = context.records.list_unit_versions(owner, name) if owner and version else ()
    return next((unit for unit in versions if unit.version == version), None)


def list_unit_entries(
    context: InstructionContext, agent: Agent | None, manifest: Manifest | None, unit: UnitVersion
) -> tuple[tuple[Agent, ManifestEntry], ...]:
    """Entries that point at the unit: its own agent's, or those of all agents if the unit is shared."""
    if is_shared_owner(unit.agent_id):
        manifests = context.records.manifests_listing(unit.agent_id, unit.name)
        listing = [(context.records.agent(listed.agent_id), listed) for listed in manifests]
    else:
        listing = [(agent, manifest)] if manifest is not None else []
    return tuple(
        (other, entry)
        for other, listed in listing
        if other is not None
        for entry in listed.body
        if unit_key(entry, other) == (unit.agent_id, unit.name)
    )


def _agents_missing_approval(context: InstructionContext, agent: Agent, unit: UnitVersion) -> tuple[str, ...]:
    """Other agents that preload the unit and have not approved this version."""
    if not is_shared_owner(unit.agent_id):
        return ()
    agent_ids = []
    for other, entry in list_unit_entries(context, None, None, unit):
        if other.id != agent.id and missing_approvals(entry, unit, context.records.approvals(other.id)):
            agent_ids.append(other.id)
    return tuple(dict.fromkeys(agent_ids))


def may_replace(unit: UnitVersion, active: UnitVersion) -> bool:
    """Whether a version may replace another: by number, or by time if one of them has no number."""
    if parse_version_numbers(unit.version) is None or parse_version_numbers(active.version) is None:
        return unit.authored_at >= active.authored_at
    return is_newer(unit.version, active.version)
