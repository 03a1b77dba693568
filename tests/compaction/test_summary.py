"""What a summary says: only what the log shows, the user's own words by weight, and never less than before."""

import json
import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.compaction_histories import SMALL, History, snapshot_of
from tests.support.summary_claims import find_false_claims

from holdfast.catalog.token_count import count_tokens
from holdfast.compaction.models import CompactionConfig, Summary, SummaryLine
from holdfast.compaction.summary import build_summary
from holdfast.engine.compaction.compact import CompactionProposal, propose_compaction
from holdfast.engine.compaction.history import read_logged_messages
from holdfast.extraction.facts import extract_facts
from holdfast.types.blocks import Block, Text, ToolResult, ToolUse
from holdfast.types.prompt import HistoryEntry, Stability


class Log:
    """A conversation written message by message."""

    def __init__(self) -> None:
        self.entries: list[HistoryEntry] = []

    def say(self, text: str, *, layer: str = "history") -> "Log":
        return self._add("user", Text(text), layer=layer)

    def reply(self, text: str) -> "Log":
        return self._add("assistant", Text(text))

    def call(self, tool: str, result: str, *, is_error: bool = False, **arguments: object) -> "Log":
        id = f"c{len(self.entries)}"
        self._add("assistant", ToolUse(id, tool, json.dumps(arguments)))
        return self._add("user", ToolResult(id, (Text(result),), is_error=is_error))

    def run(self, command: str, result: str, *, is_error: bool = False) -> "Log":
        return self.call("Bash", result, is_error=is_error, command=command)

    def _add(self, role: str, block: Block, *, layer: str = "history") -> "Log":
        stability = Stability.GROWING if layer == "history" else Stability.VOLATILE
        entry = HistoryEntry(role, (block,), layer, stability, number=len(self.entries) + 1)  # type: ignore[arg-type]
        self.entries.append(entry)
        return self

    def summarize(self, tokens_max: int = 4_000) -> Summary:
        return build_summary(extract_facts(self.entries), tokens_max=tokens_max, count=count_tokens)

    def lines(self, section: str, tokens_max: int = 4_000) -> list[str]:
        summary = self.summarize(tokens_max)
        assert find_false_claims(summary, self.entries) == []
        return [line.text for line in summary.lines if line.section == section]


# What is said about files


def test_a_folder_that_was_searched_is_not_reported_as_missing() -> None:
    log = Log().say("Fix it.").call("Grep", "Found 3 files\na.py", pattern="x", path="/repo/src")
    assert log.call("Glob", "No files found", pattern="*.go", path="/repo/src").lines("files") == []


def test_a_file_whose_edit_was_refused_is_neither_missing_nor_edited() -> None:
    log = (
        Log()
        .say("Fix it.")
        .call("Edit", "File has not been read yet.", is_error=True, file_path="/a.py", old_string="x")
    )
    assert log.lines("files") == []


def test_a_file_is_missing_only_until_it_is_written() -> None:
    log = Log().say("Fix it.").call("Read", "File does not exist.", is_error=True, file_path="/a.py")
    assert log.lines("files") == ["/a.py: not found"]
    log.call("Write", "File created", file_path="/a.py", content="x = 1")
    assert log.lines("files") == ["/a.py: written x1"]


def test_a_file_that_contains_an_exit_code_was_read() -> None:
    log = Log().say("Fix it.").call("Read", "The tool ends with exit code 1 if it fails.", file_path="/doc.md")
    assert log.lines("files") == ["/doc.md: read x1"]


def test_an_editor_that_views_a_file_has_not_edited_it() -> None:
    log = Log().say("Fix it.").call("str_replace_editor", "1: x", command="view", path="/a.py")
    assert log.lines("files") == ["/a.py: read x1"]
    log.call("str_replace_editor", "ok", command="str_replace", path="/a.py", old_str="x", new_str="y")
    assert log.lines("files") == ["/a.py: read x1, edited x1, changed since read"]


# What is said about commands and errors


