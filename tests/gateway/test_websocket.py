"""WebSockets through the gateway: what passes, what is refused, and what is recorded of it."""

import json
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

import openai
import pytest
from tests.support.served_gateway import ServedGateway, headers_in, raw_upstream, serve_gateway
from tests.support.websockets import (
    TIMEOUT_SECONDS,
    create,
    open_socket,
    read_events,
    response_events,
    send_create,
    socket_upstream,
)
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Close
from websockets.sync.server import ServerConnection
from websockets.utils import accept_key

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import ManualClock
from holdfast.events.payloads.cache import CachePinged
from holdfast.events.payloads.calls import GatewayForwarded, LlmCallCompleted, LlmCallFailed, RequestPrepared
from holdfast.gateway import websocket
from holdfast.gateway.key_limits import KeyLimits
from holdfast.gateway.websocket_calls import (
    PromptPart,
    ResponsePrompts,
    decode_create_message,
    splice_rewritten_body,
)
from holdfast.ledger.accounting import iter_entries
from holdfast.service.auth.keys import make_key
from holdfast.simulator.provider import SimulatedProvider
from holdfast.testing.server_thread import serve_provider
from holdfast.types.usage import Usage

PING, PONG = 9, 10
UPGRADE = (
    b"GET /openai/v1/responses HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
LONG = "The quick brown fox jumps over the lazy dog. " * 300
SYSTEM = "You keep the list of boats."
HELLO = {"role": "user", "content": LONG}


@pytest.fixture
def simulator() -> Iterator[tuple[SimulatedProvider, str]]:
    provider = SimulatedProvider()
    with serve_provider(provider) as url:
        yield provider, url


def payloads_of(gateway: ServedGateway, *kinds: type) -> list[list[Any]]:
    """The payloads of these types in each session, oldest session first."""
    sessions = reversed(gateway.recorded_sessions())
    return [[event.payload for event in gateway.store.read(id) if isinstance(event.payload, kinds)] for id in sessions]


def verdicts_of(gateway: ServedGateway) -> list[list[str]]:
    sessions = reversed(gateway.recorded_sessions())
    ledgers = (iter_entries(gateway.store.read(id), shipped_models()) for id in sessions)
    return [[entry.verdict.kind if entry.verdict else "none" for entry in ledger] for ledger in ledgers]


def add_key(gateway: ServedGateway) -> str:
    new_key = make_key("gateway", at=0.0, random_bytes=lambda size: bytes([1]) * size, name="team")
    gateway.service.records.add_key(new_key.row)
    return new_key.key


def wait_until_recorded(gateway: ServedGateway) -> None:
    """Waits for the first call; a client sees its last event before it is recorded."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not any(
        isinstance(event.payload, LlmCallCompleted)
        for row in gateway.store.sessions()
        for event in gateway.store.read(row.id)
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert gateway.observer.queue.wait_until_empty(TIMEOUT_SECONDS)


# What passes.


def echo(connection: ServerConnection) -> None:
    for message in connection:
        connection.send(message)


def read_all(connection: ServerConnection) -> None:
    for _ in connection:
        pass


def test_messages_pass_byte_for_byte_in_both_directions() -> None:
    received: list[str | bytes] = []

    def answer(connection: ServerConnection) -> None:
        received.append(connection.recv())
        for event in response_events("resp_1", "Aye — ✓"):
            connection.send(event)
        received.append(connection.recv())
        connection.send(b"\x00\xff")

    sent = '{ "type":"response.create",\n "model": "gpt-6.1-sol", "input":"\\u00e9 é", "unknown": 1.50 }'
    with (
        socket_upstream(answer) as upstream,
        serve_gateway(upstream.url) as gateway,
        open_socket(gateway.url) as client,
    ):
        client.send(sent)
        assert [client.recv(timeout=TIMEOUT_SECONDS) for _ in range(4)] == response_events("resp_1", "Aye — ✓")
        client.send(b"\xff\x00")
        assert client.recv(timeout=TIMEOUT_SECONDS) == b"\x00\xff"
    assert received == [sent, b"\xff\x00"]


def test_handshake_keeps_query_headers_and_subprotocol_and_replaces_our_key() -> None:
    with (
        socket_upstream(echo, subprotocols=["realtime"]) as upstream,
        serve_gateway(upstream.url, environ={"OPENAI_API_KEY": "sk-of-the-team"}) as gateway,
    ):
        headers = {"authorization": f"Bearer {add_key(gateway)}", "openai-beta": "x=1", "x-holdfast-other": "1"}
        with open_socket(
            gateway.url, "/openai/v1/realtime?model=gpt-realtime", headers, subprotocols=["other", "realtime"]
        ) as client:
            assert client.subprotocol == "realtime"
    request = upstream.requests[0]
    assert request.path == "/v1/realtime?model=gpt-realtime"
    assert request.headers["authorization"] == "Bearer sk-of-the-team"
    assert request.headers["openai-beta"] == "x=1"
    assert request.headers["host"] == upstream.url.removeprefix("http://")
    assert "x-holdfast-other" not in request.headers
    assert "sec-websocket-extensions" not in request.headers


@pytest.mark.parametrize("status", [400, 401, 404, 426, 429, 503])
def test_refusal_of_the_upstream_is_an_http_response_with_its_status_headers_and_body(status: int) -> None:
    with (
        socket_upstream(refusal=(status, f"refused with {status}")) as upstream,
        serve_gateway(upstream.url) as gateway,
    ):
        with pytest.raises(InvalidStatus) as refused:
            open_socket(gateway.url)
        response = refused.value.response
    assert (response.status_code, response.body) == (status, f"refused with {status}".encode())
    assert response.headers["x-upstream"] == "yes"
    assert "x-holdfast-gateway" not in response.headers


def test_chunked_refusal_arrives_whole() -> None:
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        head = b"HTTP/1.1 404 Not Found\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        upstream.parts = (head, b"3\r\nno \r\n", b"4\r\nsuch\r\n0\r\n\r\n")
        with pytest.raises(InvalidStatus) as refused:
            open_socket(gateway.url)
    assert (refused.value.response.status_code, refused.value.response.body) == (404, b"no such")


def test_unreachable_upstream_is_a_502_in_the_providers_format() -> None:
    with serve_gateway("http://127.0.0.1:9") as gateway, pytest.raises(InvalidStatus) as refused:
        open_socket(gateway.url)
    response = refused.value.response
    assert (response.status_code, response.headers["x-holdfast-gateway"]) == (502, "refused")
    assert "message" in json.loads(response.body or b"")["error"]


def test_upstream_that_proves_no_websocket_is_refused() -> None:
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        head = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        upstream.parts = (head + b"sec-websocket-accept: wrong\r\n\r\n",)
        with pytest.raises(InvalidStatus) as refused:
            open_socket(gateway.url)
    assert refused.value.response.status_code == 502


@pytest.mark.parametrize(
    "path", ["/openai/v1/chat/completions", "/anthropic/v1/messages/batches/msgbatch_0123456789/results"]
)
def test_what_is_answered_to_a_handshake_without_opening_a_websocket_is_not_passed_on(path: str) -> None:
    """A handshake is a GET, which lists stored completions and reads results of batches, unlike the calls it is for."""
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        upstream.parts = (b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nstored",)
        with pytest.raises(InvalidStatus) as refused:
            open_socket(gateway.url, path)
    response = refused.value.response
    assert (response.status_code, response.headers["x-holdfast-gateway"]) == (502, "refused")
    assert b"opened no WebSocket" in (response.body or b"")
    assert b"stored" not in (response.body or b"")


@pytest.mark.parametrize("framing", [b"content-length: 5", b"transfer-encoding: chunked"])
def test_handshake_that_announces_a_body_is_forwarded_without_it(framing: bytes) -> None:
    """An upstream would wait for the body, which the gateway never sends."""
    with socket_upstream(echo) as upstream, serve_gateway(upstream.url) as gateway:
        connection = socket.create_connection(gateway.address, timeout=TIMEOUT_SECONDS)
        with connection:
            connection.sendall(UPGRADE.replace(b"\r\n\r\n", b"\r\n" + framing + b"\r\n\r\n"))
            assert read_head(connection).startswith(b"HTTP/1.1 101 ")
            connection.sendall(frame(1, b"{}"))
            assert read_frame(connection) == (1, b"{}")


def test_pings_and_pongs_pass_to_the_other_end_and_are_not_answered_in_between() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        serve_gateway(f"http://127.0.0.1:{listening.getsockname()[1]}") as gateway,
        socket.create_connection(gateway.address, timeout=TIMEOUT_SECONDS) as client,
    ):
        client.sendall(UPGRADE)
        upstream, _ = listening.accept()
        upstream.settimeout(TIMEOUT_SECONDS)
        with upstream:
            key = headers_in(read_head(upstream))[b"sec-websocket-key"].decode()
            upstream.sendall(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n")
            upstream.sendall(f"sec-websocket-accept: {accept_key(key)}\r\n\r\n".encode())
            assert read_head(client).startswith(b"HTTP/1.1 101 ")
            upstream.sendall(frame(PING, b"one", masked=False))
            assert read_frame(client) == (PING, b"one")
            client.sendall(frame(PING, b"two"))
            # The first frame that arrives at each end is the other end's, not an answer of the gateway.
            assert read_frame(upstream) == (PING, b"two")
            client.sendall(frame(PONG, b"one"))
            assert read_frame(upstream) == (PONG, b"one")
            upstream.sendall(frame(PONG, b"two", masked=False))
            assert read_frame(client) == (PONG, b"two")


@pytest.mark.parametrize(
    ("code", "reason"), [(1000, "done"), (1001, ""), (1008, "policy ✓"), (1013, "later"), (4001, "own")]
)
def test_close_of_the_upstream_reaches_the_client_with_code_and_reason(code: int, reason: str) -> None:
    with (
        socket_upstream(lambda connection: connection.close(code, reason)) as upstream,
        serve_gateway(upstream.url) as gateway,
        open_socket(gateway.url) as client,
        pytest.raises(ConnectionClosed) as closed,
    ):
        client.recv(timeout=TIMEOUT_SECONDS)
    assert closed.value.rcvd == Close(code, reason)


def test_close_of_the_client_reaches_the_upstream_with_code_and_reason() -> None:
    closes: list[Close | None] = []
    ended = threading.Event()

    def answer(connection: ServerConnection) -> None:
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv()
        closes.append(closed.value.rcvd)
        ended.set()

    with socket_upstream(answer) as upstream, serve_gateway(upstream.url) as gateway:
        with open_socket(gateway.url) as client:
            client.close(4002, "enough")
        assert ended.wait(TIMEOUT_SECONDS)
    assert closes == [Close(4002, "enough")]


def test_paths_of_our_own_have_no_websocket_and_foreign_origins_none_at_all() -> None:
    with socket_upstream(echo) as upstream, serve_gateway(upstream.url) as gateway:
        with pytest.raises(InvalidStatus) as no_route:
            open_socket(gateway.url, "/api/cache")
        with pytest.raises(InvalidStatus) as foreign:
            open_socket(gateway.url, origin="https://elsewhere.example")
    assert no_route.value.response.status_code == 404
    assert foreign.value.response.status_code == 403
    assert upstream.requests == []


# What is recorded.


def test_incremental_messages_are_recorded_with_their_whole_prompt(simulator: tuple[SimulatedProvider, str]) -> None:
    provider, url = simulator
    with serve_gateway(url) as gateway:
        with open_socket(gateway.url) as client:
            first = send_create(client, instructions=SYSTEM, input=[HELLO])["response"]
            more = [{"role": "user", "content": "And now? " * 50}]
            second = send_create(client, instructions=SYSTEM, previous_response_id=first["id"], input=more)["response"]
            third = send_create(client, instructions=SYSTEM, previous_response_id=second["id"], input="Well?")[
                "response"
            ]
        (completed,) = payloads_of(gateway, LlmCallCompleted)
        (forwarded,) = payloads_of(gateway, GatewayForwarded)
        assert verdicts_of(gateway) == [["first_use", "held", "held"]]
    assert [payload.response_id for payload in completed] == [first["id"], second["id"], third["id"]]
    assert [payload.usage for payload in completed] == [
        request.reply.usage for request in provider.requests if request.reply
    ]
    assert all(payload.cost_usd for payload in completed)
    assert completed[2].usage.cache_read > completed[1].usage.cache_read > 2_000
    assert [payload.reason for payload in forwarded][1:] == ["it names the previous response"] * 2
    assert not any(payload.unreadable for payload in forwarded if payload.unreadable)


def test_recording_is_the_same_as_of_the_same_calls_over_http(simulator: tuple[SimulatedProvider, str]) -> None:
    _, url = simulator
    more = {"role": "user", "content": "And now?"}
    with serve_gateway(url) as gateway:
        with open_socket(gateway.url) as client:
            first = send_create(client, instructions=SYSTEM, input=[HELLO])["response"]
            send_create(client, instructions=SYSTEM, previous_response_id=first["id"], input=[more])
        (over_socket,) = payloads_of(gateway, RequestPrepared, LlmCallCompleted)
    with serve_provider(SimulatedProvider()) as http_url, serve_gateway(http_url) as gateway:
        for items in ([HELLO], [HELLO, *first["output"], more]):
            fields = {**create(instructions=SYSTEM, input=items), "type": None}
            body = json.dumps({name: value for name, value in fields.items() if value is not None}).encode()
            headers = {"authorization": "Bearer any", "content-type": "application/json"}
            request = urllib.request.Request(f"{gateway.url}/openai/v1/responses", body, headers)
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
                response.read()
        (over_http,) = payloads_of(gateway, RequestPrepared, LlmCallCompleted)
    socket_calls, http_calls = over_socket[1::2], over_http[1::2]
    assert [payload.usage for payload in socket_calls] == [payload.usage for payload in http_calls]
    assert [payload.cost_usd for payload in socket_calls] == [payload.cost_usd for payload in http_calls]
    # The digest chains too: the prompt that was put together is the prompt that HTTP sends.
    prompts = [[(payload.shared_blocks, payload.digests) for payload in each[::2]] for each in (over_socket, over_http)]
    assert prompts[0] == prompts[1]


def test_two_conversations_on_one_connection_are_two_sessions(simulator: tuple[SimulatedProvider, str]) -> None:
    _, url = simulator
    with serve_gateway(url) as gateway:
        with open_socket(gateway.url) as client:
            for number in range(2):
                items: list[Any] = [{"role": "user", "content": f"Conversation {number}. {LONG}"}]
                for _ in range(2):
                    response = send_create(client, input=items)["response"]
                    items += [*response["output"], {"role": "user", "content": "Go on."}]
        assert verdicts_of(gateway) == [["first_use", "held"]] * 2


def test_lanes_of_one_connection_are_recorded_apart(simulator: tuple[SimulatedProvider, str]) -> None:
    _, url = simulator
    with serve_gateway(url) as gateway:
        with open_socket(gateway.url) as client:
            for lane in ("a", "b"):
                client.send(json.dumps(create(stream_id=lane, input=[{"role": "user", "content": f"{lane}. {LONG}"}])))
            ends = [event for _ in range(2) for event in read_events(client) if event["type"] == "response.completed"]
            for event in ends:
                fields = {"stream_id": event["stream_id"], "previous_response_id": event["response"]["id"]}
                assert send_create(client, input="Go on.", **fields)["stream_id"] == event["stream_id"]
        assert verdicts_of(gateway) == [["first_use", "held"]] * 2


def test_warm_up_is_recorded_as_prewarming_in_the_session_that_continues_it(
    simulator: tuple[SimulatedProvider, str],
) -> None:
    _, url = simulator
    with serve_gateway(url) as gateway:
        with open_socket(gateway.url) as client:
            warm = send_create(client, generate=False, input=[HELLO])["response"]
            send_create(client, previous_response_id=warm["id"], input=[])
        (recorded,) = payloads_of(gateway, CachePinged, LlmCallCompleted)
    assert [type(payload) for payload in recorded] == [CachePinged, LlmCallCompleted]
    assert (recorded[0].kind, recorded[0].usage) == ("prewarm", Usage())
    assert recorded[1].usage.cache_write > 2_000


def test_resumed_conversation_is_one_session_although_a_warm_up_comes_first(
    simulator: tuple[SimulatedProvider, str],
) -> None:
    """As Codex does: a new process warms up without input, then sends the whole history."""
    _, url = simulator
    items: list[Any] = [HELLO]
    with serve_gateway(url) as gateway:
        for _ in range(2):
            with open_socket(gateway.url) as client:
                warm = send_create(client, generate=False, input=[])["response"]
                response = send_create(client, previous_response_id=warm["id"], input=items)["response"]
                items += [*response["output"], {"role": "user", "content": "Go on."}]
        (recorded,) = payloads_of(gateway, CachePinged, LlmCallCompleted)
        assert verdicts_of(gateway) == [["first_use", "held"]]
    assert [type(payload) for payload in recorded] == [CachePinged, LlmCallCompleted] * 2


def test_warm_up_that_nothing_continues_is_recorded_when_the_gateway_stops() -> None:
    def answer(connection: ServerConnection) -> None:
        connection.recv()
        for event in response_events("resp_1"):
            connection.send(event)
        connection.recv()

    with socket_upstream(answer) as upstream, serve_gateway(upstream.url) as gateway:
        with open_socket(gateway.url) as client:
            send_create(client, generate=False, input=[HELLO])
        assert gateway.recorded_sessions() == ()
    ((pinged,),) = payloads_of(gateway, CachePinged)
    assert (pinged.kind, pinged.usage) == ("prewarm", Usage(input=10, output=2))


def test_refused_warm_up_is_recorded_as_a_failed_call(simulator: tuple[SimulatedProvider, str]) -> None:
    _, url = simulator
    with serve_gateway(url) as gateway:
        with open_socket(gateway.url) as client:
            assert send_create(client, generate=False, model="gpt-none", input=[])["status"] == 404
        ((failed,),) = payloads_of(gateway, LlmCallFailed)
    assert failed.error_class == "invalid_request"


def test_unknown_previous_response_is_recorded_as_such() -> None:
    def answer(connection: ServerConnection) -> None:
        connection.recv()
        for event in response_events("resp_2", "Aye"):
            connection.send(event)
        connection.recv()

    with socket_upstream(answer) as upstream, serve_gateway(upstream.url) as gateway:
        with open_socket(gateway.url) as client:
            assert send_create(client, previous_response_id="resp_1", input="Go on.")["type"] == "response.completed"
        ((forwarded, completed),) = payloads_of(gateway, GatewayForwarded, LlmCallCompleted)
    assert "previous_response_id" in forwarded.unreadable[0]
    assert completed.usage == Usage(input=10, output=2)


def test_response_that_the_provider_begins_by_itself_is_recorded() -> None:
    def answer(connection: ServerConnection) -> None:
        connection.recv()
        for id in ("resp_1", "resp_2"):
            for event in response_events(id, "Aye"):
                connection.send(event)
        connection.recv()

    with socket_upstream(answer) as upstream, serve_gateway(upstream.url) as gateway:
        with open_socket(gateway.url) as client:
            send_create(client, input="Hello.")
            read_events(client)
        completed = [payload for session in payloads_of(gateway, LlmCallCompleted) for payload in session]
    assert sorted(payload.response_id for payload in completed) == ["resp_1", "resp_2"]
    assert [payload.usage for payload in completed] == [Usage(input=10, output=2)] * 2


def test_error_event_ends_its_call_and_the_next_one_is_recorded(simulator: tuple[SimulatedProvider, str]) -> None:
    _, url = simulator
    with serve_gateway(url) as gateway:
        with open_socket(gateway.url) as client:
            missing = send_create(client, previous_response_id="resp_missing", input="Go on.")
            assert (missing["type"], missing["error"]["code"]) == ("error", "previous_response_not_found")
            assert send_create(client, model="gpt-none", input=[HELLO])["status"] == 404
            assert send_create(client, input=[HELLO])["type"] == "response.completed"
        ended = [p for session in payloads_of(gateway, LlmCallFailed, LlmCallCompleted) for p in session]
    assert [getattr(payload, "error_class", "completed") for payload in ended] == [
        "invalid_request",
        "invalid_request",
        "completed",
    ]


def test_upstream_that_dies_in_a_response_closes_the_client_and_is_recorded_as_interrupted() -> None:
    def die(connection: ServerConnection) -> None:
        connection.recv()
        for event in response_events("resp_1", "Aye")[:2]:
            connection.send(event)
        connection.socket.shutdown(socket.SHUT_RDWR)

    with socket_upstream(die) as upstream, serve_gateway(upstream.url) as gateway:
        with open_socket(gateway.url) as client:
            client.send(json.dumps(create(input="Hello.")))
            assert [json.loads(client.recv(timeout=TIMEOUT_SECONDS))["type"] for _ in range(2)]
            with pytest.raises(ConnectionClosed) as closed:
                client.recv(timeout=TIMEOUT_SECONDS)
        ((failed,),) = payloads_of(gateway, LlmCallFailed)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, failed.error_class) == (1011, "network")
    assert "upstream" in closed.value.rcvd.reason


def test_client_that_leaves_in_a_response_is_recorded_as_cancelled() -> None:
    left = threading.Event()

    def answer(connection: ServerConnection) -> None:
        connection.recv()
        connection.send(response_events("resp_1", "Aye")[0])
        with pytest.raises(ConnectionClosed):
            connection.recv()
        left.set()

    with socket_upstream(answer) as upstream, serve_gateway(upstream.url) as gateway:
        with open_socket(gateway.url) as client:
            client.send(json.dumps(create(input="Hello.")))
            client.recv(timeout=TIMEOUT_SECONDS)
            client.socket.shutdown(socket.SHUT_RDWR)
        assert left.wait(TIMEOUT_SECONDS)
        ((failed,),) = payloads_of(gateway, LlmCallFailed)
    assert failed.error_class == "cancelled"


def test_with_drain_the_usage_of_an_abandoned_response_is_learned() -> None:
    gone = threading.Event()

    def answer(connection: ServerConnection) -> None:
        connection.recv()
        first, *rest = response_events("resp_1", "Aye")
        connection.send(first)
        assert gone.wait(TIMEOUT_SECONDS)
        for event in rest:
            connection.send(event)

    with socket_upstream(answer) as upstream, serve_gateway(upstream.url, drain=True) as gateway:
        with open_socket(gateway.url) as client:
            client.send(json.dumps(create(input="Hello.")))
            client.recv(timeout=TIMEOUT_SECONDS)
        time.sleep(0.1)
        gone.set()
        ((completed,),) = payloads_of(gateway, LlmCallCompleted)
    assert completed.usage == Usage(input=10, output=2)


def test_realtime_passes_and_its_usage_is_recorded() -> None:
    usage = {"input_tokens": 30, "output_tokens": 5, "input_token_details": {"cached_tokens": 20, "audio_tokens": 10}}

    def answer(connection: ServerConnection) -> None:
        assert json.loads(connection.recv())["type"] == "input_audio_buffer.append"
        connection.send(json.dumps({"type": "response.done", "response": {"id": "resp_1", "usage": usage}}))
        connection.recv()

    with socket_upstream(answer) as upstream, serve_gateway(upstream.url) as gateway:
        with open_socket(gateway.url, "/openai/v1/realtime?model=gpt-realtime") as client:
            client.send(json.dumps({"type": "input_audio_buffer.append", "audio": "AAAA"}))
            assert json.loads(client.recv(timeout=TIMEOUT_SECONDS))["type"] == "response.done"
        ((completed,),) = payloads_of(gateway, LlmCallCompleted)
    assert (completed.model, completed.usage) == ("openai:gpt-realtime", Usage(input=10, cache_read=20, output=5))


def test_connection_without_usage_is_recorded_once() -> None:
    with socket_upstream(echo) as upstream, serve_gateway(upstream.url) as gateway:
        with open_socket(gateway.url, "/gemini/ws/live") as client:
            client.send('{"setup": {}}')
            assert client.recv(timeout=TIMEOUT_SECONDS) == '{"setup": {}}'
        ((completed,),) = payloads_of(gateway, LlmCallCompleted)
    assert completed.usage == Usage()


# Budgets and keys.


def test_call_beyond_the_budget_is_refused_with_an_error_event_and_the_connection_stays() -> None:
    clock = ManualClock()
    grants = {"*": KeyLimits(budget_usd_a_day=0.001)}
    provider = SimulatedProvider()
    with (
        serve_provider(provider) as url,
        serve_gateway(url, clock=clock, grants=grants) as gateway,
        open_socket(gateway.url, headers={"x-holdfast-key": add_key(gateway)}) as client,
    ):
        assert send_create(client, input=[HELLO])["type"] == "response.completed"
        wait_until_recorded(gateway)
        refused = send_create(client, input=[HELLO], stream_id="lane")
        assert (refused["status"], refused["stream_id"]) == (429, "lane")
        assert "budget" in refused["error"]["message"]
        assert refused["headers"]["x-holdfast-gateway"] == "refused"
        clock.advance(int(refused["headers"]["retry-after"]))
        assert send_create(client, input=[HELLO])["type"] == "response.completed"
    assert sum(request.reply is not None for request in provider.requests) == 2


def test_spent_budget_refuses_the_handshake_and_handshakes_do_not_count_as_requests() -> None:
    grants = {"*": KeyLimits(requests_a_minute=1, budget_usd_a_day=0.001)}
    with serve_provider(SimulatedProvider()) as url, serve_gateway(url, grants=grants) as gateway:
        headers = {"x-holdfast-key": add_key(gateway)}
        for _ in range(3):
            with open_socket(gateway.url, headers=headers):
                pass
        with open_socket(gateway.url, headers=headers) as client:
            assert send_create(client, input=[HELLO])["type"] == "response.completed"
            assert send_create(client, input=[HELLO])["status"] == 429
        gateway.recorded_sessions()
        with pytest.raises(InvalidStatus) as refused:
            open_socket(gateway.url, headers=headers)
    assert refused.value.response.status_code == 429


def test_realtime_connection_ends_once_its_budget_is_spent() -> None:
    done = json.dumps({"type": "response.done", "response": {"usage": {"input_tokens": 10**6, "output_tokens": 10**6}}})

    def answer(connection: ServerConnection) -> None:
        while True:
            connection.recv()
            connection.send(done)

    grants = {"*": KeyLimits(budget_usd_a_day=0.001)}
    with (
        socket_upstream(answer) as upstream,
        serve_gateway(upstream.url, grants=grants) as gateway,
        open_socket(gateway.url, "/openai/v1/realtime", {"x-holdfast-key": add_key(gateway)}) as client,
    ):
        client.send("{}")
        client.recv(timeout=TIMEOUT_SECONDS)
        wait_until_recorded(gateway)
        client.send("{}")
        assert client.recv(timeout=TIMEOUT_SECONDS) == done
        assert json.loads(client.recv(timeout=TIMEOUT_SECONDS))["status"] == 429
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(timeout=TIMEOUT_SECONDS)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


def test_realtime_calls_reserve_what_they_may_cost() -> None:
    usage = {"input_tokens": 100, "output_tokens": 100}
    answers = threading.Event()

    def answer(connection: ServerConnection) -> None:
        connection.recv()
        assert answers.wait(TIMEOUT_SECONDS)
        connection.send(json.dumps({"type": "response.done", "response": {"usage": usage}}))
        connection.recv()

    # The unknown model costs $10 per million tokens, so 1,000 tokens of output have room once, and not twice.
    grants = {"*": KeyLimits(budget_usd_a_day=0.015)}
    message = json.dumps({"type": "response.create", "response": {"max_output_tokens": 1_000}})
    with socket_upstream(answer) as upstream, serve_gateway(upstream.url, grants=grants) as gateway:
        headers = {"x-holdfast-key": add_key(gateway)}
        path = "/openai/v1/realtime?model=realtime-of-tomorrow"

        def wait_for_budget(*, is_reserved: bool) -> int:
            """What is spent once something is reserved, or nothing is any more."""
            deadline = time.monotonic() + TIMEOUT_SECONDS
            key_id, day = headers["x-holdfast-key"].split("_")[1], time.strftime("%Y-%m-%d", time.gmtime())
            while (bool((state := gateway.store.records.get_budget_day(key_id, day)).reserved)) != is_reserved:
                assert time.monotonic() < deadline
            return state.spent

        with open_socket(gateway.url, path, headers) as first, open_socket(gateway.url, path, headers) as second:
            first.send(message)
            assert wait_for_budget(is_reserved=True) == 0
            second.send(message)
            refused = json.loads(second.recv(timeout=TIMEOUT_SECONDS))
            assert (refused["status"], "has no room" in refused["error"]["message"]) == (429, True)
            answers.set()
            assert json.loads(first.recv(timeout=TIMEOUT_SECONDS))["type"] == "response.done"
            assert wait_for_budget(is_reserved=False) == 200 * 10 * 10**6


@pytest.mark.parametrize(
    ("query", "is_allowed"),
    [
        ("?model=gpt-realtime-mini", True),
        ("?deployment=gpt-realtime-mini", True),
        ("?model=gpt-realtime", False),
        ("", False),
        ("?model=gpt-realtime-mini&model=gpt-realtime", False),
    ],
)
def test_realtime_is_for_the_models_of_the_key(query: str, is_allowed: bool) -> None:
    """Also where no message asks for a response, because the provider answers speech by itself."""
    grants = {"*": KeyLimits(models=("gpt-realtime-mini", *(f"model-{number}" for number in range(40))))}
    with (
        socket_upstream(echo) as upstream,
        serve_gateway(upstream.url, grants=grants) as gateway,
        open_socket(gateway.url, f"/openai/v1/realtime{query}", {"x-holdfast-key": add_key(gateway)}) as client,
    ):
        if is_allowed:
            client.send("{}")
            assert client.recv(timeout=TIMEOUT_SECONDS) == "{}"
            return
        refused = json.loads(client.recv(timeout=TIMEOUT_SECONDS))
        assert (refused["status"], "its models are gpt-realtime-mini" in refused["error"]["message"]) == (403, True)
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(timeout=TIMEOUT_SECONDS)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


def test_an_escaped_name_asks_for_a_response_as_well() -> None:
    grants = {"*": KeyLimits(budget_usd_a_day=5.0)}
    with (
        socket_upstream(echo) as upstream,
        serve_gateway(upstream.url, grants=grants) as gateway,
        open_socket(
            gateway.url, "/openai/v1/realtime?model=any", {"x-holdfast-key": (key := add_key(gateway))}
        ) as client,
    ):
        client.send('{"type": "response\\u002ecreate", "response": {"max_output_tokens": 1000}}')
        client.recv(timeout=TIMEOUT_SECONDS)
        day = time.strftime("%Y-%m-%d", time.gmtime())
        assert gateway.store.records.get_budget_day(key.split("_")[1], day).reserved > 0


def test_without_our_key_the_handshake_is_refused() -> None:
    with socket_upstream(echo) as upstream, serve_gateway(upstream.url, require_keys=True) as gateway:
        with pytest.raises(InvalidStatus) as refused:
            open_socket(gateway.url)
        assert refused.value.response.status_code == 401
    assert upstream.requests == []


# --improve.


def conversation(url: str, turns: int = 3) -> list[Any]:
    """Incremental messages whose instructions have the date and no cache key; returns the usage of each."""
    usages = []
    with open_socket(url) as client:
        previous: dict[str, Any] = {}
        for turn in range(turns):
            text = LONG if turn == 0 else f"Turn {turn}. " + "More of it. " * 200
            instructions = f"{SYSTEM}\nCurrent time: 2026-11-17 10:0{turn}\n{LONG}"
            response = send_create(
                client, instructions=instructions, input=[{"role": "user", "content": text}], **previous
            )
            assert response["type"] == "response.completed", response
            previous = {"previous_response_id": response["response"]["id"]}
            usages.append(response["response"]["usage"]["input_tokens_details"]["cached_tokens"])
    return usages


def test_improve_moves_volatile_text_so_that_incremental_messages_hit_the_cache() -> None:
    with serve_provider(SimulatedProvider()) as url, serve_gateway(url) as gateway:
        plain = conversation(gateway.url)
        assert verdicts_of(gateway) == [["first_use", "prefix_changed", "prefix_changed"]]
    provider = SimulatedProvider()
    with serve_provider(provider) as url, serve_gateway(url, improve=True) as gateway:
        improved = conversation(gateway.url)
        assert verdicts_of(gateway) == [["first_use", "held", "held"]]
        (forwarded,) = payloads_of(gateway, GatewayForwarded)
    assert plain == [0, 0, 0]
    assert improved[0] == 0
    assert 4_000 < improved[1] < improved[2]
    assert all(payload.is_improved for payload in forwarded)
    sent = [json.loads(request.body) for request in provider.requests if request.method == "WEBSOCKET"]
    assert len({message["prompt_cache_key"] for message in sent}) == 1
    assert [message["type"] for message in sent] == ["response.create"] * 3
    assert all("Current time" not in message["instructions"] for message in sent)
    assert [len(message["input"]) for message in sent] == [2, 2, 2]


def test_the_planner_learns_the_usage_of_calls_on_a_websocket() -> None:
    with serve_provider(SimulatedProvider()) as url, serve_gateway(url, improve=True) as gateway:
        conversation(gateway.url)
        memories = [shared.memory for shared in gateway.shared_conversations()]
    assert [(memory.calls, memory.cached_tokens > 4_000) for memory in memories] == [(2, True), (3, True)]


def test_improve_leaves_other_messages_and_unknown_prompts_alone() -> None:
    received: list[str | bytes] = []

    def answer(connection: ServerConnection) -> None:
        for message in connection:
            received.append(message)
            connection.send('{"type":"error","status":400,"error":{}}')

    sent = [
        '{"type": "response.cancel", "response_id": "resp_1"}',
        '{"type": "response.create", "model": "gpt-6.1-sol", "previous_response_id": "resp_0", "input": "Go on."}',
        '{"type": "response.create", "model": 7}',
        "no JSON",
    ]
    with (
        socket_upstream(answer) as upstream,
        serve_gateway(upstream.url, improve=True) as gateway,
        open_socket(gateway.url) as client,
    ):
        for message in sent:
            client.send(message)
            client.recv(timeout=TIMEOUT_SECONDS)
    assert received == sent


# Hostile ends.


def upgrade(gateway: ServedGateway) -> socket.socket:
    connection = socket.create_connection(gateway.address, timeout=TIMEOUT_SECONDS)
    connection.sendall(UPGRADE)
    assert read_head(connection).startswith(b"HTTP/1.1 101 ")
    return connection


def read_head(connection: socket.socket) -> bytes:
    received = b""
    while not received.endswith(b"\r\n\r\n"):
        received += connection.recv(1)
    return received


def read_frame(connection: socket.socket) -> tuple[int, bytes]:
    """Opcode and payload of a short frame."""
    first, length = connection.recv(2, socket.MSG_WAITALL)
    mask = connection.recv(4, socket.MSG_WAITALL) if length & 0x80 else bytes(4)
    payload = connection.recv(length & 0x7F, socket.MSG_WAITALL)
    return first & 0x0F, bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))


def frame(opcode: int, payload: bytes, *, final: bool = True, masked: bool = True) -> bytes:
    head = bytes([opcode | (0x80 if final else 0)])
    mask_bit, size = (0x80 if masked else 0), len(payload)
    head += bytes([mask_bit | size]) if size < 126 else bytes([mask_bit | 126]) + struct.pack("!H", size)
    # A mask of zeros leaves the payload as it is.
    return head + (bytes(4) if masked else b"") + payload


def read_close_code(connection: socket.socket) -> int:
    received = b""
    while more := connection.recv(4096):
        received += more
    start = received.rindex(b"\x88")
    return int(struct.unpack("!H", received[start + 2 : start + 4])[0])


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(1, b"\xff\xfe"), 1007),
        (frame(1, b"{}", masked=False), 1002),
        (frame(3, b"{}"), 1002),
        (frame(0, b"{}"), 1002),
        (frame(9, b"x" * 126), 1002),
        (bytes([0xF1, 0x80, 0, 0, 0, 0]), 1002),
        (bytes([0x81, 0xFF]) + struct.pack("!Q", 1 << 63) + bytes(4), 1002),
    ],
    ids=["utf-8", "unmasked", "opcode", "continuation", "long ping", "reserved bits", "length"],
)
def test_broken_frames_close_the_connection_with_a_code_and_reach_no_one(sent: bytes, code: int) -> None:
    received: list[str | bytes] = []

    def keep(connection: ServerConnection) -> None:
        received.extend(connection)

    with socket_upstream(keep) as upstream, serve_gateway(upstream.url) as gateway:
        with upgrade(gateway) as connection:
            connection.sendall(sent)
            assert read_close_code(connection) == code
        with open_socket(gateway.url):
            pass
    assert received == []


def test_message_over_the_limit_closes_the_connection_before_it_is_complete() -> None:
    with socket_upstream(echo) as upstream, serve_gateway(upstream.url) as gateway, upgrade(gateway) as connection:
        connection.sendall(bytes([0x82, 0xFF]) + struct.pack("!Q", 40 * 1024 * 1024) + bytes(4))
        part = bytes(1024 * 1024)
        with pytest.raises(OSError):  # noqa: PT012 - it is closed at some point while sending
            for _ in range(64):
                connection.sendall(part)


def test_message_of_the_upstream_over_the_limit_closes_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "MESSAGE_BYTES_MAX", 10_000)

    def answer(connection: ServerConnection) -> None:
        connection.send("x" * 10_001)
        with pytest.raises(ConnectionClosed):
            connection.recv()

    with (
        socket_upstream(answer) as upstream,
        serve_gateway(upstream.url) as gateway,
        open_socket(gateway.url) as client,
        pytest.raises(ConnectionClosed) as closed,
    ):
        client.recv(timeout=TIMEOUT_SECONDS)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


def test_fragmented_messages_with_pings_between_arrive_whole() -> None:
    text = json.dumps(create(input="é" * 300)).encode()
    received: list[str | bytes] = []
    done = threading.Event()

    def keep(connection: ServerConnection) -> None:
        received.append(connection.recv())
        done.set()

    with socket_upstream(keep) as upstream, serve_gateway(upstream.url) as gateway, upgrade(gateway) as connection:
        # One byte a frame splits characters as well.
        for index in range(len(text)):
            kind = 1 if index == 0 else 0
            connection.sendall(frame(kind, text[index : index + 1], final=index == len(text) - 1) + frame(9, b"p"))
        assert done.wait(TIMEOUT_SECONDS)
    assert received == [text.decode()]


def test_upstream_that_sends_no_frames_closes_the_client() -> None:
    def garble(connection: ServerConnection) -> None:
        connection.socket.sendall(b"\xff" * 64)
        time.sleep(0.2)

    with (
        socket_upstream(garble) as upstream,
        serve_gateway(upstream.url) as gateway,
        open_socket(gateway.url) as client,
        pytest.raises(ConnectionClosed) as closed,
    ):
        client.recv(timeout=TIMEOUT_SECONDS)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1011


@pytest.mark.parametrize("message", ["no JSON", "[1]", '{"model": "gpt-6.1-sol"}', '{"type": 7}', b"\x00\x01"])
def test_message_that_cannot_be_decoded_is_forwarded_and_recorded(message: str | bytes) -> None:
    received: list[str | bytes] = []

    def answer(connection: ServerConnection) -> None:
        received.append(connection.recv())
        for event in response_events("resp_1", "Aye"):
            connection.send(event)
        connection.recv()

    with socket_upstream(answer) as upstream, serve_gateway(upstream.url) as gateway:
        with open_socket(gateway.url) as client:
            client.send(message)
            read_events(client)
        ((completed,),) = payloads_of(gateway, LlmCallCompleted)
    assert (received, completed.usage) == ([message], Usage(input=10, output=2))


def test_events_with_line_breaks_are_recorded() -> None:
    def answer(connection: ServerConnection) -> None:
        connection.recv()
        for event in response_events("resp_1", "Aye\n\naye"):
            connection.send(json.dumps(json.loads(event), indent=1).replace("\n", "\n\r\n"))
        connection.recv()

    with socket_upstream(answer) as upstream, serve_gateway(upstream.url) as gateway:
        with open_socket(gateway.url) as client:
            send_create(client, input="Hello.")
        ((completed,),) = payloads_of(gateway, LlmCallCompleted)
    assert (completed.usage, completed.unreadable or "") == (Usage(input=10, output=2), "")


@pytest.mark.parametrize("sent_before", [0, 1], ids=["before the next response begins", "after it began"])
def test_last_event_that_follows_an_error_does_not_end_the_next_call(sent_before: int) -> None:
    late = '{"type": "response.failed", "response": {"id": "resp_1", "status": "failed"}}'

    def answer(connection: ServerConnection) -> None:
        connection.recv()
        connection.send(response_events("resp_1")[0])
        connection.send('{"type": "error", "error": {"code": "server_error", "message": "failed"}}')
        connection.recv()
        events = response_events("resp_2", "Aye")
        for event in (*events[:sent_before], late, *events[sent_before:]):
            connection.send(event)
        connection.recv()

    with socket_upstream(answer) as upstream, serve_gateway(upstream.url) as gateway:
        with open_socket(gateway.url) as client:
            assert send_create(client, input="Hello.")["type"] == "error"
            assert send_create(client, input="Hello again.")["type"] == "response.failed"
            assert read_events(client)[-1]["type"] == "response.completed"
        ended = [p for session in payloads_of(gateway, LlmCallFailed, LlmCallCompleted) for p in session]
    assert [type(payload) for payload in ended] == [LlmCallFailed, LlmCallCompleted]


def test_last_event_of_an_unknown_shape_still_ends_its_call() -> None:
    """The response is no object here; the usage of the next call must not be taken for this one's."""

    def answer(connection: ServerConnection) -> None:
        connection.recv()
        connection.send('{"type": "response.failed", "response": "none", "status": "failed"}')
        connection.recv()
        for event in response_events("resp_2", "Aye"):
            connection.send(event)
        connection.recv()

    with socket_upstream(answer) as upstream, serve_gateway(upstream.url) as gateway:
        with open_socket(gateway.url) as client:
            assert send_create(client, input="Hello.")["type"] == "response.failed"
            assert send_create(client, input="Hello again.")["type"] == "response.completed"
        ended = [p for session in payloads_of(gateway, LlmCallFailed, LlmCallCompleted) for p in session]
    assert [type(payload) for payload in ended] == [LlmCallFailed, LlmCallCompleted]
    assert ended[1].usage == Usage(input=10, output=2)


def test_event_that_cannot_be_decoded_is_forwarded_and_the_call_recorded() -> None:
    events = response_events("resp_1", "Aye")
    events.insert(1, '{"type": "response.output_item.added", "output_index": "none"}')

    def answer(connection: ServerConnection) -> None:
        connection.recv()
        for event in events:
            connection.send(event)
        connection.recv()

    with socket_upstream(answer) as upstream, serve_gateway(upstream.url) as gateway:
        with open_socket(gateway.url) as client:
            client.send(json.dumps(create(input="Hello.")))
            assert [json.dumps(event) for event in read_events(client)] == events
        ((completed,),) = payloads_of(gateway, LlmCallCompleted)
    assert completed.usage == Usage(input=10, output=2)
    assert completed.unreadable


def test_calls_beyond_the_limit_of_a_connection_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "OPEN_CALLS_MAX", 2)
    with (
        socket_upstream(read_all) as upstream,
        serve_gateway(upstream.url) as gateway,
        open_socket(gateway.url) as client,
    ):
        for _ in range(3):
            client.send(json.dumps(create(input="Hello.")))
        assert json.loads(client.recv(timeout=TIMEOUT_SECONDS))["status"] == 429


