"""What cost and analytics queries over all sessions ask for, and the values that they return."""

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Literal

import msgspec

from holdfast.catalog.lookup import Catalog
from holdfast.catalog.price_list import load_price_list
from holdfast.catalog.schema import Model
from holdfast.events.log import Event, SessionRow
from holdfast.events.payloads.session import SkillLoaded, SkillUsed
from holdfast.ledger.cache.verdicts import Verdict, VerdictKind
from holdfast.redaction import redact_secrets
from holdfast.types.usage import Usage

# Sessions per page.
PAGE_MAX = 500

# Later than any event; a float that every store can compare with.
END_OF_TIME = 1e300
HOUR_SECONDS = 3_600
TITLE_WORDS_CHARACTERS_MAX = 48
TITLE_KEY_CHARACTERS_MAX = 24
# The end of an id is random: 20 bits for the sessions that one client starts in one second.
TITLE_ID_CHARACTERS = 4
SessionOrder = Literal["lost", "spent", "newest"]
SessionCostOrder = Literal["cost", "recency"]
SessionSort = Literal["activity", "started", "spent", "lost", "read_share", "calls"]
_NOTHING = Decimal(0)
GroupName = str | bool | None

GroupBy = Literal[
    "model", "provider", "session", "day", "hour", "gateway_key", "user", "team", "parent_session", "is_worker", "none"
]


class LedgerScope(msgspec.Struct, frozen=True):
    """What is counted: `since` is inclusive, `until` exclusive; one session or all; with or without simulated ones."""

    since: float = 0.0
    until: float = END_OF_TIME
    session_id: str | None = None
    simulated: bool = False


class Amounts(msgspec.Struct, frozen=True):
    """What a set of calls and charges adds up to.

    `uncached_usd` is what the same calls would have cost without a cache; unpriced calls count with their actual cost.
    Keep-alive pings and explicit caches add to `spent_usd` but not to `uncached_usd`: without a cache they would not
    exist. `hits` are calls that read anything from the cache; the share of tokens read is `usage.read_share`.
    `stable_write_tokens` were written for the tools and the stable system prompt; `latency_ms` is the total over all
    calls.
    """

    calls: int = 0
    hits: int = 0
    usage: Usage = Usage()
    spent_usd: Decimal = _NOTHING
    uncached_usd: Decimal = _NOTHING
    lost_usd: Decimal = _NOTHING
    latency_ms: int = 0
    stable_write_tokens: int = 0

    @property
    def saved_usd(self) -> Decimal:
        # Negative where keeping caches cost more than they saved.
        return self.uncached_usd - self.spent_usd

    @property
    def hit_rate(self) -> float:
        return self.hits / self.calls if self.calls else 0.0


class DayAmounts(msgspec.Struct, frozen=True):
    date: datetime.date
    amounts: Amounts


class ModelAmounts(msgspec.Struct, frozen=True):
    provider: str
    model: str
    amounts: Amounts


class MissCause(msgspec.Struct, frozen=True):
    """`calls` lost something for this reason; `verdict_count` counts the verdict with and without a loss."""

    kind: VerdictKind
    component: str | None
    calls: int
    tokens: int
    lost_usd: Decimal
    verdict_count: int = 0


class SessionAmounts(msgspec.Struct, frozen=True):
    """`worst_verdict` is the verdict of the call that lost most."""

    id: str
    name: str | None
    model: str
    last_event_at: float
    amounts: Amounts
    worst_verdict: VerdictKind | None


class CallOutcome(msgspec.Struct, frozen=True):
    """How calls ended: `completed`, or the error class. Latency quantiles are upper bounds within a factor of two."""

    provider: str
    model: str
    outcome: str
    calls: int
    retries: int
    latency_ms_mean: float
    latency_ms_median_under: int
    latency_ms_p95_under: int


class UnpricedUsage(msgspec.Struct, frozen=True):
    """Calls of a session for whose model no price was known; sums of money do not contain them."""

    session_id: str
    model: str
    calls: int
    usage: Usage


class UnpricedSums(msgspec.Struct, frozen=True):
    """Calls for whose model no price was known, and all their tokens."""

    calls: int = 0
    tokens: int = 0


class SkillLoad(msgspec.Struct, frozen=True):
    """A skill body that was loaded into a session, and why; `used` says whether the session then used the skill."""

    session_id: str
    at: float
    skill: str
    reason: str
    tokens: int
    used: bool


def find_skill_loads(events: Iterable[Event]) -> tuple[SkillLoad, ...]:
    """The loads among the events, in their order; a skill that was loaded on demand was used."""
    events = tuple(events)
    used = {(event.session_id, payload.skill_id) for event in events if isinstance(payload := event.payload, SkillUsed)}
    return tuple(
        SkillLoad(
            session_id=event.session_id,
            at=event.at,
            skill=payload.skill_id,
            reason=payload.load_reason,
            tokens=payload.load_size_tokens,
            used=payload.load_reason == "on_demand" or (event.session_id, payload.skill_id) in used,
        )
        for event in events
        if isinstance(payload := event.payload, SkillLoaded)
    )


class SessionCost(msgspec.Struct, frozen=True):
    """`model` is the model of the last call; `turns` counts the turns that have ended."""

    row: SessionRow
    spent_usd: Decimal
    model: str
    turns: int
    workspace_path: str | None


