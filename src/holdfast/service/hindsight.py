"""What the same prompts would have cost under another plan: under the best one, and under those of others."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec

from holdfast.catalog.lookup import Models, find_model
from holdfast.errors import UserError
from holdfast.events.log import Log
from holdfast.ledger.tables import PAGE_MAX, KeepsTables, Scope
from holdfast.planning.memory import Learned
from holdfast.planning.ours import OurPolicy
from holdfast.planning.policy import Policy
from holdfast.planning.rivals import compared
from holdfast.replay.audit import Audit, takes_marks
from holdfast.replay.compare import compare
from holdfast.replay.play import setting_for
from holdfast.replay.recording import Transcript, counted_once
from holdfast.replay.stored import stored_transcript
from holdfast.replay.totals import Totals

SESSIONS_MAX = 200
RIVAL_SESSIONS_MAX = 20
"""How many sessions are played again, the newest first: each takes a while."""


class Booked(Log, KeepsTables, Protocol):
    """A log, and what it adds up to."""


class RivalRow(msgspec.Struct, frozen=True):
    policy: str
    cost_usd: float
    read_share: float


class Rivals(msgspec.Struct, frozen=True):
    """Tokens as we count them, prompts only, at the prices of today: to be compared with one another alone."""

    sessions: int
    policies: tuple[RivalRow, ...]


class RegretRow(msgspec.Struct, frozen=True):
    session: str
    spent_usd: float
    planned_usd: tuple[float, float]
    optimum_usd: float
    regret_usd: float


class Regret(msgspec.Struct, frozen=True):
    """`regret_usd` is what was spent above the least that any plan could have cost, knowing what came.

    `planned_usd` is what our plan would cost, from and to: nobody says whether long lifetimes keep short prefixes.
    """

    spent_usd: float
    planned_usd: tuple[float, float]
    optimum_usd: float
    regret_usd: float
    call_count: int
    sessions: tuple[RegretRow, ...]
    sessions_left_out: int


def regret_of(log: Booked, models: Models, scope: Scope) -> Regret:
    transcripts, left_out = _transcripts(log, scope, sessions_max=SESSIONS_MAX)
    audit = Audit(models)
    for transcript in transcripts:
        audit.add(transcript)
    report = audit.report()
    return Regret(
        spent_usd=_usd(report.spent_usd),
        planned_usd=(_usd(report.planned_usd[0]), _usd(report.planned_usd[1])),
        optimum_usd=_usd(report.optimum_usd),
        regret_usd=_usd(report.spent_usd - report.optimum_usd),
        call_count=report.calls,
        sessions=tuple(
            RegretRow(
                row.session,
                _usd(row.spent_usd),
                (_usd(row.planned_usd[0]), _usd(row.planned_usd[1])),
                _usd(row.optimum_usd),
                _usd(row.spent_usd - row.optimum_usd),
            )
            for row in report.sessions
        ),
        sessions_left_out=left_out,
    )


def rival_costs(log: Booked, models: Models, scope: Scope) -> Rivals:
    """Each conversation by the rules and at today's prices of the model that answered most of its calls."""
    totals, ours = Totals(), OurPolicy(Learned())
    transcripts, _ = _transcripts(log, scope, sessions_max=RIVAL_SESSIONS_MAX)
    for one in transcripts:
        name = Counter(call.model or "" for call in one.recording.calls).most_common(1)[0][0]
        try:
            row = find_model(name, models)
        except UserError:
            continue
        if one.spelled and takes_marks(row):
            ours = OurPolicy(ours.learned())
            policies: tuple[Policy, ...] = (ours, *compared().values())
            totals.add(compare(one.recording, policies, setting_for(row, ttl_upgrade=False)), None, 0)
    rows = (RivalRow(row.policy, _usd(row.cost_usd), round(row.read_share, 6)) for row in totals.report().policies)
    return Rivals(totals.recordings, tuple(sorted(rows, key=lambda row: (row.cost_usd, row.policy))))


def _transcripts(log: Booked, scope: Scope, *, sessions_max: int) -> tuple[list[Transcript], int]:
    """Those of the newest sessions with a call in the window, and how many were left out."""
    within = list(_callers(log, scope))
    found = counted_once(_read(within[:sessions_max], log), since=scope.since)
    return found, max(0, len(within) - sessions_max)


def _callers(log: Booked, scope: Scope) -> Iterator[str]:
    tables, offset = log.tables(), 0
    while page := tables.session_amounts(scope, order="newest", limit=PAGE_MAX, offset=offset):
        yield from (one.id for one in page if one.amounts.calls)
        offset += len(page)


def _read(session_ids: Iterable[str], log: Log) -> Iterator[Transcript]:
    for session_id in session_ids:
        transcript = stored_transcript(log.read(session_id), session_id)
        if transcript is not None:
            yield transcript


def _usd(amount: float) -> float:
    return round(amount, 6)
