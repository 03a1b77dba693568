"""Dispatch of a tool call: the order of the checks, the confirmation, and the results of refused calls."""

import asyncio
import functools
import logging
import threading
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from tests.support.toolboxes import call

from holdfast import ConfirmationRequest, ToolContext, ToolError, tool
from holdfast.clock import ManualClock
from holdfast.engine.tools.definition import METADATA_BYTES_MAX, ToolEnvironment
from holdfast.engine.tools.dispatch import Toolbox, ToolsCancelledError
from holdfast.engine.tools.output import OUTPUT_CHARACTERS_MAX, spill_output
from holdfast.engine.tools.permissions import PermissionRules, summarize_call
from holdfast.errors import UserError
from holdfast.events.payloads.calls import (
    SideEffects,
    ToolCalled,
    ToolCompleted,
    ToolConfirmationRequested,
    ToolConfirmationResolved,
    ToolFailed,
)
from holdfast.events.payloads.session import MemoryEviction
from holdfast.events.payloads.union import AnyPayload
from holdfast.sources.confined_paths import resolve_roots
from holdfast.types.blocks import ToolUse
from holdfast.types.json_encoding import sha256_hex


def save(path: str, times: int = 1) -> str:
    """Save."""
    return f"saved {times}"


def fail_if_asked(request: ConfirmationRequest) -> bool:
    raise AssertionError("no confirmation should be requested")


def allow(request: ConfirmationRequest) -> bool:
    return True


def deny(request: ConfirmationRequest) -> bool:
    return False


def make_toolbox(tmp_path: Path, rules: PermissionRules, *, side_effects: SideEffects = "write") -> Toolbox:
    save_tool = tool(save, side_effects=side_effects, paths=["path"])
    return Toolbox(
        [save_tool], rules=rules, environment=ToolEnvironment("s", resolve_roots(tmp_path)), clock=ManualClock(50.0)
    )


async def test_an_unknown_tool_is_reported_before_any_other_check(tmp_path: Path) -> None:
    outcome = await call(
        make_toolbox(tmp_path, PermissionRules(allowed=lambda use: "no", confirm=fail_if_asked)), "drop", path="../x"
    )
    assert (outcome.error_class, outcome.kinds) == ("not_found", ["ToolFailed"])


async def test_the_schema_is_checked_before_path_and_confirmation(tmp_path: Path) -> None:
    outcome = await call(
        make_toolbox(tmp_path, PermissionRules(confirm=fail_if_asked)), "save", path="../x", times="many"
    )
    assert (outcome.error_class, outcome.kinds) == ("validation_error", ["ToolInputInvalid", "ToolFailed"])


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "out/passwd"])
async def test_a_path_outside_the_workspace_is_refused_without_a_confirmation(tmp_path: Path, path: str) -> None:
    (tmp_path / "out").symlink_to("/etc")
    outcome = await call(make_toolbox(tmp_path, PermissionRules(confirm=fail_if_asked)), "save", path=path)
    assert (outcome.error_class, outcome.kinds) == ("permission_denied", ["ToolFailed"])
    assert outcome.text.startswith(f"The path is refused: {path!r} ")


async def test_a_path_that_no_file_can_have_is_invalid(tmp_path: Path) -> None:
    outcome = await call(make_toolbox(tmp_path, PermissionRules(confirm=fail_if_asked)), "save", path="a\0b")
    assert (outcome.error_class, outcome.kinds) == ("validation_error", ["ToolFailed"])


async def test_a_rule_that_forbids_a_call_gives_its_reason_without_a_confirmation(tmp_path: Path) -> None:
    seen: list[ToolUse] = []

    def allowed(use: ToolUse) -> str | None:
        seen.append(use)
        return "this skill may only read"

    outcome = await call(
        make_toolbox(tmp_path, PermissionRules(allowed=allowed, confirm=fail_if_asked)), "save", path="x"
    )
    assert (outcome.error_class, outcome.kinds) == ("permission_denied", ["ToolFailed"])
    assert outcome.text == "This call is not allowed: this skill may only read"
    assert [(use.name, use.arguments_json) for use in seen] == [("save", '{"path":"x"}')]


async def test_a_rule_that_raises_refuses_the_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def allowed(use: ToolUse) -> str | None:
        raise KeyError("pattern")

    outcome = await call(make_toolbox(tmp_path, PermissionRules(allowed=allowed)), "save", path="x")
    assert outcome.error_class == "permission_denied"
    assert "the call of 'save' is refused" in caplog.text


