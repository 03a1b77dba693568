"""The roll-up tables stored beside the log, and what a posting adds to each."""

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.ledger.postings import Posting, Sums, at_fault, cells
from holdfast.ledger.shares import NOBODY

Cell = str | int
Key = tuple[Cell, ...]
Addition = tuple[str, Key, tuple[int, ...]]


class Given(msgspec.Struct, frozen=True):
    """How often a verdict was given, how often it meant a loss, and what was lost."""

    calls: int = 0
    losses: int = 0
    tokens: int = 0
    lost: int = 0


class Ended(msgspec.Struct, frozen=True):
    """Calls with one outcome, and their total latency and retries."""

    calls: int = 0
    latency_ms: int = 0
    retries: int = 0


class RollUp(msgspec.Struct, frozen=True):
    """One row per key; a row whose first sum has dropped to 0 is deleted."""

    name: str
    keys: tuple[str, ...]
    sums: tuple[str, ...]


DAYS = RollUp("days", ("day", "provider", "model", "simulated"), Sums.__struct_fields__)
SESSION_DAYS = RollUp("session_days", ("session_id", "day", "simulated"), Sums.__struct_fields__)
VERDICT_DAYS = RollUp("verdict_days", ("day", "kind", "component", "simulated"), Given.__struct_fields__)
# A latency of n bits is under 2**n ms. Counts per n can be subtracted when a session is deleted; a maximum cannot.
OUTCOME_DAYS = RollUp(
    "outcome_days", ("day", "provider", "model", "outcome", "latency_bits", "simulated"), Ended.__struct_fields__
)

# Postings without a payer are not stored: they are the difference to the totals of `DAYS`.
ACCOUNT_DAYS = RollUp("account_days", ("day", "key_id", "user_id", "team_id", "simulated"), Sums.__struct_fields__)

ROLLUPS = (DAYS, SESSION_DAYS, VERDICT_DAYS, OUTCOME_DAYS, ACCOUNT_DAYS)


# Additions to one key that are collected before they are summed: bounds memory, and sums 1,000 at a time.
PARTS_MAX = 1_000


def additions(posting: Posting) -> Iterator[Addition]:
    day, simulated = posting.day, int(posting.simulated)
    if posting.sums.entries:
        sums = cells(posting.sums)
        yield DAYS.name, (day, posting.provider, posting.model, simulated), sums
        yield SESSION_DAYS.name, (posting.session_id, day, simulated), sums
        if posting.payer != NOBODY:
            payer = posting.payer
            yield ACCOUNT_DAYS.name, (day, payer.key_id, payer.user_id, payer.team_id, simulated), sums
    verdict = posting.entry.verdict if posting.entry else None
    if verdict is not None:
        lost = posting.sums.lost
        verdict_sums = (1, int(lost > 0), verdict.lost_tokens if lost else 0, lost)
        yield VERDICT_DAYS.name, (day, verdict.kind, at_fault(verdict.component), simulated), verdict_sums
    if posting.outcome is not None:
        key = (day, posting.provider, posting.model, posting.outcome, posting.latency_ms.bit_length(), simulated)
        yield OUTCOME_DAYS.name, key, (1, posting.latency_ms, posting.retries)


class Totals:
    """Collects additions and sums them when they are read."""

    def __init__(self) -> None:
        self._parts: dict[str, dict[Key, list[tuple[int, ...]]]] = {table.name: {} for table in ROLLUPS}

    def add(self, table: str, key: Key, amounts: tuple[int, ...]) -> None:
        parts = self._parts[table].setdefault(key, [])
        parts.append(amounts)
        # Adding tuples one by one would build a new tuple per posting; summing many at once is faster.
        if len(parts) >= PARTS_MAX:
            parts[:] = [_sum(parts)]

    def rows(self, table: RollUp) -> dict[Key, tuple[int, ...]]:
        return {key: _sum(parts) for key, parts in self._parts[table.name].items()}

    def clear(self) -> None:
        for parts in self._parts.values():
            parts.clear()

    def post(self, postings: Iterable[Posting]) -> None:
        for posting in postings:
            for addition in additions(posting):
                self.add(*addition)


def _sum(parts: list[tuple[int, ...]]) -> tuple[int, ...]:
    return parts[0] if len(parts) == 1 else tuple(map(sum, zip(*parts, strict=True)))
