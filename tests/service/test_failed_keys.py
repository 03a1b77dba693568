"""Guessed keys: an address that sends too many has to wait, on the service's own API and on the gateway alike."""

from tests.support.served_gateway import raw_upstream, serve_gateway
from tests.support.served_service import Client, serve_store

from holdfast.clock import ManualClock
from holdfast.stores.memory import MemoryStore


def guess(client: Client, number: int) -> int:
    return client.request("GET", "/api/visitor", key=f"hf_{number:016x}_{number:064x}").status


def read_metric(client: Client, name: str, *, key: str) -> int:
    lines = client.request("GET", "/metrics", key=key).body.decode().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def test_an_address_that_guesses_keys_of_the_service_is_slowed_and_counted() -> None:
    clock = ManualClock()
    with serve_store(MemoryStore(), clock=clock) as client:
        valid, fresh = client.key("admin"), client.key("read")
        assert client.request("GET", "/api/visitor", key=valid).status == 200
        assert [guess(client, number) for number in range(25)] == [401] * 20 + [429] * 5
        refused = client.request("GET", "/api/visitor", key=fresh)
        assert (refused.status, refused.code) == (429, "too_many_failed_keys")
        assert 0 < int(refused.headers["retry-after"]) <= 61
        # A key that was valid before is served, and requests without one get the usual answer.
        assert client.request("GET", "/api/visitor", key=valid).status == 200
        assert client.request("GET", "/api/visitor").status == 401
        assert client.request("GET", "/healthz").status == 200
        assert read_metric(client, "holdfast_failed_keys_total", key=valid) == 20
        assert read_metric(client, "holdfast_slowed_requests_total", key=valid) == 6
        clock.advance(61)
        assert guess(client, 1) == 401
        assert client.request("GET", "/api/visitor", key=fresh).status == 200


def test_keys_guessed_on_the_gateway_and_on_the_service_count_together() -> None:
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        client = Client(gateway.url, gateway.service)
        valid = client.key("admin")
        assert read_metric(client, "holdfast_failed_keys_total", key=valid) == 0
        for number in range(20):
            key = f"hf_{number:016x}_{number:064x}"
            assert client.request("POST", "/anthropic/v1/messages", {}, headers={"x-api-key": key}).status == 401
        assert guess(client, 99) == 429
        assert read_metric(client, "holdfast_failed_keys_total", key=valid) == 20
        assert read_metric(client, "holdfast_slowed_requests_total", key=valid) == 1
