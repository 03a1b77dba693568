"""Execution of tools: what they may return, raise and leave running, without affecting anything beyond the call."""

import asyncio
import contextvars
import functools
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, NoReturn

import pytest
from tests.support.agents import MakeAgent, says

from holdfast import ToolError, tool
from holdfast.engine.tools.definition import ToolFunction
from holdfast.engine.tools.dispatch import Toolbox, ToolsCancelledError
from holdfast.engine.tools.output import (
    BLOCKS_MAX,
    IMAGE_BYTES_MAX,
    IMAGES_MAX,
    OUTPUT_CHARACTERS_MAX,
    to_content_blocks,
    truncate_middle,
)
from holdfast.errors import StoreError, UserError
from holdfast.events.payloads.calls import ToolCalled, ToolCompleted, ToolFailed
from holdfast.events.payloads.union import AnyPayload
from holdfast.types.blocks import Base64Source, Image, Json, Text, ToolResult, ToolUse, UrlSource

Recorded = list[AnyPayload]

EMPTY_SCHEMA: dict[str, Json] = {"type": "object"}


async def run_tool(function: ToolFunction, *, timeout_seconds: float = 5.0) -> tuple[ToolResult, Recorded]:
    """Call a tool without arguments once; return its result and what was recorded."""
    work = tool(function, name="work", description="Work.", input_schema=EMPTY_SCHEMA, timeout_seconds=timeout_seconds)
    recorded: Recorded = []
    (result,) = await Toolbox([work]).run_calls([ToolUse("t", "work", "{}")], recorder_into(recorded))
    return result, recorded


def recorder_into(recorded: Recorded) -> Callable[[AnyPayload], Awaitable[None]]:
    async def record(payload: AnyPayload) -> None:
        recorded.append(payload)

    return record


def text_of(result: ToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, Text)
    return block.text


def failure_of(recorded: Recorded) -> ToolFailed:
    failed = recorded[-1]
    assert isinstance(failed, ToolFailed)
    return failed


@pytest.fixture
async def blocked() -> AsyncIterator[threading.Event]:
    """An event that stays unset until the test is over."""
    event = threading.Event()
    yield event
    event.set()


async def test_calls_that_never_return_leave_the_shared_threads_free(blocked: threading.Event) -> None:
    box = Toolbox(
        [tool(blocked.wait, name="hang", description="Hang.", input_schema=EMPTY_SCHEMA, timeout_seconds=0.01)]
    )
    calls = [ToolUse(f"t{number}", "hang", "{}") for number in range(40)]
    results = await box.run_calls(calls, recorder_into([]))
    assert {text_of(result) for result in results} == {"The tool did not answer within 0.01 s."}
    async with asyncio.timeout(2):
        assert await asyncio.to_thread(lambda: "free") == "free"


async def test_a_session_closes_while_its_tools_hang(
    agent: MakeAgent, blocked: threading.Event, tmp_path: Path
) -> None:
    hang = tool(blocked.wait, name="hang", description="Hang.", input_schema=EMPTY_SCHEMA, timeout_seconds=0.01)
    calls = [ToolUse(f"t{number}", "hang", "{}") for number in range(40)]
    harness = agent(says(*calls), says("ok"), tools=[hang], store=tmp_path / "holdfast.db")
    async with asyncio.timeout(5):
        async with harness.session as session:
            assert (await session.send("go")).text == "ok"


def test_a_tool_that_hangs_does_not_keep_the_interpreter_from_exiting() -> None:
    script = """
import asyncio, threading
from holdfast import tool
from holdfast.types.blocks import ToolUse
from holdfast.engine.tools.dispatch import Toolbox
async def record(payload): pass
schema = {"type": "object"}
hang = tool(threading.Event().wait, name="hang", description="Hang.", input_schema=schema, timeout_seconds=0.01)
print(asyncio.run(Toolbox([hang]).run_calls([ToolUse("t", "hang", "{}")], record))[0].content[0].text)
"""
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=10, check=False)
    assert (finished.returncode, finished.stdout, finished.stderr) == (
        0,
        "The tool did not answer within 0.01 s.\n",
        "",
    )


