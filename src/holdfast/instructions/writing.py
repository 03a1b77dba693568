"""How units are written: a version once, signed or quarantined, and pending where people must look at it first."""

import hashlib

import msgspec

from holdfast.instructions.addresses import is_newer, is_of_many, read_address
from holdfast.instructions.callers import Caller
from holdfast.instructions.counting import count_cl100k
from holdfast.instructions.coverage import measure
from holdfast.instructions.failures import InstructionError
from holdfast.instructions.library import Library, new_agent
from holdfast.instructions.shelves import newest_units, owner_of
from holdfast.instructions.signatures import signed_by, unit_message
from holdfast.instructions.values import Agent, ApprovalKind, Entry, Manifest, UnitCoverage, UnitStatus, UnitVersion

CONTENT_CHARACTERS_MAX = 200_000
TRUST_SIGNED = 1.0
TRUST_NAMED = 0.9
TRUST_UNNAMED = 0.7
TRUST_CLAIMED = 0.5


class GivenUnit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fact_uri: str
    content: str
    authored_by: str | None = None
    derived_from: str | None = None
    signature: str | None = None


class WrittenUnit(msgspec.Struct, frozen=True):
    """`coverage` is what the gate says of the unit with its new text, where a manifest lists it."""

    fact_uri: str
    content_sha256: str
    tokens: int
    status: UnitStatus
    is_new: bool
    coverage: UnitCoverage | None = None


def write_unit(library: Library, given: GivenUnit, caller: Caller) -> WrittenUnit:
    """Raises InstructionError; what was written before under the same address stays as it is."""
    address = read_address(given.fact_uri)
    if address.deployment != library.settings.deployment:
        raise InstructionError("uri_invalid", f"this deployment is {library.settings.deployment!a}")
    if address.name == "manifest":
        raise InstructionError("uri_invalid", "the name manifest is that of the manifest itself")
    if not given.content.strip() or len(given.content) > CONTENT_CHARACTERS_MAX:
        raise InstructionError("unit_invalid", f"content has 1 to {CONTENT_CHARACTERS_MAX} characters")
    if given.authored_by is not None and not 0 < len(given.authored_by) <= 500:
        raise InstructionError("unit_invalid", "authored_by is a URI")
    try:
        digest = hashlib.sha256(given.content.encode()).hexdigest()
    except UnicodeEncodeError as error:
        raise InstructionError("unit_invalid", "content is text that can be written as UTF-8") from error
    shared = is_of_many(address.owner)
    agent = None if shared else library.records.agent(address.owner)
    registers = None if shared or agent else new_agent(library, address.owner)
    owner = agent.id if agent else address.owner
    before = library.records.unit(address.uri)
    if before is not None:
        if before.content_sha256 != digest:
            raise _conflict("this version was written with other content; a version is written once")
        return WrittenUnit(before.uri, digest, before.token_count, before.status, is_new=False)
    unit = _made(library, given, caller, owner=owner, digest=digest)
    newest = newest_units(library.records.versions_of(owner, unit.name)).get((owner, unit.name))
    if newest is not None and newest.status != "quarantined" and not is_newer(unit.version, newest.version):
        raise _conflict(f"version {unit.version} does not follow {newest.version}")
    manifest = library.records.manifest(agent.id) if agent else None
    listed = _listings(library, agent, manifest, unit)
    if unit.status == "active" and newest is not None and any(needed_kinds(entry) for _, entry in listed):
        unit = msgspec.structs.replace(unit, status="pending")
    coverage = _covered(library, agent, manifest, unit)
    if not library.records.add_unit(unit, registers):
        raise _conflict("another was written under this address at the same time")
    return WrittenUnit(unit.uri, digest, unit.token_count, unit.status, is_new=True, coverage=coverage)


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


def activate_approved(library: Library, agent: Agent, unit_name: str) -> tuple[str, ...]:
    """Versions that waited for approvals and now have them all."""
    manifest = library.records.manifest(agent.id)
    entry = next((one for one in manifest.body if one.name == unit_name), None) if manifest else None
    if entry is None:
        return ()
    activated = []
    for unit in library.records.versions_of(*owner_of(entry, agent)):
        if unit.status != "pending":
            continue
        approved = all(
            _is_approved(library, other, listed, unit) for other, listed in _listings(library, agent, manifest, unit)
        )
        if approved and library.records.activate_unit(unit, at=library.now()):
            activated.append(unit.uri)
    return tuple(activated)


def _is_approved(library: Library, agent: Agent, entry: Entry, unit: UnitVersion) -> bool:
    approvals = library.records.approvals(agent.id)
    given = {one.kind for one in approvals if (one.unit, one.version) == (entry.name, unit.version)}
    return given.issuperset(needed_kinds(entry))


def _made(library: Library, given: GivenUnit, caller: Caller, *, owner: str, digest: str) -> UnitVersion:
    address = read_address(given.fact_uri)
    now = library.now()
    signature, signer = given.signature, None
    message = unit_message(address.uri, digest)
    if signature is not None:
        # Whoever signs, signs the address as it was sent.
        said = unit_message(given.fact_uri, digest)
        signer = signed_by(message, signature, library.signers()) or signed_by(said, signature, library.signers())
    elif library.key is not None:
        signature = library.key.sign(message)
        signer = caller.author
    return UnitVersion(
        uri=address.uri,
        agent_id=owner,
        name=address.name,
        version=address.version,
        content=given.content,
        content_sha256=digest,
        token_count=count_cl100k(given.content),
        created_at=now,
        authored_by=given.authored_by or caller.author,
        authored_at=now,
        source_trust=_trust(given, caller, signer),
        status="active" if signer is not None else "quarantined",
        derived_from=given.derived_from,
        signature=signature,
        signed_by=signer,
    )


def _trust(given: GivenUnit, caller: Caller, signer: str | None) -> float:
    author = given.authored_by or caller.author
    if signer is None:
        return 0.0
    if given.signature is not None and signer == author:
        return TRUST_SIGNED
    if author != caller.author:
        return TRUST_CLAIMED
    return TRUST_NAMED if caller.entity else TRUST_UNNAMED


def _listings(
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


def _listed(manifest: Manifest | None, agent: Agent | None, unit: UnitVersion) -> Entry | None:
    entries = manifest.body if manifest and agent else ()
    return next((one for one in entries if agent and owner_of(one, agent) == (unit.agent_id, unit.name)), None)


def _covered(
    library: Library, agent: Agent | None, manifest: Manifest | None, unit: UnitVersion
) -> UnitCoverage | None:
    entry = _listed(manifest, agent, unit)
    if agent is None or manifest is None or entry is None or unit.status == "quarantined":
        return None
    shelf = library.shelves.made(agent, manifest, at=library.now(), instead={entry.name: unit})
    settings = library.settings
    return measure(shelf, entry, scaled_is_binding=settings.scaled_is_binding, use_floor=settings.use_floor)


def _conflict(message: str) -> InstructionError:
    return InstructionError("unit_version_conflict", message)
