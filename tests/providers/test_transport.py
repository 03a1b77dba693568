"""Requests over real sockets: streamed, refused, retried, interrupted, too slow, cancelled."""

import asyncio
import logging
import re
import socket
import ssl
import traceback
from contextlib import ExitStack, suppress

import pytest
from aiohttp import web
from tests.support.loopback import (
    ENDPOINT,
    KEY,
    Endless,
    Pauses,
    RequestHandler,
    breaks_off,
    fails,
    failure_of,
    hangs_up,
    open_transport,
    read_response,
    says,
    serving,
)

from holdfast.errors import FailureKind, ProviderError, UserError
from holdfast.providers import transport as transport_module
from holdfast.providers.anthropic import anthropic
from holdfast.providers.connection_pool import Timeouts
from holdfast.providers.transport import HttpTransport


def without_port(failure: Exception) -> str:
    """The message without the port, which differs in every run."""
    return re.sub(r"(127\.0\.0\.1):\d+", r"\1", str(failure))


async def test_a_request_arrives_as_it_was_sent() -> None:
    async with serving(says("ok")) as server, open_transport(server.url + "/") as transport:
        assert await read_response(transport, b'{"a":1}') == b"ok"
        (request,) = server.requests
        assert (request.method, request.path) == ("POST", "/v1/messages")
        assert server.bodies == [b'{"a":1}']
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert request.headers["anthropic-version"] == "2026-10-21"
        assert request.headers["anthropic-beta"] == "b1"
        assert request.headers["content-type"] == "application/json"
        assert request.headers["user-agent"] == "holdfast"


async def test_bytes_are_yielded_before_the_response_is_complete() -> None:
    go_on = asyncio.Event()

    async def piecewise(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one")
        await go_on.wait()
        await response.write(b"two")
        return response

    async with serving(piecewise) as server, open_transport(server.url) as transport:
        chunks = transport.send(ENDPOINT, b"")
        assert await anext(chunks) == b"one"
        go_on.set()
        assert [chunk async for chunk in chunks] == [b"two"]


async def test_connections_are_reused() -> None:
    async with serving(says("ok")) as server, open_transport(server.url) as transport:
        await read_response(transport)
        await read_response(transport)
        ports = {request.transport and request.transport.get_extra_info("peername") for request in server.requests}
        assert len(server.requests) == 2
        assert len(ports) == 1


async def test_a_busy_provider_is_retried_after_the_pause_it_names() -> None:
    pauses = Pauses()
    retries: list[tuple[int, FailureKind, int | None]] = []
    busy = fails(429, "rate_limit", retry_after="7")
    async with serving(busy, says("ok")) as server, open_transport(server.url, pauses=pauses) as transport:
        chunks = transport.send(
            ENDPOINT, b"", on_retry=lambda count, error: retries.append((count, error.kind, error.status))
        )
        assert [chunk async for chunk in chunks] == [b"ok"]
        assert pauses.seconds == [7.0]
        assert retries == [(1, "rate_limit", 429)]
        assert len(server.requests) == 2


async def test_retries_end_when_a_provider_remains_overloaded() -> None:
    pauses = Pauses()
    overloaded = fails(529, "rate_limit", "Overloaded")
    async with serving(overloaded) as server, open_transport(server.url, pauses=pauses) as transport:
        failed = await failure_of(transport)
        assert (failed.kind, failed.status, str(failed)) == ("rate_limit", 529, "Overloaded")
        assert pauses.seconds == [1.0, 2.0]
        assert len(server.requests) == 3


async def test_one_attempt_means_no_retry() -> None:
    async with serving(fails(500, "server_error")) as server, open_transport(server.url, attempts_max=1) as transport:
        assert (await failure_of(transport)).kind == "server_error"
        assert len(server.requests) == 1


async def test_permanent_failures_are_not_retried() -> None:
    async with serving(fails(400, "invalid_request", "bad")) as server, open_transport(server.url) as transport:
        failed = await failure_of(transport)
        assert (failed.kind, str(failed)) == ("invalid_request", "bad")
        assert len(server.requests) == 1


async def test_a_redirect_is_not_followed() -> None:
    redirect = says("", status=307, headers={"location": "/elsewhere"})
    async with serving(redirect) as server, open_transport(server.url) as transport:
        failed = await failure_of(transport)
        assert (failed.kind, failed.status) == ("other", 307)
        assert [request.path for request in server.requests] == ["/v1/messages"]


async def test_a_refused_connection_is_a_network_failure() -> None:
    async with serving(says("ok")) as server:
        url = server.url
    pauses = Pauses()
    async with open_transport(url, pauses=pauses) as transport:
        failed = await failure_of(transport)
    assert failed.kind == "network"
    assert re.fullmatch(
        r"the connection to 127\.0\.0\.1:\d+ failed: nothing listens there; is it running\? Check the base URL .*",
        str(failed),
    )
    assert pauses.seconds == [1.0, 2.0]


async def test_an_unknown_host_name_is_reported_with_what_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    async with open_transport("http://api.harbour.example", attempts_max=1) as transport:
        failed = await failure_of(transport)
    assert str(failed) == (
        "the connection to api.harbour.example failed: the host name cannot be resolved; check the network, and the "
        "base URL for typing errors"
    )


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (ssl.SSLCertVerificationError(1, "self-signed certificate"), "its certificate is not trusted; check the base"),
        (ssl.SSLError(1, "wrong version number"), "it does not speak TLS; check whether the base URL begins with"),
        (OSError(101, "Network is unreachable"), "it cannot be reached; check the network"),
    ],
)
async def test_the_reason_of_a_failed_connection_is_reported(
    monkeypatch: pytest.MonkeyPatch, fault: OSError, expected: str
) -> None:
    async def fails_so(*_: object, **__: object) -> None:
        raise fault

    async with (
        serving(says("ok")) as server,
        open_transport(server.url.replace("http:", "https:"), attempts_max=1) as transport,
    ):
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fails_so)
        failed = await failure_of(transport)
    assert failed.kind == "network"
    assert f" failed: {expected}" in str(failed)


