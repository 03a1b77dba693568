"""What is believed of an owner's records that come from another store: by address, by digest and by signature."""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.instructions.addresses import Address, is_of_many, read_address
from holdfast.instructions.counting import count_cl100k
from holdfast.instructions.failures import InstructionError
from holdfast.instructions.library import DEPLOYMENT_SIGNER, Library, new_agent
from holdfast.instructions.owned import Record, owner_of_record
from holdfast.instructions.publication import (
    Draft,
    check_caps,
    check_names,
    check_pointers,
    check_shape,
    check_size,
    manifest_address,
)
from holdfast.instructions.signatures import is_signed_by_author, unit_signer
from holdfast.instructions.stub import check_stub
from holdfast.instructions.values import Agent, Approval, AuditRecord, CoverageRun, Manifest, Probe, Signer, UnitVersion
from holdfast.instructions.writing import TRUST_NAMED, TRUST_SIGNED, check_text

NUMBER_MAX = 253_402_214_400_000
"""The last day of the year 9999 in milliseconds: no later one can be told, and nothing else is counted so far."""
PARTS_WITHIN_MAX = 32


def judged(library: Library, records: Sequence[Record]) -> Iterator[Record | None]:
    """Each record of one owner as it is believed here; None for an approval whose signature does not hold here.

    A unit that no key known here has signed is quarantined. It ends where it ended: that nothing is told in its place
    is seen, and that an older text is told again might not be. Raises InstructionError at the record that is wrong.
    """
    first = records[0]
    agent = first if isinstance(first, Agent) else None
    owner = owner_of_record(first)
    if agent is None and not is_of_many(owner):
        raise _wrong(f"the records of {owner[:80]!a} do not begin with the agent")
    names = (owner, agent.shortname) if agent and agent.shortname else (owner,)
    signers, known = library.records.signers(at=library.now()), library.signers()
    told: set[str] = set()
    for record in records:
        _check_numbers(record)
        if agent is None and not isinstance(record, UnitVersion):
            raise _wrong(f"{owner[:80]!a} is no agent, and has units only")
        match record:
            case Agent():
                yield _agent(library, record)
            case UnitVersion():
                if record.status == "active" and record.valid_until is None:
                    if record.name in told:
                        raise _wrong(f"two versions of the unit {record.name[:80]!a} hold at once")
                    told.add(record.name)
                yield _unit(library, record, names, known)
            case Manifest():
                assert agent is not None
                yield _manifest(library, record, agent, names)
            case Approval():
                yield record if record.signature is None or is_signed_by_author(record, signers) else None
            case AuditRecord():
                if _is_deeper(record.detail, PARTS_WITHIN_MAX):
                    raise _wrong(f"detail has more than {PARTS_WITHIN_MAX} parts within parts")
                yield record
            case CoverageRun() | Probe():
                yield record


def _agent(library: Library, agent: Agent) -> Agent:
    if agent.deployment != library.settings.deployment:
        raise _elsewhere(library)
    for name in (agent.id, agent.shortname):
        if name is not None:
            new_agent(library, name)
    return agent


def _unit(library: Library, unit: UnitVersion, names: Sequence[str], signers: Sequence[Signer]) -> UnitVersion:
    address = read_address(unit.uri)
    if address.deployment != library.settings.deployment:
        raise _elsewhere(library)
    if address.owner not in names or (address.name, address.version) != (unit.name, unit.version):
        raise _wrong("a unit does not stand at its address")
    if check_text(address, unit.content, unit.authored_by) != unit.content_sha256:
        raise _wrong("the text of a unit is not the one that its digest is of")
    signer = None
    if unit.status != "quarantined" and unit.signature is not None:
        signer = unit_signer(_spellings(address, names), unit.content_sha256, unit.signature, signers)
    unit = msgspec.structs.replace(unit, token_count=count_cl100k(unit.content))
    if signer is None:
        return msgspec.structs.replace(unit, status="quarantined", signed_by=None, source_trust=0.0)
    return msgspec.structs.replace(
        unit,
        # For whom the deployment has signed is on record, and nowhere signed.
        signed_by=unit.signed_by if signer == DEPLOYMENT_SIGNER else signer,
        source_trust=min(unit.source_trust, TRUST_SIGNED if signer == unit.authored_by else TRUST_NAMED),
    )


def _spellings(address: Address, names: Sequence[str]) -> tuple[str, ...]:
    """All ways in which its signer may have written the address."""
    rest = f"{address.name}/{address.version}"
    owners = [*names, *(f"agent/{name}" for name in names)]
    return tuple(f"instruction:{address.deployment}/{owner}/{rest}" for owner in owners)


def _manifest(library: Library, manifest: Manifest, agent: Agent, names: Sequence[str]) -> Manifest:
    """Older ones are published anew before they are told again; whose units they name is looked at all the same."""
    deployment = library.settings.deployment
    if manifest.fact_uri != manifest_address(deployment, manifest.agent_id, manifest.version).uri:
        raise _wrong("a manifest does not stand at its address")
    read_address(manifest.fact_uri)
    draft = Draft(manifest.version, manifest.body, manifest.migration_mode)
    check_pointers(draft, deployment=deployment, agent_names=names)
    if manifest.superseded_at is None:
        check_shape(draft)
        check_names(draft)
        check_caps(draft)
        check_size(draft)
        check_stub(agent, manifest)
    return manifest


def _check_numbers(record: Record) -> None:
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, int | float) and not 0 <= value <= NUMBER_MAX:
            raise _wrong(f"{name} is no number that there can be")


def _is_deeper(value: object, levels: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper(part, levels - 1) for part in parts)


def _elsewhere(library: Library) -> InstructionError:
    return _wrong(f"it is of another deployment, and this one is {library.settings.deployment!a}")


def _wrong(reason: str) -> InstructionError:
    return InstructionError("record_invalid", reason)
