"""Where the money went, for `audit` and `report` alike: spending by kind of token, losses by cause, and what to do.

A conversation is reduced to sums (`ConversationSpending`), sums are added (`SpendingFold`), and the total becomes one
value (`Spending`). Each conversation is summed on its own, so that a session has the same figures in every view.
"""

import datetime
import functools
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from operator import add
from typing import TypeVar

import msgspec

from holdfast.catalog.lookup import utc_date
from holdfast.ledger.money import to_dollars
from holdfast.ledger.spending_actions import (
    ACTION_SHARE_MIN,
    CHANGE_CAUSES,
    COMPACTION_SIZES,
    REMEDIES,
    Action,
    choose_actions,
    propose_compaction,
    propose_plan,
    propose_smaller_prompt,
    propose_stable_prefix,
)
from holdfast.types.usage import Usage

KINDS = (
    "cache_read",
    "cache_write_5m",
    "cache_write_1h",
    "cache_write_other",
    "input",
    "output",
    "thinking",
    "other",
)
"""Kinds of tokens, and `other`: pings and the storage of explicit caches. `output` is without `thinking`."""

KIND_LABELS = {
    "cache_read": "cache reads",
    "cache_write_5m": "cache writes, 5 min",
    "cache_write_1h": "cache writes, 1 h",
    "cache_write_other": "cache writes, other TTL",
    "input": "uncached input",
    "output": "output",
    "thinking": "thinking",
    "other": "pings and cache storage",
}

FIRST_PROMPT = "(first prompt)"
"""The source of everything that the first call sends: tools, system prompt, first message."""

REREAD_STEPS = (0, 1, 10, 50, 200)
"""Context is grouped by how many later calls sent it again: from this many, up to the next step."""

UNDATED = "undated"
DAYS_MAX = 3_660  # Ten years.
WEEK_SECONDS = 7 * 86_400.0
_ZERO = Decimal(0)


class KindSums(msgspec.Struct, array_like=True):
    """Sums over calls: tokens and picodollars by kind in the order of `KINDS`. `uncached` is the cost without a cache.

    Unpriced calls count in `calls` and `tokens`, and again on their own.
    """

    calls: int = 0
    tokens: list[int] = msgspec.field(default_factory=lambda: [0] * len(KINDS))
    pico: list[int] = msgspec.field(default_factory=lambda: [0] * len(KINDS))
    hits: int = 0
    misses: int = 0
    lost: int = 0
    uncached: int = 0
    unpriced_calls: int = 0
    unpriced_tokens: int = 0

    def add(self, other: "KindSums") -> None:
        # Written out: a report adds the groups of a thousand sessions to six sums each.
        self.calls += other.calls
        self.hits += other.hits
        self.misses += other.misses
        self.lost += other.lost
        self.uncached += other.uncached
        self.unpriced_calls += other.unpriced_calls
        self.unpriced_tokens += other.unpriced_tokens
        self.tokens = [*map(add, self.tokens, other.tokens)]
        self.pico = [*map(add, self.pico, other.pico)]

    @property
    def spent(self) -> int:
        return sum(self.pico)


class CauseSums(msgspec.Struct, array_like=True):
    """Misses with one cause; `lost` is in picodollars."""

    calls: int = 0
    tokens: int = 0
    lost: int = 0

    def add(self, other: "CauseSums") -> None:
        self.calls, self.tokens, self.lost = (
            self.calls + other.calls,
            self.tokens + other.tokens,
            self.lost + other.lost,
        )


class SourceSums(msgspec.Struct, array_like=True):
    """What one source put into prompts, and how often that was sent again; estimates, so floats are exact enough."""

    results: int = 0
    tokens: float = 0.0
    resent_tokens: float = 0.0
    pico: float = 0.0

    def add(self, other: "SourceSums") -> None:
        self.results += other.results
        self.tokens += other.tokens
        self.resent_tokens += other.resent_tokens
        self.pico += other.pico


