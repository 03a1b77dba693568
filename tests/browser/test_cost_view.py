"""The Cost view and the views it links to."""

import asyncio
from decimal import Decimal
from pathlib import Path

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import system_clock
from holdfast.events.log import Event
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallStarted
from holdfast.events.payloads.session import SessionStarted
from holdfast.events.payloads.union import AnyPayload
from holdfast.service.sample import SamplePlayer
from holdfast.sources.skills.discovery import SkillRoot
from holdfast.stores.memory import MemoryStore
from holdfast.types.usage import Usage
from tests.support.browsers import Page
from tests.support.served_service import Client, serve_store
from tests.support.skill_folders import write_skill


def dollars(amount: float) -> str:
    return f"${amount:.4f}"


def test_totals_match_the_api(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("cost", heading="Cost")
    savings = sample_service.get("/analytics/savings")["data"]
    assert page.text("[data-figure=spent]") == dollars(savings["actual_stamped_usd"])
    assert page.text("[data-figure=uncached]") == dollars(savings["uncached_usd"])
    assert page.text("[data-figure=saved]").startswith(dollars(savings["saved_by_caching_usd"]))
    assert page.text("[data-figure=regret]") == dollars(sample_service.get("/analytics/regret")["data"]["regret_usd"])
    models = page.text("section[aria-label='By model']")
    for row in sample_service.get("/analytics/cost")["data"]:
        assert row["model"] in models
        assert dollars(row["cost_usd"]) in models
    assert len(page.elements(".columns-chart .series")) == 4


def test_prefix_changes_are_listed_worst_first_and_link_to_their_calls(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("cost")
    rows = sample_service.get("/analytics/breaks")["data"]
    breaks = [row["cause"].replace("_", " ") for row in rows]
    assert page.texts("section[aria-label='Breaks by cause, worst first'] .verdict") == breaks
    (changed,) = (row["call_count"] for row in rows if row["cause"] == "prefix_changed")
    page.click(f"a[aria-label='{changed} calls: prefix_changed']")
    page.wait_until(lambda: page.text("h1") == "prefix changed: volatile")
    assert len(page.elements("tbody tr")) == changed > 1
    page.click("tbody tr a")
    page.wait_until(lambda: page.text(".detail h2").startswith("Call 9"))


def test_time_range_is_chosen_by_its_link(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("cost")
    page.click("a[href='#/cost?days=30']")
    page.wait_until(lambda: page.text(".switch [aria-current]") == "30 days")
    assert page.text("[data-figure=spent]") == dollars(
        sample_service.get("/analytics/savings")["data"]["actual_stamped_usd"]
    )


def test_the_period_bounds_the_sessions_and_the_chart_ends_now(page: Page) -> None:
    store, now = MemoryStore(), system_clock()
    usage, model = Usage(input=10, output=1), "anthropic:claude-sonnet-5-5"
    for name, at in (("old", now - 20 * 86_400), ("new", now - 3 * 3_600)):
        call = LlmCallCompleted(model, "anthropic", usage, Decimal("0.01"), "v", 750, "end_turn", 0, 0, f"r {name}")
        started = LlmCallStarted(model, "anthropic", 10, f"r {name}")
        payloads: tuple[AnyPayload, ...] = (SessionStarted(model, name=name), started, call)
        store.append([Event(f"{name} {n}", at, name, "agent", payload) for n, payload in enumerate(payloads)]).result(
            10
        )
    with serve_store(store) as client:
        page.url = client.url
        page.open("cost")
        assert page.texts("section[aria-label='By session, most expensive first'] tbody td:first-child") == ["new"]
        assert page.texts("section[aria-label='By session, most expensive first'] [data-heading=Calls]") == ["1"]
        assert len(page.elements(".columns-chart .hover")) == 24, "a day until now, with the hours without calls"
        page.click("[data-does=rivals]")
        page.wait_until(lambda: "has its text stored" in page.text("section[aria-label='Other policies']"))
        page.open("cost?days=30")
        assert len(page.texts("section[aria-label='By session, most expensive first'] tbody tr")) == 2
        assert len(page.elements(".columns-chart .hover")) == 21
        page.leave()


def test_peer_policies_are_replayed_on_request(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("cost")
    page.click("[data-does=rivals]")
    page.wait_until(lambda: "under each policy" in page.text("section[aria-label='Other policies']"))
    rivals = sample_service.get("/analytics/savings?rivals=true")["data"]["rivals"]
    shown = page.texts("section[aria-label='Other policies'] tbody td:first-child")
    assert shown == [row["policy"] for row in rivals["policies"]]
    assert page.text("tr.ours td") == "holdfast"


def test_skills_are_listed_with_their_loads(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("knowledge", heading="Knowledge and skills")
    (skill,) = sample_service.get("/analytics/skills")["data"]
    cells = page.texts("section[aria-label='Skills by loads'] tbody td")
    assert cells == [skill["skill"], "0", "6", "0", f"{skill['tokens']:,}", "0"]


def test_unknown_view_links_to_an_existing_one(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("none-such", heading="View not found")
    assert page.text("main a[href='#/overview']") == "Go to the overview"


def test_sessions_are_sorted_and_filtered_as_requested(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("sessions", heading="Sessions")
    page.click("[data-key='sort spent']")
    page.wait_until(lambda: page.text("th[aria-sort=descending]") == "Spent ↓")
    rows = sample_service.get("/api/sessions?sort=spent")["sessions"]
    assert page.texts("tbody td:first-child a") == [row["title"] for row in rows]
    offered = page.run("return [...document.querySelectorAll('#offered-model option')].map(e => e.value)")
    assert offered == sorted({row["model"] for row in rows})
    losing = next(row for row in rows if row["verdict"])
    page.run("document.getElementById('filter-verdict').value = arguments[0]", losing["verdict"])
    page.click("[data-does=filter]")
    matching = sample_service.get(f"/api/sessions?sort=spent&verdict={losing['verdict']}")
    page.wait_until(lambda: "match" in page.text("[data-figure=total]"))
    assert page.texts("tbody td:first-child a") == [row["title"] for row in matching["sessions"]]


def test_simulated_sessions_appear_in_every_view_by_one_switch(page: Page) -> None:
    with MemoryStore() as store, serve_store(store) as client:
        asyncio.run(SamplePlayer(store, shipped_models(), pause=0).play())
        page.url = client.url
        views = {
            "overview": "ol.actions li",
            "sessions": "[data-session]",
            "caching": "[data-session]",
            "compare": "datalist option",
            "breaks": "tbody tr",
            "cost": ".series",
        }
        for view in views:
            page.open(view)
            assert not page.elements(views[view])
        page.click("#simulated")
        assert page.wait_until(lambda: page.elements(".series"))
        assert page.text("#simulated") == "Real and simulated"
        for view in views:
            page.open(view)
            assert page.elements(views[view])
        page.click("#simulated")
        page.wait_until(lambda: not page.elements(".series"))
        page.leave()


def test_skill_library_is_listed_with_its_findings(page: Page, tmp_path: Path) -> None:
    write_skill(tmp_path, "review", body="Review it.\n")
    write_skill(tmp_path, "broken", front="name: broken\n")
    with serve_store(MemoryStore()) as client:
        client.service.skill_roots = (SkillRoot(str(tmp_path), "workspace"),)
        client.service.workspace = tmp_path
        page.url = client.url
        page.open("knowledge")
        assert page.text("[data-skill=review] [data-heading=Loads]") == "yes"
        assert page.text("[data-skill=broken] [data-heading=Loads]") == "no"
        assert "error" in page.text("[data-skill=broken] [data-heading=Findings]")
        assert "No skills loaded yet" in page.text("main")
        page.leave()
