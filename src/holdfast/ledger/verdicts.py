"""Whether the cache held at each call, and if it did not, why, at whose fault, and what that cost."""

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Literal

import msgspec

from holdfast.canonical.blocks import Image, ToolResult
from holdfast.canonical.pieces import Link
from holdfast.canonical.prompt import Mark, Place, Ttl
from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import Models, price_at, utc_date
from holdfast.catalog.rows import CacheRules, Model
from holdfast.events.envelope import Event
from holdfast.events.payloads import (
    CachePinged,
    EpochOpened,
    LlmCallCompleted,
    LlmCallStarted,
    MessageAppended,
    MessagesWithdrawn,
    ModelSwitched,
    RequestPrepared,
)
from holdfast.events.payloads_compaction import ContextCompacted
from holdfast.planning.savings import write_rate

DROP_TOKENS_MIN = 2_000
"""What is less is noise: counts are rounded, and the last block is sometimes missed."""

VerdictKind = Literal[
    "held",
    "planned",
    "parameter_changed",
    "prefix_changed",
    "below_floor",
    "first_use",
    "ttl_expired",
    "lookback_miss",
    "provider_side",
]
"""In the order in which they are looked for, where several hold."""

EXPECTED: tuple[VerdictKind, ...] = ("planned", "parameter_changed", "ttl_expired")
UNEXPECTED: tuple[VerdictKind, ...] = ("prefix_changed", "lookback_miss", "provider_side")

_MILLION = Decimal(1_000_000)


class Verdict(msgspec.Struct, frozen=True):
    """`expected_tokens` were there to be read, `read_tokens` were; what is missing cost `lost_usd` above reading it.

    `component` is what is at fault: a layer, a parameter, what was recorded as done. `byte` is where in the cacheable
    bytes the prefix moved, `first_lost` the part of the prompt from which on nothing could be read.
    """

    kind: VerdictKind
    expected_tokens: int = 0
    read_tokens: int = 0
    lost_usd: Decimal = Decimal(0)
    component: str | None = None
    byte: int | None = None
    first_lost: Place | None = None
    detail: str = ""

    @property
    def lost_tokens(self) -> int:
        return max(0, self.expected_tokens - self.read_tokens)

    @property
    def is_break(self) -> bool:
        """Whether something was lost that nobody had planned."""
        return self.kind in UNEXPECTED


class Judged(msgspec.Struct, frozen=True):
    """A call and its verdict, by the id of the event that completed it."""

    event_id: str
    request_id: str
    verdict: Verdict


class _Left(msgspec.Struct, frozen=True):
    """What the last request left in the cache."""

    model: str
    used_at: float
    tokens: int
    ttl: Ttl | None
    mark: int | None
    settings: Mapping[str, str]
    images: bool


class _Request(msgspec.Struct, frozen=True):
    """A request that is under way: what was planned on purpose before it, and how many blocks the one before had."""

    prepared: RequestPrepared
    at: float
    blocks_before: int
    planned: tuple[str, str] | None
    images: bool


def verdicts(events: Iterable[Event], models: Models, *, drop_tokens_min: int = DROP_TOKENS_MIN) -> Iterator[Judged]:
    """One for every completed call of a session, in order; calls of models that the catalog does not know have none."""
    chain: list[Link] = []
    left: _Left | None = None
    newest: _Request | None = None
    sent: dict[str, _Request | None] = {}
    planned: tuple[str, str] | None = None
    images = False
    answered = 0
    for event in events:
        match event.payload:
            case EpochOpened(epoch=epoch) if epoch > 1:
                planned = ("epoch", f"epoch {epoch} was opened")
            case ModelSwitched(after=after):
                planned = ("model", f"the model was switched to {after}")
                chain.clear()
            case ContextCompacted() as it:
                planned = ("compaction", f"messages {it.first} to {it.last} were compacted ({it.trigger})")
                del chain[it.kept_blocks :]
                answered = min(answered, it.kept_blocks)
            case MessagesWithdrawn():
                del chain[answered:]
            case MessageAppended(message=message):
                images = images or any(map(_has_image, message.content))
            case RequestPrepared() as it:
                newest = _Request(it, event.at, len(chain), planned, images)
                planned = None
                del chain[it.shared_blocks :]
                chain += it.links
            case LlmCallStarted(request_id=request_id):
                sent[request_id] = newest
            case CachePinged() as it if it.piece is not None and left is not None and it.sent_at >= left.used_at:
                kept = it.usage.cache_read + it.usage.cache_write
                left = msgspec.structs.replace(left, used_at=it.sent_at, tokens=kept, ttl=it.ttl, mark=it.piece)
            case LlmCallCompleted() as it:
                answered = len(chain)
                request, row = sent.pop(it.request_id, newest), models.get(it.model)
                if request is not None and row is not None:
                    found = _judge(left, request, it, row, drop_tokens_min=drop_tokens_min)
                    yield Judged(event.id, it.request_id, found)
                    left = _left_by(request, it, row)
            case _:
                pass


