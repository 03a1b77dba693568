"""Leases, chain heads and conversation keys: what processes that share a store agree on, the same for all engines."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from threading import Barrier, Thread

import pytest
from msgspec.structs import replace
from tests.support.event_examples import event, message_event
from tests.support.postgres_server import reused_database

from holdfast.errors import StoreError
from holdfast.events.conversation_keys import block_key, iterate_conversation_keys, make_caller_scope
from holdfast.events.log import Event
from holdfast.events.payloads.calls import ConversationTrace, GatewayForwarded, RequestPrepared
from holdfast.events.payloads.union import AnyPayload
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sql.records import SESSIONS_PER_KEY_MAX
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.types.prompt import Plan

OpenStore = Callable[[], DatabaseEventLog]


@contextmanager
def on_postgres(_: Path) -> Iterator[OpenStore]:
    with reused_database() as url:
        yield lambda: PostgresStore(url)


STORES: dict[str, Callable[[Path], AbstractContextManager[OpenStore]]] = {
    "sqlite": lambda folder: nullcontext(lambda: SqliteStore(folder / "log.db")),
    "postgres": on_postgres,
}


@pytest.fixture(params=STORES)
def replicas(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[DatabaseEventLog, DatabaseEventLog]]:
    """Two processes that share a store."""
    with STORES[request.param](tmp_path) as opens, opens() as first, opens() as second:
        yield first, second


def chained(payload: AnyPayload, id: str, parent: str | None, session: str = "s") -> Event:
    return replace(event(id, payload, session=session), parent_event_id=parent)


def forwarded(*blocks: str, shared: int = 0, key_id: str | None = None) -> GatewayForwarded:
    return GatewayForwarded("", 1.0, key_id, trace=ConversationTrace("anthropic", "head", shared, blocks))


def prepared() -> RequestPrepared:
    return RequestPrepared(Plan(), "1", 0, (), "", 0)


def parents(store: DatabaseEventLog) -> dict[str, str | None]:
    return {found.id: found.parent_event_id for found in store.read("s")}


def test_a_lease_has_one_owner(replicas: tuple[DatabaseEventLog, DatabaseEventLog]) -> None:
    first, second = (store.records.shared for store in replicas)
    assert first.take_lease("ping s", "a", seconds=60)
    assert not second.take_lease("ping s", "b", seconds=60)
    assert first.take_lease("ping s", "a", seconds=60)
    assert [(lease.owner, lease.seconds_left > 50) for lease in second.list_leases("ping ")] == [("a", True)]


def test_a_lease_that_has_ended_or_was_released_can_be_taken(
    replicas: tuple[DatabaseEventLog, DatabaseEventLog],
) -> None:
    first, second = (store.records.shared for store in replicas)
    assert first.take_lease("job", "a", seconds=-1)
    assert second.take_lease("job", "b", seconds=60)
    assert not first.release_lease("job", "a")
    assert second.release_lease("job", "b")
    assert first.take_lease("job", "a", seconds=60)


def test_of_many_that_take_a_lease_at_once_one_gets_it(replicas: tuple[DatabaseEventLog, DatabaseEventLog]) -> None:
    at_once, taken = Barrier(6), list[bool]()

    def take(number: int) -> None:
        at_once.wait()
        taken.append(replicas[number % 2].records.shared.take_lease("job", f"owner {number}", seconds=60))

    threads = [Thread(target=take, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [False] * 5 + [True]


def test_leases_that_ended_long_ago_are_forgotten(replicas: tuple[DatabaseEventLog, DatabaseEventLog]) -> None:
    shared = replicas[0].records.shared
    shared.take_lease("old", "a", seconds=-100)
    shared.take_lease("new", "a", seconds=-1)
    shared.forget_leases(ended_seconds_ago=50)
    assert [lease.name for lease in shared.list_leases("")] == ["new"]


def test_an_append_at_the_head_continues_what_another_process_has_appended(
    replicas: tuple[DatabaseEventLog, DatabaseEventLog],
) -> None:
    first, second = replicas
    first.append([chained(forwarded("u1"), "1", None), chained(prepared(), "2", "1")]).result(10)
    second.append([chained(forwarded("u2"), "3", "2")], at_head=True).result(10)
    first.append([chained(forwarded("u3"), "4", "2"), chained(forwarded("u4"), "5", "4")], at_head=True).result(10)
    assert parents(second) == {"1": None, "2": "1", "3": "2", "4": "3", "5": "4"}


def test_of_two_requests_after_the_same_one_the_second_is_refused(
    replicas: tuple[DatabaseEventLog, DatabaseEventLog],
) -> None:
    first, second = replicas
    first.append([chained(prepared(), "1", None)]).result(10)
    second.append([chained(prepared(), "2", "1")], at_head=True).result(10)
    with pytest.raises(StoreError, match="was continued elsewhere"):
        first.append([chained(prepared(), "3", "1")], at_head=True).result(10)
    first.append([chained(forwarded("u1"), "4", "1")], at_head=True).result(10)
    assert parents(first) == {"1": None, "2": "1", "4": "2"}


def test_concurrent_appends_at_the_head_make_one_chain(replicas: tuple[DatabaseEventLog, DatabaseEventLog]) -> None:
    replicas[0].append([chained(forwarded("u"), "0", None)]).result(10)

    def append(number: int) -> None:
        last = "0"
        for step in range(20):
            id = f"{number}-{step}"
            replicas[number].append([chained(forwarded("u"), id, last)], at_head=True).result(10)
            last = id

    threads = [Thread(target=append, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    chain = parents(replicas[0])
    assert list(chain.values()) == [None, *list(chain)[:-1]]
    assert len(chain) == 41


def test_the_head_is_found_after_appends_of_a_version_that_knows_no_heads(postgres: str) -> None:
    with PostgresStore(postgres) as store:
        store.append([chained(forwarded("u1"), "1", None)]).result(10)
        # What the version before writes: the count of events, and no head.
        store._changes.run_statement("UPDATE holdfast.sessions SET event_count = 2, entered_events = 2", ())
        store._changes.run_statement(
            "INSERT INTO holdfast.events (id, at, session_id, parent_event_id, type, actor, sensitivity, version,"
            " payload)"
            " SELECT '2', at, session_id, '1', type, actor, sensitivity, version, payload FROM holdfast.events",
            (),
        )
        store.append([chained(forwarded("u2"), "3", "1")], at_head=True).result(10)
        assert parents(store) == {"1": None, "2": "1", "3": "2"}


def test_a_conversation_is_found_by_its_newest_blocks_with_its_head(
    replicas: tuple[DatabaseEventLog, DatabaseEventLog],
) -> None:
    first, second = replicas
    first.append([chained(forwarded("u1"), "1", None)]).result(10)
    first.append([chained(forwarded("a1", "u2", shared=1), "2", "1")]).result(10)
    first.append([chained(forwarded("u1", key_id="other"), "x", None, "other")]).result(10)
    find, scope = second.records.shared.find_conversations, make_caller_scope("anthropic", None)
    for position, digest in enumerate(("u1", "a1", "u2")):
        (found,) = find([block_key(scope, position, digest), "unknown"])
        assert (found.session_id, found.event_count, found.last_event_id) == ("s", 2, "2")
    assert find([block_key(scope, 0, "u2")]) == ()
    first.delete("s")
    assert find([block_key(scope, 0, "u1")]) == ()


def test_of_many_conversations_with_one_key_the_newest_are_found(
    replicas: tuple[DatabaseEventLog, DatabaseEventLog],
) -> None:
    store = replicas[0]
    payload = forwarded("u1")
    events = [event(f"e{n}", payload, session=f"s{n:02}", at=float(n)) for n in range(SESSIONS_PER_KEY_MAX + 5)]
    store.append(events).result(10)
    found = store.records.shared.find_conversations(list(iterate_conversation_keys(payload)))
    assert sorted(head.session_id for head in found) == [f"s{n:02}" for n in range(5, SESSIONS_PER_KEY_MAX + 5)]


def test_the_last_event_is_continued_after_pruning() -> None:
    with MemoryStore() as store:
        store.append([message_event(0), replace(message_event(1), parent_event_id="s-000000")]).result(10)
        store.prune("s", ("session.started",), before=1e12)
        store.append([message_event(2)]).result(10)
        assert [found.id for found in store.read("s")] == ["s-000002"]
