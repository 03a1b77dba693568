"""The harvest ledger: a write-ahead log in JSON lines of what a run will add to the pages."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.knowledge.folder import LEDGER_FILE, QUARANTINE_FILE, KnowledgeFiles
from holdfast.knowledge.items import Item
from holdfast.types.json_encoding import canonical_json


class HarvestRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """`started` has all items that a run will add, already screened; `harvested` says that they are in the pages.

    `source` is the digest of the session's messages. A session whose number of `events` is unchanged is not read
    again. `cost_usd` is the cost of a model call; `failed` says that the model's reply could not be used.
    """

    kind: Literal["started", "harvested", "failed"]
    source: str
    session: str
    events: int = 0
    day: str = ""
    items: tuple[Item, ...] = ()
    ids: tuple[str, ...] = ()
    cost_usd: str = ""
    reason: str = ""


class HarvestLedger(msgspec.Struct, frozen=True):
    """The records in order with their raw lines, and the lines that cannot be parsed."""

    records: tuple[HarvestRecord, ...] = ()
    lines: tuple[bytes, ...] = ()
    corrupt: tuple[bytes, ...] = ()
    is_cut_short: bool = False

    @property
    def pending(self) -> tuple[HarvestRecord, ...]:
        """Records that were started and not finished, one per source."""
        finished = self.settled_sources
        started = {record.source: record for record in self.records if record.kind == "started"}
        return tuple(record for source, record in started.items() if source not in finished)

    @property
    def settled_sources(self) -> frozenset[str]:
        """Sources that need not be read again; a source that failed with a model may still be read by the rules."""
        return frozenset(record.source for record in self.records if record.kind == "harvested")

    @property
    def failed_sources(self) -> frozenset[str]:
        """Sources that are not sent to a model again unless their session continues."""
        failed = frozenset(record.source for record in self.records if record.kind == "failed")
        return failed - self.settled_sources

    @property
    def harvested_sessions(self) -> frozenset[tuple[str, int]]:
        """Sessions with their number of events at the time of the harvest."""
        return frozenset((record.session, record.events) for record in self.records if record.kind == "harvested")

    @property
    def harvested_ids(self) -> frozenset[str]:
        """Ids of all items ever written to a page; those no longer there were removed by a person."""
        return frozenset(item_id for record in self.records if record.kind == "harvested" for item_id in record.ids)


_decode = msgspec.json.Decoder(HarvestRecord).decode


def read_ledger(disk: KnowledgeFiles) -> HarvestLedger:
    """Parse the ledger; unreadable lines are collected, so that a damaged ledger is never taken for an empty one."""
    raw = disk.read(LEDGER_FILE)
    if not raw:
        return HarvestLedger()
    lines = raw.split(b"\n")
    records, parsed_lines, corrupt = [], [], []
    for line in lines:
        if not line.strip():
            continue
        try:
            records.append(_decode(line))
            parsed_lines.append(line)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            corrupt.append(line)
    return HarvestLedger(tuple(records), tuple(parsed_lines), tuple(corrupt), is_cut_short=bool(lines[-1]))


def repair_ledger(disk: KnowledgeFiles, ledger: HarvestLedger) -> None:
    """Move unreadable lines to the quarantine file, and terminate a line that was cut short."""
    if ledger.corrupt:
        quarantined = disk.read(QUARANTINE_FILE) or b""
        new_lines = [line for line in ledger.corrupt if line not in quarantined.split(b"\n")]
        separator = b"" if not quarantined or quarantined.endswith(b"\n") else b"\n"
        if new_lines:
            disk.append(QUARANTINE_FILE, separator + b"\n".join(new_lines) + b"\n")
    # An append after a line that was cut short by a crash would corrupt the new record as well.
    if ledger.corrupt or ledger.is_cut_short:
        disk.replace(LEDGER_FILE, b"".join(line + b"\n" for line in ledger.lines))


def append_ledger_records(disk: KnowledgeFiles, records: Sequence[HarvestRecord]) -> None:
    if records:
        disk.append(LEDGER_FILE, b"".join(canonical_json(record) + b"\n" for record in records))
