"""A session with Gemini: append-only requests, and signatures and names sent back where they belong."""

import json

from tests.support.agents import MakeAgent, ReplayTransport

from holdfast.providers.adapter import PATH_HEADER
from holdfast.providers.gemini import gemini
from holdfast.types.blocks import Text, Thinking, ToolUse
from holdfast.types.reply import Reply
from holdfast.types.usage import Usage


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def broken() -> str:
    """Always fails."""
    raise ValueError("no")


CALLS = (Thinking("hm", "c2ln"), ToolUse("c1", "add", '{"a": 1, "b": 2}'), ToolUse("toolu_9", "broken", "{}"))
STEPS = [
    Reply(CALLS, "tool_use", Usage(input=10, output=5), "gemini-3.8-flash", "r1"),
    Reply((Text("It is 3."), Thinking("", "ZW5k")), "end_turn", Usage(input=2, cache_read=20, output=3), id="r2"),
    Reply((Text("Bye."),), "end_turn", Usage(input=30, output=2), id="r3"),
]


async def test_a_tool_loop_sends_back_signatures_and_names(agent: MakeAgent) -> None:
    wire = ReplayTransport(STEPS, gemini)
    made_agent = agent(
        model="gemini:gemini-3.8-flash",
        transport=wire,
        tools=[add, broken],
        system_prompt="Be brief.",
        system_prompt_volatile="It is Monday.",
    )
    async with made_agent.session as session:
        await session.send("What is 1 + 2?")
        await session.send("Thanks.")

    first, second, third = map(json.loads, wire.bodies)
    assert [endpoint.path for endpoint in wire.endpoints] == [
        "/v1/models/gemini-3.8-flash:streamGenerateContent?alt=sse"
    ] * 3
    contents = third["contents"]
    assert second["contents"] == contents[: len(second["contents"])]
    assert first["contents"] == contents[: len(first["contents"])]
    called, results, final = contents[len(first["contents"]) :][:3]
    assert called == {
        "role": "model",
        "parts": [
            {"text": "hm", "thought": True},
            {
                "functionCall": {"id": "c1", "name": "add", "args": {"a": 1, "b": 2}},
                "thoughtSignature": "c2ln",
            },
            {"functionCall": {"id": "toolu_9", "name": "broken", "args": {}}},
        ],
    }
    assert [part["functionResponse"] for part in results["parts"]] == [
        {"id": "c1", "name": "add", "response": {"result": "3"}},
        {"id": "toolu_9", "name": "broken", "response": {"error": "ValueError: no"}},
    ]
    assert final == {"role": "model", "parts": [{"text": "It is 3."}, {"text": "", "thoughtSignature": "ZW5k"}]}
    read = gemini.decode_request(wire.bodies[2], {PATH_HEADER: wire.endpoints[2].path})
    assert gemini.encode_request(read.prompt, read.plan, read.parameters) == wire.bodies[2]
