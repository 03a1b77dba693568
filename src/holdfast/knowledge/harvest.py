"""Harvest knowledge from ended sessions: plan without side effects, then apply crash-safely.

Everything that a run adds is in the ledger before any page changes (write-ahead). A run that finds unfinished records
finishes them first; applying a record twice has the same effect as applying it once.
"""

import functools
import logging
from collections.abc import Callable, Container, Iterable, Sequence
from decimal import Decimal

import msgspec

from holdfast.canonical.encoding import canonical_json, digest
from holdfast.canonical.prompt import Passage
from holdfast.errors import HoldfastError
from holdfast.knowledge.asking import AskModel, ask_for_items
from holdfast.knowledge.digest import Change, Digest, change, make_digest
from holdfast.knowledge.finding import Harvested, harvested
from holdfast.knowledge.folder import DIGEST, DISABLED, Disk
from holdfast.knowledge.items import CATEGORIES, PROJECT, Category, Item
from holdfast.knowledge.journal import Journal, Record, mend_journal, read_journal, write_records
from holdfast.knowledge.notes import NO_PROJECT, Project, noted, read_notes
from holdfast.knowledge.pages import Page, all_items, page_name, read_page, with_items
from holdfast.knowledge.rewriting import ATTEMPTS_MAX, change_file, in_use, rewritten
from holdfast.sources.text import read_text

logger = logging.getLogger(__name__)


class Spoken(msgspec.Struct, frozen=True):
    """An ended session; its history is read lazily."""

    session: str
    events: int
    day: str
    passages: Callable[[], Sequence[Passage]]
    workspace: str | None = None


class SourcePlan(msgspec.Struct, frozen=True):
    """What a run would harvest from one session."""

    session: str
    source: str
    events: int
    day: str
    said_bytes: int
    found: Harvested


class HarvestPlan(msgspec.Struct, frozen=True):
    """What a run would do. `known` counts sessions that were harvested before and have not changed since."""

    sources: tuple[SourcePlan, ...]
    known: int
    pending: int
    new_items: int
    merged_items: int
    secrets: int
    said_bytes: int

    @property
    def model_tokens(self) -> int:
        """What a model would have to read if it were called, at about four bytes per token."""
        return self.said_bytes // 4


class Outcome(msgspec.Struct, frozen=True):
    """What a run did. `change` is the change of the digest."""

    sessions: int
    items: int
    secrets: int
    digest: Digest
    change: Change
    digest_written: bool
    quarantined: int = 0
    failed: int = 0
    cost_usd: str = "0"


def plan_harvest(disk: Disk, sessions: Iterable[Spoken]) -> HarvestPlan:
    """Writes nothing."""
    ledger = read_journal(disk)
    planned, unchanged = _plan_sources(ledger, sessions)
    existing_ids = {item.id for page in read_pages(disk) for _, item in page.items}
    existing_ids |= {item.id for notes in read_notes(disk) for _, item in notes.page.items}
    removed_ids = ledger.told_before - existing_ids
    found_ids = {item.id for plan in planned for item in plan.found.items} - removed_ids
    return HarvestPlan(
        sources=planned,
        known=unchanged,
        pending=len(ledger.pending),
        new_items=len(found_ids - existing_ids),
        merged_items=len(found_ids & existing_ids),
        secrets=sum(plan.found.secrets for plan in planned),
        said_bytes=sum(plan.said_bytes for plan in planned),
    )


def apply_harvest(
    disk: Disk, sessions: Iterable[Spoken], *, project: Project = NO_PROJECT, ask: AskModel | None = None
) -> Outcome:
    """Apply a harvest, and finish what an interrupted run had started.

    With `ask` a model also reads each session. Its reply is in the ledger before the next session is read, so that it
    is paid for once; a session without a usable reply is left as it is.
    """
    with disk.locked():
        ledger = read_journal(disk)
        mend_journal(disk, ledger)
        if ledger.corrupt:
            logger.warning("%d lines of the ledger cannot be read and were quarantined", len(ledger.corrupt))
        sessions_by_id = {session.session: session for session in sessions}
        planned, _ = _plan_sources(ledger, sessions_by_id.values())
        if ask is None:
            records_read = _start_records(disk, planned)
        else:
            records_read = [
                _read_with_model(disk, plan, sessions_by_id[plan.session], ask)
                for plan in planned
                if plan.source not in ledger.failed
            ]
        started = tuple(record for record in records_read if record.kind == "started")
        # Interrupted records are applied together with the new ones, so that pages do not depend on the interruption.
        records = (*ledger.pending, *started)
        _write_items(disk, [item for record in records for item in record.items], ledger.told_before, project)
        # Only now: a crash before this line leaves the records pending, and the next run applies them again.
        write_records(disk, [_finished_record(record) for record in records])
        before, rebuilt, written = rebuild_digest(disk)
    return Outcome(
        sessions=len(records),
        items=sum(len(record.items) for record in records),
        secrets=sum(plan.found.secrets for plan in planned),
        digest=rebuilt,
        change=change(before, rebuilt.text if written else before),
        digest_written=written,
        quarantined=len(ledger.corrupt),
        failed=len(records_read) - len(started),
        cost_usd=str(sum((Decimal(record.cost_usd or 0) for record in records_read), Decimal(0))) if ask else "0",
    )


