"""Requests per minute: gateways on one store share the limit of a key, mostly without asking the store."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from tests.support.postgres_server import reused_database
from tests.support.served_gateway import raw_upstream, serve_gateway

from holdfast.clock import ManualClock
from holdfast.errors import StoreError
from holdfast.gateway.auth import RequestRates
from holdfast.gateway.exchange import GatewayRefusedError
from holdfast.gateway.key_limits import KeyLimits, KeyLimitTable
from holdfast.service.auth.keys import make_key
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SqliteStore

REPLY = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_two_gateways_on_one_store_let_the_limit_pass_together(kind: str, tmp_path: Path) -> None:
    clock, grants = ManualClock(), {"*": KeyLimits(requests_a_minute=10)}
    with ExitStack() as stack:
        address = stack.enter_context(reused_database()) if kind == "postgres" else str(tmp_path / "log.db")
        open_store = PostgresStore if kind == "postgres" else SqliteStore
        stores: list[DatabaseEventLog] = [stack.enter_context(open_store(address)) for _ in range(2)]
        upstream = stack.enter_context(raw_upstream())
        upstream.parts = (REPLY,)
        made = make_key("gateway", at=0.0, random_bytes=lambda size: b"r" * size)
        stores[0].records.add_key(made.row)
        headers = {"x-holdfast-key": made.key, "x-api-key": "sk-own"}
        served = [serve_gateway(upstream.url, store=store, grants=grants, clock=clock) for store in stores]
        urls = [stack.enter_context(gateway).url for gateway in served]

        def ask(number: int) -> httpx.Response:
            return httpx.get(f"{urls[number % 2]}/anthropic/v1/models", headers=headers, timeout=30)

        with ThreadPoolExecutor(8) as pool:
            responses = list(pool.map(ask, range(24)))
        assert sorted(response.status_code for response in responses) == [200] * 10 + [429] * 14
        refused = [response for response in responses if response.status_code == 429]
        assert {response.json()["error"]["type"] for response in refused} == {"rate_limit_error"}
        assert all(0 < int(response.headers["retry-after"]) <= 61 for response in refused)
        clock.advance(61)
        assert [ask(number).status_code for number in range(4)] == [200] * 4


class CountingStore:
    """Grants at most `limit` a minute, counts the statements, and fails while `is_failing`."""

    def __init__(self) -> None:
        self.taken: dict[tuple[str, int], int] = {}
        self.statements = 0
        self.is_failing = False

    def take_requests(self, key_id: str, minute: int, count: int, *, limit: int) -> bool:
        self.statements += 1
        if self.is_failing:
            raise StoreError("the store cannot be used now")
        taken = self.taken.get((key_id, minute), 0)
        if taken + count > limit:
            return False
        self.taken[key_id, minute] = taken + count
        return True

    def delete_request_counts(self, before_minute: int) -> None:
        self.taken = {row: count for row, count in self.taken.items() if row[1] >= before_minute}


async def count_admitted(gateways: Sequence[RequestRates], requests: int) -> int:
    admitted = 0
    for number in range(requests):
        try:
            await gateways[number % len(gateways)].count_request("key")
        except GatewayRefusedError:
            continue
        admitted += 1
    return admitted


async def test_most_requests_need_no_statement_and_refused_ones_none() -> None:
    store, clock = CountingStore(), ManualClock()
    limits = KeyLimitTable({"*": KeyLimits(requests_a_minute=1_010)}, {})
    gateways = [RequestRates(limits, store, clock=clock) for _ in range(2)]
    try:
        assert await count_admitted(gateways, 900) == 900
        assert store.statements <= 20
        admitted = 900 + await count_admitted(gateways, 5_000)
        assert 1_010 - 50 <= admitted <= 1_010
        assert store.statements <= 50
        clock.advance(60)
        assert await count_admitted(gateways, 900) == 900
        assert len(store.taken) <= 2
    finally:
        for gateway in gateways:
            gateway.close()


async def test_while_the_store_is_away_a_gateway_keeps_to_the_limit_by_itself() -> None:
    store, clock = CountingStore(), ManualClock()
    store.is_failing = True
    rates = RequestRates(KeyLimitTable({"*": KeyLimits(requests_a_minute=10)}, {}), store, clock=clock)
    try:
        assert await count_admitted([rates], 30) == 10
        assert store.statements == 1
        store.is_failing = False
        clock.advance(60)
        assert await count_admitted([rates], 30) == 10
    finally:
        rates.close()