_Sums = TypeVar("_Sums", CauseSums, SourceSums)


class ConversationSpending(msgspec.Struct, array_like=True):
    """The sums of one conversation, all amounts in picodollars. Small, because an audit keeps one for each.

    `planned` is the cost under our plan: estimated, unless it was sent that way; `unplanned` the cost as the client
    wrote its requests, where the gateway has recorded both. `plans` is the lowest and highest cost over the rules that
    no provider documents, and `optimum` the lowest possible cost, where they were asked for. `overspent` is why our
    plan costs more than none. `compacted` is what a compaction at each of
    `COMPACTION_SIZES` would have saved, `longer_ttl` what a TTL of one hour would have.
    """

    session: str
    project: str
    client: str
    name: str = ""
    is_subagent: bool = False
    started_at: float = 0.0
    ended_at: float = 0.0
    compactions: int = 0
    largest_prompt: int = 0
    groups: dict[str, KindSums] = {}  # Keyed by `day model`: neither has a space.
    causes: dict[str, CauseSums] = {}  # Keyed by cause, tab, component.
    sources: dict[str, SourceSums] = {}
    context: list[float] = []  # Tokens of context by REREAD_STEPS,
    resent: list[float] = []  # and how many tokens sending them again took.
    takes_breakpoints: bool = False
    planned: int = 0
    plans: tuple[int, int] | None = None
    optimum: int | None = None
    compacted: list[int] = []
    longer_ttl: int = 0
    unplanned: int | None = None
    overspent: str = ""


class AuditScope(msgspec.Struct, frozen=True):
    """Which calls count: those from `since` until `until`, of models whose name contains `model`.

    `ranges` also asks for the range of the plan's cost and for the optimum, which takes twice as long.
    """

    since: float = 0.0
    until: float = 1e300
    model: str = ""
    ranges: bool = False

    def includes(self, at: float, model: str) -> bool:
        return self.since <= at < self.until and self.model in model.lower()


EVERYTHING = AuditScope()


class SessionSums(msgspec.Struct, frozen=True, array_like=True):
    """The sums over all calls of a stored session, whenever they were: for most scopes its log need not be read again.

    `conversation` is None if no call was paid for; its calls were from `first_at` to `last_at`.
    """

    conversation: ConversationSpending | None = None
    first_at: float = 0.0
    last_at: float = 0.0

    def covers(self, scope: AuditScope) -> bool:
        """Whether the calls of a scope are all or none of these, and what it asks for was computed."""
        if self.conversation is None or not self._overlaps(scope):
            return True
        is_whole = scope.since <= self.first_at and self.last_at < scope.until and all(self._matches_models(scope))
        return is_whole and (self.conversation.optimum is not None or not scope.ranges)

    def select(self, scope: AuditScope) -> ConversationSpending | None:
        """What `audit_transcript` returns for a scope that is covered."""
        if self.conversation is None or not self._overlaps(scope):
            return None
        if scope.ranges:
            return self.conversation
        return msgspec.structs.replace(self.conversation, plans=None, optimum=None)

    def _overlaps(self, scope: AuditScope) -> bool:
        return self.first_at < scope.until and self.last_at >= scope.since and any(self._matches_models(scope))

    def _matches_models(self, scope: AuditScope) -> Iterator[bool]:
        groups = self.conversation.groups if self.conversation is not None else {}
        return (scope.model in key.partition(" ")[2].lower() for key in groups)


class KindAmount(msgspec.Struct, frozen=True):
    kind: str
    tokens: int
    usd: Decimal


class SpendingRow(msgspec.Struct, frozen=True):
    """What the calls of one model, day, project or session add up to. Kinds without tokens and cost are left out.

    `usd` leaves out `unpriced_calls`, for whose model no price is known.
    """

    name: str
    calls: int
    tokens: int
    usd: Decimal
    lost_usd: Decimal
    uncached_usd: Decimal
    cache_hits: int
    cache_misses: int
    kinds: tuple[KindAmount, ...]
    unpriced_calls: int = 0
    unpriced_tokens: int = 0


