"""`holdfast instructions usage` with a trace: output, storage, and unreadable input."""

import gzip
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from tests.support.event_examples import event
from tests.support.library_projects import LibraryProject

from holdfast.errors import UserError
from holdfast.events.payloads.session import MessageAppended, TurnCompleted
from holdfast.events.payloads.union import AnyPayload
from holdfast.instructions.usage.trace import (
    TRACE_BYTES_MAX,
    TRACE_STEPS_MAX,
    AgentTextStep,
    ObservationStep,
    StepCollector,
    ToolCallStep,
    Trace,
    TraceStep,
    extract_steps,
    find_audit_tokens,
    trace_after_token,
    trace_from_token,
    truncate_trace,
)
from holdfast.runtime.instructions.session_tools import make_trace_submitter
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.types.blocks import Text as TextBlock
from holdfast.types.blocks import ToolResult, ToolUse, make_assistant_message, make_user_message
from holdfast.types.usage import Usage


@pytest.fixture
def project(tmp_path: Path) -> Iterator[LibraryProject]:
    project = LibraryProject(tmp_path)
    with project.library:
        project.write()
        project.library.publish(project.folder)
        yield project


def recall(project: LibraryProject, intent: str = "claim a ticket") -> str:
    return project.library.recall(intent, max_chunks=1).audit_token


def steps(project: LibraryProject, *lines: object) -> str:
    path = project.path / "trace.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return str(path)


def recall_result(token: str) -> dict[str, str]:
    return {
        "type": "tool_result",
        "tool": "recall_instruction",
        "text": f"...\ncall submit_usage with audit_token {token}",
    }


