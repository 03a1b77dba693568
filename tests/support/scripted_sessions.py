"""Sessions with scripted replies against the simulator, and the results of their tools."""

from typing import Unpack

import msgspec
from tests.support.simulated import LONG

from holdfast import MemoryStore, Session, SimulatedProvider
from holdfast.clock import CountingIds, ManualClock
from holdfast.runtime.options import Options
from holdfast.simulator.script import parse_script
from holdfast.types.blocks import Text, ToolResult


def scripted_provider(*replies: list[dict[str, object]] | str) -> SimulatedProvider:
    script = "\n".join(msgspec.json.encode({"content": reply}).decode() for reply in replies)
    return SimulatedProvider(clock=ManualClock(), script=parse_script(script))


def tool_use(tool: str, /, **arguments: object) -> dict[str, object]:
    return {"type": "tool_use", "name": tool, "input": arguments}


def tool_result_texts(session: Session) -> list[str]:
    return [
        part.text
        for message in session.history
        for block in message.content
        if isinstance(block, ToolResult)
        for part in block.content
        if isinstance(part, Text)
    ]


def new_session(provider: SimulatedProvider, **options: Unpack[Options]) -> Session:
    defaults: Options = {
        "model": "anthropic:claude-sonnet-5-5",
        "system_prompt": LONG,
        "store": MemoryStore(),
        "transport": provider,
        "simulated": False,  # Stands for a session that is billed.
        "clock": ManualClock(),
        "new_id": CountingIds(),
    }
    return Session.create(**(defaults | options))
