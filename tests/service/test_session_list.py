"""The session list: filters, sorting and pages, on SQLite and PostgreSQL, over HTTP and in the terminal."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest
from benchmarks._calls import START, session_of_calls, short_session
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.support.postgres_server import reused_database
from tests.support.served_service import Client, serve_store

from holdfast.cli.main import command
from holdfast.clock import ManualClock
from holdfast.events.log import Event, SessionRow
from holdfast.events.payloads.calls import GatewayForwarded
from holdfast.events.payloads.session import MessageAppended, SessionStarted
from holdfast.events.records import KeyRow
from holdfast.ledger.analytics.queries import format_session_titles
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.types.blocks import make_user_message

SESSIONS = 23


@contextmanager
def on_postgres(_: Path) -> Iterator[DatabaseEventLog]:
    with reused_database() as url, PostgresStore(url) as store:
        yield store


STORES: dict[str, Callable[[Path], AbstractContextManager[DatabaseEventLog]]] = {
    "sqlite": lambda folder: SqliteStore(folder / "log.db"),
    "postgres": on_postgres,
}


@pytest.fixture(scope="module", params=STORES)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with STORES[request.param](tmp_path_factory.mktemp("list")) as store:
        fill(store)
        with serve_store(store) as served:
            yield served


def fill(store: DatabaseEventLog) -> None:
    for number in range(SESSIONS):
        store.append(short_session(number, at=START + number * 100.0)).result(10)
    store.append(
        [
            event(1, "claude", SessionStarted("anthropic:claude-sonnet-5-5", name="laptop")),
            event(2, "claude", GatewayForwarded("new", 1.0, "key9", team_id="core", client="claude-cli/2.1")),
            event(
                3, "claude", MessageAppended(make_user_message("<reminder>be brief</reminder>", "Fix the  flaky\ntest"))
            ),
            event(4, "claude", MessageAppended(make_user_message("And then the docs"))),
            event(1, "simulated", SessionStarted("anthropic:claude-sonnet-5-5", simulated=True)),
        ]
    ).result(10)


def event(number: int, session: str, payload: SessionStarted | GatewayForwarded | MessageAppended) -> Event:
    return Event(f"{session}{number}", START + 50_000.0 + number, session, "agent", payload)


def get_list(client: Client, /, **query: object) -> Any:
    return client.get(f"/api/sessions?{urlencode(query)}")


def list_ids(client: Client, /, **query: object) -> list[str]:
    return [row["id"] for row in get_list(client, **query)["sessions"]]


@pytest.mark.parametrize("sort", ["activity", "started", "spent", "lost", "read_share", "calls"])
@pytest.mark.parametrize("descending", ["true", "false"])
def test_pages_together_have_every_session_once_in_order(client: Client, sort: str, descending: str) -> None:
    pages: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    while not pages or pages[-1]["next"]:
        pages.append(get_list(client, sort=sort, descending=descending, limit=5, **after))
        after = {"after": pages[-1]["next"]}
    rows = [row for page in pages for row in page["sessions"]]
    assert len(rows) == len({row["id"] for row in rows}) == pages[0]["total"] == SESSIONS + 1
    field = {"activity": "last_event_at", "started": "started_at", "spent": "spent_usd", "lost": "lost_usd"}.get(
        sort, sort
    )
    values = [row["call_count" if sort == "calls" else field] or 0 for row in rows]
    assert values == sorted(values, reverse=descending == "true")


@pytest.mark.parametrize(
    "query",
    [
        {"search": "FLAKY"},
        {"search": "laptop"},
        {"client": "claude-cli"},
        {"key": "key9"},
        {"team": "core"},
        {"search": "claude", "client": "cli", "model": "sonnet", "team": "core"},
        {"from": "2027-01-15T21:00:00Z"},
    ],
)
def test_each_filter_finds_the_session_it_describes(client: Client, query: dict[str, str]) -> None:
    assert list_ids(client, **query) == ["claude"]


def test_a_key_is_found_by_its_name_too_unless_several_have_it() -> None:
    store = MemoryStore()
    forwarded = (GatewayForwarded("new", 1.0, "key9"), GatewayForwarded("new", 1.0, "key8"))
    for number, payload in enumerate(forwarded):
        session = f"s{number}"
        started = event(2 * number, session, SessionStarted("openai:gpt-6"))
        store.append([started, event(2 * number + 1, session, payload)]).result(10)
    store.records.add_key(KeyRow("key9", "digest", "gateway", 0.0, "ci runner"))
    for number in range(2):
        store.records.add_key(KeyRow(f"key{number}", "digest", "gateway", 0.0, "twice"))
    with serve_store(store) as client:
        admin = client.key("admin")

        def ask(key: str) -> Any:
            return client.request("GET", f"/api/sessions?{urlencode({'key': key})}", key=admin)

        assert [row["id"] for row in ask("ci runner").json["sessions"]] == ["s0"]
        assert [row["id"] for row in ask("key8").json["sessions"]] == ["s1"], "a key that is not stored any more"
        assert ask("nobody").json["total"] == 0
        assert (ask("twice").status, ask("twice").code) == (400, "invalid_key")
        assert "2 keys are named 'twice'; filter by the id of one" in ask("twice").json["error"]["message"]


def test_a_verdict_filters_the_sessions_that_lost_by_it(client: Client) -> None:
    kinds = {row["verdict"] for row in get_list(client)["sessions"]} - {None}
    assert kinds
    for kind in kinds:
        found = get_list(client, verdict=kind)
        assert {row["verdict"] for row in found["sessions"]} == {kind}
        assert all(row["lost_usd"] > 0 for row in found["sessions"])


@pytest.mark.parametrize(("query", "status"), [("verdict=null", 400), ("limit=NULL", 400), ("search=null", 200)])
def test_the_word_null_in_a_query_is_no_missing_value(client: Client, query: str, status: int) -> None:
    response = client.request("GET", f"/api/sessions?{query}")
    assert response.status == status, response.body
    assert status == 400 or response.json["sessions"] == []


def test_the_default_name_has_client_key_first_words_and_start(client: Client) -> None:
    (row,) = get_list(client, client="claude-cli")["sessions"]
    assert row["title"] == "claude-cli/2.1 · laptop · Fix the flaky test · 2027-01-15 21:53 · aude"
    assert row["read_share"] is None
    assert client.get("/api/sessions/claude/calls")["title"] == row["title"], "one title in every view"


def test_a_key_without_admin_scope_neither_reads_nor_finds_the_first_words() -> None:
    with MemoryStore() as store:
        fill(store)
        with serve_store(store) as client:
            read = client.key("read")
            (row,) = client.request("GET", "/api/sessions?client=claude-cli", key=read).json["sessions"]
            assert row["title"] == "claude-cli/2.1 · laptop · claude-sonnet-5-5 · 2027-01-15 21:53:21 · aude"
            assert client.request("GET", "/api/sessions/claude/calls", key=read).json["title"] == row["title"]
            assert client.request("GET", "/api/sessions?search=flaky", key=read).json["total"] == 0


def test_the_gateways_sessions_are_named_by_client_key_model_and_start_without_their_words() -> None:
    with MemoryStore() as store:
        for second in (1, 2):
            session = f"01JD0000000000000000000A0{second}"
            forwarded = GatewayForwarded("new", 1.0, "key9", client="codex")
            start = SessionStarted("openai:gpt-6", name="ci")
            store.append([event(second, session, start), event(second + 1, session, forwarded)]).result(10)
        with serve_store(store) as client:
            titles = [row["title"] for row in get_list(client)["sessions"]]
    assert titles == [f"codex · ci · gpt-6 · 2027-01-15 21:53:{20 + second} · 0A0{second}" for second in (2, 1)]


@given(
    st.lists(
        st.tuples(
            st.text("ab", min_size=1, max_size=6),
            st.sampled_from([None, "", "support"]),
            st.sampled_from([None, "codex"]),
            st.sampled_from([None, "key9"]),
            st.sampled_from([None, "Fix it"]),
            st.sampled_from([START, START + 1]),
        ),
        unique_by=lambda parts: parts[0],
    )
)
def test_no_two_sessions_of_a_list_have_the_same_title(
    sessions: list[tuple[str, str | None, str | None, str | None, str | None, float]],
) -> None:
    rows = [
        SessionRow(id, name, "openai:gpt-6", at, at, 1, client=client, opening=opening, caller_key_id=key)
        for id, name, client, key, opening, at in sessions
    ]
    for quotes_prompt in (True, False):
        titles = format_session_titles(rows, quotes_prompt=quotes_prompt)
        assert titles.keys() == {row.id for row in rows}
        assert len(set(titles.values())) == len(rows)
        assert quotes_prompt or not any("Fix it" in title for title in titles.values())


def test_sessions_that_a_program_gave_one_name_have_different_titles_in_every_list() -> None:
    with MemoryStore() as store:
        for number in (1, 4):
            for entry in session_of_calls(number, at=START):
                if isinstance(entry.payload, SessionStarted):
                    payload = msgspec.structs.replace(entry.payload, name="support")
                    entry = msgspec.structs.replace(entry, payload=payload)
                store.append([entry])
        with serve_store(store, clock=ManualClock(START + 300)) as client:
            lists = {
                "sessions": [row["title"] for row in get_list(client)["sessions"]],
                "caching": [row["title"] for row in client.get("/api/cache")["discussions"]],
                "live": [row["title"] for row in client.get("/analytics/overview")["data"]["live"]],
                "cost": [row["title"] for row in client.get("/analytics/sessions")["data"]],
                "breaks": [row["title"] for row in client.get("/analytics/breaks/calls")["data"]],
            }
    for name, titles in lists.items():
        assert len(set(titles)) == 2, name
        assert all(title.startswith("support · ") for title in titles), name


@pytest.mark.parametrize("after", ["x", "W10", "bnVsbA", "é"])
def test_a_position_that_no_page_gave_is_refused(client: Client, after: str) -> None:
    assert client.request("GET", f"/api/sessions?after={quote(after)}").status == 400


def test_pruning_a_session_removes_its_first_words() -> None:
    with MemoryStore() as store:
        fill(store)
        store.prune("claude", ("session.started", "gateway.forwarded"), before=START + 10**6)
        (row,) = [row for row in store.sessions() if row.id == "claude"]
    assert row.opening is None
    assert row.client == "claude-cli/2.1"


def test_the_terminal_has_the_same_filters_and_order(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with SqliteStore(path) as store:
        fill(store)
        with serve_store(store) as client:
            expected = list_ids(client, sort="lost", model="gpt", limit=500)
    arguments = ["sessions", "list", "--db", str(path), "--sort", "lost", "--model", "gpt", "--json"]
    listed = json.loads(CliRunner().invoke(command, arguments, catch_exceptions=False).stdout)
    assert [row["id"] for row in listed] == expected
    shown = CliRunner().invoke(command, ["sessions", "list", "--db", str(path), "--search", "flaky"]).stdout
    assert "Fix the flaky" in shown
