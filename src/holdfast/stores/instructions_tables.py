"""Maps instruction values to table rows: columns are fields, and nested values are stored as JSON text."""

from collections.abc import Sequence
from functools import cache
from typing import Generic, TypeVar

import msgspec

from holdfast.errors import StoreError
from holdfast.instructions.values import (
    Agent,
    Approval,
    AuditRecord,
    CoverageRun,
    Manifest,
    Probe,
    Signer,
    Stub,
    UnitVersion,
)
from holdfast.stores.queries import Cell

Row = TypeVar("Row", bound=msgspec.Struct)

_AUDIT_LIST_COLUMNS = ("loaded_chunks", "used_chunks", "missed_chunks", "detail", "detected")


class Table(Generic[Row]):
    """`nested` are the fields that are stored as JSON text."""

    def __init__(
        self, name: str, row: type[Row], *, nested: tuple[str, ...] = (), param: str = "?", schema: str = ""
    ) -> None:
        self.name = f"{schema}{name}"
        self.columns = tuple(row.__struct_fields__)
        self._row = row
        self._nested = frozenset(nested)
        self._fields = msgspec.structs.fields(row)
        params = ", ".join([param] * len(self.columns))
        self.insert = f"INSERT INTO {self.name} ({', '.join(self.columns)}) VALUES ({params})"
        self.select = f"SELECT {', '.join(self.columns)} FROM {self.name}"

    def cells(self, row: Row) -> tuple[Cell, ...]:
        return tuple(self._cell(name, getattr(row, name)) for name in self.columns)

    def _cell(self, name: str, value: object) -> Cell:
        if name in self._nested:
            return msgspec.json.encode(value).decode()
        if isinstance(value, bool):
            return int(value)
        assert value is None or isinstance(value, str | int | float)
        return value

    def row(self, cells: Sequence[object]) -> Row:
        """Raises StoreError for a row that this version cannot read."""
        try:
            values = dict(zip(self.columns, cells, strict=True))
            for field in self._fields:
                if field.name in self._nested:
                    values[field.name] = msgspec.json.decode(str(values[field.name]), type=field.type)
            return msgspec.convert(values, self._row, strict=False)
        except (msgspec.MsgspecError, ValueError) as error:
            raise StoreError(f"{self.name} was written by a newer Holdfast, or is damaged") from error


class InstructionTables(msgspec.Struct, frozen=True):
    mark: str
    schema: str
    agents: Table[Agent]
    units: Table[UnitVersion]
    manifests: Table[Manifest]
    audit: Table[AuditRecord]
    stubs: Table[Stub]
    approvals: Table[Approval]
    coverage: Table[CoverageRun]
    probes: Table[Probe]
    signers: Table[Signer]


@cache
def instruction_tables(param: str, *, schema: str = "") -> InstructionTables:
    def table(name: str, row: type[Row], *nested: str) -> Table[Row]:
        return Table(name, row, nested=nested, param=param, schema=schema)

    return InstructionTables(
        param,
        schema,
        agents=table("instruction_agents", Agent, "supervisors", "always_rules"),
        units=table("instruction_units", UnitVersion),
        manifests=table("instruction_manifests", Manifest, "body", "provenance"),
        audit=table("instruction_audit", AuditRecord, *_AUDIT_LIST_COLUMNS),
        stubs=table("boot_stubs", Stub),
        approvals=table("instruction_approvals", Approval),
        coverage=table("instruction_coverage", CoverageRun, "units"),
        probes=table("instruction_probes", Probe, "required_units"),
        signers=table("instruction_signers", Signer),
    )