def test_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "IDLE_SECONDS_MAX", 0.2)
    with (
        socket_upstream(read_all) as upstream,
        serve_gateway(upstream.url) as gateway,
        open_socket(gateway.url) as client,
        pytest.raises(ConnectionClosed) as closed,
    ):
        client.recv(timeout=TIMEOUT_SECONDS)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1001


# Many at once.


def test_many_connections_get_their_own_events_and_their_own_sessions(simulator: tuple[SimulatedProvider, str]) -> None:
    _, url = simulator
    failures: list[object] = []

    def converse(number: int, gateway_url: str) -> None:
        try:
            with open_socket(gateway_url) as client:
                previous: dict[str, Any] = {}
                for turn in range(3):
                    text = f"Client {number}, turn {turn}. " + (LONG if turn == 0 else "")
                    event = send_create(client, input=[{"role": "user", "content": text}], **previous)
                    previous = {"previous_response_id": event["response"]["id"]}
        except Exception as error:  # noqa: BLE001 - reported by the test
            failures.append(error)

    with serve_gateway(url) as gateway:
        threads = [threading.Thread(target=converse, args=(number, gateway.url)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert failures == []
        assert verdicts_of(gateway) == [["first_use", "held", "held"]] * 12


def test_slow_client_holds_back_the_upstream() -> None:
    sent_bytes = 0
    part = "x" * 65_536
    ended = threading.Event()

    def flood(connection: ServerConnection) -> None:
        nonlocal sent_bytes
        connection.socket.settimeout(1.0)
        try:
            for _ in range(2_000):
                connection.send(part)
                sent_bytes += len(part)
        except (ConnectionClosed, OSError):
            pass
        ended.set()

    with socket_upstream(flood) as upstream, serve_gateway(upstream.url) as gateway, upgrade(gateway):
        assert not ended.wait(3.0) or sent_bytes < 64 * 1024 * 1024
    assert sent_bytes < 64 * 1024 * 1024


# The client opens its connection in a way that the newest `websockets` deprecates.
@pytest.mark.filterwarnings("ignore:connect:DeprecationWarning")
def test_official_client_works_as_without_the_gateway(simulator: tuple[SimulatedProvider, str]) -> None:
    _, url = simulator
    with serve_gateway(url) as gateway:
        texts = []
        for base in (f"{url}/v1", f"{gateway.url}/openai/v1"):
            sdk = openai.OpenAI(base_url=base, api_key="any", max_retries=0)
            with sdk.responses.connect() as connection:
                connection.response.create(model="gpt-6.1-sol", input="Hello.")
                texts.append([event.type for event in _until_completed(connection)])
        assert texts[0] == texts[1]
        assert len(payloads_of(gateway, LlmCallCompleted)) == 1


def _until_completed(connection: Any) -> Sequence[Any]:
    events = []
    for event in connection:
        events.append(event)
        if event.type == "response.completed":
            break
    return events


# The prompts that are put together.


def test_prompts_are_bounded_and_forget_the_least_recently_continued() -> None:
    prompts = ResponsePrompts(bytes_max=100)
    shared = PromptPart(b"s" * 40)
    prompts.add("account", "1", PromptPart(b"a" * 20, shared))
    prompts.add("account", "2", PromptPart(b"b" * 20, shared))
    # What both have in common is counted once.
    assert prompts.size_bytes == 80
    prompts.add("account", "3", PromptPart(b"c" * 30))
    assert prompts.find("account", "1") is None
    assert prompts.find("other", "2") is None
    found = prompts.find("account", "2")
    assert found is not None
    assert found.join() == b"s" * 40 + b"," + b"b" * 20
    prompts.add("account", "4", PromptPart(b"d" * 200))
    assert (prompts.size_bytes, prompts.find("account", "4")) == (0, None)


def test_rewrite_of_earlier_items_is_not_sent() -> None:
    """The provider has them already; the rest of such a rewrite would not fit what it has."""
    prompts = ResponsePrompts()
    prompts.add("account", "resp_1", PromptPart(b'{"a":1}'))
    raw = b'{"type":"response.create","previous_response_id":"resp_1","input":[{"c":1}],"instructions":"Now"}'
    message = decode_create_message(raw, prompts, "account")
    assert message is not None
    assert splice_rewritten_body(message, b'{"input":[{"a":2},{"c":1}],"instructions":""}') is None
    spliced = splice_rewritten_body(message, b'{"input":[{"a": 1},{"c":1},{"d":1}],"instructions":""}')
    assert spliced is not None
    assert json.loads(spliced.raw) == {
        "type": "response.create",
        "previous_response_id": "resp_1",
        "instructions": "",
        "input": [{"c": 1}, {"d": 1}],
    }
    assert json.loads(spliced.body) == {"instructions": "", "input": [{"a": 1}, {"c": 1}, {"d": 1}]}


def test_whole_prompt_is_joined_without_decoding_it() -> None:
    prompts = ResponsePrompts()
    prompts.add("account", "resp_1", PromptPart(b'{"a": 1.50}', PromptPart(b'{ "b":"\\u00e9"}')))
    raw = b'{"type":"response.create","previous_response_id":"resp_1","input":[ {"c":1e2} ],"stream_id":"s"}'
    message = decode_create_message(raw, prompts, "account")
    assert message is not None
    assert message.body == b'{"input":[{ "b":"\\u00e9"},{"a": 1.50},{"c":1e2}]}'
    assert (message.call.is_prompt_known, message.call.previous_response_id, message.stream_id) == (True, "resp_1", "s")