async def test_a_connection_lost_before_the_first_byte_is_retried() -> None:
    async with serving(hangs_up, says("ok")) as server, open_transport(server.url) as transport:
        assert await read_response(transport) == b"ok"
        assert len(server.requests) == 2


async def test_an_empty_response_is_a_network_failure() -> None:
    async with serving(says("")) as server, open_transport(server.url) as transport:
        failed = await failure_of(transport)
        assert (failed.kind, without_port(failed)) == (
            "network",
            "127.0.0.1 closed the connection before the first byte",
        )
        assert len(server.requests) == 3


async def test_nothing_is_retried_after_the_first_byte() -> None:
    async with serving(breaks_off) as server, open_transport(server.url) as transport:
        chunks = transport.send(ENDPOINT, b"")
        assert await anext(chunks) == b"first"
        with pytest.raises(ProviderError) as failed:
            await anext(chunks)
        assert failed.value.kind == "network"
        assert without_port(failed.value) == "127.0.0.1 broke off its response: ClientPayloadError"
        assert len(server.requests) == 1


async def waits(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(5)
    return web.Response(text="late")


async def starts_and_waits(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await asyncio.sleep(5)
    return response


async def speaks_and_waits(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"first")
    await asyncio.sleep(5)
    return response


@pytest.mark.parametrize("slow", [waits, starts_and_waits])
async def test_a_late_first_byte_is_a_network_failure(slow: RequestHandler) -> None:
    # Long enough for the server, which shares this event loop, to take both requests on a busy machine.
    timeouts = Timeouts(first_byte_seconds=0.4)
    async with serving(slow) as server, open_transport(server.url, timeouts=timeouts, attempts_max=2) as transport:
        failed = await failure_of(transport)
        assert (failed.kind, without_port(failed)) == ("network", "127.0.0.1 sent nothing for too long")
        assert len(server.requests) == 2


async def test_a_stream_that_falls_silent_is_a_network_failure() -> None:
    timeouts = Timeouts(idle_seconds=0.05)
    async with serving(speaks_and_waits) as server, open_transport(server.url, timeouts=timeouts) as transport:
        chunks = transport.send(ENDPOINT, b"")
        assert await anext(chunks) == b"first"
        with pytest.raises(ProviderError, match="sent nothing for too long"):
            await anext(chunks)
        assert len(server.requests) == 1


async def test_time_spent_by_the_reader_is_not_silence() -> None:
    async def twice(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one")
        await asyncio.sleep(0.12)
        await response.write(b"two")
        return response

    timeouts = Timeouts(idle_seconds=0.1)
    async with serving(twice) as server, open_transport(server.url, timeouts=timeouts) as transport:
        chunks = transport.send(ENDPOINT, b"")
        assert await anext(chunks) == b"one"
        await asyncio.sleep(0.15)
        assert await anext(chunks) == b"two"


async def test_a_host_that_accepts_no_connection_times_out() -> None:
    with socket.socket() as listener, ExitStack() as open_sockets:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        # Nothing accepts connections, so the queue is full after a few and the next attempt gets no reply.
        with suppress(TimeoutError):
            for _ in range(8):
                open_sockets.enter_context(socket.create_connection(listener.getsockname(), timeout=0.02))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with open_transport(url, timeouts=Timeouts(connect_seconds=0.05), attempts_max=1) as transport:
            failed = await failure_of(transport)
    assert (failed.kind, without_port(failed)) == ("network", "connecting to 127.0.0.1 timed out")


async def test_stopping_early_closes_the_connection() -> None:
    endless = Endless()
    async with serving(endless) as server, open_transport(server.url) as transport:
        chunks = transport.send(ENDPOINT, b"")
        await anext(chunks)
        await chunks.aclose()
        assert await asyncio.wait_for(endless.left.wait(), 2)


async def test_cancelling_the_caller_closes_the_connection() -> None:
    endless = Endless()
    async with serving(endless) as server, open_transport(server.url) as transport:
        task = asyncio.ensure_future(read_response(transport))
        await endless.spoke.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.wait_for(endless.left.wait(), 2)
        assert len(server.requests) == 1


async def test_an_endless_error_body_is_cut_off() -> None:
    endless = Endless(status=500)
    async with serving(endless) as server, open_transport(server.url, attempts_max=1) as transport:
        failed = await asyncio.wait_for(failure_of(transport), 2)
        assert (failed.kind, failed.status) == ("server_error", 500)
        await asyncio.wait_for(endless.left.wait(), 2)


async def test_an_unfinished_error_is_reported_by_its_status() -> None:
    async def unfinished(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=403)
        await response.prepare(request)
        await asyncio.sleep(5)
        return response

    async with (
        serving(unfinished) as server,
        open_transport(server.url, timeouts=Timeouts(idle_seconds=0.05)) as transport,
    ):
        failed = await failure_of(transport)
        assert (failed.kind, failed.status) == ("auth", 403)


async def test_the_key_is_in_no_error_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    quoting = fails(401, "auth", f"the key my-own-format-{KEY[::-1]} and {KEY} is not valid")
    async with serving(quoting) as server, open_transport(server.url, key=f"my-own-format-{KEY[::-1]}") as transport:
        failed = await failure_of(transport)
        assert str(failed) == "the key [redacted] and [redacted] is not valid"
    async with serving(breaks_off) as server, open_transport(server.url) as transport:
        broken = await failure_of(transport)
    for error in (failed, broken):
        error_text = "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error)) + repr(transport)
        assert KEY not in error_text
        assert error.__cause__ is None
        assert error.__context__ is None
    assert KEY not in caplog.text
    assert KEY[::-1] not in caplog.text


async def test_a_key_of_eight_characters_is_removed_where_it_is_quoted() -> None:
    async with (
        serving(fails(401, "auth", "8letters is wrong")) as server,
        open_transport(server.url, key="8letters") as transport,
    ):
        assert str(await failure_of(transport)) == "[redacted] is wrong"


async def test_a_short_word_is_not_treated_as_a_key() -> None:
    async with (
        serving(fails(400, "invalid_request", "no")) as server,
        open_transport(server.url, key="error") as transport,
    ):
        assert str(await failure_of(transport)) == "no"


async def test_a_reply_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "REPLY_BYTES_MAX", 4)
    async with serving(says("four"), says("fives")) as server, open_transport(server.url) as transport:
        assert await read_response(transport) == b"four"
        failed = await failure_of(transport)
        assert failed.kind == "server_error"
        assert "a response of over 4 bytes" in str(failed)


async def test_nothing_can_be_sent_after_closing() -> None:
    async with serving(says("ok")) as server:
        async with open_transport(server.url) as transport:
            await read_response(transport)
        with pytest.raises(UserError, match="the connection to the provider is closed"):
            await read_response(transport)
        assert len(server.requests) == 1


@pytest.mark.parametrize("url", ["", "localhost:80", "ftp://host", "http://", "http://host:x", "http://host:0"])
def test_an_invalid_base_url_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="the base URL must be like https://host"):
        HttpTransport(anthropic, url, KEY)


@pytest.mark.parametrize("key", ["abc\n", "ab\nc", " abc", "käse", "a\x00b"])
def test_a_key_that_is_not_a_valid_header_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(UserError, match="check it for a stray line break") as refused:
        HttpTransport(anthropic, "http://host", key)
    assert key.strip() not in str(refused.value)
