"""Actual and hypothetical costs of a forwarded session: each anti-pattern with its price, other plans, the minimum."""

import asyncio
import http.client
import json
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from tests.support.scripted_sessions import new_session
from tests.support.served_gateway import ServedGateway, serve_gateway
from tests.support.served_service import serve_store

from holdfast.catalog.lookup import shipped_models
from holdfast.cli.main import command
from holdfast.clock import ManualClock
from holdfast.errors import UserError
from holdfast.events.payloads.calls import RequestPrepared
from holdfast.gateway.rewrite.volatile_text import DATE_RULE, VolatileRule
from holdfast.ledger.cache.state import CacheState, fold_cache_state
from holdfast.replay.audit import PriceLookup
from holdfast.replay.counterfactual import Counterfactual, estimate_counterfactual
from holdfast.service.auth.keys import make_key
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.server_thread import serve_provider

GUIDE = "You read before you write, and you say what you did. " * 600
MEMORY = VolatileRule("memory", r"<memory>[^<]*</memory>")
NAMES = ("delete", "edit", "list", "read", "search", "write")
TURNS = 8
PRICES = PriceLookup(shipped_models())
SCHEMA = {"type": "object", "properties": {}}

Encode = Callable[[int, bool], tuple[str, dict[str, Any]]]
"""The path and the body of a turn, well written or not."""


def prefix_of(turn: int, well: bool) -> tuple[str, str, tuple[str, ...]]:
    """The system prompt, the volatile text that belongs at the end, and the tools in their order."""
    changing = f"Today's date is 2026-11-16, 08:{turn:02}.\n<memory>{turn} things so far.</memory>"
    if well:
        return f"\n{GUIDE}", changing, NAMES
    date, memory = changing.split("\n")
    return f"{date}\n{memory}\n{GUIDE}", "", tuple(random.Random(turn).sample(NAMES, len(NAMES)))


def history(turn: int) -> list[tuple[str, str]]:
    messages = [("user", "Question 0: " + "what does this line do? " * 40)]
    for place in range(1, turn + 1):
        messages += [("assistant", f"Answer {place}: " + "it adds. " * 60), ("user", f"Question {place}? " * 30)]
    return messages


def chat(turn: int, well: bool) -> tuple[str, dict[str, Any]]:
    system, last, names = prefix_of(turn, well)
    tools = [
        {"type": "function", "function": {"name": name, "description": f"{name}. " * 30, "parameters": SCHEMA}}
        for name in names
    ]
    messages = [{"role": role, "content": text} for role, text in history(turn)]
    body: dict[str, Any] = {
        "model": MODELS["chat"],
        "tools": tools,
        "messages": [{"role": "system", "content": system}, *messages],
    }
    if well:
        body["prompt_cache_key"] = "mine"
        body["messages"].append({"role": "system", "content": last})
    return "/openai/v1/chat/completions", body


def openrouter(turn: int, well: bool) -> tuple[str, dict[str, Any]]:
    """Like OpenAI's, with Anthropic's breakpoints; the volatile text comes after the last of them."""
    _, body = chat(turn, False)
    system, last, _ = prefix_of(turn, well)
    body["model"] = MODELS["openrouter"]
    if well:
        cache_control = {"cache_control": {"type": "ephemeral"}}
        body["tools"] = sorted(body["tools"], key=lambda tool: str(tool["function"]["name"]))
        body["messages"][0] = {"role": "system", "content": [{"type": "text", "text": system, **cache_control}]}
        newest = {"type": "text", "text": body["messages"][-1]["content"], **cache_control}
        body["messages"][-1]["content"] = [newest, {"type": "text", "text": last}]
    return "/openrouter/v1/chat/completions", body


def responses(turn: int, well: bool) -> tuple[str, dict[str, Any]]:
    system, last, names = prefix_of(turn, well)
    tools = [
        {"type": "function", "name": name, "description": f"{name}. " * 30, "parameters": SCHEMA} for name in names
    ]
    items = [{"role": role, "content": text} for role, text in history(turn)]
    body: dict[str, Any] = {
        "model": MODELS["responses"],
        "tools": tools,
        "instructions": system,
        "input": items,
        "store": False,
    }
    if well:
        body["prompt_cache_key"] = "mine"
        items.append({"role": "developer", "content": last})
    return "/openai/v1/responses", body


def gemini(turn: int, well: bool) -> tuple[str, dict[str, Any]]:
    system, last, names = prefix_of(turn, well)
    declared = [{"name": name, "description": f"{name}. " * 30, "parameters": SCHEMA} for name in names]
    roles = {"user": "user", "assistant": "model"}
    contents = [{"role": roles[role], "parts": [{"text": text}]} for role, text in history(turn)]
    if well:
        contents.append({"role": "user", "parts": [{"text": last}]})
    body = {
        "systemInstruction": {"parts": [{"text": system}]},
        "tools": [{"functionDeclarations": declared}],
        "contents": contents,
    }
    return f"/gemini/v1beta/models/{MODELS['gemini']}:generateContent", body


