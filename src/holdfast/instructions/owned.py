"""What belongs to an owner, and may be carried to another store of the same deployment: no key, no token, no stub."""

from collections.abc import Mapping

import msgspec

from holdfast.instructions.values import Agent, Approval, AuditRecord, CoverageRun, Manifest, Probe, UnitVersion

Record = Agent | UnitVersion | Manifest | Approval | AuditRecord | CoverageRun | Probe

_KEPT_BACK = frozenset({"jti"})
"""Of what an audit record says: by which wake token a heartbeat began."""


def owner_of_record(record: Record) -> str:
    """An agent's id, `shared`, or `skill/NAME`."""
    return record.id if isinstance(record, Agent) else record.agent_id


def carried(record: Record) -> Record:
    """As it leaves the store."""
    if isinstance(record, AuditRecord) and not _KEPT_BACK.isdisjoint(record.detail):
        return msgspec.structs.replace(record, detail=_without(record.detail))
    return record


def _without(detail: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in detail.items() if name not in _KEPT_BACK}
