"""How tools are run: what they may return, raise and leave hanging, and that it never takes more than the call."""

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
from holdfast.events.payloads.tools import ToolCalled, ToolCompleted, ToolFailed
from holdfast.events.payloads.union import AnyPayload
from holdfast.types.blocks import Base64Source, Image, Json, Text, ToolResult, ToolUse, UrlSource

Recorded = list[AnyPayload]

NOTHING: dict[str, Json] = {"type": "object"}


async def answer(function: ToolFunction, *, timeout_seconds: float = 5.0) -> tuple[ToolResult, Recorded]:
    """Call a tool without arguments once; what the model is told, and what was recorded."""
    work = tool(function, name="work", description="Work.", input_schema=NOTHING, timeout_seconds=timeout_seconds)
    recorded: Recorded = []
    (result,) = await Toolbox([work]).run_calls([ToolUse("t", "work", "{}")], keeper(recorded))
    return result, recorded


def keeper(recorded: Recorded) -> Callable[[AnyPayload], Awaitable[None]]:
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
    """An event that nobody sets until the test is over."""
    event = threading.Event()
    yield event
    event.set()


async def test_calls_that_never_return_leave_the_shared_threads_free(blocked: threading.Event) -> None:
    box = Toolbox([tool(blocked.wait, name="hang", description="Hang.", input_schema=NOTHING, timeout_seconds=0.01)])
    calls = [ToolUse(f"t{number}", "hang", "{}") for number in range(40)]
    results = await box.run_calls(calls, keeper([]))
    assert {text_of(result) for result in results} == {"The tool did not answer within 0.01 s."}
    async with asyncio.timeout(2):
        assert await asyncio.to_thread(lambda: "free") == "free"


async def test_a_session_closes_while_its_tools_hang(
    agent: MakeAgent, blocked: threading.Event, tmp_path: Path
) -> None:
    hang = tool(blocked.wait, name="hang", description="Hang.", input_schema=NOTHING, timeout_seconds=0.01)
    calls = [ToolUse(f"t{number}", "hang", "{}") for number in range(40)]
    one = agent(says(*calls), says("ok"), tools=[hang], store=tmp_path / "holdfast.db")
    async with asyncio.timeout(5):
        async with one.session as session:
            assert (await session.send("go")).text == "ok"


def test_a_tool_that_hangs_does_not_keep_the_interpreter_from_leaving() -> None:
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
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=10, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "The tool did not answer within 0.01 s.\n", "")


def test_an_answer_that_comes_when_the_loop_is_closed_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    release, ended, complaints = threading.Event(), threading.Event(), list[str]()
    monkeypatch.setattr(threading, "excepthook", lambda hooked: complaints.append(str(hooked.exc_value)))

    async def never() -> None: ...

    def late() -> Coroutine[None, None, None]:
        threads.append(threading.current_thread())
        release.wait(5)
        ended.set()
        return never()

    threads: list[threading.Thread] = []
    result, _ = asyncio.run(answer(lambda: late(), timeout_seconds=0.05))
    assert result.is_error
    release.set()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        threads[0].join(5)
    assert ended.is_set()
    assert complaints == []


async def test_an_answer_that_comes_too_late_is_dropped() -> None:
    release = threading.Event()
    threads: list[threading.Thread] = []
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    def late() -> str:
        threads.append(threading.current_thread())
        release.wait(5)
        return "late"

    _, recorded = await answer(late, timeout_seconds=0.05)
    release.set()
    await asyncio.to_thread(threads[0].join, 5)
    await asyncio.sleep(0)
    assert complaints == []
    assert [type(payload) for payload in recorded] == [ToolCalled, ToolFailed]


async def test_a_tool_in_a_thread_sees_the_callers_context() -> None:
    asked_by = contextvars.ContextVar("asked_by", default="nobody")
    asked_by.set("the harbour master")
    result, _ = await answer(lambda: asked_by.get())
    assert text_of(result) == "the harbour master"


async def test_a_synchronous_tool_runs_in_a_daemon_thread_of_its_own() -> None:
    threads: set[threading.Thread] = set()

    def work() -> str:
        threads.add(threading.current_thread())
        return "ok"

    await answer(work)
    await answer(work)
    assert [(thread.name, thread.daemon) for thread in threads] == [("holdfast-tool", True)] * 2


async def awaits_a_cancelled_task() -> None:
    task = asyncio.ensure_future(asyncio.sleep(5))
    task.cancel("the pool is closed")
    await task