def test_a_result_that_arrives_after_the_loop_is_closed_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    release, ended, complaints = threading.Event(), threading.Event(), list[str]()
    monkeypatch.setattr(threading, "excepthook", lambda hooked: complaints.append(str(hooked.exc_value)))

    async def never() -> None: ...

    def late() -> Coroutine[None, None, None]:
        threads.append(threading.current_thread())
        release.wait(5)
        ended.set()
        return never()

    threads: list[threading.Thread] = []
    result, _ = asyncio.run(run_tool(lambda: late(), timeout_seconds=0.05))
    assert result.is_error
    release.set()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        threads[0].join(5)
    assert ended.is_set()
    assert complaints == []


async def test_a_result_that_arrives_too_late_is_dropped() -> None:
    release = threading.Event()
    threads: list[threading.Thread] = []
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    def late() -> str:
        threads.append(threading.current_thread())
        release.wait(5)
        return "late"

    _, recorded = await run_tool(late, timeout_seconds=0.05)
    release.set()
    await asyncio.to_thread(threads[0].join, 5)
    await asyncio.sleep(0)
    assert complaints == []
    assert [type(payload) for payload in recorded] == [ToolCalled, ToolFailed]


async def test_a_tool_in_a_thread_sees_the_callers_context_variables() -> None:
    caller = contextvars.ContextVar("caller", default="nobody")
    caller.set("the harbour master")
    result, _ = await run_tool(lambda: caller.get())
    assert text_of(result) == "the harbour master"


async def test_a_synchronous_tool_runs_in_its_own_daemon_thread() -> None:
    threads: set[threading.Thread] = set()

    def work() -> str:
        threads.add(threading.current_thread())
        return "ok"

    await run_tool(work)
    await run_tool(work)
    assert [(thread.name, thread.daemon) for thread in threads] == [("holdfast-tool", True)] * 2


async def awaits_a_cancelled_task() -> None:
    task = asyncio.ensure_future(asyncio.sleep(5))
    task.cancel("the pool is closed")
    await task


async def exits() -> NoReturn:
    sys.exit("no licence")


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def work() -> NoReturn:
        raise error

    return work


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (awaits_a_cancelled_task, "CancelledError: the pool is closed"),
        (exits, "SystemExit: no licence"),
        (raising(SystemExit(3)), "SystemExit: 3"),
        (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
        (raising(asyncio.CancelledError()), "CancelledError"),
        (raising(StopIteration("end")), "StopIteration: end"),
        (raising(TimeoutError("connect to db: 5 s")), "TimeoutError: connect to db: 5 s"),
        (raising(BaseExceptionGroup("many", [SystemExit(1)])), "BaseExceptionGroup: many (1 sub-exception)"),
        (raising(ToolError(" ")), "The tool failed."),
        (raising(UnprintableError()), "UnprintableError"),
        (raising(ValueError("lone \ud800")), "ValueError: lone �"),
    ],
)
async def test_any_exception_of_a_tool_is_reported_to_the_model_only(function: ToolFunction, message: str) -> None:
    result, recorded = await run_tool(function)
    assert result.is_error
    assert text_of(result) == message
    failed = failure_of(recorded)
    assert (failed.error_class, failed.error_message) == ("execution_error", message)


async def test_a_tools_own_timeout_is_an_execution_error() -> None:
    async def connect() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(5)

    _, recorded = await run_tool(connect)
    assert failure_of(recorded).error_class == "execution_error"


async def test_a_tool_that_fails_because_it_was_stopped_timed_out() -> None:
    async def connect() -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            raise OSError("half open") from None

    _, recorded = await run_tool(connect, timeout_seconds=0.01)
    assert failure_of(recorded).error_class == "timeout"


async def test_a_tool_that_cancels_itself_does_not_cancel_the_turn() -> None:
    async def stop() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(5)

    result, recorded = await run_tool(stop)
    assert text_of(result) == "The call was cancelled."
    assert failure_of(recorded).error_class == "cancelled"


