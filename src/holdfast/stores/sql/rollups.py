"""Writes the roll-up tables in the same transaction as the events they are derived from.

The accounting state of a session is cached, and stored now and then, so that a process that continues a long session
reads its newest events only. It is rebuilt from the log where neither is of use. A session whose events are not all in
the tables (written by an older version, or left over from an interrupted rebuild) is processed from its first event on
as soon as it continues or is queried.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec
from msgspec.structs import astuple

from holdfast.catalog.lookup import Models
from holdfast.errors import StoreError
from holdfast.events.log import Event, SessionRow
from holdfast.events.records import ledger_key
from holdfast.ledger.accounting import AccountingState, LedgerEntry
from holdfast.ledger.analytics.queries import END_OF_TIME
from holdfast.ledger.postings import (
    LEDGER_VERSION,
    ROLLUPS,
    SESSION_DAYS,
    Key,
    Posting,
    RollUp,
    RollUpTotals,
    Sums,
    component_key,
    post_event,
)
from holdfast.stores.sql import analytics_queries as queries
from holdfast.stores.sql.events import EVENT_POSITION, Cell, as_int, decode_event_row
from holdfast.stores.sql.records import PUT_SHARED, SHARED_VALUE
from holdfast.stores.write.queue import AppendJob
from holdfast.types.reply import ReplySource

# Sessions whose accounting state is cached, about 3 KB each: as many as a gateway follows at the same time. Others are
# rebuilt from the log when they continue.
CACHED_SESSIONS_MAX = 5_000
# A state has 1 KB, and reading so many events takes 2 ms.
STORED_EVERY_EVENTS = 256
PAGE_EVENTS = 1_000  # Bounds what rebuilding a long session holds in memory.
_SESSIONS_AT_ONCE = 200  # Well below the 999 parameters that every SQLite accepts in one statement.
_ALWAYS = (0.0, END_OF_TIME, 1)  # Parameters of a query: since, until, and simulated calls included.
_IMAGE = '"image"'  # In messages with an image block: only those change the accounting state.
_encode = msgspec.json.Encoder().encode


class _LedgerRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The columns that all three tables have."""

    session_id: str
    event_id: str
    at: float
    day: str
    provider: str
    model: str
    simulated: int


class CallRow(_LedgerRow, frozen=True, array_like=True, gc=False):
    number: int
    turn_id: str | None
    input: int
    cache_read: int
    cache_write_5m: int
    cache_write_1h: int
    cache_write_other: int
    output: int
    spent: int
    uncached: int
    lost: int
    price_version: str
    latency_ms: int
    latency_bits: int
    retries: int
    outcome: str
    stop_reason: str
    request_id: str
    chain: str
    blocks_shared: int
    blocks_before: int
    moved_layer: str | None
    moved_byte: int | None
    plan: str
    kind: str | None
    component: str | None
    lost_tokens: int
    verdict: str | None
    stable_written: int
    key_id: str
    user_id: str
    team_id: str
    source: ReplySource


class ChargeRow(_LedgerRow, frozen=True, array_like=True, gc=False):
    type: str
    spent: int
    key_id: str
    user_id: str
    team_id: str


class FailureRow(_LedgerRow, frozen=True, array_like=True, gc=False):
    outcome: str
    latency_ms: int
    latency_bits: int
    retries: int


TableRow = CallRow | ChargeRow | FailureRow
TABLE_NAMES: dict[type[TableRow], str] = {CallRow: "calls", ChargeRow: "charges", FailureRow: "failures"}


class QueryPort(Protocol):
    """Access to the tables inside the current transaction."""

    def fetch(self, query: str, parameters: Sequence[Cell] = ..., /) -> list[tuple[object, ...]]: ...

    def write(self, query: str, rows: Sequence[Sequence[Cell]], /) -> None: ...

    def insert(self, table: str, columns: tuple[str, ...], rows: Sequence[Sequence[Cell]], /) -> None: ...


class _SessionState:
    """The accounting state of a session, the event up to which it is valid, and the number of events when stored."""

    __slots__ = ("accounting", "count", "last_at", "last_id", "stored_count")

    def __init__(self, accounting: AccountingState, count: int, last_id: object, stored_count: int = 0) -> None:
        self.accounting = accounting
        self.count = count
        self.last_id = last_id
        self.last_at = 0.0
        self.stored_count = stored_count


