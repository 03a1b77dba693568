"""How a folder of instructions becomes what an agent is told, and how that is promoted or taken back."""

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

RECALLS_MIN = 5

Change = Literal["create", "update", "noop", "tombstone"]


class Deployed(msgspec.Struct, frozen=True):
    """`changes` are by unit; `published` is None where the manifest is the one that holds already.

    `waiting` says of each unit whose newest version nobody is told yet which approvals it needs.
    """

    version: str
    changes: dict[str, Change]
    published: Published | None
    waiting: tuple[str, ...] = ()


class Approved(msgspec.Struct, frozen=True):
    """`activated`: from now on it is told; else another agent that loads it unasked must approve it too."""

    fact_uri: str
    kinds: tuple[ApprovalKind, ...]
    activated: bool


def check_folder(library: Library, folder: InstructionFolder, caller: Caller) -> Checked:
    agent = _agent(library, folder)
    approvals = (
        *library.records.approvals(agent.id),
        *given_approvals(folder.manifest.approvals, agent, caller, at=library.now()),
    )
    current = library.records.manifest(agent.id)
    versions = {
        entry.name: _tellable(library, agent, entry, text=folder.texts.get(entry.name), current=current)
        for entry in folder.manifest.entries
    }
    counting = [one for one in approvals if one.unit is None or one.version in (None, *versions.get(one.unit, ()))]
    return check_draft(folder.manifest.draft, folder.texts, agent, settings=library.settings, approvals=counting)


def _tellable(
    library: Library, agent: Agent, entry: Entry, *, text: str | None, current: Manifest | None
) -> tuple[str, ...]:
    """Which versions of a unit may be told once its text is in its place: an approval of any other is none of it."""
    owner, name = owner_of(entry, agent)
    if not owner or entry.fact_uri is None:
        return ()
    versions = library.records.versions_of(owner, name)
    newest, held = newest_units(versions).get((owner, name)), holding(versions)
    if text is None or newest is None or _is_same(newest, text):
        return tuple(
            {one.version for one in (newest, held) if one is not None} or {read_address(entry.fact_uri).version}
        )
    waits = any(one.name == entry.name and needed_kinds(one) for one in (current.body if current else ()))
    coming = _next_for(entry, newest)
    return (coming, held.version) if waits and held is not None else (coming,)


def _next_for(entry: Entry, newest: UnitVersion | None) -> str:
    """The version of a text that is new: the one that the entry names, or the one behind the newest."""
    assert entry.fact_uri is not None, "a file has no version"
    named = read_address(entry.fact_uri).version
    return named if newest is None or is_newer(named, newest.version) else next_version(newest.version)


def publish_folder(
    library: Library, folder: InstructionFolder, caller: Caller, *, skip_coverage_gate: bool = False
) -> Deployed:
    """Judged whole before anything is written; a text that changed is a new version. Raises InstructionError."""
    failures = check_folder(library, folder, caller).failures
    failing = [one for one in failures if not (skip_coverage_gate and one.code == "manifest_coverage_failure")]
    if failing:
        raise InstructionError(failing[0].code, failing[0].message)
    agent, began = _agent(library, folder), library.now()
    current = library.records.manifest(agent.id)
    placing = _Placing(library, agent, caller)
    entries = tuple(placing.placed(entry, folder.texts.get(entry.name)) for entry in folder.manifest.entries)
    placing.without(current, entries)
    if not library.records.put_agent(agent):
        raise InstructionError("shortname_taken", "another agent has this name")
    if current is not None and current.body == entries:
        return Deployed(current.version, placing.changes, None, waiting_told(library, agent, entries))
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
    done = publish(library, publication, caller)
    return Deployed(version, placing.changes, done, waiting_told(library, agent, entries))


def write_units(library: Library, proposal: Proposal, caller: Caller) -> dict[str, Change]:
    """Each text of a proposal as a signed version of a unit; manifest, stub and files stay as they are."""
    agent = library.records.agent(proposal.agent_id) or new_agent(library, proposal.agent_id)
    placing = _Placing(library, agent, caller)
    for unit in proposal.units:
        placing.placed(msgspec.structs.replace(unit.entry, path=None), unit.content)
    return placing.changes


