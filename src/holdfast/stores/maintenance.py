"""Maintenance of a database: which events outlive the retention period, and whether the tables equal the log."""

from collections.abc import Callable, Iterable, Iterator
from operator import add

from msgspec.structs import astuple

from holdfast.catalog.lookup import Models
from holdfast.events.payloads import Payload
from holdfast.events.payloads.cache import CachePinged, ExplicitCacheChanged
from holdfast.events.payloads.calls import (
    GatewayForwarded,
    LlmCallCompleted,
    LlmCallFailed,
    ModelSwitched,
    ToolCalled,
    ToolConfirmationResolved,
)
from holdfast.events.payloads.session import DelegationCompleted, DelegationStarted, SessionEnded, SessionStarted
from holdfast.ledger.postings import ROLLUPS, RollUp, RollUpTotals, iter_postings
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.sql.events import as_int
from holdfast.stores.sql.rollups import TABLE_NAMES, TableRow, encode_posting

# Event types that outlive the retention period. None contains conversation content: prompts, replies, tool inputs and
# outputs are deleted, and with them the composition of requests, so verdicts cannot be recomputed.
RETAINED_PAYLOADS: tuple[type[Payload], ...] = (
    SessionStarted,
    SessionEnded,
    ModelSwitched,
    LlmCallCompleted,
    LlmCallFailed,
    ExplicitCacheChanged,
    CachePinged,
    ToolCalled,
    ToolConfirmationResolved,
    DelegationStarted,
    DelegationCompleted,
    GatewayForwarded,
)

RETAINED_EVENT_TYPES = tuple(str(kind.__struct_config__.tag) for kind in RETAINED_PAYLOADS)


def prune_content(log: DatabaseEventLog, *, before: float, may_continue: Callable[[], bool] = lambda: True) -> int:
    """Removes the content of sessions without an event since `before`; returns how many events.

    Whole partitions first, then session by session.
    """
    removed = log.clear_partitions(RETAINED_EVENT_TYPES, before=before) if may_continue() else 0
    for session_id, _ in log.list_prunable(RETAINED_EVENT_TYPES, before=before):
        if not may_continue():
            break
        removed += log.prune(session_id, RETAINED_EVENT_TYPES, before=before)
    log.drop_empty_partitions(before=before)
    return removed


def find_differences(log: DatabaseEventLog, models: Models) -> Iterator[str]:
    """Each table that differs from the events; tables with rows per session are checked session by session."""
    log.roll_up_pending()
    totals = RollUpTotals()
    for session in log.sessions():
        rows: dict[type[TableRow], list[tuple[object, ...]]] = {kind: [] for kind in TABLE_NAMES}
        for posting in iter_postings(log.read(session.id), models):
            totals.post((posting,))
            row = encode_posting(posting)
            rows[type(row)].append(astuple(row))
        for kind, table in TABLE_NAMES.items():
            stored = log.table_rows(table, kind.__struct_fields__, session.id)
            if sorted(rows[kind], key=repr) != sorted(stored, key=repr):
                yield f"{table} of session {session.id!a}"
    for rollup in ROLLUPS:
        if totals.rows(rollup) != _merge_writers(rollup, log.table_rows(rollup.name, rollup.keys + rollup.sums)):
            yield rollup.name


def _merge_writers(rollup: RollUp, rows: Iterable[tuple[object, ...]]) -> dict[tuple[object, ...], tuple[int, ...]]:
    """The sums by key, from the rows of all writers: `simulated` is negative in them."""
    merged: dict[tuple[object, ...], tuple[int, ...]] = {}
    for row in rows:
        *key, simulated = row[: len(rollup.keys)]
        group = (*key, max(as_int(simulated), 0))
        sums = map(as_int, row[len(rollup.keys) :])
        merged[group] = tuple(map(add, merged.get(group, (0,) * len(rollup.sums)), sums))
    return {group: sums for group, sums in merged.items() if any(sums)}
