"""In which order a call is checked, who is asked before it runs, and what is said of it when it does not."""

import asyncio
import functools
import logging
import threading
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from tests.support.toolboxes import call

from holdfast import ConfirmationRequest, ToolContext, ToolError, tool
from holdfast.clock import ManualClock
from holdfast.engine.tools.definition import ToolEnvironment
from holdfast.engine.tools.dispatch import Toolbox, ToolsCancelledError
from holdfast.engine.tools.output import OUTPUT_CHARACTERS_MAX, spill_output
from holdfast.engine.tools.permissions import PermissionRules, summarize_call
from holdfast.errors import UserError
from holdfast.events.payloads.session import MemoryEviction
from holdfast.events.payloads.tools import (
    SideEffects,
    ToolCalled,
    ToolCompleted,
    ToolConfirmationRequested,
    ToolConfirmationResolved,
    ToolFailed,
)
from holdfast.events.payloads.union import AnyPayload
from holdfast.sources.confined_paths import resolve_roots
from holdfast.types.blocks import ToolUse
from holdfast.types.json_encoding import sha256_hex


def save(path: str, times: int = 1) -> str:
    """Save."""
    return f"saved {times}"


def never(request: ConfirmationRequest) -> bool:
    raise AssertionError("nobody should be asked")


def yes(request: ConfirmationRequest) -> bool:
    return True


def no(request: ConfirmationRequest) -> bool:
    return False


def saving_box(tmp_path: Path, rules: PermissionRules, *, side_effects: SideEffects = "write") -> Toolbox:
    one = tool(save, side_effects=side_effects, paths=["path"])
    return Toolbox(
        [one], rules=rules, environment=ToolEnvironment("s", resolve_roots(tmp_path)), clock=ManualClock(50.0)
    )


async def test_an_unknown_tool_is_looked_up_before_anything_else(tmp_path: Path) -> None:
    told = await call(
        saving_box(tmp_path, PermissionRules(allowed=lambda use: "no", confirm=never)), "drop", path="../x"
    )
    assert (told.error_class, told.kinds) == ("not_found", ["ToolFailed"])


async def test_the_schema_is_checked_before_path_and_person(tmp_path: Path) -> None:
    told = await call(saving_box(tmp_path, PermissionRules(confirm=never)), "save", path="../x", times="many")
    assert (told.error_class, told.kinds) == ("validation_error", ["ToolInputInvalid", "ToolFailed"])


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "out/passwd"])
async def test_a_path_that_leads_out_is_refused_before_anybody_is_asked(tmp_path: Path, path: str) -> None:
    (tmp_path / "out").symlink_to("/etc")
    told = await call(saving_box(tmp_path, PermissionRules(confirm=never)), "save", path=path)
    assert (told.error_class, told.kinds) == ("permission_denied", ["ToolFailed"])
    assert told.text.startswith(f"The path is refused: {path!r} ")


async def test_a_path_that_no_file_can_have_is_invalid(tmp_path: Path) -> None:
    told = await call(saving_box(tmp_path, PermissionRules(confirm=never)), "save", path="a\0b")
    assert (told.error_class, told.kinds) == ("validation_error", ["ToolFailed"])


async def test_a_rule_against_a_call_is_told_with_its_reason_and_nobody_is_asked(tmp_path: Path) -> None:
    seen: list[ToolUse] = []

    def allowed(use: ToolUse) -> str | None:
        seen.append(use)
        return "this skill may only read"

    told = await call(saving_box(tmp_path, PermissionRules(allowed=allowed, confirm=never)), "save", path="x")
    assert (told.error_class, told.kinds) == ("permission_denied", ["ToolFailed"])
    assert told.text == "This call is not allowed: this skill may only read"
    assert [(use.name, use.arguments_json) for use in seen] == [("save", '{"path":"x"}')]


async def test_a_rule_that_fails_refuses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def allowed(use: ToolUse) -> str | None:
        raise KeyError("pattern")

    told = await call(saving_box(tmp_path, PermissionRules(allowed=allowed)), "save", path="x")
    assert told.error_class == "permission_denied"
    assert "the call of 'save' is refused" in caplog.text


async def test_a_rule_without_objection_lets_a_call_through(tmp_path: Path) -> None:
    told = await call(saving_box(tmp_path, PermissionRules(allowed=lambda use: None)), "save", path="x")
    assert told.text == "saved 1"


