"""A real browser without a window, and a service to look at; tests skip in one line where there is no browser."""

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


class Keys:
    """What WebDriver calls the keys that are no letters; told here because there may be no client to tell it."""

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
    """What a person sees and does, and what the browser says of it."""

    def __init__(self, driver: "webdriver.Chrome", url: str = "") -> None:
        self.driver = driver
        self.url = url
        self.expecting: tuple[str, ...] = ()

    def expected(self, complaint: str) -> bool:
        """Whether the test has made the service refuse this; browsers put every refusal into the console."""
        return any(word in complaint for word in self.expecting)

    def open(self, view: str = "", *, heading: str | None = None) -> None:
        """Opens a view by its URL, as if the page was opened for the first time."""
        self.leave()
        self.driver.get(f"{self.url}/#/{view}")
        self.until(lambda: self.text("h1") if heading is None else self.text("h1") == heading)

    def leave(self) -> None:
        """Goes elsewhere, as somebody does before the service is stopped."""
        self.driver.get("about:blank")

    def all(self, selector: str) -> "list[WebElement]":
        return list(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def one(self, selector: str) -> "WebElement":
        return self.until(lambda: next(iter(self.all(selector)), None))

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
        # The page may be drawn anew between finding and clicking; a person would click again.
        script = (
            "const e = document.querySelector(arguments[0]); if (!e || e.disabled) return false; e.click(); return 1"
        )
        self.until(lambda: self.run(script, selector))

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, found: Callable[[], T | None], *, seconds_max: float = SECONDS_MAX) -> T:
        waited = WebDriverWait(self.driver, seconds_max, poll_frequency=0.05)
        result: T = waited.until(lambda _: found())
        return result

    def complaints(self) -> list[str]:
        """What stands in the console as an error or a warning."""
        entries = self.driver.get_log("browser")
        return [str(entry["message"]) for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def requested(self) -> list[str]:
        """The addresses of all requests that were sent since the last time."""
        sent = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        urls = [it["params"]["request"]["url"] for it in sent if it["method"] == "Network.requestWillBeSent"]
        # The browser's own first page is made of these; nothing of them goes over a wire.
        return [url for url in urls if url.partition(":")[0] not in ("chrome", "chrome-untrusted", "data", "blob")]

    def accessible(self) -> list[tuple[str, str]]:
        """Roles and names, as those who do not see are told them."""
        nodes = self.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        response = (node for node in nodes if not node.get("ignored"))
        return [(str(it["role"]["value"]), str(it.get("name", {}).get("value", ""))) for it in response if "role" in it]

    def resize(self, width: int, height: int) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )

    def theme(self, name: str) -> None:
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