def anthropic(turn: int, well: bool) -> tuple[str, dict[str, Any]]:
    system, last, names = prefix_of(turn, well)
    tools = [{"name": name, "description": f"{name}. " * 30, "input_schema": SCHEMA} for name in names]
    messages: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in history(turn)]
    body: dict[str, Any] = {"model": MODELS["anthropic"], "max_tokens": 50, "tools": tools, "messages": messages}
    if not well:
        return "/anthropic/v1/messages", {**body, "system": system}
    cache_control = {"cache_control": {"type": "ephemeral"}}
    messages[-1]["content"] = [
        {"type": "text", "text": messages[-1]["content"], **cache_control},
        {"type": "text", "text": last},
    ]
    return "/anthropic/v1/messages", {**body, "system": [{"type": "text", "text": system, **cache_control}]}


def with_automatic_breakpoint(encode: Encode) -> Encode:
    """The same, where badly written, with the provider's automatic breakpoint."""

    def encode_turn(turn: int, well: bool) -> tuple[str, dict[str, Any]]:
        path, body = encode(turn, well)
        return path, body if well else {**body, "cache_control": {"type": "ephemeral"}}

    return encode_turn


MODELS = {
    "anthropic": "claude-sonnet-5-5",
    "chat": "gpt-6.1-sol",
    "openrouter": "anthropic/claude-sonnet-5.5",
    "responses": "gpt-6.1-sol",
    "gemini": "gemini-3.8-flash",
}
ENCODERS: dict[str, Encode] = {
    "anthropic": anthropic,
    "chat": chat,
    "responses": responses,
    "gemini": gemini,
    "openrouter": openrouter,
    "anthropic, automatic breakpoint": with_automatic_breakpoint(anthropic),
    "openrouter, automatic breakpoint": with_automatic_breakpoint(openrouter),
}


def ask(
    gateway: ServedGateway,
    path: str,
    body: dict[str, Any],
    headers: dict[str, str] | None = None,
    *,
    status: int = 200,
) -> None:
    connection = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=20)
    keys = {"x-api-key": "any", "authorization": "Bearer any", "x-goog-api-key": "any"}
    connection.request("POST", path, json.dumps(body), {**keys, **(headers or {})})
    reply = connection.getresponse()
    assert reply.status == status, reply.read()
    reply.read()
    connection.close()
    gateway.recorded_sessions()


def play_session(
    encode: Encode, *, well: bool = False, improve: bool = False, store: MemoryStore | None = None
) -> Counterfactual:
    clock, session_store = ManualClock(1_790_000_000), store or MemoryStore()
    # The same replies whatever is sent: only prompts are compared.
    provider = SimulatedProvider(clock=clock, script="\n".join(['{"content": "Yes."}'] * TURNS))
    with (
        serve_provider(provider) as url,
        serve_gateway(url, store=session_store, improve=improve, rules=(DATE_RULE, MEMORY), clock=clock) as gateway,
    ):
        for turn in range(TURNS):
            ask(gateway, *encode(turn, well))
            clock.advance(20)
        (session,) = gateway.recorded_sessions()
    counterfactual = estimate_counterfactual(session_store.read(session), session, PRICES)
    assert counterfactual is not None
    return counterfactual


@pytest.mark.parametrize("name", ENCODERS)
def test_anti_patterns_once_fixed_cost_as_much_as_well_written_requests(name: str) -> None:
    improved = play_session(ENCODERS[name], improve=True)
    cost_well_written = play_session(ENCODERS[name], well=True)
    cost_unchanged = play_session(ENCODERS[name])
    assert improved.observed_usd <= 1.1 * cost_well_written.observed_usd
    assert cost_unchanged.observed_usd > 1.3 * improved.observed_usd
    assert {"volatile date", "volatile memory", "tools out of order"} <= {
        row.anti_pattern for row in improved.anti_patterns
    }
    # The cost that observing predicts for improving is the cost of improving, and the other way round.
    assert cost_unchanged.planned_usd == pytest.approx(improved.observed_usd, rel=0.1)
    assert improved.unplanned_usd == pytest.approx(cost_unchanged.observed_usd, rel=0.1)
    assert (cost_unchanged.unplanned_usd, improved.planned_usd) == (cost_unchanged.observed_usd, improved.observed_usd)


