"""How units are written: a version once, signed or quarantined, and pending where people must look at it first."""

import hashlib
from collections.abc import Sequence

import msgspec

from holdfast.instructions.addresses import Address, follows_all, is_of_many, read_address
from holdfast.instructions.callers import Caller
from holdfast.instructions.counting import count_cl100k
from holdfast.instructions.coverage import measure
from holdfast.instructions.failures import InstructionError
from holdfast.instructions.library import Library, new_agent
from holdfast.instructions.shelves import newest_units
from holdfast.instructions.signatures import unit_message, unit_signer
from holdfast.instructions.values import Agent, Entry, UnitCoverage, UnitStatus, UnitVersion
from holdfast.instructions.waiting import ATTEMPTS_MAX, follows, holding, lacking_kinds, listings, needed_kinds

CONTENT_CHARACTERS_MAX = 200_000
LISTINGS_MEASURED_MAX = 10
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
    """`coverage` is what the gate says of the unit with its new text, where a manifest lists it.

    What is kept for many is measured for each of the first few agents that list it, `measured_for`, the worst first:
    `coverage` is that of the first.
    """

    fact_uri: str
    content_sha256: str
    tokens: int
    status: UnitStatus
    is_new: bool
    coverage: UnitCoverage | None = None
    measured_for: tuple[str, ...] = ()


def write_unit(library: Library, given: GivenUnit, caller: Caller) -> WrittenUnit:
    """Raises InstructionError; what was written before under the same address stays as it is."""
    address = read_address(given.fact_uri)
    if address.deployment != library.settings.deployment:
        raise InstructionError("uri_invalid", f"this deployment is {library.settings.deployment!a}")
    digest = check_text(address, given.content, given.authored_by)
    for _ in range(ATTEMPTS_MAX):
        written = _attempt(library, given, caller, address=address, digest=digest)
        if written is not None:
            return written
    raise _conflict("others write this unit all the time; try again")


def check_text(address: Address, content: str, authored_by: str | None) -> str:
    """The digest of a text that may stand at this address. Raises InstructionError."""
    if address.name == "manifest":
        raise InstructionError("uri_invalid", "the name manifest is that of the manifest itself")
    if not content.strip() or len(content) > CONTENT_CHARACTERS_MAX:
        raise InstructionError("unit_invalid", f"content has 1 to {CONTENT_CHARACTERS_MAX} characters")
    if authored_by is not None and not 0 < len(authored_by) <= 500:
        raise InstructionError("unit_invalid", "authored_by is a URI")
    try:
        return hashlib.sha256(content.encode()).hexdigest()
    except UnicodeEncodeError as error:
        raise InstructionError("unit_invalid", "content is text that can be written as UTF-8") from error


def _attempt(
    library: Library, given: GivenUnit, caller: Caller, *, address: Address, digest: str
) -> WrittenUnit | None:
    """None where another version was written meanwhile."""
    shared = is_of_many(address.owner)
    agent = None if shared else library.records.agent(address.owner)
    registers = None if shared or agent else new_agent(library, address.owner)
    owner = agent.id if agent else address.owner
    versions = library.records.versions_of(owner, address.name)
    # By whichever name of its agent it was written: it is the same unit.
    before = next((one for one in versions if one.version == address.version), None)
    if before is not None and before.content_sha256 != digest:
        raise _conflict("this version was written with other content; a version is written once")
    if before is not None and before.status != "quarantined":
        return _as_before(before)
    # What nobody known has signed stands in nobody's way.
    counting = [one for one in versions if one.status != "quarantined"]
    newest = newest_units(counting).get((owner, address.name))
    if before is not None:
        unit = _looked_at_again(library, given, caller, before=before, newest=newest)
        if unit.status == "quarantined" or (newest is not None and not follows(unit, newest)):
            return _as_before(before)
    else:
        unit = _made(library, given, caller, owner=owner, digest=digest, newest=newest)
        if newest is not None and not follows_all(unit.version, (one.version for one in counting)):
            raise _conflict(f"version {unit.version} does not follow {newest.version}, or another before it")
    manifest = library.records.manifest(agent.id) if agent else None
    judged = library.records.manifests_listing(owner, address.name) if shared else (manifest,) if manifest else ()
    listed = listings(library, agent, manifest, unit)
    if unit.status == "active" and _must_wait(library, unit, listed, is_new=before is None):
        unit = msgspec.structs.replace(unit, status="pending")
    measured = _covered(library, unit, listed)
    held = holding(versions)
    over, ids = (held.uri if held else None), [one.id for one in judged]
    done = (
        library.records.release_unit(unit, over=over, judged=ids)
        if before is not None
        else library.records.add_unit(unit, registers, over=over, judged=ids)
    )
    if not done:
        return None
    return WrittenUnit(
        unit.uri,
        digest,
        unit.token_count,
        unit.status,
        is_new=before is None,
        coverage=next((line for _, line in measured), None),
        measured_for=tuple(dict.fromkeys(one.id for one, _ in measured)),
    )


