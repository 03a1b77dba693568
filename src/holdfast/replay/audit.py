"""Audit of recorded sessions: what they spent, what cache misses cost and why, and what a better plan would cost."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

import msgspec

from holdfast.catalog.lookup import Models, find_model_or_none, price_at, utc_date
from holdfast.catalog.schema import Model, Price
from holdfast.economics.cost import cost_usd
from holdfast.planning.adaptive_policy import AdaptivePolicy
from holdfast.planning.learned import NOTHING_LEARNED, LearnedParameters
from holdfast.replay.cache_misses import CallContext, MissCost, infer_ttls_or_default, price_miss
from holdfast.replay.comparison import PolicyFactory, PolicyRow, ReplayTotals, compare_policies
from holdfast.replay.playback import make_replay_setting
from holdfast.replay.recording import RecordedCall, Transcript
from holdfast.replay.size_estimate import PaidCall, price_optimum, price_plans, reduce_to_sizes
from holdfast.replay.trace_files import BrokenLine
from holdfast.types.prompt import Ttl
from holdfast.types.usage import Usage

BROKEN_LINES_REPORTED_MAX = 100  # The report counts all broken lines and lists this many.
_ZERO = Decimal(0)


class MissCauseTotals(msgspec.Struct, frozen=True):
    """Cache misses with one cause, and what sending their tokens again cost above reading them.

    A call is a miss if it read less than half of the tokens that it shares with the previous call.
    """

    cause: str
    calls: int
    tokens: int
    lost_usd: float


class AuditedModel(msgspec.Struct, frozen=True):
    """`spent_usd` is None if the catalog has no price; without `takes_breakpoints` there is nothing to plan."""

    model: str
    calls: int
    usage: Usage
    spent_usd: float | None
    takes_breakpoints: bool


class AuditedSession(msgspec.Struct, frozen=True):
    """`planned_usd` (low, high) and `optimum_usd` are estimates for the same prompts and replies."""

    session: str
    project: str
    started_at: float
    model: str
    calls: int
    cache_misses: int
    subagents: int
    compactions: int
    usage: Usage
    spent_usd: float
    lost_usd: float
    planned_usd: tuple[float, float]
    optimum_usd: float
    causes: tuple[MissCauseTotals, ...]

    @property
    def main_cause(self) -> str:
        return self.causes[0].cause if self.causes else ""


class AuditReport(msgspec.Struct, frozen=True):
    """All amounts are dollars, replies included; sessions and causes are sorted by what they lost."""

    sessions: tuple[AuditedSession, ...]
    conversations: int
    calls: int
    cache_misses: int
    compactions: int
    from_at: float
    to_at: float
    usage: Usage
    spent_usd: float
    lost_usd: float
    planned_usd: tuple[float, float]
    optimum_usd: float
    causes: tuple[MissCauseTotals, ...]
    models: tuple[AuditedModel, ...]
    broken_lines: int
    broken: tuple[BrokenLine, ...]
    other_policies: tuple[PolicyRow, ...] = ()


class _AuditedCall(msgspec.Struct, frozen=True):
    """A call as it was paid for. A call without a catalog row or price counts as free."""

    call: RecordedCall
    usage: Usage
    ttl: Ttl
    row: Model | None = None
    price: Price | None = None
    spent_usd: Decimal = _ZERO
    loss: MissCost | None = None

    @property
    def model(self) -> str:
        return self.call.model or ""

    @property
    def reply_usd(self) -> Decimal:
        return cost_usd(Usage(output=self.usage.output), self.price) if self.price else _ZERO


class _Plan(msgspec.Struct, frozen=True):
    """Costs under a plan. Replies are included, because no plan changes what they cost."""

    upgraded_usd: Decimal
    plain_usd: Decimal
    optimum_usd: float

    @classmethod
    def of(cls, spent_usd: Decimal) -> "_Plan":
        """The plan for costs that no plan can change."""
        return cls(spent_usd, spent_usd, float(spent_usd))


class _Totals:
    """Totals over a set of calls."""

    def __init__(self) -> None:
        self.calls = self.cache_misses = self.compactions = 0
        self.usage = Usage()
        self.spent_usd = self.lost_usd = self.upgraded_usd = self.plain_usd = _ZERO
        self.optimum_usd = 0.0
        self._causes: dict[str, tuple[int, int, Decimal]] = {}

    def count(self, call: _AuditedCall) -> None:
        self.calls += 1
        self.compactions += call.call.kept_entries == 0
        self.usage += call.usage
        self.spent_usd += call.spent_usd
        if call.loss is not None:
            self.cache_misses += 1
            self.lost_usd += call.loss.usd
            calls, tokens, usd = self._causes.get(call.loss.cause, (0, 0, _ZERO))
            self._causes[call.loss.cause] = calls + 1, tokens + call.loss.tokens, usd + call.loss.usd

    def plan(self, plan: _Plan) -> None:
        self.upgraded_usd += plan.upgraded_usd
        self.plain_usd += plan.plain_usd
        self.optimum_usd += plan.optimum_usd

    @property
    def causes(self) -> tuple[MissCauseTotals, ...]:
        causes = self._causes.items()
        rows = (MissCauseTotals(cause, calls, tokens, float(usd)) for cause, (calls, tokens, usd) in causes)
        return tuple(sorted(rows, key=lambda row: (-row.lost_usd, -row.calls, row.cause)))

    @property
    def planned_usd(self) -> tuple[float, float]:
        # Which of the two rules is cheaper depends on the idle times of the session.
        low, high = sorted((float(self.upgraded_usd), float(self.plain_usd)))
        return low, high


class _Session:
    def __init__(self, transcript: Transcript) -> None:
        self.project, self.started_at = transcript.project, transcript.recording.started_at
        self.subagents = 0
        self.total = _Totals()
        self.models: Counter[str] = Counter()

    def row(self, id: str) -> AuditedSession:
        total = self.total
        return AuditedSession(
            session=id,
            project=self.project,
            started_at=self.started_at,
            model=max(self.models, key=self.models.__getitem__, default=""),
            calls=total.calls,
            cache_misses=total.cache_misses,
            subagents=self.subagents,
            compactions=total.compactions,
            usage=total.usage,
            spent_usd=float(total.spent_usd),
            lost_usd=float(total.lost_usd),
            planned_usd=total.planned_usd,
            optimum_usd=total.optimum_usd,
            causes=total.causes,
        )


class Audit:
    """Takes transcripts oldest first, because the plan learns from each of them for the next.

    The provider does not document whether a write with a longer TTL also extends the shorter-lived prefix before it,
    so the plan is replayed under both rules and its cost is reported as a range.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._rows: dict[str, Model | None] = {}
        self._learned: dict[str, tuple[LearnedParameters, LearnedParameters]] = {}
        self._sessions: dict[str, _Session] = {}
        self._by_model: dict[str, _Totals] = {}
        self._total = _Totals()
        self._conversations = 0
        self._broken: list[BrokenLine] = []
        self._broken_count = 0
        self._span: tuple[float, float] | None = None

    def find_priced_model(self, name: str) -> Model | None:
        """The catalog row of a model, or None if the catalog does not know or price it."""
        if name not in self._rows:
            row = find_model_or_none(name, self._models)
            self._rows[name] = row if row is not None and row.prices else None
        return self._rows[name]

    def skip_line(self, line: BrokenLine) -> None:
        self._broken_count += 1
        if len(self._broken) < BROKEN_LINES_REPORTED_MAX:
            self._broken.append(line)

    def add_transcript(self, transcript: Transcript) -> None:
        session = self._sessions.setdefault(transcript.session, _Session(transcript))
        session.subagents += transcript.is_subagent
        self._conversations += 1
        calls = transcript.recording.calls
        first, last = self._span or (calls[0].at, calls[-1].at)
        self._span = min(first, calls[0].at), max(last, calls[-1].at)
        calls_by_model: dict[str, list[_AuditedCall]] = {}
        for audited in self._audit_calls(transcript):
            calls_by_model.setdefault(audited.model, []).append(audited)
            session.models[audited.model] += 1
            for total in (self._total, session.total, self._by_model.setdefault(audited.model, _Totals())):
                total.count(audited)
        # Storage of explicit caches is paid under any plan.
        for total in (self._total, session.total):
            total.spent_usd += transcript.cache_storage_usd
            total.plan(_Plan.of(transcript.cache_storage_usd))
        # Every model has its own cache, so the calls of each model are planned separately.
        for name, model_calls in calls_by_model.items():
            plan = self._plan(name, model_calls)
            for total in (self._total, session.total, self._by_model[name]):
                total.plan(plan)

    def _audit_calls(self, transcript: Transcript) -> Iterator[_AuditedCall]:
        calls, before = transcript.recording.calls, transcript.previous_call
        all_calls = calls if before is None else (before, *calls)
        ttls = infer_ttls_or_default(all_calls)
        for index, call in enumerate(all_calls):
            if call is before:
                continue
            row, usage = self.find_priced_model(call.model or ""), call.usage or Usage()
            if row is None:
                yield _AuditedCall(call, usage, ttls[index])
                continue
            price = price_at(row, utc_date(call.at), usage.tokens_sent)
            loss = None
            if index and has_plannable_cache(row):
                previous, around = all_calls[index - 1], _around(all_calls, index)
                loss = price_miss(previous, call, ttls[index - 1], rules=row.cache, price=price, around=around)
            yield _AuditedCall(call, usage, ttls[index], row, price, cost_usd(usage, price), loss)

    def _plan(self, name: str, model_calls: Sequence[_AuditedCall]) -> _Plan:
        """What our plan and the best plan cost; what was really paid if the model takes no breakpoints."""
        row = self.find_priced_model(name)
        if row is None or not has_plannable_cache(row):
            return _Plan.of(sum((audited.spent_usd for audited in model_calls), _ZERO))
        rule_sets = tuple(msgspec.structs.replace(row.cache, ttl_upgrade=upgrade) for upgrade in (True, False))
        learned = self._learned.get(name, (NOTHING_LEARNED, NOTHING_LEARNED))
        policies = tuple(AdaptivePolicy(parameters) for parameters in learned)
        paid = (PaidCall(audited.call, audited.price, audited.ttl) for audited in model_calls if audited.price)
        prompts = reduce_to_sizes(paid, row.cache)
        costs = price_plans(prompts, row, zip(rule_sets, policies, strict=True))
        self._learned[name] = policies[0].learned_parameters(), policies[1].learned_parameters()
        replies = sum((audited.reply_usd for audited in model_calls), _ZERO)
        optimum = price_optimum(prompts, row, rule_sets[0]) + float(replies)
        return _Plan(costs[0] + replies, costs[1] + replies, optimum)

    def build_report(self) -> AuditReport:
        total = self._total
        sessions = (session.row(id) for id, session in self._sessions.items())
        return AuditReport(
            sessions=tuple(sorted(sessions, key=lambda row: (-row.lost_usd, -row.spent_usd, row.session))),
            conversations=self._conversations,
            calls=total.calls,
            cache_misses=total.cache_misses,
            compactions=total.compactions,
            from_at=self._span[0] if self._span else 0.0,
            to_at=self._span[1] if self._span else 0.0,
            usage=total.usage,
            spent_usd=float(total.spent_usd),
            lost_usd=float(total.lost_usd),
            planned_usd=total.planned_usd,
            optimum_usd=total.optimum_usd,
            causes=total.causes,
            models=tuple(self._model_row(name, model_total) for name, model_total in sorted(self._by_model.items())),
            broken_lines=self._broken_count,
            broken=tuple(self._broken),
        )

    def _model_row(self, name: str, total: _Totals) -> AuditedModel:
        row = self.find_priced_model(name)
        spent = float(total.spent_usd) if row is not None else None
        return AuditedModel(name, total.calls, total.usage, spent, row is not None and has_plannable_cache(row))


