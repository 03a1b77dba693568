"""Harvest knowledge from ended sessions: plan without side effects, then apply crash-safely.

Everything that a run adds is in the ledger before any page changes (write-ahead). A run that finds unfinished records
finishes them first; applying a record twice has the same effect as applying it once.
"""

import functools
import logging
from collections.abc import Callable, Container, Iterable, Sequence
from decimal import Decimal

import msgspec

from holdfast.errors import HoldfastError
from holdfast.knowledge import pages
from holdfast.knowledge.digest import DigestDiff, KnowledgeDigest, build_digest, compare_digests
from holdfast.knowledge.extract import ExtractedItems, extract_items
from holdfast.knowledge.file_notes import NO_PROJECT_LOOKUP, ProjectLookup, read_notes, update_notes
from holdfast.knowledge.folder import DIGEST_FILE, DISABLED_FILE, KnowledgeFiles
from holdfast.knowledge.items import CATEGORIES, PROJECT_SCOPE, Category, Item
from holdfast.knowledge.journal import HarvestLedger, HarvestRecord, append_ledger_records, read_ledger, repair_ledger
from holdfast.knowledge.llm_extraction import SendPrompt, extract_items_with_model
from holdfast.sources.files import decode_text
from holdfast.types.json_encoding import canonical_json, sha256_hex
from holdfast.types.prompt import HistoryEntry

logger = logging.getLogger(__name__)


class EndedSession(msgspec.Struct, frozen=True):
    """An ended session; its history is read lazily."""

    session: str
    events: int
    day: str
    read_entries: Callable[[], Sequence[HistoryEntry]]
    workspace: str | None = None
    user: str | None = None


class SourcePlan(msgspec.Struct, frozen=True):
    session: str
    source: str
    events: int
    day: str
    content_bytes: int
    extracted: ExtractedItems


class HarvestPlan(msgspec.Struct, frozen=True):
    """What a run would do. `unchanged` counts sessions that were harvested before and have not changed since."""

    sources: tuple[SourcePlan, ...]
    unchanged: int
    pending: int
    new_items: int
    merged_items: int
    secrets: int
    content_bytes: int

    @property
    def model_tokens(self) -> int:
        """What a model would have to read if it were called, at about four bytes per token."""
        return self.content_bytes // 4


class HarvestResult(msgspec.Struct, frozen=True):
    sessions: int
    items: int
    secrets: int
    digest: KnowledgeDigest
    digest_change: DigestDiff
    digest_written: bool
    quarantined: int = 0
    failed: int = 0
    cost_usd: str = "0"


def plan_harvest(disk: KnowledgeFiles, sessions: Iterable[EndedSession]) -> HarvestPlan:
    """Writes nothing."""
    ledger = read_ledger(disk)
    planned, unchanged = _plan_sources(ledger, sessions)
    existing_ids = {item.id for page in read_pages(disk) for _, item in page.items}
    existing_ids |= {item.id for notes in read_notes(disk) for _, item in notes.page.items}
    removed_ids = ledger.harvested_ids - existing_ids
    found_ids = {item.id for plan in planned for item in plan.extracted.items} - removed_ids
    return HarvestPlan(
        sources=planned,
        unchanged=unchanged,
        pending=len(ledger.pending),
        new_items=len(found_ids - existing_ids),
        merged_items=len(found_ids & existing_ids),
        secrets=sum(plan.extracted.secrets for plan in planned),
        content_bytes=sum(plan.content_bytes for plan in planned),
    )


def apply_harvest(
    disk: KnowledgeFiles,
    sessions: Iterable[EndedSession],
    *,
    project: ProjectLookup = NO_PROJECT_LOOKUP,
    ask: SendPrompt | None = None,
) -> HarvestResult:
    """Apply a harvest, and finish what an interrupted run had started.

    With `ask` a model also reads each session. Its reply is in the ledger before the next session is read, so that it
    is paid for once; a session without a usable reply is left as it is.
    """
    with disk.lock():
        ledger = read_ledger(disk)
        repair_ledger(disk, ledger)
        if ledger.corrupt:
            logger.warning("%d lines of the ledger cannot be read and were quarantined", len(ledger.corrupt))
        sessions_by_id = {session.session: session for session in sessions}
        planned, _ = _plan_sources(ledger, sessions_by_id.values())
        if ask is None:
            records_read = [_started_record(plan, plan.extracted.items) for plan in planned]
            append_ledger_records(disk, records_read)
        else:
            records_read = [
                _read_with_model(disk, plan, sessions_by_id[plan.session], ask)
                for plan in planned
                if plan.source not in ledger.failed_sources
            ]
        started = tuple(record for record in records_read if record.kind == "started")
        # Interrupted records are applied together with the new ones, so that pages do not depend on the interruption.
        records = (*ledger.pending, *started)
        _write_items(disk, [item for record in records for item in record.items], ledger.harvested_ids, project)
        # Only now: a crash before this line leaves the records pending, and the next run applies them again.
        append_ledger_records(disk, [_finished_record(record) for record in records])
        before, rebuilt, written = rebuild_digest(disk)
    return HarvestResult(
        sessions=len(records),
        items=sum(len(record.items) for record in records),
        secrets=sum(plan.extracted.secrets for plan in planned),
        digest=rebuilt,
        digest_change=compare_digests(before, rebuilt.text if written else before),
        digest_written=written,
        quarantined=len(ledger.corrupt),
        failed=len(records_read) - len(started),
        cost_usd=str(sum((Decimal(record.cost_usd or 0) for record in records_read), Decimal(0))) if ask else "0",
    )


