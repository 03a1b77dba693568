"""Faults under load: a real gateway with real clients, killed or cut off from its store at random moments.

A response names itself (`id`), and so does the call on the log that it came from: what clients received and what was
recorded can be compared call by call.
"""

import json
import os
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import date
from functools import cache
from http.client import HTTPException
from pathlib import Path
from threading import Event, Lock, Thread
from urllib.request import Request, urlopen

import msgspec
import psycopg
from psycopg import sql
from tests.support.cut_connection import CuttableProxy

from holdfast.catalog.lookup import utc_date
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallFailed, LlmCallStarted
from holdfast.gateway.recording.restore import iterate_spending
from holdfast.service.auth.keys import NewKey, make_key
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.open import open_store
from holdfast.testing.server_thread import serve_provider

CLIENTS = 6
DRAIN_SECONDS_MAX = 90.0
IS_DEEP = bool(int(os.environ.get("HOLDFAST_FAULT_ROUNDS", "0")))
OUTAGE_SECONDS = 3.0 if IS_DEEP else 1.5
PAUSE_SECONDS = 0.0 if IS_DEEP else 0.03
"""Between two calls of a client. Without any, what a fault leaves behind takes long to record."""
KILLS_A_ROUND = JUMPS_A_ROUND = 4
_SYSTEM = "You read before you write, and you say what you did. " * 120
BUDGET_USD = 0.05
READER = 99
"""The key that the tests read with."""

_STOPPED = "the gateway was stopped before the response ended"


class FaultOutcome(msgspec.Struct, frozen=True):
    """Calls by what became of them. `answered` is what clients received whole."""

    fault: str
    injected: int
    """How often the fault was injected."""

    answered: int
    recorded: int
    interrupted: int
    lost: int
    double_counted: int
    unended: int
    overshoot: int = 0
    """Calls by which a key has exceeded its budget."""


def format_outcomes(outcomes: Iterable[FaultOutcome]) -> str:
    """The table of `docs/reliability.md`."""
    names = ["fault", "times", "answered", "recorded", "interrupted", "lost", "double-counted", "overshoot (calls)"]
    rows = [
        (
            row.fault,
            row.injected,
            row.answered,
            row.recorded,
            row.interrupted,
            row.lost,
            row.double_counted,
            row.overshoot,
        )
        for row in outcomes
    ]
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


