"""The agent, tested offline: its answers, its cache reads, and a prefix that stays stable."""

import pytest

from agent import WeatherAgent
from holdfast.testing.cache_report import CacheReport
from holdfast.testing.prefix_guard import PrefixGuard
from holdfast.testing.simulated_provider import ServedProvider


def tool_use_for(city: str) -> list[dict[str, object]]:
    return [{"type": "tool_use", "name": "get_weather", "input": {"city": city}}]


def test_agent_calls_the_tool_before_it_answers(simulated_provider: ServedProvider, prefix_guard: PrefixGuard) -> None:
    simulated_provider.script(tool_use_for("Oslo"), "In Oslo it stays dry.", tool_use_for("Rome"), "In Rome, too.")
    agent = WeatherAgent()
    assert agent.ask("Do I need an umbrella in Oslo?") == "In Oslo it stays dry."
    assert agent.ask("And in Rome?") == "In Rome, too."
    assert b"Oslo: 18 degrees" in simulated_provider.calls[1].body


@pytest.mark.usefixtures("prefix_guard")
def test_second_conversation_reads_what_the_first_wrote(cache_report: CacheReport) -> None:
    WeatherAgent().ask("What is the weather like in Oslo?")
    written = cache_report.usage.cache_write
    WeatherAgent().ask("Is there fog in Rome?")
    assert written > 0
    assert cache_report.usage.cache_read > written / 2


def test_prompt_is_written_again_after_its_ttl(simulated_provider: ServedProvider, prefix_guard: PrefixGuard) -> None:
    agent = WeatherAgent()
    agent.ask("What is the weather like in Oslo?")
    simulated_provider.advance(seconds=6 * 60)
    agent.ask("And now?")
    agent.ask("Still?")
    agent.ask("And tomorrow?")
    first, cold, warm, _ = (call.usage.cache_read for call in simulated_provider.calls)
    assert (first, cold) == (0, 0)
    assert warm > 0
