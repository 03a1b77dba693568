"""Knowledge over HTTP: what is known, changed by people, harvested on request, and what waits for a session."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.instruction_places import opened_store
from tests.support.knowledge_folders import DECISION, FACT, RULE, folder_of, talked
from tests.support.log_examples import event
from tests.support.played_sessions import new_session, played, uses
from tests.support.served_service import Client, serving_store

from holdfast.clock import ManualClock, new_ulid
from holdfast.events.payloads.session import SessionStarted
from holdfast.knowledge.folder import DIGEST_FILE
from holdfast.stores.event_log import DatabaseEventLog

AN_ID = "0123456789ab"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseEventLog]:
    with opened_store(request.param, tmp_path) as kept:
        yield kept


@pytest.fixture
def client(workspace: Path, store: DatabaseEventLog) -> Iterator[Client]:
    with serving_store(store, clock=ManualClock()) as served:
        served.service.workspace = workspace
        yield served


def listed(client: Client, query: str = "") -> dict[str, str]:
    """Id by text."""
    return {one["text"]: one["id"] for one in client.get(f"/api/knowledge{query}")["items"]}


async def harvested(client: Client, store: DatabaseEventLog, workspace: Path) -> dict[str, str]:
    await talked(store, workspace, f"{FACT} {RULE}")
    assert client.ask("POST", "/api/knowledge/harvest", {"apply": True}).status == 200
    return listed(client)


async def test_a_harvest_is_only_shown_unless_it_is_told_to_apply(
    client: Client, store: DatabaseEventLog, workspace: Path
) -> None:
    session_id = await talked(store, workspace, f"{FACT} {RULE}")
    for body in (None, {}, {"apply": False}):
        told = client.ask("POST", "/api/knowledge/harvest", body).json
        assert (told["applied"], told["new_items"], told["digest_change"]) == (False, 4, None)
        assert [one["session_id"] for one in told["sessions"]] == [session_id]
    assert not (workspace / ".holdfast").exists()
    done = client.ask("POST", "/api/knowledge/harvest", {"apply": True}).json
    assert (done["applied"], done["new_items"]) == (True, 4)
    assert done["digest_change"]["bytes_before"] == 0
    assert done["digest_change"]["invalidated_tokens"] == done["digest_change"]["bytes_after"] // 4 > 0
    again = client.ask("POST", "/api/knowledge/harvest", {"apply": True}).json
    assert (again["sessions"], again["harvested_before"], again["new_items"]) == ([], 1, 0)


async def test_what_was_said_to_a_simulated_model_is_harvested_only_where_all_is_simulated(
    client: Client, store: DatabaseEventLog, workspace: Path
) -> None:
    await talked(store, workspace, FACT, simulated=True)
    assert client.ask("POST", "/api/knowledge/harvest", {}).json["sessions"] == []
    client.service.simulated = True
    (told,) = client.ask("POST", "/api/knowledge/harvest", {}).json["sessions"]
    assert told["session_id"] == store.sessions()[0].id


async def test_items_are_listed_by_category_and_page(client: Client, store: DatabaseEventLog, workspace: Path) -> None:
    ids = await harvested(client, store, workspace)
    assert {FACT, RULE, DECISION} <= ids.keys()
    assert listed(client, "?category=facts").keys() == {FACT}
    told = client.get("/api/knowledge?category=decisions&limit=1&skip=1")
    assert (len(told["items"]), told["items_total"], told["enabled"]) == (1, 2, True)
    assert {(one["category"], one["items"]) for one in told["categories"]} == {
        ("facts", 1),
        ("decisions", 2),
        ("questions", 1),
    }
    assert client.ask("GET", "/api/knowledge?category=gossip").code == "invalid_category"


async def test_an_item_says_where_it_came_from(client: Client, store: DatabaseEventLog, workspace: Path) -> None:
    ids = await harvested(client, store, workspace)
    (row,) = store.sessions()
    told = client.get(f"/api/knowledge/items/{ids[FACT]}")
    (source,) = told["sources"]
    assert (source["session_id"], source["origin"]) == (row.id, "user")
    assert (told["scope"], told["exclusion_reason"], told["edited"]) == ("project", "", False)


async def test_a_changed_item_keeps_its_id_and_is_in_the_digest_at_once(
    client: Client, store: DatabaseEventLog, workspace: Path
) -> None:
    ids = await harvested(client, store, workspace)
    told = client.ask("PUT", f"/api/knowledge/items/{ids[FACT]}", {"text": "It is\n port 6000 <b>now</b>."}).json
    assert (told["id"], told["text"], told["edited"]) == (ids[FACT], "It is port 6000 &lt;b>now&lt;/b>.", True)
    digest = client.get("/api/knowledge/digest")["text"]
    assert "- It is port 6000 &lt;b>now" in digest
    assert FACT not in digest
    assert client.ask("PUT", f"/api/knowledge/items/{ids[RULE]}", {"status": "retracted"}).json["exclusion_reason"]
    assert RULE not in client.get("/api/knowledge/digest")["text"]


async def test_a_task_is_marked_as_done_and_approved(client: Client, store: DatabaseEventLog, workspace: Path) -> None:
    await harvested(client, store, workspace)
    (workspace / ".holdfast" / "knowledge" / "tasks.md").write_text("- [ ] Write the release notes.\n")
    task = listed(client)["Write the release notes."]
    for change in ({"done": True}, {"approved": True}, {"done": False}):
        item = client.ask("PUT", f"/api/knowledge/items/{task}", change).json
        assert {name: item[name] for name in change} == change


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"text": "password = hunter2-and-more"}, 422, "holds_secret"),
        ({"text": "\u200b"}, 422, "invalid_body"),
        ({"text": ""}, 422, "invalid_body"),
        ({"superseded_by": "-->"}, 422, "invalid_body"),
        ({"status": "loud"}, 422, "invalid_body"),
        ({"colour": "red"}, 422, "unknown_field"),
    ],
)
async def test_what_must_not_be_kept_is_refused(
    client: Client, store: DatabaseEventLog, workspace: Path, body: dict[str, str], status: int, code: str
) -> None:
    ids = await harvested(client, store, workspace)
    before = (workspace / ".holdfast" / "knowledge" / "facts.md").read_bytes()
    answered = client.ask("PUT", f"/api/knowledge/items/{ids[FACT]}", body)
    assert (answered.status, answered.code) == (status, code)
    assert b"hunter2" not in answered.body
    assert (workspace / ".holdfast" / "knowledge" / "facts.md").read_bytes() == before


async def test_a_removed_item_does_not_come_back(client: Client, store: DatabaseEventLog, workspace: Path) -> None:
    ids = await harvested(client, store, workspace)
    assert client.ask("DELETE", f"/api/knowledge/items/{ids[FACT]}").json == {"removed": ids[FACT]}
    assert client.ask("GET", f"/api/knowledge/items/{ids[FACT]}").code == "item_not_found"
    await talked(store, workspace, FACT)
    assert client.ask("POST", "/api/knowledge/harvest", {"apply": True}).json["new_items"] == 0
    assert FACT not in listed(client)
    assert FACT not in client.get("/api/knowledge/digest")["text"]


async def test_a_session_has_a_newer_digest_pending_and_a_new_one_has_not(
    client: Client, store: DatabaseEventLog, workspace: Path
) -> None:
    before = await talked(store, workspace, FACT)
    client.ask("POST", "/api/knowledge/harvest", {"apply": True})
    told = client.get(f"/api/knowledge/digest?session_id={before}")
    assert (told["pending"], told["pending_items"]) == ("newer digest pending (3 items)", 3)
    after = await talked(store, workspace, "Hello.")
    assert client.get(f"/api/knowledge/digest?session_id={after}")["pending"] == ""
    assert client.ask("GET", "/api/knowledge/digest?session_id=none-such").code == "session_not_found"


async def test_a_page_that_a_person_changed_has_a_digest_pending_until_it_is_made_anew(
    client: Client, store: DatabaseEventLog, workspace: Path
) -> None:
    await harvested(client, store, workspace)
    assert client.get("/api/knowledge/digest")["pending"] == ""
    with (workspace / ".holdfast" / "knowledge" / "facts.md").open("a") as page:
        page.write("- Ships leave at noon.\n")
    assert client.get("/api/knowledge/digest")["pending"] == "newer digest pending (1 item)"


def test_a_folder_without_knowledge_has_none(client: Client) -> None:
    assert client.get("/api/knowledge")["items_total"] == 0
    told = client.get("/api/knowledge/digest")
    assert (told["exists"], told["text"], told["pending"]) == (False, "", "")
    for method in ("GET", "DELETE"):
        assert client.ask(method, f"/api/knowledge/items/{AN_ID}").code == "item_not_found"
    assert client.ask("PUT", f"/api/knowledge/items/{AN_ID}", {"done": True}).code == "item_not_found"


def test_a_service_outside_of_a_project_says_so(store: DatabaseEventLog) -> None:
    with serving_store(store) as client:
        assert client.ask("GET", "/api/knowledge").code == "no_workspace"


async def test_while_another_run_is_at_it_nothing_is_changed(
    client: Client, store: DatabaseEventLog, workspace: Path
) -> None:
    await talked(store, workspace, FACT)
    folder = folder_of(workspace)
    with folder.lock():
        answered = client.ask("POST", "/api/knowledge/harvest", {"apply": True})
    assert (answered.status, answered.code) == (409, "knowledge_in_use")
    assert folder.read(DIGEST_FILE) is None


async def test_adopting_costs_what_is_written_anew_from_the_digest_on(
    client: Client, store: DatabaseEventLog, workspace: Path
) -> None:
    await harvested(client, store, workspace)
    session_id = await talked(store, workspace, "Hello.", knowledge=True)
    assert client.get("/api/knowledge/pending")["sessions"] == []
    ids = listed(client)
    assert client.ask("DELETE", f"/api/knowledge/items/{ids[RULE]}").status == 200
    told = client.get("/api/knowledge/pending")
    (waiting,) = told["sessions"]
    assert (waiting["session_id"], waiting["pending_items"], told["digest_change"]) == (session_id, 1, None)
    layers = client.get(f"/api/sessions/{session_id}/calls")["calls"][-1]["layers"]
    names = [one["layer"] for one in layers]
    behind = layers[names.index("knowledge") :]
    assert waiting["tokens"] == sum(one["tokens"] for one in behind) > 0
    assert 0 < waiting["extra_usd"] < 1


async def test_a_running_session_is_told_to_take_the_newer_digest(
    client: Client, store: DatabaseEventLog, workspace: Path
) -> None:
    await harvested(client, store, workspace)
    reads = [uses("look")]
    provider = played("a", "b", reads, "c", "d")

    def look() -> str:
        """Looks."""
        client.ask("POST", f"/api/knowledge/pending/{session.id}/adopt")
        return "nothing"

    async with new_session(provider, workspace=workspace, store=store, new_id=new_ulid, tools=[look]) as session:
        await session.send("x")
        client.ask("DELETE", f"/api/knowledge/items/{listed(client)[RULE]}")
        await session.send("y")
        assert len(client.get("/api/knowledge/pending")["sessions"]) == 1
        await session.send("z")
        await session.send("and on")
        assert client.get("/api/knowledge/pending")["sessions"] == []
    told = [RULE.encode() in request.body for request in provider.requests]
    # It is asked for in the middle of the third turn, and that turn is not to lose what was thought in it.
    assert told == [True, True, True, True, False]
    bodies = [re.sub(rb',"cache_control":\{[^}]*\}', b"", request.body) for request in provider.requests]
    assert len({body.partition(b'"tools":')[2].partition(b"# Knowledge")[0] for body in bodies}) == 1


def test_nobody_is_told_to_take_a_digest_who_is_not_there_or_cannot(client: Client, store: DatabaseEventLog) -> None:
    assert client.ask("POST", "/api/knowledge/pending/none-such/adopt").code == "session_not_found"
    store.append([event("e1", SessionStarted("anthropic:claude-sonnet-5-5"), session="wrapped")]).result(10)
    assert client.ask("POST", "/api/knowledge/pending/wrapped/adopt").code == "not_controllable"
    assert store.records.session_controls() == {}


async def test_what_the_pages_would_make_is_told_before_it_is_adopted(
    client: Client, store: DatabaseEventLog, workspace: Path
) -> None:
    await harvested(client, store, workspace)
    page = workspace / ".holdfast" / "knowledge" / "facts.md"
    page.write_text(page.read_text() + "- The broker is in Rotterdam.\n")
    told = client.get("/api/knowledge/pending")
    assert "- The broker is in Rotterdam.\n" in told["next_text"]
    assert (told["digest_change"]["items"], told["digest_change"]["first_byte"] > 0) == (1, True)
    client.service.workspace = None
    assert client.ask("GET", "/api/knowledge/pending").code == "no_workspace"