class SessionSpending(msgspec.Struct, frozen=True):
    """`planned_usd` and what follows are estimates for the same prompts and replies, from this session alone.

    `unplanned_usd` is the cost without the gateway's rewrite, where both are recorded: either it or `planned_usd` was
    paid. `saved_usd` is the difference, and `overspent` why it is below zero.
    """

    id: str
    name: str
    client: str
    project: str
    started_at: float
    ended_at: float
    model: str
    subagents: int
    compactions: int
    largest_prompt_tokens: int
    amounts: SpendingRow
    main_cause: str
    planned_usd: Decimal
    planned_range_usd: tuple[Decimal, Decimal] | None = None
    optimum_usd: Decimal | None = None
    unplanned_usd: Decimal | None = None
    saved_usd: Decimal | None = None
    overspent: str = ""


class ToolSpending(msgspec.Struct, frozen=True):
    """Estimates: the provider's count of what a call added, spread over the added parts by their size.

    `tokens` were sent first by this tool's results, `resent_tokens` are the same tokens in later calls, for `usd`.
    """

    tool: str
    results: int
    tokens: int
    resent_tokens: int
    usd: Decimal


class RereadContext(msgspec.Struct, frozen=True):
    """Context that `times_min` to `times_max` later calls sent again."""

    times_min: int
    times_max: int | None
    context_tokens: int
    resent_tokens: int


class Loss(msgspec.Struct, frozen=True):
    """Calls that could have read more from the cache, by verdict, and what sending it again cost above reading it.

    `remedy` is what to do about it, if anything can be done.
    """

    cause: str
    component: str
    calls: int
    tokens: int
    lost_usd: Decimal
    remedy: str = ""


class ContextPoint(msgspec.Struct, frozen=True):
    at: float
    tokens: int
    read_tokens: int


class Spending(msgspec.Struct, frozen=True):
    """Where the money went. Models, projects and sessions: the most expensive first; days in order, without gaps.

    `unplanned_usd` is the cost without a rewrite; sessions of which that is not recorded count with what they cost.
    `unknown_records` counts records of clients that the readers do not know; `broken` has the first broken lines, as
    `file:line: reason`.
    """

    total: SpendingRow
    conversations: int
    compactions: int
    from_at: float
    to_at: float
    models: tuple[SpendingRow, ...]
    days: tuple[SpendingRow, ...]
    projects: tuple[SpendingRow, ...]
    clients: tuple[SpendingRow, ...]
    sessions: tuple[SessionSpending, ...]
    tools: tuple[ToolSpending, ...]
    rereads: tuple[RereadContext, ...]
    losses: tuple[Loss, ...]
    actions: tuple[Action, ...]
    takes_breakpoints: bool
    planned_usd: Decimal
    unplanned_usd: Decimal
    planned_range_usd: tuple[Decimal, Decimal] | None = None
    optimum_usd: Decimal | None = None
    worst_session_context: tuple[ContextPoint, ...] = ()
    unknown_records: dict[str, int] = {}
    broken_lines: int = 0
    broken: tuple[str, ...] = ()

    @property
    def usage(self) -> Usage:
        """The tokens in the provider's buckets: thinking is output."""
        tokens = {amount.kind: amount.tokens for amount in self.total.kinds}
        tokens["output"] = tokens.get("output", 0) + tokens.pop("thinking", 0)
        tokens.pop("other", None)
        return Usage(**tokens)

    @property
    def weeks(self) -> float:
        """The time that was covered; at least one week, so that a busy afternoon is not taken for a whole one."""
        return max(1.0, (self.to_at - self.from_at) / WEEK_SECONDS)