class _StoredState(msgspec.Struct, frozen=True):
    """The accounting state of a session after its first `count` events, the last of which is `last_id`."""

    ledger_version: int
    accounting: AccountingState
    count: int
    last_id: str


_decode_stored = msgspec.json.Decoder(_StoredState).decode


class RollUpWriter:
    """One transaction spans `begin` to `commit`; uncommitted state is discarded by the next `begin`."""

    def __init__(self, models: Models, *, sessions_max: int = CACHED_SESSIONS_MAX) -> None:
        self._models = models
        self._sessions_max = sessions_max
        self.writer_number = 0
        """Writers with different numbers add to different rows of a day, and do not wait for each other."""
        self._cached: OrderedDict[str, _SessionState] = OrderedDict()
        self.begin()

    def begin(self) -> None:
        self._active: dict[str, _SessionState] = {}
        self._rebuilt: set[str] = set()
        self._has_removals = False
        self._totals = RollUpTotals()
        self._rows: dict[type[TableRow], list[TableRow]] = {kind: [] for kind in TABLE_NAMES}

    def load_sessions(
        self, port: QueryPort, appends: Sequence[AppendJob], session_rows: Sequence[SessionRow]
    ) -> dict[str, object]:
        """Prepares for events whose session rows are already updated but which are not on the log yet themselves.

        Returns the last event of each session before them.
        """
        relevant = {event.session_id for job in appends for event in job.ledger_events}
        counts = {row.id: row.event_count for row in session_rows}
        session_ids, heads = list(counts), dict[str, object]()
        for start in range(0, len(session_ids), _SESSIONS_AT_ONCE):
            batch = session_ids[start : start + _SESSIONS_AT_ONCE]
            for session_id, count, entered, last_id in port.fetch(queries.select_session_states(len(batch)), batch):
                assert isinstance(session_id, str)
                heads[session_id] = last_id
                if session_id in self._active:
                    continue
                count_before = as_int(count) - counts[session_id]
                cached = self._cached.get(session_id)
                # The cached state is valid only if no other process appended or recounted in between.
                if cached is not None and (cached.count, cached.last_id, entered) == (count_before, last_id, count):
                    self._active[session_id] = _SessionState(
                        cached.accounting, count_before, last_id, cached.stored_count
                    )
                elif session_id in relevant:
                    is_complete = entered == count
                    state = self._continue(port, session_id, count_before, last_id) if is_complete else None
                    self._active[session_id] = state or self._rebuild(
                        port, session_id, count_before, last_id, post_all=not is_complete
                    )
        return heads

    def _continue(self, port: QueryPort, session_id: str, count: int, last_id: object) -> _SessionState | None:
        """The cached or stored state after the events that were appended and entered since; None if there is none."""
        cached = self._cached.get(session_id)
        if cached is None and count >= STORED_EVERY_EVENTS:
            cached = _find_stored(port, session_id)
        position = port.fetch(EVENT_POSITION, (str(cached.last_id), session_id)) if cached else []
        if cached is None or not position:
            return None
        seq, accounting = as_int(position[0][0]), cached.accounting
        if port.fetch(queries.COUNT_EVENTS_AFTER, (session_id, seq)) != [(count - cached.count,)]:
            return None  # The session was pruned.
        for event in self._relevant_events(port, session_id, seq):
            accounting, _ = post_event(accounting, event, self._models)
        return _SessionState(accounting, count, last_id, cached.stored_count)

    def _rebuild(
        self, port: QueryPort, session_id: str, count: int, last_id: object, *, post_all: bool
    ) -> _SessionState:
        """The state of a session from its log; with `post_all`, the amounts of its events are added again too."""
        if post_all:
            self.remove_session(port, session_id)
            self._rebuilt.add(session_id)
        accounting = AccountingState()
        if count:
            for event in self._relevant_events(port, session_id):
                accounting, posting = post_event(accounting, event, self._models)
                if posting is not None and post_all:
                    self._add(posting)
        return _SessionState(accounting, count, last_id)

    def _relevant_events(self, port: QueryPort, session_id: str, seq: int = 0) -> Iterator[Event]:
        """The events of a session that change the accounting state, after a position."""
        while page := port.fetch(queries.LEDGER_EVENTS, (session_id, seq, _IMAGE, PAGE_EVENTS)):
            for row_seq, *columns in page:
                seq = as_int(row_seq)
                # A damaged event must not prevent its session from continuing.
                with suppress(StoreError):
                    yield decode_event_row(columns)

    def add_appends(self, appends: Sequence[AppendJob]) -> None:
        """Computes what the appended events add; nothing of it is written yet."""
        for job in appends:
            for event in job.ledger_events:
                state = self._active[event.session_id]
                state.accounting, posting = post_event(state.accounting, event, self._models)
                if posting is not None:
                    self._add(posting)
            last_ids = {row.session_id: row.id for row in job.rows}
            for session_row in job.session_tallies:
                active = self._active.get(session_row.id)
                if active is not None:
                    active.count += session_row.event_count
                    active.last_id = last_ids[session_row.id]
                    active.last_at = session_row.last_event_at

    def _add(self, posting: Posting) -> None:
        self._totals.post((posting,))
        row = encode_posting(posting)
        self._rows[type(row)].append(row)

    def remove_session(self, port: QueryPort, session_id: str) -> None:
        """Deletes a session's rows and subtracts its amounts from all roll-ups."""
        self.write(port)
        self._active.pop(session_id, None)
        for table in ROLLUPS:
            query = queries.sum_rows(table, table.keys, sessions=1)
            for row in port.fetch(query, (*_ALWAYS, session_id) * len(queries.ROLLUP_SOURCES[table.name])):
                key, sums = row[: len(table.keys)], row[len(table.keys) :]
                self._totals.add(table.name, tuple(map(_as_cell, key)), tuple(-as_int(sum) for sum in sums))
                self._has_removals = True
        for statement in queries.DELETE_SESSION_ROWS:
            port.write(statement, [(session_id,)])

    def catch_up(self, port: QueryPort, session_ids: Iterable[str]) -> None:
        """Processes those sessions completely whose events are not all in the tables."""
        for session_id in session_ids:
            for count, entered, last_id in port.fetch(queries.SESSION_STATE, (session_id,)):
                if session_id not in self._rebuilt and count != entered:
                    self._active[session_id] = self._rebuild(port, session_id, as_int(count), last_id, post_all=True)

    def write(self, port: QueryPort) -> None:
        """Writes what was computed, always in the same order, so that two processes cannot deadlock."""
        for kind, rows in self._rows.items():
            if rows:
                port.insert(TABLE_NAMES[kind], kind.__struct_fields__, [astuple(row) for row in rows])
                rows.clear()
        for table in ROLLUPS:
            sums = {self._own_row(table, key): added for key, added in self._totals.rows(table).items()}
            if sums:
                keys = sorted(sums)
                port.write(queries.upsert_sums(table), [key + sums[key] for key in keys])
                if table is SESSION_DAYS:
                    port.write(queries.ADD_SESSION_SUMS, _sum_by_session(sums))
                if self._has_removals:
                    port.write(queries.delete_empty_sums(table), keys)
        self._totals.clear()
        self._has_removals = False
        self._store_states(port)
        if self._rebuilt:
            port.write(queries.MARK_ROLLED_UP, [(session_id,) for session_id in sorted(self._rebuilt)])
            self._rebuilt.clear()

    def _store_states(self, port: QueryPort) -> None:
        """Stores the accounting states that have many new events since they were stored last."""
        states = [
            (ledger_key(session_id), state)
            for session_id, state in sorted(self._active.items())
            if state.count - state.stored_count >= STORED_EVERY_EVENTS and isinstance(state.last_id, str)
        ]
        for key, state in states:
            stored = _StoredState(LEDGER_VERSION, state.accounting, state.count, str(state.last_id))
            port.write(PUT_SHARED, [(key, _encode(stored).decode(), state.last_at)])
            state.stored_count = state.count

    def _own_row(self, table: RollUp, key: Key) -> Key:
        """The key of this writer's row: `simulated`, the last column, is -n for calls that are not simulated.

        A session is locked while it is appended to: nobody else adds to its row.
        """
        return key if table is SESSION_DAYS or key[-1] else (*key[:-1], -self.writer_number)

    def commit(self) -> None:
        """Caches the state of the sessions that were part of the committed transaction."""
        for session_id, state in self._active.items():
            self._cached[session_id] = state
            self._cached.move_to_end(session_id)
        while len(self._cached) > self._sessions_max:
            self._cached.popitem(last=False)

    def reset_tables(self, port: QueryPort) -> None:
        """Empties the tables, so that every session is processed again. No other process may be writing."""
        self.begin()
        self._cached.clear()
        for statement in (*queries.CLEAR_TABLES, queries.RESET_SESSIONS):
            port.write(statement, [()])
        port.write(queries.SET_LEDGER_VERSION, [(LEDGER_VERSION,)])

    def is_current(self, port: QueryPort) -> bool:
        """Whether the tables were written by the rules of this version, or of a newer one that runs beside it."""
        return all(as_int(version) >= LEDGER_VERSION for (version,) in port.fetch(queries.LEDGER_VERSION_QUERY))


