"""Deploy an instruction folder: check, publish, promote from files to units, archive the files, roll back, approve."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.errors import InstructionError, UserError
from holdfast.instructions.access import InstructionCaller
from holdfast.instructions.context import InstructionContext, make_agent
from holdfast.instructions.coverage.metrics import METRICS_WINDOW_MS, PROMOTE_MISS_RATE, compute_recall_metrics
from holdfast.instructions.manifest.approvals import (
    find_active_version,
    list_pending_units,
    missing_approvals,
    record_approvals,
    required_approvals,
)
from holdfast.instructions.manifest.check import DraftCheck, assume_submitted, check_draft
from holdfast.instructions.manifest.publish import (
    PublicationRequest,
    PublicationResult,
    describe_pending_units,
    name_approved_version,
    publish_manifest,
    select_valid_approvals,
)
from holdfast.instructions.manifest.validate import ManifestDraft, SubmittedApproval
from holdfast.instructions.migration.files import InstructionFolder
from holdfast.instructions.migration.proposal import MigrationProposal
from holdfast.instructions.models import Agent, ApprovalKind, Manifest, ManifestEntry, UnitVersion
from holdfast.instructions.recall.snapshot import select_newest_units, unit_key
from holdfast.instructions.units.files import read_entry_file, write_entry_file
from holdfast.instructions.units.write import SubmittedUnit, write_unit
from holdfast.instructions.uri import UnitAddress, is_newer, parse_unit_uri, parse_version_numbers
from holdfast.sources.files import describe_read_error

# Seed 003, section 21.6: recall quality must be seen over at least 5 heartbeats before files are given up.
RECALLS_MIN = 5
ARCHIVE_FOLDER = Path("docs", "legacy-instructions")
UnitDeployment = Literal["create", "update", "noop", "tombstone"]


class DeploymentResult(msgspec.Struct, frozen=True):
    """`changes` are by unit; `published` is None if the current manifest already lists the same entries.

    `pending` has one line for each unit whose newest version is pending, with the approvals it needs.
    """

    version: str
    changes: dict[str, UnitDeployment]
    published: PublicationResult | None
    pending: tuple[str, ...] = ()


class ApprovalResult(msgspec.Struct, frozen=True):
    """`is_activated` is False if another agent that preloads the unit must approve it too."""

    fact_uri: str
    kinds: tuple[ApprovalKind, ...]
    is_activated: bool


def check_instruction_folder(
    context: InstructionContext, folder: InstructionFolder, caller: InstructionCaller
) -> DraftCheck:
    agent = _folder_agent(context, folder)
    submitted = assume_submitted(folder.manifest.approvals, agent, caller, at=context.now())
    approvals = (*context.records.approvals(agent.id), *submitted)
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
    return check_draft(
        folder.manifest.draft,
        _texts_after(context, folder, agent),
        agent,
        settings=context.settings,
        approvals=applicable,
        probes=context.records.probes(agent.id),
    )


def _texts_after(context: InstructionContext, folder: InstructionFolder, agent: Agent) -> dict[str, str]:
    """By unit, what a recall could return once the folder is published: its texts, and stored ones of other entries."""
    others = tuple(entry for entry in folder.manifest.entries if entry.name not in folder.texts)
    pointers = {entry.name: _find_stored_text(context, agent, entry) for entry in others}
    return {name: text for name, text in pointers.items() if text is not None} | folder.texts


def _find_stored_text(context: InstructionContext, agent: Agent, entry: ManifestEntry) -> str | None:
    owner, name = unit_key(entry, agent)
    active = find_active_version(context.records.list_unit_versions(owner, name)) if owner else None
    if active is not None:
        return active.content
    return None if entry.path is None else read_entry_file(context.settings.root, agent.id, entry.path)


def _possible_versions(
    context: InstructionContext, agent: Agent, entry: ManifestEntry, *, text: str | None, current: Manifest | None
) -> tuple[str, ...]:
    """The versions of a unit that can be active once the folder's text is written; approvals of others do not count."""
    owner, name = unit_key(entry, agent)
    if not owner or entry.fact_uri is None:
        return ()
    versions = context.records.list_unit_versions(owner, name)
    newest, active = select_newest_units(versions).get((owner, name)), find_active_version(versions)
    if text is None or newest is None or _has_text(newest, text):
        existing = {unit.version for unit in (newest, active) if unit is not None}
        return tuple(existing or {parse_unit_uri(entry.fact_uri).version})
    listed = current.body if current else ()
    needs_approval = any(other.name == entry.name and required_approvals(other) for other in listed)
    coming_version = _version_for(entry, newest)
    return (coming_version, active.version) if needs_approval and active is not None else (coming_version,)


