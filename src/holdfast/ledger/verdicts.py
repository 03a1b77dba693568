"""Whether the cache held at each call, and if it did not, why, at whose fault, and what that cost."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Literal

import msgspec

from holdfast.cachemodel.kept import kept_tokens
from holdfast.canonical.diagnosis import Diagnosis
from holdfast.canonical.moves import Move, MoveCause
from holdfast.canonical.prompt import Mark, Place, Plan, Ttl
from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import price_at, utc_date
from holdfast.catalog.rows import CacheRules, Model
from holdfast.ledger.shares import Payer

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


class Sources(msgspec.Struct, frozen=True):
    """What the bytes that we sent, the usage that was reported, and the provider's own diagnosis say, each for itself.

    `usage` is told by whether what was there was read; there may have been nothing.
    """

    bytes: Literal["the same", "moved", "settings changed"]
    usage: Literal["read", "read short", "nothing was there"]
    diagnosis: Diagnosis | None = None


class Verdict(msgspec.Struct, frozen=True):
    """`expected_tokens` were there to be read, `read_tokens` were; what was sent anew cost `lost_usd` above reading it.

    `unsent_tokens` of those that were there the call did not send at all, such as a history that was trimmed: they cost
    nothing, and are not lost.
    `component` is what is at fault: a layer, a parameter, what was recorded as done. `byte` is where in the cacheable
    bytes the prefix moved, `first_lost` the part of the prompt from which on nothing could be read, `cause` what most
    likely moved it; `diff` shows that without a word of what was said. The three that were asked are in `sources`, and
    where they contradict each other `disagreement` says so.
    """

    kind: VerdictKind
    expected_tokens: int = 0
    read_tokens: int = 0
    lost_usd: Decimal = Decimal(0)
    component: str | None = None
    byte: int | None = None
    first_lost: Place | None = None
    detail: str = ""
    cause: MoveCause | None = None
    diff: tuple[str, ...] = ()
    sources: Sources | None = None
    disagreement: str = ""
    unsent_tokens: int = 0

    @property
    def missing_tokens(self) -> int:
        return max(0, self.expected_tokens - self.read_tokens)

    @property
    def lost_tokens(self) -> int:
        """What could have been read, and was sent anew."""
        return max(0, self.missing_tokens - self.unsent_tokens)

    @property
    def is_break(self) -> bool:
        """Whether something was lost that nobody had planned."""
        return self.kind in UNEXPECTED


class Left(msgspec.Struct, frozen=True):
    """What the last request left in the cache."""

    model: str
    used_at: float
    tokens: int
    ttl: Ttl | None
    mark: int | None
    settings: Mapping[str, str]
    images: bool


class Request(msgspec.Struct, frozen=True):
    """A request as it was sent: what was planned on purpose before it, and how it stands to the one before."""

    at: float
    plan: Plan
    chain: str = ""
    settings: Mapping[str, str] = {}
    blocks_before: int = 0
    blocks_shared: int = 0
    moved_layer: str | None = None
    move: Move | None = None
    planned: tuple[str, str] | None = None
    images: bool = False
    stable_share: float = 0.0
    payer: Payer = Payer()

    @property
    def moved(self) -> bool:
        return self.blocks_shared < self.blocks_before


def left_by(request: Request, usage: Usage, row: Model) -> Left:
    """What a call has left in the cache for the next one."""
    tail = _tail(request.plan.marks)
    return Left(
        model=row.id,
        used_at=request.at,
        tokens=kept_tokens(usage, row.cache),
        ttl=tail.ttl if tail else None,
        mark=tail.piece if tail else None,
        settings=request.settings,
        images=request.images,
    )


def _tail(marks: tuple[Mark, ...]) -> Mark | None:
    return max(marks, key=lambda mark: mark.piece, default=None)


def judge(
    left: Left | None,
    request: Request,
    usage: Usage,
    row: Model,
    *,
    diagnosis: Diagnosis | None = None,
    drop_tokens_min: int = DROP_TOKENS_MIN,
) -> Verdict:
    """Whether the call read what the one before had left, and if not, the first cause that holds."""
    expected = left.tokens if left is not None else 0
    changed = _changed_setting(left, request, row) if left is not None else None
    sources = Sources(
        bytes="moved" if request.moved else "settings changed" if changed else "the same",
        usage=_told_by_usage(expected, usage, drop_tokens_min),
        diagnosis=diagnosis,
    )
    if sources.usage == "read":
        found, lost = Verdict("held"), Decimal(0)
    else:
        found = changed if changed and not request.planned else _cause(left, request, usage, row.cache)
        lost = _lost_usd(request, usage, row, max(0, expected - usage.cache_read))
    return msgspec.structs.replace(
        found,
        expected_tokens=expected,
        read_tokens=usage.cache_read,
        lost_usd=lost,
        sources=sources,
        disagreement=_disagreement(found, sources, request),
        unsent_tokens=max(0, expected - usage.tokens_sent),
    )


def _told_by_usage(
    expected: int, usage: Usage, drop_tokens_min: int
) -> Literal["read", "read short", "nothing was there"]:
    if not expected:
        return "nothing was there"
    return "read" if expected - usage.cache_read < drop_tokens_min else "read short"


def _lost_usd(request: Request, usage: Usage, row: Model, tokens: int) -> Decimal:
    """What these tokens cost above reading them, as far as they were sent.

    They stood right behind what was read, where providers bill writes for an hour, then shorter ones, then plain input.
    """
    price = price_at(row, utc_date(request.at), usage.tokens_sent)
    lost = Decimal(0)
    for sent, rate in (
        (usage.cache_write_1h, price.cache_write_1h),
        (usage.cache_write_5m, price.cache_write_5m),
        (usage.cache_write_other, price.cache_write_other),
        (usage.input, price.input),
    ):
        again = min(tokens, sent)
        lost += max(Decimal(0), rate - price.cache_read) * again
        tokens -= again
    return lost / _MILLION if lost else Decimal(0)


_DIAGNOSED: dict[str, str] = {
    "model_changed": "model",
    "tools_changed": "tools",
    "system_changed": "system",
    "messages_changed": "messages",
    "input_changed": "messages",
    "context_compacted": "planned",
}
"""What a provider's word for a miss speaks of: a part of the prompt, or what we call otherwise."""


