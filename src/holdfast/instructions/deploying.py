"""Deploy an instruction folder: check it, publish it, promote it from files to units, roll it back, approve units."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.instructions.addresses import Address, is_newer, read_address, version_numbers
from holdfast.instructions.callers import Caller
from holdfast.instructions.checking import Checked, check_draft, given_approvals
from holdfast.instructions.failures import InstructionError
from holdfast.instructions.library import Library, new_agent, no_manifest
from holdfast.instructions.measures import PROMOTE_MISS_RATE, WINDOW_MS, measured
from holdfast.instructions.migration.folder import InstructionFolder
from holdfast.instructions.migration.proposal import Proposal
from holdfast.instructions.publication import Draft, GivenApproval
from holdfast.instructions.publishing import Publication, Published, counted, publish, waiting_told
from holdfast.instructions.shelves import newest_units, owner_of
from holdfast.instructions.values import Agent, ApprovalKind, Entry, Manifest, UnitVersion
from holdfast.instructions.waiting import holding, lacking_kinds, needed_kinds, record_approved, waiting_units
from holdfast.instructions.writing import GivenUnit, write_unit
from holdfast.sources.confined import EscapeError, PathError, locate, opened_place, roots_of, write_atomically

# Seed 003, section 21.6: recall quality must be seen over at least 5 heartbeats before files are given up.
RECALLS_MIN = 5

Change = Literal["create", "update", "noop", "tombstone"]


class Deployed(msgspec.Struct, frozen=True):
    """`changes` are by unit; `published` is None if the current manifest already lists the same entries.

    `waiting` has one line for each unit whose newest version is pending, with the approvals it needs.
    """

    version: str
    changes: dict[str, Change]
    published: Published | None
    waiting: tuple[str, ...] = ()


class Approved(msgspec.Struct, frozen=True):
    """`activated` is False if another agent that preloads the unit must approve it too."""

    fact_uri: str
    kinds: tuple[ApprovalKind, ...]
    activated: bool


def check_folder(context: Library, folder: InstructionFolder, caller: Caller) -> Checked:
    agent = _folder_agent(context, folder)
    approvals = (
        *context.records.approvals(agent.id),
        *given_approvals(folder.manifest.approvals, agent, caller, at=context.now()),
    )
    current = context.records.manifest(agent.id)
    versions = {
        entry.name: _possible_versions(context, agent, entry, text=folder.texts.get(entry.name), current=current)
        for entry in folder.manifest.entries
    }
    applicable = [
        approval
        for approval in approvals
        if approval.unit is None or approval.version in (None, *versions.get(approval.unit, ()))
    ]
    return check_draft(folder.manifest.draft, folder.texts, agent, settings=context.settings, approvals=applicable)


def _possible_versions(
    context: Library, agent: Agent, entry: Entry, *, text: str | None, current: Manifest | None
) -> tuple[str, ...]:
    """The versions of a unit that can be active once the folder's text is written; approvals of others do not count."""
    owner, name = owner_of(entry, agent)
    if not owner or entry.fact_uri is None:
        return ()
    versions = context.records.versions_of(owner, name)
    newest, active = newest_units(versions).get((owner, name)), holding(versions)
    if text is None or newest is None or _has_text(newest, text):
        return tuple(
            {unit.version for unit in (newest, active) if unit is not None} or {read_address(entry.fact_uri).version}
        )
    needs_approval = any(
        listed.name == entry.name and needed_kinds(listed) for listed in (current.body if current else ())
    )
    coming_version = _version_for(entry, newest)
    return (coming_version, active.version) if needs_approval and active is not None else (coming_version,)


def _version_for(entry: Entry, newest: UnitVersion | None) -> str:
    """The version for a new text: the one that the entry names, or else the successor of the newest."""
    assert entry.fact_uri is not None, "a file has no version"
    named = read_address(entry.fact_uri).version
    return named if newest is None or is_newer(named, newest.version) else next_version(newest.version)


def publish_folder(
    context: Library, folder: InstructionFolder, caller: Caller, *, skip_coverage_gate: bool = False
) -> Deployed:
    """Check everything before writing anything; a changed text becomes a new version. Raises InstructionError."""
    failures = check_folder(context, folder, caller).failures
    failing = [
        failure for failure in failures if not (skip_coverage_gate and failure.code == "manifest_coverage_failure")
    ]
    if failing:
        raise InstructionError(failing[0].code, failing[0].message)
    agent, began = _folder_agent(context, folder), context.now()
    current = context.records.manifest(agent.id)
    deployment = _Deployment(context, agent, caller)
    entries = tuple(deployment.write_entry(entry, folder.texts.get(entry.name)) for entry in folder.manifest.entries)
    deployment.mark_removed(current, entries)
    if not context.records.put_agent(agent):
        raise InstructionError("shortname_taken", "another agent has this name")
    if current is not None and current.body == entries:
        return Deployed(current.version, deployment.changes, None, waiting_told(context, agent, entries))
    wanted = folder.manifest.version
    version = wanted if current is None or is_newer(wanted, current.version) else next_version(current.version)
    draft = Draft(version, entries, folder.manifest.migration_mode)
    publication = Publication(
        agent_id=agent.id,
        draft=draft,
        skip_coverage_gate=skip_coverage_gate,
        approvals=folder.manifest.approvals,
        began_at=began,
    )
    published = publish(context, publication, caller)
    return Deployed(version, deployment.changes, published, waiting_told(context, agent, entries))


