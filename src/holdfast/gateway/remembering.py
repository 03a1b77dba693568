"""What the log tells of conversations that an earlier process forwarded, so that they go on as the same sessions."""

from collections.abc import Iterable, Iterator
from datetime import date

import msgspec

from holdfast.canonical.pieces import Link
from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import utc_date
from holdfast.engine.recorder import Resumed
from holdfast.events.envelope import Event
from holdfast.events.log import Log
from holdfast.events.payloads import (
    CachePinged,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    RequestPrepared,
    SessionStarted,
)
from holdfast.events.payloads_gateway import GatewayForwarded, Trace
from holdfast.gateway.clues import Clues
from holdfast.gateway.conversations import Said
from holdfast.gateway.grants import Grants

SESSIONS_MAX = 200
OPENING_EVENTS = 2


class Remembered(msgspec.Struct, frozen=True):
    """A conversation as its last request left it."""

    resumed: Resumed
    said: Said
    reply_id: str


class Spending(msgspec.Struct, frozen=True):
    """What one call or ping cost, whose key it came with, and what the key's holder is called.

    `failed` where a call came to nothing.
    """

    key_id: str | None
    label: str | None
    at: float
    dollars: float
    calls: int = 1
    failed: int = 0


def wider_scope(mount: str, key_id: str | None) -> str:
    """The scope of conversations of which no account is known."""
    return f"{mount} by {key_id or 'anyone'}"


def remembered(log: Log, *, sessions_max: int = SESSIONS_MAX) -> Iterator[Remembered]:
    """The newest forwarded conversations of a log, by when they began; of others no more than the opening is read."""
    for row in sorted(log.sessions(limit=sessions_max), key=lambda row: (row.started_at, row.id)):
        events = log.read(row.id)
        opening = [event for _, event in zip(range(OPENING_EVENTS), events, strict=False)]
        if any(isinstance(event.payload, GatewayForwarded) for event in opening):
            found = _folded(row.id, (*opening, *events))
            if found is not None:
                yield found


def _folded(session_id: str, events: Iterable[Event]) -> Remembered | None:
    trace: Trace | None = None
    blocks: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    key_id, reply_id, last_event_id = None, "", ""
    for event in events:
        last_event_id = event.id
        match event.payload:
            case GatewayForwarded() as it:
                key_id, trace = it.key_id, it.trace
                if trace is not None:
                    blocks = (*blocks[: trace.kept], *trace.blocks)
            case RequestPrepared() as it:
                links = (*links[: it.shared_blocks], *it.links)
            case LlmCallCompleted() as it:
                reply_id = it.response_id or reply_id
            case _:
                pass
    if trace is None:
        return None
    said = Said(wider_scope(trace.mount, key_id), trace.head, blocks, Clues(trace.session, trace.because))
    return Remembered(Resumed(session_id, links, last_event_id), said, reply_id)


def spendings(log: Log, *, since: date | None = None) -> Iterator[Spending]:
    """What forwarded calls cost, session by session; from the beginning of a day on where one is named."""
    for row in log.sessions():
        if since is None or utc_date(row.last_event_at) >= since:
            yield from _spent(log.read(row.id), since)


def recall_spending(grants: Grants, log: Log, now: float) -> None:
    """Budgets know what was spent today before this process began."""
    if grants.has_budgets:
        for one in spendings(log, since=utc_date(now)):
            if one.key_id is not None:
                grants.spent(one.key_id, one.at, one.dollars)


def _spent(events: Iterable[Event], since: date | None) -> Iterator[Spending]:
    label: str | None = None
    forwarded: GatewayForwarded | None = None
    keys: dict[str, tuple[float, str | None]] = {}
    for event in events:
        match event.payload:
            case SessionStarted() as it:
                label = it.name
            case GatewayForwarded() as it:
                forwarded = it
            case LlmCallStarted() as it:
                if forwarded is None:
                    return
                keys[it.request_id] = event.at, forwarded.key_id
            case LlmCallCompleted() | LlmCallFailed() as it:
                at, key_id = keys.pop(it.request_id, (event.at, None))
                failed = isinstance(it, LlmCallFailed) and it.usage == Usage()
                if since is None or utc_date(at) >= since:
                    yield Spending(key_id, label, at, float(it.cost_usd), int(not failed), int(failed))
            case CachePinged() as it:
                if forwarded is not None and (since is None or utc_date(event.at) >= since):
                    yield Spending(forwarded.key_id, label, event.at, float(it.cost_usd), 0)
            case _:
                pass
