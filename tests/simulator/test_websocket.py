"""The simulator's Responses API over WebSocket: the same rules as over HTTP, and what only a connection has."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.simulated_openai import LONG, Responses, post
from tests.support.websockets import TIMEOUT_SECONDS, create, open_socket, read_events, send_create
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from holdfast.clock import ManualClock
from holdfast.simulator.provider import SimulatedProvider
from holdfast.testing.server_thread import serve_provider

PATH = "/v1/responses"
HELLO = {"role": "user", "content": [{"type": "input_text", "text": LONG * 2}]}
MORE = {"role": "user", "content": [{"type": "input_text", "text": "And now? " * 20}]}
RESPONSES = Responses()


@pytest.fixture
def provider() -> SimulatedProvider:
    return SimulatedProvider(clock=ManualClock())


@pytest.fixture
def client(provider: SimulatedProvider) -> Iterator[ClientConnection]:
    with serve_provider(provider) as url, open_socket(url, PATH) as socket:
        yield socket


def test_events_are_those_of_a_streamed_response(client: ClientConnection) -> None:
    client.send(json.dumps(create(input="Hello.")))
    events = read_events(client)
    assert [event["type"] for event in events][:2] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == "response.completed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_incremental_input_is_counted_and_cached_as_the_whole_input_over_http(client: ClientConnection) -> None:
    first = send_create(client, input=[HELLO])["response"]
    second = send_create(client, input=[MORE], previous_response_id=first["id"])["response"]
    over_http = SimulatedProvider()
    _, reply = post(over_http, PATH, RESPONSES.body(HELLO, store=False))
    _, follow_up = post(over_http, PATH, RESPONSES.body(HELLO, *reply["output"], MORE, store=False))
    assert [RESPONSES.buckets(first), RESPONSES.buckets(second)] == [
        RESPONSES.buckets(reply),
        RESPONSES.buckets(follow_up),
    ]
    assert RESPONSES.buckets(second)[1] > 1_000


def test_warm_up_has_no_output_no_usage_and_can_be_continued(
    client: ClientConnection, provider: SimulatedProvider
) -> None:
    warm = send_create(client, generate=False, input=[])["response"]
    assert (warm["output"], warm["usage"]["total_tokens"]) == ([], 0)
    longer = send_create(client, generate=False, input=[HELLO], previous_response_id=warm["id"])["response"]
    assert provider.cache == ()
    reply = send_create(client, input=[], previous_response_id=longer["id"])["response"]
    assert reply["output"]
    assert reply["usage"]["input_tokens"] > 1_000
    assert [request.reply is not None for request in provider.requests] == [False, False, True]


def test_only_the_latest_response_can_be_continued(client: ClientConnection) -> None:
    first = send_create(client, input=[HELLO])["response"]
    send_create(client, input=[MORE], previous_response_id=first["id"])
    refused = send_create(client, input=[MORE], previous_response_id=first["id"])
    assert (refused["status"], refused["error"]["code"]) == (400, "previous_response_not_found")


def test_failed_turn_drops_the_response_that_it_continued(client: ClientConnection) -> None:
    first = send_create(client, input=[HELLO])["response"]
    assert send_create(client, input=[RESPONSES.result("none")], previous_response_id=first["id"])["status"] == 400
    refused = send_create(client, input=[MORE], previous_response_id=first["id"])
    assert refused["error"]["code"] == "previous_response_not_found"


def test_responses_of_another_connection_cannot_be_continued(provider: SimulatedProvider) -> None:
    with serve_provider(provider) as url:
        with open_socket(url, PATH) as one:
            first = send_create(one, input=[HELLO])["response"]
        with open_socket(url, PATH) as other:
            refused = send_create(other, input=[MORE], previous_response_id=first["id"])
    assert refused["error"]["code"] == "previous_response_not_found"


def test_lanes_keep_their_own_latest_response_and_can_be_forked(client: ClientConnection) -> None:
    main = send_create(client, stream_id="main", input=[HELLO])
    assert main["stream_id"] == "main"
    fork = send_create(client, stream_id="fork", input=[MORE], previous_response_id=main["response"]["id"])
    again = send_create(client, stream_id="main", input=[MORE], previous_response_id=main["response"]["id"])
    assert (fork["stream_id"], again["stream_id"]) == ("fork", "main")
    assert fork["response"]["usage"]["input_tokens"] == again["response"]["usage"]["input_tokens"]


def test_connection_ends_after_an_hour(client: ClientConnection, provider: SimulatedProvider) -> None:
    assert send_create(client, input="Hello.")["type"] == "response.completed"
    provider.advance(3_601)
    refused = send_create(client, input="Hello.")
    assert (refused["status"], refused["error"]["code"]) == (400, "websocket_connection_limit_reached")


@pytest.mark.parametrize(
    "message",
    [
        "no JSON",
        "[]",
        b"{}",
        "{}",
        '{"type": "response.append"}',
        json.dumps(create(input="Hello.", background=True)),
        json.dumps(create(input="Hello.", stream_id=7)),
        json.dumps(create(input=[])),
        json.dumps(create(input="Hello.", conversation="conv_1")),
    ],
)
def test_what_openai_refuses_is_an_error_event_and_the_connection_stays(
    client: ClientConnection, message: str | bytes
) -> None:
    client.send(message)
    refused: dict[str, Any] = json.loads(client.recv(timeout=TIMEOUT_SECONDS))
    assert (refused["type"], refused["status"], refused["error"]["type"]) == ("error", 400, "invalid_request_error")
    assert send_create(client, input="Hello.")["type"] == "response.completed"


def test_handshake_without_a_key_is_refused(provider: SimulatedProvider) -> None:
    with serve_provider(provider) as url, pytest.raises(InvalidStatus) as refused:
        open_socket(url, PATH, {"authorization": ""})
    assert refused.value.response.status_code == 401


def test_other_paths_have_no_websocket(provider: SimulatedProvider) -> None:
    with serve_provider(provider) as url, pytest.raises(InvalidStatus) as refused:
        open_socket(url, "/v1/chat/completions")
    assert refused.value.response.status_code == 404


def test_faults_apply_to_messages(provider: SimulatedProvider) -> None:
    with serve_provider(provider) as url:
        with open_socket(url, PATH, {"x-holdfast-fault": "529"}) as client:
            assert send_create(client, input="Hello.")["status"] == 529
        with open_socket(url, PATH, {"x-holdfast-fault": "cut;after=2"}) as client:
            client.send(json.dumps(create(input="Hello.")))
            assert client.recv(timeout=TIMEOUT_SECONDS)
            with pytest.raises(ConnectionClosed):
                read_events(client)
        with open_socket(url, PATH, {"x-holdfast-fault": "malformed;after=1"}) as client:
            client.send(json.dumps(create(input="Hello.")))
            with pytest.raises(json.JSONDecodeError):
                read_events(client)


def test_log_has_the_messages_as_received(client: ClientConnection, provider: SimulatedProvider) -> None:
    message = json.dumps(create(input="Hello."), indent=1)
    client.send(message)
    read_events(client)
    (recorded,) = provider.requests
    assert (recorded.method, recorded.path, recorded.status, recorded.body) == (
        "WEBSOCKET",
        PATH,
        200,
        message.encode(),
    )