class RunningGateway:
    """`holdfast serve` in a process of its own."""

    def __init__(self, upstream: str, db: str, spool: Path, *, port: int = 0, options: Sequence[str] = ()) -> None:
        words = [sys.executable, "-m", "holdfast", "serve", "--port", str(port), "--db", db, "--spool", str(spool)]
        grants = spool.with_name("grants.toml")
        upstreams = ["--upstream", f"anthropic={upstream}", "--upstream", f"gemini={upstream}"]
        self.upstream, self.db, self.spool = upstream, db, spool
        self.answered_by_others: Counter[str] = Counter()
        """What clients of other gateways have received while a fault was injected here."""
        self.process = subprocess.Popen(
            [*words, *upstreams, "--grants", str(grants), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{spool.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url, "the gateway has not started"

    def read_json(self, path: str) -> dict[str, object]:
        return dict(json.loads(self._read(path)))

    def has_recorded(self) -> bool:
        return self.has_metric("holdfast_llm_calls_total{")

    def has_metric(self, start: str) -> bool:
        return start.encode() in self._read("/metrics")

    def _read(self, path: str) -> bytes:
        request = Request(f"{self.url}{path}", headers={"authorization": f"Bearer {_make_key(READER).key}"})
        with urlopen(request, timeout=30) as response:
            return bytes(response.read())

    def find_recorder(self) -> int:
        return self.find_children(1)[0]

    def find_children(self, count: int) -> list[int]:
        """Waits for so many processes: the recorder, or the workers."""
        while True:
            # A supervisor is a thread, and a child belongs to the thread that started it.
            pids = []
            for task in Path(f"/proc/{self.process.pid}/task").iterdir():
                # A thread may end meanwhile.
                with suppress(FileNotFoundError):
                    pids += [int(pid) for pid in (task / "children").read_text().split()]
            if len(pids) >= count:
                return sorted(pids)
            time.sleep(0.01)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def stop(self) -> None:
        if self.process.returncode is None:
            self.process.terminate()
            self.process.communicate()


class Clients:
    """Threads that ask one question after another and note the ids of the responses they received whole."""

    def __init__(self, url: str) -> None:
        self.answered: Counter[str] = Counter()
        self._lock, self._stop = Lock(), Event()
        self._threads = [Thread(target=self._run, args=(url, number)) for number in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def wait_for_answers(self, count: int) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        while len(self.answered) < count:
            assert time.monotonic() < deadline, "the clients get no answers"
            time.sleep(0.01)

    def _run(self, url: str, number: int) -> None:
        turn = 0
        while not self._stop.is_set():
            turn += 1
            is_streamed = turn % 2 == 0
            body = {
                "model": "claude-sonnet-5-5",
                "max_tokens": 9,
                "stream": is_streamed,
                "system": _SYSTEM,
                "messages": [{"role": "user", "content": f"Client {number} at {url}, question {turn}"}],
            }
            # The keys of two clients have a small budget; then they only try.
            key = _make_key(1 if number < CLIENTS - 2 else number)
            request = Request(f"{url}/anthropic/v1/messages", json.dumps(body).encode(), {"x-api-key": key.key})
            try:
                with urlopen(request, timeout=30) as response:
                    received = response.read().decode()
            except (OSError, HTTPException):
                time.sleep(0.02)
                continue
            with self._lock:
                self.answered[_find_id(received, is_streamed=is_streamed)] += 1
            time.sleep(PAUSE_SECONDS)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def _find_id(received: str, *, is_streamed: bool) -> str:
    if not is_streamed:
        return str(json.loads(received)["id"])
    first = next(line for line in received.splitlines() if line.startswith("data: "))
    return str(json.loads(first.removeprefix("data: "))["message"]["id"])


InjectFault = Callable[[RunningGateway, random.Random], int]
"""Injects a fault once or several times, and returns how often."""


def kill_gateway(gateway: RunningGateway, chance: random.Random) -> int:
    time.sleep(chance.uniform(0.2, 1.5))
    gateway.kill()
    return 1


def kill_gateway_and_recorder(gateway: RunningGateway, chance: random.Random) -> int:
    time.sleep(chance.uniform(0.2, 1.5))
    recorder = gateway.find_recorder()
    gateway.kill()
    with suppress(ProcessLookupError):
        os.kill(recorder, 9)
    return 1


def kill_recorder(gateway: RunningGateway, chance: random.Random) -> int:
    """Also while it starts, and while it reads what the one before it has left."""
    killed: set[int] = set()
    while len(killed) < KILLS_A_ROUND:
        time.sleep(chance.uniform(0.05, 1.0))
        with suppress(ProcessLookupError):
            recorder = gateway.find_recorder()
            os.kill(recorder, 9)
            killed.add(recorder)
    time.sleep(chance.uniform(0.2, 1.0))
    return len(killed)


def fill_spool_disk(gateway: RunningGateway, chance: random.Random) -> int:
    """The gateway cannot make a file longer for some time; what it cannot spool waits in its memory."""
    time.sleep(chance.uniform(0.0, 0.5))
    _, hard = resource.prlimit(gateway.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(gateway.process.pid, resource.RLIMIT_FSIZE, (0, hard))
    time.sleep(chance.uniform(0.5, OUTAGE_SECONDS))
    resource.prlimit(gateway.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
    time.sleep(chance.uniform(0.5, 1.5))
    return 1


def fill_disk(gateway: RunningGateway, chance: random.Random) -> int:
    """The recorder cannot make a file longer for some time, as on a full disk."""
    while not gateway.has_recorded():
        time.sleep(0.05)
    recorder = gateway.find_recorder()
    time.sleep(chance.uniform(0.0, 0.5))
    _, hard = resource.prlimit(recorder, resource.RLIMIT_FSIZE)
    resource.prlimit(recorder, resource.RLIMIT_FSIZE, (4096, hard))
    _wait_for_status(gateway, "degraded")
    with suppress(ProcessLookupError):
        resource.prlimit(recorder, resource.RLIMIT_FSIZE, (hard, hard))
    _wait_for_status(gateway, "ready")
    return 1


def _wait_for_status(gateway: RunningGateway, status: str) -> None:
    """A failure of the store is reported, and a recorder that has survived it goes on by itself."""
    deadline = time.monotonic() + DRAIN_SECONDS_MAX
    while gateway.read_json("/readyz")["status"] != status:
        assert time.monotonic() < deadline, f"the gateway does not become {status}"
        time.sleep(0.05)


def make_outage(proxy: CuttableProxy) -> InjectFault:
    """The database server is gone for some time."""

    def cut_off(gateway: RunningGateway, chance: random.Random) -> int:
        time.sleep(chance.uniform(0.5, 1.0))
        proxy.dead = True
        proxy.hang_up()
        time.sleep(OUTAGE_SECONDS)
        proxy.dead = False
        _wait_for_status(gateway, "ready")
        return 1

    return cut_off


def make_cut_commits(proxy: CuttableProxy) -> InjectFault:
    """Connections end at their COMMIT, before or after it took effect."""

    def cut(gateway: RunningGateway, chance: random.Random) -> int:
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        for _ in range(KILLS_A_ROUND):
            time.sleep(chance.uniform(0.0, 0.4))
            proxy.cut = chance.choice(("before", "after"))
            # A cut that is left over would meet the next gateway as it opens the store, which then does not start.
            while proxy.cut is not None:
                assert time.monotonic() < deadline, "nothing is committed"
                time.sleep(0.01)
        return KILLS_A_ROUND

    return cut


def make_read_only(url: str) -> InjectFault:
    """The database takes no changes for some time, as a server that has become a replica."""

    def set_read_only(*, on: bool) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            name = sql.Identifier(connection.info.dbname)
            connection.execute("SET default_transaction_read_only = off")
            mode = sql.SQL("on" if on else "off")
            connection.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = {}").format(name, mode))
            # A setting of a database holds for new connections.
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    def refuse_changes(gateway: RunningGateway, chance: random.Random) -> int:
        time.sleep(chance.uniform(0.2, 1.0))
        set_read_only(on=True)
        time.sleep(OUTAGE_SECONDS)
        set_read_only(on=False)
        time.sleep(chance.uniform(0.2, 1.0))
        return 1

    return refuse_changes


def make_slow(proxy: CuttableProxy) -> InjectFault:
    """Every packet to the database takes a tenth of a second."""

    def delay(gateway: RunningGateway, chance: random.Random) -> int:
        proxy.delay_seconds = 0.1
        time.sleep(chance.uniform(1.0, OUTAGE_SECONDS))
        proxy.delay_seconds = 0.0
        return 1

    return delay


def make_crash(url: str) -> InjectFault:
    """A process of the server is killed, so the server ends all others, recovers from its log, and accepts again."""

    def crash(gateway: RunningGateway, chance: random.Random) -> int:
        time.sleep(chance.uniform(0.2, 1.0))
        query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        with psycopg.connect(url) as connection:
            pids = [pid for (pid,) in connection.execute(query)]
        with suppress(ProcessLookupError):
            os.kill(chance.choice(pids), 9)
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        while True:
            try:
                psycopg.connect(url).close()
                break
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, "the server does not recover"
                time.sleep(0.05)
        time.sleep(chance.uniform(0.5, 1.5))
        return 1

    return crash


_CLOCK = """
import pathlib, time
real_time, offset = time.time, pathlib.Path(__file__).with_name("clock-offset")
time.time = lambda: real_time() + float(offset.read_text())
"""


def install_clock(folder: Path) -> None:
    """Processes that find this folder in PYTHONPATH have a clock that `jump_clock` sets."""
    (folder / "clock-offset").write_text("0")
    (folder / "sitecustomize.py").write_text(_CLOCK)


def jump_clock(gateway: RunningGateway, chance: random.Random) -> int:
    """The clock is set forth and back by up to two hours, once with a recorder that has to start after it."""
    offset = gateway.spool.with_name("clock-offset")
    for _ in range(JUMPS_A_ROUND):
        time.sleep(chance.uniform(0.2, 0.8))
        changed = offset.with_suffix(".new")
        changed.write_text(str(chance.uniform(-7200.0, 7200.0)))
        changed.replace(offset)
    os.kill(gateway.find_recorder(), 9)
    time.sleep(chance.uniform(0.2, 1.0))
    return JUMPS_A_ROUND


def kill_second_gateway(gateway: RunningGateway, chance: random.Random) -> int:
    """Two gateways share a store and its budgets; one of them is killed with its recorder."""
    second = RunningGateway(gateway.upstream, gateway.db, gateway.spool)
    clients = Clients(second.url)
    try:
        clients.wait_for_answers(1)
        kill_gateway_and_recorder(second, chance)
    finally:
        clients.stop()
        second.stop()
    gateway.answered_by_others += clients.answered
    return 1


def kill_worker(gateway: RunningGateway, chance: random.Random) -> int:
    """One of two workers of a gateway is killed; the other goes on, and a third takes its place."""
    workers = gateway.find_children(2)
    time.sleep(chance.uniform(0.2, 1.0))
    os.kill(chance.choice(workers), 9)
    deadline = time.monotonic() + DRAIN_SECONDS_MAX
    while gateway.find_children(2) == workers or gateway.read_json("/readyz")["status"] != "ready":
        assert time.monotonic() < deadline, "a worker that was killed is not started again"
        time.sleep(0.05)
    assert all(gateway.has_metric(f'{{worker="{number}"}}') for number in range(2))
    return 1


@cache
def _make_key(number: int) -> NewKey:
    scope = "admin" if number == READER else "gateway"
    return make_key(scope, at=0.0, random_bytes=lambda size: bytes([number]) * size)


def _grant_keys(db: str, folder: Path) -> None:
    """One key without a budget, and two with one."""
    rows = [f'[keys.{_make_key(1).row.id}]\nanthropic = "sk-any"']
    with closing(open_store(db)) as store:
        store.records.add_key(_make_key(1).row)
        store.records.add_key(_make_key(READER).row)
        for number in range(CLIENTS - 2, CLIENTS):
            row = _make_key(number).row
            store.records.add_key(row)
            rows.append(f'[keys.{row.id}]\nanthropic = "sk-any"\nbudget_usd_a_day = {BUDGET_USD}')
    grants = folder / "grants.toml"
    grants.write_text("\n".join(rows))
    grants.chmod(0o600)


@contextmanager
def _upstream() -> Iterator[str]:
    with serve_provider(SimulatedProvider(script='{"content": "Yes."}')) as url:
        yield url


def run_fault(
    name: str,
    fault: InjectFault,
    db: str,
    folder: Path,
    *,
    rounds: int = 1,
    seed: int = 0,
    direct_db: str = "",
    options: Sequence[str] = (),
) -> FaultOutcome:
    """Injects a fault under load, `rounds` times, and compares what was answered with what is on the log at the end.

    `direct_db` is the address at which the store is read, if `db` leads through a proxy.
    """
    chance, answered, spool, injected = random.Random(seed), Counter[str](), folder / "spool", 0
    _grant_keys(direct_db or db, folder)
    with _upstream() as upstream:
        for _ in range(rounds):
            gateway = RunningGateway(upstream, db, spool, options=options)
            clients = Clients(gateway.url)
            try:
                clients.wait_for_answers(CLIENTS)
                injected += fault(gateway, chance)
            finally:
                clients.stop()
                gateway.stop()
            answered += clients.answered + gateway.answered_by_others
        last = RunningGateway(upstream, db, spool)
        try:
            _wait_until_drained(spool)
        finally:
            last.stop()
    return _compare(name, injected, answered, direct_db or db)


def _wait_until_drained(spool: Path) -> None:
    """Until only the spool of the running gateway is left; on a busy machine it takes a while, but it goes on."""
    deadline, seen = time.monotonic() + DRAIN_SECONDS_MAX, ""
    while len(list(spool.iterdir())) > 1:
        with suppress(FileNotFoundError):
            files = sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in spool.rglob("*"))
            if str(files) != seen:
                deadline, seen = time.monotonic() + DRAIN_SECONDS_MAX, str(files)
        assert time.monotonic() < deadline, "the spools that were left behind are not recorded"
        time.sleep(0.05)


def _compare(name: str, injected: int, answered: Counter[str], db: str) -> FaultOutcome:
    recorded: Counter[str] = Counter()
    begun: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    interrupted = 0
    with closing(open_store(db)) as store:
        for row in store.sessions():
            for event in store.read(row.id):
                match event.payload:
                    case LlmCallStarted() as payload:
                        begun[payload.request_id] += 1
                    case LlmCallCompleted() as payload:
                        recorded[payload.response_id] += 1
                        ended[payload.request_id] += 1
                    case LlmCallFailed() as payload:
                        interrupted += payload.error_message_redacted == _STOPPED
                        ended[payload.request_id] += 1
                    case _:
                        pass
        spending = [call for call in iterate_spending(store) if call.key_id != _make_key(1).row.id]
    costs: dict[tuple[str | None, date], list[float]] = {}
    for call in spending:
        costs.setdefault((call.key_id, utc_date(call.at)), []).append(call.dollars)
    overshoot = max(map(_count_overshoot, costs.values()), default=0)
    return FaultOutcome(
        fault=name,
        injected=injected,
        answered=len(answered),
        recorded=len(recorded),
        interrupted=interrupted,
        lost=len(answered.keys() - recorded.keys()),
        double_counted=sum(count - 1 for counts in (recorded, begun, ended) for count in counts.values()),
        unended=len(begun.keys() - ended.keys()),
        overshoot=overshoot,
    )


def _count_overshoot(costs: Sequence[float]) -> int:
    """By how many calls a budget was exceeded: so many of the largest ones have to be left out for it to hold."""
    left = sorted(costs)
    while left and sum(left) > BUDGET_USD:
        left.pop()
    return len(costs) - len(left)