async def test_a_rule_without_objection_permits_the_call(tmp_path: Path) -> None:
    outcome = await call(make_toolbox(tmp_path, PermissionRules(allowed=lambda use: None)), "save", path="x")
    assert outcome.text == "saved 1"


async def allow_later(request: ConfirmationRequest) -> bool:
    await asyncio.sleep(0)
    return True


@pytest.mark.parametrize("confirm", [allow, allow_later])
async def test_a_confirmed_call_is_requested_resolved_called_and_completed_in_this_order(
    tmp_path: Path, confirm: functools.partial[bool]
) -> None:
    outcome = await call(
        make_toolbox(tmp_path, PermissionRules(confirm=confirm, confirm_seconds_max=9)), "save", path="x"
    )
    assert outcome.text == "saved 1"
    requested, resolved, called, completed = outcome.recorded
    assert requested == ToolConfirmationRequested("t", "save", "write", 'save {"path":"x"}', 59.0)
    assert resolved == ToolConfirmationResolved("t", "allow", "once")
    assert isinstance(called, ToolCalled)
    assert called.side_effects == "write"
    assert isinstance(completed, ToolCompleted)


async def test_a_denied_call_is_never_run(tmp_path: Path) -> None:
    outcome = await call(make_toolbox(tmp_path, PermissionRules(confirm=deny)), "save", path="x")
    assert (outcome.error_class, outcome.text) == ("user_denied", "The user did not allow this call.")
    assert outcome.kinds == ["ToolConfirmationRequested", "ToolConfirmationResolved", "ToolFailed"]
    assert outcome.recorded[1] == ToolConfirmationResolved("t", "deny")


@pytest.mark.parametrize("answer", [1, "yes", "allow", None, ["session"]])
async def test_only_true_counts_as_a_yes(tmp_path: Path, answer: object) -> None:
    outcome = await call(make_toolbox(tmp_path, PermissionRules(confirm=lambda request: answer)), "save", path="x")  # type: ignore[arg-type, return-value]
    assert outcome.error_class == "user_denied"


async def test_an_unanswered_confirmation_is_a_timeout(tmp_path: Path) -> None:
    released = threading.Event()

    def wait(request: ConfirmationRequest) -> bool:
        return released.wait(5)

    outcome = await call(
        make_toolbox(tmp_path, PermissionRules(confirm=wait, confirm_seconds_max=0.01)), "save", path="x"
    )
    released.set()
    assert (outcome.error_class, outcome.text) == ("confirmation_timeout", "Nobody allowed this call within 0.01 s.")
    assert outcome.kinds == ["ToolConfirmationRequested", "ToolConfirmationResolved", "ToolFailed"]
    assert outcome.recorded[1] == ToolConfirmationResolved("t", "timeout")


