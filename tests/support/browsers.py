"""A real headless browser; tests skip with one line where none is installed."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

REQUIRED = bool(os.environ.get("HOLDFAST_REQUIRE_BROWSER"))  # Read before tests get an empty environment.
SCREENSHOTS = os.environ.get("HOLDFAST_SCREENSHOTS")
AXE = os.environ.get("HOLDFAST_AXE")  # The path of axe.min.js, from the npm package axe-core.
PACKAGES = "apt-get install chromium chromium-driver"
SECONDS_MAX = 30.0

os.environ["SE_OFFLINE"] = "true"
os.environ["SE_AVOID_STATS"] = "true"

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service as DriverService
    from selenium.webdriver.common.by import By
    from selenium.webdriver.remote.webelement import WebElement
    from selenium.webdriver.support.ui import WebDriverWait
except ImportError:
    DRIVER, PACKAGES = None, "pip install selenium; " + PACKAGES

T = TypeVar("T")

# Counts timers that have run and held answers that were read, in a task of its own after what they lead to.
_HOLD_ANSWERS = """
    if (!window.held) {
      const [fetchNow, setTimer] = [window.fetch, window.setTimeout];
      Object.assign(window, { held: [], timersRun: 0, answersRead: 0 });
      window.setTimeout = (run, ...others) => setTimer(() => { run(); window.timersRun += 1; }, ...others);
      window.fetch = async (url, options) => {
        const isHeld = () => window.holding.some((part) => String(url).includes(part));
        const wasHeld = isHeld();
        const answer = await fetchNow(url, options);
        // One that comes after the release is not held any more.
        if (!wasHeld || !isHeld()) return answer;
        const read = answer.json.bind(answer);
        answer.json = () => read().finally(() => setTimer(() => { window.answersRead += 1; }));
        return new Promise((resolve) => window.held.push(() => resolve(answer)));
      };
    }
    window.holding = arguments[0];
"""


class Keys:
    """WebDriver's codes of special keys, repeated here because the client may not be installed."""

    TAB = "\ue004"
    ENTER = "\ue007"
    END = "\ue010"
    HOME = "\ue011"
    LEFT = "\ue012"
    RIGHT = "\ue014"


def require_browser() -> None:
    """Skips where there is no browser; fails where one is required."""
    if CHROMIUM and DRIVER:
        return
    reason = f"no browser to look at the page with: {PACKAGES}"
    if REQUIRED:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


class Page:
    """The page as a user sees and operates it, with the browser's console and network log."""

    def __init__(self, driver: "webdriver.Chrome", url: str = "") -> None:
        self.driver = driver
        self.url = url
        self.expected_errors: tuple[str, ...] = ()

    def is_expected(self, complaint: str) -> bool:
        """Whether the test caused this refusal on purpose; browsers log every refused request in the console."""
        return any(word in complaint for word in self.expected_errors)

    def open(self, view: str = "", *, heading: str | None = None) -> None:
        """Opens a view by its URL in a freshly loaded page."""
        self.leave()
        self.driver.get(f"{self.url}/#/{view}")
        self.wait_until(lambda: self.text("h1") if heading is None else self.text("h1") == heading)

    def leave(self) -> None:
        """Leaves the page, as every test does before its service stops."""
        self.driver.get("about:blank")

    def elements(self, selector: str) -> "list[WebElement]":
        return list(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def element(self, selector: str) -> "WebElement":
        return self.wait_until(lambda: next(iter(self.elements(selector)), None))

    def text(self, selector: str) -> str:
        found = self.driver.execute_script(
            "const e = document.querySelector(arguments[0]); return e ? e.textContent : ''", selector
        )
        return str(found)

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.driver.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector
        )
        return found

    def click(self, selector: str) -> None:
        # The page may be redrawn between finding and clicking; a user would click again.
        script = (
            "const e = document.querySelector(arguments[0]); if (!e || e.disabled) return false; e.click(); return 1"
        )
        self.wait_until(lambda: self.run(script, selector))

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait_until(self, condition: Callable[[], T | None], *, seconds_max: float = SECONDS_MAX) -> T:
        waiter = WebDriverWait(self.driver, seconds_max, poll_frequency=0.05)
        result: T = waiter.until(lambda _: condition())
        return result

    def hold_answers(self, *paths: str) -> None:
        """From now on the page gets answers to requests of these paths when they are released; `held` has them."""
        self.driver.execute_script(_HOLD_ANSWERS, list(paths))

    def release_answers(self) -> None:
        """The page gets the answers that were held; returns when it has read them."""
        script = "const count = window.answersRead + held.length; held.splice(0).forEach((run) => run()); return count"
        self.run("window.holding = []")
        count = self.run(script)
        self.wait_until(lambda: self.run("return window.answersRead") >= count)

    def console_errors(self) -> list[str]:
        """The errors and warnings in the console."""
        entries = self.driver.get_log("browser")
        return [str(entry["message"]) for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def requested_urls(self) -> list[str]:
        """The URLs of all requests sent since the last call."""
        sent = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        requests = [
            message["params"]["request"] for message in sent if message["method"] == "Network.requestWillBeSent"
        ]
        urls = [request["url"] for request in requests]
        # The browser's own start page uses these; none of them is a network request.
        return [url for url in urls if url.partition(":")[0] not in ("chrome", "chrome-untrusted", "data", "blob")]

    def accessible_nodes(self) -> list[tuple[str, str]]:
        """Roles and names in the accessibility tree, as a screen reader gets them."""
        nodes = self.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        exposed = (node for node in nodes if not node.get("ignored") and "role" in node)
        return [(str(node["role"]["value"]), str(node.get("name", {}).get("value", ""))) for node in exposed]

    def accessibility_violations(self) -> list[str]:
        """What axe-core reports, with the elements; skips where it is not installed."""
        if not AXE:
            pytest.skip("HOLDFAST_AXE does not name axe.min.js of the npm package axe-core")
        self.driver.execute_script(Path(AXE).read_text(encoding="utf-8"))
        script = "const done = arguments[0]; axe.run().then(found => done(found.violations))"
        found = self.driver.execute_async_script(script)
        return [f"{rule['id']}: {[node['html'][:200] for node in rule['nodes'][:3]]}" for rule in found]

    def resize(self, width: int, height: int) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )

    def set_theme(self, name: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


@contextmanager
def open_browser(folder: Path) -> Iterator[Page]:
    require_browser()
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--lang=en-GB"):
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={folder}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=DriverService(DRIVER))
    try:
        yield Page(driver)
    finally:
        driver.quit()
