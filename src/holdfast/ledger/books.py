"""The books of a session: every event is entered once, and what is remembered does not grow with the session.

A store enters events as it writes them; `entries` does the same for a whole log at once.
"""

from collections.abc import Iterable, Iterator
from decimal import Decimal

import msgspec

from holdfast.canonical.blocks import Image, ToolResult
from holdfast.canonical.moves import Move
from holdfast.canonical.prompt import Plan
from holdfast.canonical.reply import ReplySource
from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import Models, cached_by_others, known_model, price_at, utc_date
from holdfast.catalog.rows import Model
from holdfast.economics.cost import uncached_cost_usd
from holdfast.events.envelope import Event
from holdfast.events.payloads import (
    AnyPayload,
    CachePinged,
    EpochOpened,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    MessageAppended,
    MessagesWithdrawn,
    ModelSwitched,
    RequestPrepared,
    SessionStarted,
)
from holdfast.events.payloads_compaction import ContextCompacted
from holdfast.events.payloads_controls import CacheControlled
from holdfast.events.payloads_gateway import GatewayForwarded
from holdfast.events.payloads_recovery import Mending, ProviderLimited
from holdfast.ledger.money import bounded, integer, rounded
from holdfast.ledger.shares import Head, Payer, head_of, payer, stable_written
from holdfast.ledger.verdicts import DROP_TOKENS_MIN, Left, Request, Verdict, judge, left_by

UNDER_WAY_MAX = 64
"""Requests of one session that can be under way at once; what began before those was never answered."""

ENTERED = (
    SessionStarted,
    EpochOpened,
    ModelSwitched,
    CacheControlled,
    MessagesWithdrawn,
    MessageAppended,
    RequestPrepared,
    LlmCallStarted,
    CachePinged,
    LlmCallCompleted,
    LlmCallFailed,
    Mending,
    ProviderLimited,
    ContextCompacted,
    GatewayForwarded,
)
"""What changes the books; all other events leave them as they are."""


class CallRecord(msgspec.Struct, frozen=True):
    """`blocks_shared` of the `blocks_before` of the call before stood in this call too, byte for byte."""

    number: int
    at: float
    request_id: str
    model: str
    usage: Usage
    cost_usd: Decimal
    latency_ms: int
    completed: bool
    blocks_shared: int
    blocks_before: int
    moved_layer: str | None
    moved_byte: int | None

    @property
    def prefix_held(self) -> bool:
        return self.blocks_shared >= self.blocks_before


class Entry(msgspec.Struct, frozen=True):
    """A call that a provider has taken money for: what it was, what was planned, and how it is judged.

    `uncached_usd` is what it would have cost without a cache, or its cost where no price is known; `chain` is the
    digest of all that it sent. A call that broke off, of which no usage was told, or whose model the catalog does not
    know, has no verdict, nor has one that a kept reply has answered: it cost nothing, and left every cache as it was.
    `stable_written` tokens were written for tools and stable system prompt.
    """

    event_id: str
    turn_id: str | None
    provider: str
    record: CallRecord
    uncached_usd: Decimal
    pricing_version: str = ""
    stop_reason: str = ""
    retries: int = 0
    plan: Plan = Plan()
    chain: str = ""
    verdict: Verdict | None = None
    source: ReplySource = "provider"
    completion_key: str = ""
    completion_kept: bool = False
    stable_written: int = 0
    payer: Payer = Payer()


class Books(msgspec.Struct, frozen=True):
    """What has to be remembered of a session so that its next call can be entered.

    The newest request has `blocks` blocks and the digest `chain`; the newest that was answered had `answered` of them.
    One that came to nothing is `refused`: the next is compared with what the provider had taken before it. What a
    `simulated` session takes is nobody's money.
    """

    number: int = 0
    blocks: int = 0
    chain: str = ""
    answered: int = 0
    images: bool = False
    planned: tuple[str, str] | None = None
    newest: Request | None = None
    under_way: tuple[tuple[str, Request], ...] = ()
    left: Left | None = None
    refused: Request | None = None
    simulated: bool = False
    head: Head = Head()
    payer: Payer = Payer()


def entered(
    books: Books, event: Event, models: Models, *, drop_tokens_min: int = DROP_TOKENS_MIN
) -> tuple[Books, Entry | None]:
    """The books with one more event, and the call that it ended, if it did."""
    event = bounded(event)
    match event.payload:
        case RequestPrepared() as it:
            return _prepared(books, it, event.at), None
        case LlmCallStarted(request_id=request_id) if books.newest is not None:
            under_way = (*books.under_way, (request_id, books.newest))[-UNDER_WAY_MAX:]
            return msgspec.structs.replace(books, under_way=under_way), None
        case LlmCallCompleted(source="completion-cache" | "summary") as it:
            return _beside(books, event, it, models)
        case LlmCallCompleted() | LlmCallFailed() as it:
            return _ended(books, event, it, models=models, drop_tokens_min=drop_tokens_min)
        case other:
            return _noted(books, other), None