def promote(library: Library, said: str, caller: Caller, *, force: bool = False) -> Published:
    """From files and units to units alone, once a week of recalls has shown that nothing is missed."""
    agent, manifest = _published(library, said)
    if manifest.migration_mode != "coexistence":
        raise InstructionError(
            "promotion_refused", f"the manifest is one of migration_mode {manifest.migration_mode}, not coexistence"
        )
    reason = _not_yet(library, manifest)
    if reason is not None and (agent.sensitive or not force):
        more = "; the agent is flagged sensitive, so nothing overrides this" if agent.sensitive and force else ""
        raise InstructionError("promotion_refused", f"{reason}{more}")
    lost = [entry.name for entry in manifest.body if entry.fact_uri is None]
    if lost:
        raise InstructionError("promotion_refused", f"{lost[0]!a} is a file only: write it as a unit first")
    entries = tuple(msgspec.structs.replace(entry, path=None) for entry in manifest.body)
    draft = Draft(next_version(manifest.version), entries, "stigmem")
    return publish(library, Publication(agent_id=agent.id, draft=draft), caller)


def roll_back(library: Library, said: str, version: str, caller: Caller) -> Deployed:
    """Publish an older manifest as a new version, with the texts that held when it was replaced."""
    agent, current = _published(library, said)
    old = library.records.manifest_of(agent.id, version)
    if old is None or old.id == current.id:
        raise InstructionError("manifest_not_found", f"there is no older manifest {version[:80]!a} to go back to")
    began, ended = library.now(), _end_of(library, old)
    placing = _Placing(library, agent, caller)
    texts = {entry.name: _text_then(library, agent, entry, at=ended) for entry in old.body}
    entries = [placing.placed(entry, texts[entry.name]) for entry in old.body]
    placing.without(current, entries)
    draft = Draft(next_version(current.version), tuple(entries), old.migration_mode)
    # These texts were told before: whoever brings them back approves them.
    approvals = tuple(
        GivenApproval(kind=kind, unit=entry.name, reason=f"rollback to {old.version}")
        for entry in entries
        for kind in needed_kinds(entry)
    )
    publication = Publication(agent_id=agent.id, draft=draft, approvals=approvals, began_at=began)
    done = publish(library, publication, caller)
    return Deployed(draft.version, placing.changes, done, waiting_told(library, agent, entries))


def _text_then(library: Library, agent: Agent, entry: Entry, *, at: int) -> str | None:
    """The text of an entry at a time; None for what many share, which stays as it is, if it may be told unasked."""
    owner, name = owner_of(entry, agent)
    then = newest_units(library.records.units_at((owner,), at)).get((owner, name)) if owner else None
    if then is None or owner == agent.id:
        return then.content if then is not None else None
    now = newest_units(library.records.units_at((owner,), None)).get((owner, name))
    if now is not None and now.uri != then.uri and lacking_kinds(entry, now, library.records.approvals(agent.id)):
        raise InstructionError(
            "guarantee_approval_required",
            f"{entry.name[:80]!a} is shared, and {now.version} of it is told by now: record approvals of that first",
        )
    return None


def approve(library: Library, said: str, unit_name: str, caller: Caller, *, reason: str = "") -> Approved:
    """Record every approval that the newest version of a unit waits for. Raises InstructionError."""
    agent, manifest = _published(library, said)
    entry = next((one for one in manifest.body if one.name == unit_name), None)
    if entry is None:
        raise InstructionError("approval_invalid", f"the manifest lists no unit {unit_name[:80]!a}")
    waiting = waiting_units(library, agent, entry, library.records.approvals(agent.id))
    if not waiting:
        raise InstructionError("approval_invalid", f"no version of {unit_name[:80]!a} waits for an approval")
    last = waiting[-1]
    if "force_prepend" in last.lacks and not reason.strip():
        raise InstructionError("prepend_approval_required", "it stands first: say as the reason what its review found")
    version = last.unit.version
    given = tuple(GivenApproval(kind=kind, unit=unit_name, version=version, reason=reason) for kind in last.lacks)
    approvals = counted(library, agent, given, caller)
    activated = last.unit.uri in record_approved(library, agent, approvals, unit=unit_name, version=version)
    return Approved(last.unit.uri, last.lacks, activated)


def _end_of(library: Library, old: Manifest) -> int:
    """The last moment before the texts of the manifest that replaced it were written."""
    replaced = old.superseded_at or library.now()
    after = library.records.manifest_at(old.agent_id, replaced)
    began = after.provenance.began_at if after is not None else None
    return max(old.created_at, (replaced if began is None else began) - 1)


