"""Knowledge over HTTP: items, edits by users, harvests on request, and digests pending adoption by a session."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.event_examples import event
from tests.support.instruction_service import open_store_of_kind
from tests.support.knowledge_folders import FACT, RULE, knowledge_folder, store_session
from tests.support.scripted_sessions import new_session, scripted_provider, tool_use
from tests.support.served_service import Client, serve_store

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
    with open_store_of_kind(request.param, tmp_path) as store:
        yield store


@pytest.fixture
def client(workspace: Path, store: DatabaseEventLog) -> Iterator[Client]:
    with serve_store(store, clock=ManualClock()) as served:
        served.service.workspace = workspace
        yield served


def listed(client: Client, query: str = "") -> dict[str, str]:
    """Harvest and return item ids by text."""
    return {item["text"]: item["id"] for item in client.get(f"/api/knowledge{query}")["items"]}


async def harvested(client: Client, store: DatabaseEventLog, workspace: Path) -> dict[str, str]:
    await store_session(store, workspace, f"{FACT} {RULE}")
    accept_harvest(client)
    return listed(client)


def accept_harvest(client: Client) -> None:
    assert client.request("POST", "/api/knowledge/harvest", {"review": True}).status == 200
    for item in client.get("/api/knowledge/review")["waiting"]:
        assert client.request("POST", f"/api/knowledge/review/{item['id']}", {"action": "accept"}).status == 200


async def test_harvest_is_only_previewed_unless_a_review_is_requested(
    client: Client, store: DatabaseEventLog, workspace: Path
) -> None:
    session_id = await store_session(store, workspace, f"{FACT} {RULE}")
    for body in (None, {}, {"apply": False}):
        harvest = client.request("POST", "/api/knowledge/harvest", body).json
        assert (harvest["applied"], harvest["new_items"], harvest["digest_change"]) == (False, 2, None)
        assert [session["session_id"] for session in harvest["sessions"]] == [session_id]
    assert not (workspace / ".holdfast").exists()
    done = client.request("POST", "/api/knowledge/harvest", {"review": True}).json
    assert (done["applied"], done["new_items"], done["accepted"], done["waiting"]) == (True, 2, 0, 2)
    assert client.get("/api/knowledge")["items"] == []
    again = client.request("POST", "/api/knowledge/harvest", {"review": True}).json
    assert (again["sessions"], again["harvested_before"], again["new_items"]) == ([], 1, 0)


async def test_only_items_with_evidence_are_applied_without_a_person(
    client: Client, store: DatabaseEventLog, workspace: Path
) -> None:
    def write_file(path: str, content: str) -> str:
        """Writes."""
        return "written"

    provider = scripted_provider([tool_use("write_file", path="src/a.py", content="x")], "Done.", "Ok.")
    async with new_session(provider, workspace=workspace, store=store, new_id=new_ulid, tools=[write_file]) as session:
        await session.send(f"{RULE} And add src/a.py.")
        await session.send("Never eat lunch at noon in the harbour.")
        await session.end()
    done = client.request("POST", "/api/knowledge/harvest", {"apply": True}).json
    assert (done["accepted"], done["waiting"]) == (1, 1)
    assert set(listed(client)) == {RULE}
    assert done["digest_change"]["invalidated_tokens"] == done["digest_change"]["bytes_after"] // 4 > 0


async def test_waiting_item_is_shown_with_its_source_lines_and_every_decision_can_be_undone(
    client: Client, store: DatabaseEventLog, workspace: Path
) -> None:
    session_id = await store_session(store, workspace, f"Good morning.\n{FACT}\n{RULE}")
    client.request("POST", "/api/knowledge/harvest", {"review": True})
    review = client.get("/api/knowledge/review")
    waiting = {item["text"]: item for item in review["waiting"]}
    (source,) = waiting[FACT]["sources"]
    assert (source["session_id"], source["number"], source["origin"]) == (session_id, 2, "user")
    assert source["lines"] == ["Good morning.", FACT, RULE]
    fact = f"/api/knowledge/review/{waiting[FACT]['id']}"
    assert client.request("POST", fact, {"action": "reject"}).json["action"] == "reject"
    assert [item["text"] for item in client.get("/api/knowledge/review")["set_aside"]] == [FACT]
    await store_session(store, workspace, FACT)
    assert client.request("POST", "/api/knowledge/harvest", {"review": True}).json["new_items"] == 0
    assert client.request("POST", fact, {"action": "restore"}).status == 200
    accepted = client.request("POST", fact, {"action": "accept", "text": "It is port 6000 here."}).json
    assert (accepted["text"], accepted["shared"]) == ("It is port 6000 here.", False)
    assert "It is port 6000 here." in client.get("/api/knowledge/digest")["text"]
    assert client.request("POST", fact, {"action": "restore"}).status == 200
    assert client.get("/api/knowledge/digest")["text"] == ""
    assert client.get("/api/knowledge/review")["waiting_total"] == 2
    assert client.request("POST", f"/api/knowledge/review/{AN_ID}", {"action": "accept"}).code == "item_not_found"
    assert client.request("POST", fact, {"action": "accept", "text": "password = hunter2-xx"}).code == "holds_secret"


async def test_each_user_has_items_of_their_own_and_shares_only_what_is_not_personal(
    client: Client, store: DatabaseEventLog, workspace: Path
) -> None:
    personal = "Always use my card card_4242 in checkout.py."
    await store_session(store, workspace, f"{personal} {RULE}", user_id="ann")
    client.request("POST", "/api/knowledge/harvest", {"review": True})
    assert client.get("/api/knowledge")["users"] == ["ann"]
    assert client.get("/api/knowledge/review")["waiting"] == []
    waiting = {item["text"]: item["id"] for item in client.get("/api/knowledge/review?user=ann")["waiting"]}
    share = {"action": "accept", "share": True, "user": "ann"}
    refused = client.request("POST", f"/api/knowledge/review/{waiting[personal]}", share)
    assert (refused.status, "about a person" in refused.body.decode()) == (409, True)
    assert client.request("POST", f"/api/knowledge/review/{waiting[RULE]}", share).json["shared"]
    assert client.request("POST", f"/api/knowledge/review/{waiting[personal]}", share | {"share": False}).status == 200
    for query, expected in (("", {RULE}), ("?user=ann", {RULE, personal}), ("?user=bob", {RULE})):
        assert listed(client, query).keys() == expected
        digest = client.get(f"/api/knowledge/digest{query}")["text"]
        assert {text for text in (RULE, personal) if text in digest} == expected


async def test_a_shared_line_about_a_person_can_be_retracted_but_not_rewritten(
    client: Client, store: DatabaseEventLog, workspace: Path
) -> None:
    personal = "I keep my notes in NOTES.md."
    await store_session(store, workspace, RULE, user_id="ann")
    client.request("POST", "/api/knowledge/harvest", {"review": True})
    (waiting,) = client.get("/api/knowledge/review?user=ann")["waiting"]
    share = {"action": "accept", "share": True, "user": "ann"}
    client.request("POST", f"/api/knowledge/review/{waiting['id']}", share)
    # A person who edits the page may write what a harvest never shares.
    (page,) = [path for path in workspace.rglob("*.md") if RULE in path.read_text() and path.name != "digest.md"]
    page.write_text(page.read_text().replace(RULE, personal))
    (item_id,) = [id for text, id in listed(client, "").items() if text == personal]
    refused = client.request("PUT", f"/api/knowledge/items/{item_id}", {"text": "I moved my notes."})
    assert (refused.status, "about a person" in refused.body.decode()) == (409, True)
    retracted = client.request("PUT", f"/api/knowledge/items/{item_id}", {"status": "retracted"})
    assert (retracted.status, retracted.json["status"]) == (200, "retracted")
    assert personal not in client.get("/api/knowledge/digest")["text"]


async def test_simulated_sessions_are_harvested_only_by_a_simulated_service(
    client: Client, store: DatabaseEventLog, workspace: Path
) -> None:
    await store_session(store, workspace, FACT, simulated=True)
    assert client.request("POST", "/api/knowledge/harvest", {}).json["sessions"] == []
    client.service.is_simulating = True
    (harvest,) = client.request("POST", "/api/knowledge/harvest", {}).json["sessions"]
    assert harvest["session_id"] == store.sessions()[0].id


async def test_items_are_listed_by_category_and_page(client: Client, store: DatabaseEventLog, workspace: Path) -> None:
    ids = await harvested(client, store, workspace)
    assert {FACT, RULE} == ids.keys()
    assert listed(client, "?category=facts").keys() == {FACT}
    knowledge = client.get("/api/knowledge?limit=1&skip=1")
    assert (len(knowledge["items"]), knowledge["items_total"], knowledge["enabled"]) == (1, 2, True)
    assert {(category["category"], category["items"]) for category in knowledge["categories"]} == {
        ("facts", 1),
        ("decisions", 1),
    }
    assert client.request("GET", "/api/knowledge?category=gossip").code == "invalid_category"


async def test_item_lists_its_sources(client: Client, store: DatabaseEventLog, workspace: Path) -> None:
    ids = await harvested(client, store, workspace)
    (row,) = store.sessions()
    item = client.get(f"/api/knowledge/items/{ids[FACT]}")
    (source,) = item["sources"]
    assert (source["session_id"], source["origin"]) == (row.id, "user")
    assert (item["scope"], item["exclusion_reason"], item["edited"]) == ("project", "", False)


async def test_changed_item_keeps_its_id_and_is_in_the_digest_at_once(
    client: Client, store: DatabaseEventLog, workspace: Path
) -> None:
    ids = await harvested(client, store, workspace)
    item = client.request("PUT", f"/api/knowledge/items/{ids[FACT]}", {"text": "It is\n port 6000 <b>now</b>."}).json
    assert (item["id"], item["text"], item["edited"]) == (ids[FACT], "It is port 6000 &lt;b>now&lt;/b>.", True)
    digest = client.get("/api/knowledge/digest")["text"]
    assert "- It is port 6000 &lt;b>now" in digest
    assert FACT not in digest
    assert client.request("PUT", f"/api/knowledge/items/{ids[RULE]}", {"status": "retracted"}).json["exclusion_reason"]
    assert RULE not in client.get("/api/knowledge/digest")["text"]


async def test_task_is_marked_as_done_and_approved(client: Client, store: DatabaseEventLog, workspace: Path) -> None:
    await harvested(client, store, workspace)
    (workspace / ".holdfast" / "knowledge" / "tasks.md").write_text("- [ ] Write the release notes.\n")
    task = listed(client)["Write the release notes."]
    for change in ({"done": True}, {"approved": True}, {"done": False}):
        item = client.request("PUT", f"/api/knowledge/items/{task}", change).json
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
async def test_text_that_must_not_be_stored_is_refused(
    client: Client, store: DatabaseEventLog, workspace: Path, body: dict[str, str], status: int, code: str
) -> None:
    ids = await harvested(client, store, workspace)
    before = (workspace / ".holdfast" / "knowledge" / "facts.md").read_bytes()
    response = client.request("PUT", f"/api/knowledge/items/{ids[FACT]}", body)
    assert (response.status, response.code) == (status, code)
    assert b"hunter2" not in response.body
    assert (workspace / ".holdfast" / "knowledge" / "facts.md").read_bytes() == before


async def test_removed_item_does_not_come_back(client: Client, store: DatabaseEventLog, workspace: Path) -> None:
    ids = await harvested(client, store, workspace)
    assert client.request("DELETE", f"/api/knowledge/items/{ids[FACT]}").json == {"removed": ids[FACT]}
    assert client.request("GET", f"/api/knowledge/items/{ids[FACT]}").code == "item_not_found"
    await store_session(store, workspace, FACT)
    assert client.request("POST", "/api/knowledge/harvest", {"apply": True}).json["new_items"] == 0
    assert FACT not in listed(client)
    assert FACT not in client.get("/api/knowledge/digest")["text"]


async def test_running_session_has_a_digest_pending_and_a_new_session_has_not(
    client: Client, store: DatabaseEventLog, workspace: Path
) -> None:
    before = await store_session(store, workspace, f"{FACT} {RULE}")
    accept_harvest(client)
    digest = client.get(f"/api/knowledge/digest?session_id={before}")
    assert (digest["pending"], digest["pending_items"]) == ("newer digest pending (2 items)", 2)
    after = await store_session(store, workspace, "Hello.")
    assert client.get(f"/api/knowledge/digest?session_id={after}")["pending"] == ""
    assert client.request("GET", "/api/knowledge/digest?session_id=none-such").code == "session_not_found"


async def test_page_edited_by_a_user_has_a_digest_pending_until_it_is_rebuilt(
    client: Client, store: DatabaseEventLog, workspace: Path
) -> None:
    await harvested(client, store, workspace)
    assert client.get("/api/knowledge/digest")["pending"] == ""
    with (workspace / ".holdfast" / "knowledge" / "facts.md").open("a") as page:
        page.write("- Ships leave at noon.\n")
    assert client.get("/api/knowledge/digest")["pending"] == "newer digest pending (1 item)"


def test_folder_without_knowledge_has_no_items(client: Client) -> None:
    assert client.get("/api/knowledge")["items_total"] == 0
    digest = client.get("/api/knowledge/digest")
    assert (digest["exists"], digest["text"], digest["pending"]) == (False, "", "")
    for method in ("GET", "DELETE"):
        assert client.request(method, f"/api/knowledge/items/{AN_ID}").code == "item_not_found"
    assert client.request("PUT", f"/api/knowledge/items/{AN_ID}", {"done": True}).code == "item_not_found"


def test_service_outside_of_a_project_reports_it(store: DatabaseEventLog) -> None:
    with serve_store(store) as client:
        assert client.request("GET", "/api/knowledge").code == "no_workspace"


async def test_nothing_is_changed_while_another_run_holds_the_lock(
    client: Client, store: DatabaseEventLog, workspace: Path
) -> None:
    await store_session(store, workspace, FACT)
    folder = knowledge_folder(workspace)
    with folder.lock():
        response = client.request("POST", "/api/knowledge/harvest", {"apply": True})
    assert (response.status, response.code) == (409, "knowledge_in_use")
    assert folder.read(DIGEST_FILE) is None


async def test_adoption_cost_is_the_rewrite_from_the_digest_on(
    client: Client, store: DatabaseEventLog, workspace: Path
) -> None:
    await harvested(client, store, workspace)
    session_id = await store_session(store, workspace, "Hello.", knowledge=True)
    assert client.get("/api/knowledge/pending")["sessions"] == []
    ids = listed(client)
    assert client.request("DELETE", f"/api/knowledge/items/{ids[RULE]}").status == 200
    pending = client.get("/api/knowledge/pending")
    (waiting,) = pending["sessions"]
    assert (waiting["session_id"], waiting["pending_items"], pending["digest_change"]) == (session_id, 1, None)
    layers = client.get(f"/api/sessions/{session_id}/calls")["calls"][-1]["layers"]
    names = [layer["layer"] for layer in layers]
    from_knowledge_on = layers[names.index("knowledge") :]
    assert waiting["tokens"] == sum(one["tokens"] for one in from_knowledge_on) > 0
    assert 0 < waiting["extra_usd"] < 1


async def test_running_session_is_asked_to_adopt_the_newer_digest(
    client: Client, store: DatabaseEventLog, workspace: Path
) -> None:
    await harvested(client, store, workspace)
    reads = [tool_use("look")]
    provider = scripted_provider("a", "b", reads, "c", "d")

    def look() -> str:
        """Looks."""
        client.request("POST", f"/api/knowledge/pending/{session.id}/adopt")
        return "nothing"

    async with new_session(provider, workspace=workspace, store=store, new_id=new_ulid, tools=[look]) as session:
        await session.send("x")
        client.request("DELETE", f"/api/knowledge/items/{listed(client)[RULE]}")
        await session.send("y")
        assert len(client.get("/api/knowledge/pending")["sessions"]) == 1
        await session.send("z")
        await session.send("and on")
        assert client.get("/api/knowledge/pending")["sessions"] == []
    has_rule = [RULE.encode() in request.body for request in provider.requests]
    # Requested during the third turn; adoption waits, because that turn must not lose its thinking blocks.
    assert has_rule == [True, True, True, True, False]
    bodies = [re.sub(rb',"cache_control":\{[^}]*\}', b"", request.body) for request in provider.requests]
    assert len({body.partition(b'"tools":')[2].partition(b"# Knowledge")[0] for body in bodies}) == 1


def test_adoption_is_refused_for_sessions_that_are_unknown_or_cannot_adopt(
    client: Client, store: DatabaseEventLog
) -> None:
    assert client.request("POST", "/api/knowledge/pending/none-such/adopt").code == "session_not_found"
    store.append([event("e1", SessionStarted("anthropic:claude-sonnet-5-5"), session="wrapped")]).result(10)
    assert client.request("POST", "/api/knowledge/pending/wrapped/adopt").code == "not_controllable"
    assert store.records.session_controls() == {}


async def test_pending_digest_is_previewed_before_it_is_adopted(
    client: Client, store: DatabaseEventLog, workspace: Path
) -> None:
    await harvested(client, store, workspace)
    page = workspace / ".holdfast" / "knowledge" / "facts.md"
    page.write_text(page.read_text() + "- The broker is in Rotterdam.\n")
    pending = client.get("/api/knowledge/pending")
    assert "- The broker is in Rotterdam." in pending["next_text"]
    assert (pending["digest_change"]["items"], pending["digest_change"]["first_byte"] > 0) == (1, True)
    client.service.workspace = None
    assert client.request("GET", "/api/knowledge/pending").code == "no_workspace"
