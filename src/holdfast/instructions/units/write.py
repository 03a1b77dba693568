"""Write unit versions: immutable once written, quarantined if unsigned, pending if an approval is required first."""

import hashlib
from collections.abc import Sequence

import msgspec

from holdfast.catalog.token_count import count_cl100k_tokens
from holdfast.errors import InstructionError
from holdfast.instructions.access import InstructionCaller
from holdfast.instructions.context import InstructionContext, make_agent
from holdfast.instructions.coverage.measure import measure_unit
from holdfast.instructions.manifest.approvals import (
    ATTEMPTS_MAX,
    find_active_version,
    list_unit_entries,
    may_replace,
    missing_approvals,
    required_approvals,
)
from holdfast.instructions.models import Agent, ManifestEntry, UnitCoverage, UnitStatus, UnitVersion
from holdfast.instructions.recall.snapshot import select_newest_units
from holdfast.instructions.units.signatures import find_unit_signer, unit_message
from holdfast.instructions.uri import UnitAddress, check_new_version, is_newer_than_all, is_shared_owner, parse_unit_uri

CONTENT_CHARACTERS_MAX = 200_000
LISTINGS_MEASURED_MAX = 10
# How far the recorded author is trusted: signed by the author, sent by an admin with an entity URI, by a key without.
TRUST_SIGNED = 1.0
TRUST_ENTITY = 0.9
TRUST_KEY_ONLY = 0.7


class SubmittedUnit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fact_uri: str
    content: str
    authored_by: str | None = None
    derived_from: str | None = None
    signature: str | None = None


class WrittenUnit(msgspec.Struct, frozen=True):
    """`coverage` is the gate's result for the unit with its new text, if a manifest lists it.

    A shared unit is measured for the first few agents that list it, `measured_agents`, worst first; `coverage` is the
    worst result.
    """

    fact_uri: str
    content_sha256: str
    tokens: int
    status: UnitStatus
    is_new: bool
    coverage: UnitCoverage | None = None
    measured_agents: tuple[str, ...] = ()


def write_unit(context: InstructionContext, submitted: SubmittedUnit, caller: InstructionCaller) -> WrittenUnit:
    """Write a version once; an existing version at the same URI is never changed. Raises InstructionError."""
    address = parse_unit_uri(submitted.fact_uri)
    if address.deployment != context.settings.deployment:
        message = f"the URI names another deployment; this one is {context.settings.deployment!a}"
        raise InstructionError("uri_invalid", message)
    digest = check_unit_text(address, submitted.content, submitted.authored_by)
    writer = _UnitWriter(context, submitted, caller, address, digest)
    for _ in range(ATTEMPTS_MAX):
        written = writer.attempt()
        if written is not None:
            return written
    raise _conflict("other writes to this unit kept winning the race; try again")


def withdraw_unit(context: InstructionContext, fact_uri: str) -> UnitVersion:
    """Quarantine a version: no recall, heartbeat or preload returns it from now on. Raises InstructionError.

    Written again, it is judged again; the versions before it stay ended.
    """
    address = parse_unit_uri(fact_uri)
    agent = None if is_shared_owner(address.owner) else context.records.agent(address.owner)
    versions = context.records.list_unit_versions(agent.id if agent else address.owner, address.name)
    unit = next((version for version in versions if version.version == address.version), None)
    if unit is None:
        raise InstructionError("unit_not_found", f"there is no unit {fact_uri[:200]!a}")
    context.records.quarantine_unit(unit)
    return msgspec.structs.replace(unit, status="quarantined")


def check_unit_text(address: UnitAddress, content: str, authored_by: str | None) -> str:
    """Return the SHA-256 of a text that is valid for this address. Raises InstructionError."""
    if address.name == "manifest":
        raise InstructionError("uri_invalid", "the name manifest is reserved for the manifest itself")
    if not content.strip() or len(content) > CONTENT_CHARACTERS_MAX:
        raise InstructionError("unit_invalid", f"content has 1 to {CONTENT_CHARACTERS_MAX} characters")
    if authored_by is not None and not 0 < len(authored_by) <= 500:
        raise InstructionError("unit_invalid", "authored_by is a URI")
    try:
        return hashlib.sha256(content.encode()).hexdigest()
    except UnicodeEncodeError as error:
        raise InstructionError("unit_invalid", "content must be text that can be encoded as UTF-8") from error