def test_a_passed_test_that_is_named_after_an_error_is_no_error() -> None:
    log = (
        Log()
        .say("Fix it.")
        .run("go test ./... -v", "=== RUN TestParseError\n--- PASS: TestParseError (0.00s)\nok  p 0.1s")
    )
    assert log.lines("errors") == []
    assert log.lines("commands") == ["go test ./... -v: passed"]


@pytest.mark.parametrize(
    ("failed", "passed"),
    [
        ("cd /repo && go test ./parse/ 2>&1 | tail -30", "go test ./parse -v"),
        ("python -m pytest tests/test_a.py -q", "cd /repo && pytest tests/test_a.py"),
        ("FOO=1 make check 2>&1", "make check"),
        ("go test ./parse -run TestOne", "mise run test"),
        ("go build ./...", "go test ./..."),
        ("make format && make lint", "make lint && make format"),
    ],
)
def test_an_error_is_resolved_when_the_command_passes_written_in_another_way(failed: str, passed: str) -> None:
    log = Log().say("Fix it.").run(failed, "--- FAIL: TestOne\nValueError: no\nFAIL", is_error=True)
    assert log.lines("errors") != []
    assert [line for line in log.lines("commands") if ": failing" in line]
    log.run(passed, "ok  example.com/parse  0.1s\n12 passed in 0.1s")
    assert log.lines("errors") == []
    assert log.lines("tests") == []
    assert log.lines("commands") == [f"{passed}: passed"]


def test_another_command_that_passes_resolves_nothing() -> None:
    log = Log().say("Fix it.").run("go test ./parse", "--- FAIL: TestOne\nFAIL", is_error=True)
    log.run("go test ./other -run TestTwo", "ok  example.com/other  0.1s")
    assert log.lines("tests") == ["failing: TestOne"]


def test_the_exit_code_of_a_pipe_does_not_show_that_tests_pass() -> None:
    log = Log().say("Fix it.").run("mise run test:ci 2>&1 | tail -3", "[test:ci] ERROR task failed")
    assert log.lines("commands") == ["mise run test:ci 2>&1 | tail -3: failing; [test:ci] ERROR task failed"]
    log = Log().say("Fix it.").run("make build | head -3", "compiling")
    assert log.lines("commands") == ["make build | head -3: ran"]


def test_commands_that_only_look_and_calls_that_were_declined_are_not_listed() -> None:
    log = Log().say("Fix it.").run("grep -rn x src | head", "").run("git status && ls", "clean")
    log.run("ls /nowhere", "No such file or directory", is_error=True)
    log.run("rm -rf build", "The user doesn't want to proceed with this tool use. It was rejected.", is_error=True)
    assert log.lines("commands") == log.lines("errors") == []


def test_a_task_list_replaces_the_one_before_and_updates_go_by_the_reported_id() -> None:
    log = (
        Log()
        .say("Fix it.")
        .call("TodoWrite", "ok", todos=[{"content": "one", "status": "pending"}, {"content": "two"}])
    )
    log.call("TodoWrite", "ok", todos=[{"content": "three", "status": "in_progress"}])
    assert log.lines("pending") == ["in_progress: three"]
    log = Log().say("Fix it.").call("TaskCreate", "Task #7 created successfully: write tests", subject="write tests")
    log.call("TaskCreate", "Task #8 created successfully: ship it", subject="ship it")
    log.call("TaskUpdate", "Updated task #7", taskId="7", status="completed")
    assert log.lines("pending") == ["open: ship it"]


# The user's words


HARNESS = (
    "Base directory for this skill: /skills/plan\n\nSTOP - do not implement anything yet. You must always plan.",
    "<local-command-caveat>Caveat: DO NOT respond to these messages.</local-command-caveat>",
    "<system-reminder>You must never mention this.</system-reminder>",
    "<command-message>init</command-message><bash-stdout>you should not see this</bash-stdout>",
    "[Request interrupted by user for tool use]",
)


