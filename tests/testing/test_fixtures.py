"""The plugin's fixtures with the clients that agents use: official ones, wrapped ones, and sessions."""

import os
from decimal import Decimal
from typing import Any

import anthropic
import msgspec
import openai
import pytest
from google import genai
from openrouter import OpenRouter
from tests.support import sdk_clients as sdk_players
from tests.support.simulated import LONG, SONNET

from holdfast import Session, UserError
from holdfast.integrations import wrap
from holdfast.simulator.script import parse_script
from holdfast.testing.cache_report import CacheReport
from holdfast.testing.prefix_guard import PrefixGuard, find_prefix_breaks
from holdfast.testing.simulated_provider import ServedProvider
from holdfast.types.prompt import LayerText

SYNC = {
    "anthropic": sdk_players.anthropic_sync,
    "openai": sdk_players.responses_sync,
    "openai-chat": sdk_players.chat_sync,
    "openrouter": sdk_players.openrouter_sync,
    "gemini": sdk_players.gemini_sync,
}
ASYNC = {
    "anthropic": sdk_players.anthropic_async,
    "openai": sdk_players.responses_async,
    "openai-chat": sdk_players.chat_async,
    "openrouter": sdk_players.openrouter_async,
    "gemini": sdk_players.gemini_async,
}


@pytest.mark.parametrize("provider", SYNC)
@pytest.mark.parametrize("stream", [False, True])
def test_a_session_through_an_official_client_keeps_its_prefix(
    simulated_provider: ServedProvider, prefix_guard: PrefixGuard, provider: str, stream: bool
) -> None:
    simulated_provider.script(parse_script(sdk_players.SCRIPT))
    client_usages = SYNC[provider](simulated_provider.url, stream=stream)
    calls = simulated_provider.calls
    assert [call.model.partition(":")[0] for call in calls] == [provider] * 3
    assert [call.usage.cache_read for call in calls] == [read for _, read, _, _ in client_usages]
    assert all(call.cost_usd > 0 for call in calls)
    prefix_guard.check()


@pytest.mark.parametrize("provider", ASYNC)
async def test_a_session_through_an_official_async_client_keeps_its_prefix(
    simulated_provider: ServedProvider, prefix_guard: PrefixGuard, provider: str
) -> None:
    simulated_provider.script(parse_script(sdk_players.SCRIPT))
    await ASYNC[provider](simulated_provider.url, stream=False)
    assert len(simulated_provider.calls) == 3
    assert prefix_guard.breaks == ()


@pytest.mark.parametrize("provider", SYNC)
def test_a_changed_prefix_is_detected_for_every_client(simulated_provider: ServedProvider, provider: str) -> None:
    simulated_provider.script(parse_script(sdk_players.SCRIPT))
    SYNC[provider](simulated_provider.url, stream=False)
    first, second, _ = simulated_provider.calls
    changed = msgspec.structs.replace(second, body=second.body.replace(b"You read", b"You love", 1))
    (prefix_break,) = find_prefix_breaks((first, changed), simulated_provider.models)
    assert (prefix_break.call, prefix_break.call_before) == (2, 1)
    assert prefix_break.comparison.difference is not None
    assert prefix_break.comparison.difference.section == "system"


def test_clients_without_arguments_find_the_simulator(simulated_provider: ServedProvider) -> None:
    simulated_provider.script("well")
    question: list[Any] = [{"role": "user", "content": "hi"}]
    with anthropic.Anthropic() as client:
        assert client.messages.create(model=SONNET, max_tokens=9, messages=question).content[0].type == "text"
    with openai.OpenAI() as chat:
        assert chat.chat.completions.create(model="gpt-6.1-sol", messages=question).choices[0].message.content == "well"
        assert chat.responses.create(model="gpt-6.1-sol", input="hi", store=False).output_text == "well"
    google = genai.Client()
    assert google.models.generate_content(model="gemini-3.8-flash", contents="hi").text == "well"
    google.close()
    with OpenRouter(server_url=simulated_provider.base_url("openrouter")) as router:
        router.chat.send(model="anthropic/claude-sonnet-5.5", messages=question)
    providers = [call.model.partition(":")[0] for call in simulated_provider.calls]
    assert providers == ["anthropic", "openai-chat", "openai", "gemini", "openrouter"]


async def test_a_session_with_the_provider_as_its_transport_keeps_its_prefix_and_is_counted(
    simulated_provider: ServedProvider, prefix_guard: PrefixGuard, cache_report: CacheReport
) -> None:
    async with Session.create(system_prompt=LONG, store="memory:", transport=simulated_provider) as session:
        for question in ("one", "two", "three"):
            await session.send(question)
        assert cache_report.calls == 3
        assert cache_report.cost_usd == session.cost
        assert cache_report.read_share == session.usage.read_share > 0.5
        assert cache_report.saved_usd > 0
    assert prefix_guard.breaks == ()


