"""Responses to invalid requests: one error shape, and no framework error page."""

import json
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from typing import get_args

import pytest
from tests.support.served_service import Client, serve_store

from holdfast.providers.registry import PROVIDERS
from holdfast.service.api.cache import ProviderName
from holdfast.service.api.health import Health
from holdfast.service.context import AppContext
from holdfast.service.http.routes import EmptyRequest, json_route
from holdfast.service.route_table import ROUTES
from holdfast.stores.memory import MemoryStore


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serve_store(MemoryStore(), allowed_hosts=("holdfast.example",)) as served:
        yield served


def test_running_service_is_healthy_and_with_its_store_ready(client: Client) -> None:
    assert client.get("/healthz")["status"] == "ok"
    assert client.get("/readyz")["status"] == "ready"


def test_service_without_its_store_is_alive_but_not_ready() -> None:
    store = MemoryStore()
    with serve_store(store) as client:
        store.close()
        assert client.request("GET", "/healthz").status == 200
        response = client.request("GET", "/readyz")
        assert (response.status, response.code) == (503, "store_unavailable")
        assert client.request("GET", "/analytics/cost").code == "store_unavailable"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/healthz/", 404, "not_found"),
        ("GET", "/api/cache/a/b/c", 404, "not_found"),
        ("DELETE", "/api/cache", 405, "method_not_allowed"),
        ("TRACE", "/healthz", 405, "method_not_allowed"),
        ("GET", "/api/cache/none-such", 404, "discussion_not_found"),
        ("POST", "/api/cache/none-such/disable", 404, "discussion_not_found"),
        ("POST", "/api/cache/none-such/invalidate", 404, "discussion_not_found"),
        ("GET", "/analytics/turns/none-such", 404, "turn_not_found"),
        ("GET", "/api/cache?limit=0", 400, "invalid_limit"),
        ("GET", "/api/cache?limit=many", 400, "invalid_limit"),
        ("GET", "/api/cache?limit=5&limit=6", 400, "duplicate_field"),
        ("GET", "/api/cache?colour=red", 400, "unknown_field"),
        ("GET", "/api/cache/x?discussion_id=y", 400, "duplicate_field"),
        ("GET", "/api/cache/stream?after=-1", 400, "invalid_after"),
        ("GET", f"/api/cache?x={'y' * 9000}", 400, "invalid_request"),
        ("POST", "/api/cache/x/enable?really=yes", 400, "unknown_field"),
        ("GET", "/analytics/cost?group_by=colour", 400, "invalid_group_by"),
        ("GET", "/analytics/sessions?order=name", 400, "invalid_order"),
        ("GET", "/analytics/sessions?limit=0", 400, "invalid_limit"),
        ("GET", "/analytics/savings?baseline=gpt-99", 400, "unknown_baseline_model"),
        ("GET", "/analytics/cost?from=2026-11-02T00:00:00Z&to=2026-11-01T00:00:00Z", 400, "invalid_time_window"),
        ("GET", "/analytics/cost?from=2026-11-02T00:00:00Z&to=2026-11-02T00:00:00Z", 400, "invalid_time_window"),
        ("GET", "/analytics/cost?from=2026-11-02T00:00:00", 400, "invalid_time_window"),
        ("GET", "/analytics/cost?from=2020", 400, "invalid_time_window"),
        ("GET", "/analytics/cost?to=9999-12-31T23:59:59-23:59", 400, "invalid_time_window"),
    ],
)
def test_invalid_request_is_refused_with_its_error_code(
    client: Client, method: str, path: str, status: int, code: str
) -> None:
    response = client.request(method, path)
    assert (response.status, response.code) == (status, code)


def test_error_lists_the_allowed_values_of_an_enumeration(client: Client) -> None:
    error = client.request("GET", "/analytics/sessions?order=name").json["error"]
    assert error["message"] == "order must be one of cost, recency"
    error = client.request("PUT", "/api/cache/settings", {"ttl": "2m"}).json["error"]
    assert error["message"] == "ttl must be one of auto, 5m, 1h"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "malformed_json"),
        (b'{"ttl": "\xff"}', 400, "malformed_json"),
        (b"[" * 100_000, 400, "malformed_json"),
        (b"[]", 422, "invalid_body"),
        (b'{"ttl": "2m"}', 422, "invalid_body"),
        (b'{"gemini_ttl_seconds": -1}', 422, "invalid_body"),
        (b'{"providers": {"anthropic": "yes"}}', 422, "invalid_body"),
        (b'{"colour": "red"}', 422, "unknown_field"),
        (b'{"providers": {"acme": false}}', 422, "invalid_body"),
        (b"", 422, "body_required"),
        (b'{"gemini_ttl_seconds": 7200}', 422, "over_an_hour"),
        (b" " * 1_000_001, 413, "body_too_large"),
    ],
)
def test_invalid_body_is_refused_with_its_error_code(client: Client, body: bytes, status: int, code: str) -> None:
    response = client.request("PUT", "/api/cache/settings", body, headers={"content-type": "application/json"})
    assert (response.status, response.code) == (status, code)


