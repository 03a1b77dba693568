"""How fast the dashboard loads and draws a long session: measured in a real browser, on loopback.

Needs chromium and chromedriver, and the package selenium.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from holdfast.clock import ManualClock
from holdfast.service.dashboard.static_files import load_page_files
from holdfast.stores.memory import MemoryStore

ROOT = Path(__file__).parents[1]
# The browser is controlled in the same way as in the tests.
sys.path.insert(0, str(ROOT))

from tests.browser.test_session_view import DRAWN_MS, thousand_calls  # noqa: E402
from tests.support.browsers import CHROMIUM, DRIVER, PACKAGES, open_browser  # noqa: E402
from tests.support.served_service import serve_store  # noqa: E402

PAINT_MS = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
SCROLLED_MS = (
    "const scroll = document.querySelector('[data-key=strata]'); scroll.style.scrollBehavior = 'auto';"
    "const times = []; let last = performance.now();"
    "for (let i = 0; i < 60; i++) { scroll.scrollLeft = i * 150;"
    "  await new Promise(requestAnimationFrame);"
    "  times.push(performance.now() - last); last = performance.now(); }"
    "return times.sort((a, b) => a - b)[30];"
)
VIEW_MS = (
    "const started = performance.now(); location.hash = '#/session/long?call=1';"
    "while (!document.querySelector('.strata')) await new Promise(requestAnimationFrame);"
    "await new Promise(requestAnimationFrame); return performance.now() - started;"
)


def run() -> Iterator[tuple[str, str]]:
    if not (CHROMIUM and DRIVER):
        yield "no browser to measure with", PACKAGES
        return
    store = MemoryStore()
    store.append(thousand_calls()).result()
    clock = ManualClock(1_790_010_000.0)
    with (
        tempfile.TemporaryDirectory() as folder,
        open_browser(Path(folder)) as page,
        serve_store(store, clock=clock) as service,
    ):
        page.url = service.url
        paint_ms = []
        for _ in range(7):
            page.open("caching")
            paint_ms.append(float(page.wait_until(lambda: page.run(PAINT_MS))))
        view_ms = page.run(VIEW_MS)
        page.open("session/long", heading="long")
        hundred_ms, thousand_ms = page.run(DRAWN_MS)
        scrolled_ms = page.run(SCROLLED_MS)
        page.leave()
    weight = sum(len(file.body) for file in load_page_files().values())
    yield "page weight", f"{weight / 1000:.1f} kB, at most 150"
    yield "first paint, best and median of seven", f"{min(paint_ms):.0f} and {sorted(paint_ms)[3]:.0f} ms, at most 500"
    yield "100 calls drawn", f"{hundred_ms:.1f} ms"
    yield "1,000 calls drawn", f"{thousand_ms:.1f} ms, at most 200"
    yield "1,000 calls from the click to the frame", f"{view_ms:.0f} ms, requests to the service included"
    yield "a frame while 1,000 calls scroll, median", f"{scrolled_ms:.1f} ms"