@pytest.mark.parametrize("length", [OUTPUT_CHARACTERS_MAX - 1, OUTPUT_CHARACTERS_MAX])
def test_a_text_within_the_limit_is_unchanged(length: int) -> None:
    assert to_content_blocks("x" * length) == (Text("x" * length),)


def test_a_text_one_character_too_long_is_cut_to_the_limit() -> None:
    (block,) = to_content_blocks("x" * (OUTPUT_CHARACTERS_MAX + 1))
    assert isinstance(block, Text)
    assert len(block.text) <= OUTPUT_CHARACTERS_MAX
    assert "\n[... 39 characters left out ...]\n" in block.text


@pytest.mark.parametrize("limit", [60, 61, 99])
def test_a_truncated_text_is_its_start_a_note_and_its_end(limit: int) -> None:
    text = "".join(chr(1000 + number) for number in range(100))
    cut = truncate_middle(text, limit)
    start, note, end = cut.split("\n")
    left_out = int(note.split()[1])
    assert note == f"[... {left_out} characters left out ...]"
    assert (text.startswith(start), text.endswith(end)) == (True, True)
    assert len(start) + left_out + len(end) == 100
    assert limit - 1 <= len(cut) <= limit
    assert len(start) == (len(start) + len(end)) * 3 // 4


def test_short_texts_stay_whole_beside_long_ones() -> None:
    content = to_content_blocks([Text("a" * 90_000), Text("summary"), Text("b" * 90_000)])
    texts = [block.text for block in content if isinstance(block, Text)]
    assert texts[1] == "summary"
    assert all("characters left out" in text for text in (texts[0], texts[2]))
    assert OUTPUT_CHARACTERS_MAX - 5 <= sum(map(len, texts)) <= OUTPUT_CHARACTERS_MAX


def test_texts_that_exactly_fill_the_limit_stay_whole() -> None:
    blocks = (Text("a" * 60_000), Text("b" * 40_000))
    assert to_content_blocks(blocks) == blocks


def test_as_many_blocks_as_the_limit_are_kept() -> None:
    blocks = tuple(Text(str(number)) for number in range(BLOCKS_MAX))
    assert to_content_blocks(blocks) == blocks


@pytest.mark.parametrize("more", [1, 5000])
def test_blocks_beyond_the_limit_are_counted_in_the_last_one(more: int) -> None:
    blocks = [Text("x" * 2_000)] * (BLOCKS_MAX + more)
    content = to_content_blocks(blocks)
    assert len(content) == BLOCKS_MAX
    note = f"[... {more + 1} blocks left out: a result holds at most 100 blocks, of them 20 images ...]"
    assert content[-1] == Text(note)
    assert sum(len(block.text) for block in content if isinstance(block, Text)) <= OUTPUT_CHARACTERS_MAX


def test_images_beyond_the_limit_are_counted() -> None:
    picture = Image(Base64Source("image/png", "aGk="))
    assert to_content_blocks([picture] * IMAGES_MAX) == (picture,) * IMAGES_MAX
    content = to_content_blocks([*[picture] * (IMAGES_MAX + 3), Text("caption")])
    note = "[... 3 blocks left out: a result holds at most 100 blocks, of them 20 images ...]"
    assert content == (*[picture] * IMAGES_MAX, Text("caption"), Text(note))


def test_an_image_that_is_too_large_is_replaced_by_a_note() -> None:
    frame = len('{"kind":"base64","media_type":"image/png","data":""}')
    fits = Image(Base64Source("image/png", "A" * (IMAGE_BYTES_MAX - frame)))
    larger = Image(Base64Source("image/png", "A" * (IMAGE_BYTES_MAX - frame + 1)))
    note = "[an image of 5242881 bytes left out: an image may have at most 5242880 bytes]"
    assert to_content_blocks([fits, larger]) == (fits, Text(note))


