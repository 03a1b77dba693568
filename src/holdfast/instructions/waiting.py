"""Versions that wait: what must be approved before a new text of a unit takes the place of the one before it."""

from collections.abc import Sequence

import msgspec

from holdfast.instructions.addresses import is_newer, is_of_many, version_numbers
from holdfast.instructions.library import Library
from holdfast.instructions.shelves import newest_units, owner_of
from holdfast.instructions.values import Agent, Approval, ApprovalKind, Entry, Manifest, UnitVersion

ATTEMPTS_MAX = 3


class Waiting(msgspec.Struct, frozen=True):
    """`over` is the address of what is told meanwhile; `lacks` are the approvals of this agent that are missing.

    `judged` are the ids of the manifests of others that say what is needed.
    """

    entry: Entry
    unit: UnitVersion
    over: str | None
    judged: tuple[str, ...]
    lacks: tuple[ApprovalKind, ...]
    others_lack: tuple[str, ...]

    @property
    def is_ready(self) -> bool:
        return not (self.lacks or self.others_lack)

    @property
    def told(self) -> str:
        """One line that says what to do."""
        kinds = [*self.lacks, *(f"that of {agent_id}" for agent_id in self.others_lack)]
        return f"{self.entry.name}: {self.unit.version} is not told before it is approved ({', '.join(kinds)})"


def needed_kinds(entry: Entry) -> tuple[ApprovalKind, ...]:
    """Which approvals a new version needs before it takes the place of the one before it."""
    kinds: list[ApprovalKind] = []
    if entry.guarantee_load:
        kinds.append("guarantee_load")
    if entry.force_position:
        kinds.append("force_prepend")
    if entry.required_by_task_types:
        kinds.append("task_types")
    return tuple(kinds)


def lacking_kinds(entry: Entry, unit: UnitVersion, approvals: Sequence[Approval]) -> tuple[ApprovalKind, ...]:
    """Those that nobody has given for this version; one to stand first says what the review of its text has found.

    Who approves of a version before it is written has seen nothing of it, and has approved nothing.
    """
    given = {
        one.kind
        for one in approvals
        if (one.unit, one.version) == (entry.name, unit.version)
        and one.authored_at >= unit.authored_at
        and (one.kind != "force_prepend" or one.reason.strip())
    }
    return tuple(kind for kind in needed_kinds(entry) if kind not in given)


def holding(versions: Sequence[UnitVersion]) -> UnitVersion | None:
    """The version of a unit that is told now."""
    held = [one for one in versions if one.status == "active" and one.valid_until is None]
    return next(iter(newest_units(held).values()), None)


def waiting_units(library: Library, agent: Agent, entry: Entry, approvals: Sequence[Approval]) -> tuple[Waiting, ...]:
    """Versions of a unit that could follow what is told, oldest first; what is older than that waits for nothing."""
    owner, name = owner_of(entry, agent)
    judged = _ids_of_others(library, agent, owner, name)
    versions = library.records.versions_of(owner, name) if owner else ()
    held = holding(versions)
    found = []
    for unit in versions:
        if unit.status != "pending" or (held is not None and not follows(unit, held)):
            continue
        lacks = lacking_kinds(entry, unit, approvals)
        over, others_lack = (held.uri if held else None), _others_lack(library, agent, unit)
        found.append(Waiting(entry, unit, over, judged, lacks, others_lack))
    return tuple(found)


def ready_unit(library: Library, agent: Agent, entry: Entry, approvals: Sequence[Approval]) -> Waiting | None:
    """The newest that nothing keeps back any more."""
    ready = [one for one in waiting_units(library, agent, entry, approvals) if one.is_ready]
    newest = next(iter(newest_units([one.unit for one in ready]).values()), None)
    return next((one for one in ready if one.unit is newest), None)


def record_approved(
    library: Library, agent: Agent, approvals: Sequence[Approval], *, unit: str | None, version: str | None
) -> tuple[str, ...]:
    """Put approvals of one version on record; its address if that one waits, and nothing is missing any more."""
    _, entries = _listed(library, agent, unit)
    found = version_of(library, agent, entries[0] if entries else None, version)
    for one in approvals:
        library.records.add_approval(not_before(one, found), registers=agent)
    for _ in range(ATTEMPTS_MAX):
        listing, entries = _listed(library, agent, unit)
        recorded = library.records.approvals(agent.id)
        waiting = [one for entry in entries for one in waiting_units(library, agent, entry, recorded)]
        asked = [one for one in waiting if one.unit.version == version]
        if not asked or not all(one.is_ready for one in asked):
            return ()
        ready = asked[0]
        judged = (*ready.judged, listing)
        if library.records.activate_unit(ready.unit, over=ready.over, judged=judged, at=library.now()):
            return (ready.unit.uri,)
    return ()


def not_before(approval: Approval, unit: UnitVersion | None) -> Approval:
    """What is there is older than its approval, whatever the clocks of two replicas say."""
    at = approval.authored_at if unit is None else max(approval.authored_at, unit.authored_at)
    return msgspec.structs.replace(approval, authored_at=at)


def _listed(library: Library, agent: Agent, unit: str | None) -> tuple[str, tuple[Entry, ...]]:
    """The id of the manifest of an agent, its entry of this name, and others that mean the same unit."""
    manifest = library.records.manifest(agent.id)
    entry = next((one for one in manifest.body if one.name == unit), None) if manifest else None
    if manifest is None or entry is None:
        return "", ()
    same = (one for one in manifest.body if one is not entry and owner_of(one, agent) == owner_of(entry, agent))
    return manifest.id, (entry, *same)


def _ids_of_others(library: Library, agent: Agent, owner: str, name: str) -> tuple[str, ...]:
    """Read before anything is judged by them: one that comes later is none of them."""
    manifests = library.records.manifests_listing(owner, name) if is_of_many(owner) else ()
    return tuple(one.id for one in manifests if one.agent_id != agent.id)


def version_of(library: Library, agent: Agent, entry: Entry | None, version: str | None) -> UnitVersion | None:
    owner, name = owner_of(entry, agent) if entry else ("", "")
    versions = library.records.versions_of(owner, name) if owner and version else ()
    return next((one for one in versions if one.version == version), None)


def listings(
    library: Library, agent: Agent | None, manifest: Manifest | None, unit: UnitVersion
) -> tuple[tuple[Agent, Entry], ...]:
    """Whose entries mean the unit: those of its agent, or those of all agents where it is kept for many."""
    if is_of_many(unit.agent_id):
        manifests = library.records.manifests_listing(unit.agent_id, unit.name)
        listing = [(library.records.agent(one.agent_id), one) for one in manifests]
    else:
        listing = [(agent, manifest)] if manifest is not None else []
    return tuple(
        (other, entry)
        for other, one in listing
        if other is not None
        for entry in one.body
        if owner_of(entry, other) == (unit.agent_id, unit.name)
    )


def _others_lack(library: Library, agent: Agent, unit: UnitVersion) -> tuple[str, ...]:
    """Agents beside this one that load the unit unasked and have not approved it."""
    if not is_of_many(unit.agent_id):
        return ()
    found = []
    for other, entry in listings(library, None, None, unit):
        if other.id != agent.id and lacking_kinds(entry, unit, library.records.approvals(other.id)):
            found.append(other.id)
    return tuple(dict.fromkeys(found))


def follows(unit: UnitVersion, held: UnitVersion) -> bool:
    """Whether a version may take the place of another; where numbers cannot tell, the later one may."""
    if version_numbers(unit.version) is None or version_numbers(held.version) is None:
        return unit.authored_at >= held.authored_at
    return is_newer(unit.version, held.version)
