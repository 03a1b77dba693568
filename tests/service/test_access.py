"""Which roles may use which route: generated from the route table, so a new route is covered at once."""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from tests.support.instruction_service import library_of, open_store_of_kind
from tests.support.served_service import Client, serve_store, serve_store_in_process

from holdfast.clock import ManualClock
from holdfast.service.auth.keys import check_allowed
from holdfast.service.http.routes import AccessRule, ApiError, Route
from holdfast.service.route_table import ROUTES
from holdfast.stores.event_log import DatabaseEventLog

ROLES = ("no key", "read", "gateway", "agent", "admin", "revoked", "expired", "unknown")

MAY: dict[AccessRule, tuple[str, ...]] = {
    "open": ROLES,
    "read": ("read", "admin"),
    "admin": ("admin",),
    "caller": ("agent", "admin"),
}
"""By rule, whose requests are allowed. With rule `caller` the route decides; none allows a key of scope read."""


@pytest.mark.parametrize("rule", MAY)
def test_rule_matches_whole_scopes_only(rule: AccessRule) -> None:
    scopes = {None: "no key", "read": "read", "gateway": "gateway", "admin": "admin", "agent:a1": "agent"}
    for scope, role in scopes.items():
        # The rule `caller` leaves keys of every scope to the route.
        allowed = role in MAY[rule] or (rule == "caller" and scope is not None)
        assert is_allowed(rule, scope) == allowed, scope
    near = ("", "Admin", "admin ", "administrator", "reader", "agent", "agent:", "agent:a", "agent:a11", "agent:a1:b")
    for scope in near:
        assert is_allowed(rule, scope) == (rule in ("open", "caller")), scope


def is_allowed(rule: AccessRule, scope: str | None) -> bool:
    refusal = None
    try:
        check_allowed(rule, scope)
    except ApiError as error:
        refusal = error.status, error.response.error.code
    assert refusal in (None, (401, "key_required") if scope is None else (403, "not_allowed"))
    return refusal is None


class Roles:
    def __init__(self, client: Client, clock: ManualClock) -> None:
        self.client, self.clock = client, clock
        admin = client.key("admin")
        revoked = client.key("admin", expires_at=clock() + 1_000_000)
        client.service.records.revoke_key(revoked.split("_")[1], at=1.0)
        expired = client.key("admin", expires_at=clock() + 10)
        clock.advance(10)
        self.keys: dict[str, str | None] = {
            "no key": None,
            "read": client.key("read"),
            "gateway": client.key("gateway"),
            "agent": client.key("agent:a1"),
            "admin": admin,
            "revoked": revoked,
            "expired": expired,
            "unknown": admin[:-1] + ("0" if admin[-1] != "0" else "1"),
        }


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseEventLog]:
    with open_store_of_kind(request.param, tmp_path) as store:
        yield store


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def roles(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roles]:
    """With instructions: routes that are switched off respond 404 to everyone."""
    clock, folder = ManualClock(), tmp_path_factory.mktemp("served")
    with open_store_of_kind(request.param, folder) as store:
        library = library_of(store, clock, folder / "root")
        with serve_store_in_process(store, clock=clock, library=library) as client:
            yield Roles(client, clock)


def path_of(route: Route) -> str:
    filled = route.path.replace("{agent_id}", "a1")
    for name in route.path_names:
        filled = filled.replace(f"{{{name}}}", "none-such")
    # A feed never ends; access is checked before this invalid request is refused.
    return f"{filled}?after=x" if route.content_type == "text/event-stream" else filled


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_route_is_open_to_the_roles_of_its_rule_and_to_no_other(roles: Roles, route: Route) -> None:
    body: object = {} if route.method == "PUT" else None
    # An address may send 20 wrong keys a minute.
    roles.clock.advance(61)
    for role in ROLES:
        response = roles.client.request(route.method, path_of(route), body, key=roles.keys[role])
        if role in MAY[route.rule]:
            assert response.status in (200, 400, 404, 409, 422), role
        elif role in ("read", "gateway", "agent"):
            assert (response.status, response.code) == (403, route.denied_code), role
        else:
            expected = "key_required" if role == "no key" else "invalid_key"
            assert (response.status, response.code) == (401, expected), role
            assert response.headers["www-authenticate"] == "Bearer"


def test_every_route_has_a_rule_and_only_harmless_routes_are_open() -> None:
    assert {route.rule for route in ROUTES} <= set(get_args(AccessRule)) == MAY.keys()
    assert {route.path for route in ROUTES if route.rule == "open"} == {"/healthz", "/readyz"}
    assert all(
        route.rule == "admin" for route in ROUTES if route.method != "GET" and route.path.startswith("/api/cache")
    )
    assert next(route.rule for route in ROUTES if route.path.endswith("/bytes")) == "admin", "it quotes the prompt"


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
def test_malformed_key_is_refused_even_while_no_key_is_required(
    store: DatabaseEventLog, headers: dict[str, str]
) -> None:
    with serve_store(store) as client:
        assert client.request("GET", "/api/cache").status == 200
        assert client.request("GET", "/api/cache", headers=headers).code == "invalid_key"


def test_local_caller_without_a_key_is_admin_until_the_first_key_exists(store: DatabaseEventLog) -> None:
    with serve_store(store) as client:
        assert client.request("PUT", "/api/cache/settings", {"ttl": "5m"}).status == 200
        key = client.key("read")
        assert client.request("GET", "/api/cache/settings").code == "key_required"
        assert client.get("/api/cache/settings", key=key)["ttl"] == "5m"


def test_keys_can_be_required_before_any_exists(store: DatabaseEventLog) -> None:
    with serve_store(store, require_keys=True) as client:
        assert client.request("GET", "/api/cache").code == "key_required"


def test_revoking_a_key_takes_effect_at_once_and_does_not_restore_keyless_access(store: DatabaseEventLog) -> None:
    with serve_store(store) as client:
        key = client.key("admin")
        assert client.request("GET", "/api/cache", key=key).status == 200
        client.service.records.revoke_key(key.split("_")[1], at=5.0)
        assert client.request("GET", "/api/cache", key=key).code == "invalid_key"
        assert client.request("GET", "/api/cache").code == "key_required"


def test_route_that_always_needs_a_key_has_no_keyless_admin(store: DatabaseEventLog) -> None:
    listing = next(route for route in ROUTES if route.path == "/api/cache")
    with serve_store(store, routes=(msgspec.structs.replace(listing, keyless=False),)) as client:
        assert client.request("GET", "/api/cache").code == "key_required"