def _version_for(entry: ManifestEntry, newest: UnitVersion | None) -> str:
    """The version for a new text: the one that the entry names, or else the successor of the newest."""
    assert entry.fact_uri is not None, "a file has no version"
    named = parse_unit_uri(entry.fact_uri).version
    return named if newest is None or is_newer(named, newest.version) else next_version(newest.version)


def publish_instruction_folder(
    context: InstructionContext,
    folder: InstructionFolder,
    caller: InstructionCaller,
    *,
    skip_coverage_gate: bool = False,
) -> DeploymentResult:
    """Check everything before writing anything; a changed text becomes a new version. Raises InstructionError."""
    failures = check_instruction_folder(context, folder, caller).failures
    for failure in failures:
        if not (skip_coverage_gate and failure.code == "manifest_coverage_failure"):
            raise InstructionError(failure.code, failure.message)
    agent, began = _folder_agent(context, folder), context.now()
    current = context.records.manifest(agent.id)
    deployment = _Deployment(context, agent, caller)
    entries = tuple(deployment.write_entry(entry, folder.texts.get(entry.name)) for entry in folder.manifest.entries)
    deployment.mark_removed(current, entries)
    if not context.records.put_agent(agent):
        raise InstructionError("shortname_taken", "another agent has this name")
    if current is not None and current.body == entries:
        pending = describe_pending_units(context, agent, entries)
        return DeploymentResult(current.version, deployment.changes, None, pending)
    wanted = folder.manifest.version
    version = wanted if current is None or is_newer(wanted, current.version) else next_version(current.version)
    draft = ManifestDraft(version, entries, folder.manifest.migration_mode)
    approvals = folder.manifest.approvals
    publication = PublicationRequest(
        agent_id=agent.id, draft=draft, skip_coverage_gate=skip_coverage_gate, approvals=approvals, began_at=began
    )
    published = publish_manifest(context, publication, caller)
    return DeploymentResult(version, deployment.changes, published, describe_pending_units(context, agent, entries))


def write_proposed_units(
    context: InstructionContext, proposal: MigrationProposal, caller: InstructionCaller
) -> dict[str, UnitDeployment]:
    """Write each text of a proposal as a signed unit version, without touching manifest, stub or files."""
    agent = context.records.agent(proposal.agent_id) or make_agent(context, proposal.agent_id)
    deployment = _Deployment(context, agent, caller)
    for unit in proposal.units:
        deployment.write_entry(msgspec.structs.replace(unit.entry, path=None), unit.content)
    return deployment.changes


def promote_manifest(
    context: InstructionContext, agent_name: str, caller: InstructionCaller, *, force: bool = False
) -> PublicationResult:
    """Switch from files and units to units alone, once a week of recalls has shown a low miss rate."""
    agent, manifest = context.require_manifest(agent_name)
    if manifest.migration_mode != "coexistence":
        message = f"the manifest has migration_mode {manifest.migration_mode}, not coexistence"
        raise InstructionError("promotion_refused", message)
    reason = _promotion_blocker(context, manifest)
    if reason is not None and (agent.sensitive or not force):
        suffix = "; the agent is flagged sensitive, so this cannot be overridden" if agent.sensitive and force else ""
        raise InstructionError("promotion_refused", f"{reason}{suffix}")
    file_only = [entry.name for entry in manifest.body if entry.fact_uri is None]
    if file_only:
        raise InstructionError("promotion_refused", f"{file_only[0]!a} exists only as a file: write it as a unit first")
    entries = tuple(msgspec.structs.replace(entry, path=None) for entry in manifest.body)
    draft = ManifestDraft(next_version(manifest.version), entries, "stigmem")
    return publish_manifest(context, PublicationRequest(agent_id=agent.id, draft=draft), caller)


def roll_back_manifest(
    context: InstructionContext, agent_name: str, version: str, caller: InstructionCaller
) -> DeploymentResult:
    """Publish an older manifest as a new version, with the texts that were active when it was replaced."""
    agent, current = context.require_manifest(agent_name)
    old = context.records.find_manifest_version(agent.id, version)
    if old is None or old.id == current.id:
        missing = f"there is no older manifest {version[:80]!a} to roll back to"
        raise InstructionError("manifest_not_found", f"{missing}; the current one is {current.version[:80]!a}")
    began, ended = context.now(), _last_moment(context, old)
    deployment = _Deployment(context, agent, caller)
    texts = {entry.name: _text_at(context, agent, entry, at=ended) for entry in old.body}
    entries = [deployment.write_entry(entry, texts[entry.name]) for entry in old.body]
    deployment.mark_removed(current, entries)
    draft = ManifestDraft(next_version(current.version), tuple(entries), old.migration_mode)
    # These texts were approved before, so that rolling back counts as the caller's approval.
    approvals = tuple(
        SubmittedApproval(kind=kind, unit=entry.name, reason=f"rollback to {old.version}")
        for entry in entries
        for kind in required_approvals(entry)
    )
    publication = PublicationRequest(agent_id=agent.id, draft=draft, approvals=approvals, began_at=began)
    published = publish_manifest(context, publication, caller)
    pending = describe_pending_units(context, agent, entries)
    return DeploymentResult(draft.version, deployment.changes, published, pending)


