"""How a manifest is published: judged from cheap to dear, and committed only over what it was judged against."""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.instructions.addresses import read_address
from holdfast.instructions.callers import Caller
from holdfast.instructions.coverage import GATE_K, measure_all, scaled_k
from holdfast.instructions.exposure import crowded, exposed
from holdfast.instructions.failures import InstructionError
from holdfast.instructions.library import Library, new_agent
from holdfast.instructions.paths import check_path
from holdfast.instructions.publication import (
    Draft,
    GivenApproval,
    check_approvals,
    check_caps,
    check_manifest_version,
    check_names,
    check_pointers,
    check_shape,
    check_size,
    check_skip,
    check_task_types,
    manifest_address,
    mode_of,
)
from holdfast.instructions.shelves import newest_units, owner_of
from holdfast.instructions.signatures import is_signed_by_author
from holdfast.instructions.stub import check_stub
from holdfast.instructions.values import (
    Agent,
    Approval,
    AuditRecord,
    CoverageRun,
    Entry,
    Manifest,
    Provenance,
    UnitCoverage,
    UnitVersion,
)
from holdfast.instructions.waiting import Waiting, needed_kinds, not_before, ready_unit, version_of, waiting_units

ATTEMPTS_MAX = 3
RECERT_MS = 7 * 86_400_000


class Published(msgspec.Struct, frozen=True):
    manifest: Manifest
    coverage: tuple[UnitCoverage, ...]
    skipped: bool
    warnings: tuple[str, ...]


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    draft: Draft
    skip_coverage_gate: bool = False
    approvals: tuple[GivenApproval, ...] = ()
    began_at: int | None = None


def publish(library: Library, publication: Publication, caller: Caller) -> Published:
    """Raises InstructionError for the first check that fails; then nothing was changed."""
    draft = publication.draft
    known = library.records.agent(publication.agent_id)
    agent = known or new_agent(library, publication.agent_id)
    check_shape(draft)
    check_names(draft)
    check_pointers(draft, deployment=library.settings.deployment, agent_names=_names(agent))
    for entry in draft.entries:
        if entry.path is not None:
            check_path(library.settings.root, agent.id, entry)
    check_task_types(draft, library.settings.wake_reasons)
    added = _settled(library, agent, draft, counted(library, agent, publication.approvals, caller))
    told = _told(library, agent, draft, _ready(library, agent, draft, added))
    approvals = _approved(library, agent, draft, told=told, added=added)
    cosigners = _cosigners(draft, approvals, caller)
    if publication.skip_coverage_gate:
        check_skip(draft, cosigners)
    check_caps(draft)
    check_size(draft)
    provenance = Provenance(
        caller.author,
        tuple(one.id for one in approvals),
        publication.skip_coverage_gate,
        cosigners if publication.skip_coverage_gate else (),
        publication.began_at,
    )
    for _ in range(ATTEMPTS_MAX):
        done = _attempt(library, publication, agent, added=added, provenance=provenance)
        if done is not None:
            return done
    raise InstructionError("manifest_version_conflict", "others publish for this agent all the time; try again")


def _attempt(
    library: Library,
    publication: Publication,
    agent: Agent,
    *,
    added: Sequence[Approval],
    provenance: Provenance,
) -> Published | None:
    """None where another manifest was published meanwhile, or another version of a unit took its place."""
    draft, skip = publication.draft, publication.skip_coverage_gate
    current = library.records.manifest(agent.id)
    check_manifest_version(
        draft.version,
        current.version if current else None,
        before=library.records.manifest_versions(agent.id),
    )
    now = library.now()
    manifest = _drafted(library, draft, agent, current=current, provenance=provenance)
    check_stub(agent, manifest)
    ready = _ready(library, agent, draft, added)
    told = _told(library, agent, draft, ready)
    # A text that was written meanwhile is none that anybody has approved.
    _approved(library, agent, draft, told=told, added=added)
    shelf = library.shelves.made(agent, manifest, instead={one.entry.name: one.unit for one in ready})
    settings = library.settings
    units = measure_all(shelf, scaled_is_binding=settings.scaled_is_binding, use_floor=settings.use_floor)
    failing = tuple(one for one in units if not one.passed)
    if failing and not skip:
        raise coverage_failure(failing)
    run = CoverageRun(
        id=library.new_id("coverage"),
        agent_id=agent.id,
        manifest_version=draft.version,
        model_id=shelf.index.embedding_model_version,
        kind="gate",
        started_at=now,
        finished_at=library.now(),
        skipped=skip,
        recert_due=now + RECERT_MS if skip else None,
        units=units,
    )
    events = (_bypass(library, manifest, failing, provenance),) if skip else ()
    done = library.records.publish(
        manifest,
        over=current.id if current else None,
        registers=agent,
        run=run,
        approvals=added,
        events=events,
        activates=[*{one.unit.uri: (one.unit, one.over, one.judged) for one in ready}.values()],
        holds=_held_back(draft, told, ready),
    )
    warnings = (
        *_warnings(manifest, units, tuple(shelf.contents)),
        *waiting_told(library, agent, draft.entries),
        *exposed(draft.entries, {name: content.text for name, content in shelf.contents.items()}),
        *crowded(draft.entries, library.records.guaranteed_count(), settings.guaranteed_units_soft_max),
    )
    return Published(manifest, units, skip, warnings) if done else None


