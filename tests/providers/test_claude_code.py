"""A provider that is a command: its input, its output, and every way in which it can fail."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path

import pytest

from holdfast.catalog.lookup import shipped_models
from holdfast.errors import ProviderError, UserError
from holdfast.ledger.accounting import iter_entries
from holdfast.ledger.calls import iter_calls
from holdfast.providers.claude_code import claude_code
from holdfast.providers.claude_code.subprocess import CommandTransport, split_command
from holdfast.providers.connection_pool import Timeouts
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.stores.memory import MemoryStore
from holdfast.types.blocks import Text
from holdfast.types.prompt import HistoryEntry, Parameters, Plan, Prompt, Segment, Stability
from holdfast.types.usage import Usage

MODEL = "claude-code:claude-sonnet-5-5"

# Prints its input, in the format of such a command.
ANSWERS = """
import json, sys
asked = sys.stdin.read()
open(sys.argv[2], "a").write(asked + "\\0")
print(json.dumps({"type": "system", "subtype": "init", "session_id": "s1", "model": sys.argv[1], "tools": ["Bash"]}))
print(json.dumps({"type": "assistant", "message": {"content": [{"type": "text", "text": "Hm. "}]}}), flush=True)
print(json.dumps({"type": "result", "is_error": False, "result": "It has %d words." % len(asked.split()),
    "session_id": "s1", "total_cost_usd": 0.01, "usage": {"input_tokens": 3, "cache_creation_input_tokens": 40,
    "cache_read_input_tokens": 500, "output_tokens": 7}}))