async def yes_later(request: ConfirmationRequest) -> bool:
    await asyncio.sleep(0)
    return True


@pytest.mark.parametrize("confirm", [yes, yes_later])
async def test_an_allowed_call_is_asked_for_called_and_completed_in_this_order(
    tmp_path: Path, confirm: functools.partial[bool]
) -> None:
    told = await call(saving_box(tmp_path, PermissionRules(confirm=confirm, confirm_seconds_max=9)), "save", path="x")
    assert told.text == "saved 1"
    asked, resolved, called, completed = told.recorded
    assert asked == ToolConfirmationRequested("t", "save", "write", 'save {"path":"x"}', 59.0)
    assert resolved == ToolConfirmationResolved("t", "allow", "once")
    assert isinstance(called, ToolCalled)
    assert called.side_effects == "write"
    assert isinstance(completed, ToolCompleted)


async def test_a_denied_call_is_never_called(tmp_path: Path) -> None:
    told = await call(saving_box(tmp_path, PermissionRules(confirm=no)), "save", path="x")
    assert (told.error_class, told.text) == ("user_denied", "The user did not allow this call.")
    assert told.kinds == ["ToolConfirmationRequested", "ToolConfirmationResolved", "ToolFailed"]
    assert told.recorded[1] == ToolConfirmationResolved("t", "deny")


@pytest.mark.parametrize("said", [1, "yes", "allow", None, ["session"]])
async def test_only_a_plain_yes_is_one(tmp_path: Path, said: object) -> None:
    told = await call(saving_box(tmp_path, PermissionRules(confirm=lambda request: said)), "save", path="x")  # type: ignore[arg-type, return-value]
    assert told.error_class == "user_denied"


async def test_nobody_answering_is_a_refusal_of_its_own(tmp_path: Path) -> None:
    asked = threading.Event()

    def wait(request: ConfirmationRequest) -> bool:
        return asked.wait(5)

    told = await call(saving_box(tmp_path, PermissionRules(confirm=wait, confirm_seconds_max=0.01)), "save", path="x")
    asked.set()
    assert (told.error_class, told.text) == ("confirmation_timeout", "Nobody allowed this call within 0.01 s.")
    assert told.kinds == ["ToolConfirmationRequested", "ToolConfirmationResolved", "ToolFailed"]
    assert told.recorded[1] == ToolConfirmationResolved("t", "timeout")


