"""The Cost view and the views it links to."""

import asyncio
import datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import system_clock
from holdfast.events.log import Event
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallStarted
from holdfast.events.payloads.session import SessionStarted
from holdfast.events.payloads.union import AnyPayload
from holdfast.runtime.session import Session
from holdfast.service.sample import SamplePlayer
from holdfast.simulator.provider import SimulatedProvider
from holdfast.sources.skills.discovery import SkillRoot
from holdfast.stores.memory import MemoryStore
from holdfast.types.usage import Usage
from tests.support.browsers import Keys, Page
from tests.support.event_examples import session_started_event
from tests.support.served_service import Client, serve_store
from tests.support.simulated_gemini import LONG
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


def test_the_chart_of_spending_sums_up_to_what_was_spent_with_more_models_than_colours(page: Page) -> None:
    store, now = MemoryStore(), system_clock()
    for number in range(8):
        model, cost = f"anthropic:model-{number}", Decimal(8 - number)
        call = LlmCallCompleted(
            model, "anthropic", Usage(input=10, output=1), cost, "v", 750, "end_turn", 0, 0, f"r{number}"
        )
        started = LlmCallStarted(model, "anthropic", 10, f"r{number}")
        payloads: tuple[AnyPayload, ...] = (SessionStarted(model), started, call)
        at = now - 3_600 * number
        store.append(
            [Event(f"e{number} {n}", at, f"s{number}", "agent", one) for n, one in enumerate(payloads)]
        ).result(10)
    with serve_store(store) as client:
        page.url = client.url
        page.open("cost", heading="Cost")
        legend = [*(f"anthropic:model-{number}" for number in range(5)), "3 other models"]
        assert page.texts(".legend li") == legend
        numbers = page.texts("details tbody td.number")
        assert sum(float(text.removeprefix("$")) for text in numbers) == pytest.approx(36)
        assert page.text("[data-figure=spent]") == dollars(36)
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


@pytest.mark.parametrize("width", [390, 768, 1440])
def test_labels_of_charts_do_not_overlap(page: Page, sample_service: Client, width: int) -> None:
    page.url = sample_service.url
    for view, heading in (("cost", "Cost"), ("cost?days=1", "Cost"), ("overview", "Overview")):
        page.resize(width, 900)
        page.open(view, heading=heading)
        page.element(".columns-chart")
        boxes = page.run(
            "return [...document.querySelectorAll('.columns-chart .tick:not(.end)')]"
            ".map(e => e.getBoundingClientRect()).map(box => [box.left, box.right])"
        )
        right = page.run("return document.querySelector('.columns-chart').getBoundingClientRect().right")
        assert len(boxes) > 1
        assert all(before[1] < after[0] for before, after in pairwise(boxes))
        assert boxes[-1][1] <= right + 1, "nothing is cut off"


def test_every_list_names_both_models_of_a_session_that_switched(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    (row,) = (row for row in sample_service.get("/api/sessions")["sessions"] if "switched" in row["name"])
    current = sample_service.get(f"/api/cache/{row['id']}")["model"]
    assert (row["model"], row["active_model"]) == ("anthropic:claude-haiku-4-5", current)
    for view in ("sessions", "cost", "try", f"compare?a={row['id']}&b={row['id']}", f"session/{row['id']}"):
        page.open(view)
        page.wait_until(lambda: f"{row['model']}, then {current}" in page.text("main"))


@pytest.mark.parametrize("width", [700, 1024])
def test_charts_and_tables_fit_between_a_phone_and_a_wide_screen(
    page: Page, sample_service: Client, width: int
) -> None:
    page.url = sample_service.url
    page.resize(width, 500)
    wider = (
        "return [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1)"
        ".map(e => e.closest('section').ariaLabel)"
    )
    for view in ("overview", "cost", "sessions", "caching"):
        page.open(view)
        page.element("table")
        assert page.run(wider) == [], view
    assert page.run("return document.querySelector('.top').offsetHeight") < 130, "the header leaves room"


def test_a_chart_is_drawn_again_for_another_width_of_the_window(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.resize(1280, 900)
    page.open("overview", heading="Overview")
    page.element(".columns-chart")
    page.resize(800, 900)
    fits = "const e = document.querySelector('.chart'); return e.scrollWidth <= e.clientWidth + 1"
    assert page.wait_until(lambda: page.run(fits))
    page.resize(1280, 900)
    fills = "const e = document.querySelector('.chart'); return e.firstChild.clientWidth > 0.95 * e.clientWidth"
    assert page.wait_until(lambda: page.run(fills))


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


def test_sessions_are_sorted_and_filtered_on_a_narrow_screen_too(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.resize(390, 844)
    page.open("sessions", heading="Sessions")
    assert page.run("return document.querySelector('.filters').open") is False, "the sessions come first"
    page.run(
        "const e = document.querySelector('#filter-order'); e.value = 'lost true'; e.dispatchEvent(new Event('change'))"
    )
    rows = sample_service.get("/api/sessions?sort=lost")["sessions"]
    page.wait_until(lambda: page.texts("[data-session] td:first-child a") == [row["title"] for row in rows])
    assert page.run("return document.querySelector('#filter-order').value") == "lost true"
    reached = set()
    for _ in range(20):
        page.driver.switch_to.active_element.send_keys(Keys.TAB)
        reached.add(page.run("return document.activeElement.dataset.key ?? ''"))
    assert {"filter search", "filter order", "filters"} <= reached
    assert not {key for key in reached if key.startswith("sort ")}, "nothing out of sight has the focus"
    page.run("document.querySelector('#filter-search').value = 'mid-session'")
    page.click("[data-does=filter]")
    page.wait_until(lambda: len(page.elements("[data-session]")) == 1)
    page.wait_until(lambda: page.run("return document.querySelector('.filters').open"))


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


@pytest.mark.parametrize("view", ["overview", "caching", "sessions", "calls", "cost"])
def test_views_that_are_empty_without_simulated_sessions_offer_to_include_them(page: Page, view: str) -> None:
    with MemoryStore() as store, serve_store(store) as client:
        page.url = client.url
        asyncio.run(SamplePlayer(store, shipped_models(), pause=0).play())
        page.open(view)
        assert "Simulated sessions, such as those of holdfast demo --keep, are left out." in page.text("main")
        page.click("[data-does=include-simulated]")
        page.wait_until(lambda: "claude-sonnet-5-5" in page.text("main"))
        assert "are left out" not in page.text("main")
        page.click("#simulated")
        page.wait_until(lambda: "are left out" in page.text("main"))
        page.leave()


@pytest.mark.parametrize("query", ["sort=colour", "from=yesterday", "after=garbage", "verdict=none-such"])
def test_sessions_of_a_wrong_address_keep_the_form_and_a_way_back(
    page: Page, sample_service: Client, query: str
) -> None:
    page.url, page.expected_errors = sample_service.url, ("400",)
    page.open(f"sessions?{query}&search=bad", heading="Sessions")
    assert page.text("main [role=alert]")
    assert page.run("return document.getElementById('filter-search').value") == "bad"
    page.click("main [role=alert] a")
    page.wait_until(lambda: len(page.elements("[data-session]")) == 6)


def test_days_of_the_filter_begin_at_midnight_where_the_user_is(page: Page) -> None:
    store = MemoryStore()
    # In New York, which is four hours behind, this is the evening of the 17th.
    at = datetime.datetime(2026, 6, 18, 2, tzinfo=datetime.UTC).timestamp()
    store.append([session_started_event("late", at=at)]).result(10)
    with serve_store(store) as client:
        page.url = client.url
        page.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "America/New_York"})
        try:
            page.open("sessions?from=2026-06-17&to=2026-06-18", heading="Sessions")
            assert "17 Jun 2026" in page.text("[data-session=late]").replace("Jun 17,", "17 Jun")
            page.open("sessions?from=2026-06-18", heading="Sessions")
            assert "No session matches." in page.text("main")
        finally:
            page.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})
        page.leave()


