"""The Session view: prompt layers of all calls, one call in full, mouse and keyboard, and speed with 1,000 calls."""

from decimal import Decimal

import pytest

from holdfast.clock import ManualClock
from holdfast.events.log import Event
from holdfast.events.payloads.calls import (
    GatewayForwarded,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    RequestPrepared,
)
from holdfast.events.payloads.session import SessionStarted
from holdfast.events.payloads.union import AnyPayload
from holdfast.stores.memory import MemoryStore
from holdfast.types.prompt import Breakpoint, Plan
from holdfast.types.request_buffer import PrefixDigest
from holdfast.types.usage import Usage
from tests.support.browsers import Keys, Page
from tests.support.long_conversations import LongConversation
from tests.support.served_service import Client, serve_store

MODEL = "anthropic:claude-sonnet-5-5"


@pytest.fixture
def session_with_breaks(page: Page, sample_service: Client) -> str:
    """The session whose prefix changes; its view is open."""
    page.url = sample_service.url
    discussions = sample_service.get("/api/cache")["discussions"]
    found = str(
        next(discussion["discussion_id"] for discussion in discussions if "time is before" in discussion["name"])
    )
    page.open(f"session/{found}")
    return found


def test_every_call_is_drawn_and_described_as_in_the_api(
    page: Page, sample_service: Client, session_with_breaks: str
) -> None:
    calls = sample_service.get(f"/api/sessions/{session_with_breaks}/calls")
    assert page.text("h1") == calls["title"]
    for call in calls["calls"]:
        row = page.text(f"[data-call='{call['number']}']")
        assert f"{call['read_tokens']:,}" in row
        assert f"{call['written_tokens']:,}" in row
        assert call["verdict"].replace("_", " ") in row
    bars = page.run("return document.querySelector('.outcome.written').getAttribute('d').split('M').length - 1")
    assert bars == len(calls["calls"])
    breaks = [call["number"] for call in calls["calls"] if call["is_break"]]
    assert breaks == [3, 5, 7, 9]
    assert page.run("return document.querySelector('.break').getAttribute('d').split('M').length - 1") == len(breaks)
    breakpoint_count = sum(len(call["breakpoints"]) for call in calls["calls"])
    assert (
        page.run("return document.querySelector('.breakpoint').getAttribute('d').split('M').length - 1")
        == breakpoint_count
    )
    legend = page.texts(".legend li")
    assert {layer["layer"] for layer in calls["calls"][0]["layers"]} <= set(legend)


def test_click_on_a_bar_selects_its_call_and_stays_in_the_url(page: Page, session_with_breaks: str) -> None:
    page.run(
        "const svg = document.querySelector('.prompt-chart'), box = svg.getBoundingClientRect();"
        "const clientX = box.left + 52 + 6.5 * (box.width - 52) / 9;"
        "svg.dispatchEvent(new MouseEvent('click', {bubbles: true, clientX, clientY: box.top + 50}))"
    )
    page.wait_until(lambda: page.text(".detail h2").startswith("Call 7"))
    assert page.text(".readout").startswith("Call 7: ")
    page.run(
        "const svg = document.querySelector('.prompt-chart'), box = svg.getBoundingClientRect();"
        "const clientX = box.left + 52 + 2.5 * (box.width - 52) / 9;"
        "svg.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX, clientY: box.top + 50}))"
    )
    assert page.text(".readout").startswith("Call 3: "), "the call under the pointer"
    assert page.driver.current_url.endswith(f"#/session/{session_with_breaks}?call=7")
    page.driver.refresh()
    page.wait_until(lambda: page.text(".detail h2").startswith("Call 7"))
    detail = page.text(".detail")
    assert "Broken: the prefix changed" in detail
    assert "miss: system_changed" in detail
    assert "end of the conversation so far" in detail
    page.click("[data-does=bytes]")
    page.wait_until(lambda: "The first byte that differs is byte" in page.text(".detail"))
    before, after = page.texts(".bytes mark")
    assert before != after
    assert "The time is" in page.text(".bytes .shared")