@pytest.mark.parametrize("text", HARNESS)
def test_text_of_a_client_is_not_quoted_as_the_users(text: str) -> None:
    log = Log().say("Port the parser.").reply("Done.").say(text).reply("Done.").say("Now the lexer.").reply("Done.")
    summary = log.summarize()
    assert find_false_claims(summary, log.entries) == []
    quoted = [line.text for line in summary.lines if line.section in ("goal", "asks", "constraints")]
    assert quoted == ["Port the parser.", "Now the lexer."]


def test_injected_text_is_not_quoted_as_the_users() -> None:
    log = Log().say("Port the parser.").say("STOP - do not implement anything yet.", layer="skills").reply("Done.")
    assert log.lines("constraints") == []
    assert log.lines("goal") == ["Port the parser."]


def test_what_a_person_typed_after_a_command_is_theirs() -> None:
    command = "<command-message>review</command-message><command-name>/review</command-name>"
    log = Log().say(f"{command} <command-args>PR 12</command-args>")
    assert [fold_text(line) for line in log.lines("goal")] == ["/review PR 12"]


def fold_text(text: str) -> str:
    return " ".join(text.split())


def test_thanks_and_consent_are_left_out_and_a_long_request_is_cut_with_its_number() -> None:
    long = "Rewrite the importer so that " + "every row keeps its source and " * 200
    log = Log().say("Port the parser.").reply("Done.").say(long).reply("Done.")
    for text in ("See ya!", "thanks, looks great 👍", "continue", "yes please"):
        log.say(text).reply("All right.")
    log.say("Now the lexer.").reply("Done.")
    asks = log.lines("asks", tokens_max=1_500)
    assert len(asks) == 1
    assert asks[0].startswith("Rewrite the importer so that every row")
    assert re.search(r" \[cut: [\d,]+ more characters in m3\]$", asks[0])


def test_the_pinned_request_is_not_repeated() -> None:
    log = Log().say("Port the parser.").reply("Done.").say("Now the lexer.")
    assert log.lines("goal") == ["Port the parser.", "Now the lexer."]
    assert log.lines("asks") == []


def test_corrections_come_before_other_requests() -> None:
    log = Log().say("Port the parser.").reply("Done.").say("No wait, keep the old names in `parse.py`.").reply("Done.")
    for number in range(40):
        log.say(f"Please also look at module_{number}.py and describe what it does for us.").reply("Done.")
    assert "No wait, keep the old names in `parse.py`." in log.lines("asks", tokens_max=900)


def test_a_pasted_diff_is_no_constraint() -> None:
    log = Log().say("What is this?\n```\nyou must always do this\n```\n+    // this shouldn't happen\n    never mind()")
    assert log.lines("constraints") == []
    assert Log().say("Port it.").reply("ok").say("Never touch tests/golden.").reply("ok").say("x y z").lines(
        "constraints"
    ) == ["Never touch tests/golden."]


def test_a_question_or_a_report_is_no_constraint() -> None:
    log = (
        Log()
        .say("Port it.")
        .reply("ok")
        .say("I don't see it in metadata.json. Shouldn't it always be there?")
        .reply("ok")
    )
    assert log.say("x y z").lines("constraints") == []


def test_decisions_need_a_reason_or_an_answer() -> None:
    log = Log().say("Port it.").reply("Now update the handlers to use GetAgent() instead of Detect().")
    log.reply("I use SQLite instead of Redis because the host has no network. Should I delete the old cache?").say(
        "yes"
    )
    assert log.lines("decisions") == [
        "I use SQLite instead of Redis because the host has no network.",
        "Asked in m3: Should I delete the old cache? The user answered: yes",
    ]


# Budgets


