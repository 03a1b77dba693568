"""The Instructions view: manifests, coverage, the recall explorer, recalls over time, and pending approvals."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.service.sample import AGENT as SAMPLE
from holdfast.stores.memory import MemoryStore
from tests.support.browsers import Keys, Page
from tests.support.instruction_service import AGENT as OWN
from tests.support.instruction_service import ANN, UNITS, InstructionService, entry, serve_instructions
from tests.support.served_service import Client, serve_store

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


@pytest.fixture
def instruction_service(tmp_path: Path) -> Iterator[InstructionService]:
    """A service with instructions for one test; one version of a guaranteed unit is pending approval."""
    with serve_instructions("sqlite", tmp_path, encoder=None) as service:
        approval = {"kind": "guarantee_load", "unit": "security-posture", "reason": "always"}
        entries = [entry(name, guarantee_load=name == "security-posture") for name in UNITS]
        service.publish_all(entries, approvals=[approval])
        assert service.write("security-posture", "v2", HOSTILE).json["status"] == "pending"
        yield service


def open_signed_in(page: Page, service: InstructionService, view: str, *, key: str) -> None:
    page.url, page.expected_errors = service.client.url, ("401",)
    page.open(view, heading="Sign in")
    page.element("#key").send_keys(key, Keys.ENTER)
    page.wait_until(lambda: page.text("h1") != "Sign in")


def test_agents_are_listed_and_link_to_their_manifest(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("instructions", heading="Instructions")
    (agent,) = sample_service.get("/api/instructions")["agents"]
    row = page.text(f"[data-agent='{SAMPLE}']")
    assert (agent["role"] in row, agent["manifest_version"] in row) == (True, True)
    page.click(f"[data-agent='{SAMPLE}'] a")
    page.wait_until(lambda: page.text("h1") == SAMPLE)
    agent_page = sample_service.get(f"/api/instructions/{SAMPLE}")
    for name in ("units", "failing", "pending"):
        assert page.text(f"[data-figure={name}]") == str(agent_page["agent"][name])
    manifests = page.texts("section[aria-label=Manifests] tbody td:first-child")
    assert manifests == [version["version"] for version in agent_page["versions"]]
    assert "skipped by sample:user/ann and sample:user/ben" in page.text("section[aria-label=Manifests]")


def test_every_unit_is_listed_with_its_coverage_and_failing_paraphrases(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open(f"instructions/{SAMPLE}", heading=SAMPLE)
    for unit in sample_service.get(f"/api/instructions/{SAMPLE}")["units"]:
        row = page.text(f"[data-unit='{unit['name']}']")
        assert f"{round(100 * unit['coverage_pct'])}%" in row
        for failure in unit["failures"]:
            assert f"“{failure['query']}”: " in row
            assert (f"{failure['found_instead']} was found instead" if failure["found_instead"] else "no match") in row
    assert "bad" in page.run(
        "return document.querySelector('[data-unit=general] [data-heading=Coverage] span').className"
    )


def test_intent_is_explored_stage_by_stage_and_stays_in_the_url(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open(f"instructions/{SAMPLE}", heading=SAMPLE)
    before = sample_service.get(f"/api/instructions/{SAMPLE}/days")["total"]["recalls"]
    page.element("#intent").send_keys("give the money back", Keys.ENTER)
    page.element("[data-scored=refunds]")
    assert "intent=give+the+money+back" in page.driver.current_url
    explored = sample_service.get(f"/api/instructions/{SAMPLE}/recall?intent=give+the+money+back")["units"]
    assert page.texts("[data-scored] [data-heading=Unit]") == [one["name"] for one in explored]
    best = explored[0]
    row = page.text(f"[data-scored={best['name']}]")
    assert f"{best['score']:.3f}" in row
    for stage in best["stages"]:
        assert f"{stage['fit']:.3f} (+{stage['added']:.3f})" in row
    assert len(page.elements(".bars-chart .series")) == len(best["stages"])
    page.driver.refresh()
    page.element("[data-scored=refunds]")
    assert page.run("return document.querySelector('#intent').value") == "give the money back"
    assert sample_service.get(f"/api/instructions/{SAMPLE}/days")["total"]["recalls"] == before, (
        "nothing is put on record"
    )


def test_an_intent_that_is_answered_late_does_not_replace_a_newer_one(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open(f"instructions/{SAMPLE}?intent=give+the+money+back")
    page.element("[data-scored]")
    page.hold_answers("intent=lamp")
    page.run("location.hash = arguments[0]", f"#/instructions/{SAMPLE}?intent=lamp")
    page.wait_until(lambda: page.run("return held.length"))
    page.run("location.hash = arguments[0]", f"#/instructions/{SAMPLE}?intent=where+is+the+parcel")
    explored = sample_service.get(f"/api/instructions/{SAMPLE}/recall?intent=where+is+the+parcel")["units"]
    expected = [(unit["name"], f"{unit['score']:.3f}") for unit in explored]

    def shown() -> list[tuple[str, str]]:
        names, scores = (page.texts(f"[data-scored] [data-heading={name}]") for name in ("Unit", "Score"))
        return list(zip(names, scores, strict=True))

    page.wait_until(lambda: shown() == expected)
    page.release_answers()
    assert shown() == expected
    assert page.run("return document.getElementById('intent').value") == "where is the parcel"


def test_charts_of_an_agent_follow_the_width_of_the_window(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open(f"instructions/{SAMPLE}")
    page.element(".columns-chart")
    page.resize(700, 900)
    too_wide = "return [...document.querySelectorAll('.chart')].some(e => e.scrollWidth > e.clientWidth + 1)"
    assert page.wait_until(lambda: not page.run(too_wide))


def test_recalls_are_charted_by_day(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open(f"instructions/{SAMPLE}", heading=SAMPLE)
    page.click(f"a[href='#/instructions/{SAMPLE}?days=7']")
    page.wait_until(lambda: page.text(".switch [aria-current]") == "7 days")
    days = sample_service.get(f"/api/instructions/{SAMPLE}/days?days=7")
    some = [day for day in reversed(days["days"]) if day["recalls"]]
    table = "section[aria-label='Recalls by day'] [data-heading='{}']"
    assert page.texts(table.format("Day")) == [one["day"] for one in some]
    assert page.texts(table.format("Missed")) == [str(one["missed"]) for one in some]
    assert page.text("[data-figure='miss rate']") == f"{round(100 * days['total']['miss_rate'])}%"


def test_charts_of_an_agent_have_units_and_are_read_by_keyboard(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open(f"instructions/{SAMPLE}?intent=give+the+money+back", heading=SAMPLE)
    page.element("[data-scored=refunds]")
    assert page.texts(".bars-chart .tick:not(.end), .bars-chart .tick:last-of-type")[:2] == ["0.000", "0.500"]
    outcomes = set(page.texts("[data-scored] [data-heading=Outcome]"))
    assert "far below the best" in outcomes
    assert not outcomes & {"weak", "below_floor"}
    assert page.text("section[aria-label='Recalls over time'] .readout") == "needed units a day (UTC)"
    page.element("[data-key='chart recalls']").send_keys(Keys.END, Keys.LEFT)
    last = sample_service.get(f"/api/instructions/{SAMPLE}/days")["days"][-2]
    assert page.text("section[aria-label='Recalls over time'] .readout") == (
        f"{last['day'][5:]}: needed and loaded {last['used']:g}, needed and not loaded {last['missed']:g}"
    )


def test_nothing_can_be_approved_without_a_key(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open(f"instructions/{SAMPLE}", heading=SAMPLE)
    assert page.run("return document.querySelector('[data-does=guarantee_load]').disabled")
    assert page.run("return document.querySelector('[data-does=measure]').disabled")
    assert "Sign in with the key of an admin" in page.text("main .under")


def test_pending_version_is_read_and_approved_in_the_name_of_the_key(
    page: Page, instruction_service: InstructionService
) -> None:
    open_signed_in(page, instruction_service, f"instructions/{OWN}", key=instruction_service.ann)
    line = "[data-pending='security-posture v2']"
    page.wait_until(lambda: page.text(f"{line} pre") == HOSTILE)
    assert page.run("return document.querySelectorAll('main img').length") == 0
    page.element(f"{line} input").send_keys("read it")
    page.click(f"{line} [data-does=guarantee_load]")
    page.wait_until(lambda: "is active from now on" in page.text("#notice"))
    page.wait_until(lambda: "No pending approvals" in page.text("main"))
    given = instruction_service.agent_request("GET", "/approvals").json["approvals"][-1]
    assert (given["authored_by"], given["version"], given["reason"]) == (ANN, "v2", "read it")


def test_coverage_is_measured_on_request(page: Page, instruction_service: InstructionService) -> None:
    open_signed_in(page, instruction_service, f"instructions/{OWN}", key=instruction_service.ann)
    instruction_service.clock.advance(3_600)
    page.click("[data-does=measure]")
    page.wait_until(lambda: "Measured: 5 units" in page.text("#notice"))
    assert instruction_service.request("GET", f"/api/instructions/{OWN}").json["coverage"]["kind"] == "daily"


def test_read_only_key_sees_that_instructions_are_for_admins(
    page: Page, instruction_service: InstructionService
) -> None:
    open_signed_in(page, instruction_service, "instructions", key=instruction_service.client.key("read"))
    assert page.wait_until(lambda: "Instructions are for admins" in page.text("main"))


def test_unknown_agent_is_reported_with_a_link_back(page: Page, sample_service: Client) -> None:
    page.url, page.expected_errors = sample_service.url, ("404",)
    page.open("instructions/none-such", heading="Cannot show this view")
    assert "no such agent" in page.text("main")


def test_view_without_instructions_explains_how_to_add_them(page: Page) -> None:
    with serve_store(MemoryStore()) as client:
        page.url = client.url
        page.open("instructions", heading="Instructions")
        assert "holdfast serve --instructions" in page.text(".empty")
        page.leave()


def test_only_instruction_views_ask_for_a_key_while_no_key_exists(page: Page, tmp_path: Path) -> None:
    with (
        serve_instructions("sqlite", tmp_path, encoder=None) as service,
        serve_store(MemoryStore(), library=service.library) as client,
    ):
        page.url, page.expected_errors = client.url, ("401",)
        page.open("instructions", heading="Sign in")
        assert "holdfast keys create --scope admin" in page.text("main")
        page.open("caching", heading="Caching")
        page.wait_until(lambda: page.text("#connection") == "live")