def test_arrow_keys_select_calls(page: Page, session_with_breaks: str) -> None:
    page.run("document.querySelector('[data-key=prompts]').focus()")
    for key, number in ((Keys.END, 9), (Keys.LEFT, 8), (Keys.HOME, 1), (Keys.RIGHT, 2)):
        page.driver.switch_to.active_element.send_keys(key)
        page.wait_until(lambda number=number: page.text(".detail h2").startswith(f"Call {number} "))  # type: ignore[misc]
    assert page.run("return document.activeElement.dataset.key") == "prompts", "the focus stays where it was"


def test_chart_is_saved_with_its_colours(page: Page, session_with_breaks: str) -> None:
    saved = page.run(
        "return import('/dashboard/download.js').then(m => m.standalone(document.querySelector('.prompt-chart')))"
    )
    assert saved.startswith("<svg")
    assert "rgb(18, 135, 122)" in saved
    assert "class=" not in saved


def test_unknown_session_is_reported_with_a_link_back(page: Page, sample_service: Client) -> None:
    page.url, page.expected_errors = sample_service.url, ("404",)
    page.open("session/none-such", heading="Cannot show this view")
    assert "no session 'none-such'" in page.text("main")
    page.element("main button")


def thousand_calls() -> list[Event]:
    def events() -> list[AnyPayload]:
        made: list[AnyPayload] = [SessionStarted(model=MODEL, name="long")]
        head = (PrefixDigest("tools", 0, 4_000, "a"), PrefixDigest("preset", 4_000, 12_000, "b"))
        for number in range(1_000):
            start = 12_000 + 400 * number
            grown = PrefixDigest("history", start, start + 400, f"h{number}")
            plan = Plan((Breakpoint(1), Breakpoint(number + 2)))
            links = (*head, grown) if number == 0 else (grown,)
            made.append(RequestPrepared(plan, "e", 0 if number == 0 else number + 2, links, "p", start))
            made.append(LlmCallStarted(MODEL, "anthropic", 0, f"r{number}"))
            usage = Usage(cache_read=3_000 + 100 * number if number else 0, cache_write_5m=100, input=5, output=50)
            made.append(
                LlmCallCompleted(MODEL, "anthropic", usage, Decimal(0), "v", 900, "end_turn", 0, 0, f"r{number}")
            )
        return made

    return [Event(f"e{n:05d}", 1_790_000_000.0 + n, "long", "agent", it) for n, it in enumerate(events())]


DRAWN_MS = (
    "const [{promptChart}, view] = await Promise.all([import('/dashboard/prompt_chart.js'),"
    "  fetch('/api/sessions/long/calls?limit=1000').then(r => r.json())]);"
    "const place = document.createElement('div'); document.querySelector('main').append(place);"
    "const best = (calls) => Math.min(...Array.from({length: 5}, (_, i) => {"
    "  const started = performance.now();"
    "  place.replaceChildren(promptChart({...view, calls, width: 1200, selected: 500 + i}).drawing);"
    "  place.getBoundingClientRect();"
    "  return performance.now() - started; }));"
    "return [best(view.calls.slice(0, 100)), best(view.calls)];"
)


def test_thousand_calls_need_few_elements_and_render_in_linear_time(page: Page) -> None:
    store = MemoryStore()
    store.append(thousand_calls()).result()
    with serve_store(store, clock=ManualClock(1_790_010_000.0)) as client:
        page.url = client.url
        page.open("session/long", heading="long")
        assert client.get("/api/sessions/long/calls?limit=1000")["calls_total"] == 1_000
        assert page.run("return document.querySelectorAll('.prompt-chart *').length") < 1_000
        # Other load on the machine slows both down; ten times the calls take ten times as long, not a hundred.
        hundred_ms, thousand_ms = page.run(DRAWN_MS)
        assert thousand_ms < 40 * max(1.0, hundred_ms)