class _SessionFold:
    def __init__(self, first: ConversationSpending) -> None:
        self.first = first
        self.started_at, self.ended_at = first.started_at, first.ended_at
        self.subagents = self.compactions = self.largest_prompt = self.planned = 0
        self.plans: tuple[int, int] | None = (0, 0)
        self.optimum: int | None = 0
        self.unplanned: int | None = None
        self.overspent = ""
        self.sums = KindSums()
        self.by_model: dict[str, int] = {}
        self.causes: dict[str, CauseSums] = {}

    def add(self, conversation: ConversationSpending) -> None:
        self.started_at = min(self.started_at, conversation.started_at)
        self.ended_at = max(self.ended_at, conversation.ended_at)
        self.subagents += conversation.is_subagent
        self.compactions += conversation.compactions
        self.largest_prompt = max(self.largest_prompt, conversation.largest_prompt)
        self.planned += conversation.planned
        plans, optimum = conversation.plans, conversation.optimum
        self.plans = (self.plans[0] + plans[0], self.plans[1] + plans[1]) if self.plans and plans else None
        self.optimum = self.optimum + optimum if self.optimum is not None and optimum is not None else None
        self.overspent = self.overspent or conversation.overspent
        spent = sum(sums.spent for sums in conversation.groups.values())
        if conversation.unplanned is not None or self.unplanned is not None:
            # Conversations of one session are counted with their cost as long as nothing else is known of them.
            earlier = self.sums.spent if self.unplanned is None else self.unplanned
            self.unplanned = earlier + (spent if conversation.unplanned is None else conversation.unplanned)
        for key, sums in conversation.groups.items():
            self.sums.add(sums)
            model = key.partition(" ")[2]
            self.by_model[model] = self.by_model.get(model, 0) + sums.calls
        _add_all(self.causes, conversation.causes)

    def row(self) -> SessionSpending:
        first = self.first
        worst = min(self.causes.items(), key=lambda item: (-item[1].lost, item[0]), default=("", CauseSums()))
        return SessionSpending(
            id=first.session,
            name=first.name,
            client=first.client,
            project=first.project,
            started_at=self.started_at,
            ended_at=self.ended_at,
            model=max(self.by_model, key=self.by_model.__getitem__, default=""),
            subagents=self.subagents,
            compactions=self.compactions,
            largest_prompt_tokens=self.largest_prompt,
            amounts=_build_row(first.session, self.sums),
            main_cause=worst[0].partition("\t")[0] if worst[1].lost else "",
            planned_usd=to_dollars(self.planned),
            planned_range_usd=None if self.plans is None else (to_dollars(self.plans[0]), to_dollars(self.plans[1])),
            optimum_usd=None if self.optimum is None else to_dollars(self.optimum),
            unplanned_usd=None if self.unplanned is None else to_dollars(self.unplanned),
            saved_usd=None if self.unplanned is None else to_dollars(self.unplanned - self.planned),
            overspent=self.overspent if self.unplanned is not None and self.unplanned < self.planned else "",
        )