def _must_wait(library: Library, unit: UnitVersion, listed: Sequence[tuple[Agent, Entry]], *, is_new: bool) -> bool:
    """Until it is approved; nobody can have approved of a text that is only now written."""
    if is_new:
        return any(needed_kinds(entry) for _, entry in listed)
    return any(lacking_kinds(entry, unit, library.records.approvals(agent.id)) for agent, entry in listed)


def _as_before(unit: UnitVersion) -> WrittenUnit:
    return WrittenUnit(unit.uri, unit.content_sha256, unit.token_count, unit.status, is_new=False)


def _looked_at_again(
    library: Library, given: GivenUnit, caller: Caller, *, before: UnitVersion, newest: UnitVersion | None
) -> UnitVersion:
    """What was quarantined as it would be now, by the signature that is given, or that it came with."""
    meant = msgspec.structs.replace(
        given,
        authored_by=before.authored_by,
        derived_from=before.derived_from,
        signature=given.signature if given.signature is not None else before.signature,
    )
    made = _made(library, meant, caller, owner=before.agent_id, digest=before.content_sha256, newest=newest)
    return msgspec.structs.replace(made, uri=before.uri, authored_at=before.authored_at)


def _made(
    library: Library, given: GivenUnit, caller: Caller, *, owner: str, digest: str, newest: UnitVersion | None
) -> UnitVersion:
    sent = read_address(given.fact_uri)
    address = msgspec.structs.replace(sent, owner=owner)
    now = library.now()
    signature, signer = given.signature, None
    if signature is not None:
        # Whoever signs, signs the address as it was sent.
        spelled = dict.fromkeys((address.uri, sent.uri, given.fact_uri))
        signer = unit_signer(spelled, digest, signature, library.signers())
    elif library.key is not None:
        signature = library.key.sign(unit_message(address.uri, digest))
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
        derived_from=given.derived_from or (newest.content_sha256 if newest else None),
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


def _covered(
    library: Library, unit: UnitVersion, listed: Sequence[tuple[Agent, Entry]]
) -> tuple[tuple[Agent, UnitCoverage], ...]:
    """What the gate says of the unit where it is listed, the worst first; of many agents the first few are asked."""
    if unit.status == "quarantined":
        return ()
    settings = library.settings
    found = []
    for agent, entry in listed[:LISTINGS_MEASURED_MAX]:
        manifest = library.records.manifest(agent.id)
        if manifest is not None:
            shelf = library.shelves.made(agent, manifest, instead={entry.name: unit})
            line = measure(shelf, entry, scaled_is_binding=settings.scaled_is_binding, use_floor=settings.use_floor)
            found.append((agent, line))
    return tuple(sorted(found, key=lambda one: (one[1].passed, _share(one[1]))))


def _share(line: UnitCoverage) -> float:
    return 1.0 if line.coverage_pct is None else line.coverage_pct


def _conflict(message: str) -> InstructionError:
    return InstructionError("unit_version_conflict", message)
