"""The page as a whole: the sample, signing in, a lost line, keyboards, light and dark, and how quickly it is there."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from browsers import SCREENSHOTS, Keys, Page
from holdfast.service.dashboard.files import page_files
from holdfast.stores.memory import MemoryStore
from served_service import Client, serving_store

FILLED_SECONDS_MAX = 10.0
PAINT_MS_MAX = 500
PAGE_BYTES_MAX = 150_000
VIEWS = ("caching", "sessions", "session", "cost", "breaks", "knowledge", "instructions", "try")
SCREENS = {"wide": (1280, 860), "narrow": (390, 844)}


@contextmanager
def simulating(*arguments: str) -> Iterator[str]:
    words = [sys.executable, "-m", "holdfast", "serve", "--simulate", "--port", "0", *arguments]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def test_a_newcomer_sees_every_view_filled_within_seconds_of_pressing_a_button(page: Page) -> None:
    with simulating() as url:
        page.url = url
        page.open("caching")
        page.click("main a[href='#/try']")
        page.until(lambda: page.text("h1") == "Try it")
        started = time.monotonic()
        page.click("[data-does=play]")
        page.until(lambda: len(page.all(".card")) == 6 and page.text("p.small[role=status]") == "Ready.")
        assert time.monotonic() - started < FILLED_SECONDS_MAX
        for view, selector in (("caching", "[data-session]"), ("cost", ".series"), ("knowledge", "tbody tr")):
            page.open(view)
            page.one(selector)
        page.open("caching")
        page.click("tbody a")
        page.until(lambda: "Prompts by call" in page.text("main"))
        page.leave()


def test_where_nothing_is_simulated_the_button_says_what_to_start(page: Page, sampled: Client) -> None:
    page.url = sampled.url
    page.open("try", heading="Try it")
    assert "holdfast serve --simulate" in page.text("main")
    assert page.run("return document.querySelector('[data-does=play]').disabled")


def test_where_a_key_is_required_it_is_asked_for_and_forgotten_again(page: Page) -> None:
    with serving_store(MemoryStore()) as client:
        key = client.key("admin")
        page.url, page.expecting = client.url, ("401",)
        page.open("cost", heading="Sign in")
        page.one("#key").send_keys("hf_wrong")
        page.one("#key").send_keys(Keys.ENTER)
        page.until(lambda: "not known" in page.text("#notice"))
        page.one("#key").clear()
        page.one("#key").send_keys(key)
        page.one("#key").send_keys(Keys.ENTER)
        page.until(lambda: page.text("h1") == "Cost")
        assert key not in page.run("return document.cookie + JSON.stringify({...localStorage})")
        page.driver.refresh()
        page.until(lambda: page.text("h1") == "Cost")
        page.click("#leave")
        page.until(lambda: page.text("h1") == "Sign in")


def test_who_may_only_read_cannot_press_what_changes_something(page: Page) -> None:
    with serving_store(MemoryStore()) as client:
        key = client.key("read")
        page.url, page.expecting = client.url, ("401",)
        page.open("caching", heading="Sign in")
        page.one("#key").send_keys(key, Keys.ENTER)
        page.until(lambda: page.text("h1") == "Caching")
        assert page.run("return document.querySelector('.settings').disabled")


def test_a_lost_line_is_told_and_comes_back_by_itself(page: Page, tmp_path: Path) -> None:
    page.expecting = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY")
    with simulating("--db", str(tmp_path / "log.db")) as url:
        page.url = url
        page.open("caching")
        page.until(lambda: page.text("#connection") == "live")
    page.until(lambda: page.text("#connection") == "connection lost, trying again")
    with simulating("--db", str(tmp_path / "log.db"), "--port", url.rpartition(":")[2]):
        assert page.until(lambda: page.text("#connection") == "live")


def test_everything_can_be_reached_by_keyboard(page: Page, sampled: Client) -> None:
    page.url = sampled.url
    page.open("caching")
    page.run("document.body.focus()")
    seen = []
    for _ in range(60):
        page.driver.switch_to.active_element.send_keys(Keys.TAB)
        seen.append(page.run("const e = document.activeElement; return e.dataset.key ?? e.id ?? e.className"))
    wanted = {"theme", "caching", "cost", "try", "csv sessions", "set-anthropic", "set-gemini-ttl"}
    assert wanted <= set(seen)
    assert any(key.startswith("invalidate ") for key in seen)


def test_every_control_has_a_name_and_every_image_a_text(page: Page, sampled: Client) -> None:
    page.url = sampled.url
    session = sampled.get("/api/cache")["discussions"][1]["discussion_id"]
    for view in ("caching", "cost", f"session/{session}?call=3", "try"):
        page.open(view)
        page.one("main h1")
        nameless = page.run(
            "return [...document.querySelectorAll('button, a, input, select, svg[role=img], section')].filter(e =>"
            " !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length)).map(e => e.outerHTML)"
        )
        assert nameless == []
        assert page.run("return document.querySelectorAll('h1').length") == 1
        assert page.run("return document.querySelectorAll('main, nav[aria-label]').length") >= 2


def test_light_and_dark_follow_the_system_until_one_is_chosen(page: Page, sampled: Client) -> None:
    page.url = sampled.url
    ground = "return getComputedStyle(document.body).backgroundColor"
    page.open("instructions")
    light = page.run(ground)
    page.theme("dark")
    dark = page.run(ground)
    assert light != dark
    page.click("#theme")
    assert (page.text("#theme"), page.run(ground)) == ("Theme: light", light)
    page.driver.refresh()
    page.until(lambda: page.text("#theme") == "Theme: light")
    page.click("#theme")
    assert (page.text("#theme"), page.run(ground)) == ("Theme: dark", dark)
    page.click("#theme")
    assert page.text("#theme") == "Theme: system"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_fits_its_screen(page: Page, sampled: Client, view: str, screen: str, theme: str) -> None:
    page.url = sampled.url
    told = sampled.get("/api/cache")["discussions"]
    bad = next(one["discussion_id"] for one in told if "time stands" in one["name"])
    where = {"session": f"session/{bad}?call=7", "breaks": "breaks?cause=prefix_changed"}.get(view, view)
    width, height = SCREENS[screen]
    page.resize(width, height)
    page.theme(theme)
    page.open(where)
    page.until(lambda: page.text("#connection") == "live")
    assert page.run("return document.documentElement.scrollWidth") <= width
    if SCREENSHOTS:
        folder = Path(SCREENSHOTS)
        folder.mkdir(parents=True, exist_ok=True)
        page.resize(width, min(3_000, page.run("return document.documentElement.scrollHeight")))
        page.driver.save_screenshot(str(folder / f"{view}-{screen}-{theme}.png"))


def test_the_page_is_light_and_there_at_once(page: Page, sampled: Client) -> None:
    page.url = sampled.url
    painted = []
    script = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    for _ in range(3):
        page.open("caching")
        painted.append(page.until(lambda: page.run(script)))
    assert min(painted) < PAINT_MS_MAX
    assert sum(len(file.body) for file in page_files().values()) < PAGE_BYTES_MAX
    loaded = page.run("return performance.getEntriesByType('resource').map(e => new URL(e.name).origin)")
    assert set(loaded) == {sampled.url}
    assert os.environ["SE_OFFLINE"] == "true"