def _text_at(context: InstructionContext, agent: Agent, entry: ManifestEntry, *, at: int) -> str | None:
    """The text of an entry at a time; None for a shared unit, whose active text is kept because others use it too."""
    owner, name = unit_key(entry, agent)
    former = select_newest_units(context.records.units_at((owner,), at)).get((owner, name)) if owner else None
    if former is None:
        return None
    if owner == agent.id:
        return former.content
    active = select_newest_units(context.records.units_at((owner,), None)).get((owner, name))
    approvals = context.records.approvals(agent.id)
    if active is not None and active.uri != former.uri and missing_approvals(entry, active, approvals):
        raise InstructionError(
            "guarantee_approval_required",
            f"{entry.name[:80]!a} is shared and its active version is now {active.version}: approve that version first",
        )
    return None


def approve_unit(
    context: InstructionContext, agent_name: str, unit_name: str, caller: InstructionCaller, *, reason: str = ""
) -> ApprovalResult:
    """Record every approval that the newest pending version of a unit needs. Raises InstructionError."""
    agent, manifest = context.require_manifest(agent_name)
    entry = next((listed for listed in manifest.body if listed.name == unit_name), None)
    if entry is None:
        how = "`holdfast instructions index` shows its units"
        raise InstructionError("approval_invalid", f"the manifest lists no unit {unit_name[:80]!a}; {how}")
    pending_units = list_pending_units(context, agent, entry, context.records.approvals(agent.id))
    if not pending_units:
        message = f"no version of {unit_name[:80]!a} is pending approval; approve in advance with --kind"
        raise InstructionError("approval_invalid", message)
    pending = pending_units[-1]
    if "force_prepend" in pending.missing_approvals and not reason.strip():
        message = "the unit is prepended: give the result of its content review as the reason"
        raise InstructionError("prepend_approval_required", message)
    version = pending.unit.version
    kinds = pending.missing_approvals
    submitted = [SubmittedApproval(kind=kind, unit=unit_name, version=version, reason=reason) for kind in kinds]
    approvals = select_valid_approvals(context, agent, submitted, caller)
    activated = pending.unit.uri in record_approvals(context, agent, approvals, unit=unit_name, version=version)
    return ApprovalResult(pending.unit.uri, kinds, activated)


def record_approval_of(
    context: InstructionContext, agent_name: str, submitted: SubmittedApproval, caller: InstructionCaller
) -> ApprovalResult:
    """Record one approval that a manifest needs, before or after it is published. Raises InstructionError."""
    agent = context.records.agent(agent_name) or make_agent(context, agent_name)
    approval = name_approved_version(context, agent, submitted)
    if approval.kind == "force_prepend" and not approval.reason.strip():
        message = "the unit is prepended: give the result of its content review as the reason"
        raise InstructionError("prepend_approval_required", message)
    if approval.kind == "skip_gate" and caller.entity is None:
        message = "skipping the gate takes two admins: say who approves, such as acme:user/ann"
        raise InstructionError("approval_invalid", message)
    accepted = select_valid_approvals(context, agent, (approval,), caller)
    activated = record_approvals(context, agent, accepted, unit=approval.unit, version=approval.version)
    what = f"{approval.unit or 'the manifest'} {approval.version or '(a file without versions)'}"
    return ApprovalResult(activated[0] if activated else what, (approval.kind,), bool(activated))


def _last_moment(context: InstructionContext, manifest: Manifest) -> int:
    """The last moment before the texts of the successor manifest were written."""
    replaced = manifest.superseded_at or context.now()
    successor = context.records.manifest_at(manifest.agent_id, replaced)
    began = successor.provenance.began_at if successor is not None else None
    return max(manifest.created_at, (replaced if began is None else began) - 1)


def next_version(version: str) -> str:
    """The next major version. Raises InstructionError for a version without a number."""
    numbers = parse_version_numbers(version)
    if numbers is None:
        message = f"version {version[:80]!a} has no number: give the next version explicitly"
        raise InstructionError("manifest_version_conflict", message)
    return f"v{numbers[0] + 1}"


def _folder_agent(context: InstructionContext, folder: InstructionFolder) -> Agent:
    agent_id = folder.manifest.agent_id
    agent = context.records.agent(agent_id) or make_agent(context, agent_id)
    rules = folder.manifest.always_rules
    return agent if rules is None else msgspec.structs.replace(agent, always_rules=rules)


