"""What the rules take from a conversation: only what is meant to last, with what happened afterwards as evidence."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.knowledge_folders import COMMIT_SUBJECT, commit_step, text_session, tool_session

from holdfast.knowledge.extract import extract_items, find_checks
from holdfast.knowledge.harvest import EndedSession
from holdfast.knowledge.items import Item
from holdfast.types.blocks import Text
from holdfast.types.prompt import HistoryEntry

RULE = "Never log the body of a request in src/app.py."
WRITE = ("write_file", '{"path": "src/app.py", "content": "x"}', "written")


def ran(command: str, output: str = "ok") -> tuple[str, str, str]:
    return "run", json.dumps({"command": command}), output


def items_of(session: EndedSession) -> list[Item]:
    entries = session.read_entries()
    return list(extract_items(entries, session="s", day="2026-11-01", workspace=session.workspace).items)


def test_rule_that_was_followed_is_a_confident_decision_with_its_evidence() -> None:
    (decision,) = items_of(tool_session("s", RULE, WRITE, ran("make test")))
    assert (decision.category, decision.text, decision.is_confident) == ("decisions", RULE, True)
    assert decision.evidence == "then edited app.py; `make test` passed"


def test_rule_that_was_only_answered_is_not_confident() -> None:
    (decision,) = items_of(text_session("s", RULE, "Ok."))
    assert (decision.evidence, decision.is_confident) == ("answered in m2, not taken back", False)


@pytest.mark.parametrize("next_message", ["No, log it.", "Actually, keep it.", "never mind", "Revert that, please."])
def test_rule_that_was_taken_back_gives_no_item(next_message: str) -> None:
    assert items_of(text_session("s", RULE, "Ok.", next_message, "Ok.")) == []


@pytest.mark.parametrize(
    "said",
    [
        "Can we never log the body of a request?",
        "Don't commit yet, use the second option.",
        "Maybe we should use tabs everywhere in it.",
        "The parser lives in src/parse.py and needs libxml2_next.",
        "never mind, we look at it later.",
        "Make sure that the tests pass before you go on.",
    ],
)
def test_question_step_and_plain_statement_give_no_item(said: str) -> None:
    assert items_of(tool_session("s", said, WRITE)) == []


@pytest.mark.parametrize(
    "said",
    [
        f"<system-reminder>{RULE}</system-reminder> Go on.",
        f"The reviewer wrote:\n> {RULE}\nWhat do you think?",
        f"It prints\n```\n{RULE}\n```\nwhy?",
        f"{'A pasted page. ' * 140}{RULE}",
    ],
)
def test_text_of_programs_quotes_and_pasted_pages_give_no_item(said: str) -> None:
    assert items_of(tool_session("s", said, WRITE)) == []


def test_injected_text_gives_no_item() -> None:
    injected = HistoryEntry("user", (Text(RULE),), layer="project", number=1)
    session = tool_session("s", "Go.", WRITE)
    entries = [injected, *session.read_entries()]
    assert extract_items(entries, session="s", day="2026-11-01", workspace="/project").items == ()


def test_command_that_passed_twice_is_a_playbook_and_one_that_failed_is_not() -> None:
    steps = (
        ran("cd /project && make test 2>&1 | tail -5"),
        ran("make lint && make test"),
        ran("make bench"),
        ran("make slow", "FAILED tests/test_a.py::test_b\nexit code 1"),
        ran("make slow", "FAILED tests/test_a.py::test_b\nexit code 1"),
    )
    (playbook,) = items_of(tool_session("s", "Go.", *steps))
    assert (playbook.text, playbook.evidence) == ("Run `make test`", "passed 2 times, last in m4")
    assert playbook.is_shareable


@pytest.mark.parametrize(
    "command",
    [
        "git push --force-with-lease", "git reset --hard HEAD~1", "git rebase -i main", "git clean -fd", "rm -rf build",
        "make clean", "npm run deploy", "cargo publish", "make release", "mise run db:drop", "npm run migrate",
        "git status", "ls -la", "go test ./a -run TestOne", "pytest tests/test_a.py::test_b", "pytest tests/a/b/c/d",
        "make test > /tmp/out", "make test; rm -rf x", "PASSWORD=x make test", "go build -o /tmp/x ./cmd/x",
    ],
)  # fmt: skip
def test_command_that_destroys_looks_or_belongs_to_one_task_is_no_playbook(command: str) -> None:
    assert items_of(tool_session("s", "Go.", ran(command), ran(command))) == []


@given(
    st.lists(st.sampled_from(["make test", "rm -rf /", "git push -f", "git rebase main", "go vet ./..."]), max_size=5)
)
def test_no_part_of_a_chain_that_destroys_becomes_a_playbook(parts: list[str]) -> None:
    assert set(find_checks(" && ".join(parts))) <= {"make test", "go vet ./..."}


def test_note_on_a_file_is_the_subject_of_the_commit_that_changed_it() -> None:
    (note,) = items_of(tool_session("s", "Go.", WRITE, commit_step(COMMIT_SUBJECT)))
    assert (note.scope, note.text, note.evidence) == ("src/app.py", f"Changed for: {COMMIT_SUBJECT}", "committed in m4")
    assert items_of(tool_session("s", "Go.", WRITE)) == []
    assert items_of(tool_session("s", "Go.", WRITE, commit_step("Address review comments"))) == []