async def leaves() -> NoReturn:
    sys.exit("no licence")


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def work() -> NoReturn:
        raise error

    return work


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (awaits_a_cancelled_task, "CancelledError: the pool is closed"),
        (leaves, "SystemExit: no licence"),
        (raising(SystemExit(3)), "SystemExit: 3"),
        (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
        (raising(asyncio.CancelledError()), "CancelledError"),
        (raising(StopIteration("end")), "StopIteration: end"),
        (raising(TimeoutError("connect to db: 5 s")), "TimeoutError: connect to db: 5 s"),
        (raising(BaseExceptionGroup("many", [SystemExit(1)])), "BaseExceptionGroup: many (1 sub-exception)"),
        (raising(ToolError(" ")), "The tool failed."),
        (raising(Mute()), "Mute"),
        (raising(ValueError("lone \ud800")), "ValueError: lone �"),
    ],
)
async def test_whatever_a_tool_raises_is_told_to_the_model_and_to_nobody_else(
    function: ToolFunction, message: str
) -> None:
    result, recorded = await answer(function)
    assert result.is_error
    assert text_of(result) == message
    failed = failure_of(recorded)
    assert (failed.error_class, failed.error_message) == ("execution_error", message)


async def test_a_tools_own_time_limit_is_not_ours() -> None:
    async def connect() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(5)

    _, recorded = await answer(connect)
    assert failure_of(recorded).error_class == "execution_error"


async def test_a_tool_that_fails_because_we_stopped_it_ran_out_of_time() -> None:
    async def connect() -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            raise OSError("half open") from None

    _, recorded = await answer(connect, timeout_seconds=0.01)
    assert failure_of(recorded).error_class == "timeout"


async def test_a_tool_that_cancels_itself_does_not_cancel_the_turn() -> None:
    async def stop() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(5)

    result, recorded = await answer(stop)
    assert text_of(result) == "The call was cancelled."
    assert failure_of(recorded).error_class == "cancelled"


@pytest.mark.parametrize("length", [OUTPUT_CHARACTERS_MAX - 1, OUTPUT_CHARACTERS_MAX])
def test_a_text_that_fits_is_kept_whole(length: int) -> None:
    assert to_content_blocks("x" * length) == (Text("x" * length),)


def test_a_text_one_too_long_is_cut_to_the_limit() -> None:
    (block,) = to_content_blocks("x" * (OUTPUT_CHARACTERS_MAX + 1))
    assert isinstance(block, Text)
    assert len(block.text) <= OUTPUT_CHARACTERS_MAX
    assert "\n[... 39 characters left out ...]\n" in block.text


@pytest.mark.parametrize("limit", [60, 61, 99])
def test_a_shortened_text_is_its_head_the_gap_and_its_tail(limit: int) -> None:
    text = "".join(chr(1000 + number) for number in range(100))
    cut = truncate_middle(text, limit)
    head, gap, tail = cut.split("\n")
    left_out = int(gap.split()[1])
    assert gap == f"[... {left_out} characters left out ...]"
    assert (text.startswith(head), text.endswith(tail)) == (True, True)
    assert len(head) + left_out + len(tail) == 100
    assert limit - 1 <= len(cut) <= limit
    assert len(head) == (len(head) + len(tail)) * 3 // 4


def test_short_texts_stay_whole_beside_long_ones() -> None:
    content = to_content_blocks([Text("a" * 90_000), Text("summary"), Text("b" * 90_000)])
    texts = [block.text for block in content if isinstance(block, Text)]
    assert texts[1] == "summary"
    assert all("characters left out" in text for text in (texts[0], texts[2]))
    assert OUTPUT_CHARACTERS_MAX - 5 <= sum(map(len, texts)) <= OUTPUT_CHARACTERS_MAX


def test_texts_that_fill_the_room_to_the_last_character_stay_whole() -> None:
    blocks = (Text("a" * 60_000), Text("b" * 40_000))
    assert to_content_blocks(blocks) == blocks


def test_as_many_blocks_as_fit_are_kept() -> None:
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


def test_an_image_that_is_too_large_is_named_in_its_place() -> None:
    frame = len('{"kind":"base64","media_type":"image/png","data":""}')
    fits = Image(Base64Source("image/png", "A" * (IMAGE_BYTES_MAX - frame)))
    larger = Image(Base64Source("image/png", "A" * (IMAGE_BYTES_MAX - frame + 1)))
    note = "[an image of 5242881 bytes left out: an image may have at most 5242880 bytes]"
    assert to_content_blocks([fits, larger]) == (fits, Text(note))


def test_an_empty_text_among_others_says_that_it_is_empty() -> None:
    assert to_content_blocks([Text(" \n"), Text("x")]) == (Text("(no output)"), Text("x"))


async def test_an_image_that_no_log_can_spell_is_a_failure_of_the_tool() -> None:
    result, _ = await answer(lambda: Image(UrlSource("https://example.org/\ud800")))
    assert result.is_error
    assert text_of(result).startswith("UnicodeEncodeError: ")


@pytest.mark.parametrize("error", [ToolError("x" * 500_000), ValueError("x" * 500_000)])
async def test_what_a_failure_says_is_as_bounded_as_an_output(error: Exception) -> None:
    result, recorded = await answer(raising(error))
    assert len(text_of(result)) == OUTPUT_CHARACTERS_MAX
    assert failure_of(recorded).error_message == text_of(result)


