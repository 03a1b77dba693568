"""Who may use the gateway, whose key the provider sees, what may be spent; and that no provider's key is kept."""

import http.client
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from tests.support.served_gateway import RawUpstream, ServedGateway, headers_in, raw_upstream, serving_gateway

from holdfast.clock import ManualClock
from holdfast.errors import StoreError, UserError
from holdfast.events.payloads.calls import GatewayForwarded
from holdfast.gateway.key_limits import KeyLimits, read_key_limits
from holdfast.service.auth.keys import make_key
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sql.events import Cell
from holdfast.testing.server_thread import serve_provider

CANARY = "sk-ant-canary-00112233445566778899"
ASKED = {
    "model": "claude-sonnet-5-5",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "Hello. " * 3_000}],
}


def asked(
    gateway: ServedGateway, headers: Mapping[str, str], path: str = "/anthropic/v1/messages"
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=10)
    try:
        connection.request("POST", path, body=json.dumps(ASKED), headers=dict(headers))
        reply = connection.getresponse()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
    finally:
        connection.close()


def key_for(gateway: ServedGateway, scope: str = "gateway", *, number: int = 1) -> str:
    made = make_key(scope, at=0.0, random_bytes=lambda size: bytes([number]) * size, name="team")
    gateway.service.records.add_key(made.row)
    return made.key