def next_version(version: str) -> str:
    """The number behind it; versions without numbers cannot be counted on."""
    numbers = version_numbers(version)
    if numbers is None:
        raise InstructionError(
            "manifest_version_conflict", f"version {version[:80]!a} has no number: name the next one"
        )
    return f"v{numbers[0] + 1}"


def _agent(library: Library, folder: InstructionFolder) -> Agent:
    said = folder.manifest.agent_id
    agent = library.records.agent(said) or new_agent(library, said)
    rules = folder.manifest.always_rules
    return agent if rules is None else msgspec.structs.replace(agent, always_rules=rules)


def _published(library: Library, said: str) -> tuple[Agent, Manifest]:
    agent = library.records.agent(said)
    manifest = library.records.manifest(agent.id) if agent else None
    if agent is None or manifest is None:
        raise no_manifest(said)
    return agent, manifest


def _not_yet(library: Library, manifest: Manifest) -> str | None:
    """Why the week of watching is not over, or was not good; None where all is well."""
    now = library.now()
    if now - manifest.created_at < WINDOW_MS:
        days = (now - manifest.created_at) / 86_400_000
        return f"the manifest was published {days:.1f} days ago: watch it for 7 days first"
    records = library.records.audits(manifest.agent_id, since=now - WINDOW_MS)
    measures = measured(records, manifest.body, k=3)
    if measures.closed < RECALLS_MIN or measures.miss_rate is None:
        return f"{measures.closed} recalls of the last 7 days say what was used: at least {RECALLS_MIN} must"
    if measures.miss_rate >= PROMOTE_MISS_RATE:
        return f"the miss rate of the last 7 days is {measures.miss_rate:.2f}: it must be below {PROMOTE_MISS_RATE:.2f}"
    return None


class _Placing:
    """One deployment under way: what was done to each unit."""

    def __init__(self, library: Library, agent: Agent, caller: Caller) -> None:
        self._library = library
        self._agent = agent
        self._caller = caller
        self.changes: dict[str, Change] = {}

    def placed(self, entry: Entry, text: str | None) -> Entry:
        """The entry with the address of the version that holds its text; a text that is new is written."""
        self.changes[entry.name] = "noop"
        if text is None:
            return entry
        if entry.path is not None:
            _write_file(self._library.settings.root, self._agent.id, entry, text)
        if entry.fact_uri is None:
            return entry
        address = read_address(entry.fact_uri)
        owner, name = owner_of(entry, self._agent)
        newest = newest_units(self._library.records.versions_of(owner, name)).get((owner, name))
        if newest is not None and _is_same(newest, text):
            return msgspec.structs.replace(entry, fact_uri=newest.uri)
        uri = Address(address.deployment, address.owner, name, _next_for(entry, newest)).uri
        given = GivenUnit(uri, text, derived_from=newest.content_sha256 if newest else None)
        written = write_unit(self._library, given, self._caller)
        self.changes[entry.name] = "update" if newest else "create"
        return msgspec.structs.replace(entry, fact_uri=written.fact_uri)

    def without(self, current: Manifest | None, entries: Sequence[Entry]) -> None:
        """Those that were listed and are not any more."""
        listed = {entry.name for entry in entries}
        gone = (entry.name for entry in (current.body if current else ()) if entry.name not in listed)
        self.changes.update(dict.fromkeys(gone, "tombstone"))


def _is_same(unit: UnitVersion, text: str) -> bool:
    return unit.status != "quarantined" and unit.content_sha256 == hashlib.sha256(text.encode()).hexdigest()


def _write_file(root: Path | None, agent_id: str, entry: Entry, text: str) -> None:
    """What the entry's path holds while units and files coexist."""
    if root is None or entry.path is None:
        raise InstructionError(
            "manifest_entry_invalid", "path entries need an instruction root, and none is configured"
        )
    try:
        (root / agent_id).mkdir(parents=True, exist_ok=True)
        located = locate(roots_of(root / agent_id), entry.path, writing=True)
        with opened_place(located, make_folders=True) as (folder, name):
            write_atomically(folder, name, f"{text}\n".encode())
    except (EscapeError, PathError, OSError) as error:
        raise InstructionError("manifest_entry_invalid", f"the file of {entry.name!a} cannot be written") from error
