"""What a turn costs on the client's side, by the length of the conversation, beside the anthropic SDK and frameworks.

Each sends the same messages to one local server that answers at once. Ours also stores every event on disk, with
`synchronous=FULL`. Milliseconds of a turn are wall-clock time and processor time, medians of the turns of one run.
"""

import os
from collections.abc import Iterator

from benchmarks._gateway_ends import upstream
from benchmarks._peers import measure_peers, run_in_our_environment

LENGTHS = tuple(map(int, os.environ.get("HOLDFAST_BENCH_MESSAGES", "10,100,1000,5000").split(",")))
TURNS = 40
MILLISECONDS_MAX = 3.5
"""Of a turn at the shortest length."""

_COMMON = """
import asyncio, json, statistics, sys, time
given = json.loads(sys.stdin.read())
url, lengths, turns, system = given["url"], given["lengths"], given["turns"], given["system"]
model = "claude-sonnet-5-5"

async def measure(turn):
    rows, sent = [], 0
    for length in lengths:
        while sent < length:
            await turn(f"What does line {sent} do? " * 5)
            sent += 2
        wall, cpu = [], time.process_time()
        for _ in range(turns):
            start = time.perf_counter()
            await turn(f"What does line {sent} do? " * 5)
            wall.append((time.perf_counter() - start) * 1000)
            sent += 2
        rows.append([length, statistics.median(wall), (time.process_time() - cpu) * 1000 / turns])
    return rows
"""
_OURS = """
import tempfile
from pathlib import Path
import holdfast

async def main():
    with tempfile.TemporaryDirectory() as folder:
        options = dict(model=f"anthropic:{model}", base_url=url, api_key="any", store=Path(folder) / "s.db")
        async with holdfast.Session.create(system_prompt=system, compaction="off", **options) as session:
            return await measure(session.send)
print(json.dumps(asyncio.run(main())))
"""
_SDK = """
from anthropic import AsyncAnthropic

async def main():
    client, messages = AsyncAnthropic(base_url=url, api_key="any"), []
    async def turn(text):
        messages.append({"role": "user", "content": text})
        async with client.messages.stream(model=model, max_tokens=100, system=system, messages=messages) as stream:
            reply = await stream.get_final_message()
        messages.append({"role": "assistant", "content": [block.model_dump() for block in reply.content]})
    return await measure(turn)
print(json.dumps(asyncio.run(main())))
"""
_LANGCHAIN = """
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage

async def main():
    chat = ChatAnthropic(model=model, base_url=url, api_key="any", max_tokens=100, streaming=True)
    messages = [SystemMessage(system)]
    async def turn(text):
        messages.append(HumanMessage(text))
        messages.append(await chat.ainvoke(messages))
    return await measure(turn)
print(json.dumps(asyncio.run(main())))
"""
_PYDANTIC_AI = """
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

async def main():
    agent = Agent(AnthropicModel(model, provider=AnthropicProvider(api_key="any", base_url=url)), system_prompt=system)
    history = []
    async def turn(text):
        nonlocal history
        async with agent.run_stream(text, message_history=history) as result:
            await result.get_output()
        history = result.all_messages()
    return await measure(turn)
print(json.dumps(asyncio.run(main())))
"""
_LITELLM = """
import litellm

async def main():
    messages = [{"role": "system", "content": system}]
    async def turn(text):
        messages.append({"role": "user", "content": text})
        stream = await litellm.acompletion(
            model=f"anthropic/{model}", api_base=url, api_key="any", messages=messages, max_tokens=100, stream=True
        )
        chunks = [chunk async for chunk in stream]
        reply = litellm.stream_chunk_builder(chunks, messages=messages)
        messages.append({"role": "assistant", "content": reply.choices[0].message.content})
    return await measure(turn)
print(json.dumps(asyncio.run(main())))
"""
PEERS = (
    ("anthropic", "2.10.0", _SDK),
    ("langchain-anthropic", "1.7.7", _LANGCHAIN),
    ("pydantic-ai-slim[anthropic]", "2.66.0", _PYDANTIC_AI),
    ("litellm", "1.106.2", _LITELLM),
)


def run() -> Iterator[tuple[str, str]]:
    with upstream(events=1, pause_seconds=0) as port:
        given = {
            "url": f"http://127.0.0.1:{port}",
            "lengths": LENGTHS,
            "turns": TURNS,
            "system": "You read before you write. " * 400,
        }
        yield from _rows("holdfast", run_in_our_environment(_COMMON + _OURS, given))
        yield from measure_peers(PEERS, _COMMON, given, _rows)


def _rows(name: str, measured: object) -> Iterator[tuple[str, str]]:
    assert isinstance(measured, list)
    for length, wall, cpu in measured:
        yield f"{name}, {length:,} messages", f"{wall:.1f} ms, {cpu:.1f} ms of processor time"