class SessionFilter(msgspec.Struct, frozen=True):
    """Which sessions are listed; None matches everything.

    `search` is part of the name, the id, the client, the model or, if `openings` may be read, the first words; `client`
    and `model` are parts of those. `verdict` is that of a call that lost something. `since` and `until` bound the last
    activity and the start.
    """

    search: str | None = None
    client: str | None = None
    model: str | None = None
    key: str | None = None
    user: str | None = None
    team: str | None = None
    verdict: VerdictKind | None = None
    since: float | None = None
    until: float | None = None
    simulated: bool = False
    openings: bool = True


class SessionPosition(msgspec.Struct, frozen=True, array_like=True):
    """Where a page of sessions ends: the value it is sorted by, and the id, of its last session."""

    value: float | int
    id: str


class SessionOrdering(msgspec.Struct, frozen=True):
    """Sessions with equal values are ordered by id. The list continues behind `after`."""

    sort: SessionSort = "activity"
    descending: bool = True
    after: SessionPosition | None = None


class ListedSession(msgspec.Struct, frozen=True):
    """`verdict` is that of the call that lost most, `active_model` that of the last call; `row` has the first one.

    Money does not contain `unpriced_calls`.
    """

    row: SessionRow
    active_model: str
    amounts: Amounts
    verdict: VerdictKind | None
    unpriced_calls: int
    position: SessionPosition


class ReadShare(msgspec.Struct, frozen=True):
    """What the calls of a client or a gateway key sent on a day (UTC), and read of it from the cache."""

    subject: str
    day: str
    calls: int
    sent_tokens: int
    read_tokens: int


class CacheBreakCall(msgspec.Struct, frozen=True):
    session_id: str
    name: str | None
    number: int
    at: float
    model: str
    verdict: Verdict


class CallFailure(msgspec.Struct, frozen=True):
    """A call that did not complete, or whose response could not be decoded; `outcome` is the error class."""

    row: SessionRow
    at: float
    model: str
    outcome: str
    latency_ms: int
    retries: int


class SizedUsage(msgspec.Struct, frozen=True):
    """Calls of a model whose prompts exceeded exactly the first `limits_exceeded` of the given limits."""

    model: str
    limits_exceeded: int
    calls: int
    usage: Usage


class Group(msgspec.Struct, frozen=True):
    """`name` is None for calls without a key, user or team, and for the single group of `none`."""

    name: GroupName
    amounts: Amounts


class GroupFilter(msgspec.Struct, frozen=True):
    """Includes only what matches; None matches everything. Without `workers`, child sessions are left out."""

    model: str | None = None
    provider: str | None = None
    session: str | None = None
    gateway_key: str | None = None
    user: str | None = None
    team: str | None = None
    workers: bool = True

    @property
    def filtered_fields(self) -> frozenset[str]:
        """The names of the fields that filter."""
        fields = ("model", "provider", "session", "gateway_key", "user", "team")
        return frozenset(name for name in fields if getattr(self, name) is not None)


NO_FILTER = GroupFilter()


def list_size_limits(models: Mapping[str, Model]) -> tuple[int, ...]:
    """The prompt sizes in tokens above which some model's price changes, ascending."""
    listed = load_price_list().size_limits if isinstance(models, Catalog) else ()
    return tuple(
        sorted({*listed, *(price.prompt_tokens_over for row in models.values() for price in row.prices)} - {0})
    )


def format_group_name(group_by: GroupBy, cell: object) -> GroupName:
    """The name of a group, from its key in the rows."""
    match group_by:
        case "none":
            return None
        case "gateway_key" | "user" | "team":
            return str(cell) or None
        case "is_worker":
            return bool(cell)
        case "hour":
            start = datetime.datetime.fromtimestamp(int(str(cell)) * HOUR_SECONDS, datetime.UTC)
            return start.strftime("%Y-%m-%dT%H")
        case _:
            return str(cell)


def format_session_titles(rows: Iterable[SessionRow], *, quotes_prompt: bool) -> dict[str, str]:
    """A title for each session, by id; no two are equal.

    It is the name that a program gave the session. A session of the gateway, whose name is that of its key, and one
    without a name, has client, key, first words of the first request, start, and the end of its id instead.
    """
    sessions = {row.id: row for row in rows}
    titles = {
        row.id: row.name if row.name and not (row.client or row.caller_key_id) else _describe(row, quotes_prompt)
        for row in sessions.values()
    }
    # A program may give all its sessions one name.
    for name_end in (
        lambda row: f"{_format_start(row.started_at)} · {row.id[-TITLE_ID_CHARACTERS:]}",
        lambda row: row.id,
    ):
        counts = Counter(titles.values())
        titles = {
            id: title if counts[title] == 1 else f"{title} · {name_end(sessions[id])}" for id, title in titles.items()
        }
    return titles


def _describe(row: SessionRow, quotes_prompt: bool) -> str:
    """Client, key, first words, start and the end of the id; without words, the model, and a start with seconds.

    The gateway stores digests and no words.
    """
    words = redact_secrets(row.opening) if quotes_prompt and row.opening else ""
    words, name = _shorten(words, TITLE_WORDS_CHARACTERS_MAX), _shorten(row.name or "", TITLE_KEY_CHARACTERS_MAX)
    subject = words or row.model.partition(":")[2] or row.model
    start = _format_start(row.started_at, with_seconds=not words)
    return " · ".join(part for part in (row.client, name, subject, start, row.id[-TITLE_ID_CHARACTERS:]) if part)


def _shorten(text: str, characters_max: int) -> str:
    return f"{text[:characters_max].rstrip()}…" if len(text) > characters_max else text


def _format_start(at: float, *, with_seconds: bool = False) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime(f"%Y-%m-%d %H:%M{':%S' * with_seconds}")
