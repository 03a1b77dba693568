"""One cost per session: observed, with and without a rewrite, saved and lost are the same dollars in every view."""

import http.client
import json
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from tests.support.served_gateway import ServedGateway, serve_gateway
from tests.support.served_service import Client, serve_store

from holdfast.cli.costs.report import usd
from holdfast.cli.format import format_usd
from holdfast.cli.main import command
from holdfast.clock import ManualClock
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.server_thread import serve_provider

START = 1_790_000_000
GUIDE = "You read before you write, and you say what you did. " * 300
TOOLS = [
    {"name": name, "description": f"{name}. " * 30, "input_schema": {"type": "object"}} for name in ("read", "edit")
]
BREAKPOINT = {"cache_control": {"type": "ephemeral"}}
FIGURES = ("observed_usd", "unplanned_usd", "planned_usd", "saved_usd", "lost_usd")


def body(turn: int, system: str, *, tools: bool = True, marked: bool = False) -> dict[str, Any]:
    texts = [(f"Question {turn} of {system[:8]}" if at == turn else f"Question {at}? ") * 30 for at in range(turn + 1)]
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": texts[0]}]}]
    for text in texts[1:]:
        messages.append({"role": "assistant", "content": [{"type": "text", "text": "Yes."}]})
        messages.append({"role": "user", "content": [{"type": "text", "text": text}]})
    if marked:
        messages[-1]["content"][-1] |= BREAKPOINT
    request = {"model": "claude-sonnet-5-5", "max_tokens": 50, "system": system, "messages": messages}
    return {**request, "tools": TOOLS} if tools else request


def converse(turn: int, name: str) -> dict[str, Any]:
    """A conversation whose messages stay as they are."""
    request = body(turn, f"{name}. {GUIDE}")
    for at, message in enumerate(request["messages"]):
        message["content"][0]["text"] = f"{name} {at}. " * 40
    return request


def moving_prefix(turn: int, name: str) -> dict[str, Any]:
    request = converse(turn, name)
    request["system"] = f"Request {turn * 7919} follows. {GUIDE}"
    request["messages"][-1]["content"][-1] |= BREAKPOINT
    return request


SCENARIOS: dict[str, tuple[bool, str, list[dict[str, Any]]]] = {
    "a prefix that moves": (False, "", [moving_prefix(turn, "moving") for turn in range(5)]),
    "no breakpoints": (False, "claude-cli/2.0.1 (external, cli)", [converse(turn, "bare") for turn in range(5)]),
    "another client": (False, "Anthropic/Python 0.75.0", [converse(turn, "other") for turn in range(3)]),
    "single questions": (
        False,
        "titles/1.0",
        [{**body(0, f"Name topic {at}. {GUIDE[:8000]}", tools=False)} for at in range(3)],
    ),
    "improved": (True, "claude-cli/2.0.1 (external, cli)", [converse(turn, "improved") for turn in range(5)]),
    "improved, one call": (True, "once/1.0", [converse(0, "once")]),
    "improved, prefix that moves": (True, "mover/1.0", [moving_prefix(turn, "moved") for turn in range(5)]),
}


