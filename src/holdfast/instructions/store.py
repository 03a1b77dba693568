"""The store protocol for instructions, in which every method is atomic, and the records that may be exported.

An owner's records can be exported to another store of the same deployment; keys, tokens and stubs cannot.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from holdfast.errors import StoreError
from holdfast.instructions.models import (
    Agent,
    Approval,
    AuditRecord,
    BootStub,
    CoverageRun,
    DetectedUnit,
    Manifest,
    Probe,
    Signer,
    UnitVersion,
)

OwnedRecord = Agent | UnitVersion | Manifest | Approval | AuditRecord | CoverageRun | Probe
_DETAIL_NOT_EXPORTED = frozenset({"jti"})
"""Keys of an audit record's detail that are not exported: `jti` identifies a wake token."""


def record_owner(record: OwnedRecord) -> str:
    """An agent's id, `shared`, or `skill/NAME`."""
    return record.id if isinstance(record, Agent) else record.agent_id


def export_record(record: OwnedRecord) -> OwnedRecord:
    """The record as it is exported, without the detail keys that stay in the store."""
    if isinstance(record, AuditRecord) and not _DETAIL_NOT_EXPORTED.isdisjoint(record.detail):
        detail = {name: value for name, value in record.detail.items() if name not in _DETAIL_NOT_EXPORTED}
        return msgspec.structs.replace(record, detail=detail)
    return record