@pytest.mark.changes_prefix(reason="ephemeral text leaves with its turn")
async def test_ephemeral_text_of_a_session_is_detected_as_a_prefix_change(
    simulated_provider: ServedProvider, prefix_guard: PrefixGuard
) -> None:
    texts = iter(("first", "second"))
    async with Session.create(
        system_prompt=LONG,
        volatile=lambda: [LayerText("rag-context", next(texts), ephemeral=True)],
        store="memory:",
        transport=simulated_provider,
    ) as session:
        await session.send("one")
        await session.send("two")
    (prefix_break,) = prefix_guard.breaks
    assert prefix_break.comparison.difference is not None
    assert prefix_break.comparison.difference.section == "messages"


def test_a_wrapped_client_keeps_its_prefix_and_reads_the_cache(
    prefix_guard: PrefixGuard, cache_report: CacheReport
) -> None:
    messages: list[Any] = []
    with anthropic.Anthropic() as plain:
        client = wrap(plain)
        for question in ("one", "two", "three"):
            messages.append({"role": "user", "content": question})
            reply = client.messages.create(model=SONNET, max_tokens=99, system=LONG, messages=messages)
            messages.append({"role": "assistant", "content": reply.content})
    assert cache_report.usage.cache_read > 0
    assert prefix_guard.breaks == ()


def test_a_script_consists_of_texts_blocks_and_lines(simulated_provider: ServedProvider) -> None:
    simulated_provider.script(
        [{"type": "tool_use", "name": "look", "input": {"at": "it"}}],
        {"fault": "529"},
        {"content": "cut", "stop_reason": "max_tokens"},
        "a text",
    )
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    stop_reasons, last_text = [], ""
    with anthropic.Anthropic(max_retries=1) as client:
        for _ in range(3):
            reply = client.messages.create(
                model=SONNET,
                max_tokens=9,
                messages=messages,
                tools=[{"name": "look", "input_schema": {"type": "object"}}],
            )
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": "ok"}
                for block in reply.content
                if block.type == "tool_use"
            ]
            messages += [
                {"role": "assistant", "content": reply.content},
                {"role": "user", "content": results or "go on"},
            ]
            stop_reasons.append(reply.stop_reason)
            last_text = reply.content[0].text if reply.content[0].type == "text" else ""
    assert stop_reasons == ["tool_use", "max_tokens", "end_turn"]
    assert last_text == "a text"
    assert [request.status for request in simulated_provider.requests] == [200, 529, 200, 200]


def test_a_script_beside_replies_is_refused(simulated_provider: ServedProvider) -> None:
    with pytest.raises(UserError, match="a Script must be the only argument"):
        simulated_provider.script("a text", parse_script('{"content": "b"}'))
    with pytest.raises(UserError, match="line 1 of 'script'"):
        simulated_provider.script({"contents": "b"})


def test_time_can_be_advanced(simulated_provider: ServedProvider) -> None:
    before = simulated_provider.now()
    assert simulated_provider.advance(3_600) >= before + 3_600


def test_base_urls_are_those_that_the_clients_take(simulated_provider: ServedProvider) -> None:
    url = simulated_provider.url
    assert url.startswith("http://127.0.0.1:")
    assert simulated_provider.base_url("anthropic") == simulated_provider.base_url("gemini") == url
    assert simulated_provider.base_url("openai") == simulated_provider.base_url("openai-chat") == f"{url}/v1"
    assert simulated_provider.base_url("openrouter") == f"{url}/api/v1"
    with pytest.raises(UserError, match="'claude-code' is a local command and has no base URL"):
        simulated_provider.base_url("claude-code")
    with pytest.raises(UserError, match="unknown provider 'nobody'"):
        simulated_provider.base_url("nobody")


@pytest.fixture
def foreign_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "theirs")
    monkeypatch.setenv("GOOGLE_API_KEY", "theirs")
    monkeypatch.setenv("NO_PROXY", "example.org")


@pytest.mark.usefixtures("foreign_credentials", "simulated_provider")
def test_no_variable_of_the_environment_leads_elsewhere() -> None:
    assert "ANTHROPIC_AUTH_TOKEN" not in os.environ
    assert "GOOGLE_API_KEY" not in os.environ
    assert os.environ["ANTHROPIC_API_KEY"] == os.environ["GEMINI_API_KEY"] == "simulated"
    assert os.environ["NO_PROXY"] == "example.org,127.0.0.1"
    assert os.environ["no_proxy"] == "127.0.0.1"


def test_without_calls_there_is_nothing_to_report(prefix_guard: PrefixGuard, cache_report: CacheReport) -> None:
    assert (cache_report.calls, cache_report.read_share, cache_report.cost_usd) == (0, 0.0, Decimal(0))
    assert prefix_guard.breaks == ()