def _drafted(
    library: Library, draft: Draft, agent: Agent, *, current: Manifest | None, provenance: Provenance
) -> Manifest:
    now = library.now()
    return Manifest(
        library.new_id("manifest"),
        agent.id,
        draft.version,
        manifest_address(agent.deployment, agent.id, draft.version).uri,
        draft.token_count,
        draft.entries,
        # One that follows another within a millisecond still begins behind it.
        max(now, current.created_at + 1) if current else now,
        mode_of(draft.entries),
        provenance,
    )


def waiting_told(library: Library, agent: Agent, entries: Sequence[Entry]) -> tuple[str, ...]:
    """A line for each unit of which a newer version waits for somebody's approval."""
    approvals = library.records.approvals(agent.id)
    found = (waiting_units(library, agent, entry, approvals)[-1:] for entry in entries)
    return tuple(one.told for some in found for one in some)


def _ready(library: Library, agent: Agent, draft: Draft, added: Sequence[Approval]) -> tuple[Waiting, ...]:
    """Versions that waited, and that this manifest and the approvals that come with it let go.

    Such an approval, if it names no version, is that of the version that the manifest names.
    """
    versions = _versions(draft.entries)
    named = (
        msgspec.structs.replace(one, version=versions.get(one.unit or "")) if one.version is None else one
        for one in added
    )
    approvals = (*library.records.approvals(agent.id), *named)
    found = [(owner_of(entry, agent), ready_unit(library, agent, entry, approvals)) for entry in draft.entries]
    # Where two entries mean one unit, it is told by both, or waits for both.
    return tuple(
        one
        for unit, one in found
        if one is not None and all(other and other.unit.uri == one.unit.uri for same, other in found if same == unit)
    )


def counted(library: Library, agent: Agent, given: Sequence[GivenApproval], caller: Caller) -> tuple[Approval, ...]:
    """The approvals that count: the caller's own, and those that their authors have signed."""
    found = []
    for one in given:
        approval = Approval(
            id=library.new_id("approval"),
            agent_id=agent.id,
            kind=one.kind,
            unit=one.unit,
            version=one.version,
            authored_by=one.authored_by or caller.author,
            authored_at=library.now(),
            reason=one.reason,
            signature=one.signature,
        )
        own = approval.authored_by == caller.author
        if own or is_signed_by_author(approval, library.records.signers(at=library.now())):
            found.append(approval)
    return tuple(found)


def coverage_failure(failing: Sequence[UnitCoverage]) -> InstructionError:
    told = [
        {
            "unit": one.unit,
            "coverage_pct": one.coverage_pct,
            "scaled_pct": one.scaled_pct,
            "failures": [{"query": probe.query, "taken_by": probe.taken_by} for probe in one.failures],
        }
        for one in failing
    ]
    names = ", ".join(one.unit for one in failing)
    return InstructionError(
        "manifest_coverage_failure",
        f"too few paraphrases of their intents find these units: {names}",
        details={"units": told},
    )


def _names(agent: Agent) -> tuple[str, ...]:
    return (agent.id, agent.shortname) if agent.shortname else (agent.id,)


def _told(library: Library, agent: Agent, draft: Draft, ready: Sequence[Waiting]) -> dict[str, UnitVersion]:
    """By entry, the version that will be told: not the one that the manifest names, but the newest that may be."""
    pointed = {entry.name: owner_of(entry, agent) for entry in draft.entries}
    newest = newest_units(library.records.units_at(sorted({owner for owner, _ in pointed.values() if owner}), None))
    held = {name: unit for name, address in pointed.items() if (unit := newest.get(address)) is not None}
    return held | {one.entry.name: one.unit for one in ready}