def test_an_empty_text_among_others_becomes_a_note() -> None:
    assert to_content_blocks([Text(" \n"), Text("x")]) == (Text("(no output)"), Text("x"))


async def test_an_image_that_cannot_be_encoded_is_a_failure_of_the_tool() -> None:
    result, _ = await run_tool(lambda: Image(UrlSource("https://example.org/\ud800")))
    assert result.is_error
    assert text_of(result).startswith("UnicodeEncodeError: ")


@pytest.mark.parametrize("error", [ToolError("x" * 500_000), ValueError("x" * 500_000)])
async def test_the_message_of_a_failure_is_bounded_like_an_output(error: Exception) -> None:
    result, recorded = await run_tool(raising(error))
    assert len(text_of(result)) == OUTPUT_CHARACTERS_MAX
    assert failure_of(recorded).error_message == text_of(result)


async def test_the_name_of_an_unknown_tool_is_bounded_too() -> None:
    recorded: Recorded = []
    (result,) = await Toolbox([]).run_calls([ToolUse("t", "x" * 500_000, "{}")], recorder_into(recorded))
    assert len(text_of(result)) == OUTPUT_CHARACTERS_MAX
    assert (failure_of(recorded).error_class, failure_of(recorded).latency_ms) == ("not_found", 0)


async def test_no_calls_give_no_results() -> None:
    assert await Toolbox([]).run_calls([], recorder_into([])) == ()


async def test_when_recording_fails_the_other_tools_are_stopped_before_the_error_is_raised() -> None:
    ends: list[str] = []
    running = asyncio.Event()

    async def hang() -> None:
        """Hang."""
        running.set()
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            ends.append("stopped")
            raise

    async def quick() -> str:
        """Be quick."""
        await running.wait()
        return "ok"

    async def record(payload: AnyPayload) -> None:
        if isinstance(payload, ToolCompleted):
            raise StoreError("the disk is full")
        if isinstance(payload, ToolFailed):
            raise StoreError("the log is closed")

    box = Toolbox([hang, quick])
    with pytest.raises(StoreError, match="the disk is full"):
        await box.run_calls([ToolUse("a", "hang", "{}"), ToolUse("b", "quick", "{}")], record)
    assert ends == ["stopped"]


async def test_however_often_a_turn_is_cancelled_every_call_gets_one_result() -> None:
    running, stopping, ends = asyncio.Event(), asyncio.Event(), list[str]()

    async def stubborn() -> str:
        """Stop late."""
        running.set()
        for _ in range(2):
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                stopping.set()
        ends.append("stopped")
        raise asyncio.CancelledError

    box = Toolbox([stubborn], at_once_max=1)
    recorded: Recorded = []
    calls = [ToolUse("a", "stubborn", "{}"), ToolUse("b", "stubborn", "{}")]
    turn = asyncio.ensure_future(box.run_calls(calls, recorder_into(recorded)))
    await running.wait()
    turn.cancel()
    await stopping.wait()
    turn.cancel()
    with pytest.raises(ToolsCancelledError) as caught:
        await turn
    assert [text_of(result) for result in caught.value.results] == [
        "The call was cancelled.",
        "The call was cancelled before it was run.",
    ]
    assert ends == ["stopped"]
    assert [failed.error_class for failed in recorded if isinstance(failed, ToolFailed)] == ["cancelled"]


async def test_a_failure_keeps_its_result_although_recording_it_was_cancelled() -> None:
    recording = asyncio.Event()

    async def record(payload: AnyPayload) -> None:
        if isinstance(payload, ToolFailed):
            recording.set()
            await asyncio.sleep(5)

    box = Toolbox([tool(raising(ValueError("no")), name="work", description="Work.", input_schema=EMPTY_SCHEMA)])
    turn = asyncio.ensure_future(box.run_calls([ToolUse("t", "work", "{}")], record))
    await recording.wait()
    turn.cancel()
    with pytest.raises(ToolsCancelledError) as caught:
        await turn
    assert text_of(caught.value.results[0]) == "ValueError: no"


