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

from tests.browser.test_session_view import thousand_calls  # noqa: E402
from tests.support.browsers import CHROMIUM, DRIVER, PACKAGES, open_browser  # noqa: E402
from tests.support.served_service import serve_store  # noqa: E402

PAINT_MS = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
SIZES = (
    "return performance.getEntriesByType('resource').filter(e => e.name.includes('/dashboard/'))"
    ".map(e => [e.encodedBodySize, e.decodedBodySize])"
)
DRAWN_MS = (
    "const [{promptChart}, view] = await Promise.all([import('/dashboard/prompt_chart.js'),"
    "  fetch('/api/sessions/long/calls?limit=1000').then(r => r.json())]);"
    "const place = document.createElement('div'); document.querySelector('main').append(place);"
    "const best = (calls) => Math.min(...Array.from({length: 5}, (_, i) => {"
    "  const started = performance.now();"
    "  place.replaceChildren(promptChart({...view, calls, width: 1200, selected: 50 + i}).drawing);"
    "  place.getBoundingClientRect();"
    "  return performance.now() - started; }));"
    "return [best(view.calls.slice(0, 100)), best(view.calls)];"
)
SCROLLED_MS = (
    "const scroll = document.querySelector('[data-key=prompts]'); scroll.style.scrollBehavior = 'auto';"
    "const times = []; let last = performance.now();"
    "for (let i = 0; i < 60; i++) { scroll.scrollLeft = i * 150;"
    "  await new Promise(requestAnimationFrame);"
    "  times.push(performance.now() - last); last = performance.now(); }"
    "return times.sort((a, b) => a - b)[30];"
)
VIEW_MS = (
    "const started = performance.now(); location.hash = '#/session/long?call=1';"
    "while (!document.querySelector('.prompt-chart')) await new Promise(requestAnimationFrame);"
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
        page.open("", heading="Overview")
        first_sent, first_unpacked = map(sum, zip(*page.run(SIZES), strict=True))
        paint_ms = []
        for _ in range(7):
            page.open("caching")
            paint_ms.append(float(page.wait_until(lambda: page.run(PAINT_MS))))
        view_ms = page.run(VIEW_MS)
        page.open("session/long", heading="long")
        hundred_ms, thousand_ms = page.run(DRAWN_MS)
        scrolled_ms = page.run(SCROLLED_MS)
        page.leave()
    all_files = load_page_files().values()
    weight, unpacked = sum(len(file.packed) for file in all_files), sum(len(file.body) for file in all_files)
    yield "first view, as sent", f"{first_sent / 1000:.1f} kB, {first_unpacked / 1000:.1f} unpacked"
    yield "page weight, all views, as sent", f"{weight / 1000:.1f} kB, at most 150; {unpacked / 1000:.1f} unpacked"
    yield "first paint, best and median of seven", f"{min(paint_ms):.0f} and {sorted(paint_ms)[3]:.0f} ms, at most 500"
    yield "100 calls drawn", f"{hundred_ms:.1f} ms"
    yield "1,000 calls drawn", f"{thousand_ms:.1f} ms, at most 200"
    yield "1,000 calls from the click to the frame", f"{view_ms:.0f} ms, requests to the service included"
    yield "a frame while a chart of 1,000 calls is moved, median", f"{scrolled_ms:.1f} ms"