@pytest.mark.changes_prefix(reason="a compaction invalidates the cache after the cut")
async def test_compactions_are_listed_with_what_left_the_view_and_how_to_undo_the_newest(page: Page) -> None:
    conversation = LongConversation(name="port the parser")
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
        await session.compact()
        await session.undo_compaction()
        await conversation.send_turns(session, 3)
        await session.compact()
        await conversation.send_turns(session, 2)
        dropped = session.dropped()
    with serve_store(conversation.store) as client:
        page.url = client.url
        path = f"/api/sessions/{session.id}/compactions"
        first, second = client.get(path)["compactions"]
        page.open(f"session/{session.id}", heading="port the parser")
        page.wait_until(lambda: len(page.texts("[data-compaction]")) == 2)
        rows = page.texts("[data-compaction]")
        for row, compaction, state in zip(rows, (first, second), ("undone", "in effect"), strict=True):
            assert f"{compaction['tokens_before']:,}" in row
            assert f"{compaction['tokens_after']:,}" in row
            assert f"m1 to m{compaction['last']} became a summary" in row
            assert "asked for by the user" in row
            assert state in row
        count = sum(content.kind == "tool result" for content in dropped)
        assert f"{count} tool results" in page.text("[data-figure=dropped]")
        assert f"/undo-compact in holdfast chat --resume {session.id}" in page.text("[data-figure=undo]")
        page.click("[data-does=compacted]")
        page.wait_until(lambda: "Goal: Port the parser" in page.text("pre.summary"))
        assert f"m{dropped[0].number}" in page.text("[aria-label=Compactions]")


def test_two_calls_and_two_sessions_are_compared(page: Page, sample_service: Client, session_with_breaks: str) -> None:
    page.url = sample_service.url
    calls = sample_service.get(f"/api/sessions/{session_with_breaks}/calls")["calls"]
    page.open(f"session/{session_with_breaks}?call=3")
    page.click("[data-key='compare call']")
    page.wait_until(lambda: page.text("h1") == "Compare")
    read = page.texts("[data-row=Read] td")
    assert read[1:3] == [f"{calls[number]['read_tokens']:,}" for number in (1, 2)]
    page.click("[data-does=bytes]")
    page.wait_until(lambda: "byte" in page.text("section[aria-label=Bytes] div"))
    other = next(row for row in sample_service.get("/api/sessions")["sessions"] if row["id"] != session_with_breaks)
    page.open(f"compare?a={session_with_breaks}&b={other['id']}", heading="Compare")
    assert page.texts("[data-row=Calls] td")[2] == str(other["call_count"])
    assert page.texts("[data-row=Session] td")[2] == other["title"]
    offered = page.run("return [...document.querySelectorAll('datalist option')].map(e => [e.value, e.label])")
    assert [other["id"], f"{other['title']} · {other['model']}"] in offered, "a session is chosen by its name"


def test_failed_calls_and_latencies_are_listed(page: Page) -> None:
    store = MemoryStore()
    failed = LlmCallFailed(MODEL, "anthropic", "server_error", "the provider is busy", 2, 1_234, "r1")
    usage, price = Usage(input=10, output=1), Decimal("0.01")
    completed = LlmCallCompleted(MODEL, "anthropic", usage, price, "v", 750, "end_turn", 0, 0, "r2", retry_count=1)
    store.append(
        [
            Event("e1", 1.0, "s", "agent", SessionStarted(MODEL)),
            Event("e2", 2.0, "s", "agent", failed),
            Event("e3", 3.0, "s", "agent", LlmCallStarted(MODEL, "anthropic", 10, "r2")),
            Event("e4", 4.0, "s", "agent", completed),
        ]
    ).result(10)
    with serve_store(store) as client:
        page.url = client.url
        page.open("session/s")
        cells = page.texts("section[aria-label='Calls that failed at no cost'] td")
        assert cells[1:] == ["0", "server error", "1.2 s", "2"]
        assert page.text("[data-call='1'] [data-heading=Time]") == "750 ms1 retry"
        assert "busy" not in page.text("main")
        page.leave()


def test_session_whose_calls_all_failed_shows_them_and_its_client(page: Page) -> None:
    store = MemoryStore()
    store.append(
        [
            Event("e1", 60.0, "s", "agent", SessionStarted(MODEL, name="ann's laptop")),
            Event("e2", 61.0, "s", "agent", GatewayForwarded("new", 1.0, client="my-agent")),
            Event("e3", 62.0, "s", "agent", LlmCallFailed(MODEL, "anthropic", "invalid_request", "", 0, 5, "r1")),
        ]
    ).result(10)
    with serve_store(store) as client:
        page.url = client.url
        page.open("session/s", heading="ann's laptop · 1970-01-01 00:01:00")
        assert "my-agent" in page.text("h1 + p")
        assert "No call was answered" in page.text("main")
        assert "invalid request" in page.text("section[aria-label='Calls that failed at no cost']")
        page.leave()