def _start_records(disk: Disk, planned: Sequence[SourcePlan]) -> list[Record]:
    records = [_started_record(plan, plan.found.items) for plan in planned]
    write_records(disk, records)
    return records


def _started_record(plan: SourcePlan, items: tuple[Item, ...], cost_usd: str = "") -> Record:
    return Record("started", plan.source, plan.session, plan.events, plan.day, items=items, cost_usd=cost_usd)


def _read_with_model(disk: Disk, plan: SourcePlan, session: Spoken, ask: AskModel) -> Record:
    """Write to the ledger what the rules and the model find, or that the model's reply is unusable."""
    try:
        finding = ask_for_items(
            ask, session.passages(), session=plan.session, day=plan.day, workspace=session.workspace
        )
    except HoldfastError as error:
        # The model may be reachable next time, so no record is written for the session.
        logger.warning("the model call failed: %s", type(error).__name__)
        return Record("failed", plan.source, plan.session, reason=type(error).__name__)
    if finding.items is None:
        record = Record("failed", plan.source, plan.session, reason=finding.reason, cost_usd=str(finding.cost_usd))
    else:
        record = _started_record(plan, (*plan.found.items, *finding.items), str(finding.cost_usd))
    write_records(disk, [record])
    return record


def rebuild_digest(disk: Disk) -> tuple[str, Digest, bool]:
    """Return the digest before, the digest made from the pages, and whether it was stored.

    Without any items the digest file is removed. If the `disabled` marker is present, nothing is written.
    """
    before = read_text(disk.read(DIGEST) or b"")
    rebuilt = make_digest(all_items(read_pages(disk)))
    if disk.read(DISABLED) is not None:
        return before, rebuilt, False
    if rebuilt.text != before:
        if rebuilt.text:
            disk.replace(DIGEST, rebuilt.text.encode())
        else:
            disk.remove(DIGEST)
    return before, rebuilt, True


def read_pages(disk: Disk) -> tuple[Page, ...]:
    return tuple(
        read_page(category, read_text(disk.read(page_name(category)) or b""), scope=PROJECT) for category in CATEGORIES
    )


def source_of(entries: Sequence[Passage]) -> str:
    """The SHA-256 of the session's messages, in order, with their roles."""
    return digest(canonical_json([(entry.role, entry.content) for entry in entries if not entry.injected]))


def _plan_sources(ledger: Journal, sessions: Iterable[Spoken]) -> tuple[tuple[SourcePlan, ...], int]:
    seen, settled = ledger.seen, ledger.settled | {record.source for record in ledger.pending}
    planned, unchanged = [], 0
    for session in sessions:
        # Cheap check first: an unchanged number of events needs no reading of the history.
        if (session.session, session.events) in seen:
            unchanged += 1
            continue
        entries = session.passages()
        source = source_of(entries)
        if source in settled:
            unchanged += 1
            continue
        settled |= {source}
        harvest = harvested(entries, session=session.session, day=session.day, workspace=session.workspace)
        content_bytes = sum(len(canonical_json(entry.content)) for entry in entries if not entry.injected)
        planned.append(SourcePlan(session.session, source, session.events, session.day, content_bytes, harvest))
    return tuple(planned), unchanged


def _write_items(disk: Disk, items: Sequence[Item], harvested_ids: frozenset[str], project: Project) -> None:
    """Add items to pages and notes; existing ones stay as they are, so that applying twice changes nothing."""
    for category in CATEGORIES:
        category_items = [item for item in items if item.category == category]
        if category_items:
            change_file(
                disk, page_name(category), functools.partial(_merge_into_page, category, category_items, harvested_ids)
            )
    for _ in range(ATTEMPTS_MAX):
        notes = read_notes(disk)
        existing_ids = {item.id for file_notes in notes for _, item in file_notes.page.items}
        new_items = _without_removed(existing_ids, (item for item in items if item.category == "files"), harvested_ids)
        files = noted(notes, new_items, project=project, read=disk.read)
        conflicting = [file for file in files if not disk.replace_unless_changed(file.name, file.content, file.before)]
        if not conflicting:
            return
    raise in_use(conflicting[0].name)


def _merge_into_page(category: Category, items: Sequence[Item], harvested_ids: frozenset[str], raw: bytes) -> bytes:
    page = read_page(category, read_text(raw), scope=PROJECT)
    new_items = _without_removed(page.by_id, items, harvested_ids)
    after = with_items(page, new_items) if new_items else page
    return rewritten(raw, after.lines) if after.lines != page.lines else raw


def _finished_record(record: Record) -> Record:
    ids = tuple(sorted({item.id for item in record.items}))
    return Record("harvested", record.source, record.session, record.events, record.day, ids=ids)


def _without_removed(existing_ids: Container[str], items: Iterable[Item], harvested_ids: frozenset[str]) -> list[Item]:
    """Drop items that were harvested before and are no longer there: a person has removed them."""
    return [item for item in items if item.id in existing_ids or item.id not in harvested_ids]