def _find_stored(port: QueryPort, session_id: str) -> _SessionState | None:
    for (text,) in port.fetch(SHARED_VALUE, (ledger_key(session_id),)):
        # A damaged or outdated one is as good as none.
        with suppress(msgspec.MsgspecError):
            stored = _decode_stored(str(text))
            if stored.ledger_version == LEDGER_VERSION:
                return _SessionState(stored.accounting, stored.count, stored.last_id, stored.count)
    return None


def _sum_by_session(sums_by_key: Mapping[Key, tuple[int, ...]]) -> list[tuple[Cell, ...]]:
    """What the session list is sorted by, and the session, in the order in which session rows are always locked."""
    sums_by_session: dict[str, Sums] = {}
    for (session_id, *_), amounts in sums_by_key.items():
        sums_by_session[str(session_id)] = sums_by_session.get(str(session_id), Sums()) + Sums(*amounts)
    return [
        (sums.calls, sums.usage.tokens_sent, sums.cache_read, sums.spent, sums.lost, session_id)
        for session_id, sums in sorted(sums_by_session.items())
    ]


def _as_cell(value: object) -> str | int:
    assert isinstance(value, str | int)
    return value


def encode_posting(posting: Posting) -> TableRow:
    common = (
        *(posting.session_id, posting.event_id, posting.at, posting.day, posting.provider, posting.model),
        int(posting.is_simulated),
    )
    if posting.entry is not None:
        return _call_row(common, posting, posting.entry)
    if posting.outcome is None:
        return ChargeRow(*common, posting.type, posting.sums.spent, *astuple(posting.payer))
    latency_ms = posting.latency_ms
    return FailureRow(*common, posting.outcome, latency_ms, latency_ms.bit_length(), posting.retries)


