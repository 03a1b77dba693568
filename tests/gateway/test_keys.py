"""Who may use the gateway, which key the provider sees, what may be spent; and that no provider's key is stored."""

import http.client
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from click.testing import CliRunner
from tests.support.served_gateway import RawUpstream, ServedGateway, headers_in, raw_upstream, serve_gateway

from holdfast.cli.main import command
from holdfast.clock import ManualClock
from holdfast.errors import StoreError, UserError
from holdfast.events.payloads.calls import GatewayForwarded
from holdfast.gateway import auth
from holdfast.gateway.key_limits import KeyLimits, read_key_limits
from holdfast.gateway.routes import PRESETS
from holdfast.service.auth.keys import make_key
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sql.events import Cell
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.server_thread import serve_provider

CANARY = "sk-ant-canary-00112233445566778899"
REQUEST = {
    "model": "claude-sonnet-5-5",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "Hello. " * 3_000}],
}


def request_with(
    gateway: ServedGateway, headers: Mapping[str, str], path: str = "/anthropic/v1/messages", *, method: str = "POST"
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=30)
    try:
        connection.request(method, path, body=json.dumps(REQUEST), headers=dict(headers))
        reply = connection.getresponse()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
    finally:
        connection.close()


def add_key(gateway: ServedGateway, scope: str = "gateway", *, number: int = 1) -> str:
    new_key = make_key(scope, at=0.0, random_bytes=lambda size: bytes([number]) * size, name="team")
    gateway.service.records.add_key(new_key.row)
    return new_key.key