def ask(gateway: ServedGateway, request: dict[str, Any], agent: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=20)
    headers = {"x-api-key": "any", **({"user-agent": agent} if agent else {})}
    connection.request("POST", "/anthropic/v1/messages", json.dumps(request), headers)
    reply = connection.getresponse()
    assert reply.status == 200, reply.read()
    reply.read()
    connection.close()
    gateway.recorded_sessions()


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the sessions of every scenario."""
    path, clock = tmp_path_factory.mktemp("costs") / "log.db", ManualClock(START)
    script = "\n".join(['{"content": "Yes."}'] * 50)
    with SqliteStore(path) as store, serve_provider(SimulatedProvider(clock=clock, script=script)) as url:
        for improve in (False, True):
            with serve_gateway(url, store=store, improve=improve, clock=clock) as gateway:
                for is_improved, agent, requests in SCENARIOS.values():
                    for request in requests if is_improved == improve else ():
                        ask(gateway, request, agent)
                        clock.advance(20)
    return path


@pytest.fixture(scope="module")
def served(db: Path) -> Iterator[Client]:
    with SqliteStore(db) as store, serve_store(store, clock=ManualClock(START + 86_400)) as client:
        yield client


def run(*words: str) -> str:
    result = CliRunner(env={"COLUMNS": "300"}).invoke(command, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def read_sessions(*words: str) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in json.loads(run(*words, "--json", "--limit", "100"))["sessions"]}


def figures_of(row: dict[str, Any]) -> dict[str, Decimal]:
    """The figures of a session in the report."""
    amounts = {"observed_usd": row["amounts"]["usd"], "lost_usd": row["amounts"]["lost_usd"]}
    planned = {name: row[name] for name in ("unplanned_usd", "planned_usd", "saved_usd")}
    return {name: Decimal(value) for name, value in (amounts | planned).items()}


def to_floats(figures: dict[str, Decimal]) -> dict[str, float]:
    return {name: float(value) for name, value in figures.items()}


def test_report_audit_and_gateway_costs_show_the_same_dollars(db: Path, served: Client) -> None:
    reported = read_sessions("report", "--db", str(db))
    assert len(reported) == len(SCENARIOS) + 2  # Three single questions are three sessions.
    audited = read_sessions("audit", str(db))
    for id, row in reported.items():
        expected = figures_of(row)
        assert expected["saved_usd"] == expected["unplanned_usd"] - expected["planned_usd"]
        assert figures_of(audited[id]) == expected
        costs = json.loads(run("gateway", "costs", id, "--db", str(db), "--json"))
        assert {name: costs[name] for name in FIGURES} == pytest.approx(to_floats(expected))
        assert served.get(f"/api/sessions/{id}/gateway/costs") == costs


def test_analytics_show_the_same_dollars(db: Path, served: Client) -> None:
    reported = read_sessions("report", "--db", str(db), "--verbose")
    regret = {row["session"]: row for row in served.get("/analytics/regret")["data"]["sessions"]}
    spent = {row["id"]: row["cost_usd"] for row in served.get("/analytics/sessions")["data"]}
    assert regret.keys() == spent.keys() == reported.keys()
    for id, row in reported.items():
        assert regret[id]["spent_usd"] == spent[id] == pytest.approx(float(row["amounts"]["usd"]), abs=1e-6)
        for name in ("planned_usd", "optimum_usd"):
            assert regret[id][name] == pytest.approx(float(row[name]), abs=1e-6), name
    lost = sum(float(row["amounts"]["lost_usd"]) for row in reported.values())
    assert sum(row["lost_usd"] for row in served.get("/analytics/breaks")["data"]) == pytest.approx(lost, abs=1e-5)


def test_texts_show_the_same_dollars(db: Path) -> None:
    lines = [line.split() for line in run("report", "--db", str(db), "--limit", "100").splitlines() if line]
    for id, row in read_sessions("report", "--db", str(db)).items():
        figures = figures_of(row)
        (cells,) = (cells for cells in lines if len(cells[0]) >= 8 and id.startswith(cells[0]))
        assert cells[-1] == usd(row["planned_usd"])
        shown = run("sessions", "show", id, "--db", str(db))
        saved = format_usd(figures["saved_usd"], 6)
        with_one = f"${figures['planned_usd']:.6f} with one: {saved} saved"
        assert f"${figures['unplanned_usd']:.6f} without a rewrite, {with_one}" in shown
        costs = run("gateway", "costs", id, "--db", str(db))
        assert f"paid: ${figures['observed_usd']:.6f}" in costs
        assert f"saved by a rewrite: {saved}" in costs


def test_clients_add_up_to_their_sessions(db: Path) -> None:
    expected: dict[str, dict[str, Decimal]] = {}
    for row in read_sessions("report", "--db", str(db)).values():
        sums = expected.setdefault(row["client"], dict.fromkeys(FIGURES, Decimal(0)))
        expected[row["client"]] = {name: sums[name] + usd for name, usd in figures_of(row).items()}
    clients = {row["client"]: row for row in json.loads(run("gateway", "costs", "--db", str(db), "--json"))}
    assert clients.keys() == {"Holdfast", "Claude Code", "Anthropic Python", "titles", "once", "mover"}
    for name, row in clients.items():
        assert {figure: row[figure] for figure in FIGURES} == pytest.approx(to_floats(expected[name])), name
    # Half of Claude Code's calls were improved, and half could have been.
    claude = clients["Claude Code"]
    listed = json.loads(run("sessions", "list", "--db", str(db), "--client", "Claude Code", "--json"))
    assert {row["id"] for row in listed} == {
        id for id, row in read_sessions("report", "--db", str(db)).items() if row["client"] == "Claude Code"
    }
    assert claude["planned_usd"] < claude["observed_usd"] < claude["unplanned_usd"]


def test_what_was_paid_is_one_of_the_two_estimates(db: Path) -> None:
    paid_as = {True: "planned_usd", False: "unplanned_usd"}
    improved = {name for name, (is_improved, _, _) in SCENARIOS.items() if is_improved}
    rows = list(read_sessions("report", "--db", str(db)).values())
    ordered = sorted(rows, key=lambda row: row["started_at"])
    kinds = [False] * (len(rows) - len(improved)) + [True] * len(improved)
    for row, is_improved in zip(ordered, kinds, strict=True):
        assert row[paid_as[is_improved]] == row["amounts"]["usd"]


def test_a_single_question_needs_nothing_and_costs_the_same(db: Path) -> None:
    for id, row in read_sessions("report", "--db", str(db)).items():
        if row["client"] == "titles":
            assert float(row["saved_usd"]) == 0
            assert "can be fixed" not in run("sessions", "show", id, "--db", str(db))


def test_a_prefix_that_moves_has_an_action_and_what_avoids_it(db: Path) -> None:
    shown = json.loads(run("report", "--db", str(db), "--json"))
    lost = sum(Decimal(row["lost_usd"]) for row in shown["losses"] if row["cause"] == "prefix_changed")
    (action,) = (row for row in shown["actions"] if row["action"].startswith("change nothing that was sent: 8 calls"))
    assert Decimal(action["usd_a_week"]) == pytest.approx(lost, abs=Decimal("0.0001"))
    assert "to a change of system" in action["how"]
    assert all(row["remedy"] for row in shown["losses"])
    assert "\n- prefix_changed: move text that changes" in run("report", "--db", str(db))


def test_a_negative_saving_has_a_reason(db: Path) -> None:
    output = run("gateway", "costs", "--db", str(db))
    assert "once costs more with a rewrite: a single call: nothing reads what it writes to the cache" in output
    assert "-$0.00" in next(line for line in output.splitlines() if line.startswith("once "))


async def test_a_session_of_our_own_has_one_estimate_in_every_view(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    options: Options = {
        "model": "anthropic:claude-sonnet-5-5",
        "store": str(path),
        "transport": SimulatedProvider(script='{"content": "Yes."}\n' * 9),
        "simulated": False,  # Stands for a session that is billed.
        "system_prompt": GUIDE,
    }
    async with Session.create(**options) as session:
        for _ in range(3):
            await session.send("So?")
    reported = read_sessions("report", "--db", str(path))[session.id]
    assert reported == read_sessions("audit", str(path))[session.id]
    assert (reported["unplanned_usd"], reported["saved_usd"]) == (None, None)
    with SqliteStore(path) as store, serve_store(store, clock=ManualClock(time.time() + 60)) as client:
        (row,) = client.get("/analytics/regret")["data"]["sessions"]
    assert row["planned_usd"] == pytest.approx(float(reported["planned_usd"]), abs=1e-6)
    assert row["spent_usd"] == pytest.approx(float(reported["amounts"]["usd"]), abs=1e-6)
