"""Who may do what with the instructions of whom: every route, every kind of key, each store."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.instruction_places import AGENT, Place, place
from tests.support.served_service import serving_store

from holdfast.service.route_table import ROUTES
from holdfast.stores.memory import MemoryStore

# Who may do what is asked of the store: each store answers for itself.
pytestmark = pytest.mark.every_store

ABOUT = tuple(one for one in ROUTES if one.path.startswith("/v1/"))

NEAR = {
    "prefixed": AGENT[:-1],
    "lengthened": f"{AGENT}x",
    "preceded": f"x:{AGENT}",
    "prefixed supervisor": "bos",
    "lengthened supervisor": "bossy",
    "preceded supervisor": "x:boss",
}
"""Names that hold another's, or are held by it; whoever has one is a peer like any other."""

STORES = ("sqlite", "postgres")

HOLDERS = ("nobody", "itself", *NEAR, "peer", "supervisor", "read", "admin", "revoked")

ADMINS = ("admin",)
OWN = ("itself", "admin")
RECALL = ("itself", "supervisor", "admin")
AGENTS = ("itself", *NEAR, "peer", "supervisor", "admin")

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
    # Whose record it is is judged by the token; those of others are unknown.
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


class Held:
    def __init__(self, at: Place) -> None:
        self.at = at
        at.furnish()
        assert at.of_agent("PUT", "", {"role": "CTO", "supervisors": ["boss"]}).status == 200
        revoked = at.client.key("admin", expires_at=at.clock() + 1_000_000)
        at.client.service.records.revoke_key(revoked.split("_")[1], at=1.0)
        self.keys = {
            "nobody": None,
            "itself": at.agent_key,
            **{holder: at.client.key(f"agent:{name}") for holder, name in NEAR.items()},
            "peer": at.client.key("agent:other"),
            "supervisor": at.client.key("agent:boss"),
            "read": at.client.key("read"),
            "admin": at.ann,
            "revoked": revoked,
        }