@pytest.fixture
def upstream() -> Iterator[RawUpstream]:
    with raw_upstream() as raw:
        raw.parts = (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",)
        yield raw


def test_without_keys_every_local_client_may_ask(upstream: RawUpstream) -> None:
    with serve_gateway(upstream.url) as gateway:
        assert request_with(gateway, {"x-api-key": CANARY})[0] == 200
    assert headers_in(upstream.heads[0])[b"x-api-key"] == CANARY.encode()


def test_once_there_is_a_key_only_its_holders_may_ask(upstream: RawUpstream) -> None:
    with serve_gateway(upstream.url) as gateway:
        key = add_key(gateway)
        reader = add_key(gateway, "read", number=2)
        assert request_with(gateway, {"x-api-key": CANARY})[0] == 401
        assert request_with(gateway, {"x-api-key": CANARY, "x-holdfast-key": key[:-1] + "f"})[0] == 401
        assert request_with(gateway, {"x-api-key": CANARY, "x-holdfast-key": "\xe9"})[0] == 401
        assert request_with(gateway, {"x-api-key": CANARY, "x-holdfast-key": reader})[0] == 403
        assert upstream.heads == []
        status, _, _ = request_with(gateway, {"x-api-key": CANARY, "x-holdfast-key": key})
    assert status == 200
    sent = headers_in(upstream.heads[0])
    assert sent[b"x-api-key"] == CANARY.encode()
    assert b"x-holdfast-key" not in sent


def test_a_refusal_is_in_the_providers_format_and_names_its_origin(upstream: RawUpstream) -> None:
    with serve_gateway(upstream.url, require_keys=True) as gateway:
        status, headers, body = request_with(gateway, {})
        _, _, of_openai = request_with(gateway, {}, "/openai/v1/chat/completions")
    assert (status, headers["x-holdfast-gateway"]) == (401, "refused")
    assert json.loads(body)["error"]["type"] == "authentication_error"
    assert "x-holdfast-key" in json.loads(of_openai)["error"]["message"]


@pytest.mark.parametrize(
    ("header", "value"), [("x-api-key", "{}"), ("authorization", "Bearer {}"), ("x-goog-api-key", "{}")]
)
def test_our_key_in_the_place_of_a_providers_key_is_replaced_by_it(
    upstream: RawUpstream, header: str, value: str
) -> None:
    grants = {"*": KeyLimits(provider_keys={"anthropic": "env:TEAM_KEY"})}
    with serve_gateway(upstream.url, grants=grants, environ={"TEAM_KEY": CANARY}) as gateway:
        key = add_key(gateway)
        assert request_with(gateway, {header: value.format(key)})[0] == 200
        assert request_with(gateway, {header: value.format(key)}, "/gemini/v1/models")[0] == 403
    sent = headers_in(upstream.heads[0])
    assert sent[header.encode()] == value.format(CANARY).encode()
    assert len(upstream.heads) == 1


def test_our_key_is_not_sent_to_the_provider_even_if_a_client_sends_it_twice(upstream: RawUpstream) -> None:
    with serve_gateway(upstream.url, environ={"ANTHROPIC_API_KEY": CANARY}) as gateway:
        key = add_key(gateway)
        assert request_with(gateway, {"x-api-key": key, "authorization": f"Bearer {key}"})[0] == 200
    assert key.encode() not in upstream.heads[0]
    assert headers_in(upstream.heads[0])[b"x-api-key"] == CANARY.encode()


def test_without_a_grant_the_providers_usual_variable_is_used(upstream: RawUpstream) -> None:
    with serve_gateway(upstream.url, environ={"ANTHROPIC_API_KEY": CANARY}) as gateway:
        assert request_with(gateway, {"x-api-key": add_key(gateway)})[0] == 200
    assert headers_in(upstream.heads[0])[b"x-api-key"] == CANARY.encode()


def test_a_budget_ends_with_its_day() -> None:
    clock = ManualClock()
    with (
        serve_provider(SimulatedProvider()) as url,
        serve_gateway(url, clock=clock, grants={"*": KeyLimits(budget_usd_a_day=0.001)}) as gateway,
    ):
        key = {"x-holdfast-key": add_key(gateway), "x-api-key": "any"}
        assert request_with(gateway, key)[0] == 200
        gateway.recorded_sessions()
        status, headers, body = request_with(gateway, key)
        assert (status, json.loads(body)["error"]["type"]) == (429, "rate_limit_error")
        assert 0 < int(headers["retry-after"]) <= 86_401
        clock.advance(int(headers["retry-after"]))
        assert request_with(gateway, key)[0] == 200


def test_requests_per_minute_are_counted_per_key(upstream: RawUpstream) -> None:
    clock = ManualClock()
    with serve_gateway(upstream.url, clock=clock, grants={"*": KeyLimits(requests_a_minute=2)}) as gateway:
        first, other = add_key(gateway), add_key(gateway, number=3)
        statuses = [request_with(gateway, {"x-holdfast-key": first, "x-api-key": "k"})[0] for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert request_with(gateway, {"x-holdfast-key": other, "x-api-key": "k"})[0] == 200
        clock.advance(60)
        assert request_with(gateway, {"x-holdfast-key": first, "x-api-key": "k"})[0] == 200


@pytest.mark.parametrize(
    ("path", "status", "method"),
    [
        ("/anthropic/v1/messages", 200, "POST"),
        ("/anthropic/v1/messages/count_tokens", 200, "POST"),
        ("/anthropic/v1/messages/batches", 200, "POST"),
        ("/openai/v1/embeddings", 200, "POST"),
        ("/openai/v1/models", 200, "GET"),
        ("/gemini/v1beta/models/gemini-3-pro:countTokens", 200, "POST"),
        ("/anthropic/v1/files/file_1", 200, "POST"),  # Granted.
        ("/anthropic/v1/organizations/api_keys", 403, "POST"),
        ("/anthropic//v1/organizations/users/", 403, "POST"),
        ("/anthropic/v1%2forganizations/workspaces", 403, "POST"),
        ("/openai/v1/organization/admin_api_keys", 403, "POST"),
        ("/openai/v1/fine_tuning/jobs", 403, "POST"),
        ("/openai/v1/files", 403, "POST"),
        ("/gemini/v1beta/tunedModels", 403, "POST"),
        ("/gemini/v1beta/models/gemini-3-pro", 200, "GET"),
        ("/azure/openai/deployments/ours/embeddings", 200, "POST"),
        ("/bedrock/model/us.amazon.nova-lite-v1%3A0/converse-stream", 200, "POST"),
        ("/vertex/v1/projects/p/locations/eu/publishers/google/models/gemini-3-pro:countTokens", 200, "POST"),
        # Words of inference in the administration of an account.
        ("/openai/v1/organization/usage/completions", 403, "GET"),
        ("/openai/v1/organization/usage/embeddings", 403, "GET"),
        ("/fireworks/v1/accounts/a/models/ours", 403, "GET"),
        ("/fireworks/v1/accounts/a/models/ours:getDownloadEndpoint", 403, "GET"),
        ("/mistral/v1/fine_tuning/models/ours/archive", 403, "POST"),
        ("/vertex/v1/projects/p/locations/eu/models/ours:export", 403, "POST"),
        ("/vertex/v1/projects/p/locations/eu/models/ours:setIamPolicy", 403, "POST"),
        # Methods that change models, or list what other keys have stored.
        ("/openai/v1/models/ours", 403, "DELETE"),
        ("/together/v1/models", 403, "POST"),
        ("/vertex/v1/projects/p/locations/eu/models/ours", 403, "PATCH"),
        ("/openai/v1/chat/completions", 403, "GET"),
        # Opens a call whose media pass the gateway by: only its WebSocket is for a shared key.
        ("/openai/v1/realtime?model=gpt-realtime", 403, "POST"),
        ("/azure/openai/v1/realtime", 403, "GET"),
    ],
)
def test_a_granted_provider_key_is_for_inference_and_paths_that_are_granted(
    upstream: RawUpstream, path: str, status: int, method: str
) -> None:
    keys = dict.fromkeys(PRESETS, CANARY)
    grants = {"*": KeyLimits(provider_keys=keys, paths=("/v1/files/*",))}
    with serve_gateway(upstream.url, grants=grants) as gateway:
        key = add_key(gateway)
        answered, _, body = request_with(gateway, {"x-api-key": key}, path, method=method)
        assert answered == status
        assert status == 200 or (upstream.heads == [] and b"inference only" in body)
        # A client's own key opens what its account opens.
        assert request_with(gateway, {"x-api-key": "sk-own", "x-holdfast-key": key}, path, method=method)[0] == 200


@pytest.mark.parametrize("name", ["x-http-method-override", "X-HTTP-Method", "x-method-override"])
def test_a_granted_provider_key_is_used_with_the_method_that_was_checked(upstream: RawUpstream, name: str) -> None:
    """Google's APIs take the method from a header where a request has one."""
    grants = {"*": KeyLimits(provider_keys={"gemini": CANARY})}
    path = "/gemini/v1beta/models/gemini-embedding-001:embedContent"
    with serve_gateway(upstream.url, grants=grants) as gateway:
        key = add_key(gateway)
        assert request_with(gateway, {"x-goog-api-key": key, name: "POST"}, path, method="PUT")[0] == 200
        own = {"x-goog-api-key": "own", "x-holdfast-key": key, name: "POST"}
        assert request_with(gateway, own, path, method="PUT")[0] == 200
    assert [name.lower().encode() in head.lower() for head in upstream.heads] == [False, True]


@pytest.mark.parametrize(
    "path",
    [
        "/anthropic/../v1/organizations",
        "/anthropic/v1/%2e%2e/organizations",
        "/anthropic/v1/%252e%252e/organizations",
        "/anthropic/v1/..%2forganizations",
        "/anthropic/v1/..%5corganizations",
        "/anthropic/v1/..;/organizations",
        "/anthropic/./v1/messages",
        "/anthropic%2f..%2fv1/messages",
        "/anthropic/v1/..%00/organizations",
        "/anthropic/v1/messages%0a",
    ],
)
def test_no_path_leaves_the_prefix_of_its_upstream(upstream: RawUpstream, path: str) -> None:
    with serve_gateway(upstream.url) as gateway:
        assert request_with(gateway, {"x-api-key": CANARY}, path)[0] in (404, 405)
    assert upstream.heads == []


def test_an_address_that_guesses_keys_has_to_wait_and_others_need_not(upstream: RawUpstream) -> None:
    clock = ManualClock()
    with serve_gateway(upstream.url, clock=clock) as gateway:
        key = add_key(gateway)
        valid = {"x-api-key": CANARY, "x-holdfast-key": key}
        assert request_with(gateway, valid)[0] == 200
        guesses = [request_with(gateway, {"x-holdfast-key": f"hf_{n:016x}_{n:064x}"}) for n in range(25)]
        assert [status for status, _, _ in guesses] == [401] * 20 + [429] * 5
        assert json.loads(guesses[-1][2])["error"]["type"] == "rate_limit_error"
        assert 0 < int(guesses[-1][1]["retry-after"]) <= 61
        # From the same address, as behind a proxy, with a key that was valid before.
        clock.advance(30)
        assert request_with(gateway, valid)[0] == 200
        clock.advance(31)
        assert request_with(gateway, {"x-holdfast-key": "hf_0"})[0] == 401


class FailingStore(MemoryStore):
    """A store that cannot be read while `is_failing`."""

    is_failing = False

    def _fetch(self, query: str, parameters: Sequence[Cell]) -> list[tuple[object, ...]]:
        if self.is_failing:
            raise StoreError("the store cannot be used now")
        return super()._fetch(query, parameters)


def test_a_failing_store_stops_no_client_that_sends_its_own_key(upstream: RawUpstream) -> None:
    store = FailingStore()
    with serve_gateway(upstream.url, store=store, environ={"ANTHROPIC_API_KEY": "k"}) as gateway:
        key = add_key(gateway)
        store.is_failing = True
        assert request_with(gateway, {"x-api-key": CANARY})[0] == 200
        assert request_with(gateway, {"x-api-key": CANARY, "x-holdfast-key": key})[0] == 200
        assert request_with(gateway, {"x-api-key": key})[0] == 503


class HangingStore(MemoryStore):
    """A store that answers nothing while `is_open` is not set."""

    is_open = threading.Event()

    def _fetch(self, query: str, parameters: Sequence[Cell]) -> list[tuple[object, ...]]:
        self.is_open.wait(60)
        return super()._fetch(query, parameters)


def test_a_store_that_hangs_keeps_no_client_waiting_whose_key_is_known_or_that_has_its_own(
    upstream: RawUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "LOOKUP_SECONDS_MAX", 0.05)
    monkeypatch.setattr(auth, "KNOWN_SECONDS_MAX", 0.05)
    store, clock = HangingStore(), ManualClock()
    store.is_open.set()
    own = {"x-api-key": CANARY}
    with serve_gateway(upstream.url, store=store, clock=clock, environ={"ANTHROPIC_API_KEY": "k"}) as gateway:
        known, unknown = add_key(gateway), add_key(gateway, number=3)
        assert request_with(gateway, {"x-api-key": known})[0] == 200
        store.is_open.clear()
        try:
            clock.advance(auth.KEY_CACHE_SECONDS)
            with ThreadPoolExecutor(20) as pool:
                keys = [{"x-api-key": known}, {**own, "x-holdfast-key": unknown}] * 10
                assert [answered[0] for answered in pool.map(lambda key: request_with(gateway, key), keys)] == [
                    200
                ] * 20
            assert request_with(gateway, {"x-api-key": unknown})[0] == 503
        finally:
            store.is_open.set()
        clock.advance(auth.RETRY_SECONDS)
        assert request_with(gateway, {"x-api-key": unknown})[0] == 200


def test_a_providers_key_is_neither_recorded_nor_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serve_provider(SimulatedProvider()) as url, serve_gateway(url) as gateway:
        for header in ("x-api-key", "authorization", "cookie"):
            request_with(gateway, {"x-api-key": CANARY, header: f"Bearer {CANARY}"})
        request_with(gateway, {"x-api-key": CANARY}, f"/gemini/v1/models/m:generateContent?key={CANARY}")
        request_with(gateway, {"x-api-key": CANARY, "x-holdfast-fault": "500"})
        events = [event for session in gateway.recorded_sessions() for event in gateway.store.read(session)]
    assert len(events) > 3
    assert CANARY.encode() not in msgspec.json.encode(events)
    assert CANARY not in caplog.text


def test_a_keys_spending_is_listed_with_its_sessions() -> None:
    with serve_provider(SimulatedProvider()) as url, serve_gateway(url) as gateway:
        key = add_key(gateway)
        request_with(gateway, {"x-api-key": "any", "x-holdfast-key": key})
        (session,) = gateway.recorded_sessions()
        payloads = [event.payload for event in gateway.store.read(session)]
        row = gateway.store.sessions()[0]
    assert [payload.key_id for payload in payloads if isinstance(payload, GatewayForwarded)] == [key.split("_")[1]]
    assert row.name == "team"


def test_spending_is_listed_under_the_key_that_paid_also_if_keys_share_an_account(tmp_path: Path) -> None:
    db = str(tmp_path / "log.db")
    with (
        SqliteStore(db) as store,
        serve_provider(SimulatedProvider()) as url,
        serve_gateway(url, store=store) as gateway,
    ):
        for name in ("ann", "bob"):
            made = make_key("gateway", at=0.0, random_bytes=os.urandom, name=name)
            store.records.add_key(made.row)
            # The same provider key and conversation, whose session has the name of the first key.
            headers = {"x-api-key": "shared", "x-holdfast-key": made.key, "x-session-id": "one"}
            request_with(gateway, headers)
            gateway.recorded_sessions()
    with SqliteStore(db) as store:
        assert len(store.sessions()) == 1
    listed = CliRunner().invoke(command, ["gateway", "spend", "--db", db, "--json"])
    # Listed by key id, which is random.
    assert sorted((row["label"], row["calls"]) for row in json.loads(listed.output)) == [("ann", 1), ("bob", 1)]


def test_a_grants_file_must_be_private_to_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "grants.toml"
    path.write_text('[keys."*"]\nanthropic = "env:A"\nbudget_usd_a_day = 2.5\n[keys.0011]\nrequests_a_minute = 3\n')
    path.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        read_key_limits(path)
    path.chmod(0o600)
    assert read_key_limits(path) == {
        "*": KeyLimits(provider_keys={"anthropic": "env:A"}, budget_usd_a_day=2.5),
        "0011": KeyLimits(requests_a_minute=3),
    }


@pytest.mark.parametrize(
    "text",
    [
        "[keys",
        "[keys.a]\nanthropic = 5",
        f'[keys.a]\nanthropi = "{CANARY}"',
        "\xff",
        "[keys.a]\nbudget_usd_a_day = nan",
        "[keys.a]\nbudget_usd_a_month = inf",
        "[keys.a]\nbudget_usd_a_day = -1",
        f"[keys.a]\nrequests_a_minute = {'1' * 5_000}",
        "a = " + "[" * 20_000,
    ],
    ids=lambda text: text[:40],
)
def test_an_invalid_grants_file_is_one_line_without_its_content(tmp_path: Path, text: str) -> None:
    path = tmp_path / "grants.toml"
    path.write_bytes(text.encode("latin-1"))
    path.chmod(0o600)
    with pytest.raises(UserError) as raised:
        read_key_limits(path)
    assert "\n" not in str(raised.value)
    assert CANARY not in str(raised.value)
