"""What two replicas on one PostgreSQL must agree on: what is changed through one holds at once on the other.

Conversations and chains are in `tests/gateway/test_replicas.py`, budgets in `test_budgets.py`, request rates in
`test_request_rates.py`, planner memory in `test_planned_rewrite.py`, leases in `tests/engine/test_leases.py`.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.support.event_examples import message_event
from tests.support.postgres_server import reused_database
from tests.support.served_service import Client, serve_store_in_process

from holdfast.instructions.models import Probe
from holdfast.stores.postgres.store import PostgresStore


@pytest.fixture
def stores() -> Iterator[tuple[PostgresStore, PostgresStore]]:
    with reused_database() as url, PostgresStore(url) as first, PostgresStore(url) as second:
        yield first, second


@pytest.fixture
def replicas(stores: tuple[PostgresStore, PostgresStore]) -> Iterator[tuple[Client, Client]]:
    with ExitStack() as stack:
        first, second = (stack.enter_context(serve_store_in_process(store)) for store in stores)
        yield first, second


def test_a_key_is_valid_and_revoked_on_all_replicas(replicas: tuple[Client, Client]) -> None:
    first, second = replicas
    admin = first.key("admin")
    created = first.request("POST", "/api/keys", {"scope": "read"}, key=admin).json
    assert second.request("GET", "/analytics/cost", key=created["key"]).status == 200
    assert second.request("GET", "/analytics/cost").status == 401
    assert first.request("DELETE", f"/api/keys/{created['id']}", key=admin).status in (200, 204)
    assert second.request("GET", "/analytics/cost", key=created["key"]).status == 401


def test_cache_settings_and_controls_of_a_session_hold_on_all_replicas(
    replicas: tuple[Client, Client], stores: tuple[PostgresStore, PostgresStore]
) -> None:
    first, second = replicas
    assert first.request("PUT", "/api/cache/settings", {"ttl": "1h"}).status == 200
    assert second.get("/api/cache/settings")["ttl"] == "1h"
    stores[0].append([message_event(0)]).result(10)
    assert stores[1].records.controls("s").session.caching_enabled
    stores[0].records.set_caching_enabled("s", enabled=False)
    assert not stores[1].records.controls("s").session.caching_enabled


def test_instruction_records_are_those_of_all_replicas(stores: tuple[PostgresStore, PostgresStore]) -> None:
    first, second = (store.instructions for store in stores)
    probe = Probe("real-1", "a", "claim a ticket", ("checkout",))
    assert first.save_sampled_probes((probe,), lease="calibrate:a", until=100, at=50)
    assert not second.save_sampled_probes((probe,), lease="calibrate:a", until=100, at=50)
    assert second.probes("a") == (probe,)
    assert second.consume_wake_token("j", expires_at=10, at=1)
    assert not first.consume_wake_token("j", expires_at=10, at=2)