def write_units(context: Library, proposal: Proposal, caller: Caller) -> dict[str, Change]:
    """Write each text of a proposal as a signed unit version, without touching manifest, stub or files."""
    agent = context.records.agent(proposal.agent_id) or new_agent(context, proposal.agent_id)
    deployment = _Deployment(context, agent, caller)
    for unit in proposal.units:
        deployment.write_entry(msgspec.structs.replace(unit.entry, path=None), unit.content)
    return deployment.changes


def promote(context: Library, agent_name: str, caller: Caller, *, force: bool = False) -> Published:
    """Switch from files and units to units alone, once a week of recalls has shown a low miss rate."""
    agent, manifest = _require_published(context, agent_name)
    if manifest.migration_mode != "coexistence":
        raise InstructionError(
            "promotion_refused", f"the manifest has migration_mode {manifest.migration_mode}, not coexistence"
        )
    reason = _promotion_blocker(context, manifest)
    if reason is not None and (agent.sensitive or not force):
        suffix = "; the agent is flagged sensitive, so this cannot be overridden" if agent.sensitive and force else ""
        raise InstructionError("promotion_refused", f"{reason}{suffix}")
    file_only = [entry.name for entry in manifest.body if entry.fact_uri is None]
    if file_only:
        raise InstructionError("promotion_refused", f"{file_only[0]!a} exists only as a file: write it as a unit first")
    entries = tuple(msgspec.structs.replace(entry, path=None) for entry in manifest.body)
    draft = Draft(next_version(manifest.version), entries, "stigmem")
    return publish(context, Publication(agent_id=agent.id, draft=draft), caller)


def roll_back(context: Library, agent_name: str, version: str, caller: Caller) -> Deployed:
    """Publish an older manifest as a new version, with the texts that were active when it was replaced."""
    agent, current = _require_published(context, agent_name)
    old = context.records.manifest_of(agent.id, version)
    if old is None or old.id == current.id:
        raise InstructionError("manifest_not_found", f"there is no older manifest {version[:80]!a} to roll back to")
    began, ended = context.now(), _last_moment(context, old)
    deployment = _Deployment(context, agent, caller)
    texts = {entry.name: _text_at(context, agent, entry, at=ended) for entry in old.body}
    entries = [deployment.write_entry(entry, texts[entry.name]) for entry in old.body]
    deployment.mark_removed(current, entries)
    draft = Draft(next_version(current.version), tuple(entries), old.migration_mode)
    # These texts were approved before, so that rolling back counts as the caller's approval.
    approvals = tuple(
        GivenApproval(kind=kind, unit=entry.name, reason=f"rollback to {old.version}")
        for entry in entries
        for kind in needed_kinds(entry)
    )
    publication = Publication(agent_id=agent.id, draft=draft, approvals=approvals, began_at=began)
    published = publish(context, publication, caller)
    return Deployed(draft.version, deployment.changes, published, waiting_told(context, agent, entries))


def _text_at(context: Library, agent: Agent, entry: Entry, *, at: int) -> str | None:
    """The text of an entry at a time; None for a shared unit, whose active text is kept because others use it too."""
    owner, name = owner_of(entry, agent)
    former = newest_units(context.records.units_at((owner,), at)).get((owner, name)) if owner else None
    if former is None or owner == agent.id:
        return former.content if former is not None else None
    active = newest_units(context.records.units_at((owner,), None)).get((owner, name))
    if (
        active is not None
        and active.uri != former.uri
        and lacking_kinds(entry, active, context.records.approvals(agent.id))
    ):
        raise InstructionError(
            "guarantee_approval_required",
            f"{entry.name[:80]!a} is shared and its active version is now {active.version}: approve that version first",
        )
    return None


def approve(context: Library, agent_name: str, unit_name: str, caller: Caller, *, reason: str = "") -> Approved:
    """Record every approval that the newest pending version of a unit needs. Raises InstructionError."""
    agent, manifest = _require_published(context, agent_name)
    entry = next((listed for listed in manifest.body if listed.name == unit_name), None)
    if entry is None:
        raise InstructionError("approval_invalid", f"the manifest lists no unit {unit_name[:80]!a}")
    pending_units = waiting_units(context, agent, entry, context.records.approvals(agent.id))
    if not pending_units:
        raise InstructionError("approval_invalid", f"no version of {unit_name[:80]!a} is pending approval")
    pending = pending_units[-1]
    if "force_prepend" in pending.lacks and not reason.strip():
        raise InstructionError(
            "prepend_approval_required", "the unit is prepended: give the result of its content review as the reason"
        )
    version = pending.unit.version
    submitted = tuple(
        GivenApproval(kind=kind, unit=unit_name, version=version, reason=reason) for kind in pending.lacks
    )
    approvals = counted(context, agent, submitted, caller)
    activated = pending.unit.uri in record_approved(context, agent, approvals, unit=unit_name, version=version)
    return Approved(pending.unit.uri, pending.lacks, activated)


