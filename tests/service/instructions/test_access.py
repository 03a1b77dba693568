"""Who may use which instruction route: every route and every role, through the app in process at one store.

The rules themselves are tested in tests/instructions/test_access.py; what a store does to names, below on each store.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.instruction_service import AGENT, InstructionService, serve_instructions
from tests.support.served_service import serve_store_in_process

from holdfast.service.route_table import ROUTES
from holdfast.stores.memory import MemoryStore

INSTRUCTION_ROUTES = tuple(route for route in ROUTES if route.path.startswith("/v1/"))

NEAR = (AGENT[:-1], f"{AGENT}x", f"x:{AGENT}", AGENT.upper(), "bos", "bossy", "x:boss", "BOSS")
"""Names that contain the agent's or supervisor's name, or are part of it: they get the access of any other agent."""

PEERS = ("peer", "near", "near supervisor")
ROLES = ("no key", "revoked", "read", "gateway", "itself", *PEERS, "supervisor", "admin")

ADMINS = ("admin",)
OWN = ("itself", "admin")
RECALL = ("itself", "supervisor", "admin")
AGENTS = ("itself", *PEERS, "supervisor", "admin")

A = "/v1/agents/{agent_id}"
MAY: dict[tuple[str, str], tuple[str, ...]] = {
    ("PUT", A): ADMINS,
    ("GET", A): OWN,
    ("POST", "/v1/instruction/units/withdraw"): ADMINS,
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
    ("POST", f"{A}/instruction-folder/check"): ADMINS,
    ("PUT", f"{A}/instruction-folder"): ADMINS,
    ("POST", f"{A}/instruction-approve"): ADMINS,
    ("POST", f"{A}/instruction-promote"): ADMINS,
    ("GET", f"{A}/instruction-coverage"): ADMINS,
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
    def __init__(self, service: InstructionService) -> None:
        self.at = service
        service.publish_all()
        assert service.agent_request("PUT", "", {"role": "CTO", "supervisors": ["boss"]}).status == 200
        revoked = service.client.key("admin", expires_at=service.clock() + 1_000_000)
        service.client.service.records.revoke_key(revoked.split("_")[1], at=1.0)
        self.keys = {
            "no key": None,
            "revoked": revoked,
            "read": service.client.key("read"),
            "gateway": service.client.key("gateway"),
            "itself": service.agent_key,
            "peer": service.client.key("agent:other"),
            "near": service.client.key(f"agent:{AGENT}x"),
            "near supervisor": service.client.key("agent:bossy"),
            "supervisor": service.client.key("agent:boss"),
            "admin": service.ann,
        }

    def request(self, role: str, method: str, path: str, body: object) -> tuple[int, str]:
        """Status and error code."""
        # An address may send 20 wrong keys a minute.
        self.at.clock.advance(4)
        headers = {"content-type": "application/json"} if isinstance(body, bytes) else None
        response = self.at.client.request(
            method, path.replace("{agent_id}", AGENT), body, key=self.keys[role], headers=headers
        )
        return response.status, response.code if response.status >= 400 else ""


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roles]:
    with serve_instructions("sqlite", tmp_path_factory.mktemp("roles"), in_process=True) as service:
        yield Roles(service)


def test_role_table_covers_every_instruction_route() -> None:
    assert {(route.method, route.path) for route in INSTRUCTION_ROUTES} == MAY.keys()
    assert not any(route.keyless for route in INSTRUCTION_ROUTES)


DENIED = (403, "instruction_scope_denied")


@pytest.mark.parametrize(("method", "path"), MAY, ids=str)
def test_only_the_roles_of_a_route_get_past_its_access_check(roles: Roles, method: str, path: str) -> None:
    body = None if method == "GET" else BODIES.get(path, {})
    refusals = {"no key": (401, "key_required"), "revoked": (401, "invalid_key")}
    for role in ROLES:
        status, code = roles.request(role, method, path, body)
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
def test_caller_without_access_is_refused_before_the_request_is_validated(roles: Roles, method: str, path: str) -> None:
    # /v1/recall names the agent only in its body, so without a valid one every agent passes.
    may = AGENTS if path == "/v1/recall" else MAY[method, path]
    unfit: list[tuple[str, bytes | None]] = [(path, body) for body in UNFIT_BODIES]
    if method == "GET":
        unfit = [(path + query, None) for query in UNFIT_QUERIES]
    for role, (target, body) in itertools.product(ROLES[2:], unfit):
        status, code = roles.request(role, method, target, body)
        if role not in may:
            assert (status, code) == DENIED, (role, target, body)
        elif body is not None:
            assert status == 400, (role, target, body)


def test_caller_without_access_cannot_learn_which_agents_exist(roles: Roles) -> None:
    for method, path in MAY:
        if "{agent_id}" in path:
            body = None if method == "GET" else BODIES.get(path, {})
            existing, unknown = (
                roles.at.client.request(method, path.replace("{agent_id}", agent), body, key=roles.keys["peer"])
                for agent in (AGENT, "nobody-such")
            )
            assert (existing.status, existing.body) == (unknown.status, unknown.body), path


def test_every_response_reports_disabled_instructions() -> None:
    with serve_store_in_process(MemoryStore()) as client:
        keys = (client.key("admin"), client.key("read"), client.key("gateway"), client.key("agent:a2"), "hf_1", None)
        for key, route in itertools.product(keys, INSTRUCTION_ROUTES):
            bodies: tuple[object, ...] = (None,) if route.method == "GET" else ({}, b"{")
            for body in bodies:
                response = client.request(route.method, route.path.replace("{agent_id}", "a1"), body, key=key)
                assert (response.status, response.code) == (404, "instructions_disabled")


def test_key_is_required_even_before_one_exists(tmp_path: Path) -> None:
    with serve_instructions("sqlite", tmp_path, in_process=True) as service:
        for route in INSTRUCTION_ROUTES:
            body: object = None if route.method == "GET" else {}
            assert (
                service.client.request(route.method, route.path.replace("{agent_id}", "a1"), body).code
                == "key_required"
            )


def test_key_is_refused_without_instructions_before_its_scope_is_read(roles: Roles) -> None:
    scopes = ("memory:local/a1", "instruction:acme/a1", "instruction:local", "", f"instruction:local/{AGENT}")
    for role, scope in itertools.product(("read", "gateway"), scopes):
        assert roles.request(role, "POST", "/v1/recall", {"scope": scope, "intent": "x"}) == DENIED


def test_agent_names_are_compared_exactly_in_each_store(service: InstructionService) -> None:
    service.publish_all()
    settings = {"role": "CTO", "shortname": "cto", "supervisors": ["boss"]}
    assert service.agent_request("PUT", "", settings).status == 200
    cto = service.client.key("agent:cto")
    assert service.agent_request("GET", "/instruction-manifest", key=cto).status == 200
    assert service.request("GET", "/v1/agents/cto/boot-stub", key=service.agent_key).status == 200
    assert service.request("PUT", "/v1/agents/other", {"shortname": "cto"}).code == "shortname_taken"
    assert service.request("PUT", "/v1/agents/other", {"shortname": AGENT}).code == "shortname_taken"
    assert service.recall("claim a ticket", key=service.client.key("agent:boss")).status == 200
    for name in (*NEAR, "ct", "ctor", "x:cto", "CTO"):
        key = service.client.key(f"agent:{name}")
        for agent in (AGENT, "cto"):
            assert (
                service.request("GET", f"/v1/agents/{agent}/boot-stub", key=key).code == "instruction_scope_denied"
            ), name
            recall = service.request(
                "POST", f"/v1/agents/{agent}/recall-instruction", {"intent": "claim a ticket"}, key=key
            )
            assert recall.code == "instruction_scope_denied", name


@pytest.mark.parametrize("declared", ["boss-uuid", "chief"])
@pytest.mark.parametrize("holder", ["chief", "boss-uuid"])
def test_each_store_finds_a_supervisor_by_id_and_by_shortname(
    service: InstructionService, declared: str, holder: str
) -> None:
    service.publish_all()
    assert service.agent_request("PUT", "", {"supervisors": [declared]}).status == 200
    key = service.client.key(f"agent:{holder}")
    # Until the supervisor is registered, its key counts under its own name only.
    assert service.recall("claim a ticket", key=key).status == (200 if holder == declared else 403)
    assert service.request("PUT", "/v1/agents/boss-uuid", {"shortname": "chief"}).status == 200
    scope = {"scope": f"instruction:local/{AGENT}", "intent": "claim a ticket"}
    assert (
        service.recall("claim a ticket", key=key).status
        == service.request("POST", "/v1/recall", scope, key=key).status
        == 200
    )
    stranger = service.client.key("agent:chief-2")
    assert service.recall("claim a ticket", key=stranger).code == "instruction_scope_denied"
    # A former shortname gives no access.
    assert service.request("PUT", "/v1/agents/boss-uuid", {"shortname": "head-of-all"}).status == 200
    assert service.recall("claim a ticket", key=key).status == (200 if holder == declared else 403)