class SpendingFold:
    """Adds conversations up, in any order."""

    def __init__(self) -> None:
        self._total = KindSums()
        self._sessions: dict[tuple[str, str], _SessionFold] = {}
        self._models: dict[str, KindSums] = {}
        self._days: dict[str, KindSums] = {}
        self._projects: dict[str, KindSums] = {}
        self._clients: dict[str, KindSums] = {}
        self._causes: dict[str, CauseSums] = {}
        self._sources: dict[str, SourceSums] = {}
        self._context = [0.0] * len(REREAD_STEPS)
        self._resent = [0.0] * len(REREAD_STEPS)
        self._compacted = dict[str, list[int]]()
        self._longer_ttl = dict[str, int]()
        self._plan_savings = dict[str, int]()
        self._conversations = 0
        self._takes_breakpoints = False
        self._span: tuple[float, float] | None = None

    def add(self, conversation: ConversationSpending) -> None:
        key = (conversation.client, conversation.session)
        session = self._sessions.setdefault(key, _SessionFold(conversation))
        session.add(conversation)
        self._conversations += 1
        self._takes_breakpoints |= conversation.takes_breakpoints
        first, last = self._span or (conversation.started_at, conversation.ended_at)
        self._span = min(first, conversation.started_at), max(last, conversation.ended_at)
        spent = 0
        for group, sums in conversation.groups.items():
            day, _, model = group.partition(" ")
            spent += sums.spent
            for rows, name in (
                (self._days, day),
                (self._models, model),
                (self._projects, conversation.project),
                (self._clients, conversation.client),
            ):
                rows.setdefault(name, KindSums()).add(sums)
            self._total.add(sums)
        _add_all(self._causes, conversation.causes)
        _add_all(self._sources, conversation.sources)
        self._context = [*map(float.__add__, self._context, conversation.context)]
        self._resent = [*map(float.__add__, self._resent, conversation.resent)]
        client = conversation.client
        compacted = self._compacted.setdefault(client, [0] * len(COMPACTION_SIZES))
        self._compacted[client] = [*map(int.__add__, compacted, conversation.compacted)]
        self._longer_ttl[client] = self._longer_ttl.get(client, 0) + conversation.longer_ttl
        self._plan_savings[client] = self._plan_savings.get(client, 0) + spent - conversation.planned

    def build(self) -> Spending:
        sessions = [session.row() for session in self._sessions.values()]
        ranges, optima = [row.planned_range_usd for row in sessions], [row.optimum_usd for row in sessions]
        low, high = ([pair[at] for pair in ranges if pair is not None] for at in (0, 1))
        spending = Spending(
            total=_build_row("total", self._total),
            conversations=self._conversations,
            compactions=sum(row.compactions for row in sessions),
            from_at=self._span[0] if self._span else 0.0,
            to_at=self._span[1] if self._span else 0.0,
            models=_build_rows(self._models),
            days=tuple(_build_row(day, sums) for day, sums in sorted(_fill_days(self._days).items())),
            projects=_build_rows(self._projects),
            clients=_build_rows(self._clients),
            sessions=tuple(sorted(sessions, key=lambda row: (-row.amounts.usd, -row.amounts.tokens, row.id))),
            tools=_build_tools(self._sources),
            rereads=tuple(_build_rereads(self._context, self._resent)),
            losses=_build_losses(self._causes),
            actions=(),
            takes_breakpoints=self._takes_breakpoints,
            planned_usd=sum((row.planned_usd for row in sessions), _ZERO),
            unplanned_usd=sum(
                (row.amounts.usd if row.unplanned_usd is None else row.unplanned_usd for row in sessions), _ZERO
            ),
            planned_range_usd=(sum(low, _ZERO), sum(high, _ZERO)) if None not in ranges else None,
            optimum_usd=sum((usd for usd in optima if usd is not None), _ZERO) if None not in optima else None,
        )
        return msgspec.structs.replace(spending, actions=self._choose_actions(spending))

    def _choose_actions(self, spending: Spending) -> tuple[Action, ...]:
        weeks, minimum = spending.weeks, spending.total.usd * ACTION_SHARE_MIN
        first = next((row for row in spending.tools if row.tool == FIRST_PROMPT), None)
        actions = (
            propose_compaction(self._compacted, weeks),
            propose_plan(self._plan_savings if self._takes_breakpoints else {}, self._longer_ttl, weeks),
            self._propose_stable_prefix(spending),
            propose_smaller_prompt(first.results, first.tokens, first.usd, weeks) if first is not None else None,
        )
        return choose_actions(actions, usd_a_week_min=float(minimum) / weeks)

    def _propose_stable_prefix(self, spending: Spending) -> Action | None:
        changed = [row for row in spending.losses if row.cause in CHANGE_CAUSES and row.lost_usd]
        if not changed:
            return None
        cause, component = changed[0].cause, changed[0].component
        key = f"{cause}\t{component}"
        worst = max(self._sessions.values(), key=lambda session: session.causes.get(key, CauseSums()).lost)
        lost = sum((row.lost_usd for row in changed), _ZERO)
        calls, usd_a_week = sum(row.calls for row in changed), lost / Decimal(spending.weeks)
        return propose_stable_prefix(cause, component, worst.first.session, calls=calls, usd_a_week=usd_a_week)