def _approved(
    library: Library, agent: Agent, draft: Draft, *, told: Mapping[str, UnitVersion], added: Sequence[Approval]
) -> tuple[Approval, ...]:
    """The approvals that apply. Raises InstructionError where one is missing."""
    named, versions = _versions(draft.entries), {name: unit.version for name, unit in told.items()}
    current = library.records.manifest(agent.id)
    # One on record that names no version is of the one that was listed when it was given.
    before = named | (_versions(current.body) if current else {})
    recorded = (one for one in library.records.approvals(agent.id) if _applies(one, draft, meant=before, told=versions))
    approvals = (*recorded, *(one for one in added if _applies(one, draft, meant=named, told=versions)))
    check_approvals(draft, approvals, versions)
    return approvals


def _applies(one: Approval, draft: Draft, *, meant: Mapping[str, str], told: Mapping[str, str]) -> bool:
    """An approval of a version of a unit says nothing of another; a file has no versions."""
    if one.kind == "skip_gate":
        return one.version in (None, draft.version)
    unit = one.unit or ""
    if unit not in told and unit not in meant:
        return True
    return (one.version or meant.get(unit)) == told.get(unit, meant.get(unit))


def _settled(library: Library, agent: Agent, draft: Draft, added: Sequence[Approval]) -> tuple[Approval, ...]:
    """Approvals that come with a manifest are of the versions that it names, and no older than these."""
    named, entries, found = _versions(draft.entries), {one.name: one for one in draft.entries}, []
    for one in added:
        unit = one.unit or ""
        # What somebody has signed stays as it was signed.
        version = one.version or (named.get(unit) if one.signature is None and one.kind != "skip_gate" else None)
        text = version_of(library, agent, entries.get(unit), version)
        found.append(not_before(msgspec.structs.replace(one, version=version), text))
    return tuple(found)


def _held_back(draft: Draft, told: Mapping[str, UnitVersion], ready: Sequence[Waiting]) -> tuple[str, ...]:
    """Addresses of texts that were approved, or are told unasked, and so must still be the ones that are told."""
    replaced = {one.entry.name for one in ready}
    unasked = (entry.name for entry in draft.entries if needed_kinds(entry))
    return tuple(sorted({told[name].uri for name in unasked if name in told and name not in replaced}))


def _versions(entries: Sequence[Entry]) -> dict[str, str]:
    return {entry.name: read_address(entry.fact_uri).version for entry in entries if entry.fact_uri is not None}


def _cosigners(draft: Draft, approvals: Sequence[Approval], caller: Caller) -> tuple[str, ...]:
    """People with URIs: two keys of one person are one."""
    said = {one.authored_by for one in approvals if one.kind == "skip_gate" and one.version == draft.version}
    said |= {caller.entity} if caller.entity else set()
    return tuple(sorted(one for one in said if not one.startswith("key:")))


def _bypass(
    library: Library, manifest: Manifest, failing: Sequence[UnitCoverage], provenance: Provenance
) -> AuditRecord:
    now = library.now()
    return AuditRecord(
        id=library.new_id("audevent"),
        agent_id=manifest.agent_id,
        heartbeat_id=manifest.id,
        session_start=now,
        intent=f"coverage_bypass:{manifest.version}",
        loaded_chunks=(),
        audit_token=library.new_id("audi"),
        created_at=now,
        event_type="coverage_bypass",
        detail={
            "units": [{"unit": one.unit, "coverage_pct": one.coverage_pct} for one in failing],
            "published_by": provenance.published_by,
            "cosigned_by": provenance.cosigned_by,
        },
    )


def _warnings(manifest: Manifest, units: Sequence[UnitCoverage], available: Sequence[str]) -> tuple[str, ...]:
    told = []
    k = scaled_k(len(manifest.body))
    for one in units:
        if one.status == "no_probes":
            told.append(f"{one.unit}: it has no intents, and so its coverage is not known")
        elif k < GATE_K and one.scaled_pct is not None and one.scaled_pct < 0.8 <= (one.coverage_pct or 0.0):
            told.append(f"{one.unit}: among the first {k} it is found by {one.scaled_pct:.0%} only")
    told += [
        f"{entry.name}: unit_unavailable; there is no text behind it that can be recalled"
        for entry in manifest.body
        if entry.name not in available
    ]
    return tuple(told)
