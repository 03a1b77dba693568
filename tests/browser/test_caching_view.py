"""The Caching view: it shows what the API returns, counts down, and its buttons work."""

import time
from collections.abc import Iterator
from functools import partial

import pytest

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import Clock, ManualClock, new_ulid, system_clock
from holdfast.engine.guard import WarningLog
from holdfast.engine.recorder import CallRecorder, ObservedRequest
from holdfast.planning.explicit_cache import ExplicitCacheConfig
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.types.prompt import Plan
from holdfast.types.usage import Usage
from tests.support.browsers import Keys, Page
from tests.support.event_examples import session_started_event
from tests.support.served_service import Client, serve_store
from tests.support.simulated_gemini import LONG

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


class OwnService:
    """A service for one test, with one session."""

    def __init__(self, client: Client, store: MemoryStore) -> None:
        self.client = client
        self.store = store

    def session(self, name: str, model: str = "anthropic:claude-sonnet-5-5", *, clock: Clock = system_clock) -> Session:
        return Session.create(
            model=model,
            name=name,
            system_prompt=LONG,
            store=self.store,
            transport=SimulatedProvider(clock=clock),
            simulated=False,
            clock=clock,
        )


@pytest.fixture
def own_service() -> Iterator[OwnService]:
    store = MemoryStore()
    with serve_store(store) as client:
        yield OwnService(client, store)


