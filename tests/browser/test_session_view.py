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


def test_sessions_of_two_calls_that_do_not_exist_are_named_whichever_answer_comes_first(
    page: Page, sample_service: Client
) -> None:
    page.url, page.expected_errors = sample_service.url, ("404",)
    page.open("compare", heading="Compare")
    page.hold_answers("calls?limit=1")
    page.run("location.hash = '#/compare?a=none&a_call=3&b=other&b_call=4'")
    page.wait_until(lambda: page.run("return held.length") == 2)
    page.release_answers()
    page.wait_until(lambda: page.texts("[role=alert] p"))
    assert page.texts("[role=alert] p") == ["no session 'none'", "no session 'other'"]


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


@pytest.mark.parametrize("mark", ["breakpoint", "break", "boundary"])
def test_the_legend_has_each_mark_as_the_chart_draws_it(page: Page, session_with_breaks: str, mark: str) -> None:
    styles = (
        "const [drawn, shown] = arguments[0].map(e => document.querySelector(e));"
        "const shape = e => (e.getAttribute('d') ?? '').split('M')[1]?.replace(/^[-.0-9]+ [-.0-9]+/, '');"
        "const ink = e => getComputedStyle(e);"
        "return [[shape(drawn), ink(drawn).fill], [shape(shown), ink(shown).fill],"
        " [ink(drawn).stroke, ink(shown).backgroundColor]]"
    )
    legend = ".legend .swatch.line" if mark == "boundary" else f".legend .{mark}"
    drawn, shown, line = page.run(styles, [f".prompt-chart .{mark}", legend])
    if mark == "boundary":
        assert line[0] == line[1], "a line of the same colour"
    else:
        assert drawn == shown


def test_a_call_that_is_chosen_in_the_table_is_scrolled_to(page: Page, session_with_breaks: str) -> None:
    page.resize(1280, 500)
    link = page.element("[data-call='1'] a")
    page.run("arguments[0].scrollIntoView()", link)
    link.send_keys(Keys.ENTER)
    page.wait_until(lambda: page.text(".detail h2").startswith("Call 1 "))
    assert page.wait_until(
        lambda: page.run(
            "const box = document.querySelector('.detail').getBoundingClientRect();"
            "return box.top < innerHeight && box.bottom > 0"
        )
    )
    assert page.run("return document.activeElement.dataset.key") == "call 1"


@pytest.mark.parametrize("call", ["0.5", "-3", "x", "1e9", "99999999999"])
def test_what_is_no_number_of_a_call_selects_none(page: Page, session_with_breaks: str, call: str) -> None:
    page.open(f"session/{session_with_breaks}?call={call}")
    assert "Select a bar" in page.text(".detail")


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


READS_TO_DRAW = (
    "const [{promptChart}, view] = await Promise.all([import('/dashboard/prompt_chart.js'),"
    "  fetch('/api/sessions/long/calls?limit=1000').then(r => r.json())]);"
    "const countReads = (calls) => { let reads = 0;"
    "  const counted = (object) => new Proxy(object, {get: (from, name) => { reads += 1; return from[name]; }});"
    "  promptChart({...view, calls: counted(calls.map(counted)), width: 1200, selected: 50});"
    "  return reads; };"
    "return [countReads(view.calls.slice(0, 100)), countReads(view.calls)];"
)


def test_thousand_calls_need_few_elements_and_are_read_a_constant_number_of_times(page: Page) -> None:
    store = MemoryStore()
    store.append(thousand_calls()).result()
    with serve_store(store, clock=ManualClock(1_790_010_000.0)) as client:
        page.url = client.url
        page.open("session/long", heading="long")
        assert client.get("/api/sessions/long/calls?limit=1000")["calls_total"] == 1_000
        assert page.run("return document.querySelectorAll('.prompt-chart *').length") < 1_000
        hundred_reads, thousand_reads = page.run(READS_TO_DRAW)
        assert hundred_reads > 100
        assert thousand_reads < 12 * hundred_reads


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
    title = sample_service.get(f"/api/sessions/{session_with_breaks}/calls")["title"]
    assert page.texts("[data-row=Session] a") == [f"{title}, call 2", f"{title}, call 3"]
    page.click("[data-does=bytes]")
    page.wait_until(lambda: "byte" in page.text("section[aria-label=Bytes] div"))
    other = next(row for row in sample_service.get("/api/sessions")["sessions"] if row["id"] != session_with_breaks)
    page.open(f"compare?a={session_with_breaks}&b={other['id']}", heading="Compare")
    assert page.texts("[data-row=Calls] td")[2] == str(other["call_count"])
    assert page.texts("[data-row=Session] td")[2] == other["title"]
    offered = page.run("return [...document.querySelectorAll('datalist option')].map(e => [e.value, e.label])")
    assert [other["title"], other["model"]] in offered, "a session is chosen by its name"
    assert page.run("return document.getElementById('compare-a').value") == title
    page.run("document.getElementById('compare-a').value = arguments[0]", other["title"])
    page.click("[data-does=compare]")
    page.wait_until(lambda: page.texts("[data-row=Session] td")[1] == other["title"])
    page.resize(390, 844)
    assert page.run("return document.querySelector('[data-row=Model] td:last-child').offsetHeight") == 0, "no empty row"


def test_sessions_that_cannot_be_compared_leave_the_form_to_correct_them(
    page: Page, sample_service: Client, session_with_breaks: str
) -> None:
    page.expected_errors = ("404", "400")
    page.open("compare?a=none-such&b=another", heading="Compare")
    reported = page.texts("main [role=alert] p")
    assert [text.partition(",")[0] for text in reported] == [
        "There is no session none-such",
        "There is no session another",
    ]
    assert page.run("return document.getElementById('compare-a').value") == "none-such"
    page.open(f"compare?a={session_with_breaks}&a_call=99&b={session_with_breaks}&b_call=1", heading="Compare")
    assert "99" in page.text("main [role=alert]")
    page.open(f"compare?a={session_with_breaks}&a_call=2&b={session_with_breaks}", heading="Compare")
    assert page.text("[data-figure=whole-sessions]").startswith("Only one side has the number of a call")
    tops = page.run("return ['a', 'a_call', 'b', 'b_call'].map(e => document.getElementById(`compare-${e}`).offsetTop)")
    assert tops[0] == tops[1] < tops[2] == tops[3], "each session with its call"


def test_shares_differ_by_points_and_tokens_have_their_unit(
    page: Page, sample_service: Client, session_with_breaks: str
) -> None:
    sessions = {row["id"]: row for row in sample_service.get("/api/sessions")["sessions"]}
    worse = sessions.pop(session_with_breaks)
    better = max(sessions.values(), key=lambda row: float(row["read_share"]))
    page.open(f"compare?a={worse['id']}&b={better['id']}", heading="Compare")
    points = round((better["read_share"] - worse["read_share"]) * 100)
    assert page.texts("[data-row='Read share'] td")[3] == f"+{points} points"
    page.open(f"compare?a={worse['id']}&a_call=1&b={better['id']}&b_call=1", heading="Compare")
    assert page.texts("[data-row=Written] td")[0] == "Written, tokens"


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
        page.open("session/s", heading=f"my-agent · ann's laptop · {MODEL.partition(':')[2]} · 1970-01-01 00:01:00 · s")
        assert "No call was answered" in page.text("main")
        assert "invalid request" in page.text("section[aria-label='Calls that failed at no cost']")
        page.leave()