def test_the_providers_automatic_breakpoint_is_recognised_and_priced() -> None:
    store = MemoryStore()
    counterfactual = play_session(with_automatic_breakpoint(anthropic), store=store)
    without = play_session(anthropic)
    assert counterfactual.observed_usd > 1.2 * without.observed_usd
    assert counterfactual.planned_usd == pytest.approx(without.planned_usd, rel=0.02)
    (row,) = store.sessions()
    plans = [event.payload.plan for event in store.read(row.id) if isinstance(event.payload, RequestPrepared)]
    assert [[point.ttl for point in plan.breakpoints] for plan in plans] == [["5m"]] * TURNS
    state = fold_cache_state(CacheState(row.id), store.read(row.id), shipped_models())
    assert state.ttl == "5m"


def play_with_refusals(store: SqliteStore, *, refused: bool) -> str:
    """Three turns with anti-patterns, each but the last refused once and optionally sent again."""
    clock = ManualClock(1_790_000_000)
    lines = ['{"fault": "429"}', '{"content": "Yes."}'] if refused else ['{"content": "Yes."}']
    with (
        serve_provider(SimulatedProvider(clock=clock, script="\n".join(lines * 2 + ['{"content": "Yes."}']))) as url,
        serve_gateway(url, store=store, rules=(DATE_RULE, MEMORY), clock=clock) as gateway,
    ):
        for turn in range(3):
            for status in (429, 200) if refused and turn < 2 else (200,):
                ask(gateway, *anthropic(turn, False), status=status)
                clock.advance(2)
        (session,) = gateway.recorded_sessions()
    return session


def test_refused_calls_cost_nothing_and_save_nothing(tmp_path: Path) -> None:
    counterfactuals: list[Counterfactual | None] = []
    paths = [str(tmp_path / "refused.db"), str(tmp_path / "answered.db")]
    for path in paths:
        with SqliteStore(path) as store:
            session = play_with_refusals(store, refused=path == paths[0])
            counterfactuals.append(estimate_counterfactual(store.read(session), session, PRICES))
    with_refused, without = counterfactuals
    assert with_refused is not None
    assert without is not None
    assert with_refused.calls == without.calls == 3
    for name in ("observed_usd", "unplanned_usd", "planned_usd", "saved_usd", "optimum_usd"):
        assert getattr(with_refused, name) == pytest.approx(getattr(without, name), rel=0.02), name
    assert [row.calls for row in with_refused.anti_patterns] == [row.calls for row in without.anti_patterns]
    assert [row.usd for row in with_refused.policies] == pytest.approx([row.usd for row in without.policies], rel=0.02)
    (row,) = json.loads(run("gateway", "spend", "--db", paths[0], "--json"))
    assert (row["calls"], row["failed"]) == (3, 2)
    output = run("sessions", "show", session_in(paths[0]), "--db", paths[0])
    assert "2 more calls failed: 2 rate_limit" in output
    assert "can be fixed in 3 calls: breakpoints missing" in output


def test_the_report_names_long_sessions_without_caching(tmp_path: Path, stored: tuple[str, str]) -> None:
    path = str(tmp_path / "bare.db")
    with SqliteStore(path) as store:
        play_with_refusals(store, refused=False)
    assert "1 long session used no cache at all, for $0.0" in run("report", "--db", path)
    assert "used no cache" not in run("report", "--db", stored[0])


def session_in(path: str) -> str:
    with SqliteStore(path) as store:
        (row,) = store.sessions()
    return row.id


def test_each_anti_pattern_is_named_with_its_price() -> None:
    counterfactual = play_session(anthropic)
    prices = {row.anti_pattern: row.usd for row in counterfactual.anti_patterns}
    assert prices.keys() == {"volatile date", "volatile memory", "tools out of order", "breakpoints missing"}
    assert all(0 < price <= counterfactual.observed_usd * 1.3 for price in prices.values())
    assert counterfactual.observed_usd > 1.5 * counterfactual.planned_usd


def test_the_minimum_is_below_every_plan_and_the_plans_are_those_of_peers() -> None:
    counterfactual = play_session(anthropic, well=True)
    policies = {row.policy: row.usd for row in counterfactual.policies}
    assert {"litellm", "langchain", "goose", "claude-code-5m", "none"} <= policies.keys()
    # Ours is the rewrite, and has one figure.
    assert "holdfast" not in policies
    assert counterfactual.optimum_usd <= min(*policies.values(), counterfactual.planned_usd)
    assert policies["none"] > 2 * counterfactual.observed_usd


def test_a_session_of_our_own_has_no_counterfactual() -> None:
    assert estimate_counterfactual((), "none", PRICES) is None


