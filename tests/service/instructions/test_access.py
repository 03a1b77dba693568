"""Who may use which instruction route: every route and every role, through the app in process at one store.

The rules themselves are tested in tests/instructions/test_access.py; what a store does to names, below on each store.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.instruction_places import AGENT, Place, place
from tests.support.served_service import calling_store

from holdfast.service.route_table import ROUTES
from holdfast.stores.memory import MemoryStore

INSTRUCTION_ROUTES = tuple(route for route in ROUTES if route.path.startswith("/v1/"))

NEAR = (AGENT[:-1], f"{AGENT}x", f"x:{AGENT}", AGENT.upper(), "bos", "bossy", "x:boss", "BOSS")
"""Names that contain the agent's or its supervisor's, or are contained in it: peers like any other."""

PEERS = ("peer", "near", "near supervisor")
ROLES = ("no key", "revoked", "read", "gateway", "itself", *PEERS, "supervisor", "admin")

ADMINS = ("admin",)
OWN = ("itself", "admin")
RECALL = ("itself", "supervisor", "admin")
AGENTS = ("itself", *PEERS, "supervisor", "admin")

A = "/v1/agents/{agent_id}"
MAY: dict[tuple[str, str], tuple[str, ...]] = {
    ("PUT", A): ADMINS,
    ("PUT", "/v1/instruction/units"): ADMINS,
    ("PUT", "/v1/instruction/signer"): ADMINS,
    ("GET", "/v1/instruction/signer"): ADMINS,
    ("DELETE", "/v1/instruction/signer/{public_key}"): ADMINS,
    ("GET", f"{A}/boot-stub"): OWN,
    ("GET", f"{A}/instruction-manifest"): OWN,
    ("PUT", f"{A}/instruction-manifest"): ADMINS,
    ("POST", f"{A}/recall-instruction"): RECALL,
    ("POST", "/v1/recall"): RECALL,
    ("POST", f"{A}/heartbeat"): OWN,
    # The token decides whose record it is; tokens of others are unknown.
    ("POST", "/v1/instruction/audit"): AGENTS,
    ("GET", f"{A}/instruction-manifest/coverage"): OWN,
    ("POST", f"{A}/instruction-manifest/coverage"): ADMINS,
    ("GET", f"{A}/approvals"): ADMINS,
    ("POST", f"{A}/approvals"): ADMINS,
    ("GET", f"{A}/instruction-audit"): ADMINS,
    ("GET", f"{A}/instruction-measures"): ADMINS,
    ("GET", f"{A}/instruction-shadow"): ADMINS,
    ("POST", f"{A}/instruction-replay"): ADMINS,
    ("GET", f"{A}/instruction-probes"): ADMINS,
    ("PUT", f"{A}/instruction-probes"): ADMINS,
}

BODIES: dict[str, dict[str, object]] = {
    A: {"role": "CTO", "supervisors": ["boss"]},
    "/v1/recall": {"scope": f"instruction:local/{AGENT}", "intent": "claim a ticket"},
    f"{A}/recall-instruction": {"intent": "claim a ticket"},
    "/v1/instruction/audit": {"audit_token": "audi_none"},
}


class Roles:
    def __init__(self, at: Place) -> None:
        self.at = at
        at.furnish()
        assert at.of_agent("PUT", "", {"role": "CTO", "supervisors": ["boss"]}).status == 200
        revoked = at.client.key("admin", expires_at=at.clock() + 1_000_000)
        at.client.service.records.revoke_key(revoked.split("_")[1], at=1.0)
        self.keys = {
            "no key": None,
            "revoked": revoked,
            "read": at.client.key("read"),
            "gateway": at.client.key("gateway"),
            "itself": at.agent_key,
            "peer": at.client.key("agent:other"),
            "near": at.client.key(f"agent:{AGENT}x"),
            "near supervisor": at.client.key("agent:bossy"),
            "supervisor": at.client.key("agent:boss"),
            "admin": at.ann,
        }

    def ask(self, role: str, method: str, path: str, body: object) -> tuple[int, str]:
        """Status and error code."""
        headers = {"content-type": "application/json"} if isinstance(body, bytes) else None
        answered = self.at.client.ask(
            method, path.replace("{agent_id}", AGENT), body, key=self.keys[role], headers=headers
        )
        return answered.status, answered.code if answered.status >= 400 else ""


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roles]:
    with place("sqlite", tmp_path_factory.mktemp("roles"), in_process=True) as at:
        yield Roles(at)


def test_the_table_has_every_instruction_route() -> None:
    assert {(route.method, route.path) for route in INSTRUCTION_ROUTES} == MAY.keys()
    assert not any(route.keyless for route in INSTRUCTION_ROUTES)


DENIED = (403, "instruction_scope_denied")


@pytest.mark.parametrize(("method", "path"), MAY, ids=str)
def test_only_the_roles_of_a_route_get_past_its_access_check(roles: Roles, method: str, path: str) -> None:
    body = None if method == "GET" else BODIES.get(path, {})
    refusals = {"no key": (401, "key_required"), "revoked": (401, "invalid_key")}
    for role in ROLES:
        status, code = roles.ask(role, method, path, body)
        if role in MAY[method, path]:
            assert status in (200, 204, 400) or code == "signer_not_found", role
        else:
            assert (status, code) == refusals.get(role, DENIED), role


UNFIT_BODIES = (
    b"{",
    b"[1]",
    b"\xff",
    b'{"no_such_field": 1}',
    b'{"intent": 5, "audit_token": 5, "wake_token": 5, "entries": 5}',
)
UNFIT_QUERIES = ("?nope=1", "?days=0", "?a=1&a=2", f"?a={'x' * 9000}")


@pytest.mark.parametrize(("method", "path"), MAY, ids=str)
def test_a_caller_without_access_is_refused_whatever_is_wrong_with_the_request(
    roles: Roles, method: str, path: str
) -> None:
    # /v1/recall names the agent only in its body, so without a valid one every agent passes.
    may = AGENTS if path == "/v1/recall" else MAY[method, path]
    unfit: list[tuple[str, bytes | None]] = [(path, body) for body in UNFIT_BODIES]
    if method == "GET":
        unfit = [(path + query, None) for query in UNFIT_QUERIES]
    for role, (target, body) in itertools.product(ROLES[2:], unfit):
        status, code = roles.ask(role, method, target, body)
        if role not in may:
            assert (status, code) == DENIED, (role, target, body)
        elif body is not None:
            assert status == 400, (role, target, body)


def test_a_caller_without_access_cannot_learn_which_agents_exist(roles: Roles) -> None:
    for method, path in MAY:
        if "{agent_id}" in path:
            body = None if method == "GET" else BODIES.get(path, {})
            existing, unknown = (
                roles.at.client.ask(method, path.replace("{agent_id}", agent), body, key=roles.keys["peer"])
                for agent in (AGENT, "nobody-such")
            )
            assert (existing.status, existing.body) == (unknown.status, unknown.body), path


def test_where_instructions_are_off_every_response_says_so() -> None:
    with calling_store(MemoryStore()) as client:
        keys = (client.key("admin"), client.key("read"), client.key("gateway"), client.key("agent:a2"), "hf_1", None)
        for key, route in itertools.product(keys, INSTRUCTION_ROUTES):
            bodies: tuple[object, ...] = (None,) if route.method == "GET" else ({}, b"{")
            for body in bodies:
                answered = client.ask(route.method, route.path.replace("{agent_id}", "a1"), body, key=key)
                assert (answered.status, answered.code) == (404, "instructions_disabled")


def test_a_key_is_needed_even_before_there_is_one(tmp_path: Path) -> None:
    with place("sqlite", tmp_path, in_process=True) as at:
        for route in INSTRUCTION_ROUTES:
            body: object = None if route.method == "GET" else {}
            assert at.client.ask(route.method, route.path.replace("{agent_id}", "a1"), body).code == "key_required"


def test_a_key_without_instructions_is_refused_before_its_scope_is_read(roles: Roles) -> None:
    scopes = ("memory:local/a1", "instruction:acme/a1", "instruction:local", "", f"instruction:local/{AGENT}")
    for role, scope in itertools.product(("read", "gateway"), scopes):
        assert roles.ask(role, "POST", "/v1/recall", {"scope": scope, "intent": "x"}) == DENIED


def test_names_are_compared_whole_in_each_store(at: Place) -> None:
    at.furnish()
    settings = {"role": "CTO", "shortname": "cto", "supervisors": ["boss"]}
    assert at.of_agent("PUT", "", settings).status == 200
    cto = at.client.key("agent:cto")
    assert at.of_agent("GET", "/instruction-manifest", key=cto).status == 200
    assert at.ask("GET", "/v1/agents/cto/boot-stub", key=at.agent_key).status == 200
    assert at.ask("PUT", "/v1/agents/other", {"shortname": "cto"}).code == "shortname_taken"
    assert at.ask("PUT", "/v1/agents/other", {"shortname": AGENT}).code == "shortname_taken"
    assert at.recall("claim a ticket", key=at.client.key("agent:boss")).status == 200
    for name in (*NEAR, "ct", "ctor", "x:cto", "CTO"):
        key = at.client.key(f"agent:{name}")
        for agent in (AGENT, "cto"):
            assert at.ask("GET", f"/v1/agents/{agent}/boot-stub", key=key).code == "instruction_scope_denied", name
            recall = at.ask("POST", f"/v1/agents/{agent}/recall-instruction", {"intent": "claim a ticket"}, key=key)
            assert recall.code == "instruction_scope_denied", name


@pytest.mark.parametrize("declared", ["boss-uuid", "chief"])
@pytest.mark.parametrize("holder", ["chief", "boss-uuid"])
def test_each_store_finds_a_supervisor_by_id_and_by_shortname(at: Place, declared: str, holder: str) -> None:
    at.furnish()
    assert at.of_agent("PUT", "", {"supervisors": [declared]}).status == 200
    key = at.client.key(f"agent:{holder}")
    # Until the supervisor is registered, its key counts under its own name only.
    assert at.recall("claim a ticket", key=key).status == (200 if holder == declared else 403)
    assert at.ask("PUT", "/v1/agents/boss-uuid", {"shortname": "chief"}).status == 200
    scope = {"scope": f"instruction:local/{AGENT}", "intent": "claim a ticket"}
    assert at.recall("claim a ticket", key=key).status == at.ask("POST", "/v1/recall", scope, key=key).status == 200
    stranger = at.client.key("agent:chief-2")
    assert at.recall("claim a ticket", key=stranger).code == "instruction_scope_denied"
    # A former shortname gives no access.
    assert at.ask("PUT", "/v1/agents/boss-uuid", {"shortname": "head-of-all"}).status == 200
    assert at.recall("claim a ticket", key=key).status == (200 if holder == declared else 403)
