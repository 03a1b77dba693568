"""How a value becomes a row and a row a value: columns are fields, and what has parts is JSON text."""

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

_LISTS_OF_AUDIT = ("loaded_chunks", "used_chunks", "missed_chunks", "detail", "detected")


class Table(Generic[Row]):
    """`nested` are the fields that are kept as JSON text."""

    def __init__(
        self, name: str, row: type[Row], *, nested: tuple[str, ...] = (), mark: str = "?", schema: str = ""
    ) -> None:
        self.name = f"{schema}{name}"
        self.columns = tuple(row.__struct_fields__)
        self._row = row
        self._nested = frozenset(nested)
        self._types = msgspec.structs.fields(row)
        marks = ", ".join([mark] * len(self.columns))
        self.insert = f"INSERT INTO {self.name} ({', '.join(self.columns)}) VALUES ({marks})"
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
        """Raises StoreError for what this version cannot read."""
        try:
            found = dict(zip(self.columns, cells, strict=True))
            for field in self._types:
                if field.name in self._nested:
                    found[field.name] = msgspec.json.decode(str(found[field.name]), type=field.type)
            return msgspec.convert(found, self._row, strict=False)
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
def instruction_tables(mark: str, *, schema: str = "") -> InstructionTables:
    def table(name: str, row: type[Row], *nested: str) -> Table[Row]:
        return Table(name, row, nested=nested, mark=mark, schema=schema)

    return InstructionTables(
        mark,
        schema,
        agents=table("instruction_agents", Agent, "supervisors", "always_rules"),
        units=table("instruction_units", UnitVersion),
        manifests=table("instruction_manifests", Manifest, "body", "provenance"),
        audit=table("instruction_audit", AuditRecord, *_LISTS_OF_AUDIT),
        stubs=table("boot_stubs", Stub),
        approvals=table("instruction_approvals", Approval),
        coverage=table("instruction_coverage", CoverageRun, "units"),
        probes=table("instruction_probes", Probe, "required_units"),
        signers=table("instruction_signers", Signer),
    )
