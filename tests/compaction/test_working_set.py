"""What stays in view at a compaction, such as files in progress; and what is cleared without loss."""

import json

from hypothesis import given
from hypothesis import strategies as st

from holdfast.compaction.models import CompactionCut
from holdfast.compaction.tool_results import plan_lossless_clearing
from holdfast.compaction.view import clear_results
from holdfast.compaction.working_set import choose_working_set
from holdfast.extraction.tool_calls import extract_plain_text, result_text
from holdfast.types.blocks import Base64Source, Image, Text, ToolResult, ToolUse
from holdfast.types.prompt import HistoryEntry


class Conversation:
    """Entries with one tool call and its result each, numbered as in a log."""

    def __init__(self) -> None:
        self.entries: list[HistoryEntry] = []

    def call(self, name: str, result: str | Image, **arguments: object) -> str:
        id = f"c{len(self.entries)}"
        content = Text(result) if isinstance(result, str) else result
        self._add("assistant", ToolUse(id, name, json.dumps(arguments)))
        self._add("user", ToolResult(id, (content,)))
        return id

    def _add(self, role: str, block: ToolUse | ToolResult) -> None:
        self.entries.append(HistoryEntry(role, (block,), number=len(self.entries) + 1))  # type: ignore[arg-type]

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


@given(st.lists(st.tuples(st.sampled_from(["read_file", "write_file", "run_command"]), TEXTS), max_size=12))
def test_everything_that_lossless_clearing_removes_is_in_view_later(calls: list[tuple[str, list[str]]]) -> None:
    conversation = Conversation()
    for name, lines in calls:
        text = "".join(lines)
        arguments = {"content": text} if name == "write_file" else {}
        conversation.call(name, "written" if arguments else text, path="a.py", **arguments)
    entries = conversation.entries
    batch = plan_lossless_clearing(entries, sent=len(entries))
    texts = {cleared.tool_use_id: cleared.text for cleared in batch.results} if batch else {}
    view = [clear_results(entry, texts) for entry in entries]
    for index, entry in enumerate(entries):
        for block in entry.content:
            if isinstance(block, ToolResult) and block.tool_use_id in texts:
                later = [extract_plain_text(other.content) for other in view[index + 1 :]]
                assert any(result_text(block) in text for text in later)
                assert len(texts[block.tool_use_id]) < len(result_text(block))


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