def _call_row(common: tuple[str, str, float, str, str, str, int], posting: Posting, entry: LedgerEntry) -> CallRow:
    call, sums, verdict = entry.record, posting.sums, entry.verdict
    return CallRow(
        *common,
        number=call.number,
        turn_id=entry.turn_id,
        input=sums.input,
        cache_read=sums.cache_read,
        cache_write_5m=sums.cache_write_5m,
        cache_write_1h=sums.cache_write_1h,
        cache_write_other=sums.cache_write_other,
        output=sums.output,
        spent=sums.spent,
        uncached=sums.uncached,
        lost=sums.lost,
        price_version=entry.pricing_version,
        latency_ms=posting.latency_ms,
        latency_bits=posting.latency_ms.bit_length(),
        retries=posting.retries,
        outcome=posting.outcome or "",
        stop_reason=entry.stop_reason,
        request_id=call.request_id,
        chain=entry.prompt_digest,
        blocks_shared=call.blocks_shared,
        blocks_before=call.blocks_before,
        moved_layer=call.changed_layer,
        moved_byte=call.changed_byte,
        plan=_encode(entry.plan).decode(),
        kind=verdict.kind if verdict else None,
        component=component_key(verdict.component) if verdict else None,
        lost_tokens=verdict.lost_tokens if verdict else 0,
        verdict=_encode(verdict).decode() if verdict else None,
        stable_written=sums.stable_written,
        key_id=posting.payer.key_id,
        user_id=posting.payer.user_id,
        team_id=posting.payer.team_id,
        source=entry.source,
    )