class _UnitWriter(msgspec.Struct, frozen=True):
    """One submitted version; every attempt reads the other versions of the unit again."""

    context: InstructionContext
    submitted: SubmittedUnit
    caller: InstructionCaller
    address: UnitAddress
    digest: str

    def attempt(self) -> WrittenUnit | None:
        """Return None if another version was written meanwhile."""
        context, address, digest = self.context, self.address, self.digest
        shared = is_shared_owner(address.owner)
        agent = None if shared else context.records.agent(address.owner)
        new_agent = None if shared or agent else make_agent(context, address.owner)
        owner = agent.id if agent else address.owner
        versions = context.records.list_unit_versions(owner, address.name)
        # The lookup is by owner and not by URI: id and shortname of an agent address the same unit.
        existing = next((version for version in versions if version.version == address.version), None)
        if existing is not None and existing.content_sha256 != digest:
            raise _conflict("this version was written with other content; a version is written once")
        if existing is not None and existing.status != "quarantined":
            return _unchanged(existing)
        # A quarantined version must not block a signed one with the same or a lower number.
        trusted_versions = [version for version in versions if version.status != "quarantined"]
        newest = select_newest_units(trusted_versions).get((owner, address.name))
        if existing is not None:
            unit = self._recheck_quarantined(existing, newest)
            if unit.status == "quarantined" or (newest is not None and not may_replace(unit, newest)):
                return _unchanged(existing)
        else:
            check_new_version(address.version)
            unit = self._build_unit(self.submitted, owner, newest)
            self._check_author(unit)
            earlier = [version.version for version in trusted_versions]
            if newest is not None and not is_newer_than_all(unit.version, earlier):
                raise _conflict(f"version {unit.version} is not newer than {newest.version} and all versions before it")
        manifest = context.records.manifest(agent.id) if agent else None
        own = (manifest,) if manifest else ()
        listing_manifests = context.records.manifests_listing(owner, address.name) if shared else own
        listed = list_unit_entries(context, agent, manifest, unit)
        if unit.status == "active" and _needs_approval(context, unit, listed, is_new=existing is None):
            unit = msgspec.structs.replace(unit, status="pending")
        measured = _measure_listings(context, unit, listed)
        # The store refuses the write if the active version or a listing manifest has changed since it was read here.
        active = find_active_version(versions)
        replaces_uri = active.uri if active else None
        manifest_ids = [listing.id for listing in listing_manifests]
        if existing is not None:
            is_stored = context.records.release_unit(unit, replaces_uri=replaces_uri, manifest_ids=manifest_ids)
        else:
            is_stored = context.records.add_unit(unit, new_agent, replaces_uri=replaces_uri, manifest_ids=manifest_ids)
        if not is_stored:
            return None
        return WrittenUnit(
            unit.uri,
            digest,
            unit.token_count,
            unit.status,
            is_new=existing is None,
            coverage=next((line for _, line in measured), None),
            measured_agents=tuple(dict.fromkeys(measured_agent.id for measured_agent, _ in measured)),
        )

    def _recheck_quarantined(self, existing: UnitVersion, newest: UnitVersion | None) -> UnitVersion:
        """Re-evaluate a quarantined version with the submitted signature, or else with its own."""
        signature = self.submitted.signature if self.submitted.signature is not None else existing.signature
        signed = msgspec.structs.replace(
            self.submitted,
            authored_by=existing.authored_by,
            derived_from=existing.derived_from,
            signature=signature,
        )
        unit = self._build_unit(signed, existing.agent_id, newest)
        return msgspec.structs.replace(unit, uri=existing.uri, authored_at=existing.authored_at)

    def _build_unit(self, submitted: SubmittedUnit, owner: str, newest: UnitVersion | None) -> UnitVersion:
        context, digest, author = self.context, self.digest, submitted.authored_by or self.caller.author
        address = msgspec.structs.replace(self.address, owner=owner)
        now = context.now()
        signature, signer = submitted.signature, None
        if signature is not None:
            # The signature covers the URI as the author wrote it, so that every equivalent form is tried.
            uri_forms = dict.fromkeys((address.uri, self.address.uri, submitted.fact_uri))
            signer = find_unit_signer(uri_forms, digest, signature, context.signers())
        elif context.key is not None:
            signature = context.key.sign(unit_message(address.uri, digest))
            signer = self.caller.author
        return UnitVersion(
            uri=address.uri,
            agent_id=owner,
            name=address.name,
            version=address.version,
            content=submitted.content,
            content_sha256=digest,
            token_count=count_cl100k_tokens(submitted.content),
            created_at=now,
            authored_by=author,
            authored_at=now,
            source_trust=self._trust(author, signer, is_signed=submitted.signature is not None),
            status="active" if signer is not None else "quarantined",
            derived_from=submitted.derived_from or (newest.content_sha256 if newest else None),
            signature=signature,
            signed_by=signer,
        )

    def _check_author(self, unit: UnitVersion) -> None:
        """Nobody can write in the name of another without that person's signature (seed 003, 21.4.3).

        A signature by an unknown key is quarantined instead: its author may register the key later.
        """
        is_own = unit.authored_by == self.caller.author
        is_unknown = self.submitted.signature is not None and unit.signed_by is None
        if not (is_own or is_unknown or (self.submitted.signature is not None and unit.signed_by == unit.authored_by)):
            raise InstructionError(
                "author_signature_required",
                f"the key that sends this belongs to {self.caller.author[:200]!a}: text authored by "
                f"{unit.authored_by[:200]!a} needs a `signature` by that author's registered key",
            )

    def _trust(self, author: str, signer: str | None, *, is_signed: bool) -> float:
        if signer is None:
            return 0.0
        if is_signed and signer == author:
            return TRUST_SIGNED
        return TRUST_ENTITY if self.caller.entity else TRUST_KEY_ONLY


