"""Validate an owner's records that are imported from another store: URIs, digests and signatures."""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.catalog.token_count import count_cl100k_tokens
from holdfast.errors import InstructionError
from holdfast.instructions.context import DEPLOYMENT_SIGNER, InstructionContext, make_agent
from holdfast.instructions.manifest import validate
from holdfast.instructions.manifest.validate import ManifestDraft
from holdfast.instructions.models import Agent, Approval, AuditRecord, CoverageRun, Manifest, Probe, Signer, UnitVersion
from holdfast.instructions.recall.boot_stub import check_stub_size
from holdfast.instructions.store import OwnedRecord, record_owner
from holdfast.instructions.units.signatures import find_unit_signer, is_signed_by_author
from holdfast.instructions.units.write import TRUST_ENTITY, TRUST_SIGNED, check_unit_text
from holdfast.instructions.uri import UnitAddress, is_shared_owner, parse_unit_uri

NUMBER_FIELD_MAX = 253_402_214_400_000
"""The last day of the year 9999 in milliseconds, the latest that datetime can format; no other field counts so far."""
NESTING_LEVELS_MAX = 32


def validate_imported_records(
    context: InstructionContext, records: Sequence[OwnedRecord]
) -> Iterator[OwnedRecord | None]:
    """Each record of one owner as accepted here; None for an approval whose signature is not valid here.

    A unit that no key known here has signed is quarantined. Its predecessors stay ended: a missing text is noticed,
    while an older text that becomes active again might not be. Raises InstructionError at the first invalid record.
    """
    first = records[0]
    agent = first if isinstance(first, Agent) else None
    owner = record_owner(first)
    if agent is None and not is_shared_owner(owner):
        raise _invalid_record(f"the records of {owner[:80]!a} do not start with the agent")
    names = agent.names if agent else (owner,)
    signers, trusted_signers = context.records.signers(at=context.now()), context.signers()
    active_names: set[str] = set()
    for record in records:
        _check_numbers(record)
        if agent is None and not isinstance(record, UnitVersion):
            raise _invalid_record(f"{owner[:80]!a} is not an agent and can only have units")
        match record:
            case Agent():
                yield _check_agent(context, record)
            case UnitVersion():
                if record.status == "active" and record.valid_until is None:
                    if record.name in active_names:
                        raise _invalid_record(f"two versions of the unit {record.name[:80]!a} are active at once")
                    active_names.add(record.name)
                yield _check_unit(context, record, names, trusted_signers)
            case Manifest():
                assert agent is not None
                yield _check_manifest(context, record, agent, names)
            case Approval():
                yield record if record.signature is None or is_signed_by_author(record, signers) else None
            case AuditRecord():
                if _is_deeper(record.detail, NESTING_LEVELS_MAX):
                    raise _invalid_record(f"detail is nested more than {NESTING_LEVELS_MAX} levels deep")
                yield record
            case CoverageRun() | Probe():
                yield record


def _check_agent(context: InstructionContext, agent: Agent) -> Agent:
    if agent.deployment != context.settings.deployment:
        raise _other_deployment(context)
    for name in agent.names:
        make_agent(context, name)
    return agent


def _check_unit(
    context: InstructionContext, unit: UnitVersion, names: Sequence[str], signers: Sequence[Signer]
) -> UnitVersion:
    address = parse_unit_uri(unit.uri)
    if address.deployment != context.settings.deployment:
        raise _other_deployment(context)
    if address.owner not in names or (address.name, address.version) != (unit.name, unit.version):
        raise _invalid_record("the URI of a unit does not match its owner, name and version")
    if check_unit_text(address, unit.content, unit.authored_by) != unit.content_sha256:
        raise _invalid_record("the text of a unit does not match its digest")
    signer = None
    # A unit that the exporting store had quarantined stays quarantined.
    if unit.status != "quarantined" and unit.signature is not None:
        signer = find_unit_signer(_uri_forms(address, names), unit.content_sha256, unit.signature, signers)
    unit = msgspec.structs.replace(unit, token_count=count_cl100k_tokens(unit.content))
    if signer is None:
        return msgspec.structs.replace(unit, status="quarantined", signed_by=None, source_trust=0.0)
    return msgspec.structs.replace(
        unit,
        # The deployment's signature does not cover signed_by, so the recorded value is kept.
        signed_by=unit.signed_by if signer == DEPLOYMENT_SIGNER else signer,
        source_trust=min(unit.source_trust, TRUST_SIGNED if signer == unit.authored_by else TRUST_ENTITY),
    )


def _uri_forms(address: UnitAddress, names: Sequence[str]) -> tuple[str, ...]:
    """All equivalent forms of the URI that its signer may have used."""
    rest = f"{address.name}/{address.version}"
    owners = [*names, *(f"agent/{name}" for name in names)]
    return tuple(f"instruction:{address.deployment}/{owner}/{rest}" for owner in owners)


def _check_manifest(context: InstructionContext, manifest: Manifest, agent: Agent, names: Sequence[str]) -> Manifest:
    """Check a manifest; a superseded one only for its pointers, because a rollback runs all checks again."""
    deployment = context.settings.deployment
    if manifest.fact_uri != validate.manifest_address(deployment, manifest.agent_id, manifest.version).uri:
        raise _invalid_record("the URI of a manifest does not match its agent and version")
    parse_unit_uri(manifest.fact_uri)
    draft = ManifestDraft(manifest.version, manifest.body, manifest.migration_mode)
    validate.check_pointers(draft, deployment=deployment, agent_names=names)
    if manifest.superseded_at is None:
        validate.check_entries(draft)
        validate.check_unique_names(draft)
        validate.check_guaranteed_cap(draft)
        validate.check_manifest_size(draft)
        check_stub_size(agent, manifest)
    return manifest


def _check_numbers(record: OwnedRecord) -> None:
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, int | float) and not 0 <= value <= NUMBER_FIELD_MAX:
            raise _invalid_record(f"{name} is out of range")


def _is_deeper(value: object, levels: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper(part, levels - 1) for part in parts)


def _other_deployment(context: InstructionContext) -> InstructionError:
    return _invalid_record(f"it belongs to another deployment; this one is {context.settings.deployment!a}")


def _invalid_record(reason: str) -> InstructionError:
    return InstructionError("record_invalid", reason)