def test_providers_and_sessions_match_the_api(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("caching", heading="Caching")
    cache = sample_service.get("/api/cache")
    assert not page.elements("[data-figure=summarized]"), "all sessions are on this page"
    shown = dict(zip(page.texts("[data-provider] h3"), page.texts("[data-provider] .figures"), strict=True))
    assert shown.keys() == {"Anthropic", "Gemini", "OpenAI"}
    for provider in cache["providers"]:
        text = page.text(f"[data-provider={provider['provider']}] .figures")
        assert f"in: {provider['tokens_in']:,}" in text
        assert f"cache: {provider['tokens_cached']:,}" in text
        assert f"hit: {round(100 * provider['hit_share'])}%" in text
    assert "ttl: n/a" in shown["Gemini"]
    assert "Cached by Gemini; TTL: provider-managed." in page.text("[data-provider=gemini]")
    for discussion in cache["discussions"]:
        row = page.text(f"[data-session='{discussion['discussion_id']}']")
        assert discussion["name"] in row
        assert f"{discussion['tokens_cached']:,}" in row
        assert discussion["verdict"].replace("_", " ") in row
    meanings = page.run("return [...document.querySelectorAll('.figure, th')].map(e => e.title)")
    assert all(meanings)


def test_countdown_moves(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("caching")
    before = page.texts("[data-session] [data-until]")
    assert all(":" in text for text in before)
    assert page.wait_until(lambda: page.texts("[data-session] [data-until]") != before)


async def test_a_cache_that_expires_is_shown_as_gone_without_an_event(page: Page) -> None:
    clock, store = ManualClock(time.time()), MemoryStore()
    with serve_store(store, clock=clock) as client:
        async with OwnService(client, store).session("refactor auth", clock=clock) as session:
            await session.send("One.")
        page.url = client.url
        page.open("caching")
        row = f"[data-session='{session.id}']"
        assert page.text(f"{row} [data-heading=Cached]") == "yes (Anthropic)"
        clock.advance(7_200)
        page.run("const now = Date.now; Date.now = () => now() + 7_200_000")
        page.wait_until(lambda: page.text(f"{row} [data-heading=Cached]") == "no")
        assert page.text(f"{row} [data-heading='Tokens cached']") == "0"
        page.leave()


async def test_new_session_appears_and_updates_without_reload(page: Page, own_service: OwnService) -> None:
    page.url = own_service.client.url
    page.open("caching")
    page.wait_until(lambda: page.text("#connection") == "live")
    assert "No session yet" in page.text("main")
    page.run("window.untouched = true")
    async with own_service.session("refactor auth") as session:
        await session.send("One.")
        page.wait_until(lambda: "refactor auth" in page.text("table"))
        page.wait_until(lambda: "0 of 1" in page.text("table"))
        await session.send("Two.")
        page.wait_until(lambda: "1 of 2" in page.text("table"))
    assert page.run("return window.untouched")


async def test_buttons_disable_enable_and_invalidate(page: Page, own_service: OwnService) -> None:
    page.url = own_service.client.url
    async with own_service.session("fix the parser") as session:
        await session.send("One.")
        page.open("caching")
        row = f"[data-session='{session.id}']"
        page.click(f"{row} [data-does=disable]")
        page.element(f"{row} [data-does=enable]")
        assert not own_service.client.get(f"/api/cache/{session.id}")["caching_enabled"]
        page.click(f"{row} [data-does=enable]")
        page.element(f"{row} [data-does=invalidate]")
        assert own_service.client.get(f"/api/cache/{session.id}")["caching_enabled"]
        page.click(f"{row} [data-does=invalidate]")
        page.wait_until(lambda: "tokens again, about $" in page.text("section[aria-label='Invalidate a cache']"))
        assert page.run("return document.activeElement.textContent") == "Keep it", "Enter once more changes nothing"
        page.click("[data-does=keep]")
        assert own_service.client.get(f"/api/cache/{session.id}")["last_invalidated_at"] is None, "it asks first"
        page.click(f"{row} [data-does=invalidate]")
        page.click("[data-does=invalidate-confirmed]")
        page.wait_until(lambda: "Invalidated" in page.text("#notice"))
        assert own_service.client.get(f"/api/cache/{session.id}")["last_invalidated_at"]
        assert page.text(f"{row} [data-does=invalidate]") == "Invalidate cache"
        assert page.text(f"{row} [data-does=disable]") == "Disable caching for this"


async def test_buttons_keep_the_focus_for_the_keyboard(page: Page, own_service: OwnService) -> None:
    page.url = own_service.client.url
    async with own_service.session("fix the parser") as session:
        await session.send("One.")
        page.open("caching")
        for does, then in (("disable", "enable"), ("enable", "disable"), ("invalidate", "invalidate")):
            page.element(f"[data-does={does}]").send_keys(Keys.ENTER)
            if does == "invalidate":
                page.wait_until(lambda: page.run("return document.activeElement.dataset.does") == "keep")
                page.driver.switch_to.active_element.send_keys(Keys.ENTER)
            page.wait_until(partial(page.run, "return document.activeElement.dataset.does === arguments[0]", then))
        page.open("cost")
        page.element("[data-does=rivals]").send_keys(Keys.ENTER)
        page.wait_until(lambda: "under each policy" in page.text("main") or "Nothing to replay" in page.text("main"))
        assert page.wait_until(lambda: page.run("return document.activeElement.dataset.does") == "rivals")


def test_settings_match_the_api_and_are_saved(page: Page, own_service: OwnService) -> None:
    page.url = own_service.client.url
    page.open("caching")
    labels = page.texts(".settings label")
    assert labels == [
        "Enable Anthropic ephemeral caching",
        "Enable Gemini explicit caching",
        "Allow >1h Gemini caches (charges may apply)",
        "Anthropic default TTL:",
        "Gemini default TTL:",
    ]

    def saved(**expected: object) -> bool:
        settings = own_service.client.get("/api/cache/settings")
        return {name: settings[name] for name in expected} == expected

    page.click("#set-anthropic")
    page.wait_until(lambda: saved(providers={"anthropic": False}))
    page.click("#set-gemini")
    page.wait_until(lambda: saved(providers={"anthropic": False, "gemini": False}))
    page.run("const e = document.querySelector('#set-ttl'); e.value = '1h'; e.dispatchEvent(new Event('change'))")
    page.wait_until(lambda: saved(ttl="1h"))
    page.click("#set-over")
    page.wait_until(lambda: saved(allow_gemini_over_an_hour=True))
    page.wait_until(lambda: page.run("return document.querySelector('#set-over').checked"))
    page.run(
        "const e = document.querySelector('#set-gemini-ttl'); e.value = '7200'; e.dispatchEvent(new Event('change'))"
    )
    page.wait_until(lambda: saved(gemini_ttl_seconds=7200))
    page.open("caching")
    assert page.run("return document.querySelector('#set-ttl').value") == "1h"
    assert not page.run("return document.querySelector('#set-anthropic').checked")


async def test_settings_say_which_ttls_are_in_force(page: Page, own_service: OwnService) -> None:
    page.url = own_service.client.url
    page.open("caching")
    default = f"by each session, else {ExplicitCacheConfig().ttl_seconds // 60} min"
    assert page.texts("#set-gemini-ttl option")[0] == default
    assert page.text("[data-figure=ttl-in-force]") == "", "nothing is cached yet"
    clock = ManualClock(time.time() - 1_200)
    async with own_service.session("claude") as session:
        await session.send("One.")
        async with own_service.session("gemini", model="gemini:gemini-3.8-flash", clock=clock) as other:
            for _ in range(3):
                await other.send("Again.")
                clock.advance(600)
            page.open("caching")
            ttl = {"5m": "5 min", "1h": "60 min"}[own_service.client.get(f"/api/cache/{session.id}")["ttl"]]
            in_force = (
                f"In force on this page for Anthropic: {ttl} in 1 session; "
                "for explicit caches at Gemini: 60 min in 1 session."
            )
            assert page.text("[data-figure=ttl-in-force]") == in_force


def test_settings_changed_at_once_are_all_saved(page: Page, own_service: OwnService) -> None:
    page.url = own_service.client.url
    page.open("caching")
    page.run("for (const id of ['#set-anthropic', '#set-gemini', '#set-over']) document.querySelector(id).click()")
    expected = {"anthropic": False, "gemini": False}
    page.wait_until(lambda: own_service.client.get("/api/cache/settings")["allow_gemini_over_an_hour"])
    assert own_service.client.get("/api/cache/settings")["providers"] == expected
    shown = "return ['#set-anthropic', '#set-gemini', '#set-over'].map(id => document.querySelector(id).checked)"
    assert page.run(shown) == [False, False, True]


def test_refused_setting_shows_the_reason_and_its_old_value(page: Page, own_service: OwnService) -> None:
    page.url, page.expected_errors = own_service.client.url, ("422",)
    page.open("caching")
    page.run(
        "const e = document.querySelector('#set-gemini-ttl'); e.value = '7200'; e.dispatchEvent(new Event('change'))"
    )
    page.wait_until(lambda: "bills explicit caches per hour" in page.text("#notice"))
    assert page.wait_until(lambda: page.run("return document.querySelector('#set-gemini-ttl').value") == "")
    assert own_service.client.get("/api/cache/settings")["gemini_ttl_seconds"] is None


async def test_hostile_text_is_shown_as_text(page: Page, own_service: OwnService) -> None:
    page.url = own_service.client.url
    async with own_service.session(HOSTILE) as session:
        await session.send(HOSTILE)
        await session.send("Two.")
        page.open("caching")
        assert HOSTILE in page.text("table")
        page.open(f"session/{session.id}?call=2", heading=HOSTILE)
        page.click("[data-does=bytes]")
        page.wait_until(lambda: "bytes of the previous call are unchanged" in page.text(".difference"))
        page.open("sessions")
        assert HOSTILE in page.text("table")
    assert page.run("return document.querySelectorAll('main img, main script').length") == 0
    assert "owned" not in page.run("return document.title").replace(HOSTILE, "")


def test_sessions_are_paged(page: Page) -> None:
    store = MemoryStore()
    with serve_store(store) as client:
        for number in range(30):
            store.append([session_started_event(f"s{number}", at=float(number))]).result()
        page.url = client.url
        page.open("caching")
        assert len(page.elements("tbody tr")) == 25
        assert page.text("[data-figure=summarized]").startswith("Of the 25 sessions on this page;")
        page.click("[data-key=older]")
        page.wait_until(lambda: len(page.elements("tbody tr")) == 5)
        assert page.text("[data-figure=summarized]").startswith("Of the 5 sessions on this page;")
        assert "skip=25" in page.driver.current_url
        page.click("[data-key=newer]")
        page.wait_until(lambda: len(page.elements("tbody tr")) == 25)


def test_table_is_saved_as_csv_without_formula_cells(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("caching")
    saved = page.run(
        "return import('/dashboard/download.js').then(m => m.csv(['a', 'b'], [['=1+1', -2], ['x\"y', 'p,q']]))"
    )
    assert saved == 'a,b\r\n\'=1+1,-2\r\n"x""y","p,q"\r\n'
    page.run(
        "window.blobs = []; const made = URL.createObjectURL;"
        "URL.createObjectURL = (blob) => { window.blobs.push(blob); return made(blob); }"
    )
    page.click("[data-key='csv sessions']")
    text = page.wait_until(lambda: page.run("return window.blobs[0]?.text()"))
    assert text.splitlines()[0] == "Session,Cached,Expires,Tokens cached,Calls hit,Last verdict"
    assert len(text.splitlines()) == 1 + len(sample_service.get("/api/cache")["discussions"])


@pytest.mark.parametrize("view", ["caching", "cost"])
def test_number_of_unreadable_responses_is_shown_when_there_are_any(
    page: Page, own_service: OwnService, view: str
) -> None:
    page.url = own_service.client.url
    page.open(view)
    assert page.elements("[data-figure=unreadable]") == []
    recorder = CallRecorder(
        own_service.store, models=shipped_models(), clock=system_clock, new_id=new_ulid, warnings=WarningLog()
    )
    model = "anthropic:claude-sonnet-5-5"
    request = ObservedRequest(
        model=model,
        provider="anthropic",
        row=recorder.find_catalog_row(model),
        plan=Plan(),
        digests=(),
        parameters_digest="",
        body_bytes=40,
        tokens=10,
    )
    for _ in range(2):
        call = recorder.begin_call(request)
        assert call is not None
        recorder.fail_call(call, "unreadable", "it is no JSON", estimated_usage=Usage(input=10, output=5))
    assert recorder.calls
    page.open(view)
    page.wait_until(lambda: page.text("[data-figure=unreadable]").startswith("2 responses could not be read"))