async def test_a_confirmation_that_raises_counts_as_no(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(request: ConfirmationRequest) -> bool:
        raise TimeoutError("the terminal is gone")

    async def stray(request: ConfirmationRequest) -> bool:
        raise asyncio.CancelledError

    for confirm in (broken, stray):
        outcome = await call(make_toolbox(tmp_path, PermissionRules(confirm=confirm)), "save", path="x")
        assert outcome.error_class == "user_denied"
    assert "(TimeoutError)" in caplog.text
    assert "the terminal is gone" not in caplog.text


@pytest.mark.parametrize(
    ("side_effects", "confirmations"), [("none", 0), ("read", 0), ("write", 1), ("execute", 1), ("network", 1)]
)
async def test_calls_that_write_execute_or_use_the_network_need_a_confirmation(
    side_effects: SideEffects, confirmations: int
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
        rules=PermissionRules(confirm=allow),
    )
    assert (await call(box, "work")).kinds.count("ToolConfirmationRequested") == confirmations


async def test_the_side_effects_that_need_a_confirmation_can_be_chosen() -> None:
    box = Toolbox(
        [tool(lambda: "ok", name="look", description="Look.", input_schema={"type": "object"}, side_effects="read")],
        rules=PermissionRules(confirm=deny, confirm_for=frozenset({"read"})),
    )
    assert (await call(box, "look")).error_class == "user_denied"


async def test_without_a_confirm_function_the_callers_tools_run(tmp_path: Path) -> None:
    assert (await call(make_toolbox(tmp_path, PermissionRules()), "save", path="x")).kinds == [
        "ToolCalled",
        "ToolCompleted",
    ]


async def test_a_confirmation_for_the_session_is_requested_once(tmp_path: Path) -> None:
    confirmed_tools: list[str] = []

    def confirm(request: ConfirmationRequest) -> Literal["session"]:
        confirmed_tools.append(request.tool_name)
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
    assert confirmed_tools == ["save", "other"]


async def test_confirmations_are_requested_one_at_a_time(tmp_path: Path) -> None:
    open_questions: list[int] = []
    open_max = 0

    async def confirm(request: ConfirmationRequest) -> bool:
        nonlocal open_max
        open_questions.append(1)
        open_max = max(open_max, len(open_questions))
        await asyncio.sleep(0.001)
        open_questions.pop()
        return True

    async def record(payload: AnyPayload) -> None: ...

    box = make_toolbox(tmp_path, PermissionRules(confirm=confirm))
    results = await box.run_calls([ToolUse(str(number), "save", '{"path":"x"}') for number in range(4)], record)
    assert (open_max, [result.is_error for result in results]) == (1, [False] * 4)


async def test_a_call_cancelled_during_its_confirmation_gets_a_result(tmp_path: Path) -> None:
    asking = asyncio.Event()
    recorded: list[AnyPayload] = []

    async def confirm(request: ConfirmationRequest) -> bool:
        asking.set()
        await asyncio.Event().wait()
        return True

    async def record(payload: AnyPayload) -> None:
        recorded.append(payload)

    box = make_toolbox(tmp_path, PermissionRules(confirm=confirm))
    turn = asyncio.ensure_future(box.run_calls([ToolUse("t", "save", '{"path":"x"}')], record))
    await asking.wait()
    turn.cancel()
    with pytest.raises(ToolsCancelledError):
        await turn
    assert recorded[1:] == [ToolFailed("t", "cancelled", "The call was cancelled.", 0)]


def test_a_confirmation_shows_the_call_in_one_line_without_control_characters() -> None:
    shown = summarize_call(ToolUse("t", "run", '{"command":"ls \u202e\x1b[2K\u2028 rm"}'))
    assert shown == 'run {"command":"ls \ufffd\ufffd[2K\ufffd rm"}'
    assert summarize_call(ToolUse("t", "run", "x" * 600)).endswith("x... (104 more characters)")
    assert summarize_call(ToolUse("t", "run", "\ud800")) == "run ?"


async def test_a_tool_can_choose_its_error_class() -> None:
    def work() -> None:
        """Work."""
        raise ToolError("not for you", kind="permission_denied")

    outcome = await call(Toolbox([work]), "work")
    assert (outcome.error_class, outcome.text) == ("permission_denied", "not for you")


async def test_a_subclass_of_tool_error_is_an_execution_error() -> None:
    class StockError(ToolError):
        def __init__(self, item: str) -> None:
            Exception.__init__(self, f"no {item} left")

    def work() -> None:
        """Work."""
        raise StockError("lamp")

    outcome = await call(Toolbox([work]), "work")
    assert (outcome.error_class, outcome.text) == ("execution_error", "no lamp left")


async def test_a_tool_with_a_context_parameter_gets_it_and_the_model_does_not_see_it(tmp_path: Path) -> None:
    seen: list[ToolContext] = []

    def work(text: Annotated[str, "Some text."], context: ToolContext) -> str:
        """Work."""
        seen.append(context)
        context.record_event(MemoryEviction("MEMORY.md", "manual", 1, 2, 1))
        context.files_modified.append("a.txt")
        context.command_executed = "true"
        context.success = False
        return text

    work_tool = tool(work)
    assert list(msgspec.json.decode(work_tool.spec.input_schema_json)["properties"]) == ["text"]
    box = Toolbox([work_tool], environment=ToolEnvironment("session-1", resolve_roots(tmp_path)))
    outcome = await call(box, "work", text="hi")
    (context,) = seen
    assert (context.session_id, context.turn_id, context.tool_use_id) == ("session-1", "turn", "t")
    assert context.workspace == tmp_path.resolve()
    assert not context.stopped.is_set()
    assert outcome.kinds == ["ToolCalled", "MemoryEviction", "ToolCompleted"]
    completed = outcome.recorded[-1]
    assert isinstance(completed, ToolCompleted)
    assert (completed.files_modified, completed.command_executed, completed.success) == (("a.txt",), "true", False)


@pytest.mark.parametrize(
    ("metadata", "recorded", "reason"),
    [
        ({"rows": (3, 4), "by": {"name": None}}, {"rows": [3, 4], "by": {"name": None}}, None),
        ({"lock": threading.Lock()}, None, "it is not a JSON object (TypeError)"),
        (["rows"], None, "it is not a JSON object (ValidationError)"),
        ({"page": "x" * METADATA_BYTES_MAX}, None, "it has more than 16384 bytes"),
    ],
)
async def test_metadata_that_the_log_cannot_hold_is_left_out_with_a_warning(
    metadata: Any, recorded: object, reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    def work(context: ToolContext) -> str:
        """Work."""
        context.metadata = metadata
        return "done"

    outcome = await call(Toolbox([work]), "work")
    completed = outcome.recorded[-1]
    assert isinstance(completed, ToolCompleted)
    assert (outcome.text, completed.metadata) == ("done", recorded)
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings == ([f"the metadata of tool 'work' is not recorded: {reason}"] if reason else [])


async def test_a_model_cannot_set_the_context_parameter() -> None:
    def work(context: ToolContext) -> str:
        """Work."""
        return context.tool_use_id

    assert (await call(Toolbox([work]), "work", context="mine")).error_class == "validation_error"
    open_schema = tool(work, input_schema={"type": "object"})
    assert (await call(Toolbox([open_schema]), "work", context="mine")).text == "t"


async def test_a_call_that_timed_out_signals_its_function_to_stop() -> None:
    stopped = threading.Event()

    def work(context: ToolContext) -> None:
        """Work."""
        if context.stopped.wait(5):
            stopped.set()

    outcome = await call(Toolbox([tool(work, timeout_seconds=0.01)]), "work")
    assert outcome.error_class == "timeout"
    assert await asyncio.to_thread(stopped.wait, 5)


async def test_events_of_a_failed_call_are_recorded_before_its_failure() -> None:
    def work(context: ToolContext) -> None:
        """Work."""
        context.record_event(MemoryEviction("MEMORY.md", "manual", 1, 2, 1))
        raise ToolError("after all not")

    assert (await call(Toolbox([work]), "work")).kinds == ["ToolCalled", "MemoryEviction", "ToolFailed"]


@pytest.mark.parametrize(
    ("side_effects", "seconds"), [("none", 60), ("read", 60), ("write", 60), ("execute", 600), ("network", 600)]
)
def test_tools_that_execute_or_use_the_network_have_a_longer_timeout(side_effects: SideEffects, seconds: float) -> None:
    assert tool(save, side_effects=side_effects).timeout_seconds == seconds
    assert tool(save, side_effects=side_effects, timeout_seconds=7).timeout_seconds == 7


def test_a_tool_with_paths_needs_a_workspace_and_a_parameter() -> None:
    with pytest.raises(UserError, match="tool 'save' takes paths, but the session has no workspace"):
        Toolbox([tool(save, paths=["path"])])
    with pytest.raises(UserError, match="tool 'save' has no parameter 'file' that could be a path"):
        tool(save, paths=["file"])


async def test_a_long_output_is_stored_whole_in_a_file_and_shown_truncated(tmp_path: Path) -> None:
    whole = "a" * 150_000 + "é" * 50_000

    def flood() -> str:
        """Flood."""
        return whole

    box = Toolbox([flood], environment=ToolEnvironment("s", output_folder=tmp_path / "outputs"))
    outcome = await call(box, "flood")
    (stored,) = (tmp_path / "outputs").iterdir()
    assert f"left out; all 250000 bytes are in {stored}, sha:{sha256_hex(whole.encode())[:8]} ...]\n" in outcome.text
    assert (outcome.text[0], outcome.text[-1], len(outcome.text) <= OUTPUT_CHARACTERS_MAX) == ("a", "é", True)
    assert stored.read_text() == whole
    assert stored.stat().st_mode & 0o777 == 0o600
    await call(box, "flood")
    assert len(list((tmp_path / "outputs").iterdir())) == 2


async def test_a_short_output_makes_no_file(tmp_path: Path) -> None:
    box = Toolbox([tool(save)], environment=ToolEnvironment("s", output_folder=tmp_path / "outputs"))
    assert (await call(box, "save", path="x")).text == "saved 1"
    assert not (tmp_path / "outputs").exists()


def test_an_output_that_cannot_be_stored_is_shown_without_a_path(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        assert spill_output(tmp_path / "file" / "outputs", "t", "text") is None
    assert "could not be written" in caplog.text


def test_the_file_name_of_a_stored_output_is_safe_for_any_call_id(tmp_path: Path) -> None:
    location = spill_output(tmp_path, "../../\0\ud800/x", "text")
    (stored,) = tmp_path.iterdir()
    assert location == f"all 4 bytes are in {stored}, sha:{sha256_hex(b'text')[:8]}"
