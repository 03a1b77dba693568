"""How many calls 1, 2 and 4 replicas on one PostgreSQL record, and what each costs the database.

Clients, simulated provider, replicas and database share the machine; every call of a conversation reaches another
replica. HOLDFAST_TEST_POSTGRES names a server, otherwise one is started.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg

sys.path.append(str(Path(__file__).parents[1]))

from tests.support.postgres_server import reused_database
from tests.support.replicas import Replica, ask, grant_keys, make_gateway_key

from holdfast.simulator.provider import SimulatedProvider
from holdfast.testing.server_thread import serve_provider

REPLICAS = (1, 2, 4)
CONVERSATIONS, TURNS = 8, 10
COUNTS = """
SELECT xact_commit + xact_rollback, tup_inserted,
    (SELECT count(*) FROM holdfast.events),
    (SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class AS c JOIN pg_namespace AS n
        ON n.oid = c.relnamespace WHERE n.nspname = 'holdfast' AND c.relkind = 'r')
FROM pg_stat_database WHERE datname = current_database()"""


def run() -> Iterator[tuple[str, str]]:
    for count in REPLICAS:
        with reused_database() as db, tempfile.TemporaryDirectory() as folder:
            yield from measure(db, Path(folder), count)


def measure(db: str, folder: Path, count: int) -> Iterator[tuple[str, str]]:
    grant_keys(db, folder)
    with serve_provider(SimulatedProvider(script='{"content": "Yes."}')) as upstream:
        servers = [Replica(number, upstream, db, folder) for number in range(count)]
        urls = [server.url for server in servers]

        def converse(number: int) -> list[float]:
            messages: list[dict[str, str]] = []
            taken = []
            for turn in range(TURNS):
                messages.append({"role": "user", "content": f"Conversation {number}, question {turn}"})
                started = time.monotonic()
                url = urls[(number + turn) % count]
                _, text = ask(url, number, messages, key=make_gateway_key(1).key)
                taken.append((time.monotonic() - started) * 1000)
                messages.append({"role": "assistant", "content": text})
            return taken

        before = read_counts(db)
        started = time.monotonic()
        with ThreadPoolExecutor(CONVERSATIONS) as pool:
            taken = sorted(ms for each in pool.map(converse, range(CONVERSATIONS)) for ms in each)
        seconds = time.monotonic() - started
        for server in servers:
            server.gateway.stop()
        recorded = time.monotonic() - started
        commits, rows, events, size = (b - a for a, b in zip(before, read_counts(db), strict=True))
    calls = CONVERSATIONS * TURNS
    name = f"{count} replica{'s' if count > 1 else ''}"
    yield f"{name}: calls a second", f"{calls / seconds:.0f}"
    yield f"{name}: latency p50, p95", f"{statistics.median(taken):.0f}, {taken[int(0.95 * len(taken))]:.0f} ms"
    yield f"{name}: events a second until all are recorded", f"{events / recorded:.0f}"
    yield (
        f"{name}: events, rows, transactions, bytes per call",
        ", ".join(f"{value / calls:,.1f}" for value in (events, rows, commits, size)),
    )


def read_counts(db: str) -> tuple[int, ...]:
    with psycopg.connect(db, autocommit=True) as connection:
        # Statistics of other connections arrive about a second later.
        time.sleep(1.2)
        connection.execute("SELECT pg_stat_clear_snapshot()")
        (row,) = connection.execute(COUNTS).fetchall()
        return tuple(map(int, row))
