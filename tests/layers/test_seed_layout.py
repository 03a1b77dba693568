"""With the seed layout every provider gets volatile text at the end of its system prompt, and nowhere else."""

import json
from typing import Any

import pytest

from holdfast.clock import ManualClock
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore

VOLATILE_TEXT = "Branch: main."


def system_of(body: dict[str, Any]) -> list[str]:
    """The texts of the system prompt, in order."""
    if "systemInstruction" in body:
        return [part["text"] for part in body["systemInstruction"]["parts"]]
    if "system" in body:
        return [part["text"] for part in body["system"]]
    first = (body.get("messages") or body["input"])[0]
    assert first["role"] in ("system", "developer")
    return [part["text"] for part in first["content"]]


@pytest.mark.parametrize(
    "model",
    ["anthropic:claude-sonnet-5-5", "openai:gpt-6-luna", "openai-chat:gpt-6-luna", "gemini:gemini-3.8-flash"],
)
async def test_volatile_text_is_last_in_the_system_prompt(model: str) -> None:
    provider = SimulatedProvider(clock=ManualClock(), script='{"content": "Yes."}\n{"content": "No."}')
    async with Session.create(
        model=model,
        layout="seed",
        padding="never",
        system_prompt="Be brief.",
        system_prompt_volatile=VOLATILE_TEXT,
        store=MemoryStore(),
        transport=provider,
    ) as session:
        await session.send("one")
        await session.send("two")
    for request in provider.requests:
        body = json.loads(request.body)
        first, *_, last = system_of(body)
        assert first == "Be brief."
        assert VOLATILE_TEXT in last
        assert request.body.count(VOLATILE_TEXT.encode()) == 1
