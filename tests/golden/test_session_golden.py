"""Whole sessions with every provider: each byte sent and received matches the golden files."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.goldens import check_golden

from holdfast.catalog.lookup import Models
from holdfast.clock import CountingIds, ManualClock
from holdfast.providers.adapter import Endpoint
from holdfast.providers.wire_request import OnRetry, Transport
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.types.blocks import Base64Source, Image, Text

HERE = Path(__file__).parent / "sessions"

MODELS = {
    "anthropic": "anthropic:claude-sonnet-5-5",
    "openai": "openai:gpt-6.1-sol",
    "openai_before_breakpoints": "openai:gpt-5.4",
    "openai_chat": "openai-chat:gpt-6.1-sol",
    "openrouter": "openrouter:anthropic/claude-sonnet-5.5",
    "gemini": "gemini:gemini-3.8-flash",
}


class Recorder:
    """The simulator, recording every request and reply."""

    def __init__(self, script: str) -> None:
        self._provider = SimulatedProvider(clock=ManualClock(), script=script)
        self.calls: list[dict[str, object]] = []

    def create_transport(self, models: Models, *, provider: str) -> Transport:
        return _RecordedTransport(self._provider.create_transport(models, provider=provider), self.calls)


class _RecordedTransport:
    def __init__(self, wire: Transport, calls: list[dict[str, object]]) -> None:
        self._wire = wire
        self._calls = calls

    async def send(
        self, endpoint: Endpoint, body: bytes, *, on_retry: OnRetry | None = None
    ) -> AsyncGenerator[bytes, None]:
        response: list[str] = []
        request_record = {"method": endpoint.method, "path": endpoint.path, "headers": dict(endpoint.headers)}
        self._calls.append({**request_record, "body": body.decode(), "answer": response})
        async for chunk in self._wire.send(endpoint, body, on_retry=on_retry):
            response.append(chunk.decode())
            yield chunk

    async def aclose(self) -> None:
        await self._wire.aclose()


def read_file(path: str) -> str:
    """Reads a file of the workspace."""
    if path == "nowhere.py":
        raise ValueError("there is no such file")
    return f"The text of {path}."


Play = Callable[[Options], Awaitable[None]]

CALL = '{"type": "tool_use", "name": "read_file", "input": {"path": "%s"}}'
TEXT = '{"type": "text", "text": "%s"}'


def reply(*blocks: str) -> str:
    return '{"content": [' + ", ".join(blocks) + "]}\n"


async def first_call(options: Options) -> None:
    async with Session.create(**options) as session:
        await session.send("What does hello.py do?")


async def volatile_text(options: Options) -> None:
    states: Iterator[str] = iter(("Branch: main.", "Branch: main.", "Branch: fix."))
    defaults: Options = {**options, "system_prompt_volatile": lambda: next(states)}
    async with Session.create(**defaults) as session:
        for ask in ("One?", "Two?", "Three?"):
            await session.send(ask)


async def image(options: Options) -> None:
    async with Session.create(**options) as session:
        await session.send([Image(Base64Source("image/png", "iVBORw0KGgo=")), Text("What is this?")])
        await session.send("And now?")


async def resumed(options: Options) -> None:
    async with Session.create(**options) as session:
        await session.send("One?")
    again: Options = {key: value for key, value in options.items() if key not in ("model", "system_prompt")}  # type: ignore[assignment]  # the same options, less two
    async with Session.resume(session.id, **again) as session:
        await session.send("Two?")


CASES: dict[str, tuple[Play, str]] = {
    "first_call": (first_call, reply(TEXT % "It prints a greeting.")),
    "tool_loop": (
        first_call,
        reply(TEXT % "I look.", CALL % "hello.py") + reply(CALL % "nowhere.py") + reply(TEXT % "It greets."),
    ),
    "parallel_tools": (
        first_call,
        reply(TEXT % "All three.", CALL % "a.py", CALL % "b.py", CALL % "é.py") + reply(TEXT % "Done."),
    ),
    "volatile_text": (volatile_text, "".join(reply(TEXT % word) for word in ("One.", "Two.", "Three."))),
    "thinking": (
        first_call,
        reply('{"type": "thinking", "thinking": "A file, then."}', TEXT % "I look.", CALL % "hello.py")
        + reply('{"type": "thinking", "thinking": "Easy."}', TEXT % "It greets."),
    ),
    "image": (image, reply(TEXT % "A dot.") + reply(TEXT % "Still a dot.")),
    "resumed_session": (resumed, reply(TEXT % "One.") + reply(TEXT % "Two.")),
}


@pytest.fixture
def turned_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    route = MODELS["openrouter"]
    (tmp_path / "config.toml").write_text(f'[models."{route}"]\nsupports_prompt_caching = true\n')
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))


@pytest.mark.usefixtures("turned_on")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("provider", MODELS)
async def test_session_bytes_match_the_golden_files(provider: str, case: str) -> None:
    play, script = CASES[case]
    recorder = Recorder(script)
    await play(
        {
            "model": MODELS[provider],
            "system_prompt": "You mend programs. Keep it short.",
            "tools": [read_file],
            "padding": "never",
            "store": MemoryStore(),
            "transport": recorder,
            "clock": ManualClock(),
            "new_id": CountingIds(),
        }
    )
    assert len(recorder.calls) == {"first_call": 1, "tool_loop": 3, "volatile_text": 3}.get(case, 2)
    agreed = msgspec.json.format(msgspec.json.encode(recorder.calls), indent=2) + b"\n"
    check_golden(HERE / provider / f"{case}.json", agreed)


def test_every_golden_file_belongs_to_a_session() -> None:
    files = {(path.parent.name, path.stem) for path in HERE.glob("*/*.json")}
    assert files == {(provider, case) for provider in MODELS for case in CASES}