def test_calls_without_a_price_are_counted_beside_the_sum_of_the_others(page: Page) -> None:
    store, now = MemoryStore(), system_clock()
    usage = Usage(input=10, output=1)
    prices = {"anthropic:claude-sonnet-5-5": "v", "openai:none-such": "unpriced"}
    for number, (model, price) in enumerate(prices.items()):
        started = LlmCallStarted(model, model.partition(":")[0], 10, f"r{number}")
        call = LlmCallCompleted(
            model,
            model.partition(":")[0],
            usage,
            Decimal("0.01") if price == "v" else Decimal(0),
            price,
            750,
            "end_turn",
            0,
            0,
            f"r{number}",
        )
        payloads: tuple[AnyPayload, ...] = (*((SessionStarted(model),) if not number else ()), started, call)
        store.append([Event(f"e{number}{n}", now - 9, "s", "agent", payload) for n, payload in enumerate(payloads)])
    with serve_store(store) as client:
        page.url = client.url
        for view, figure in (("overview", "[data-figure=today]"), ("cost", "[data-figure=spent]")):
            page.open(view)
            assert page.text(figure).startswith("$0.0100 + 1 unpriced call")
        page.open("sessions", heading="Sessions")
        assert page.text("[data-session=s] [data-heading=Spent]") == "$0.0100+ 1 unpriced"
        page.leave()


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


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ("Be brief.", "no prompt of these sessions is long enough to be cached."),
        (LONG, "these sessions have few of those."),
    ],
)
async def test_rivals_are_listed_with_our_row_and_why_they_cost_the_same(page: Page, prompt: str, reason: str) -> None:
    with MemoryStore() as store, serve_store(store) as client:
        async with Session.create(
            model="anthropic:claude-sonnet-5-5",
            system_prompt=prompt,
            store=store,
            transport=SimulatedProvider(),
            simulated=False,
        ) as session:
            for text in ("One.", "Two.", "Three."):
                await session.send(text)
        page.url = client.url
        page.open("cost", heading="Cost")
        page.click("[data-does=rivals]")
        assert page.wait_until(lambda: page.texts("tr.ours td:first-child")) == ["holdfast"]
        rows = "section[aria-label$='under each policy'] tbody tr"
        weights = page.run(
            "return [...document.querySelectorAll(arguments[0])].map(e => getComputedStyle(e.cells[0]).fontWeight)",
            rows,
        )
        assert sorted(weights)[-1] == "600"
        assert weights.count("600") == 1
        assert page.text("[data-figure=no-difference]").endswith(reason)
        page.leave()


def test_rivals_of_the_sample_are_called_equal_only_if_most_of_them_are(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("cost", heading="Cost")
    page.click("[data-does=rivals]")
    page.wait_until(lambda: page.elements("tr.ours"))
    policies = sample_service.get("/analytics/savings?rivals=true")["data"]["rivals"]["policies"]
    costs = {row["policy"]: row["cost_usd"] for row in policies}
    ours = costs.pop("holdfast")
    same = sum(abs(cost - ours) <= 0.01 * ours for cost in costs.values())
    expected = f"{same} of {len(costs)} other policies cost the same as ours" if 2 * same >= len(costs) else ""
    assert page.text("[data-figure=no-difference]")[: len(expected) or None] == expected
