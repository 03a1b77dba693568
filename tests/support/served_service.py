"""The service on a real port in its own thread or called in process, and a client that can send it anything."""

import asyncio
import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from holdfast.catalog.lookup import Models, shipped_models
from holdfast.clock import Clock, system_clock
from holdfast.events.records import HasRecords
from holdfast.instructions.context import InstructionContext
from holdfast.service.app import REQUESTS_MAX, make_app
from holdfast.service.auth.keys import make_key
from holdfast.service.context import AppContext
from holdfast.service.http.routes import Route
from holdfast.service.route_table import ROUTES
from holdfast.service.server import bind_socket, make_url, serve
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.testing.server_thread import LoopThread

TIMEOUT_SECONDS = 10.0


class ServiceResponse:
    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of an error response, whose shape is checked."""
        assert self.headers["content-type"] == "application/json"
        (error,) = self.json.values()
        assert error.keys() <= {"code", "message", "details"}
        assert "\n" not in error["message"]
        return str(error["code"])


class Client:
    def __init__(self, url: str, service: AppContext) -> None:
        self.url = url
        self.service = service
        self._host = urlsplit(url).netloc

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ServiceResponse:
        """A body of bytes or of chunks is sent unchanged without a content type; any other is sent as JSON."""
        sent: dict[str, str] = {} if key is None else {"authorization": f"Bearer {key}"}
        if body is not None and not isinstance(body, bytes | Iterator):
            body, sent["content-type"] = json.dumps(body).encode(), "application/json"
        connection = http.client.HTTPConnection(self._host, timeout=TIMEOUT_SECONDS)
        try:
            connection.request(method, path, body=body, headers={**sent, **(headers or {})})
            response = connection.getresponse()
            received = {name.lower(): value for name, value in response.getheaders()}
            return ServiceResponse(response.status, received, response.read())
        finally:
            connection.close()

    def get(self, path: str, **options: Any) -> Any:
        response = self.request("GET", path, **options)
        assert response.status == 200, response.body
        return response.json

    def key(self, scope: str, *, expires_at: float | None = None, entity: str | None = None) -> str:
        """Create and store a key of this scope."""
        numbers = iter(range(1, 10_000))
        made = make_key(
            scope,
            at=0.0,
            random_bytes=lambda size: (hash((scope, expires_at, entity, next(numbers))) % 2**60).to_bytes(size, "big"),
            expires_at=expires_at,
            entity=entity,
        )
        self.service.records.add_key(made.row)
        return made.key


class InProcessClient(Client):
    """Calls the application itself, for tables of requests that need no socket."""

    def __init__(self, service: AppContext, routes: Sequence[Route], thread: LoopThread) -> None:
        super().__init__("http://localhost", service)
        self._thread = thread
        self._http = httpx.AsyncClient(
            transport=httpx.ASGITransport(make_app(service, routes)), base_url=self.url, timeout=TIMEOUT_SECONDS
        )

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ServiceResponse:
        self._http.cookies.clear()
        sent = {**({} if key is None else {"authorization": f"Bearer {key}"}), **(headers or {})}
        content: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
        request = self._http.build_request(method, path, headers=sent, **({} if body is None else content))
        response = self._thread.run(self._http.send(request))
        return ServiceResponse(response.status_code, response.headers, response.content)


@contextmanager
def serve_store_in_process(
    store: DatabaseEventLog, *, clock: Clock = system_clock, library: InstructionContext | None = None
) -> Iterator[Client]:
    """Like `serve_store`, but in process."""
    assert isinstance(store, HasRecords)
    service = AppContext(store, store.records, shipped_models(), clock=clock, instructions=library)
    with LoopThread() as thread:
        yield InProcessClient(service, ROUTES, thread)


@contextmanager
def serve_store(
    store: DatabaseEventLog,
    *,
    routes: Sequence[Route] = ROUTES,
    models: Models | None = None,
    clock: Clock = system_clock,
    require_keys: bool = False,
    simulated: bool = False,
    allowed_hosts: Sequence[str] = (),
    requests_max: int = REQUESTS_MAX,
    library: InstructionContext | None = None,
) -> Iterator[Client]:
    assert isinstance(store, HasRecords)

    async def start_serving() -> tuple[AppContext, asyncio.Event, "asyncio.Task[None]"]:
        service = AppContext(
            store,
            store.records,
            models or shipped_models(),
            clock=clock,
            require_keys=require_keys,
            simulated=simulated,
            instructions=library,
        )
        stop = asyncio.Event()
        app = make_app(service, routes, allowed_hosts=allowed_hosts, requests_max=requests_max)
        return service, stop, asyncio.ensure_future(serve(app, service, bound, stop=stop))

    async def stop_serving() -> None:
        stop.set()
        await running

    with LoopThread() as thread, bind_socket("127.0.0.1", 0) as bound:
        service, stop, running = thread.run(start_serving())
        try:
            yield Client(make_url(bound, "127.0.0.1"), service)
        finally:
            thread.run(stop_serving())