def _has_image(block: object) -> bool:
    if isinstance(block, ToolResult):
        return any(isinstance(part, Image) for part in block.content)
    return isinstance(block, Image)


def _left_by(request: _Request, call: LlmCallCompleted, row: Model) -> _Left:
    tail = _tail(request.prepared.plan.marks)
    return _Left(
        model=call.model,
        used_at=request.at,
        tokens=_kept_tokens(call.usage, row.cache),
        ttl=tail.ttl if tail else None,
        mark=tail.piece if tail else None,
        settings=dict(request.prepared.settings),
        images=request.images,
    )


def _tail(marks: tuple[Mark, ...]) -> Mark | None:
    return max(marks, key=lambda mark: mark.piece, default=None)


def _kept_tokens(usage: Usage, rules: CacheRules) -> int:
    """What is there to be read by the next call: as reported, or a prompt that is kept without a word."""
    match rules.kind:
        case "marks" | "breakpoints":
            return usage.cache_read + usage.cache_write
        case "implicit":
            return usage.tokens_sent if usage.tokens_sent >= rules.tokens_min else 0
        case "none":
            return 0


def _judge(
    left: _Left | None, request: _Request, call: LlmCallCompleted, row: Model, *, drop_tokens_min: int
) -> Verdict:
    usage = call.usage
    expected = left.tokens if left is not None else 0
    if expected and expected - usage.cache_read < drop_tokens_min:
        return Verdict("held", expected, usage.cache_read)
    found = _cause(left, request, call, row.cache)
    if not expected:
        return msgspec.structs.replace(found, read_tokens=usage.cache_read)
    price = price_at(row, utc_date(request.at), usage.tokens_sent)
    tail = _tail(request.prepared.plan.marks)
    written = write_rate(tail.ttl, price) if tail is not None else price.input
    lost = max(Decimal(0), written - price.cache_read) * max(0, expected - usage.cache_read) / _MILLION
    return msgspec.structs.replace(found, expected_tokens=expected, read_tokens=usage.cache_read, lost_usd=lost)


def _cause(left: _Left | None, request: _Request, call: LlmCallCompleted, rules: CacheRules) -> Verdict:
    """The first of the causes that holds; the last one is what is left."""
    prepared, usage = request.prepared, call.usage
    if request.planned is not None:
        component, detail = request.planned
        return Verdict("planned", component=component, detail=detail)
    if left is not None and (changed := _changed_setting(left, request, rules)) is not None:
        return changed
    if prepared.shared_blocks < request.blocks_before:
        moved = prepared.links[0] if prepared.links else None
        return Verdict(
            "prefix_changed",
            component=moved.layer if moved else None,
            byte=moved.start if moved else None,
            detail=f"block {prepared.shared_blocks} of {request.blocks_before} is another than before",
        )
    if usage.tokens_sent < rules.tokens_min:
        return Verdict("below_floor", detail=f"{usage.tokens_sent} tokens, and {rules.tokens_min} are the least")
    if left is None or not left.tokens:
        return Verdict("first_use", detail="nothing had been kept before")
    lifetime = rules.ttls_seconds.get(left.ttl or "", 0) or min(rules.ttls_seconds.values(), default=0)
    idle = request.at - left.used_at
    shortest = min(rules.ttls_seconds.values(), default=lifetime)
    if lifetime and idle >= lifetime:
        return Verdict("ttl_expired", detail=f"idle for {idle:.0f} s, kept for {lifetime} s")
    if shortest and idle >= shortest and not prepared.plan.expected_read_tokens:
        # The end was kept for longer; what stood in front of it was not, and lifetimes did not upgrade.
        return Verdict("ttl_expired", detail=f"idle for {idle:.0f} s, and a part was kept for {shortest} s only")
    if rules.kind == "marks" and left.mark is not None and not _within_reach(left.mark, prepared.plan.marks, rules):
        return Verdict(
            "lookback_miss",
            component="history",
            detail=f"the last mark stood at block {left.mark}, further back than {rules.lookback_positions} blocks",
        )
    return Verdict("provider_side", detail="the same bytes, in time, and not read")


def _changed_setting(left: _Left, request: _Request, rules: CacheRules) -> Verdict | None:
    """The changed setting that costs most, if one costs anything."""
    before, after = left.settings, dict(request.prepared.settings)
    changed = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    changed += ["images"] if request.images != left.images else []
    costs = {**rules.invalidates, **({"effort": "messages"} if rules.effort_breaks_messages else {})}
    order: tuple[Place, ...] = ("tools", "system", "messages")
    lost = sorted((order.index(place), name) for name in changed if (place := costs.get(name)) is not None)
    if not lost:
        return None
    rank, name = lost[0]
    return Verdict("parameter_changed", component=name, first_lost=order[rank], detail=f"{name} is another than before")


def _within_reach(before: int, marks: tuple[Mark, ...], rules: CacheRules) -> bool:
    return any(0 <= mark.piece - before < rules.lookback_positions for mark in marks)