@pytest.fixture
def stored(tmp_path: Path) -> tuple[str, str]:
    """A store with an improved session with anti-patterns, and the session's id."""
    path, clock = str(tmp_path / "s.db"), ManualClock(1_790_000_000)
    store = SqliteStore(path)
    new_key = make_key("gateway", at=0.0, random_bytes=lambda size: b"1" * size, name="team-a")
    with (
        serve_provider(SimulatedProvider(clock=clock)) as url,
        serve_gateway(url, store=store, improve=True, rules=(DATE_RULE, MEMORY), clock=clock) as gateway,
    ):
        store.records.add_key(new_key.row)
        for turn in range(3):
            ask(gateway, *anthropic(turn, False), {"x-holdfast-key": new_key.key})
            clock.advance(40_000)
        (session,) = gateway.recorded_sessions()
    store.close()
    return path, session


def run(*words: str) -> str:
    result = CliRunner().invoke(command, words, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_costs_changes_and_spending_are_shown(stored: tuple[str, str]) -> None:
    path, session = stored
    costs = run("gateway", "costs", session, "--db", path)
    assert "paid: $" in costs
    assert "policy litellm" in costs
    assert json.loads(run("gateway", "costs", session, "--db", path, "--json"))["calls"] == 3
    changes = run("gateway", "changes", session, "--db", path)
    assert "call 2: fixed: volatile date (system)" in changes
    assert "xxxxx'x xxxx xx 0000-00-00" in changes
    assert "Today" not in changes
    days = json.loads(run("gateway", "spend", "--db", path, "--json"))
    assert sum(row["calls"] for row in days) == 3
    assert len({row["day"] for row in days}) == 2
    assert {row["label"] for row in days} == {"team-a"}
    assert all(row["key_id"] and row["cost_usd"] > 0 for row in days)
    assert "team-a" in run("gateway", "spend", "--db", path, "--since", "2026-01-01")


def test_costs_and_changes_are_served_over_http(stored: tuple[str, str]) -> None:
    path, session = stored
    with closing(SqliteStore(path)) as store, serve_store(store) as client:
        key, below = client.key("read"), f"/api/sessions/{session}/gateway"
        costs = client.get(f"{below}/costs", key=key)
        assert costs == json.loads(run("gateway", "costs", session, "--db", path, "--json"))
        changes = client.get(f"{below}/changes", key=key)
        assert [call["number"] for call in changes["calls"]] == [1, 2, 3]
        assert {change["anti_pattern"] for change in changes["calls"][1]["changes"]} >= {
            "volatile date",
            "tools out of order",
        }
        assert all(call["rewritten"] for call in changes["calls"])
        assert not changes["more"]
        page = client.get(f"{below}/changes?after=1&limit=1", key=key)
        assert (page["calls"], page["more"]) == (changes["calls"][1:2], True)
        for route in ("costs", "changes"):
            assert client.request("GET", f"/api/sessions/nobody/gateway/{route}", key=key).code == "session_not_found"


def test_a_session_of_our_own_has_no_gateway_costs_over_http() -> None:
    store = MemoryStore()

    async def say() -> None:
        async with new_session(SimulatedProvider(clock=ManualClock()), store=store) as session:
            await session.send("Hello.")

    asyncio.run(say())
    with serve_store(store) as client:
        (session,) = (row.id for row in store.sessions())
        assert client.request("GET", f"/api/sessions/{session}/gateway/costs").code == "costs_not_found"
        assert client.get(f"/api/sessions/{session}/gateway/changes")["calls"] == []


def test_a_request_file_can_be_tried_out(tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text(json.dumps(anthropic(1, False)[1]))
    output = run("gateway", "try", str(file), "--volatile", "memory=<memory>[^<]*</memory>")
    # It is the first request with these tools: their order is stable until another one comes.
    assert "tools out of order" not in output
    assert "-system: Today's date is 2026-11-16, 08:01." in output.splitlines()
    file.write_text("{")
    result = CliRunner().invoke(command, ("gateway", "try", str(file)))
    assert isinstance(result.exception, UserError)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[]", "JSON, but not an object; a request body is one JSON object"),
        ('{"a": 1}\n{"a": 2}\n', "not one JSON document: "),
    ],
)
def test_a_file_that_is_no_request_is_refused_in_one_plain_line(tmp_path: Path, content: str, reason: str) -> None:
    file = tmp_path / "request.json"
    file.write_text(content)
    result = CliRunner().invoke(command, ("gateway", "try", str(file)))
    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith(f"{str(file)!r} is {reason}")
    assert "Error" not in str(result.exception)


async def test_a_session_of_our_own_is_said_to_have_no_gateway_costs(tmp_path: Path) -> None:
    path = str(tmp_path / "log.db")
    with closing(SqliteStore(path)) as store:
        async with new_session(SimulatedProvider(clock=ManualClock()), store=store) as session:
            await session.send("Hello.")
    result = CliRunner().invoke(command, ("gateway", "costs", session.id, "--db", path))
    assert "did not go through the gateway; `holdfast report" in str(result.exception)
