"""Declared cache capabilities match what the adapter sends: breakpoints, keys, or an append-only prefix."""

from pathlib import Path

import msgspec
import pytest

from holdfast.catalog.lookup import find_model, shipped_models
from holdfast.catalog.schema import Model
from holdfast.errors import UserError
from holdfast.planning.breakpoints import place_breakpoints
from holdfast.providers.adapter import Capabilities, ExplicitCacheAdapter, model_capabilities
from holdfast.providers.registry import PROVIDERS, get_adapter
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.types.blocks import Text, make_user_message
from holdfast.types.prompt import HistoryEntry, Parameters, Segment, Stability
from holdfast.types.request_buffer import RequestBuffer
from holdfast.types.tool_spec import ToolSpec

ROWS = [
    *shipped_models().values(),
    *(find_model(f"openai-chat:{row.name}") for row in shipped_models().values() if row.provider == "openai"),
    find_model("claude-code:claude-sonnet-5-5"),
]
TOOLS = Segment("tools", Stability.FROZEN, "tools", tools=(ToolSpec("read", "Reads.", '{"type":"object"}'),))
SYSTEM = Segment("preset", Stability.EPOCH, "system", system=(Text("Be brief."),))
BREAKPOINT_FIELDS = (b'"cache_control"', b'"prompt_cache_breakpoint"')


def history(*texts: str) -> Segment:
    entries = tuple(
        HistoryEntry("assistant" if number % 2 else "user", (Text(text),)) for number, text in enumerate(texts)
    )
    return Segment("history", Stability.GROWING, "messages", entries=entries)


def fill_buffer(model: Model, *texts: str) -> RequestBuffer:
    adapter = get_adapter(model.provider)
    buffer = RequestBuffer(adapter, len)
    for segment in (TOOLS, SYSTEM, history(*texts)):
        buffer.extend(adapter.encode_segment(segment))
    return buffer


def body_of(model: Model, buffer: RequestBuffer) -> bytes:
    plan = place_breakpoints(buffer, model.cache)
    return buffer.render(get_adapter(model.provider).request_head(Parameters(model.name, 100)), plan.breakpoints)


@pytest.mark.parametrize("model", ROWS, ids=lambda model: model.id)
def test_declared_capabilities_match_the_adapter(model: Model) -> None:
    turned_on = msgspec.structs.replace(model, supports_prompt_caching=True)
    first, second = fill_buffer(model, "One?"), fill_buffer(model, "One?", "One.", "Two?")
    match model_capabilities(turned_on).caching:
        case "breakpoints" if model.provider != "claude-code":
            assert any(field in body_of(model, first) for field in BREAKPOINT_FIELDS)
            assert second.cacheable_bytes().startswith(first.cacheable_bytes())
        case "prefix":
            assert not any(field in body_of(model, first) for field in BREAKPOINT_FIELDS)
            assert second.cacheable_bytes().startswith(first.cacheable_bytes())
        case _:
            assert not any(block.accepts_breakpoint for block in first.blocks) or model.cache.kind == "none"
    assert model_capabilities(turned_on).explicit_caches == (model.cache.explicit_tokens_min > 0)


def test_a_row_that_is_turned_off_declares_nothing() -> None:
    for model in ROWS:
        off = msgspec.structs.replace(model, supports_prompt_caching=False)
        assert model_capabilities(off) == Capabilities("none", explicit_caches=False)
        assert not model_capabilities(off).supports_prompt_caching


def test_the_rows_without_caching_are_listed() -> None:
    none = {model.id for model in ROWS if not model_capabilities(model).supports_prompt_caching}
    assert none == {
        "claude-code:claude-sonnet-5-5",
        "openai:gpt-4o-2024-05-13",
        "openai-chat:gpt-4o-2024-05-13",
        *(id for id in shipped_models() if id.startswith("openrouter:")),
    }


def test_only_a_provider_with_explicit_caches_has_rows_that_declare_them() -> None:
    with_explicit_caches = {
        name for name, provider in PROVIDERS.items() if isinstance(provider.adapter, ExplicitCacheAdapter)
    }
    assert (
        with_explicit_caches
        == {model.provider for model in ROWS if model_capabilities(model).explicit_caches}
        == {"gemini"}
    )


@pytest.mark.parametrize("model", ["openrouter:anthropic/claude-sonnet-5.5", "openai:gpt-4o-2024-05-13"])
async def test_an_uncached_model_needs_consent_and_shows_its_price(model: str) -> None:
    with pytest.raises(UserError) as refused:
        async with Session.create(model=model, store=MemoryStore(), transport=SimulatedProvider()):
            pass
    assert "cache prompts: every call may be charged for its whole prompt, $0." in str(refused.value)
    assert str(refused.value).startswith(model)
    assert "pass allow_uncached=True to use it anyway" in str(refused.value)
    turnable = f'[models."{model}"] supports_prompt_caching = true' in str(refused.value)
    assert turnable == model.startswith("openrouter:")


@pytest.mark.parametrize(
    ("model", "has_breakpoints"),
    [("openrouter:anthropic/claude-sonnet-5.5", True), ("openai:gpt-4o-2024-05-13", False)],
)
async def test_an_uncached_model_gets_breakpoints_only_where_a_route_may_use_them(
    model: str, has_breakpoints: bool
) -> None:
    """Anthropic's models behind OpenRouter read breakpoints, although nothing is promised for them."""
    provider = SimulatedProvider()
    async with Session.create(model=model, store=MemoryStore(), transport=provider, allow_uncached=True) as session:
        await session.send("hello")
        assert session.history[0] == make_user_message("hello")
    (request,) = provider.requests
    assert any(field in request.body for field in BREAKPOINT_FIELDS) == has_breakpoints


async def test_a_row_that_is_off_gets_no_key_either(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[models."openai:gpt-6-luna"]\nsupports_prompt_caching = false\n')
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    provider = SimulatedProvider()
    session_options: Options = {
        "model": "openai:gpt-6-luna",
        "store": MemoryStore(),
        "transport": provider,
        "allow_uncached": True,
    }
    async with Session.create(**session_options) as session:
        await session.send("hello")
    assert b"prompt_cache" not in provider.requests[0].body


@pytest.mark.parametrize(
    ("start", "target"),
    [
        ("anthropic:claude-sonnet-5-5", "openrouter:anthropic/claude-sonnet-5.5"),
        ("openai:gpt-6-luna", "openai-chat:gpt-4o-2024-05-13"),
    ],
)
async def test_a_switch_to_an_uncached_model_needs_consent_too(start: str, target: str) -> None:
    async with Session.create(model=start, store=MemoryStore(), transport=SimulatedProvider()) as session:
        await session.send("hello")
        assert not session.quote_switch(target).supports_prompt_caching
        with pytest.raises(UserError, match="not known to cache, so every later call may cost as much again"):
            await session.switch_model(target)
        assert session.model == start
        await session.switch_model(target, allow_uncached=True)
        assert (await session.send("and now?")).text == "Echo: and now?"