def _last_moment(context: Library, manifest: Manifest) -> int:
    """The last moment before the texts of the successor manifest were written."""
    replaced = manifest.superseded_at or context.now()
    successor = context.records.manifest_at(manifest.agent_id, replaced)
    began = successor.provenance.began_at if successor is not None else None
    return max(manifest.created_at, (replaced if began is None else began) - 1)


def next_version(version: str) -> str:
    """The next major version. Raises InstructionError for a version without a number."""
    numbers = version_numbers(version)
    if numbers is None:
        raise InstructionError(
            "manifest_version_conflict", f"version {version[:80]!a} has no number: give the next version explicitly"
        )
    return f"v{numbers[0] + 1}"


def _folder_agent(context: Library, folder: InstructionFolder) -> Agent:
    agent_id = folder.manifest.agent_id
    agent = context.records.agent(agent_id) or new_agent(context, agent_id)
    rules = folder.manifest.always_rules
    return agent if rules is None else msgspec.structs.replace(agent, always_rules=rules)


def _require_published(context: Library, agent_name: str) -> tuple[Agent, Manifest]:
    agent = context.records.agent(agent_name)
    manifest = context.records.manifest(agent.id) if agent else None
    if agent is None or manifest is None:
        raise no_manifest(agent_name)
    return agent, manifest


def _promotion_blocker(context: Library, manifest: Manifest) -> str | None:
    """Why the manifest may not be promoted yet: too young, too few closed recalls, or too many misses."""
    now = context.now()
    if now - manifest.created_at < WINDOW_MS:
        days = (now - manifest.created_at) / 86_400_000
        return f"the manifest was published {days:.1f} days ago: observe it for 7 days first"
    records = context.records.audits(manifest.agent_id, since=now - WINDOW_MS)
    measures = measured(records, manifest.body, k=3)
    if measures.closed < RECALLS_MIN or measures.miss_rate is None:
        return f"{measures.closed} recalls of the last 7 days report what was used: at least {RECALLS_MIN} are needed"
    if measures.miss_rate >= PROMOTE_MISS_RATE:
        return f"the miss rate of the last 7 days is {measures.miss_rate:.2f}: it must be below {PROMOTE_MISS_RATE:.2f}"
    return None


class _Deployment:
    """One deployment in progress; `changes` records what was done to each unit."""

    def __init__(self, context: Library, agent: Agent, caller: Caller) -> None:
        self._context = context
        self._folder_agent = agent
        self._caller = caller
        self.changes: dict[str, Change] = {}

    def write_entry(self, entry: Entry, text: str | None) -> Entry:
        """Write the text if it is new, and return the entry with the URI of the version that holds it."""
        self.changes[entry.name] = "noop"
        if text is None:
            return entry
        if entry.path is not None:
            _write_file(self._context.settings.root, self._folder_agent.id, entry, text)
        if entry.fact_uri is None:
            return entry
        address = read_address(entry.fact_uri)
        owner, name = owner_of(entry, self._folder_agent)
        newest = newest_units(self._context.records.versions_of(owner, name)).get((owner, name))
        if newest is not None and _has_text(newest, text):
            return msgspec.structs.replace(entry, fact_uri=newest.uri)
        uri = Address(address.deployment, address.owner, name, _version_for(entry, newest)).uri
        unit = GivenUnit(uri, text, derived_from=newest.content_sha256 if newest else None)
        written = write_unit(self._context, unit, self._caller)
        self.changes[entry.name] = "update" if newest else "create"
        return msgspec.structs.replace(entry, fact_uri=written.fact_uri)

    def mark_removed(self, current: Manifest | None, entries: Sequence[Entry]) -> None:
        """Record the units that the current manifest lists and the new entries do not."""
        listed = {entry.name for entry in entries}
        gone = (entry.name for entry in (current.body if current else ()) if entry.name not in listed)
        self.changes.update(dict.fromkeys(gone, "tombstone"))


def _has_text(version: UnitVersion, text: str) -> bool:
    return version.status != "quarantined" and version.content_sha256 == hashlib.sha256(text.encode()).hexdigest()


def _write_file(root: Path | None, agent_id: str, entry: Entry, text: str) -> None:
    """Keep the file at the entry's path in step with the unit while both coexist."""
    if root is None or entry.path is None:
        raise InstructionError(
            "manifest_entry_invalid", "path entries require an instruction root, and none is configured"
        )
    try:
        (root / agent_id).mkdir(parents=True, exist_ok=True)
        location = locate(roots_of(root / agent_id), entry.path, writing=True)
        with opened_place(location, make_folders=True) as (folder, name):
            write_atomically(folder, name, f"{text}\n".encode())
    except (EscapeError, PathError, OSError) as error:
        raise InstructionError("manifest_entry_invalid", f"the file of {entry.name!a} cannot be written") from error
