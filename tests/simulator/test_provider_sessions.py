"""Sessions with every provider's models against the simulator, without a socket: each one hits the cache."""

import os
from pathlib import Path

import pytest
from tests.support.simulated_gemini import LONG

from holdfast.clock import CountingIds, ManualClock
from holdfast.events.payloads.calls import LlmCallCompleted
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.script import parse_script
from holdfast.stores.memory import MemoryStore

ROUTED = "anthropic/claude-sonnet-5.5"
LOOP = "\n".join(
    [
        '{"content": [{"type": "thinking", "thinking": "A file."}, {"type": "text", "text": "I look."},'
        ' {"type": "tool_use", "name": "read", "input": {"path": "a.txt"}}]}',
        '{"content": "It is there."}',
        '{"content": "Yes."}',
    ]
)


def read(path: str) -> str:
    """Reads a file."""
    return f"The text of {path}."


@pytest.mark.parametrize(
    "model",
    [
        "anthropic:claude-sonnet-5-5",
        "openai:gpt-6.1-sol",
        "openai:gpt-5.4",
        "openai-chat:gpt-6.1-sol",
        "openai-chat:gpt-5.4",
        f"openrouter:{ROUTED}",
        "openrouter:openai/gpt-5.4",
        "gemini:gemini-3.8-flash",
        "gemini:gemini-4-argon",
    ],
)
async def test_a_tool_loop_reads_its_own_cache_writes_and_is_accepted(model: str) -> None:
    home = Path(os.environ["HOLDFAST_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(f'[models."openrouter:{ROUTED}"]\nsupports_prompt_caching = true\n')
    store = MemoryStore()
    session = Session.create(
        model=model,
        allow_uncached=True,
        system_prompt=LONG,
        tools=[read],
        store=store,
        transport=SimulatedProvider(clock=ManualClock(), script=parse_script(LOOP)),
        clock=ManualClock(),
        new_id=CountingIds(),
    )
    async with session:
        await session.send("Look.")
        await session.send("Sure?")
        payloads = [event.payload for event in store.read(session.id)]
    usages = [payload.usage for payload in payloads if isinstance(payload, LlmCallCompleted)]
    assert len(usages) == 3
    assert usages[0].cache_read == 0
    assert all(usage.cache_read > 1_024 for usage in usages[1:])