@pytest.fixture(scope="module", params=STORES)
def held(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    with place(request.param, tmp_path_factory.mktemp("held")) as at:
        yield Held(at)


def test_the_matrix_has_every_route_about_instructions() -> None:
    assert {(one.method, one.path) for one in ABOUT} == MAY.keys()
    assert not any(one.keyless for one in ABOUT)


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize(("method", "path"), MAY, ids=lambda part: str(part))
def test_only_those_who_may_get_past_the_door(held: Held, method: str, path: str, holder: str) -> None:
    key = held.keys[holder]
    body = None if method == "GET" else BODIES.get(path, {})
    answered = held.at.client.ask(method, path.replace("{agent_id}", AGENT), body, key=key)
    if holder in ("nobody", "revoked"):
        assert (answered.status, answered.code) == (401, "key_required" if key is None else "invalid_key")
    elif holder in MAY[method, path]:
        assert answered.status in (200, 204, 400) or answered.code == "signer_not_found"
    else:
        assert (answered.status, answered.code) == (403, "instruction_scope_denied")


UNFIT = (
    b"{",
    b"[1]",
    b"\xff",
    b'{"no_such_field": 1}',
    b'{"intent": 5, "audit_token": 5, "wake_token": 5, "entries": 5}',
)


@pytest.mark.parametrize("holder", ["itself", *NEAR, "peer", "supervisor", "read", "admin"])
@pytest.mark.parametrize(("method", "path"), [key for key in MAY if key[0] != "GET"], ids=str)
def test_who_may_not_is_told_so_whatever_is_wrong_with_the_body(
    held: Held, method: str, path: str, holder: str
) -> None:
    may = MAY[method, path]
    if path == "/v1/recall":
        # Of whom it asks stands in the body alone.
        may = AGENTS
    for body in UNFIT:
        answered = held.at.client.ask(
            method,
            path.replace("{agent_id}", AGENT),
            body,
            key=held.keys[holder],
            headers={"content-type": "application/json"},
        )
        if holder in may:
            assert answered.status == 400
        else:
            assert (answered.status, answered.code) == (403, "instruction_scope_denied")


@pytest.mark.parametrize("holder", [*NEAR, "peer"])
@pytest.mark.parametrize("path", [path for method, path in MAY if method == "GET"])
def test_who_may_not_is_told_so_whatever_is_wrong_with_the_query(held: Held, path: str, holder: str) -> None:
    for query in ("?nope=1", "?days=0", "?a=1&a=2", f"?a={'x' * 9000}"):
        answered = held.at.client.ask("GET", path.replace("{agent_id}", AGENT) + query, key=held.keys[holder])
        assert (answered.status, answered.code) == (403, "instruction_scope_denied")


@pytest.mark.parametrize(("method", "path"), [key for key in MAY if "{agent_id}" in key[1]], ids=str)
def test_whoever_may_not_cannot_learn_which_agents_there_are(held: Held, method: str, path: str) -> None:
    body = None if method == "GET" else BODIES.get(path, {})
    peer = held.keys["peer"]
    there, nowhere = (
        held.at.client.ask(method, path.replace("{agent_id}", agent), body, key=peer)
        for agent in (AGENT, "nobody-such")
    )
    assert (there.status, there.body) == (nowhere.status, nowhere.body)


def test_a_shortname_is_the_agent_itself_and_is_nobody_elses(held: Held) -> None:
    settings = {"role": "CTO", "shortname": "cto", "supervisors": ["boss"]}
    assert held.at.of_agent("PUT", "", settings).status == 200
    cto = held.at.client.key("agent:cto")
    assert held.at.of_agent("GET", "/instruction-manifest", key=cto).status == 200
    assert held.at.ask("GET", "/v1/agents/cto/boot-stub", key=held.at.agent_key).status == 200
    assert held.at.ask("PUT", "/v1/agents/other", {"shortname": "cto"}).code == "shortname_taken"
    assert held.at.ask("PUT", "/v1/agents/other", {"shortname": AGENT}).code == "shortname_taken"


def test_where_instructions_are_switched_off_the_answer_says_so() -> None:
    with serving_store(MemoryStore()) as client:
        keys = (client.key("admin"), client.key("read"), client.key("gateway"), client.key("agent:a2"), "hf_1", None)
        for key, one in itertools.product(keys, ABOUT):
            bodies: tuple[object, ...] = (None,) if one.method == "GET" else ({}, b"{")
            for body in bodies:
                answered = client.ask(one.method, one.path.replace("{agent_id}", "a1"), body, key=key)
                assert (answered.status, answered.code) == (404, "instructions_disabled")


def test_no_key_is_needed_nowhere_not_even_before_there_is_one(tmp_path: Path) -> None:
    with place("sqlite", tmp_path) as at:
        for one in ABOUT:
            body: object = None if one.method == "GET" else {}
            assert at.client.ask(one.method, one.path.replace("{agent_id}", "a1"), body).code == "key_required"


@pytest.mark.parametrize("scope", ["read", "gateway"])
def test_a_key_that_has_no_instructions_is_told_so_before_what_is_wrong_with_the_scope(held: Held, scope: str) -> None:
    key = held.at.client.key(scope, expires_at=held.at.clock() + 1_000_000)
    for said in ("memory:local/a1", "instruction:acme/a1", "instruction:local", "", f"instruction:local/{AGENT}"):
        answered = held.at.client.ask("POST", "/v1/recall", {"scope": said, "intent": "x"}, key=key)
        assert (answered.status, answered.code) == (403, "instruction_scope_denied")


@pytest.mark.parametrize("declared", ["boss-uuid", "chief"])
@pytest.mark.parametrize("holder", ["chief", "boss-uuid"])
def test_a_supervisor_is_known_by_its_id_and_by_its_shortname(at: Place, declared: str, holder: str) -> None:
    at.furnish()
    assert at.of_agent("PUT", "", {"supervisors": [declared]}).status == 200
    key = at.client.key(f"agent:{holder}")
    # Before the supervisor is registered its key is worth its own name and nothing else.
    assert at.recall("claim a ticket", key=key).status == (200 if holder == declared else 403)
    assert at.ask("PUT", "/v1/agents/boss-uuid", {"shortname": "chief"}).status == 200
    scope = {"scope": f"instruction:local/{AGENT}", "intent": "claim a ticket"}
    assert at.recall("claim a ticket", key=key).status == at.ask("POST", "/v1/recall", scope, key=key).status == 200
    stranger = at.client.key("agent:chief-2")
    assert at.recall("claim a ticket", key=stranger).code == "instruction_scope_denied"
    # Who has another name now has no right by the one before it.
    assert at.ask("PUT", "/v1/agents/boss-uuid", {"shortname": "head-of-all"}).status == 200
    assert at.recall("claim a ticket", key=key).status == (200 if holder == declared else 403)


@pytest.mark.parametrize("name", ["ct", "ctor", "x:cto"])
def test_a_name_that_is_nearly_a_shortname_is_somebody_elses(held: Held, name: str) -> None:
    assert held.at.of_agent("PUT", "", {"shortname": "cto", "supervisors": ["boss"]}).status == 200
    key = held.at.client.key(f"agent:{name}")
    for path in (f"/v1/agents/{AGENT}/boot-stub", "/v1/agents/cto/boot-stub"):
        assert held.at.ask("GET", path, key=key).code == "instruction_scope_denied"


def test_the_matrix_is_tried_whole_on_each_store(request: pytest.FixtureRequest) -> None:
    tried: dict[str, set[str]] = {store: set() for store in STORES}
    for item in request.session.items:
        name, _, case = item.nodeid.partition("[")
        store, _, rest = case.rstrip("]").partition("-")
        if item.path == Path(__file__) and store in tried:
            tried[store].add(f"{name} {rest}")
    assert tried["postgres"] == tried["sqlite"]
