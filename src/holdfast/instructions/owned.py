"""Records of an owner that may be exported to another store of the same deployment: no keys, tokens or stubs."""

from collections.abc import Mapping

import msgspec

from holdfast.instructions.values import Agent, Approval, AuditRecord, CoverageRun, Manifest, Probe, UnitVersion

Record = Agent | UnitVersion | Manifest | Approval | AuditRecord | CoverageRun | Probe

_DETAIL_NOT_EXPORTED = frozenset({"jti"})
"""Keys of an audit record's detail that are not exported: `jti` identifies a wake token."""


def owner_of_record(record: Record) -> str:
    """An agent's id, `shared`, or `skill/NAME`."""
    return record.id if isinstance(record, Agent) else record.agent_id


def carried(record: Record) -> Record:
    """The record as it is exported, without the detail keys that stay in the store."""
    if isinstance(record, AuditRecord) and not _DETAIL_NOT_EXPORTED.isdisjoint(record.detail):
        return msgspec.structs.replace(record, detail=_exported_detail(record.detail))
    return record


def _exported_detail(detail: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in detail.items() if name not in _DETAIL_NOT_EXPORTED}