"""


def command(folder: Path, program: str) -> str:
    file = folder / "command.py"
    file.write_text(program)
    return f"{sys.executable} {file} {{model}} {folder / 'asked.txt'}"


def make_transport(folder: Path, program: str, **timeouts: float) -> CommandTransport:
    return CommandTransport(claude_code, split_command(command(folder, program)), timeouts=Timeouts(**timeouts))


ASK = Prompt(
    (Segment("history", Stability.GROWING, "messages", entries=(HistoryEntry("user", (Text("How many?"),)),)),)
)
BODY = claude_code.encode_request(ASK, Plan(), Parameters("claude-sonnet-5-5", 100))


async def output_lines(sending: AsyncIterator[bytes]) -> bytes:
    return b"".join([chunk async for chunk in sending])


async def run_failure(some: CommandTransport) -> ProviderError:
    with pytest.raises(ProviderError) as error:
        await output_lines(some.send(claude_code.endpoint(Parameters("m", 1)), BODY))
    return error.value


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    monkeypatch.setenv("HOLDFAST_CLAUDE_CODE_COMMAND", command(tmp_path, ANSWERS))
    return {"model": MODEL, "store": MemoryStore(), "allow_uncached": True}


async def test_a_session_uses_the_configured_command_and_its_reported_usage(options: Options, tmp_path: Path) -> None:
    async with Session.create(**options) as session:
        answer = await session.send("How many words?")
    assert answer.text == "It has 3 words."
    assert answer.usage == Usage(input=3, cache_read=500, cache_write_5m=40, output=7)
    store = options["store"]
    assert isinstance(store, MemoryStore)
    (record,) = iter_calls(store.read(session.id))
    assert record.cost_usd > Decimal(0)
    assert (tmp_path / "asked.txt").read_text() == "How many words?\0"


async def test_the_whole_conversation_is_sent_again_without_breakpoints(options: Options, tmp_path: Path) -> None:
    session_options: Options = {**options, "system_prompt": "Count."}
    async with Session.create(**session_options) as session:
        await session.send("one")
        await session.send("two")
    first, second = (tmp_path / "asked.txt").read_text().split("\0")[:2]
    assert second.startswith(first.removesuffix("Answer the last message of the user."))
    assert second.endswith("<user>\ntwo\n</user>\n\nAnswer the last message of the user.")
    assert "<system>\nCount.\n</system>" in first
    assert "cache_control" not in second


async def test_cache_reads_of_a_command_are_priced_without_a_verdict(options: Options) -> None:
    async with Session.create(**options) as session:
        await session.send("one")
        await session.send("two")
    store = options["store"]
    assert isinstance(store, MemoryStore)
    entries = list(iter_entries(store.read(session.id), shipped_models()))
    assert [entry.verdict for entry in entries] == [None, None]
    assert all(entry.uncached_usd > entry.record.cost_usd for entry in entries)


async def test_a_model_that_others_cache_needs_consent(options: Options) -> None:
    session_options: Options = {**options, "allow_uncached": False}
    with pytest.raises(
        UserError, match=r"claude-code:claude-sonnet-5-5 is not known to cache prompts.*allow_uncached=True"
    ):
        async with Session.create(**session_options):
            pass


async def test_tools_are_refused_because_the_command_cannot_call_them(options: Options) -> None:
    def look() -> str:
        """Look."""
        return ""

    session_options: Options = {**options, "tools": [look]}
    async with Session.create(**session_options) as session:
        with pytest.raises(UserError, match="runs its own tools"):
            await session.send("hello")


async def test_a_failing_command_is_an_error_with_its_last_output(tmp_path: Path) -> None:
    failed = await run_failure(make_transport(tmp_path, "import sys; sys.exit('no credits, sk-ant-secret12345')"))
    assert str(failed) == "the command ended with status 1: no credits, [redacted]"


async def test_a_command_without_output_is_an_error(tmp_path: Path) -> None:
    assert str(await run_failure(make_transport(tmp_path, ""))) == "the command printed nothing"


async def test_a_silent_command_is_stopped(tmp_path: Path) -> None:
    slow = "import time, os, sys; open(sys.argv[2], 'w').write(str(os.getpid())); time.sleep(60)"
    failed = await run_failure(make_transport(tmp_path, slow, first_byte_seconds=1.0))
    assert (failed.kind, str(failed)) == ("network", "the command printed nothing for too long")
    assert await is_gone(int((tmp_path / "asked.txt").read_text()))


async def is_gone(process: int) -> bool:
    for _ in range(500):
        try:
            os.kill(process, 0)
            if Path(f"/proc/{process}/stat").read_text().split()[2] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        await asyncio.sleep(0.01)
    return False


async def test_stopping_early_stops_the_command_and_its_children(tmp_path: Path) -> None:
    family = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "open(sys.argv[2], 'w').write(str(child.pid))\n"
        "print('{}', flush=True)\n"
        "time.sleep(60)\n"
    )
    chunks = make_transport(tmp_path, family).send(claude_code.endpoint(Parameters("m", 1)), BODY)
    assert (await anext(chunks)).strip() == b"{}"
    await chunks.aclose()
    child = int((tmp_path / "asked.txt").read_text())
    assert await is_gone(child)


async def test_a_missing_program_is_reported_with_the_setting() -> None:
    with pytest.raises(UserError, match=r"command 'no-such-program' cannot be run: No such file.*claude_code_command"):
        await output_lines(
            CommandTransport(claude_code, ["no-such-program"]).send(claude_code.endpoint(Parameters("m", 1)), BODY)
        )


@pytest.mark.parametrize(("text", "reason"), [("", "empty"), ("  ", "empty"), ("a 'b", "check its quotes")])
def test_an_invalid_command_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        split_command(text)


async def test_nothing_can_be_sent_after_closing(tmp_path: Path) -> None:
    closed = make_transport(tmp_path, ANSWERS)
    await closed.aclose()
    with pytest.raises(UserError, match="closed"):
        await output_lines(closed.send(claude_code.endpoint(Parameters("m", 1)), BODY))


def test_a_failure_that_the_command_reports_is_an_error() -> None:
    with pytest.raises(ProviderError, match="the command reported a failure: out of credits"):
        claude_code.decode_reply(b'{"type":"result","is_error":true,"result":"out of\\ncredits"}')
    with pytest.raises(ProviderError, match="ended without a result"):
        claude_code.decode_reply(b'{"type":"system"}')
    with pytest.raises(ProviderError, match="what the command printed cannot be read"):
        claude_code.decode_reply(b"Welcome!")


def test_lines_of_other_kinds_are_ignored_and_a_failed_run_is_a_failure() -> None:
    lines = [
        b'{"type":"stream_event","model":null,"message":{"content":5},"result":{}}',
        b'{"type":"assistant","message":{"content":"Plain."}}',
        b'{"type":"result","result":"Done.","model":null}',
    ]
    reply = claude_code.decode_reply(b"\n".join(lines))
    assert (reply.content, reply.stop_reason) == ((Text("Done."),), "end_turn")
    with pytest.raises(ProviderError, match="reported a failure: error_max_turns"):
        claude_code.decode_reply(b'{"type":"result","subtype":"error_max_turns","is_error":false}')
