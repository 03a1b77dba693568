"""The page as a whole: sample, sign-in, lost connection, keyboard, themes, and load time."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast.clock import ManualClock
from holdfast.service.sample import AGENT as SAMPLE
from holdfast.stores.memory import MemoryStore
from tests.support.browsers import SCREENSHOTS, Keys, Page
from tests.support.event_examples import session_started_event
from tests.support.served_service import Client, serve_store

FIRST_VIEW_BYTES_MAX = 75_000
VIEWS = (
    "overview",
    "caching",
    "sessions",
    "session",
    "compare",
    "calls",
    "cost",
    "breaks",
    "verdicts",
    "keys",
    "knowledge",
    "instructions",
    "agent",
    "try",
)
RUN_TIMERS_EARLY = "const set = setTimeout; setTimeout = (run, ms) => set(run, ms > 1000 ? 0 : ms)"
SIZES = (
    "return performance.getEntriesByType('resource').filter(e => e.name.includes('/dashboard/'))"
    ".map(e => [e.encodedBodySize, e.decodedBodySize])"
)
SCREENS = {"wide": (1440, 900), "narrow": (390, 844)}


NAMED = (
    "button",
    "link",
    "textbox",
    "searchbox",
    "combobox",
    "checkbox",
    "image",
    "img",
    "region",
    "group",
    "navigation",
)


def address_of(view: str, sample_service: Client) -> str:
    """The fragment of a view's URL: the view and its subject."""
    discussions = sample_service.get("/api/cache")["discussions"]
    bad = next(discussion["discussion_id"] for discussion in discussions if "time is before" in discussion["name"])
    addresses = {
        "session": f"session/{bad}?call=7",
        "breaks": "breaks?cause=prefix_changed",
        "verdicts": "verdicts/prefix_changed",
        "compare": f"compare?a={bad}&a_call=6&b={bad}&b_call=7",
        "agent": f"instructions/{SAMPLE}?intent=give+the+money+back",
    }
    return addresses.get(view, view)


@contextmanager
def simulating(*arguments: str) -> Iterator[str]:
    words = [sys.executable, "-m", "holdfast", "serve", "--simulate", "--port", "0", *arguments]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def test_sample_button_fills_every_view_within_seconds(page: Page) -> None:
    with simulating() as url:
        page.url = url
        page.open("caching")
        page.click("main a[href='#/try']")
        page.wait_until(lambda: page.text("h1") == "Try it")
        page.click("[data-does=play]")
        page.wait_until(
            lambda: len(page.elements(".card")) == 6 and page.text("p.small[role=status]") == "Ready.", seconds_max=60
        )
        filled = (
            ("caching", "[data-session]"),
            ("cost", ".series"),
            ("knowledge", "[data-item]"),
            ("knowledge", "[data-pending]"),
            ("instructions", "[data-agent]"),
            (f"instructions/{SAMPLE}", "[data-pending]"),
        )
        for view, selector in filled:
            page.open(view)
            assert page.element(selector)
        page.open("caching")
        page.click("tbody a")
        page.wait_until(lambda: "Prompts by call" in page.text("main"))
        page.leave()


