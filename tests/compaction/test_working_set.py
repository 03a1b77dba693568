"""What stays in view at a compaction, such as files in progress; and what is cleared without loss."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.compaction.models import CompactionCut
from holdfast.compaction.tool_results import plan_lossless_clearing
from holdfast.compaction.view import clear_batch
from holdfast.compaction.working_set import choose_working_set
from holdfast.extraction.tool_calls import extract_plain_text, find_failed_lines, result_text
from holdfast.types.blocks import Base64Source, Block, Image, Role, Text, ToolResult, ToolUse
from holdfast.types.prompt import HistoryEntry


class Conversation:
    """Entries with one tool call and its result each, numbered as in a log."""

    def __init__(self) -> None:
        self.entries: list[HistoryEntry] = []

    def call(self, name: str, result: str | Image, **arguments: object) -> str:
        id = f"c{len(self.entries)}"
        content = Text(result) if isinstance(result, str) else result
        self._add("assistant", ToolUse(id, name, json.dumps(arguments)))
        self._add("user", ToolResult(id, (content,), name=name))
        return id

    def say(self, *blocks: Block) -> None:
        self._add("user", *blocks)

    def _add(self, role: Role, *blocks: Block) -> None:
        self.entries.append(HistoryEntry(role, blocks, number=len(self.entries) + 1))

    def kept(self, tokens_max: int) -> set[str]:
        """The calls of which a compaction up to the last exchange keeps the result."""
        tokens = [len(extract_plain_text(entry.content)) // 4 for entry in self.entries]
        stop = len(self.entries) - 2
        files = choose_working_set(self.entries, tokens, CompactionCut(0, stop, 1, stop), tokens_max=tokens_max)
        cleared = {result.tool_use_id for result in files.cleared}
        blocks = (block for entry in self.entries if entry.number in files.numbers for block in entry.content)
        return {block.id for block in blocks if isinstance(block, ToolUse)} - cleared


def test_the_newest_content_of_an_edited_file_stays_with_its_edits() -> None:
    conversation = Conversation()
    conversation.call("read_file", "old a " * 100, path="a.py")
    read = conversation.call("read_file", "new a " * 100, path="a.py")
    edit = conversation.call("edit_file", "ok", path="a.py", old_text="new", new_text="newer")
    conversation.call("read_file", "b " * 4_000, path="b.py")
    conversation.call("run_command", "fine", command="ls")
    assert conversation.kept(600) == {read, edit}


def test_a_file_that_was_only_read_stays_if_there_is_room() -> None:
    conversation = Conversation()
    read = conversation.call("read_file", "b " * 400, path="b.py")
    conversation.call("run_command", "fine", command="ls")
    assert conversation.kept(2_000) == {read}
    assert conversation.kept(100) == set()


def test_the_newest_task_list_and_the_failing_test_run_stay() -> None:
    conversation = Conversation()
    conversation.call("TodoWrite", "ok", todos=[{"content": "one"}, {"content": "two"}])
    tasks = conversation.call("TodoWrite", "ok", todos=[{"content": "one", "status": "done"}, {"content": "two"}])
    conversation.call("run_command", "FAILED tests/test_old.py::test_a", command="pytest")
    failing = conversation.call("run_command", "FAILED tests/test_new.py::test_b", command="pytest")
    conversation.call("list_dir", "a", path=".")
    assert conversation.kept(2_000) == {tasks, failing}
    conversation.call("run_command", "3 passed", command="pytest")
    conversation.call("list_dir", "a", path=".")
    assert conversation.kept(2_000) == {tasks}


TEXTS = st.lists(st.sampled_from([f"line {number} of a file that is read again\n" for number in range(6)]), max_size=60)


CALLS = st.tuples(st.sampled_from(["read_file", "write_file", "run_command", "todo_list"]), TEXTS)
IMAGES = [Image(Base64Source("image/png", letter * 4)) for letter in "ABC"]


@given(st.lists(CALLS | st.sampled_from(IMAGES), max_size=12), st.integers(0, 30))
def test_everything_that_lossless_clearing_removes_is_in_view_later(
    steps: list[tuple[str, list[str]] | Image], sent: int
) -> None:
    conversation = Conversation()
    for step in steps:
        if isinstance(step, Image):
            conversation.say(Text("Look at this."), step)
            continue
        name, lines = step
        text = "".join(lines)
        arguments = {"content": text} if name == "write_file" else {}
        target = {"command": "git status"} if name == "run_command" else {"path": "a.py"}
        conversation.call(name, "written" if arguments else text, **target, **arguments)
    entries = conversation.entries
    batch = plan_lossless_clearing(entries, sent=sent)
    view = clear_batch(entries, batch.results, batch.images) if batch else tuple(entries)
    assert view[sent:] == tuple(entries[sent:])
    for index, (entry, shown) in enumerate(zip(entries, view, strict=True)):
        for before, after in zip(entry.content, shown.content, strict=True):
            later = [block for other in view[index + 1 :] for block in other.content]
            if before is after or before == after:
                continue
            if isinstance(before, Image):
                assert before in later
                continue
            assert isinstance(before, ToolResult)
            assert isinstance(after, ToolResult)
            assert len(result_text(after)) < len(result_text(before))
            texts = [extract_plain_text((block,)) for block in later]
            is_repeated = any(result_text(before) in text for text in texts)
            assert is_repeated or any(in_order(result_text(before), text) for text in texts)
            assert is_repeated or before.name != "read_file"


def in_order(text: str, newer: str) -> bool:
    """Whether the lines of `text` are all in `newer`, in this order."""
    position = 0
    lines = newer.splitlines()
    for line in text.splitlines():
        while position < len(lines) and lines[position] != line:
            position += 1
        if position == len(lines):
            return False
        position += 1
    return True


def test_an_older_status_whose_lines_are_all_in_a_newer_one_is_superseded() -> None:
    conversation = Conversation()
    files = [f" M src/part_{number:03}/lexer_of_the_new_parser.py" for number in range(20)]
    first = conversation.call("run_command", "\n".join(files), command="git status --short")
    conversation.call("run_command", "\n".join([files[0], " M added.py", *files[1:]]), command="git status --short")
    conversation.call("run_command", "\n".join(files), command="git diff --stat")
    batch = plan_lossless_clearing(conversation.entries[:4], sent=4)
    assert batch is not None
    assert [(result.tool_use_id, result.text) for result in batch.results] == [
        (
            first,
            "[Every line of this is also in the output of run_command git status --short, message m4, which is newer.]",
        )
    ]


def test_a_status_that_lost_a_line_stays() -> None:
    conversation = Conversation()
    files = [f" M src/part_{number:03}/lexer_of_the_new_parser.py" for number in range(20)]
    conversation.call("run_command", "\n".join(files), command="git status --short")
    conversation.call("run_command", "\n".join([*files[1:], " M other.py"]), command="git status --short")
    assert plan_lossless_clearing(conversation.entries, sent=4) is None


@pytest.mark.parametrize(
    ("before", "after"), [("[ ] {}", "[x] {}"), ("- {} (pending)", "- {} (completed)"), ("1. ☐ {}", "1. ✔ {}")]
)
def test_a_task_list_is_superseded_by_a_newer_one_with_the_same_tasks(before: str, after: str) -> None:
    tasks = [f"port module number {number} of the old parser to the new lexer" for number in range(12)]
    old, new = ("\n".join(mark.format(task) for task in tasks) for mark in (before, after))
    conversation = Conversation()
    first = conversation.call("todo_write", old, todos=[])
    conversation.call("todo_write", f"{new}\n{before.format('write the release notes')}", todos=[])
    batch = plan_lossless_clearing(conversation.entries, sent=4)
    assert batch is not None
    assert [result.tool_use_id for result in batch.results] == [first]


def test_an_image_that_a_user_sends_twice_stays_once() -> None:
    conversation = Conversation()
    conversation.say(Text("What is wrong here?"), IMAGES[0])
    conversation.say(Text("And now?"), IMAGES[1])
    conversation.say(IMAGES[0], Text("Once more."))
    batch = plan_lossless_clearing(conversation.entries, sent=3)
    assert batch is not None
    view = clear_batch(conversation.entries, batch.results, batch.images)
    assert [entry.content for entry in view] == [
        (Text("What is wrong here?"), Text("[The same image is in message m3.]")),
        (Text("And now?"), IMAGES[1]),
        (IMAGES[0], Text("Once more.")),
    ]


def test_a_repeated_read_leaves_a_pointer_to_the_newest_one() -> None:
    conversation = Conversation()
    text = "".join(f"line {number}\n" for number in range(100))
    first = conversation.call("read_file", text, path="a.py")
    conversation.call("read_file", text + "more", path="a.py")
    batch = plan_lossless_clearing(conversation.entries, sent=4)
    assert batch is not None
    assert [(result.tool_use_id, result.text) for result in batch.results] == [
        (first, "[The same content is in the output of read_file a.py, message m4.]")
    ]
    assert plan_lossless_clearing(conversation.entries, sent=1) is None


def test_an_older_read_that_differs_stays() -> None:
    conversation = Conversation()
    conversation.call("read_file", "old " * 300, path="a.py")
    conversation.call("read_file", "new " * 300, path="a.py")
    assert plan_lossless_clearing(conversation.entries, sent=4) is None


def test_an_image_that_is_shown_twice_stays_once() -> None:
    conversation = Conversation()
    picture = Image(Base64Source("image/png", "AAAA"))
    first = conversation.call("screenshot", picture)
    conversation.call("screenshot", picture)
    batch = plan_lossless_clearing(conversation.entries, sent=4)
    assert batch is not None
    assert [result.tool_use_id for result in batch.results] == [first]


def test_an_output_of_empty_lines_is_searched_for_failures_in_a_moment() -> None:
    """A command may print what it likes."""
    started = time.process_time()
    assert find_failed_lines("\n  == 2 failed in 1.2s ==" + "\n" * 30_000) == ["== 2 failed in 1.2s =="]
    assert time.process_time() - started < 2.0
