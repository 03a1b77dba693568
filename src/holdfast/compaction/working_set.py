"""What stays in view of messages that a summary covers: files in progress, the open tasks, the failing test.

Whole exchange groups are kept as they were sent, so that an edit still finds the text it replaces; their other tool
results are replaced by one line each.
"""

import re
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.compaction.models import CompactionCut
from holdfast.compaction.tool_results import describe_cleared_result, result_tokens
from holdfast.compaction.view import group_exchanges
from holdfast.events.payloads.compaction import ClearedResult
from holdfast.extraction.tool_calls import (
    CallAction,
    find_failing_tests,
    interpret_call,
    is_failed_result,
    result_text,
)
from holdfast.types.blocks import ToolResult, ToolUse
from holdfast.types.prompt import HistoryEntry

CLEARED_LINE_TOKENS = 40
COMPACT_TOOL = "compact_context"


class WorkingSet(msgspec.Struct, frozen=True):
    """Numbers of covered messages that stay, and the results in them that are cleared."""

    numbers: tuple[int, ...] = ()
    cleared: tuple[ClearedResult, ...] = ()


class _Step(msgspec.Struct, frozen=True):
    """One tool call with its result: in which group and entry, and its tokens with and without the result."""

    group: int
    action: CallAction
    call: ToolUse
    result: ToolResult
    entry: int
    tokens: int

    @property
    def is_edit(self) -> bool:
        return self.action.kind == "write"

    @property
    def has_content(self) -> bool:
        """Whether it shows the file's content: a read, or a write of the whole file."""
        is_whole_write = self.is_edit and not any(name in self.call.arguments_json for name in _PARTIAL_EDITS)
        return self.action.kind == "read" or is_whole_write


_MESSAGE = re.compile(r"m\d{1,9}")
_PARTIAL_EDITS = ('"old_', '"edits"', '"oldText"', '"patch"', '"insert_line"', '"diff"')


def choose_working_set(
    entries: Sequence[HistoryEntry],
    tokens: Sequence[int],
    cut: CompactionCut,
    *,
    tokens_max: int,
    wanted: Sequence[str] = (),
) -> WorkingSet:
    """The newest content of files in progress, the newest task list and the newest failing test run, up to a budget.

    Messages (`m12`) and files in `wanted` come first, in this order; then files that were edited since they were read,
    then files that were only read, the newest of each first.
    """
    steps = list(_steps(entries, tokens))
    kept: dict[str, _Step] = {}
    left, groups = tokens_max, set[int]()
    numbers = {int(word[1:]) for word in wanted if _MESSAGE.fullmatch(word)}
    for at, group in enumerate(group_exchanges(entries, tokens)):
        is_named = any(entry.number in numbers for entry in entries[group.start : group.stop])
        if is_named and group.stop <= cut.stop and group.tokens <= left:
            left -= group.tokens
            groups.add(at)
            kept |= {step.call.id: step for step in steps if step.group == at}
    for needed in _candidates(steps, wanted):
        # What comes after the cut is in view anyway.
        missing = [step for step in needed if step.entry < cut.stop and step.call.id not in kept]
        cost = sum(step.tokens for step in missing)
        cost += sum(_frame_tokens(steps, group) for group in {step.group for step in missing} - groups)
        if not missing or cost > left:
            continue
        left -= cost
        groups |= {step.group for step in missing}
        kept |= {step.call.id: step for step in missing}
    in_groups = [step for step in steps if step.group in groups]
    cleared = (
        ClearedResult(step.call.id, describe_cleared_result(step.result, step.call, entries[step.entry].number))
        for step in in_groups
        if step.call.id not in kept and step.tokens > CLEARED_LINE_TOKENS
    )
    return WorkingSet(_numbers(entries, groups), tuple(cleared))


def _numbers(entries: Sequence[HistoryEntry], groups: set[int]) -> tuple[int, ...]:
    spans = [group for at, group in enumerate(group_exchanges(entries)) if at in groups]
    kept = (entry for span in spans for entry in entries[span.start : span.stop] if not entry.is_injected)
    return tuple(entry.number for entry in kept)


def _steps(entries: Sequence[HistoryEntry], tokens: Sequence[int]) -> Iterator[_Step]:
    for at, group in enumerate(group_exchanges(entries)):
        calls: dict[str, ToolUse] = {}
        for index in range(group.start, group.stop):
            entry = entries[index]
            for block in entry.content:
                if isinstance(block, ToolUse):
                    calls[block.id] = block
                elif isinstance(block, ToolResult) and block.tool_use_id in calls:
                    call = calls[block.tool_use_id]
                    size = result_tokens(block, entry, tokens[index])
                    yield _Step(at, interpret_call(call), call, block, index, size)


def _frame_tokens(steps: Sequence[_Step], group: int) -> int:
    """Tokens of a group without its results: the calls, and a line for each result that is cleared."""
    in_group = [step for step in steps if step.group == group]
    return sum(len(step.call.arguments_json) // 4 + CLEARED_LINE_TOKENS for step in in_group)


def _candidates(steps: Sequence[_Step], wanted: Sequence[str]) -> Iterator[list[_Step]]:
    """What should stay together, most important first."""
    files = _files(steps)
    for word in wanted:
        yield from (needed for needed in files if _is_path(needed[-1].action.path, word))
    # What the agent wrote when it asked for a compaction is its own note on what matters.
    yield [step for step in steps if step.call.name == COMPACT_TOOL][-1:]
    tasks = [step for step in steps if step.action.kind == "plan" and len(step.action.tasks) > 1]
    yield tasks[-1:]
    yield _failing_run(steps)
    yield from files


def _is_path(path: str, word: str) -> bool:
    """Whether the word names this path, or its end."""
    return path == word or path.endswith("/" + word.removeprefix("./"))


def _files(steps: Sequence[_Step]) -> list[list[_Step]]:
    """For each file its newest content with the edits since; files in progress first, then the newest."""
    in_progress: list[list[_Step]] = []
    only_read: list[list[_Step]] = []
    by_path: dict[str, list[_Step]] = {}
    for step in steps:
        if step.action.path and step.action.kind in ("read", "write") and not is_failed_result(step.result):
            by_path.setdefault(step.action.path, []).append(step)
    for touched in by_path.values():
        newest = max((at for at, step in enumerate(touched) if step.has_content), default=0)
        needed = touched[newest:]
        (in_progress if any(step.is_edit for step in needed) else only_read).append(needed)
    return [
        needed for files in (in_progress, only_read) for needed in sorted(files, key=lambda needed: -needed[-1].entry)
    ]


def _failing_run(steps: Sequence[_Step]) -> list[_Step]:
    """The newest test run with failing tests, unless the same command passed later."""
    for step in reversed([step for step in steps if step.action.kind == "run"]):
        if find_failing_tests(result_text(step.result)):
            return [step]
        if not is_failed_result(step.result) and "test" in step.action.command:
            return []
    return []