class InstructionRecords(Protocol):
    def owners(self) -> tuple[str, ...]:
        """Owners of records: shared ones first, then agents."""

    def list_owner_records(self, owner: str) -> Iterator[OwnedRecord]:
        """All records that may be exported, the agent first, in the same order in every store."""

    def has_owner(self, owner: str) -> bool: ...

    def add_owner(self, records: Sequence[OwnedRecord]) -> bool:
        """Add all records of one owner. False if the owner exists, or an id, name or URI is taken."""

    def other_deployment(self, deployment: str) -> str | None:
        """The name of another deployment whose agents or units are in this store, if any."""

    def agent(self, name: str) -> Agent | None:
        """By id, or by shortname."""

    def agents(self) -> tuple[Agent, ...]: ...

    def put_agent(self, agent: Agent) -> bool:
        """Store the agent and increase its revision. False if the shortname is taken or is another agent's id."""

    def unit(self, uri: str) -> UnitVersion | None: ...

    def list_unit_versions(self, owner: str, name: str) -> tuple[UnitVersion, ...]: ...

    def units_at(self, owners: Sequence[str], at: int | None) -> tuple[UnitVersion, ...]:
        """Versions of these owners that were active at a time; for None those that are active now."""

    def add_unit(
        self, unit: UnitVersion, agent: Agent | None, *, replaces_uri: str | None, manifest_ids: Sequence[str] = ()
    ) -> bool:
        """Add a version, and `agent` if it is new; an active version ends its predecessors.

        False if the URI is taken, if `replaces_uri` is not the active version, or if an active version is listed by a
        manifest that is not among `manifest_ids`, those that it was checked against.
        """

    def release_unit(self, unit: UnitVersion, *, replaces_uri: str | None, manifest_ids: Sequence[str] = ()) -> bool:
        """Replace a quarantined version by its re-evaluated state; an active one ends its predecessors.

        False if it is no longer quarantined, and in the cases in which `add_unit` returns False.
        """

    def activate_unit(
        self, unit: UnitVersion, *, replaces_uri: str | None, at: int, manifest_ids: Sequence[str]
    ) -> bool:
        """Activate a pending version and end its predecessors. False in the cases of `add_unit` for an active one."""

    def quarantine_unit(self, unit: UnitVersion) -> bool:
        """Withdraw a version from every recall at once; False if it is quarantined already."""

    def manifest(self, agent_id: str) -> Manifest | None: ...

    def manifest_at(self, agent_id: str, at: int) -> Manifest | None: ...

    def find_manifest_version(self, agent_id: str, version: str) -> Manifest | None:
        """The manifest of a version, current or superseded."""

    def manifests_listing(self, owner: str, name: str) -> tuple[Manifest, ...]:
        """All current manifests with an entry for this unit; may include false positives with a similar URI."""

    def manifest_versions(self, agent_id: str) -> tuple[str, ...]: ...

    def guaranteed_count(self) -> int:
        """Units with guarantee_load in the current manifests of all agents."""

    def publish(
        self,
        manifest: Manifest,
        *,
        replaces_id: str | None,
        agent: Agent | None,
        run: CoverageRun,
        approvals: Sequence[Approval],
        events: Sequence[AuditRecord],
        activates: Sequence[tuple[UnitVersion, str | None, Sequence[str]]] = (),
        pinned_uris: Sequence[str] = (),
    ) -> bool:
        """Commit a manifest and drop cached stubs. False unless `replaces_id` is current and the version is new.

        `activates` are pending versions to activate, each with the URI of the version it replaces and the ids of the
        manifests it was checked against; `pinned_uris` are URIs of versions that must still be active.
        """

    def stub(self, agent_id: str, profile: str) -> BootStub | None: ...

    def save_stub(self, stub: BootStub) -> None:
        """Store a stub; the first one with a given cache key wins."""

    def add_audit(self, record: AuditRecord) -> None: ...

    def add_audits(self, records: Sequence[AuditRecord]) -> tuple[StoreError | None, ...]:
        """Add records in one transaction; the reason for each that cannot be stored. Raises StoreError if none can."""

    def audit(self, token: str) -> AuditRecord | None: ...

    def close_audit(self, token: str, *, used: Sequence[str], missed: Sequence[str], at: int) -> bool:
        """Close a record once; False if it was closed already."""

    def save_detected_usage(self, token: str, detected: Sequence[DetectedUnit], *, at: int) -> bool:
        """Store detected usage once, whether the record is closed or not; False if a trace was analysed already."""

    def audits(self, agent_id: str, *, since: int) -> tuple[AuditRecord, ...]:
        """Oldest first."""

    def list_run_audits(self, agent_id: str, heartbeat_id: str) -> tuple[AuditRecord, ...]:
        """Oldest first."""

    def heartbeat(self, agent_id: str, heartbeat_id: str) -> AuditRecord | None:
        """The latest preload record of a heartbeat."""

    def add_approval(self, approval: Approval, *, agent: Agent) -> None: ...

    def approvals(self, agent_id: str) -> tuple[Approval, ...]: ...

    def coverage(self, agent_id: str) -> CoverageRun | None:
        """The newest run for the current manifest."""

    def add_coverage(self, run: CoverageRun) -> None: ...

    def probes(self, agent_id: str) -> tuple[Probe, ...]: ...

    def put_probe(self, probe: Probe) -> None: ...

    def save_sampled_probes(self, probes: Sequence[Probe], *, lease: str, until: int, at: int) -> bool:
        """Take the lease and store the probes; False, without any change, if the lease is held."""

    def agents_to_sample(self, lease_prefix: str, *, since: int, at: int) -> tuple[str, ...]:
        """Ids of agents with a manifest, a recall closed since then, and a free lease."""

    def agents_to_measure(self, *, finished_before: int, recert_before: int) -> tuple[str, ...]:
        """Ids of agents whose manifest has no fresh coverage run, or whose re-certification is due before then."""

    def signers(self, *, at: int | None) -> tuple[Signer, ...]:
        """Signers whose entity has an admin key that is valid at this time; for None all registered ones."""

    def add_signer(self, signer: Signer) -> None: ...

    def remove_signers(self, signers: Sequence[Signer]) -> None:
        """Stop trusting these keys; existing records keep their signatures and status."""

    def consume_wake_token(self, jti: str, *, expires_at: int, at: int) -> bool:
        """Consume a wake token; False if it was used before."""

    def encodings(self, keys: Sequence[bytes]) -> Mapping[bytes, tuple[bytes, int]]:
        """What was kept under these keys, and when it was kept last."""

    def keep_encodings(self, encodings: Mapping[bytes, bytes], *, at: int, kept_since: int) -> None:
        """Keep encodings, again or for the first time, and forget those that were not kept since; may lose any."""

    def encoder(self) -> str | None:
        """The encoder that all manifests were last certified for."""

    def set_encoder(self, encoder: str) -> None: ...

    def refused_encoder(self) -> str | None:
        """The stored `Refusal` of the last encoder with which manifests failed, as JSON."""

    def set_refused_encoder(self, refusal: str) -> None: ...


@runtime_checkable
class SupportsInstructions(Protocol):
    @property
    def instructions(self) -> InstructionRecords: ...