def entries(events: Iterable[Event], models: Models, *, drop_tokens_min: int = DROP_TOKENS_MIN) -> Iterator[Entry]:
    """The calls of a session in the order in which they ended, however they overlapped.

    They were completed, or broken off after the provider had begun.
    """
    books = Books()
    for event in events:
        if isinstance(event.payload, ENTERED):
            books, entry = entered(books, event, models, drop_tokens_min=drop_tokens_min)
            if entry is not None:
                yield entry


def _noted(books: Books, payload: AnyPayload) -> Books:
    replace = msgspec.structs.replace
    match payload:
        case SessionStarted(simulated=simulated, user_id=user_id, team_id=team_id):
            whose = payer(user_id=user_id, team_id=team_id)
            return replace(books, simulated=books.simulated or simulated, payer=whose)
        case GatewayForwarded(key_id=key_id, user_id=user_id, team_id=team_id):
            return replace(books, payer=payer(key_id=key_id, user_id=user_id, team_id=team_id))
        case EpochOpened(epoch=epoch) if epoch > 1:
            return replace(books, planned=("epoch", f"epoch {epoch} was opened"))
        case ModelSwitched(after=after):
            # Another model has another cache: there is nothing that could have moved.
            planned = ("model", f"the model was switched to {after}")
            return replace(books, planned=planned, blocks=0, chain="", head=Head(), refused=None)
        case CacheControlled(reason=reason, new_prefix=new_prefix):
            asked_for = replace(books, planned=("settings", reason) if reason else books.planned)
            # Another prefix was asked for: there is nothing that could have moved.
            return replace(asked_for, blocks=0, chain="", head=Head(), refused=None) if new_prefix else asked_for
        case ContextCompacted() as it:
            planned = ("compaction", f"messages {it.first} to {it.last} were compacted ({it.trigger})")
            blocks, answered = min(books.blocks, it.kept_blocks), min(books.answered, it.kept_blocks)
            return replace(books, planned=planned, blocks=blocks, answered=answered, refused=None)
        case MessagesWithdrawn() if books.blocks > books.answered:
            # The provider took nothing of what was refused.
            return replace(books, blocks=books.answered)
        case Mending(reason=reason):
            planned = ("recovery", f"the view was mended: {reason}")
            return replace(books, planned=planned, blocks=min(books.blocks, books.answered), refused=None)
        case ProviderLimited(reason=reason) as it if it.marks_max is not None or it.short_lifetimes:
            return replace(books, planned=("recovery", f"marks were changed: {reason}"))
        case MessageAppended(message=message) if not books.images and any(map(has_image, message.content)):
            return replace(books, images=True)
        case CachePinged() as it if it.piece is not None and books.left and it.sent_at >= books.left.used_at:
            kept = it.usage.cache_read + it.usage.cache_write
            return replace(books, left=replace(books.left, used_at=it.sent_at, tokens=kept, ttl=it.ttl, mark=it.piece))
        case _:
            return books


def _prepared(books: Books, it: RequestPrepared, at: float) -> Books:
    links = it.links
    moved = links[0] if links and it.shared_blocks < books.blocks else None
    chain = links[-1].digest if links else books.chain
    head = head_of(books.head, it.shared_blocks, links)
    request = Request(
        at=at,
        plan=it.plan,
        chain=chain,
        settings=dict(it.settings),
        blocks_before=books.blocks,
        blocks_shared=it.shared_blocks,
        moved_layer=moved.layer if moved else None,
        move=it.moved or (Move(moved.start) if moved else None),
        planned=books.planned,
        images=books.images,
        stable_share=head.share,
        payer=books.payer,
    )
    if books.refused is not None:
        request = _past(books.refused, request)
    blocks = it.shared_blocks + len(links)
    return msgspec.structs.replace(
        books, newest=request, planned=None, blocks=blocks, chain=chain, head=head, refused=None
    )


def _past(refused: Request, request: Request) -> Request:
    """The request as it stands to the one before the refused one: what that had moved is still moved."""
    if refused.moved and refused.blocks_shared <= request.blocks_shared:
        layer, move, shared = refused.moved_layer, refused.move, refused.blocks_shared
    else:
        layer, move, shared = request.moved_layer, request.move, request.blocks_shared
    return msgspec.structs.replace(
        request, blocks_before=refused.blocks_before, blocks_shared=shared, moved_layer=layer, move=move
    )