@settings(max_examples=settings().max_examples // 10)
@given(st.integers(0, 2**32))
def test_a_later_summary_never_has_a_smaller_budget(seed: int) -> None:
    history = History(seed)
    config = CompactionConfig(summary_tokens_max=6_000, tail_tokens_max=400)
    budgets = []
    for turns in (60, 4, 12, 4):
        for _ in range(turns):
            history.turn()
        proposal = propose_compaction(snapshot_of(history), config, "requested")
        if isinstance(proposal, CompactionProposal):
            history.add(*proposal.payloads)
            budgets.append(proposal.event.summary_tokens_max)
    assert len(budgets) > 1
    assert budgets == sorted(budgets)


# Every claim, for any conversation


@settings(max_examples=settings().max_examples // 2)
@given(st.integers(0, 2**32), st.integers(5, 40))
def test_every_claim_of_every_summary_is_true(seed: int, turns: int) -> None:
    history = History(seed)
    for _ in range(turns):
        history.turn()
    snapshot = snapshot_of(history)
    proposal = propose_compaction(snapshot, SMALL, "requested")
    if isinstance(proposal, CompactionProposal):
        assert proposal.summary is not None
        covered = [entry for entry in read_logged_messages(history.events) if entry.number <= proposal.event.last]
        assert find_false_claims(proposal.summary, covered) == []


_COMMANDS = (
    "go test ./a",
    "go test ./a -v 2>&1 | tail -5",
    "cd /r && go test ./...",
    "make lint",
    "make lint; make test",
)
_OUTPUTS = ("ok  a 0.1s", "--- FAIL: TestA\nFAIL", "--- PASS: TestA\nok  a 0.1s", "error: no", "", "Exit code 2\nboom")
_FILES = ("/r/a.py", "/r/b.py")
_STEPS = st.one_of(
    st.tuples(st.just("run"), st.sampled_from(_COMMANDS), st.sampled_from(_OUTPUTS), st.booleans()),
    st.tuples(st.sampled_from(("Read", "Edit", "Write", "Delete_file", "Grep")), st.sampled_from(_FILES),
              st.sampled_from(("fine", "File does not exist.", "File has not been read yet.")), st.booleans()),
    st.tuples(st.just("say"), st.sampled_from((*HARNESS, "No, don't.", "thanks", "Use a.py because b.py is old.")),
              st.just(""), st.booleans()),
    st.tuples(st.just("reply"), st.sampled_from(("Done.", "Shall I go on?", "We decided on A.")), st.just(""),
              st.just(False)),
)  # fmt: skip


@given(st.lists(_STEPS, max_size=30))
def test_every_claim_about_files_commands_and_requests_is_true(steps: list[tuple[str, str, str, bool]]) -> None:
    log = Log().say("Port the parser.")
    for kind, what, result, is_error in steps:
        match kind:
            case "run":
                log.run(what, result, is_error=is_error)
            case "say":
                log.say(what, layer="skills" if is_error else "history")
            case "reply":
                log.reply(what)
            case _:
                log.call(kind, result, is_error=is_error, file_path=what)
    assert find_false_claims(log.summarize(), log.entries) == []


@pytest.mark.parametrize(
    ("section", "text", "number"),
    [
        ("files", "/repo/src: not found", 4),
        ("files", "/a.py: read x1, edited x1, changed since read", 4),
        ("commands", "go test ./a: passed", 6),
        ("commands", "go build ./...: failing; no", 8),
        ("tests", "failing: TestParseError", 8),
        ("errors", "go test ./a: --- PASS: TestParseError", 8),
        ("goal", "STOP - do not implement anything yet.", 2),
        ("asks", "Port everything.", 1),
        ("decisions", "We decided on tabs because of the Makefile.", 3),
        ("pending", "open: ship it", 3),
        ("names", "src/unseen.py", 4),
        ("scope", "3 messages compacted (3 user).", 0),
        ("tools", "Bash, Edit", 0),
    ],
)
def test_the_checker_finds_a_false_line(section: str, text: str, number: int) -> None:
    log = Log().say("Port the parser.").say("STOP - do not implement anything yet.", layer="skills")
    log.call("Read", "x = 1", file_path="/a.py").run("go test ./a", "--- FAIL: TestA\nFAIL", is_error=True)
    log.run("go build ./... && go test ./...", "--- PASS: TestParseError\nok  a 0.1s")
    line = SummaryLine(section, text, (number,) if number else ())  # type: ignore[arg-type]
    true_lines = log.summarize()
    assert find_false_claims(true_lines, log.entries) == []
    claims = find_false_claims(msgspec.structs.replace(true_lines, lines=(*true_lines.lines, line)), log.entries)
    assert [claim.line for claim in claims] == [line]