def _disagreement(found: Verdict, sources: Sources, request: Request) -> str:
    """Where the provider's own diagnosis contradicts the bytes or the usage; in all other cases nothing."""
    told = sources.diagnosis
    if told is None or told.outcome not in ("hit", "miss") or found.kind == "planned":
        return ""
    if told.outcome == "hit":
        return "the provider sees no change, and our bytes moved" if sources.bytes == "moved" else ""
    if sources.usage == "read":
        return f"the provider reports a miss ({told.reason}), and what was there was read"
    if sources.bytes == "the same" and found.kind not in ("first_use", "below_floor"):
        return f"the provider reports {told.reason}, and the bytes that we sent were the same"
    blamed = _DIAGNOSED.get(told.reason)
    place = request.move.place if request.move is not None else None
    if sources.bytes == "moved" and place is not None and blamed in ("tools", "system", "messages") and blamed != place:
        return f"the provider reports {told.reason}, and our bytes moved in the {place}"
    return ""


def _cause(left: Left | None, request: Request, usage: Usage, rules: CacheRules) -> Verdict:
    """The first of the causes that holds but for a changed parameter; the last one is what is left."""
    if request.planned is not None:
        component, detail = request.planned
        return Verdict("planned", component=component, detail=detail)
    if request.moved:
        return _moved(request)
    if usage.tokens_sent < rules.tokens_min:
        return Verdict("below_floor", detail=f"{usage.tokens_sent} tokens, and {rules.tokens_min} are the least")
    if left is None or not left.tokens:
        return Verdict("first_use", detail="nothing had been kept before")
    lifetime = rules.ttls_seconds.get(left.ttl or "", 0) or min(rules.ttls_seconds.values(), default=0)
    idle = request.at - left.used_at
    shortest = min(rules.ttls_seconds.values(), default=lifetime)
    if lifetime and idle >= lifetime:
        return Verdict("ttl_expired", detail=f"idle for {idle:.0f} s, kept for {lifetime} s")
    if shortest and idle >= shortest and not request.plan.expected_read_tokens:
        # The end was kept for longer; what stood in front of it was not, and lifetimes did not upgrade.
        return Verdict("ttl_expired", detail=f"idle for {idle:.0f} s, and a part was kept for {shortest} s only")
    if rules.kind == "marks" and left.mark is not None and not _within_reach(left.mark, request.plan.marks, rules):
        return Verdict(
            "lookback_miss",
            component="history",
            detail=f"the last mark stood at block {left.mark}, further back than {rules.lookback_positions} blocks",
        )
    return Verdict("provider_side", detail="the same bytes, in time, and not read")


def _moved(request: Request) -> Verdict:
    where = f"block {request.blocks_shared} of {request.blocks_before} is another than before"
    move = request.move
    if move is None:
        return Verdict("prefix_changed", component=request.moved_layer, detail=where)
    return Verdict(
        "prefix_changed",
        component=request.moved_layer,
        byte=move.byte,
        first_lost=move.place,
        detail=f"{where}: {move.detail}" if move.detail else where,
        cause=move.cause,
        diff=move.diff,
    )


def _changed_setting(left: Left, request: Request, row: Model) -> Verdict | None:
    """The changed setting that costs most, if one costs anything."""
    rules, before, after = row.cache, left.settings, request.settings
    if before == after and request.images == left.images and left.model == row.id:
        return None
    changed = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    changed += ["images"] if request.images != left.images else []
    changed += ["model"] if left.model != row.id else []
    costs = {**rules.invalidates, **({"effort": "messages"} if rules.effort_breaks_messages else {})}
    order: tuple[Place, ...] = ("tools", "system", "messages")
    lost = sorted((order.index(place), name) for name in changed if (place := costs.get(name)) is not None)
    if not lost:
        return None
    rank, name = lost[0]
    return Verdict("parameter_changed", component=name, first_lost=order[rank], detail=f"{name} is another than before")


def _within_reach(before: int, marks: tuple[Mark, ...], rules: CacheRules) -> bool:
    return any(0 <= mark.piece - before < rules.lookback_positions for mark in marks)
