"""What it costs to resume a conversation and to send its first message, by length, beside an SDK and a framework.

Each has its conversation on disk, and sends the message to one local server that answers at once. Ours is an event log,
with a snapshot that is written when a session is closed, and now and then before. One whose process was killed, and is
killed again after its first message, has only the latter.
Milliseconds are wall-clock time, medians of a few rounds in one process that has sent a message before.
"""

import os
from collections.abc import Iterator

from benchmarks._gateway_ends import TEXT, upstream
from benchmarks._peers import measure_peers, run_in_our_environment

LENGTHS = tuple(map(int, os.environ.get("HOLDFAST_BENCH_MESSAGES", "10,100,1000,5000").split(",")))
MILLISECONDS_MAX = 100

_COMMON = """
import asyncio, json, statistics, sys, tempfile, time
from pathlib import Path
given = json.loads(sys.stdin.read())
url, system = given["url"], given["system"]
model, question = "claude-sonnet-5-5", "What does line {0} do? " * 5
folder = tempfile.TemporaryDirectory()

async def measure(write, resume):
    # `resume` yields once the conversation is ready, and again when its first message is answered.
    rows = []
    for length in given["lengths"]:
        path = Path(folder.name, str(length))
        name = await write(path, length)
        rounds = []
        for _ in range(6):
            times = [time.perf_counter()]
            async for _ in resume(path, name):
                times.append(time.perf_counter())
            rounds.append([(after - before) * 1000 for before, after in zip(times, times[1:])])
        rows.append([length, *map(statistics.median, zip(*rounds[1:]))])
    return rows
"""
_OURS = """
import contextlib
import holdfast
options = dict(model=f"anthropic:{model}", base_url=url, api_key="any", compaction="off")
killed = []

@contextlib.asynccontextmanager
async def opened(session):
    await session.__aenter__()
    yield session
    if given["killed"]:
        killed.append(session)
    else:
        await session.aclose()

async def write(path, length):
    async with opened(holdfast.Session.create(system_prompt=system, store=path, **options)) as session:
        for number in range(length // 2):
            await session.send(question.format(number))
        return session.id

async def resume(path, name):
    async with opened(holdfast.Session.resume(name, store=path, **options)) as session:
        yield
        await session.send(question.format("last"))
        yield
print(json.dumps(asyncio.run(measure(write, resume))))
"""
_SDK = """
from anthropic import AsyncAnthropic

async def write(path, length):
    roles = ("user", "assistant")
    path.write_text(json.dumps([{"role": roles[n % 2], "content": question.format(n)} for n in range(length)]))

async def resume(path, name):
    client, messages = AsyncAnthropic(base_url=url, api_key="any"), json.loads(path.read_text())
    yield
    messages.append({"role": "user", "content": question.format("last")})
    async with client.messages.stream(model=model, max_tokens=100, system=system, messages=messages) as stream:
        await stream.get_final_message()
    yield
print(json.dumps(asyncio.run(measure(write, resume))))
"""
_PYDANTIC_AI = """
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

async def write(path, length):
    pair = [ModelRequest([UserPromptPart(question.format(1))]), ModelResponse([TextPart(question.format(2))])]
    path.write_bytes(ModelMessagesTypeAdapter.dump_json(pair * (length // 2)))

async def resume(path, name):
    agent = Agent(AnthropicModel(model, provider=AnthropicProvider(api_key="any", base_url=url)), system_prompt=system)
    history = ModelMessagesTypeAdapter.validate_json(path.read_bytes())
    yield
    async with agent.run_stream(question.format("last"), message_history=history) as result:
        await result.get_output()
    yield
print(json.dumps(asyncio.run(measure(write, resume))))
"""
PEERS = (("anthropic", "2.10.0", _SDK), ("pydantic-ai-slim[anthropic]", "2.66.0", _PYDANTIC_AI))


def run() -> Iterator[tuple[str, str]]:
    with upstream(events=1, pause_seconds=0) as port:
        given = {"url": f"http://127.0.0.1:{port}", "lengths": LENGTHS, "system": TEXT, "killed": False}
        yield from _rows("holdfast", run_in_our_environment(_COMMON + _OURS, given))
        killed = given | {"lengths": LENGTHS[-1:], "killed": True}
        yield from _rows("holdfast, process killed", run_in_our_environment(_COMMON + _OURS, killed))
        yield from measure_peers(PEERS, _COMMON, given, _rows)


def _rows(name: str, measured: object) -> Iterator[tuple[str, str]]:
    assert isinstance(measured, list)
    for length, resume, send in measured:
        bar = f" (at most {MILLISECONDS_MAX} together)" if name == "holdfast" and length == LENGTHS[-1] else ""
        yield f"{name}, {length:,} messages", f"resume {resume:.1f} ms, first message {send:.1f} ms{bar}"