def text_step(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def test_reported_and_detected_usage_are_printed_and_not_stored_by_default(project: LibraryProject) -> None:
    token = recall(project)
    path = steps(
        project,
        text_step("Per budget-rules/v1."),
        recall_result(token),
        text_step("See checkout-procedure/v1, code-review/v1."),
    )
    project.library.submit_usage(token, used=(), missed=("release-notes",))
    result = project.run("usage", "--trace", path)
    assert result.exit_code == 0, result.output
    assert result.stdout == (
        f"{token} 'claim a ticket'\n"
        "unit                loaded  reported  detected\n"
        "checkout-procedure  1       -         used: address (step 1)\n"
        "release-notes       -       missed    -\n"
        "code-review         -       -         missed: address (step 1)\n"
        "\n"
        "1 recall in 3 steps, 0 recorded; --keep records the others\n"
    )
    assert project.library.metrics().detected.traced == 0


def test_trace_is_stored_once_and_counted_in_the_metrics(project: LibraryProject) -> None:
    token = recall(project)
    path = steps(project, "", text_step("I keep to checkout-procedure/v1."))
    result = project.run("usage", token, "--trace", path, "--keep")
    assert "checkout-procedure  1       not yet   used: address (step 1)" in result.stdout
    assert "1 recall in 1 step, 1 recorded\n" in result.stdout
    other = steps(project, text_step("Nothing."))
    (usage,) = json.loads(project.run("usage", token, "--trace", other, "--keep", "--json").stdout)
    assert (usage["detected_used"], usage["reported_used"], usage["is_stored"]) == (["checkout-procedure"], None, True)
    shown = project.run("metrics").stdout
    assert "detected in the traces of 1:\n  recall@3: 1.00\n  hit@3: 1.00\n  miss rate: 0.00\n" in shown
    assert "\nrecall@3: unknown\n" in shown


def test_usage_and_a_trace_can_be_submitted_together(project: LibraryProject) -> None:
    token = recall(project)
    result = project.run("usage", token, "--used", "x", "--trace", steps(project, text_step("Hm.")), "--json")
    (usage,) = json.loads(result.stdout)
    assert (usage["reported_used"], usage["detected_used"], usage["is_stored"]) == (["x"], [], False)


def test_each_recall_is_judged_by_the_steps_after_it(project: LibraryProject) -> None:
    first, second = recall(project), recall(project, "review a pull request")
    lines = (
        recall_result("audi_none"),
        recall_result(first),
        text_step("checkout-procedure/v1"),
        recall_result(second),
        text_step("code-review/v1"),
    )
    usage = json.loads(project.run("usage", "--trace", steps(project, *lines), "--json").stdout)
    assert [(one["audit_token"], one["detected_used"]) for one in usage] == [
        (first, ["checkout-procedure"]),
        (second, ["code-review"]),
    ]
    result = project.run("usage", "--trace", steps(project, *lines), "--agent", "nobody")
    assert "no result of a recall of 'nobody'" in str(result.exception)


def test_stored_session_is_a_trace(project: LibraryProject) -> None:
    token = recall(project)
    messages = (
        make_user_message("Claim it."),
        make_assistant_message(ToolUse("c1", "recall_instruction", '{"intent":"x"}')),
        make_user_message(ToolResult("c1", (TextBlock(f"Claim the ticket first. {token}"),))),
        make_assistant_message("Done by checkout-procedure/v1."),
    )
    with SqliteStore(project.path / "kept.db") as store:
        store.append([event(f"e{number}", MessageAppended(one)) for number, one in enumerate(messages)]).result(10)
    (usage,) = json.loads(project.run("usage", "--session", "s", "--json").stdout)
    assert usage["detected_used"] == ["checkout-procedure"]
    assert "this store has no messages of session 'none'" in str(project.run("usage", "--session", "none").exception)


def test_recorded_conversations_and_transcripts_are_traces(project: LibraryProject) -> None:
    token = recall(project)
    call = {"type": "tool_use", "id": "t1", "name": "mcp__holdfast__recall_instruction", "input": {"intent": "x"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": f"... {token}"}]}
    messages: list[dict[str, object]] = [
        {"role": "user", "content": "Claim it."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
        {"role": "assistant", "content": [{"type": "text", "text": "By checkout-procedure/v1."}]},
    ]
    recorded = steps(project, {"id": "r", "messages": messages})
    packed = Path(f"{recorded}.gz")
    packed.write_bytes(gzip.compress(Path(recorded).read_bytes()))
    for path in (recorded, str(packed)):
        (usage,) = json.loads(project.run("usage", "--trace", path, "--json").stdout)
        assert usage["detected_used"] == ["checkout-procedure"]
    calls = {"model": "claude-x", "usage": {"input_tokens": 1, "output_tokens": 1}}
    lines = [
        {
            "type": one["role"],
            "uuid": f"u{number}",
            "sessionId": "s",
            "timestamp": f"2027-01-15T08:00:0{number}Z",
            "message": {"id": f"m{number}", **one, **(calls if one["role"] == "assistant" else {})},
        }
        for number, one in enumerate(messages)
    ]
    (usage,) = json.loads(project.run("usage", "--trace", steps(project, *lines), "--json").stdout)
    assert usage["detected_used"] == ["checkout-procedure"]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ((), "there is no trace in"),
        (("{",), "there is no trace in"),
        (("[]", "\x00"), "there is no trace in"),
        (("", text_step("a"), '{"type":"text"}'), "line 3 of the trace is not a step"),
        ((text_step("a"), "secret"), "line 2 of the trace is not a step"),
        (
            (
                text_step("a"),
                '{"type": "text","text":"\ud800"}'.encode("utf-8", "surrogatepass").decode("latin-1"),
            ),
            None,
        ),
        ((text_step("a"), "[" * 100_000), "line 2 of the trace is not a step"),
    ],
)
def test_unreadable_trace_file_is_a_one_line_error(
    project: LibraryProject, lines: tuple[object, ...], reason: str | None
) -> None:
    result = project.run("usage", recall(project), "--trace", steps(project, *lines))
    if reason is None:
        assert result.exit_code == 0
        return
    assert isinstance(result.exception, UserError)
    assert reason in str(result.exception)
    assert "secret" not in str(result.exception)
    assert "\n" not in str(result.exception)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "Give its audit token"),
        (("--used", "x", "--session", "s"), "Give its audit token"),
        (("audi_x", "--keep"), "--keep records what a trace shows"),
        (("--trace", "no.jsonl", "--session", "s"), "only one of --trace and --session"),
        (("--trace", "no.jsonl"), "cannot be read"),
        (("--trace", "."), "cannot be read"),
        (("audi_x", "--session", "s"), "no messages of session"),
    ],
)
def test_missing_arguments_are_named(project: LibraryProject, words: tuple[str, ...], reason: str) -> None:
    result = project.run("usage", *words)
    assert isinstance(result.exception, UserError)
    assert reason in str(result.exception)