def _promotion_blocker(context: InstructionContext, manifest: Manifest) -> str | None:
    """Why the manifest may not be promoted yet: too young, too few closed recalls, or too many misses."""
    now = context.now()
    if now - manifest.created_at < METRICS_WINDOW_MS:
        days = (now - manifest.created_at) / 86_400_000
        return f"the manifest was published {days:.1f} days ago: observe it for 7 days first"
    records = context.records.audits(manifest.agent_id, since=now - METRICS_WINDOW_MS)
    measures = compute_recall_metrics(records, manifest.body, k=3)
    if measures.closed < RECALLS_MIN or measures.miss_rate is None:
        return f"{measures.closed} recalls of the last 7 days report what was used: at least {RECALLS_MIN} are needed"
    if measures.miss_rate >= PROMOTE_MISS_RATE:
        return f"the miss rate of the last 7 days is {measures.miss_rate:.2f}: it must be below {PROMOTE_MISS_RATE:.2f}"
    return None


class _Deployment:
    """One deployment in progress; `changes` records what was done to each unit."""

    def __init__(self, context: InstructionContext, agent: Agent, caller: InstructionCaller) -> None:
        self._context = context
        self._agent = agent
        self._caller = caller
        self.changes: dict[str, UnitDeployment] = {}

    def write_entry(self, entry: ManifestEntry, text: str | None) -> ManifestEntry:
        """Write the text if it is new, and return the entry with the URI of the version that holds it."""
        self.changes[entry.name] = "noop"
        if text is None:
            return entry
        if entry.path is not None:
            write_entry_file(self._context.settings.root, self._agent.id, entry, text)
        if entry.fact_uri is None:
            return entry
        address = parse_unit_uri(entry.fact_uri)
        owner, name = unit_key(entry, self._agent)
        newest = select_newest_units(self._context.records.list_unit_versions(owner, name)).get((owner, name))
        if newest is not None and _has_text(newest, text):
            return msgspec.structs.replace(entry, fact_uri=newest.uri)
        uri = UnitAddress(address.deployment, address.owner, name, _version_for(entry, newest)).uri
        unit = SubmittedUnit(uri, text, derived_from=newest.content_sha256 if newest else None)
        written = write_unit(self._context, unit, self._caller)
        self.changes[entry.name] = "update" if newest else "create"
        return msgspec.structs.replace(entry, fact_uri=written.fact_uri)

    def mark_removed(self, current: Manifest | None, entries: Sequence[ManifestEntry]) -> None:
        """Record the units that the current manifest lists and the new entries do not."""
        listed = {entry.name for entry in entries}
        gone = (entry.name for entry in (current.body if current else ()) if entry.name not in listed)
        self.changes.update(dict.fromkeys(gone, "tombstone"))


def _has_text(version: UnitVersion, text: str) -> bool:
    return version.status != "quarantined" and version.content_sha256 == hashlib.sha256(text.encode()).hexdigest()


class ArchiveResult(msgspec.Struct, frozen=True):
    """Pairs of old and new path, relative to the root."""

    moved_files: tuple[tuple[str, str], ...]


def archive_files(context: InstructionContext, agent_name: str, files: Sequence[Path], *, root: Path) -> ArchiveResult:
    """Move files to the archive once the manifest has no path entries; never overwrites. Raises UserError."""
    _, manifest = context.require_manifest(agent_name)
    if manifest.migration_mode != "stigmem":
        message = f"the manifest has migration_mode {manifest.migration_mode}: promote it first"
        raise InstructionError("archive_refused", message)
    base = Path(os.path.realpath(root))
    moves = [(_relative_path(file, base), base / ARCHIVE_FOLDER / _relative_path(file, base)) for file in files]
    existing = next((new for _, new in moves if new.exists()), None)
    if existing is not None:
        raise UserError(f"{existing} exists already: remove or rename it first")
    for old, new in moves:
        _move(base / old, new, note=f"<!-- Moved: these instructions are now at {manifest.fact_uri} -->\n")
    return ArchiveResult(tuple((str(old), str(new.relative_to(base))) for old, new in moves))


def _relative_path(file: Path, base: Path) -> Path:
    resolved = Path(os.path.realpath(file))
    if not resolved.is_relative_to(base) or not resolved.is_file():
        raise UserError(f"{file} is not a file below {base}")
    return resolved.relative_to(base)


def _move(old: Path, new: Path, *, note: str) -> None:
    """Copy first, then remove, so that a failure in between loses nothing."""
    try:
        content = old.read_bytes()
        new.parent.mkdir(parents=True, exist_ok=True)
        # O_EXCL: a file that appeared since the check is not overwritten.
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            file.write(note.encode() + content)
        old.unlink()
    except OSError as error:
        raise UserError(f"{old}: {describe_read_error(error)}") from error