@pytest.fixture
def upstream() -> Iterator[RawUpstream]:
    with raw_upstream() as raw:
        raw.parts = (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",)
        yield raw


def test_without_keys_everybody_on_this_machine_may_ask(upstream: RawUpstream) -> None:
    with serving_gateway(upstream.url) as gateway:
        assert asked(gateway, {"x-api-key": CANARY})[0] == 200
    assert headers_in(upstream.heads[0])[b"x-api-key"] == CANARY.encode()


def test_once_there_is_a_key_only_its_holders_may_ask(upstream: RawUpstream) -> None:
    with serving_gateway(upstream.url) as gateway:
        key = key_for(gateway)
        reader = key_for(gateway, "read", number=2)
        assert asked(gateway, {"x-api-key": CANARY})[0] == 401
        assert asked(gateway, {"x-api-key": CANARY, "x-holdfast-key": key[:-1] + "f"})[0] == 401
        assert asked(gateway, {"x-api-key": CANARY, "x-holdfast-key": "\xe9"})[0] == 401
        assert asked(gateway, {"x-api-key": CANARY, "x-holdfast-key": reader})[0] == 403
        assert upstream.heads == []
        status, _, _ = asked(gateway, {"x-api-key": CANARY, "x-holdfast-key": key})
    assert status == 200
    sent = headers_in(upstream.heads[0])
    assert sent[b"x-api-key"] == CANARY.encode()
    assert b"x-holdfast-key" not in sent


def test_a_refusal_is_in_the_providers_words_and_says_whose_it_is(upstream: RawUpstream) -> None:
    with serving_gateway(upstream.url, require_keys=True) as gateway:
        status, headers, body = asked(gateway, {})
        _, _, of_openai = asked(gateway, {}, "/openai/v1/chat/completions")
    assert (status, headers["x-holdfast-gateway"]) == (401, "refused")
    assert json.loads(body)["error"]["type"] == "authentication_error"
    assert "x-holdfast-key" in json.loads(of_openai)["error"]["message"]


@pytest.mark.parametrize(
    ("header", "spelled"), [("x-api-key", "{}"), ("authorization", "Bearer {}"), ("x-goog-api-key", "{}")]
)
def test_our_key_in_the_place_of_a_providers_key_is_replaced_by_it(
    upstream: RawUpstream, header: str, spelled: str
) -> None:
    grants = {"*": KeyLimits(anthropic="env:TEAM_KEY")}
    with serving_gateway(upstream.url, grants=grants, environ={"TEAM_KEY": CANARY}) as gateway:
        key = key_for(gateway)
        assert asked(gateway, {header: spelled.format(key)})[0] == 200
        assert asked(gateway, {header: spelled.format(key)}, "/gemini/v1/models")[0] == 403
    sent = headers_in(upstream.heads[0])
    assert sent[header.encode()] == spelled.format(CANARY).encode()
    assert len(upstream.heads) == 1


def test_our_key_is_not_told_to_the_provider_where_a_client_says_it_twice(upstream: RawUpstream) -> None:
    with serving_gateway(upstream.url, environ={"ANTHROPIC_API_KEY": CANARY}) as gateway:
        key = key_for(gateway)
        assert asked(gateway, {"x-api-key": key, "authorization": f"Bearer {key}"})[0] == 200
    assert key.encode() not in upstream.heads[0]
    assert headers_in(upstream.heads[0])[b"x-api-key"] == CANARY.encode()


def test_without_a_row_the_providers_usual_variable_holds(upstream: RawUpstream) -> None:
    with serving_gateway(upstream.url, environ={"ANTHROPIC_API_KEY": CANARY}) as gateway:
        assert asked(gateway, {"x-api-key": key_for(gateway)})[0] == 200
    assert headers_in(upstream.heads[0])[b"x-api-key"] == CANARY.encode()


def test_a_budget_ends_with_its_day() -> None:
    clock = ManualClock()
    with (
        serve_provider(SimulatedProvider()) as url,
        serving_gateway(url, clock=clock, grants={"*": KeyLimits(budget_usd_a_day=0.001)}) as gateway,
    ):
        key = {"x-holdfast-key": key_for(gateway), "x-api-key": "any"}
        assert asked(gateway, key)[0] == 200
        gateway.recorded()
        status, headers, body = asked(gateway, key)
        assert (status, json.loads(body)["error"]["type"]) == (429, "rate_limit_error")
        assert 0 < int(headers["retry-after"]) <= 86_401
        clock.advance(int(headers["retry-after"]))
        assert asked(gateway, key)[0] == 200


def test_requests_a_minute_are_counted_by_key(upstream: RawUpstream) -> None:
    clock = ManualClock()
    with serving_gateway(upstream.url, clock=clock, grants={"*": KeyLimits(requests_a_minute=2)}) as gateway:
        one, other = key_for(gateway), key_for(gateway, number=3)
        statuses = [asked(gateway, {"x-holdfast-key": one, "x-api-key": "k"})[0] for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert asked(gateway, {"x-holdfast-key": other, "x-api-key": "k"})[0] == 200
        clock.advance(60)
        assert asked(gateway, {"x-holdfast-key": one, "x-api-key": "k"})[0] == 200


class DeafStore(MemoryStore):
    """It cannot be read while it is deaf."""

    deaf = False

    def _fetch(self, query: str, parameters: Sequence[Cell]) -> list[tuple[object, ...]]:
        if self.deaf:
            raise StoreError("the store cannot be used now")
        return super()._fetch(query, parameters)


def test_a_store_that_cannot_be_asked_stops_nobody_who_brings_his_own_key(upstream: RawUpstream) -> None:
    store = DeafStore()
    with serving_gateway(upstream.url, store=store, environ={"ANTHROPIC_API_KEY": "k"}) as gateway:
        key = key_for(gateway)
        store.deaf = True
        assert asked(gateway, {"x-api-key": CANARY})[0] == 200
        assert asked(gateway, {"x-api-key": CANARY, "x-holdfast-key": key})[0] == 200
        assert asked(gateway, {"x-api-key": key})[0] == 503


def test_a_key_of_a_provider_is_neither_recorded_nor_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serve_provider(SimulatedProvider()) as url, serving_gateway(url) as gateway:
        for header in ("x-api-key", "authorization", "cookie"):
            asked(gateway, {"x-api-key": CANARY, header: f"Bearer {CANARY}"})
        asked(gateway, {"x-api-key": CANARY}, f"/gemini/v1/models/m:generateContent?key={CANARY}")
        asked(gateway, {"x-api-key": CANARY, "x-holdfast-fault": "500"})
        events = [event for session in gateway.recorded() for event in gateway.store.read(session)]
    assert len(events) > 3
    assert CANARY.encode() not in msgspec.json.encode(events)
    assert CANARY not in caplog.text


def test_what_a_key_spent_stands_with_its_sessions() -> None:
    with serve_provider(SimulatedProvider()) as url, serving_gateway(url) as gateway:
        key = key_for(gateway)
        asked(gateway, {"x-api-key": "any", "x-holdfast-key": key})
        (session,) = gateway.recorded()
        payloads = [event.payload for event in gateway.store.read(session)]
        row = gateway.store.sessions()[0]
    assert [one.key_id for one in payloads if isinstance(one, GatewayForwarded)] == [key.split("_")[1]]
    assert row.name == "team"


def test_a_file_of_grants_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "grants.toml"
    path.write_text('[keys."*"]\nanthropic = "env:A"\nbudget_usd_a_day = 2.5\n[keys.0011]\nrequests_a_minute = 3\n')
    path.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        read_key_limits(path)
    path.chmod(0o600)
    assert read_key_limits(path) == {
        "*": KeyLimits(anthropic="env:A", budget_usd_a_day=2.5),
        "0011": KeyLimits(requests_a_minute=3),
    }


@pytest.mark.parametrize("text", ["[keys", "[keys.a]\nanthropic = 5", f'[keys.a]\nanthropi = "{CANARY}"', "\xff"])
def test_a_bad_file_of_grants_is_one_line_without_what_is_in_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "grants.toml"
    path.write_bytes(text.encode("latin-1"))
    path.chmod(0o600)
    with pytest.raises(UserError) as raised:
        read_key_limits(path)
    assert "\n" not in str(raised.value)
    assert CANARY not in str(raised.value)
