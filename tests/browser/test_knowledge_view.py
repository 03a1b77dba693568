"""The Knowledge view: items with their sources, edits by users, the digest, pending digests, the harvest."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.clock import ManualClock
from holdfast.knowledge.items import Item, ItemSource, make_item_id
from holdfast.knowledge.pages import merge_page_items, parse_page, render_page
from holdfast.stores.memory import MemoryStore
from tests.support.browsers import Keys, Page
from tests.support.knowledge_folders import FACT, RULE, store_session
from tests.support.scripted_sessions import new_session, scripted_provider
from tests.support.served_service import Client, serve_store

HOSTILE = "Never trust <img src=x onerror=\"document.title='owned'\"> in docs/a.md."
TOOL_FACT = "The broker of order 1042 is in Rotterdam."


class Project:
    def __init__(self, client: Client, store: MemoryStore, folder: Path) -> None:
        self.client = client
        self.store = store
        self.folder = folder

    def item(self, text: str) -> dict[str, object]:
        items = self.client.get("/api/knowledge")["items"]
        return next((item for item in items if item["text"] == text), {})

    def waiting(self) -> list[dict[str, str]]:
        return list(self.client.get("/api/knowledge/review")["waiting"])

    def row(self, text: str) -> str:
        return f"[data-item='{self.item(text)['id']}']"


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    store, folder = MemoryStore(), tmp_path / "project"
    folder.mkdir()
    with serve_store(store, clock=ManualClock()) as client:
        client.service.workspace = folder
        yield Project(client, store, folder)


@pytest.fixture
async def harvested(project: Project) -> Project:
    await store_session(project.store, project.folder, f"{FACT} {RULE}")
    assert project.client.request("POST", "/api/knowledge/harvest", {"review": True}).status == 200
    for item in project.waiting():
        assert project.client.request("POST", f"/api/knowledge/review/{item['id']}", {"action": "accept"}).status == 200
    return project


def test_items_with_sources_and_the_digest_match_the_api(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("knowledge", heading="Knowledge and skills")
    knowledge = sample_service.get("/api/knowledge")
    assert page.text("[data-figure=items]") == str(knowledge["items_total"])
    for item in knowledge["items"]:
        row = page.text(f"[data-item='{item['id']}']")
        assert item["text"] in row
        (source,) = item["sources"]
        assert f"message {source['number']}, {source['origin']}" in row
        page.element(f"[data-item='{item['id']}'] a[href='#/session/{source['session_id']}']")
    assert page.text(".digest pre") == sample_service.get("/api/knowledge/digest")["text"]


def test_session_with_an_older_digest_is_listed_with_the_cost_of_adoption(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("knowledge")
    (waiting,) = sample_service.get("/api/knowledge/pending")["sessions"]
    row = page.text(f"[data-pending='{waiting['session_id']}']")
    assert waiting["name"] in row
    assert f"{waiting['tokens']:,}" in row
    assert f"${waiting['extra_usd']:.4f}" in row


async def test_button_asks_a_session_to_adopt_the_digest(page: Page, harvested: Project) -> None:
    async with new_session(
        scripted_provider("Yes.", "Yes."), store=harvested.store, workspace=harvested.folder, knowledge=True
    ) as session:
        await session.send("Hello.")
        assert harvested.client.request("DELETE", f"/api/knowledge/items/{harvested.item(RULE)['id']}").status == 200
        page.url = harvested.client.url
        page.open("knowledge")
        page.click(f"[data-pending='{session.id}'] [data-does=adopt]")
        page.wait_until(lambda: "uses the newest digest from its next turn on" in page.text("#notice"))
        await session.send("And now?")
    assert harvested.client.get("/api/knowledge/pending")["sessions"] == []
    page.leave()


def test_category_is_chosen_by_its_link(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("knowledge")
    page.click("a[href='#/knowledge?category=facts']")
    page.wait_until(lambda: page.text(".switch [aria-current]").startswith("facts"))
    assert len(page.elements("[data-item]")) == sample_service.get("/api/knowledge?category=facts")["items_total"]


def test_users_retract_restore_edit_and_remove_items(page: Page, harvested: Project) -> None:
    page.url = harvested.client.url
    page.open("knowledge")
    row = harvested.row(FACT)
    page.click(f"{row} [data-does=retract]")
    page.wait_until(lambda: "no: retracted" in page.text(row))
    assert FACT not in harvested.client.get("/api/knowledge/digest")["text"]
    page.click(f"{row} [data-does=restore]")
    page.wait_until(lambda: "yes" in page.text(f"{row} [data-heading='In digest']"))
    page.wait_until(lambda: FACT in page.text(".digest pre"))
    page.click(f"{row} summary")
    page.element(f"{row} textarea").clear()
    page.element(f"{row} textarea").send_keys("It is port 6000 in config/ports.toml.")
    page.click(f"{row} [data-does=save]")
    page.wait_until(lambda: "It is port 6000" in page.text(".digest pre"))
    page.click(f"{harvested.row(RULE)} [data-does=remove]")
    page.wait_until(lambda: not harvested.item(RULE))
    page.wait_until(lambda: RULE not in page.text("main .digest"))
    page.click("[data-key='set aside']")
    page.click("[data-does=restore-item]")
    page.wait_until(lambda: [item["text"] for item in harvested.waiting()] == [RULE])
    page.leave()


async def test_task_is_completed_and_tool_item_is_approved(page: Page, project: Project) -> None:
    pages = project.folder / ".holdfast" / "knowledge"
    pages.mkdir(parents=True)
    (pages / "tasks.md").write_text("- [ ] Ask the broker.\n")
    item = Item(make_item_id("facts", TOOL_FACT), "facts", TOOL_FACT, sources=(ItemSource("s1", 3, "tool"),))
    (pages / "facts.md").write_text(render_page(merge_page_items(parse_page("facts", ""), [item])))
    page.url = project.client.url
    page.open("knowledge")
    task = project.row("Ask the broker.")
    page.click(f"{task} [data-does=done]")
    page.wait_until(lambda: "no: done" in page.text(task))
    page.click(f"{task} [data-does=done]")
    page.wait_until(lambda: "yes" in page.text(f"{task} [data-heading='In digest']"))
    assert not project.item("Ask the broker.")["done"]
    said_by_tool = project.row(TOOL_FACT)
    assert "from tool results only" in page.text(said_by_tool)
    page.click(f"{said_by_tool} [data-does=approve]")
    page.wait_until(lambda: TOOL_FACT in page.text(".digest pre"))
    assert project.item(TOOL_FACT)["approved"]
    page.leave()


async def test_harvested_items_are_reviewed_beside_their_source_lines(page: Page, project: Project) -> None:
    rejected, personal = "Never sleep at the wheel of the ferry.", "Always use my card card_4242 in checkout.py."
    await store_session(project.store, project.folder, f"Good morning.\n{RULE}\n{rejected}\n{personal}\n{FACT}")
    page.url = project.client.url
    page.open("knowledge")
    page.click("[data-does=harvest]")
    page.wait_until(lambda: len(page.elements("[data-waiting]")) == 4)
    cards = {item["text"]: f"[data-waiting='{item['id']}']" for item in project.waiting()}
    assert page.text(f"{cards[RULE]} pre") == f"Good morning.\n{RULE}\n{rejected}"
    assert "not taken back" in page.text(cards[RULE])
    assert project.client.get("/api/knowledge")["items"] == [], "nothing is in use before a person accepts it"
    page.element(f"{cards[FACT]} textarea").clear()
    page.element(f"{cards[FACT]} textarea").send_keys("Orders listen on port 6000.")
    page.click(f"{cards[FACT]} [data-does=accept]")
    page.wait_until(lambda: "Orders listen on port 6000." in page.text(".digest pre"))
    page.expected_errors = ("409",)
    page.click(f"{cards[personal]} [data-does=share]")
    page.wait_until(lambda: "about a person" in page.text("#notice"))
    page.click(f"{cards[RULE]} [data-does=share]")
    page.wait_until(lambda: project.item(RULE).get("shared") is True)
    page.click(f"{cards[rejected]} [data-does=reject]")
    page.wait_until(lambda: [item["text"] for item in project.waiting()] == [personal])
    page.wait_until(lambda: "Rejected or removed (1)" in page.text(".review"))
    page.leave()


async def test_items_of_another_user_are_shown_on_their_own(page: Page, project: Project) -> None:
    await store_session(project.store, project.folder, "Never call me before noon_o_clock.", user_id="ann")
    project.client.request("POST", "/api/knowledge/harvest", {"review": True})
    page.url = project.client.url
    page.open("knowledge")
    assert "noon_o_clock" not in page.text("main")
    page.click("a[href='#/knowledge?user=ann']")
    page.wait_until(lambda: "noon_o_clock" in page.text("[data-waiting] pre"))
    page.click("[data-waiting] [data-does=accept]")
    page.wait_until(lambda: "noon_o_clock" in page.text(".digest pre"))
    assert "noon_o_clock" not in project.client.get("/api/knowledge/digest")["text"]
    page.leave()


async def test_harvest_is_previewed_and_then_waits_for_review(page: Page, project: Project) -> None:
    await store_session(project.store, project.folder, f"{FACT}\n{HOSTILE}\n{RULE}")
    page.url = project.client.url
    page.open("knowledge")
    assert "No knowledge yet" in page.text("main")
    page.click("[data-does=plan]")
    page.wait_until(lambda: "1 sessions would be read: 3 new items" in page.text("section[aria-label=Harvest]"))
    assert project.client.get("/api/knowledge")["items"] == []
    page.click("[data-does=harvest]")
    page.wait_until(lambda: "Harvested: 3 new items, 3 waiting for review" in page.text("#notice"))
    page.wait_until(lambda: len(page.elements("[data-waiting]")) == 3)
    assert "Never trust" in page.text("main")
    assert page.run("return document.querySelectorAll('main img').length") == 0
    page.leave()


def test_pages_edited_by_a_user_show_what_is_pending(page: Page, harvested: Project) -> None:
    pages = harvested.folder / ".holdfast" / "knowledge" / "facts.md"
    pages.write_text(pages.read_text() + "- The broker is in Rotterdam.\n")
    page.url = harvested.client.url
    page.open("knowledge")
    assert page.text(".digest ins") == "+ - The broker is in Rotterdam."
    change = harvested.client.get("/api/knowledge/pending")["digest_change"]
    assert f"about {change['invalidated_tokens']} tokens of cache" in page.text(".digest")
    page.click("[data-does=harvest]")
    page.wait_until(lambda: "Rotterdam" in harvested.client.get("/api/knowledge/digest")["text"])
    page.wait_until(lambda: not page.elements(".digest ins"))
    page.leave()


def test_read_only_key_sees_skills_but_no_quotes(page: Page, harvested: Project) -> None:
    page.url, page.expected_errors = harvested.client.url, ("401",)
    key = harvested.client.key("read")
    page.open("knowledge", heading="Sign in")
    page.element("#key").send_keys(key, Keys.ENTER)
    page.wait_until(lambda: page.text("h1") == "Knowledge and skills")
    assert FACT not in page.text("main")
    assert "only to keys of scope admin" in page.text("main")
    page.leave()
