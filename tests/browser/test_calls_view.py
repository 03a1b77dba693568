"""The Calls view: failures by outcome, time by model, and every call that failed with a link to its session."""

import time
from decimal import Decimal

from holdfast.errors import FailureKind
from holdfast.events.log import Event
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallFailed, LlmCallStarted
from holdfast.events.payloads.session import SessionStarted
from holdfast.stores.memory import MemoryStore
from holdfast.types.usage import Usage
from tests.support.browsers import Page
from tests.support.served_service import serve_store

MODEL = "anthropic:claude-sonnet-5-5"
DAY = 86_400.0
FAILED = "section[aria-label^='Calls that'] tbody tr"


def store_with_failures(now: float, *, rate_limits: int = 60) -> MemoryStore:
    """A session whose only call was rejected, and one with many rate limits and a completed call."""
    store = MemoryStore()

    def failed(kind: FailureKind, number: int) -> LlmCallFailed:
        return LlmCallFailed(MODEL, "anthropic", kind, "the prompt in the message", 2, 1_234, f"r{number}")

    completed = LlmCallCompleted(
        MODEL, "anthropic", Usage(input=10, output=1), Decimal("0.01"), "v", 750, "end_turn", 0, 0, "r0"
    )
    store.append(
        [
            Event("a0", now - 3 * DAY, "a", "agent", SessionStarted(MODEL, name="rejected")),
            Event("a1", now - 3 * DAY, "a", "agent", failed("invalid_request", 0)),
            Event("b0", now - 900, "b", "agent", SessionStarted(MODEL, name="limited")),
            Event("b1", now - 900, "b", "agent", LlmCallStarted(MODEL, "anthropic", 10, "r0")),
            Event("b2", now - 900, "b", "agent", completed),
            *(
                Event(f"c{number:03}", now - 800 + number, "b", "agent", failed("rate_limit", number + 1))
                for number in range(rate_limits)
            ),
        ]
    ).result(10)
    return store


def test_every_failed_call_is_reached_from_the_overview_page_by_page(page: Page) -> None:
    with serve_store(store_with_failures(time.time())) as client:
        page.url = client.url
        page.open("overview", heading="Overview")
        page.click("[data-attention=failed] [href='#/calls']")
        page.wait_until(lambda: page.text("h1") == "Calls")
        assert len(page.elements(FAILED)) == 50
        page.run("window.scrollTo(0, document.body.scrollHeight)")
        page.click("[data-key=older]")
        page.wait_until(lambda: len(page.elements(FAILED)) == 11)
        assert page.run("return window.scrollY") == 0, "the next page is read from its top"
        assert "rejected" in page.texts(FAILED)[-1]
        assert "the prompt" not in page.text("main")
        page.click(f"{FAILED}:last-child a")
        page.wait_until(lambda: page.text("h1") == "rejected")
        page.leave()


def test_outcome_and_period_narrow_the_list_and_say_what_to_do(page: Page) -> None:
    with serve_store(store_with_failures(time.time(), rate_limits=2)) as client:
        page.url = client.url
        page.open("calls", heading="Calls")
        assert page.texts("[data-outcome] [data-heading=Calls]") == ["2", "1"], "the most frequent first"
        assert "the provider limits requests" in page.text("[data-outcome=rate_limit]")
        assert page.texts("section[aria-label='Time by model'] td") == [MODEL, "1", "750 ms", "750 ms"]
        page.click("[data-outcome=invalid_request] a")
        page.wait_until(lambda: page.text("[data-outcome=invalid_request] a").endswith("(show all)"))
        assert len(page.elements(FAILED)) == 1
        page.click("[data-key='period 1']")
        page.wait_until(lambda: "No call ended with invalid request in the last 24 hours." in page.text("main"))
        page.leave()


def test_an_empty_store_says_that_no_call_was_made(page: Page) -> None:
    with serve_store(MemoryStore()) as client:
        page.url = client.url
        page.open("calls", heading="Calls")
        assert "No call was answered in this period." in page.text("main")
        assert "No call failed in the last 7 days." in page.text("main")
        page.leave()
