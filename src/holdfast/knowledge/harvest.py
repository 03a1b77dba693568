"""How what sessions hold becomes knowledge: planned without a trace, then done so that a crash loses nothing.

Everything that a run will add stands in the ledger before any page changes; a run that finds something begun finishes
that first, and doing it twice is doing it once.
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
    """A session that is over, and what was said in it, read when it is asked for."""

    session: str
    events: int
    day: str
    passages: Callable[[], Sequence[Passage]]
    workspace: str | None = None


class SourcePlan(msgspec.Struct, frozen=True):
    """What a run would take from one session."""

    session: str
    source: str
    events: int
    day: str
    said_bytes: int
    found: Harvested


class HarvestPlan(msgspec.Struct, frozen=True):
    """What a run would do. `known` sessions were harvested before and have not changed since."""

    sources: tuple[SourcePlan, ...]
    known: int
    pending: int
    new_items: int
    merged_items: int
    secrets: int
    said_bytes: int

    @property
    def model_tokens(self) -> int:
        """What a model would have to read, were it asked; about four bytes a token."""
        return self.said_bytes // 4


class Outcome(msgspec.Struct, frozen=True):
    """What a run did. `change` is that of the digest."""

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
    """Nothing is written."""
    journal = read_journal(disk)
    planned, known = _planned(journal, sessions)
    there = {item.id for page in read_pages(disk) for _, item in page.items}
    there |= {item.id for notes in read_notes(disk) for _, item in notes.page.items}
    gone = journal.told_before - there
    found = {item.id for one in planned for item in one.found.items} - gone
    return HarvestPlan(
        sources=planned,
        known=known,
        pending=len(journal.pending),
        new_items=len(found - there),
        merged_items=len(found & there),
        secrets=sum(one.found.secrets for one in planned),
        said_bytes=sum(one.said_bytes for one in planned),
    )


def apply_harvest(
    disk: Disk, sessions: Iterable[Spoken], *, project: Project = NO_PROJECT, ask: AskModel | None = None
) -> Outcome:
    """Do it, and finish what a run before this one had begun.

    With `ask` a model looks at each session, too. Its answer is in the ledger before the next session is looked at, so
    that it is paid for once; a session of which it gives no usable answer is left as it is.
    """
    with disk.locked():
        journal = read_journal(disk)
        mend_journal(disk, journal)
        if journal.corrupt:
            logger.warning("%d lines of the ledger cannot be read and were put aside", len(journal.corrupt))
        spoken = {one.session: one for one in sessions}
        planned, _ = _planned(journal, spoken.values())
        if ask is None:
            looked = _begun(disk, planned)
        else:
            looked = [
                _looked_at(disk, one, spoken[one.session], ask) for one in planned if one.source not in journal.failed
            ]
        begun = tuple(one for one in looked if one.kind == "started")
        # What was begun before goes along with the rest, so that pages are the same whether or not a run was cut off.
        records = (*journal.pending, *begun)
        _put_into_pages(disk, [item for one in records for item in one.items], journal.told_before, project)
        write_records(disk, [_finished(one) for one in records])
        before, made, written = rebuild_digest(disk)
    return Outcome(
        sessions=len(records),
        items=sum(len(one.items) for one in records),
        secrets=sum(one.found.secrets for one in planned),
        digest=made,
        change=change(before, made.text if written else before),
        digest_written=written,
        quarantined=len(journal.corrupt),
        failed=len(looked) - len(begun),
        cost_usd=str(sum((Decimal(one.cost_usd or 0) for one in looked), Decimal(0))) if ask else "0",
    )


def _begun(disk: Disk, planned: Sequence[SourcePlan]) -> list[Record]:
    begun = [_started(one, one.found.items) for one in planned]
    write_records(disk, begun)
    return begun


def _started(plan: SourcePlan, items: tuple[Item, ...], cost_usd: str = "") -> Record:
    return Record("started", plan.source, plan.session, plan.events, plan.day, items=items, cost_usd=cost_usd)


def _looked_at(disk: Disk, plan: SourcePlan, said: Spoken, ask: AskModel) -> Record:
    """What rules and a model find, on the ledger, or that the model found nothing that can be used."""
    try:
        found = ask_for_items(ask, said.passages(), session=plan.session, day=plan.day, workspace=said.workspace)
    except HoldfastError as error:
        # Another time it may be reached: nothing is said of the session.
        logger.warning("the model could not be asked: %s", type(error).__name__)
        return Record("failed", plan.source, plan.session, reason=type(error).__name__)
    if found.items is None:
        record = Record("failed", plan.source, plan.session, reason=found.reason, cost_usd=str(found.cost_usd))
    else:
        record = _started(plan, (*plan.found.items, *found.items), str(found.cost_usd))
    write_records(disk, [record])
    return record


def rebuild_digest(disk: Disk) -> tuple[str, Digest, bool]:
    """What the digest was, what it is by the pages alone, and whether it may be kept.

    Without anything to tell there is no digest; where knowledge is turned off by its marker, none is written.
    """
    before = read_text(disk.read(DIGEST) or b"")
    made = make_digest(all_items(read_pages(disk)))
    if disk.read(DISABLED) is not None:
        return before, made, False
    if made.text != before:
        if made.text:
            disk.replace(DIGEST, made.text.encode())
        else:
            disk.remove(DIGEST)
    return before, made, True


def read_pages(disk: Disk) -> tuple[Page, ...]:
    return tuple(
        read_page(category, read_text(disk.read(page_name(category)) or b""), scope=PROJECT) for category in CATEGORIES
    )


def source_of(passages: Sequence[Passage]) -> str:
    """The digest of what was said, by whom, in which order."""
    return digest(canonical_json([(one.role, one.content) for one in passages if not one.injected]))


def _planned(journal: Journal, sessions: Iterable[Spoken]) -> tuple[tuple[SourcePlan, ...], int]:
    seen, settled = journal.seen, journal.settled | {one.source for one in journal.pending}
    planned, known = [], 0
    for one in sessions:
        if (one.session, one.events) in seen:
            known += 1
            continue
        passages = one.passages()
        source = source_of(passages)
        if source in settled:
            known += 1
            continue
        settled |= {source}
        found = harvested(passages, session=one.session, day=one.day, workspace=one.workspace)
        said = sum(len(canonical_json(passage.content)) for passage in passages if not passage.injected)
        planned.append(SourcePlan(one.session, source, one.events, one.day, said, found))
    return tuple(planned), known


def _put_into_pages(disk: Disk, items: Sequence[Item], told_before: frozenset[str], project: Project) -> None:
    """Whatever of it is there already stays as it is, so that doing it twice is doing it once."""
    for category in CATEGORIES:
        own = [one for one in items if one.category == category]
        if own:
            change_file(disk, page_name(category), functools.partial(_with_own, category, own, told_before))
    for _ in range(ATTEMPTS_MAX):
        notes = read_notes(disk)
        there = {item.id for one in notes for _, item in one.page.items}
        news = _wanted(there, (one for one in items if one.category == "files"), told_before)
        files = noted(notes, news, project=project, read=disk.read)
        late = [one for one in files if not disk.replace_unless_changed(one.name, one.content, one.before)]
        if not late:
            return
    raise in_use(late[0].name)


def _with_own(category: Category, own: Sequence[Item], told_before: frozenset[str], raw: bytes) -> bytes:
    page = read_page(category, read_text(raw), scope=PROJECT)
    fresh = _wanted(page.by_id, own, told_before)
    after = with_items(page, fresh) if fresh else page
    return rewritten(raw, after.lines) if after.lines != page.lines else raw


def _finished(record: Record) -> Record:
    ids = tuple(sorted({one.id for one in record.items}))
    return Record("harvested", record.source, record.session, record.events, record.day, ids=ids)


def _wanted(there: Container[str], items: Iterable[Item], told_before: frozenset[str]) -> list[Item]:
    """What a person has removed does not come back by itself."""
    return [one for one in items if one.id in there or one.id not in told_before]
