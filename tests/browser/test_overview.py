"""The overview: figures that agree with the other views, what to do next, and charts that a keyboard can read."""

from pathlib import Path

from holdfast.ledger.spending_actions import REMEDIES
from holdfast.service import dashboard
from holdfast.stores.memory import MemoryStore
from tests.support.browsers import Keys, Page
from tests.support.served_service import Client, serve_store


def shown_dollars(text: str) -> float:
    return float(text.partition(" ")[0].replace("$", "").replace("−", "-"))


def test_overview_is_the_first_page_and_agrees_with_cost(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("", heading="Overview")
    assert page.text("#views a") == "Overview"
    week = page.run("return document.querySelector('[data-figure=week]').firstChild.textContent")
    saved = page.run("return document.querySelector('[data-figure=saved]').firstChild.textContent")
    data = sample_service.get("/analytics/savings")["data"]
    assert shown_dollars(week) == round(data["actual_stamped_usd"], 4)
    page.open("cost", heading="Cost")
    assert page.text("[data-figure=spent]") == week
    assert page.text("[data-figure=saved]").startswith(saved)


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


def test_empty_store_says_how_to_start(page: Page) -> None:
    with serve_store(MemoryStore()) as client:
        page.url = client.url
        page.open("overview", heading="Overview")
        assert "holdfast connect" in page.text("main")
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
