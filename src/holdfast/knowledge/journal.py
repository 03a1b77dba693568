"""What was harvested, in lines of JSON that are written ahead: what a run will do stands there before it does it."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.canonical.encoding import canonical_json
from holdfast.knowledge.folder import LEDGER, QUARANTINE, Disk
from holdfast.knowledge.items import Item


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """`started` holds all that a run will add, already screened; `harvested` says that it is in the pages.

    `source` is the digest of what was said in the session. A session with the same number of `events` as before need
    not be read again. `cost_usd` is what a model took that was asked, too; `failed`
    says that its answer could not be used.
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


class Journal(msgspec.Struct, frozen=True):
    """The records in order with the lines they stand in, and the lines that hold none."""

    records: tuple[Record, ...] = ()
    lines: tuple[bytes, ...] = ()
    corrupt: tuple[bytes, ...] = ()
    cut_short: bool = False

    @property
    def pending(self) -> tuple[Record, ...]:
        """What was started and not finished, once for each source."""
        finished = self.settled
        begun = {one.source: one for one in self.records if one.kind == "started" and one.source not in finished}
        return tuple(begun.values())

    @property
    def settled(self) -> frozenset[str]:
        """Sources that need not be read again; one of which a model could say nothing may still be read by rule."""
        return frozenset(one.source for one in self.records if one.kind == "harvested")

    @property
    def failed(self) -> frozenset[str]:
        """Sources that no model is asked about again, unless more is said in them."""
        done = {one.source for one in self.records if one.kind == "harvested"}
        return frozenset(one.source for one in self.records if one.kind == "failed" and one.source not in done)

    @property
    def seen(self) -> frozenset[tuple[str, int]]:
        """Sessions by their number of events, as they were when they were harvested."""
        return frozenset((one.session, one.events) for one in self.records if one.kind == "harvested")

    @property
    def told_before(self) -> frozenset[str]:
        """Every item that was ever put into a page: what is no longer there, a person has removed."""
        return frozenset(one for record in self.records if record.kind == "harvested" for one in record.ids)


_decode = msgspec.json.Decoder(Record).decode


def read_journal(disk: Disk) -> Journal:
    """A line that cannot be read is kept apart; it is never taken for a ledger that says nothing."""
    raw = disk.read(LEDGER)
    if not raw:
        return Journal()
    lines = raw.split(b"\n")
    records, kept, corrupt = [], [], []
    for line in lines:
        if not line.strip():
            continue
        try:
            records.append(_decode(line))
            kept.append(line)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            corrupt.append(line)
    return Journal(tuple(records), tuple(kept), tuple(corrupt), cut_short=bool(lines[-1]))


def mend_journal(disk: Disk, journal: Journal) -> None:
    """Move what cannot be read to a file of its own, and end a line that was cut short."""
    if journal.corrupt:
        known = disk.read(QUARANTINE) or b""
        news = [line for line in journal.corrupt if line not in known.split(b"\n")]
        if news:
            disk.append(QUARANTINE, (b"" if not known or known.endswith(b"\n") else b"\n") + b"\n".join(news) + b"\n")
    if journal.corrupt or journal.cut_short:
        disk.replace(LEDGER, b"".join(line + b"\n" for line in journal.lines))


def write_records(disk: Disk, records: Sequence[Record]) -> None:
    if records:
        disk.append(LEDGER, b"".join(canonical_json(one) + b"\n" for one in records))