async def test_the_name_of_an_unknown_tool_is_bounded_too() -> None:
    recorded: Recorded = []
    (result,) = await Toolbox([]).run_calls([ToolUse("t", "x" * 500_000, "{}")], keeper(recorded))
    assert len(text_of(result)) == OUTPUT_CHARACTERS_MAX
    assert (failure_of(recorded).error_class, failure_of(recorded).latency_ms) == ("not_found", 0)


async def test_no_calls_have_no_answers() -> None:
    assert await Toolbox([]).run_calls([], keeper([])) == ()


async def test_when_the_log_fails_the_other_tools_are_stopped_before_the_error_goes_on() -> None:
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


async def test_however_often_it_is_cancelled_every_call_is_answered_once_the_tools_have_stopped() -> None:
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
    turn = asyncio.ensure_future(box.run_calls(calls, keeper(recorded)))
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


async def test_a_failure_stands_although_its_record_was_cancelled() -> None:
    recording = asyncio.Event()

    async def record(payload: AnyPayload) -> None:
        if isinstance(payload, ToolFailed):
            recording.set()
            await asyncio.sleep(5)

    box = Toolbox([tool(raising(ValueError("no")), name="work", description="Work.", input_schema=NOTHING)])
    turn = asyncio.ensure_future(box.run_calls([ToolUse("t", "work", "{}")], record))
    await recording.wait()
    turn.cancel()
    with pytest.raises(ToolsCancelledError) as caught:
        await turn
    assert text_of(caught.value.results[0]) == "ValueError: no"


async def given_back(text: str = "given") -> str:
    """Give back."""
    return text


async def wrapped() -> Awaitable[Awaitable[str]]:
    async def inner() -> Awaitable[str]:
        return given_back()

    return inner()


class Lookout:
    """Look out."""

    async def __call__(self) -> str:
        return "given" if threading.current_thread() is threading.main_thread() else "elsewhere"


@pytest.mark.parametrize(
    "function",
    [wrapped, lambda: given_back(), functools.partial(given_back, "given"), Lookout(), functools.partial(Lookout())],
    ids=["wrapped", "lambda", "partial", "object", "partial of an object"],
)
async def test_an_asynchronous_tool_may_come_in_any_form(function: ToolFunction) -> None:
    result, _ = await answer(function)
    assert text_of(result) == "given"


def lookup(connection: object, name: Annotated[str, "whose"], limit: int = 3) -> str:
    """Look a name up."""
    return f"{connection} {name} {limit}"


async def test_a_partial_is_a_tool_without_what_is_bound_already() -> None:
    box = Toolbox([functools.partial(functools.partial(lookup, "db"), limit=7)])
    (spec,) = box.specs
    assert (spec.name, spec.description) == ("lookup", "Look a name up.")
    assert spec.input_schema_json == (
        '{"additionalProperties":false,"properties":{"name":{"description":"whose","type":"string"}},'
        '"required":["name"],"type":"object"}'
    )
    (result,) = await box.run_calls([ToolUse("t", "lookup", '{"name": "Ann"}')], keeper([]))
    assert text_of(result) == "db Ann 7"


class Depth:
    def __call__(self, metres: int) -> int:
        """Sound the depth."""
        return metres + 1


async def test_a_callable_object_is_a_tool_under_the_name_of_its_class() -> None:
    box = Toolbox([Depth(), Lookout()])
    assert [(spec.name, spec.description) for spec in box.specs] == [
        ("Depth", "Sound the depth."),
        ("Lookout", "Look out."),
    ]
    (result,) = await box.run_calls([ToolUse("t", "Depth", '{"metres": 4}')], keeper([]))
    assert text_of(result) == "5"


def test_a_partial_whose_parameters_cannot_be_read_is_refused() -> None:
    with pytest.raises(UserError, match="a partial has no name that the tool could have"):
        tool(functools.partial(max))


@pytest.mark.parametrize(
    ("given", "message"),
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
def test_a_tool_that_could_not_be_called_is_refused_when_it_is_made(given: dict[str, Any], message: str) -> None:
    def add(a: int) -> int:
        """Add one."""
        return a + 1

    with pytest.raises(UserError) as caught:
        tool(add, **given)
    assert message in str(caught.value)


def test_a_function_without_name_and_docstring_is_a_tool_under_those_that_are_given() -> None:
    def twice(number: int) -> int:
        return 2 * number

    made = tool(twice, name="double", description="Twice a number.")
    assert (made.spec.name, made.spec.description) == ("double", "Twice a number.")

    def unnamed() -> int:
        return 1

    unnamed.__name__ = "<lambda>"
    assert tool(unnamed, name="one", description="One.").spec.name == "one"