def _started_record(plan: SourcePlan, items: tuple[Item, ...], cost_usd: str = "") -> HarvestRecord:
    return HarvestRecord("started", plan.source, plan.session, plan.events, plan.day, items=items, cost_usd=cost_usd)


def _read_with_model(disk: KnowledgeFiles, plan: SourcePlan, session: EndedSession, ask: SendPrompt) -> HarvestRecord:
    """Write to the ledger what the rules and the model find, or that the model's reply is unusable."""
    try:
        entries, workspace = session.read_entries(), session.workspace
        finding = extract_items_with_model(ask, entries, session=plan.session, day=plan.day, workspace=workspace)
    except HoldfastError as error:
        # The model may be reachable next time, so no record is written for the session.
        logger.warning("the model call failed: %s", type(error).__name__)
        return HarvestRecord("failed", plan.source, plan.session, reason=type(error).__name__)
    cost = str(finding.cost_usd)
    if finding.items is None:
        record = HarvestRecord("failed", plan.source, plan.session, reason=finding.reason, cost_usd=cost)
    else:
        record = _started_record(plan, (*plan.extracted.items, *finding.items), cost)
    append_ledger_records(disk, [record])
    return record


def rebuild_digest(disk: KnowledgeFiles) -> tuple[str, KnowledgeDigest, bool]:
    """Return the digest before, the digest made from the pages, and whether it was stored.

    Without any items the digest file is removed. If the `disabled` marker is present, nothing is written.
    """
    before = decode_text(disk.read(DIGEST_FILE) or b"")
    rebuilt = build_digest(pages.list_page_items(read_pages(disk)))
    if disk.read(DISABLED_FILE) is not None:
        return before, rebuilt, False
    if rebuilt.text != before:
        if rebuilt.text:
            disk.replace(DIGEST_FILE, rebuilt.text.encode())
        else:
            disk.remove(DIGEST_FILE)
    return before, rebuilt, True


def read_pages(disk: KnowledgeFiles) -> tuple[pages.KnowledgePage, ...]:
    texts = ((category, decode_text(disk.read(pages.page_name(category)) or b"")) for category in CATEGORIES)
    return tuple(pages.parse_page(category, text, scope=PROJECT_SCOPE) for category, text in texts)


def digest_source(entries: Sequence[HistoryEntry]) -> str:
    """The SHA-256 of the session's messages, in order, with their roles."""
    return sha256_hex(canonical_json([(entry.role, entry.content) for entry in entries if not entry.is_injected]))


def _plan_sources(ledger: HarvestLedger, sessions: Iterable[EndedSession]) -> tuple[tuple[SourcePlan, ...], int]:
    seen, settled = ledger.harvested_sessions, ledger.settled_sources | {record.source for record in ledger.pending}
    planned, unchanged = [], 0
    for session in sessions:
        # Cheap check first: an unchanged number of events needs no reading of the history.
        if (session.session, session.events) in seen:
            unchanged += 1
            continue
        entries = session.read_entries()
        source = digest_source(entries)
        if source in settled:
            unchanged += 1
            continue
        settled |= {source}
        harvest = extract_items(entries, session=session.session, day=session.day, workspace=session.workspace)
        content_bytes = sum(len(canonical_json(entry.content)) for entry in entries if not entry.is_injected)
        planned.append(SourcePlan(session.session, source, session.events, session.day, content_bytes, harvest))
    return tuple(planned), unchanged


def _write_items(
    disk: KnowledgeFiles, items: Sequence[Item], harvested_ids: frozenset[str], project: ProjectLookup
) -> None:
    """Add items to pages and notes; existing ones stay as they are, so that applying twice changes nothing."""
    for category in CATEGORIES:
        if category_items := [item for item in items if item.category == category]:
            merge = functools.partial(_merge_into_page, category, category_items, harvested_ids)
            pages.edit_file(disk, pages.page_name(category), merge)
    for _ in range(pages.ATTEMPTS_MAX):
        notes = read_notes(disk)
        existing_ids = {item.id for file_notes in notes for _, item in file_notes.page.items}
        new_items = _without_removed(existing_ids, (item for item in items if item.category == "files"), harvested_ids)
        files = update_notes(notes, new_items, project=project, read=disk.read)
        conflicting = [file for file in files if not disk.replace_unless_changed(file.name, file.content, file.before)]
        if not conflicting:
            return
    raise pages.file_in_use_error(conflicting[0].name)


def _merge_into_page(category: Category, items: Sequence[Item], harvested_ids: frozenset[str], raw: bytes) -> bytes:
    page = pages.parse_page(category, decode_text(raw), scope=PROJECT_SCOPE)
    new_items = _without_removed(page.by_id, items, harvested_ids)
    after = pages.merge_page_items(page, new_items) if new_items else page
    return pages.rewrite_lines(raw, after.lines) if after.lines != page.lines else raw


def _finished_record(record: HarvestRecord) -> HarvestRecord:
    ids = tuple(sorted({item.id for item in record.items}))
    return HarvestRecord("harvested", record.source, record.session, record.events, record.day, ids=ids)


def _without_removed(existing_ids: Container[str], items: Iterable[Item], harvested_ids: frozenset[str]) -> list[Item]:
    """Drop items that were harvested before and are no longer there: a person has removed them."""
    return [item for item in items if item.id in existing_ids or item.id not in harvested_ids]