def _needs_approval(
    context: InstructionContext, unit: UnitVersion, listed: Sequence[tuple[Agent, ManifestEntry]], *, is_new: bool
) -> bool:
    """Whether an approval is missing; a text that is only now written cannot have been approved yet."""
    if is_new:
        return any(required_approvals(entry) for _, entry in listed)
    return any(missing_approvals(entry, unit, context.records.approvals(agent.id)) for agent, entry in listed)


def _unchanged(unit: UnitVersion) -> WrittenUnit:
    return WrittenUnit(unit.uri, unit.content_sha256, unit.token_count, unit.status, is_new=False)


def _measure_listings(
    context: InstructionContext, unit: UnitVersion, listed: Sequence[tuple[Agent, ManifestEntry]]
) -> tuple[tuple[Agent, UnitCoverage], ...]:
    """The gate's results for the unit where it is listed, worst first, for at most LISTINGS_MEASURED_MAX agents."""
    if unit.status == "quarantined":
        return ()
    results = []
    for agent, entry in listed[:LISTINGS_MEASURED_MAX]:
        manifest = context.records.manifest(agent.id)
        if manifest is not None:
            instruction_set = context.instruction_sets.build(agent, manifest, instead={entry.name: unit})
            results.append((agent, measure_unit(instruction_set, entry, context.settings)))
    # False sorts before True, so that failing results come first.
    results.sort(
        key=lambda result: (result[1].passed, 1.0 if result[1].coverage_pct is None else result[1].coverage_pct)
    )
    return tuple(results)


def _conflict(message: str) -> InstructionError:
    return InstructionError("unit_version_conflict", message)