async def test_a_question_that_fails_is_a_no(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(request: ConfirmationRequest) -> bool:
        raise TimeoutError("the terminal is gone")

    async def stray(request: ConfirmationRequest) -> bool:
        raise asyncio.CancelledError

    for confirm in (broken, stray):
        told = await call(saving_box(tmp_path, PermissionRules(confirm=confirm)), "save", path="x")
        assert told.error_class == "user_denied"
    assert "(TimeoutError)" in caplog.text
    assert "the terminal is gone" not in caplog.text


@pytest.mark.parametrize(
    ("side_effects", "asked"), [("none", 0), ("read", 0), ("write", 1), ("execute", 1), ("network", 1)]
)
async def test_what_changes_something_or_leaves_the_machine_is_asked_about(
    side_effects: SideEffects, asked: int
) -> None:
    box = Toolbox(
        [
            tool(
                lambda: "ok",
                name="work",
                description="Work.",
                input_schema={"type": "object"},
                side_effects=side_effects,
            )
        ],
        rules=PermissionRules(confirm=yes),
    )
    assert (await call(box, "work")).kinds.count("ToolConfirmationRequested") == asked


async def test_which_side_effects_are_asked_about_can_be_chosen() -> None:
    box = Toolbox(
        [tool(lambda: "ok", name="look", description="Look.", input_schema={"type": "object"}, side_effects="read")],
        rules=PermissionRules(confirm=no, confirm_for=frozenset({"read"})),
    )
    assert (await call(box, "look")).error_class == "user_denied"


async def test_without_anybody_to_ask_a_callers_tools_run(tmp_path: Path) -> None:
    assert (await call(saving_box(tmp_path, PermissionRules()), "save", path="x")).kinds == [
        "ToolCalled",
        "ToolCompleted",
    ]


async def test_a_yes_for_the_session_is_asked_for_once(tmp_path: Path) -> None:
    asked: list[str] = []

    def confirm(request: ConfirmationRequest) -> Literal["session"]:
        asked.append(request.tool_name)
        return "session"

    other = tool(save, name="other", side_effects="write", paths=["path"])
    box = Toolbox(
        [tool(save, side_effects="write"), other],
        rules=PermissionRules(confirm=confirm),
        environment=ToolEnvironment("s", resolve_roots(tmp_path)),
    )
    first = await call(box, "save", path="x")
    assert first.recorded[1] == ToolConfirmationResolved("t", "allow", "session")
    assert (await call(box, "save", path="y")).kinds == ["ToolCalled", "ToolCompleted"]
    await call(box, "other", path="z")
    assert asked == ["save", "other"]


async def test_questions_are_asked_one_at_a_time(tmp_path: Path) -> None:
    open_questions: list[int] = []
    most = 0

    async def confirm(request: ConfirmationRequest) -> bool:
        nonlocal most
        open_questions.append(1)
        most = max(most, len(open_questions))
        await asyncio.sleep(0.001)
        open_questions.pop()
        return True

    async def record(payload: AnyPayload) -> None: ...

    box = saving_box(tmp_path, PermissionRules(confirm=confirm))
    results = await box.run_calls([ToolUse(str(number), "save", '{"path":"x"}') for number in range(4)], record)
    assert (most, [result.is_error for result in results]) == (1, [False] * 4)


async def test_a_turn_cancelled_while_somebody_is_asked_answers_the_call(tmp_path: Path) -> None:
    asking = asyncio.Event()
    recorded: list[AnyPayload] = []

    async def confirm(request: ConfirmationRequest) -> bool:
        asking.set()
        await asyncio.Event().wait()
        return True

    async def record(payload: AnyPayload) -> None:
        recorded.append(payload)

    box = saving_box(tmp_path, PermissionRules(confirm=confirm))
    turn = asyncio.ensure_future(box.run_calls([ToolUse("t", "save", '{"path":"x"}')], record))
    await asking.wait()
    turn.cancel()
    with pytest.raises(ToolsCancelledError):
        await turn
    assert recorded[1:] == [ToolFailed("t", "cancelled", "The call was cancelled.", 0)]


def test_a_question_shows_a_call_in_one_line_in_which_nothing_hides() -> None:
    shown = summarize_call(ToolUse("t", "run", '{"command":"ls \u202e\x1b[2K\u2028 rm"}'))
    assert shown == 'run {"command":"ls \ufffd\ufffd[2K\ufffd rm"}'
    assert summarize_call(ToolUse("t", "run", "x" * 600)).endswith("x... (104 more characters)")
    assert summarize_call(ToolUse("t", "run", "\ud800")) == "run ?"


async def test_a_tool_may_say_of_which_kind_its_failure_is() -> None:
    def work() -> None:
        """Work."""
        raise ToolError("not for you", kind="permission_denied")

    told = await call(Toolbox([work]), "work")
    assert (told.error_class, told.text) == ("permission_denied", "not for you")


async def test_an_error_of_a_tools_own_kind_of_error_is_an_execution_error() -> None:
    class StockError(ToolError):
        def __init__(self, item: str) -> None:
            Exception.__init__(self, f"no {item} left")

    def work() -> None:
        """Work."""
        raise StockError("lamp")

    told = await call(Toolbox([work]), "work")
    assert (told.error_class, told.text) == ("execution_error", "no lamp left")


async def test_a_tool_that_asks_for_its_context_gets_it_and_the_model_does_not_see_it(tmp_path: Path) -> None:
    seen: list[ToolContext] = []

    def work(text: Annotated[str, "Some text."], context: ToolContext) -> str:
        """Work."""
        seen.append(context)
        context.record_event(MemoryEviction("MEMORY.md", "manual", 1, 2, 1))
        context.files_modified.append("a.txt")
        context.command_executed = "true"
        context.success = False
        return text

    one = tool(work)
    assert list(msgspec.json.decode(one.spec.input_schema_json)["properties"]) == ["text"]
    box = Toolbox([one], environment=ToolEnvironment("session-1", resolve_roots(tmp_path)))
    told = await call(box, "work", text="hi")
    (context,) = seen
    assert (context.session_id, context.turn_id, context.tool_use_id) == ("session-1", "turn", "t")
    assert context.workspace == tmp_path.resolve()
    assert not context.stopped.is_set()
    assert told.kinds == ["ToolCalled", "MemoryEviction", "ToolCompleted"]
    completed = told.recorded[-1]
    assert isinstance(completed, ToolCompleted)
    assert (completed.files_modified, completed.command_executed, completed.success) == (("a.txt",), "true", False)


async def test_a_model_cannot_fill_the_parameter_for_the_context() -> None:
    def work(context: ToolContext) -> str:
        """Work."""
        return context.tool_use_id

    assert (await call(Toolbox([work]), "work", context="mine")).error_class == "validation_error"
    open_schema = tool(work, input_schema={"type": "object"})
    assert (await call(Toolbox([open_schema]), "work", context="mine")).text == "t"


async def test_a_call_that_ran_out_of_time_tells_its_function_so() -> None:
    told_to_stop = threading.Event()

    def work(context: ToolContext) -> None:
        """Work."""
        if context.stopped.wait(5):
            told_to_stop.set()

    told = await call(Toolbox([tool(work, timeout_seconds=0.01)]), "work")
    assert told.error_class == "timeout"
    assert await asyncio.to_thread(told_to_stop.wait, 5)


async def test_what_a_failed_call_noted_is_recorded_before_its_failure() -> None:
    def work(context: ToolContext) -> None:
        """Work."""
        context.record_event(MemoryEviction("MEMORY.md", "manual", 1, 2, 1))
        raise ToolError("after all not")

    assert (await call(Toolbox([work]), "work")).kinds == ["ToolCalled", "MemoryEviction", "ToolFailed"]


@pytest.mark.parametrize(
    ("side_effects", "seconds"), [("none", 60), ("read", 60), ("write", 60), ("execute", 600), ("network", 600)]
)
def test_what_executes_or_uses_the_network_has_more_time(side_effects: SideEffects, seconds: float) -> None:
    assert tool(save, side_effects=side_effects).timeout_seconds == seconds
    assert tool(save, side_effects=side_effects, timeout_seconds=7).timeout_seconds == 7


def test_a_tool_with_paths_needs_a_workspace_and_a_parameter() -> None:
    with pytest.raises(UserError, match="tool 'save' takes paths, but the session has no workspace"):
        Toolbox([tool(save, paths=["path"])])
    with pytest.raises(UserError, match="tool 'save' has no parameter 'file' that could be a path"):
        tool(save, paths=["file"])


async def test_a_long_output_is_kept_whole_in_a_file_and_shown_by_head_and_tail(tmp_path: Path) -> None:
    whole = "a" * 150_000 + "é" * 50_000

    def flood() -> str:
        """Flood."""
        return whole

    box = Toolbox([flood], environment=ToolEnvironment("s", output_folder=tmp_path / "outputs"))
    told = await call(box, "flood")
    (kept,) = (tmp_path / "outputs").iterdir()
    assert f"left out; all 250000 bytes are in {kept}, sha:{sha256_hex(whole.encode())[:8]} ...]\n" in told.text
    assert (told.text[0], told.text[-1], len(told.text) <= OUTPUT_CHARACTERS_MAX) == ("a", "é", True)
    assert kept.read_text() == whole
    assert kept.stat().st_mode & 0o777 == 0o600
    await call(box, "flood")
    assert len(list((tmp_path / "outputs").iterdir())) == 2


async def test_a_short_output_makes_no_file(tmp_path: Path) -> None:
    box = Toolbox([tool(save)], environment=ToolEnvironment("s", output_folder=tmp_path / "outputs"))
    assert (await call(box, "save", path="x")).text == "saved 1"
    assert not (tmp_path / "outputs").exists()


def test_an_output_that_no_disk_takes_is_shown_without_a_path(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        assert spill_output(tmp_path / "file" / "outputs", "t", "text") is None
    assert "could not be written" in caplog.text


def test_the_name_of_a_kept_output_is_no_path_whatever_the_call_is_called(tmp_path: Path) -> None:
    where = spill_output(tmp_path, "../../\0\ud800/x", "text")
    (kept,) = tmp_path.iterdir()
    assert where == f"all 4 bytes are in {kept}, sha:{sha256_hex(b'text')[:8]}"