async def return_text(text: str = "given") -> str:
    """Give back."""
    return text


async def wrapped() -> Awaitable[Awaitable[str]]:
    async def inner() -> Awaitable[str]:
        return return_text()

    return inner()


class Lookout:
    """Look out."""

    async def __call__(self) -> str:
        return "given" if threading.current_thread() is threading.main_thread() else "elsewhere"


@pytest.mark.parametrize(
    "function",
    [wrapped, lambda: return_text(), functools.partial(return_text, "given"), Lookout(), functools.partial(Lookout())],
    ids=["wrapped", "lambda", "partial", "object", "partial of an object"],
)
async def test_an_asynchronous_tool_may_be_any_kind_of_callable(function: ToolFunction) -> None:
    result, _ = await run_tool(function)
    assert text_of(result) == "given"


def lookup(connection: object, name: Annotated[str, "whose"], limit: int = 3) -> str:
    """Look a name up."""
    return f"{connection} {name} {limit}"


async def test_a_partial_is_a_tool_without_its_bound_parameters() -> None:
    box = Toolbox([functools.partial(functools.partial(lookup, "db"), limit=7)])
    (spec,) = box.specs
    assert (spec.name, spec.description) == ("lookup", "Look a name up.")
    assert spec.input_schema_json == (
        '{"additionalProperties":false,"properties":{"name":{"description":"whose","type":"string"}},'
        '"required":["name"],"type":"object"}'
    )
    (result,) = await box.run_calls([ToolUse("t", "lookup", '{"name": "Ann"}')], recorder_into([]))
    assert text_of(result) == "db Ann 7"


class Depth:
    def __call__(self, metres: int) -> int:
        """Sound the depth."""
        return metres + 1


async def test_a_callable_object_is_a_tool_named_after_its_class() -> None:
    box = Toolbox([Depth(), Lookout()])
    assert [(spec.name, spec.description) for spec in box.specs] == [
        ("Depth", "Sound the depth."),
        ("Lookout", "Look out."),
    ]
    (result,) = await box.run_calls([ToolUse("t", "Depth", '{"metres": 4}')], recorder_into([]))
    assert text_of(result) == "5"


def test_a_partial_without_a_readable_signature_is_refused() -> None:
    with pytest.raises(UserError, match="a partial has no name that the tool could have"):
        tool(functools.partial(max))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"side_effects": "Write"},
            "tool 'add': unknown side effect 'Write'; known: none, read, write, execute, network",
        ),
        ({"timeout_seconds": -1}, "tool 'add': timeout_seconds must be a number above 0, not -1"),
        ({"timeout_seconds": "9"}, "tool 'add': timeout_seconds must be a number above 0, not '9'"),
        ({"timeout_seconds": float("nan")}, "tool 'add': timeout_seconds must be a number above 0, not nan"),
        ({"name": "add up"}, "tool name 'add up' is refused; use 1 to 64 of the characters"),
        ({"name": ""}, "tool name '' is refused"),
        ({"name": 5}, "the name of a tool must be text, not int"),
        ({"description": 5}, "the description of a tool must be text, not int"),
        ({"description": "\ud800"}, "tool 'add': its description holds a lone surrogate"),
        ({"paths": "a"}, "tool 'add': paths must be a list of names of parameters"),
    ],
)
def test_an_invalid_tool_is_refused_when_it_is_defined(options: dict[str, Any], message: str) -> None:
    def add(a: int) -> int:
        """Add one."""
        return a + 1

    with pytest.raises(UserError) as caught:
        tool(add, **options)
    assert message in str(caught.value)


def test_a_function_without_name_and_docstring_needs_both_as_arguments() -> None:
    def twice(number: int) -> int:
        return 2 * number

    double = tool(twice, name="double", description="Twice a number.")
    assert (double.spec.name, double.spec.description) == ("double", "Twice a number.")

    def unnamed() -> int:
        return 1

    unnamed.__name__ = "<lambda>"
    assert tool(unnamed, name="one", description="One.").spec.name == "one"
