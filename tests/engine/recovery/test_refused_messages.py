"""A message that the provider refuses leaves the conversation, so that it cannot spoil the next request."""

import pytest
from tests.support.agents import MakeAgent, says

from holdfast.catalog.token_count import TokenCalibration
from holdfast.clock import ManualClock
from holdfast.engine.reducer import fold_events
from holdfast.errors import ProviderError
from holdfast.events.payloads.session import MessagesWithdrawn
from holdfast.ledger.calls import iter_calls
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.types.blocks import Base64Source, Image, Text, ToolUse, make_user_message
from holdfast.types.usage import TOKENS_MAX, Usage

REFUSED = ProviderError("invalid_request", "messages.0: image cannot be read", status=400)


async def test_a_refused_message_is_not_sent_again(agent: MakeAgent) -> None:
    harness = agent(says("Hello."), REFUSED, says("Yes."), system_prompt="Be brief.")
    async with harness.session as session:
        await session.send("hi")
        with pytest.raises(ProviderError, match="image cannot be read"):
            await session.send([Image(Base64Source("image/png", "broken")), Text("What is this?")])
        assert (await session.send("Are you there?")).text == "Yes."
        assert [message.role for message in session.history] == ["user", "assistant", "user", "assistant"]
    assert "broken" not in harness.transport.bodies[-1].decode()
    assert [payload.reason for payload in harness.payloads if isinstance(payload, MessagesWithdrawn)] == [
        "the provider refused them (invalid_request)"
    ]
    assert all(record.is_prefix_unchanged for record in iter_calls(harness.events))


async def test_after_a_refusal_the_next_request_is_compared_with_the_last_successful_one(
    agent: MakeAgent,
) -> None:
    harness = agent(says("Hello."), REFUSED, system_prompt="Be brief.")
    async with harness.session as session:
        await session.send("hi")
        digests = fold_events(harness.events, session.id).digests
        with pytest.raises(ProviderError):
            await session.send("broken")
    assert fold_events(harness.events, session.id).digests == digests


async def test_a_refused_first_message_leaves_an_empty_history(agent: MakeAgent) -> None:
    harness = agent(REFUSED, says("Yes."))
    async with harness.session as session:
        with pytest.raises(ProviderError):
            await session.send("hi")
        assert session.history == ()
        await session.send("again")
    assert harness.bodies[-1]["messages"][0]["content"][0]["text"] == "again"


async def test_volatile_text_that_was_refused_is_sent_again(agent: MakeAgent) -> None:
    states = iter(["one", "two", "two"])
    harness = agent(says("Hello."), REFUSED, says("Yes."), system_prompt_volatile=lambda: next(states))
    async with harness.session as session:
        await session.send("hi")
        with pytest.raises(ProviderError):
            await session.send("broken")
        await session.send("go on")
    body = harness.transport.bodies[-1].decode()
    assert (body.count("one\\n"), body.count("two\\n"), "broken" in body) == (1, 1, False)


async def test_refused_tool_results_are_replaced_by_a_note(agent: MakeAgent) -> None:
    def look() -> str:
        """Look."""
        return "far too much"

    harness = agent(says(ToolUse("t1", "look", "{}")), REFUSED, says("Yes."), tools=[look])
    async with harness.session as session:
        with pytest.raises(ProviderError):
            await session.send("look")
        assert (await session.send("go on")).text == "Yes."
    last = harness.transport.bodies[-1].decode()
    assert "far too much" not in last
    assert "The call was not run." in last
    assert fold_events(harness.events, session.id).entries[-1].role == "assistant"


@pytest.mark.parametrize("kind", ["rate_limit", "server_error", "network"])
async def test_a_message_stays_after_a_failure_that_may_be_temporary(agent: MakeAgent, kind: str) -> None:
    failed = ProviderError(kind, "not now")  # type: ignore[arg-type]  # one of the kinds
    harness = agent(failed, says("Yes."))
    async with harness.session as session:
        with pytest.raises(ProviderError):
            await session.send("hi")
        await session.send("go on")
        assert session.history[0] == make_user_message("hi", "go on")


async def test_a_message_over_the_window_does_not_end_the_session() -> None:
    provider = SimulatedProvider(clock=ManualClock())
    options = {"store": MemoryStore(), "transport": provider}
    async with Session.create(model="openai:gpt-4o", **options) as session:  # type: ignore[arg-type]  # Options
        with pytest.raises(ProviderError) as refused:
            await session.send("word " * 200_000)
        assert refused.value.kind == "context_overflow"
        assert (await session.send("short")).text == "Echo: short"


async def test_an_absurd_token_count_does_no_harm(agent: MakeAgent) -> None:
    harness = agent(says("One.", usage=Usage(input=10**400, output=10**400)), says("Two."))
    async with harness.session as session:
        assert (await session.send("hi")).usage == Usage(input=TOKENS_MAX, output=TOKENS_MAX)
        assert (await session.send("and now?")).text == "Two."
    assert fold_events(harness.events, session.id).usage.input > TOKENS_MAX


def test_estimates_survive_absurd_token_counts_on_the_log() -> None:
    assert TokenCalibration().add_sample(100, 10**400).factor <= 4.0
