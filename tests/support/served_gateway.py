"""The gateway on a real port in front of any upstream, and an upstream that sends exactly the given bytes."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from holdfast.catalog.lookup import shipped_models
from holdfast.cli.serve.gateway import GatewayMount, make_key_check
from holdfast.clock import Clock, new_ulid, system_clock
from holdfast.engine.cache.shared_plans import SharedConversation, SharedPlans
from holdfast.engine.leases import ProcessLeases
from holdfast.events.records import HasRecords
from holdfast.gateway.app import Gateway
from holdfast.gateway.auth import KeyAuthenticator, RequestRates
from holdfast.gateway.exchange import ExchangeWatcher
from holdfast.gateway.keep_alive import GatewayKeepAlive
from holdfast.gateway.key_limits import KeyBudgets, KeyLimits, KeyLimitTable
from holdfast.gateway.recording.recorder import GatewayRecorder
from holdfast.gateway.recording.restore import read_learned, restore_plans, sum_spending_today
from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter
from holdfast.gateway.rewrite.explicit_caches import ExplicitCaches
from holdfast.gateway.rewrite.volatile_text import DATE_RULE, VolatileExtractor, VolatileRule
from holdfast.gateway.routes import RouteTable, UpstreamSettings, make_simulated_upstreams
from holdfast.planning.explicit_cache import ExplicitCacheConfig
from holdfast.service.app import REQUESTS_MAX, make_app
from holdfast.service.context import AppContext
from holdfast.service.route_table import ROUTES
from holdfast.service.server import bind_socket, make_url, serve
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.memory import MemoryStore
from holdfast.testing.server_thread import LoopThread

TIMEOUT_SECONDS = 30.0


class ServedGateway:
    def __init__(
        self,
        url: str,
        service: AppContext,
        observer: GatewayRecorder,
        store: DatabaseEventLog,
        under_way: Callable[[], int],
    ) -> None:
        self._under_way = under_way
        self.url = url
        self.service = service
        self.observer = observer
        self.store = store
        self.send_due_pings: Callable[[], int] = lambda: 0
        self.tasks: Callable[[], int] = lambda: 0
        self.shared_plans = SharedPlans(service.records)

    def shared_conversations(self) -> list[SharedConversation]:
        """What another process would find of the conversations: after each one's last two calls, shortest first."""
        assert self.shared_plans.wait_until_written(TIMEOUT_SECONDS)
        rows = self.store._fetch("SELECT value FROM holdfast.shared_values WHERE key LIKE 'plan %'", ())
        found = [msgspec.json.decode(str(text), type=SharedConversation) for (text,) in rows]
        return sorted(found, key=lambda shared: shared.memory.calls)

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname
        assert parts.port
        return parts.hostname, parts.port

    def recorded_sessions(self) -> tuple[str, ...]:
        """The ids of all sessions, newest first, once all forwarded requests are recorded."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self._under_way():
            assert time.monotonic() < deadline
            # The gateway runs in a thread of this process, and needs the interpreter to get on.
            time.sleep(0.001)
        assert self.observer.queue.wait_until_empty(TIMEOUT_SECONDS)
        # Appends are written in order, so those of the recorder are on the log too, also for readers of another store.
        self.store.append(()).exception(TIMEOUT_SECONDS)
        return tuple(row.id for row in self.store.sessions())


@contextmanager
def serve_gateway(
    upstream_url: str,
    *,
    store: DatabaseEventLog | None = None,
    clock: Clock = system_clock,
    watcher: Callable[[GatewayRecorder], ExchangeWatcher] = lambda observer: observer,
    grants: Mapping[str, KeyLimits] | None = None,
    environ: Mapping[str, str] | None = None,
    require_keys: bool = False,
    improve: bool = False,
    rules: Sequence[VolatileRule] = (DATE_RULE,),
    keep_alive_usd: str | None = None,
    drain: bool = False,
    when_unavailable: Literal["deny", "allow"] = "deny",
    upstreams: Mapping[str, UpstreamSettings] | None = None,
    requests_max: int = REQUESTS_MAX,
    cache_ttl_seconds: int = 3600,
    port: int = 0,
) -> Iterator[ServedGateway]:
    log = store or MemoryStore()
    assert isinstance(log, HasRecords)
    service = AppContext(log, log.records, shipped_models(), clock=clock, require_keys=require_keys)
    limits = KeyLimitTable(grants or {}, environ or {}, when_unavailable=when_unavailable)
    budgets = KeyBudgets(limits, log.records, shipped_models(), clock=clock)
    budgets.seed(sum_spending_today(log, clock()))
    shared_plans = SharedPlans(log.records)
    rewriter = ConversationRewriter(
        shipped_models(),
        VolatileExtractor(rules),
        restore=lambda: restore_plans(log),
        read_learned=lambda: read_learned(log),
        shared=shared_plans,
    )
    observer = GatewayRecorder(
        log,
        models=shipped_models(),
        new_id=new_ulid,
        volatile=VolatileExtractor(rules),
        on_spent=budgets.settle,
    )
    rates = RequestRates(limits, log.records, clock=clock)
    authenticator = KeyAuthenticator(
        make_key_check(service),
        limits,
        rates=rates,
        clock=clock,
        salt=b"salt",
        improve=improve,
        failed_keys=service.failed_keys,
    )
    leases = ProcessLeases(log.records.shared, new_ulid(clock()))
    keep_alive = None
    if keep_alive_usd is not None:
        keep_alive = GatewayKeepAlive(
            rewriter,
            clock=clock,
            usd_a_day_max=Decimal(keep_alive_usd),
            on_ping=observer.on_ping,
            leases=leases,
            budgets=budgets,
        )
    routes = RouteTable(make_simulated_upstreams(upstream_url, upstreams or {}))
    gateway = Gateway(
        routes,
        authenticator=authenticator,
        watcher=watcher(observer),
        clock=clock,
        rewriter=rewriter,
        keep_alive=keep_alive,
        explicit_caches=ExplicitCaches(
            ExplicitCacheConfig(cache_ttl_seconds),
            read_settings=log.records.settings,
            leases=ProcessLeases(log.records.shared, new_ulid(clock())),
        ),
        budgets=budgets,
        drain=drain,
        leases=leases,
    )

    async def start_serving() -> tuple[asyncio.Event, "asyncio.Task[None]"]:
        stop = asyncio.Event()
        app = make_app(service, ROUTES, mounts=(GatewayMount(gateway, routes),), requests_max=requests_max)
        return stop, asyncio.ensure_future(serve(app, service, bound, stop=stop))

    async def stop_serving() -> None:
        stop.set()
        await running
        gateway.close()

    with LoopThread() as thread, bind_socket("127.0.0.1", port) as bound:
        stop, running = thread.run(start_serving())
        try:
            running_gateway = ServedGateway(
                make_url(bound, "127.0.0.1"), service, observer, log, lambda: gateway.active_requests
            )
            running_gateway.shared_plans = shared_plans
            running_gateway.tasks = lambda: thread.run(_tasks())
            if keep_alive is not None:
                running_gateway.send_due_pings = lambda: thread.run(keep_alive.send_due_pings())
            yield running_gateway
        finally:
            thread.run(stop_serving())
            observer.close()
            authenticator.close()
            budgets.close()
            rates.close()
            leases.close()


async def _tasks() -> int:
    return len(asyncio.all_tasks())


class RawUpstream:
    """Reads one complete request per connection, then sends `parts` and closes.

    A part can be an event, for which it waits.
    """

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.parts: Sequence[bytes | threading.Event] = ()
        self.reset = False
        self.left = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listening.close()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(TIMEOUT_SECONDS)
            head, body = read_message(connection)
            self.heads.append(head)
            self.bodies.append(body)
            for part in self.parts:
                if isinstance(part, threading.Event):
                    if not self._wait_for_event(connection, part):
                        return
                else:
                    connection.sendall(part)

    def _wait_for_event(self, connection: socket.socket, event: threading.Event) -> bool:
        """Whether the event was set before the other end disconnected."""
        connection.settimeout(0.02)
        for _ in range(500):
            if event.is_set():
                connection.settimeout(TIMEOUT_SECONDS)
                return True
            try:
                if not connection.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        self.left.set()
        return False


@contextmanager
def raw_upstream() -> Iterator[RawUpstream]:
    upstream = RawUpstream()
    try:
        yield upstream
    finally:
        upstream.close()


def read_message(connection: socket.socket) -> tuple[bytes, bytes]:
    """Head and body of one HTTP message with a length or in chunks; a body without either ends with the connection."""
    received = bytearray()
    while b"\r\n\r\n" not in received:
        more = connection.recv(65536)
        if not more:
            return bytes(received), b""
        received += more
    head, _, rest = bytes(received).partition(b"\r\n\r\n")
    headers = headers_in(head)
    body = bytearray(rest)
    if b"transfer-encoding" in headers:
        return head, _read_chunked(connection, body)
    length = int(headers[b"content-length"]) if b"content-length" in headers else None
    if length is None and not head.startswith(b"HTTP/"):
        length = 0
    while length is None or len(body) < length:
        more = connection.recv(65536)
        if not more:
            break
        body += more
    return head, bytes(body)


def headers_in(head: bytes) -> dict[bytes, bytes]:
    lines = head.split(b"\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}


def _read_chunked(connection: socket.socket, received: bytearray) -> bytes:
    body = bytearray()
    while True:
        while b"\r\n" not in received:
            if not _receive_more(connection, received):
                return bytes(body)
        line, _, _ = bytes(received).partition(b"\r\n")
        size = int(line, 16)
        while len(received) < len(line) + 2 + size + 2:
            if not _receive_more(connection, received):
                return bytes(body + received[len(line) + 2 :])
        body += received[len(line) + 2 : len(line) + 2 + size]
        del received[: len(line) + 2 + size + 2]
        if not size:
            return bytes(body)


def _receive_more(connection: socket.socket, received: bytearray) -> bool:
    more = connection.recv(65536)
    received += more
    return bool(more)
