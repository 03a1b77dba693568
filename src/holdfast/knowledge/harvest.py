"""Harvest knowledge from ended sessions: plan without side effects, then apply crash-safely.

Everything that a run adds is in the ledger before any page changes (write-ahead). A run that finds unfinished records
finishes them first; applying a record twice has the same effect as applying it once.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Literal

import msgspec

from holdfast.errors import HoldfastError
from holdfast.knowledge.digest import SHARED_DIGEST_BYTES_MAX, DigestDiff, KnowledgeDigest, compare_digests
from holdfast.knowledge.extract import ExtractedItems, extract_items
from holdfast.knowledge.file_notes import NO_PROJECT_LOOKUP, ProjectLookup
from holdfast.knowledge.folder import KnowledgeFiles
from holdfast.knowledge.items import Item
from holdfast.knowledge.journal import HarvestLedger, HarvestRecord, append_ledger_records, read_ledger, repair_ledger
from holdfast.knowledge.llm_extraction import SendPrompt, build_extraction_prompt, extract_items_with_model
from holdfast.knowledge.review import add_pending, add_to_pages, list_knowledge_items, read_pending, rebuild_digest
from holdfast.types.json_encoding import canonical_json, sha256_hex
from holdfast.types.prompt import HistoryEntry

logger = logging.getLogger(__name__)
Accept = Literal["none", "confident", "all"]
"""Which harvested items go to pages without a person."""


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
    prompt_characters: int = 0


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
    def model_calls(self) -> int:
        """How many sessions a model would be asked about: those with candidates."""
        return sum(bool(source.prompt_characters) for source in self.sources)

    @property
    def model_tokens(self) -> int:
        """What a model would read if it were asked about each session once, at about four characters per token."""
        return sum(source.prompt_characters for source in self.sources) // 4


class HarvestResult(msgspec.Struct, frozen=True):
    """`accepted` counts items that are in pages now, `waiting` all that wait for a person."""

    sessions: int
    items: int
    accepted: int
    waiting: int
    secrets: int
    digest: KnowledgeDigest
    digest_change: DigestDiff
    digest_written: bool
    quarantined: int = 0
    failed: int = 0
    cost_usd: str = "0"


class _Destination(msgspec.Struct, frozen=True):
    accept: Accept
    shared: KnowledgeFiles | None
    project: ProjectLookup

    def accepts(self, item: Item) -> bool:
        return self.accept == "all" or (self.accept == "confident" and item.is_confident and not item.flagged)


def plan_harvest(disk: KnowledgeFiles, sessions: Iterable[EndedSession]) -> HarvestPlan:
    """Writes nothing."""
    ledger = read_ledger(disk)
    planned, unchanged = _plan_sources(ledger, sessions)
    pending = read_pending(disk)
    existing_ids = {item.id for item in (*list_knowledge_items(disk), *pending.waiting)}
    removed_ids = (ledger.harvested_ids - existing_ids) | pending.set_aside_ids
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
    accept: Accept = "none",
    shared: KnowledgeFiles | None = None,
    project: ProjectLookup = NO_PROJECT_LOOKUP,
    ask: SendPrompt | None = None,
) -> HarvestResult:
    """Apply a harvest, and finish what an interrupted run had started.

    `accept` says which items go to pages at once; the others wait for a person. Accepted items that come from the
    project alone go to `shared`, the pages that all users of the workspace receive.
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
        items = [item for record in records for item in record.items]
        accepted = _place_items(disk, items, ledger.harvested_ids, _Destination(accept, shared, project))
        # Only now: a crash before this line leaves the records pending, and the next run applies them again.
        append_ledger_records(disk, [_finished_record(record) for record in records])
        before, rebuilt, written = rebuild_digest(disk)
    return HarvestResult(
        sessions=len(records),
        items=len(items),
        accepted=accepted,
        waiting=len(read_pending(disk).waiting),
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
        finding = extract_items_with_model(ask, session.read_entries(), session=plan.session, day=plan.day)
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
        prompt = len(build_extraction_prompt(entries).text)
        planned.append(SourcePlan(session.session, source, session.events, session.day, content_bytes, harvest, prompt))
    return tuple(planned), unchanged


def _place_items(
    disk: KnowledgeFiles, items: Sequence[Item], harvested_ids: frozenset[str], destination: _Destination
) -> int:
    """Add items to pages or let them wait for a person; returns how many are in pages.

    Placing items twice changes nothing.
    """
    pending, shared = read_pending(disk), destination.shared
    page_ids = {item.id for item in list_knowledge_items(disk)}
    shared_ids = {item.id for item in list_knowledge_items(shared)} if shared else set()
    existing_ids = page_ids | shared_ids | {item.id for item in pending.waiting}
    rejected_ids = pending.set_aside_ids | (read_pending(shared).set_aside_ids if shared else frozenset())
    own, common, waiting = [], [], []
    for item in items:
        # An item that was harvested before and is nowhere now was removed from its page by a person.
        if item.id in rejected_ids or (item.id in harvested_ids and item.id not in existing_ids):
            continue
        if item.id in page_ids:
            own.append(item)
        elif item.id in shared_ids:
            common.append(item)
        elif not destination.accepts(item):
            waiting.append(item)
        else:
            (common if shared and item.is_shareable else own).append(item)
    add_to_pages(disk, own, project=destination.project)
    if shared and common:
        with shared.lock():
            add_to_pages(shared, common, project=destination.project)
            rebuild_digest(shared, bytes_max=SHARED_DIGEST_BYTES_MAX)
    add_pending(disk, waiting)
    return len({item.id for item in (*own, *common)})


def _finished_record(record: HarvestRecord) -> HarvestRecord:
    ids = tuple(sorted({item.id for item in record.items}))
    return HarvestRecord("harvested", record.source, record.session, record.events, record.day, ids=ids)
