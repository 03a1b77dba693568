"""What a store keeps about instructions; every method is one step that happens whole or not at all."""

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from holdfast.instructions.owned import Record
from holdfast.instructions.values import (
    Agent,
    Approval,
    AuditRecord,
    CoverageRun,
    Detected,
    Manifest,
    Probe,
    Signer,
    Stub,
    UnitVersion,
)


class InstructionRecords(Protocol):
    def owners(self) -> tuple[str, ...]:
        """Whose records there are: first what is kept for many, then agents."""

    def records_of(self, owner: str) -> Iterator[Record]:
        """All that may be carried elsewhere, the agent first, in an order that is the same in every store."""

    def is_here(self, owner: str) -> bool: ...

    def add_owner(self, records: Sequence[Record]) -> bool:
        """All records of one owner. False where the owner is here, or an id, a name or an address is taken."""

    def other_deployment(self, deployment: str) -> str | None:
        """One whose agents or units are kept here beside those of this deployment."""

    def agent(self, name: str) -> Agent | None:
        """By id, or by shortname."""

    def agents(self) -> tuple[Agent, ...]: ...

    def put_agent(self, agent: Agent) -> bool:
        """False where the shortname is taken, or is another's id; the revision rises."""

    def unit(self, uri: str) -> UnitVersion | None: ...

    def versions_of(self, owner: str, name: str) -> tuple[UnitVersion, ...]: ...

    def units_at(self, owners: Sequence[str], at: int | None) -> tuple[UnitVersion, ...]:
        """Active versions of these owners that hold at a time, or for None those that hold, whatever the time is."""

    def add_unit(
        self, unit: UnitVersion, registers: Agent | None, *, over: str | None, judged: Sequence[str] = ()
    ) -> bool:
        """An active one ends those before it. False where the address is taken, or `over` is not what holds.

        False also where an active one is listed by another manifest than those with the ids in `judged`.
        """

    def release_unit(self, unit: UnitVersion, *, over: str | None, judged: Sequence[str] = ()) -> bool:
        """One that was quarantined becomes what it now is; an active one ends those before it.

        False where it is quarantined no more, and where adding it would be.
        """

    def activate_unit(self, unit: UnitVersion, *, over: str | None, at: int, judged: Sequence[str]) -> bool:
        """A pending one is active from now on, and those before it end. False where adding an active one would be."""

    def manifest(self, agent_id: str) -> Manifest | None: ...

    def manifest_at(self, agent_id: str, at: int) -> Manifest | None: ...

    def manifest_of(self, agent_id: str, version: str) -> Manifest | None:
        """The one of a version, whether it still holds or not."""

    def manifests_listing(self, owner: str, name: str) -> tuple[Manifest, ...]:
        """All current manifests with an entry for this unit, and perhaps some with one that is spelled alike."""

    def manifest_versions(self, agent_id: str) -> tuple[str, ...]: ...

    def guaranteed_count(self) -> int:
        """Units with guarantee_load in the current manifests of all agents."""

    def publish(
        self,
        manifest: Manifest,
        *,
        over: str | None,
        registers: Agent | None,
        run: CoverageRun,
        approvals: Sequence[Approval],
        events: Sequence[AuditRecord],
        activates: Sequence[tuple[UnitVersion, str | None, Sequence[str]]] = (),
        holds: Sequence[str] = (),
    ) -> bool:
        """False, and nothing done, unless the current manifest is `over` and the version new. Stubs are forgotten.

        `activates` are versions that waited for an approval, each with the address of the one that it takes over from
        and the ids of the manifests that it was judged by;
        `holds` are addresses of versions that must still be the ones that hold.
        """

    def stub(self, agent_id: str, profile: str) -> Stub | None: ...

    def keep_stub(self, stub: Stub) -> None:
        """The first of those with the same key stays."""

    def add_audit(self, record: AuditRecord) -> None: ...

    def audit(self, token: str) -> AuditRecord | None: ...

    def close_audit(self, token: str, *, used: Sequence[str], missed: Sequence[str], at: int) -> bool:
        """Once; False where it was closed already."""

    def keep_detected(self, token: str, detected: Sequence[Detected], *, at: int) -> bool:
        """Once, whether it is closed or not; False where a trace was looked at already."""

    def audits(self, agent_id: str, *, since: int) -> tuple[AuditRecord, ...]:
        """Oldest first."""

    def audits_of_run(self, agent_id: str, heartbeat_id: str) -> tuple[AuditRecord, ...]:
        """Oldest first."""

    def heartbeat(self, agent_id: str, heartbeat_id: str) -> AuditRecord | None:
        """The record of how a heartbeat began that was woken here, for the last time."""

    def add_approval(self, approval: Approval, *, registers: Agent) -> None: ...

    def approvals(self, agent_id: str) -> tuple[Approval, ...]: ...

    def coverage(self, agent_id: str) -> CoverageRun | None:
        """The newest run for the current manifest."""

    def add_coverage(self, run: CoverageRun) -> None: ...

    def probes(self, agent_id: str) -> tuple[Probe, ...]: ...

    def put_probe(self, probe: Probe) -> None: ...

    def put_sample(self, probes: Sequence[Probe], *, lease: str, until: int, at: int) -> bool:
        """Take the lease and keep the probes; False, and nothing done, where somebody holds it."""

    def agents_to_sample(self, lease_prefix: str, *, since: int, at: int) -> tuple[str, ...]:
        """Ids of agents with a manifest that closed a recall since then, and whose lease nobody holds."""

    def agents_to_measure(self, *, finished_before: int, recert_before: int) -> tuple[str, ...]:
        """Ids of agents whose manifest has no run that is fresh since then, or one to be made up for before then."""

    def signers(self, *, at: int | None) -> tuple[Signer, ...]:
        """Those whose entity has an admin key that can be used at this time; for None all that are registered."""

    def add_signer(self, signer: Signer) -> None: ...

    def remove_signers(self, signers: Sequence[Signer]) -> None:
        """From now on their keys vouch for nothing; what they have signed stays as it is."""

    def use_wake(self, jti: str, *, expires_at: int, at: int) -> bool:
        """Whether nobody used it before."""

    def take_lease(self, name: str, *, until: int, at: int) -> bool:
        """Whether nobody holds it now; it is then the caller's until that time."""

    def end_lease(self, name: str, *, until: int) -> None:
        """Let go of the lease that was taken until then; one that another has taken since stays."""

    def encoder(self) -> str | None:
        """The encoder that all manifests were last certified for."""

    def set_encoder(self, encoder: str) -> None: ...

    def refused_encoder(self) -> str | None:
        """What was said of the last one with which manifests failed."""

    def set_refused_encoder(self, told: str) -> None: ...


@runtime_checkable
class HasInstructions(Protocol):
    """A store that can keep instructions."""

    @property
    def instructions(self) -> InstructionRecords: ...