def replay_transcripts(transcripts: Iterable[Transcript], models: Models) -> ReplayTotals:
    """Replay each conversation with the cache rules and today's prices of the model that answered most of its calls."""
    totals, policies = ReplayTotals(), PolicyFactory()
    for transcript in transcripts:
        name = Counter(call.model or "" for call in transcript.recording.calls).most_common(1)[0][0]
        row = find_model_or_none(name, models)
        # Replaying needs the message text, and a model whose cache is controlled by breakpoints.
        if row is not None and transcript.has_text and has_plannable_cache(row):
            setting = make_replay_setting(row, ttl_upgrade=False)
            comparison = compare_policies(transcript.recording, policies.create_policies(), setting)
            totals.add_comparison(comparison, None, 0)
    return totals


def has_plannable_cache(row: Model) -> bool:
    """Whether there is something to plan: the model takes breakpoints and offers both TTLs."""
    return row.cache.kind == "explicit" and {"5m", "1h"} <= row.cache.ttls_seconds.keys()


def _around(calls: Sequence[RecordedCall], index: int) -> CallContext:
    """The sizes of the other calls that help to explain this one."""
    first = calls[0].usage
    following = calls[index + 1].usage if index + 1 < len(calls) else None
    next_cache_read = following.cache_read if following else None
    return CallContext(first.tokens_sent if first else None, next_cache_read=next_cache_read)
