"""An agent of the OpenAI Agents SDK with a wrapped client: `wrapped_openai_agents.py URL`; prints what was recorded."""

import asyncio
import json
import sys

from agents import Agent, Runner, function_tool, set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI

from holdfast import wrap
from holdfast.integrations import recorder_of


@function_tool
def read_notes(day: str) -> str:
    """Read the notes of a day."""
    return f"On {day}: Heron, Dunlin."


async def main(url: str) -> None:
    client = wrap(AsyncOpenAI(base_url=f"{url}/v1", api_key="any"), store="memory:")
    set_tracing_disabled(True)
    set_default_openai_client(client)
    guide = "You keep the notes of a harbour. " * 1_000
    agent = Agent(name="harbour", instructions=guide, model="gpt-6.1-sol", tools=[read_notes])
    history = []
    for question in ("Which boats are listed?", "And yesterday?"):
        result = await Runner.run(agent, [*history, {"role": "user", "content": question}])
        history = result.to_input_list()
    streamed = Runner.run_streamed(agent, [*history, {"role": "user", "content": "Anything else?"}])
    async for _ in streamed.stream_events():
        pass
    calls = recorder_of(client).calls
    print(json.dumps([[call.completed, call.is_prefix_unchanged, call.usage.cache_read] for call in calls]))


asyncio.run(main(sys.argv[1]))
