"""Who may use which route: generated from the route table, so that a new route is judged as soon as it is there."""

from collections.abc import Iterator
from typing import get_args

import msgspec
import pytest
from tests.support.instruction_places import library_of, opened_store
from tests.support.served_service import Client, serving_store

from holdfast.clock import ManualClock
from holdfast.service.http.routes import AccessRule, Route
from holdfast.service.route_table import ROUTES
from holdfast.stores.memory import MemoryStore

HOLDERS = ("nobody", "read", "agent", "admin", "revoked", "expired", "unknown")

MAY: dict[AccessRule, tuple[str, ...]] = {
    "open": HOLDERS,
    "read": ("read", "admin"),
    "admin": ("admin",),
    "agent": ("agent", "admin"),
    "caller": ("agent", "admin"),
}
"""By rule, whose requests get past the door."""


class Served:
    def __init__(self, client: Client, clock: ManualClock) -> None:
        self.client = client
        read, agent, admin = client.key("read"), client.key("agent:a1"), client.key("admin")
        revoked = client.key("admin", expires_at=clock() + 1_000_000)
        client.service.records.revoke_key(revoked.split("_")[1], at=1.0)
        expired = client.key("admin", expires_at=clock() + 10)
        clock.advance(10)
        unknown = admin[:-1] + ("0" if admin[-1] != "0" else "1")
        self.keys: dict[str, str | None] = {
            "nobody": None,
            "read": read,
            "agent": agent,
            "admin": admin,
            "revoked": revoked,
            "expired": expired,
            "unknown": unknown,
        }


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Instructions too: routes that are switched off are there for nobody."""
    clock, folder = ManualClock(), tmp_path_factory.mktemp("served")
    with opened_store("sqlite", folder) as store:
        library = library_of(store, clock, folder / "root")
        with serving_store(MemoryStore(), clock=clock, library=library) as client:
            yield Served(client, clock)


def path_of(one: Route) -> str:
    filled = one.path.replace("{agent_id}", "a1")
    for name in one.path_names:
        filled = filled.replace(f"{{{name}}}", "none-such")
    # A feed never ends; one that cannot be asked for is judged at the same door.
    return f"{filled}?after=x" if one.content_type == "text/event-stream" else filled


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("one", ROUTES, ids=lambda one: f"{one.method} {one.path}")
def test_a_route_is_open_to_whom_its_rule_names_and_to_nobody_else(served: Served, one: Route, holder: str) -> None:
    answered = served.client.ask(one.method, path_of(one), {} if one.method == "PUT" else None, key=served.keys[holder])
    if holder in MAY[one.rule]:
        assert answered.status in (200, 400, 404, 409)
    elif holder in ("read", "agent"):
        assert (answered.status, answered.code) == (403, one.denied_code)
    else:
        expected = "key_required" if holder == "nobody" else "invalid_key"
        assert (answered.status, answered.code) == (401, expected)
        assert answered.headers["www-authenticate"] == "Bearer"


def test_every_route_has_a_rule_and_only_harmless_ones_are_open() -> None:
    assert {one.rule for one in ROUTES} <= set(get_args(AccessRule)) == MAY.keys()
    assert {one.path for one in ROUTES if one.rule == "open"} == {"/healthz", "/readyz"}
    assert all(one.rule == "admin" for one in ROUTES if one.method != "GET" and one.path.startswith("/api/cache"))
    assert next(one.rule for one in ROUTES if one.path.endswith("/bytes")) == "admin", "it quotes the prompt"


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Basic YTpi"},
        {"authorization": "Bearer"},
        {"authorization": "Bearer hf_x_y"},
        {"authorization": "bearer " + "hf_" * 1000},
        {"authorization": "Bearer hf_0000000000000000_" + "0" * 64},
    ],
)
def test_what_is_no_key_is_refused_also_where_none_is_needed_yet(headers: dict[str, str]) -> None:
    with serving_store(MemoryStore()) as client:
        assert client.ask("GET", "/api/cache").status == 200
        assert client.ask("GET", "/api/cache", headers=headers).code == "invalid_key"


def test_without_a_key_this_machine_is_an_admin_until_the_first_key_is_made() -> None:
    with serving_store(MemoryStore()) as client:
        assert client.ask("PUT", "/api/cache/settings", {"ttl": "5m"}).status == 200
        key = client.key("read")
        assert client.ask("GET", "/api/cache/settings").code == "key_required"
        assert client.get("/api/cache/settings", key=key)["ttl"] == "5m"


def test_keys_may_be_required_before_there_is_one() -> None:
    with serving_store(MemoryStore(), require_keys=True) as client:
        assert client.ask("GET", "/api/cache").code == "key_required"


def test_a_revocation_holds_at_once_and_opens_no_door() -> None:
    with serving_store(MemoryStore()) as client:
        key = client.key("admin")
        assert client.ask("GET", "/api/cache", key=key).status == 200
        client.service.records.revoke_key(key.split("_")[1], at=5.0)
        assert client.ask("GET", "/api/cache", key=key).code == "invalid_key"
        assert client.ask("GET", "/api/cache").code == "key_required"


def test_a_route_that_always_needs_a_key_has_no_keyless_admin() -> None:
    listing = next(one for one in ROUTES if one.path == "/api/cache")
    with serving_store(MemoryStore(), routes=(msgspec.structs.replace(listing, keyless=False),)) as client:
        assert client.ask("GET", "/api/cache").code == "key_required"


def test_an_agents_key_opens_its_own_paths_and_no_others() -> None:
    listing = next(one for one in ROUTES if one.path == "/api/cache/{discussion_id}")
    own = msgspec.structs.replace(listing, path="/v1/agents/{agent_id}/{discussion_id}", rule="agent", keyless=False)
    with serving_store(MemoryStore(), routes=(own,)) as client:
        key, reading = client.key("agent:a1"), client.key("read")
        assert client.ask("GET", "/v1/agents/a1/x", key=key).status == 400
        assert client.ask("GET", "/v1/agents/a2/x", key=key).code == "not_allowed"
        assert client.ask("GET", "/v1/agents/a1/x", key=reading).code == "not_allowed"