def test_unknown_token_with_a_trace_is_not_found(project: LibraryProject) -> None:
    result = project.run("usage", "audi_none", "--trace", steps(project, text_step("x")))
    assert "no such audit record" in str(result.exception)


def test_messages_become_steps_and_results_name_their_tool() -> None:
    tools: dict[str, str] = {}
    first = tuple(
        extract_steps([make_user_message("Hi."), make_assistant_message("Ho.", ToolUse("c", "grep", "{}"))], tools)
    )
    second = tuple(
        extract_steps(
            [make_user_message(ToolResult("c", (TextBlock("a"), TextBlock("b"))), ToolResult("d", ()))], tools
        )
    )
    assert first == (ObservationStep("Hi."), AgentTextStep("Ho."), ToolCallStep("grep", "{}"))
    assert second == (ObservationStep("a\nb", "grep"), ObservationStep("", "a tool"))


def test_trace_is_split_after_each_recall_result() -> None:
    trace = (
        AgentTextStep("a"),
        ObservationStep("audi_1", "x"),
        AgentTextStep("b"),
        ObservationStep("again audi_1"),
        AgentTextStep("c"),
    )
    assert trace_from_token(trace_from_token(trace, "audi_1"), "audi_1") == trace[1:]
    assert trace_after_token(trace, "audi_1") == trace_after_token(trace[1:], "audi_1") == trace[2:]
    assert trace_after_token(trace, "audi_2") == trace
    assert trace_after_token((), "audi_2") == ()


def test_last_token_in_a_recall_result_is_its_token() -> None:
    trace = (
        ObservationStep("audi_a audi_b", "recall_instruction"),
        ObservationStep("audi_c", "bash"),
        AgentTextStep("audi_d"),
        ObservationStep("audi_e"),
    )
    assert find_audit_tokens(trace) == ("audi_b",)


def test_overlong_trace_is_truncated_and_unencodable_steps_are_dropped() -> None:
    half: TraceStep = AgentTextStep("x" * (TRACE_BYTES_MAX // 2))
    assert truncate_trace((AgentTextStep("\ud800"), AgentTextStep("a"), half, half, AgentTextStep("b"))) == (
        AgentTextStep("a"),
        half,
    )
    assert len(truncate_trace([AgentTextStep("")] * (TRACE_STEPS_MAX + 1))) == TRACE_STEPS_MAX


def done(number: int) -> TurnCompleted:
    return TurnCompleted("end_turn", 1, number, Usage(), Decimal(0), 1.0)


def test_each_turn_is_submitted_once_for_its_own_session() -> None:
    submitted: list[tuple[str, Trace]] = []
    on_event = make_trace_submitter(lambda token, trace: submitted.append((token, trace)))
    recalled = (
        make_assistant_message(ToolUse("c", "recall_instruction", "{}")),
        make_user_message(ToolResult("c", (TextBlock("audi_1"),))),
    )
    payloads: list[AnyPayload] = [*(MessageAppended(one) for one in (*recalled, make_assistant_message("a"))), done(1)]
    for number, payload in enumerate(payloads):
        on_event(event(f"x{number}", MessageAppended(make_assistant_message("another's")), session="child"))
        on_event(event(f"e{number}", payload))
    on_event(event("e8", MessageAppended(make_assistant_message("b"))))
    on_event(event("e9", done(0)))
    assert submitted == [("audi_1", (ObservationStep("audi_1", "recall_instruction"), AgentTextStep("a")))]


def test_step_collector_follows_the_first_session_it_receives() -> None:
    collector = StepCollector()
    for session in ("s", "child", "s"):
        collector.on_event(event("e", MessageAppended(make_assistant_message(session)), session=session))
    assert collector.steps == [AgentTextStep("s"), AgentTextStep("s")]
