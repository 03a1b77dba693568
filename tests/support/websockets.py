"""WebSocket clients and upstreams for tests, with the `websockets` package, which the gateway does not use."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from websockets.sync.client import ClientConnection, connect
from websockets.sync.server import Server, ServerConnection, serve

TIMEOUT_SECONDS = 10.0
TERMINAL_TYPES = ("response.completed", "response.failed", "response.incomplete", "error")
Wire = dict[str, Any]


def open_socket(
    url: str, path: str = "/openai/v1/responses", headers: Mapping[str, str] | None = None, **options: Any
) -> ClientConnection:
    sent = {"authorization": "Bearer any", **(headers or {})}
    socket: ClientConnection = connect(
        url.replace("http", "ws", 1) + path,
        additional_headers=sent,
        open_timeout=TIMEOUT_SECONDS,
        close_timeout=TIMEOUT_SECONDS,
        **options,
    )
    return socket


def create(model: str = "gpt-6.1-sol", **fields: Any) -> Wire:
    return {"type": "response.create", "model": model, "store": False, **fields}


def send_create(socket: ClientConnection, **fields: Any) -> Wire:
    """Sends a message and returns the last event of its response."""
    socket.send(json.dumps(create(**fields)))
    return read_events(socket)[-1]


def read_events(socket: ClientConnection) -> list[Wire]:
    events: list[Wire] = []
    while not events or events[-1]["type"] not in TERMINAL_TYPES:
        events.append(json.loads(socket.recv(timeout=TIMEOUT_SECONDS)))
    return events


def response_events(id: str, *texts: str, input_tokens: int = 10, output_tokens: int = 2) -> list[str]:
    """The events of a response with one message for each text."""
    items = [
        {
            "type": "message",
            "id": f"{id}_{index}",
            "role": "assistant",
            "content": [{"type": "output_text", "text": text}],
        }
        for index, text in enumerate(texts)
    ]
    usage = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    done = [
        {"type": "response.output_item.done", "output_index": index, "item": item} for index, item in enumerate(items)
    ]
    added = [{**event, "type": "response.output_item.added"} for event in done]
    response = {"id": id, "model": "gpt-6.1-sol", "status": "completed", "output": items, "usage": usage}
    events = [
        {
            "type": "response.created",
            "response": {"id": id, "model": "gpt-6.1-sol", "status": "in_progress", "output": []},
        },
        *(event for pair in zip(added, done, strict=True) for event in pair),
        {"type": "response.completed", "response": response},
    ]
    return [json.dumps(event) for event in events]


class SocketUpstream:
    """An upstream that hands each connection to a function, in a thread of its own."""

    def __init__(
        self, handle: Callable[[ServerConnection], None], refusal: tuple[int, str] | None, options: Wire
    ) -> None:
        self.requests: list[Any] = []
        self._handle = handle
        self._refusal = refusal
        self._server: Server = serve(self._serve, "127.0.0.1", 0, process_request=self._process, **options)
        self.url = f"http://127.0.0.1:{self._server.socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def _process(self, connection: ServerConnection, request: Any) -> Any:
        self.requests.append(request)
        if self._refusal is None:
            return None
        status, body = self._refusal
        response = connection.respond(HTTPStatus(status), body)
        response.headers["x-upstream"] = "yes"
        return response

    def _serve(self, connection: ServerConnection) -> None:
        self._handle(connection)

    def close(self) -> None:
        self._server.shutdown()


@contextmanager
def socket_upstream(
    handle: Callable[[ServerConnection], None] = lambda connection: None,
    *,
    refusal: tuple[int, str] | None = None,
    **options: Any,
) -> Iterator[SocketUpstream]:
    upstream = SocketUpstream(handle, refusal, options)
    try:
        yield upstream
    finally:
        upstream.close()