def test_every_provider_can_be_turned_off(client: Client) -> None:
    assert get_args(ProviderName) == tuple(PROVIDERS)
    everything = dict.fromkeys(PROVIDERS, False)
    assert client.request("PUT", "/api/cache/settings", {"providers": everything}).json["providers"] == everything
    assert client.get("/api/cache/settings")["providers"] == everything


def test_body_without_content_length_is_limited_too(client: Client) -> None:
    chunked = iter([b" " * 400_000] * 3)
    response = client.request("PUT", "/api/cache/settings", chunked, headers={"content-type": "application/json"})
    assert response.code == "body_too_large"


def test_body_that_is_not_json_is_refused(client: Client) -> None:
    response = client.request("PUT", "/api/cache/settings", b'{"ttl": "5m"}', headers={"content-type": "text/plain"})
    assert (response.status, response.code) == (415, "unsupported_media_type")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8787", "[::1]:8787", "192.0.2.7", "HOLDFAST.example:443"])
def test_allowed_host_name_or_ip_address_is_served(client: Client, host: str) -> None:
    assert client.request("GET", "/healthz", headers={"host": host}).status == 200


@pytest.mark.parametrize("host", ["evil.example", "", "127.0.0.1.evil.example", "a@127.0.0.1", "127.0.0.1:x", "a/b"])
def test_unknown_host_name_is_refused_against_dns_rebinding(client: Client, host: str) -> None:
    response = client.request("GET", "/healthz", headers={"host": host})
    assert (response.status, response.code) == (421, "unknown_host")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1", "", "ftp://127.0.0.1:9"])
def test_request_from_another_origin_is_refused(client: Client, origin: str) -> None:
    headers = {"host": "127.0.0.1:9", "origin": origin}
    assert client.request("POST", "/api/cache/x/disable", headers=headers).code == "cross_origin"
    assert client.request("GET", "/api/cache", headers=headers).code == "cross_origin"


def test_request_from_the_own_origin_is_served(client: Client) -> None:
    headers = {"host": "127.0.0.1:9", "origin": "http://127.0.0.1:9", "sec-fetch-site": "same-origin"}
    assert client.request("GET", "/healthz", headers=headers).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_cross_site_request_without_an_origin_header_is_refused(client: Client, site: str) -> None:
    assert client.request("GET", "/healthz", headers={"sec-fetch-site": site}).code == "cross_origin"
    assert client.request("GET", "/healthz", headers={"sec-fetch-site": "none"}).status == 200


def test_internal_error_has_our_error_shape_and_quotes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(service: AppContext, request: EmptyRequest) -> Health:
        raise ZeroDivisionError("the prompt said canary")

    failing = json_route("GET", "/fails", fail, rule="open")
    with serve_store(MemoryStore(), routes=(*ROUTES, failing)) as client:
        response = client.request("GET", "/fails")
    assert (response.status, response.code) == (500, "internal_error")
    assert "ZeroDivisionError" in caplog.text
    assert "canary" not in caplog.text + response.body.decode()


@pytest.mark.parametrize(
    "sent",
    [
        b"HELLO\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"y" * 400_000,
        b"GET /" + b"a" * 400_000,
    ],
)
def test_malformed_http_gets_the_same_error_shape(client: Client, sent: bytes) -> None:
    host, _, port = client.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as line:
        with suppress(OSError):
            line.sendall(sent)
        head, _, body = _received(line).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json")
    assert json.loads(body)["error"]["code"] == "malformed_request"


def _received(line: socket.socket) -> bytes:
    found = b""
    with suppress(ConnectionResetError):
        while more := line.recv(65_536):
            found += more
    return found


def test_large_body_after_a_short_header_block_is_no_long_header_block(client: Client) -> None:
    body = b'{"ttl": "auto"}' + b" " * 900_000
    response = client.request("PUT", "/api/cache/settings", body, headers={"content-type": "application/json"})
    assert response.status == 200


def test_concurrent_requests_are_limited() -> None:
    with serve_store(MemoryStore(), requests_max=1) as client:
        with urllib.request.urlopen(f"{client.url}/api/cache/stream", timeout=10) as feed:
            assert feed.readline() == b": listening\n"
            response = client.request("GET", "/api/visitor")
            assert (response.status, response.code) == (503, "too_busy")
            assert client.request("GET", "/healthz").status == 200
        while client.request("GET", "/api/visitor").status != 200:
            pass


def test_no_response_is_cacheable_on_the_way(client: Client) -> None:
    response = client.request("GET", "/api/cache")
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "server" not in response.headers


def test_metrics_are_readable_by_prometheus(client: Client) -> None:
    client.get("/healthz")
    text = client.request("GET", "/metrics").body.decode()
    assert 'holdfast_http_requests_total{method="GET",path="/healthz",status="200"}' in text
    assert all(line.startswith("#") or len(line.rsplit(" ", 1)) == 2 for line in text.splitlines())