def _add_all(totals: dict[str, _Sums], added: dict[str, _Sums]) -> None:
    for key, sums in added.items():
        if key in totals:
            totals[key].add(sums)
        else:
            totals[key] = msgspec.structs.replace(sums)


def _build_row(name: str, sums: KindSums) -> SpendingRow:
    amounts = zip(KINDS, sums.tokens, sums.pico, strict=True)
    kinds = tuple(KindAmount(kind, tokens, to_dollars(pico)) for kind, tokens, pico in amounts if tokens or pico)
    return SpendingRow(
        name=name,
        calls=sums.calls,
        tokens=sum(sums.tokens),
        usd=to_dollars(sums.spent),
        lost_usd=to_dollars(sums.lost),
        uncached_usd=to_dollars(sums.uncached),
        cache_hits=sums.hits,
        cache_misses=sums.misses,
        kinds=kinds,
        unpriced_calls=sums.unpriced_calls,
        unpriced_tokens=sums.unpriced_tokens,
    )


def _fill_days(sums_by_day: dict[str, KindSums]) -> dict[str, KindSums]:
    """With the days between the first and the last that have no calls, unless a clock was wrong by years."""
    dated = sorted(day for day in sums_by_day if day != UNDATED)
    if not dated:
        return sums_by_day
    first, last = map(datetime.date.fromisoformat, (dated[0], dated[-1]))
    count = min((last - first).days, DAYS_MAX)
    filled = {(first + datetime.timedelta(days=number)).isoformat(): KindSums() for number in range(count)}
    return filled | sums_by_day


def _build_rows(sums_by_name: dict[str, KindSums]) -> tuple[SpendingRow, ...]:
    rows = (_build_row(name, sums) for name, sums in sums_by_name.items())
    return tuple(sorted(rows, key=lambda row: (-row.usd, -row.tokens, row.name)))


def _build_tools(sources: dict[str, SourceSums]) -> tuple[ToolSpending, ...]:
    rows = (
        ToolSpending(name, sums.results, round(sums.tokens), round(sums.resent_tokens), to_dollars(round(sums.pico)))
        for name, sums in sources.items()
    )
    return tuple(sorted(rows, key=lambda row: (-row.usd, -row.resent_tokens, -row.tokens, row.tool)))


def _build_rereads(context: Sequence[float], resent: Sequence[float]) -> Iterator[RereadContext]:
    ends: Iterable[int | None] = (*(step - 1 for step in REREAD_STEPS[1:]), None)
    for start, end, tokens, again in zip(REREAD_STEPS, ends, context, resent, strict=True):
        yield RereadContext(start, end, round(tokens), round(again))


def _build_losses(causes: dict[str, CauseSums]) -> tuple[Loss, ...]:
    rows = []
    for key, sums in causes.items():
        cause, _, component = key.partition("\t")
        lost = to_dollars(sums.lost)
        rows.append(Loss(cause, component, sums.calls, sums.tokens, lost, REMEDIES.get(cause, "")))
    return tuple(sorted(rows, key=lambda row: (-row.lost_usd, -row.calls, row.cause, row.component)))


def format_day(at: float) -> str:
    """The UTC day, or `undated` where a recording has times relative to its start."""
    return _name_day(int(at // 86_400))


@functools.lru_cache(maxsize=4_096)
def _name_day(number: int) -> str:
    return UNDATED if number < 365 else utc_date(number * 86_400.0).isoformat()
