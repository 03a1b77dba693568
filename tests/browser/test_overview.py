"""The overview: figures that agree with the other views, what to do next, and charts that a keyboard can read."""

import time
from decimal import Decimal
from pathlib import Path
from typing import Literal, get_args

import pytest

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import ManualClock
from holdfast.events.log import Event
from holdfast.events.payloads.calls import GatewayForwarded, LlmCallCompleted, LlmCallFailed, LlmCallStarted
from holdfast.events.payloads.session import SessionStarted
from holdfast.events.payloads.union import AnyPayload
from holdfast.events.records import KeyRow
from holdfast.ledger.cache.verdicts import NO_BREAKS, VerdictKind
from holdfast.ledger.spending_actions import REMEDIES
from holdfast.runtime.session import Session
from holdfast.service import dashboard
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.types.usage import Usage
from tests.support.browsers import Keys, Page
from tests.support.event_examples import session_started_event
from tests.support.served_service import Client, serve_store
from tests.support.simulated_gemini import LONG

MODEL = "anthropic:claude-sonnet-5-5"


def shown_dollars(text: str) -> float:
    return float(text.partition(" ")[0].replace("$", "").replace("−", "-"))


def test_overview_is_the_first_page_and_agrees_with_cost(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("", heading="Overview")
    assert page.text("#views a") == "Overview"
    assert "Spent today, UTC" in page.texts(".tile .label"), "elsewhere it is another day for hours"
    week = page.run("return document.querySelector('[data-figure=week]').firstChild.textContent")
    saved = page.run("return document.querySelector('[data-figure=saved]').firstChild.textContent")
    data = sample_service.get("/analytics/savings")["data"]
    assert shown_dollars(week) == round(data["actual_stamped_usd"], 4)
    page.open("cost", heading="Cost")
    assert page.text("[data-figure=spent]") == week
    assert page.text("[data-figure=saved]").startswith(saved)


def test_losses_by_cause_are_the_same_on_the_overview_and_in_the_cost_view(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url

    def losses(section: str) -> dict[str, tuple[str, str]]:
        columns = ("Cause", "Calls with a loss", "Lost")
        cells = [page.texts(f"section[aria-label='{section}'] td[data-heading='{name}']") for name in columns]
        return {cause.replace("_", " "): (calls, lost) for cause, calls, lost in zip(*cells, strict=True)}

    page.open("overview", heading="Overview")
    shown = losses("Lost in 7 days, by cause")
    page.open("cost", heading="Cost")
    breaks = losses("Breaks by cause, worst first")
    assert len(shown) > 1
    assert {cause: breaks[cause] for cause in shown} == shown
    assert {breaks[cause][0] for cause in breaks.keys() - shown.keys()} <= {"0"}


def test_overview_lists_losses_with_remedies_and_the_actions_of_the_report(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("overview", heading="Overview")
    data = sample_service.get("/analytics/overview")["data"]
    rows = page.texts("section[aria-label='Lost in 7 days, by cause'] tbody tr")
    assert len(rows) == len(data["losses"]) > 0
    assert any("move text that changes" in row for row in rows)
    actions = sample_service.get("/analytics/actions")["data"]["actions"]
    assert list(page.texts("ol.actions li strong")) == [row["action"][0].upper() + row["action"][1:] for row in actions]
    page.click("section[aria-label='Lost in 7 days, by cause'] tbody a")
    page.wait_until(lambda: "Back to cost" in page.text("main"))
    page.open("overview", heading="Overview")
    ids = {row["session"]: row["title"] for row in actions if row["session"]}
    assert page.texts("ol.actions a") == list(ids.values())
    assert not any(id in page.text("main") for id in ids), "a session is named, not numbered"
    page.click("ol.actions a")
    page.wait_until(lambda: "Prompts by call" in page.text("main"))


def test_chart_is_read_by_keyboard_and_has_its_numbers_in_a_table(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("overview", heading="Overview")
    chart = page.element("[data-key='chart spend by day']")
    chart.send_keys(Keys.END)
    today = sample_service.get("/analytics/overview")["data"]["days"][-1]["day"][5:]
    assert page.text(".readout").startswith(f"{today}: Spent without losses $")
    chart.send_keys(Keys.LEFT)
    assert not page.text(".readout").startswith(today)
    page.click("details summary")
    assert len(page.elements("details tbody tr")) == 14
    card, svg = page.run(
        "return ['.chart', '.chart svg'].map(e => document.querySelector(e).getBoundingClientRect().width)"
    )
    assert svg > 0.95 * card, "the chart fills its card"
    ticks = [shown_dollars(text) for text in page.texts(".columns-chart .tick.end")]
    step = ticks[1] - ticks[0]
    assert [round(tick / step, 6) for tick in ticks] == list(range(len(ticks))), "equal steps"
    assert f"{step:e}"[:5] in ("1.000", "2.000", "5.000"), "round numbers"


def test_numbers_of_a_chart_stay_open_when_an_event_draws_the_overview_again(page: Page) -> None:
    store = MemoryStore()
    store.append([session_started_event("s1", at=time.time())]).result(10)
    with serve_store(store) as client:
        page.url = client.url
        page.open("overview", heading="Overview")
        page.wait_until(lambda: page.text("#connection") == "live")
        page.click("details summary")
        assert page.run("return document.querySelector('details').open")
        store.append([session_started_event("s2", at=time.time())]).result(10)
        page.wait_until(lambda: len(page.elements("section[aria-label='Live sessions'] tbody tr")) == 2)
        assert page.run("return document.querySelector('details').open")
        page.leave()


def test_sessions_stop_being_live_without_another_event(page: Page) -> None:
    clock, store = ManualClock(time.time()), MemoryStore()
    store.append([session_started_event(f"s{number:02}", at=clock()) for number in range(12)]).result(10)
    with serve_store(store, clock=clock) as client:
        page.url = client.url
        page.driver.get("about:blank")
        run_timers_early = "const set = setInterval; setInterval = (run, ms) => set(run, ms > 5000 ? 500 : ms)"
        script = page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": run_timers_early})
        try:
            page.open("overview", heading="Overview")
            assert len(page.elements("section[aria-label='Live sessions'] tbody tr")) == 10
            assert "The newest 10 of 12; all sessions" in page.text("main")
            clock.advance(400)
            page.wait_until(lambda: "Nothing recorded in the last two weeks" in page.text("main"))
        finally:
            # All tests share the browser.
            page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
        page.leave()


def test_empty_store_says_how_to_start(page: Page) -> None:
    with serve_store(MemoryStore()) as client:
        page.url = client.url
        page.open("overview", heading="Overview")
        assert "holdfast connect" in page.text("main")
        page.leave()


def test_failed_calls_link_to_their_sessions_which_have_distinct_titles(page: Page) -> None:
    now = time.time()
    store = MemoryStore()
    kinds: tuple[Literal["invalid_request", "rate_limit"], ...] = ("invalid_request", "rate_limit")
    for number, kind in enumerate(kinds, start=1):
        session = f"01JD0000000000000000000A{number:02}"
        failed = LlmCallFailed(MODEL, "anthropic", kind, "the prompt in the message", 1, 1_234, f"r{number}")
        store.append(
            [
                Event(f"e{number}1", now - 9, session, "agent", SessionStarted(MODEL, name="ci")),
                Event(f"e{number}2", now - 8, session, "agent", GatewayForwarded("new", 1.0, client="my-agent")),
                Event(f"e{number}3", now - 8 + number, session, "agent", failed),
            ]
        ).result(10)
    with serve_store(store) as client:
        page.url = client.url
        page.open("overview", heading="Overview")
        assert page.text("[data-attention=failed]").startswith("2 calls failed: 1 invalid request, 1 rate limit.")
        rows = page.texts("section[aria-label='Newest calls that failed'] tbody tr")
        assert ["rate limit" in row for row in rows] == [True, False], "the newest first"
        assert "1.2 s" in rows[0]
        titles = page.texts("section[aria-label='Newest calls that failed'] tbody a")
        assert len(set(titles)) == len(titles) == 2, "one key, one client, one second"
        assert "the prompt" not in page.text("main")
        page.click("[data-attention=failed] a")
        page.wait_until(lambda: page.text("h1") == titles[0])
        assert "rate limit" in page.text("main")
        page.leave()


def record_day(store: MemoryStore, at: float, *, read_share: float) -> None:
    """A session of 25 calls that read this share of their prompts, paid with one key."""
    session, read = f"s{at}", int(10_000 * read_share)
    usage = Usage(input=10_000 - read, cache_read=read, output=10)
    payloads: list[AnyPayload] = [SessionStarted(MODEL), GatewayForwarded("new", 1.0, "a" * 16, client="claude-cli")]
    for number in range(25):
        payloads.append(LlmCallStarted(MODEL, "anthropic", 10_000, f"r{number}"))
        payloads.append(
            LlmCallCompleted(MODEL, "anthropic", usage, Decimal("0.01"), "v", 9, "end_turn", 0, 0, f"r{number}")
        )
    store.append(
        [Event(f"{session}-{n:03}", at + n / 10, session, "agent", payload) for n, payload in enumerate(payloads)]
    ).result(10)


def test_what_needs_attention_links_to_the_sessions_calls_and_keys_behind_it(page: Page) -> None:
    now, store = 1_800_000_000.0 // 86_400 * 86_400 + 43_200, MemoryStore()
    store.records.add_key(KeyRow("a" * 16, "digest", "gateway", 0.0, "ci", budget_usd_a_day=0.3))
    for day in range(4):
        record_day(store, now - day * 86_400, read_share=0.9 if day else 0.2)
    failed = LlmCallFailed(MODEL, "anthropic", "unreadable", "it is no JSON", 0, 5, "r1")
    store.append([Event("u", now - 9, "u", "agent", SessionStarted(MODEL, name="odd"))]).result(10)
    store.append([Event("u2", now - 9, "u", "agent", failed)]).result(10)
    with serve_store(store, clock=ManualClock(now + 60)) as client:
        key = client.key("admin")
        page.url, page.expected_errors = client.url, ("401",)
        page.open("overview", heading="Sign in")
        page.element("#key").send_keys(key, Keys.ENTER)
        page.wait_until(lambda: page.text("h1") == "Overview")
        assert page.text("[data-attention=budget]").startswith("ci has used 83% of $0.3000 a day; it resets ")
        assert "Key ci reads 20% of its prompts from the cache today" in page.text("[data-attention=read-share]")
        assert page.text("[data-attention=unreadable]").startswith("1 response of 7 days could not be read")
        page.click("[data-attention=unreadable] a")
        page.wait_until(lambda: page.texts("section[aria-label^='Calls that ended'] tbody a") == ["odd"])
        page.open("overview", heading="Overview")
        page.click("[data-attention=read-share] a")
        page.wait_until(lambda: page.text("h1") == "Sessions")
        assert page.run("return document.getElementById('filter-key').value") == "a" * 16
        assert len(page.elements("[data-session]")) == 4
        page.open("overview", heading="Overview")
        page.click("[data-attention=budget] a")
        page.wait_until(lambda: page.text("h1") == "Keys and budgets")
        page.leave()


def test_warnings_are_shown_on_the_overview(page: Page, tmp_path: Path) -> None:
    with serve_store(MemoryStore()) as client:
        client.service.warnings.append(lambda: "the recorder has ended; calls wait in the spool")
        page.url = client.url
        page.open("overview", heading="Overview")
        assert "the recorder has ended" in page.text("[data-attention=degraded]")
        page.leave()


def test_every_break_says_how_to_fix_it(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("breaks?cause=prefix_changed")
    assert "move text that changes" in page.text("[data-remedy=prefix_changed]")
    page.click("tbody a")
    page.wait_until(lambda: "move text that changes" in page.text(".judgement [data-remedy]"))
    page.click(".judgement [data-remedy] a")
    page.wait_until(lambda: "bytes that had been sent before changed" in page.text("main section"))


def test_remedies_are_those_of_the_report() -> None:
    script = (Path(dashboard.__file__).parent / "static" / "format.js").read_text()
    assert all(f'{kind}: "{text}"' in script for kind, text in REMEDIES.items())


def test_every_kind_of_break_has_a_remedy_and_a_section_of_the_docs() -> None:
    breaks = set(get_args(VerdictKind)) - set(NO_BREAKS)
    assert REMEDIES.keys() == breaks
    page = (Path(__file__).parents[2] / "docs" / "verdicts.md").read_text()
    assert breaks <= {line[3:] for line in page.splitlines() if line.startswith("## ")}


@pytest.mark.parametrize("kind", REMEDIES)
def test_the_page_of_each_kind_of_break_says_what_to_do_and_links_to_its_section(
    page: Page, sample_service: Client, kind: str
) -> None:
    page.url = sample_service.url
    page.open(f"breaks?cause={kind}")
    assert REMEDIES[kind].replace("`", "") in page.text(f"[data-remedy={kind}]")
    page.click(f"[data-remedy={kind}] a")
    page.wait_until(lambda: page.text("main section[data-verdict] h2") == kind.replace("_", " "))


async def test_a_first_use_is_never_listed_as_a_break_and_a_short_prompt_says_what_is_missing(page: Page) -> None:
    with MemoryStore() as store, serve_store(store) as client:
        for name, prompt in (("long", LONG), ("short", "Be brief.")):
            async with Session.create(
                model=MODEL,
                name=name,
                system_prompt=prompt,
                store=store,
                transport=SimulatedProvider(),
                simulated=False,
            ) as session:
                await session.send("One.")
        assert {row["verdict"] for row in client.get(f"/api/sessions/{session.id}/calls")["calls"]} == {"below_floor"}
        listed = client.get("/analytics/breaks/calls")["data"]
        assert {row["cause"] for row in listed} == {"below_floor"}, "the first call of the other session is a first use"
        assert {row["cause"] for row in client.get("/analytics/breaks")["data"]} == {"below_floor"}
        page.url = client.url
        page.open("cost", heading="Cost")
        assert page.texts("section[aria-label='Breaks by cause, worst first'] tbody td:first-child") == ["below floor"]
        page.open(f"session/{session.id}?call=1", heading="short")
        floor = shipped_models()[MODEL].cache.tokens_min
        page.wait_until(lambda: f"caching begins at {floor:,}, so" in page.text(".judgement"))
        assert "a prompt that short is never cached" in page.text(".judgement [data-remedy=below_floor]")
        page.open(
            f"session/{next(row['id'] for row in client.get('/api/sessions')['sessions'] if row['name'] == 'long')}"
        )
        page.wait_until(lambda: page.text("h1") == "long")
        page.click("tbody a")
        page.wait_until(lambda: "first use" in page.text(".judgement"))
        assert not page.elements(".judgement [data-remedy]")
        page.leave()