def _ended(
    books: Books, event: Event, it: LlmCallCompleted | LlmCallFailed, *, models: Models, drop_tokens_min: int
) -> tuple[Books, Entry | None]:
    request = next((sent for name, sent in reversed(books.under_way) if name == it.request_id), books.newest)
    under_way = tuple(one for one in books.under_way if one[0] != it.request_id)
    completed = isinstance(it, LlmCallCompleted)
    if not completed and it.usage == Usage():
        # What was planned before a request that came to nothing holds for the next one.
        planned = books.planned or (request.planned if request else None)
        refused = request if request is books.newest else books.refused
        return msgspec.structs.replace(books, under_way=under_way, planned=planned, refused=refused), None
    row = _priced(models, it.model)
    verdict, left = None, books.left
    if request is not None and row is not None and it.usage.tokens_sent and not cached_by_others(row):
        if isinstance(it, LlmCallCompleted):
            verdict = judge(left, request, it.usage, row, diagnosis=it.diagnosis, drop_tokens_min=drop_tokens_min)
        left = left_by(request, it.answering if isinstance(it, LlmCallCompleted) else it.usage, row)
    elif request is not None and left is not None and not it.usage.tokens_sent:
        # The provider did not say what it took: what was there is there still, unless it was left behind.
        left = None if request.moved else msgspec.structs.replace(left, used_at=max(left.used_at, request.at))
    entry = Entry(
        event_id=event.id,
        turn_id=event.turn_id,
        provider=it.provider,
        record=_record(books.number + 1, event.at, it, request),
        uncached_usd=rounded(_uncached_usd(event, it, row)),
        pricing_version=it.pricing_version if isinstance(it, LlmCallCompleted) else "",
        stop_reason=it.stop_reason if isinstance(it, LlmCallCompleted) else it.error_class,
        retries=it.retry_count,
        plan=request.plan if request else Plan(),
        chain=request.chain if request else "",
        verdict=verdict,
        completion_key=it.completion_key if isinstance(it, LlmCallCompleted) else "",
        completion_kept=isinstance(it, LlmCallCompleted) and it.completion_kept,
        stable_written=stable_written(request.stable_share, it.usage) if request else 0,
        payer=request.payer if request else books.payer,
    )
    answered = books.blocks if completed else books.answered
    number = books.number + 1
    return msgspec.structs.replace(books, number=number, under_way=under_way, answered=answered, left=left), entry


def _beside(books: Books, event: Event, it: LlmCallCompleted, models: Models) -> tuple[Books, Entry]:
    """A call that is none of the conversation's: nothing was prepared for it, and nothing is to be compared with it."""
    entry = Entry(
        event_id=event.id,
        turn_id=event.turn_id,
        provider=it.provider,
        record=_record(books.number + 1, event.at, it, None),
        uncached_usd=rounded(_uncached_usd(event, it, _priced(models, it.model))),
        pricing_version=it.pricing_version,
        stop_reason=it.stop_reason,
        source=it.source,
        completion_key=it.completion_key,
        payer=books.payer,
    )
    return msgspec.structs.replace(books, number=books.number + 1), entry


def _priced(models: Models, name: str) -> Model | None:
    """Without a price nothing can be said to be lost."""
    row = known_model(name, models)
    return row if row is not None and row.prices else None


def _uncached_usd(event: Event, it: LlmCallCompleted | LlmCallFailed, row: Model | None) -> Decimal:
    if row is None:
        return it.cost_usd
    return uncached_cost_usd(it.usage, price_at(row, utc_date(event.at), it.usage.tokens_sent))


def _record(number: int, at: float, it: LlmCallCompleted | LlmCallFailed, request: Request | None) -> CallRecord:
    return CallRecord(
        number=number,
        at=at,
        request_id=it.request_id,
        model=it.model,
        usage=it.usage,
        cost_usd=it.cost_usd,
        latency_ms=it.latency_ms,
        completed=isinstance(it, LlmCallCompleted),
        blocks_shared=integer(request.blocks_shared) if request else 0,
        blocks_before=integer(request.blocks_before) if request else 0,
        moved_layer=request.moved_layer if request else None,
        moved_byte=integer(request.move.byte) if request and request.move and request.moved else None,
    )


def has_image(block: object) -> bool:
    if isinstance(block, ToolResult):
        return any(isinstance(part, Image) for part in block.content)
    return isinstance(block, Image)