def test_sample_cards_name_what_lost_most_and_not_the_last_verdict(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("try", heading="Try it")
    cards = {row["title"]: row for row in sample_service.get("/api/sessions")["sessions"]}
    away = next(title for title in cards if "away for hours" in title)
    text = next(text for text in page.texts(".card") if away in text)
    assert text.endswith(f"${cards[away]['lost_usd']:.4f} lost, most by ttl expired")
    assert sum("nothing lost" in text for text in page.texts(".card")) == 3


def test_sample_button_without_simulation_says_what_to_start(page: Page) -> None:
    with serve_store(MemoryStore()) as client:
        page.url = client.url
        page.open("try", heading="Try it")
        assert "holdfast serve --simulate" in page.text("main")
        assert page.run("return document.querySelector('[data-does=play]').disabled")
        page.leave()


def test_required_key_is_requested_and_removed_on_sign_out(page: Page) -> None:
    with serve_store(MemoryStore()) as client:
        key = client.key("admin")
        page.url, page.expected_errors = client.url, ("401",)
        page.open("cost", heading="Sign in")
        page.element("#key").send_keys("hf_wrong")
        page.element("#key").send_keys(Keys.ENTER)
        page.wait_until(lambda: "unknown, revoked or expired key" in page.text("#notice"))
        page.element("#key").clear()
        page.element("#key").send_keys(key)
        page.element("#key").send_keys(Keys.ENTER)
        page.wait_until(lambda: page.text("h1") == "Cost")
        assert key not in page.run("return document.cookie + JSON.stringify({...localStorage})")
        page.driver.refresh()
        page.wait_until(lambda: page.text("h1") == "Cost")
        page.click("#leave")
        page.wait_until(lambda: page.text("h1") == "Sign in")


def sign_in(page: Page, key: str) -> None:
    page.element("#key").send_keys(key, Keys.ENTER)
    page.wait_until(lambda: not page.elements("#key"))


def test_signing_out_of_any_view_shows_the_sign_in_form_and_signing_in_shows_the_view_again(page: Page) -> None:
    store = MemoryStore()
    store.append([session_started_event("s1", at=time.time())]).result(10)
    with serve_store(store) as client:
        key = client.key("admin")
        page.url, page.expected_errors = client.url, ("401",)
        page.open("session/s1", heading="Sign in")
        sign_in(page, key)
        title = page.wait_until(lambda: page.text("h1"))
        page.wait_until(lambda: page.text("#connection") == "live")
        page.click("#leave")
        page.wait_until(lambda: page.text("h1") == "Sign in")
        assert page.text("#connection") == ""
        assert page.run("return document.getElementById('leave').hidden")
        assert page.run("return document.title") == "Sign in · Holdfast"
        sign_in(page, key)
        assert page.wait_until(lambda: page.text("h1") == title)
        assert not page.run("return document.getElementById('leave').hidden")
        page.leave()


def test_a_key_that_expires_while_a_view_is_open_is_requested_again(page: Page) -> None:
    clock, store = ManualClock(time.time()), MemoryStore()
    store.append([session_started_event("s1", at=clock())]).result(10)
    with serve_store(store, clock=clock) as client:
        key = client.key("admin", expires_at=clock() + 3_600)
        page.url, page.expected_errors = client.url, ("401",)
        page.open("session/s1", heading="Sign in")
        sign_in(page, key)
        page.wait_until(lambda: page.text("#connection") == "live")
        clock.advance(3_601)
        store.append([session_started_event("s2", at=clock())]).result(10)
        page.wait_until(lambda: page.text("h1") == "Sign in")
        assert "unknown, revoked or expired key" in page.text("main")
        page.leave()


def test_read_only_key_has_disabled_buttons(page: Page) -> None:
    with serve_store(MemoryStore()) as client:
        key = client.key("read")
        page.url, page.expected_errors = client.url, ("401",)
        page.open("caching", heading="Sign in")
        page.element("#key").send_keys(key, Keys.ENTER)
        page.wait_until(lambda: page.text("h1") == "Caching")
        assert page.run("return document.querySelector('.settings').disabled")


def test_lost_connection_is_shown_and_restored_automatically(page: Page, tmp_path: Path) -> None:
    page.expected_errors = (
        "ERR_CONNECTION_REFUSED",
        "ERR_INCOMPLETE_CHUNKED_ENCODING",
        "ERR_CONNECTION_RESET",
        "ERR_EMPTY",
    )
    with simulating("--db", str(tmp_path / "log.db")) as url:
        page.url = url
        page.open("caching")
        page.wait_until(lambda: page.text("#connection") == "live")
    page.wait_until(lambda: page.text("#connection") == "connection lost, retrying")
    with simulating("--db", str(tmp_path / "log.db"), "--port", url.rpartition(":")[2]):
        assert page.wait_until(lambda: page.text("#connection") == "live")


STOPPED = "The service does not respond. Is `holdfast serve` still running?"


@pytest.mark.parametrize("recovers", ["by itself", "on request"])
def test_a_view_opened_while_the_service_is_stopped_says_so_and_is_shown_once_it_runs_again(
    page: Page, tmp_path: Path, recovers: str
) -> None:
    """Also one whose script could not be loaded, which browsers do not try again in the same page."""
    page.expected_errors = (
        "ERR_CONNECTION_REFUSED",
        "ERR_INCOMPLETE_CHUNKED_ENCODING",
        "ERR_CONNECTION_RESET",
        "ERR_EMPTY",
        "503",
    )
    with simulating("--db", str(tmp_path / "log.db")) as url:
        page.url = url
        page.open("overview")
        page.wait_until(lambda: page.text("#connection") == "live")
        if recovers == "on request":
            page.run("window.EventSource = class { addEventListener() {} close() {} }")
    for view in ("keys", "cost", "keys"):
        page.run("location.hash = arguments[0]", f"#/{view}")
        page.wait_until(lambda: page.text("main [role=alert] p") == STOPPED)
    with simulating("--db", str(tmp_path / "log.db"), "--port", url.rpartition(":")[2]):
        if recovers == "on request":
            page.click("main [role=alert] button")
        assert page.wait_until(lambda: page.text("h1") == "Keys and budgets")
        page.leave()


def test_an_event_while_a_view_is_loaded_is_not_lost(page: Page) -> None:
    store = MemoryStore()
    store.append([session_started_event("s1", at=time.time())]).result(10)
    with serve_store(store) as client:
        page.url = client.url
        page.open("cost", heading="Cost")
        page.wait_until(lambda: page.text("#connection") == "live")
        page.hold_answers("/api/sessions")
        page.run("location.hash = '#/sessions'")
        page.wait_until(lambda: page.run("return window.held.length"))
        store.append([session_started_event("s2", at=time.time())]).result(10)
        page.wait_until(lambda: page.run("return window.timersRun"))
        page.release_answers()
        page.wait_until(lambda: page.text("h1") == "Sessions")
        assert page.wait_until(lambda: page.text("[data-figure=total]") == "2 sessions")
        page.leave()


def test_a_view_that_is_left_is_marked_as_busy_until_the_next_one_is_loaded(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("cost", heading="Cost")
    page.hold_answers("/analytics/reliability")
    page.run("location.hash = '#/calls'")
    page.wait_until(lambda: page.run("return window.held.length"))
    assert page.text("h1") == "Cost"
    assert page.elements("main[aria-busy=true]")
    page.wait_until(lambda: float(page.run("return getComputedStyle(document.querySelector('.view')).opacity")) < 0.5)
    page.release_answers()
    page.wait_until(lambda: page.text("h1") == "Calls")
    assert not page.elements("main[aria-busy]")


def test_a_service_that_takes_seconds_to_answer_is_said_to(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("cost", heading="Cost")
    page.wait_until(lambda: page.text("#connection") == "live")
    page.run(RUN_TIMERS_EARLY)
    page.hold_answers("/analytics/reliability")
    page.run("location.hash = '#/calls'")
    page.wait_until(lambda: page.text("#connection") == "waiting for the service …")
    page.release_answers()
    page.wait_until(lambda: page.text("h1") == "Calls")
    assert page.text("#connection") == "live"


def test_everything_can_be_reached_by_keyboard(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("caching")
    page.run("document.body.focus()")
    seen = []
    for _ in range(36):
        page.driver.switch_to.active_element.send_keys(Keys.TAB)
        seen.append(page.run("const e = document.activeElement; return e.dataset.key ?? e.id ?? e.className"))
    wanted = {"theme", "caching", "cost", "try", "csv sessions", "set-anthropic", "set-gemini-ttl"}
    assert wanted <= set(seen)
    assert any(key.startswith("invalidate ") for key in seen)


def test_the_first_tab_stop_skips_to_the_content_and_views_in_a_narrow_window_are_scrolled_to(
    page: Page, sample_service: Client
) -> None:
    page.url = sample_service.url
    page.resize(700, 900)
    page.open("try", heading="Try it")
    page.driver.switch_to.active_element.send_keys(Keys.TAB)
    assert page.run("return document.activeElement.className") == "skip"
    nav, chosen = page.run(
        "return ['#views', '#views [aria-current]'].map(e => document.querySelector(e).getBoundingClientRect())"
        ".map(box => [box.left, box.right])"
    )
    assert nav[0] <= chosen[0] < chosen[1] <= nav[1] + 1
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert page.run("return document.activeElement.id") == "main"


@pytest.mark.parametrize("view", [view for view in VIEWS if view not in ("verdicts", "knowledge", "instructions")])
def test_money_has_one_precision_on_every_page(page: Page, sample_service: Client, view: str) -> None:
    page.url = sample_service.url
    page.open(address_of(view, sample_service))
    text = page.run("return document.querySelector('main').innerText")
    amounts = re.findall(r"\$[0-9][0-9,]*(?:\.[0-9]+)?", text)
    assert [amount for amount in amounts if not re.fullmatch(r"\$[0-9,]+\.[0-9]{4}", amount)] == []


def test_every_view_can_be_reached_on_a_narrow_screen(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.resize(390, 844)
    page.open("overview", heading="Overview")
    boxes = page.run(
        "return [...document.querySelectorAll('#views a')].map(e => e.getBoundingClientRect())"
        ".map(box => [box.left, box.right, box.width, box.height])"
    )
    assert len(boxes) == 9
    assert all(left >= 0 and right <= 390 and width > 20 and height > 20 for left, right, width, height in boxes)


def test_what_was_typed_and_not_sent_survives_a_refresh(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("try", heading="Try it")
    left = page.run(
        """
        return import("/dashboard/dom.js").then(({ fill, h }) => {
          const place = document.querySelector("main").appendChild(h("div", {}));
          const draw = (stored) => fill(place, ["kept", "edited"].map((key) => {
            const field = h("textarea", { "data-key": key });
            field.defaultValue = stored;
            return field;
          }));
          draw("before");
          const [, edited] = place.children;
          edited.focus();
          edited.value = "half a sen";
          edited.setSelectionRange(4, 6);
          draw("after");
          const field = document.activeElement;
          const values = [...place.children].map((one) => one.value);
          return [...values, field.dataset.key, field.selectionStart, field.selectionEnd];
        });
        """
    )
    assert left == ["after", "half a sen", "edited", 4, 6]


@pytest.mark.parametrize(
    "view", ["overview", "caching", "sessions", "session", "cost", "breaks", "knowledge", "instructions", "agent"]
)
def test_whatever_is_drawn_again_can_keep_the_focus(page: Page, sample_service: Client, view: str) -> None:
    """By a key that what is drawn in its place has too. A window of another width draws a view again."""
    page.url = sample_service.url
    page.open(address_of(view, sample_service))
    page.element("main h1")
    page.run(
        "const all = 'a, button, input, select, textarea, summary, [tabindex]';"
        "window.before = [...document.querySelectorAll('main')[0].querySelectorAll(all)]"
    )
    page.resize(1270, 900)
    gone = "const gone = window.before.filter(e => !e.isConnected); return gone.map(e => e.outerHTML.slice(0, 200))"
    page.wait_until(lambda: page.run(gone))
    keyless = "return window.before.filter(e => !e.isConnected && !e.dataset.key).map(e => e.outerHTML.slice(0, 200))"
    assert page.run(keyless) == []


def test_a_button_whose_work_fails_says_so_and_can_be_pressed_again(page: Page, sample_service: Client) -> None:
    page.url, page.expected_errors = sample_service.url, ("404",)
    page.open("try", heading="Try it")
    page.run(
        """
        return Promise.all([import("/dashboard/api.js"), import("/dashboard/dom.js")]).then(([{ get }, { button }]) => {
          const failing = button("Fail", () => get("/api/sessions/none/calls"), { id: "failing" });
          document.querySelector("main").append(failing);
        });
        """
    )
    page.click("#failing")
    page.wait_until(lambda: page.text("#notice").startswith("no session"))
    assert not page.run("return document.getElementById('failing').disabled")


@pytest.mark.parametrize("fragment", ["%", "session/%E0%A4%A", "sessions?client=%"])
def test_a_broken_address_is_reported_and_the_next_view_works(
    page: Page, sample_service: Client, fragment: str
) -> None:
    page.url, page.expected_errors = sample_service.url, ("404",)
    page.open("try", heading="Try it")
    page.run("location.hash = arguments[0]", f"#/{fragment}")
    page.wait_until(lambda: page.text("h1") != "Try it")
    assert page.text("h1") in ("View not found", "Cannot show this view", "Sessions")
    page.click("[data-key=cost]")
    page.wait_until(lambda: page.text("h1") == "Cost")


def test_another_view_begins_at_its_top_and_takes_the_focus_from_the_link_to_it(
    page: Page, sample_service: Client
) -> None:
    page.url = sample_service.url
    page.resize(1280, 500)
    page.open("sessions", heading="Sessions")
    link = page.elements("[data-session] a")[-1]
    link.send_keys(Keys.ENTER)
    page.wait_until(lambda: "Prompts by call" in page.text("main"))
    assert page.run("return [document.activeElement.id, window.scrollY]") == ["main", 0]


def test_choosing_an_order_keeps_what_was_typed_into_the_filters(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("sessions", heading="Sessions")
    page.element("#filter-search").send_keys("away")
    page.run(
        "const e = document.querySelector('#filter-order'); e.value = 'lost true'; e.dispatchEvent(new Event('change'))"
    )
    page.wait_until(lambda: "sort=lost" in page.driver.current_url)
    assert "search=away" in page.driver.current_url


def test_back_shows_a_view_where_it_was_left(page: Page) -> None:
    store = MemoryStore()
    store.append([session_started_event(f"s{number:02}", at=time.time() - number) for number in range(60)]).result(10)
    with serve_store(store) as client:
        page.url = client.url
        page.open("sessions", heading="Sessions")
        page.run("document.querySelectorAll('[data-session] a')[40].scrollIntoView({ block: 'center' })")
        before = page.run("return window.scrollY")
        assert before > 500
        page.run("document.querySelectorAll('[data-session] a')[40].click()")
        page.wait_until(lambda: "No call yet" in page.text("main"))
        page.driver.back()
        page.wait_until(lambda: page.text("h1") == "Sessions")
        assert page.run("return window.scrollY") == before
        page.driver.forward()
        page.wait_until(lambda: "No call yet" in page.text("main"))
        page.click("#views [data-key=sessions]")
        page.wait_until(lambda: page.text("h1") == "Sessions")
        assert page.run("return window.scrollY") == 0, "a link is no way back"
        page.leave()


@pytest.mark.parametrize("view", VIEWS)
def test_every_control_has_a_name_and_every_image_a_text_alternative(
    page: Page, sample_service: Client, view: str
) -> None:
    page.url = sample_service.url
    page.open(address_of(view, sample_service))
    page.element("main h1")
    assert [role for role, name in page.accessible_nodes() if role in NAMED and not name] == []
    assert page.run("return [...document.querySelectorAll('section')].filter(e => !e.ariaLabel).length") == 0
    levels = page.run("return [...document.querySelectorAll('h1, h2, h3')].map(e => Number(e.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels)), "no heading is skipped"
    doubled = page.run(
        "const ids = [...document.querySelectorAll('[id]')].map(e => e.id);"
        "return ids.filter((id, index) => ids.indexOf(id) !== index)"
    )
    assert doubled == []
    assert page.run("return document.querySelectorAll('main, nav[aria-label]').length") >= 2
    assert page.run("return [...document.querySelectorAll('[tabindex]')].every(e => e.tabIndex <= 0)"), "focus in order"


@pytest.mark.parametrize("view", [view for view in VIEWS if view not in ("verdicts", "keys", "try")])
def test_every_table_and_every_chart_can_be_saved(page: Page, sample_service: Client, view: str) -> None:
    page.url = sample_service.url
    page.open(address_of(view, sample_service))
    page.element("main h1")
    page.run(
        "window.saved = []; const made = URL.createObjectURL;"
        "URL.createObjectURL = (blob) => { window.saved.push(blob.type); return made(blob); }"
    )
    tables = len(page.elements("main table"))
    charts = len(page.elements("main svg[role=img]"))
    page.run('document.querySelectorAll(\'[data-key^="csv "], [data-key^="svg "]\').forEach(e => e.click())')
    assert page.wait_until(lambda: len(page.run("return window.saved")) >= tables + charts)
    saved = page.run("return window.saved")
    assert (saved.count("text/csv"), saved.count("image/svg+xml")) == (tables, charts)
    assert tables > 0


def test_theme_follows_the_system_until_one_is_chosen(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    ground = "return getComputedStyle(document.body).backgroundColor"
    page.open("instructions")
    light = page.run(ground)
    page.set_theme("dark")
    dark = page.run(ground)
    assert light != dark
    page.click("#theme")
    assert (page.text("#theme"), page.run(ground)) == ("Theme: light", light)
    page.driver.refresh()
    page.wait_until(lambda: page.text("#theme") == "Theme: light")
    page.click("#theme")
    assert (page.text("#theme"), page.run(ground)) == ("Theme: dark", dark)
    page.click("#theme")
    assert page.text("#theme") == "Theme: system"


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("view", VIEWS)
def test_view_fits_its_screen(page: Page, sample_service: Client, view: str, screen: str) -> None:
    page.url = sample_service.url
    width, height = SCREENS[screen]
    page.resize(width, height)
    page.open(address_of(view, sample_service))
    page.wait_until(lambda: page.text("#connection") == "live")
    assert page.run("return document.documentElement.scrollWidth") <= width
    assert not re.search(r"null|undefined|NaN|\[object", page.text("main")), "the page shows a raw JavaScript value"
    scrolling = "return [...document.querySelectorAll('.chart')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert page.run(scrolling) == 0, "a chart with few columns needs no scroll bar"
    if SCREENSHOTS:
        folder = Path(SCREENSHOTS)
        folder.mkdir(parents=True, exist_ok=True)
        page.resize(width, min(6_000, page.run("return document.documentElement.scrollHeight")))
        for theme in ("light", "dark"):
            page.set_theme(theme)
            page.driver.save_screenshot(str(folder / f"{view}-{screen}-{theme}.png"))


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_no_violation_in_any_theme_on_any_screen(page: Page, sample_service: Client, view: str) -> None:
    page.url = sample_service.url
    page.open(address_of(view, sample_service))
    for theme in ("light", "dark"):
        page.set_theme(theme)
        for screen, size in SCREENS.items():
            page.resize(*size)
            assert page.accessibility_violations() == [], f"{theme}, {screen}"


def test_page_is_small_and_loads_only_its_own_files(page: Page, sample_service: Client) -> None:
    page.url = sample_service.url
    page.open("", heading="Overview")
    sent, unpacked = map(sum, zip(*page.run(SIZES), strict=True))
    assert 0 < sent < unpacked / 2, "files are packed"
    assert unpacked < FIRST_VIEW_BYTES_MAX
    page.open("caching")
    assert page.wait_until(lambda: page.run("return performance.getEntriesByName('first-contentful-paint').length"))
    loaded = page.run("return performance.getEntriesByType('resource').map(e => new URL(e.name).origin)")
    assert set(loaded) == {sample_service.url}
    blocking = page.run(
        "return performance.getEntriesByType('resource').filter(e => e.renderBlockingStatus === 'blocking')"
        ".map(e => new URL(e.name).pathname)"
    )
    assert blocking == ["/dashboard/style.css"]
    modules = page.run("return performance.getEntriesByType('resource').map(e => new URL(e.name).pathname)")
    others = ("session", "cost", "knowledge", "instructions", "agent")
    assert [name for name in others if f"/dashboard/views/{name}.js" in modules] == [], (
        "a view is loaded when it is seen"
    )


@pytest.mark.parametrize("view", ["session", "cost?days=30", "breaks", "knowledge?category=facts", "agent"])
def test_view_url_survives_a_reload(page: Page, sample_service: Client, view: str) -> None:
    page.url = sample_service.url
    page.open(address_of(view, sample_service))
    shown = "return [...document.querySelectorAll('main h1, main h2, main [aria-current]')].map(e => e.textContent)"
    before = page.run(shown)
    page.driver.refresh()
    assert page.wait_until(lambda: page.run(shown) == before)
