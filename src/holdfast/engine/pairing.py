"""Repairs the pairing of tool calls and results in a conversation."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby

import msgspec

from holdfast.canonical.blocks import Block, Text, ToolResult, ToolUse
from holdfast.canonical.prompt import Passage
from holdfast.canonical.repair import INTERRUPTED
from holdfast.canonical.transcript import messages_of, result_id, validate
from holdfast.engine.carry import call_in
from holdfast.events.payloads_recovery import Splice

_Run = tuple[int, ...]
"""The indexes of consecutive entries of one role."""

_PAIRING = ("call_open", "call_unanswered", "result_repeated", "result_without_call")


def pairing_faults(entries: Sequence[Passage]) -> tuple[str, ...]:
    """The pairing problems, described without quoting content."""
    findings = validate(messages_of(entries), complete=True)
    return tuple(finding.text for finding in findings if finding.rule in _PAIRING)


def paired(entries: Sequence[Passage]) -> tuple[Splice, ...]:
    """The splices after which every call has a result and every result a call; nothing else is touched.

    A misplaced result is moved to its call, and a call without one gets an "interrupted" result. A result without a
    call is removed from the view: turned into text, it would be attributed to the user or the model.
    """
    runs = [tuple(run) for _, run in groupby(range(len(entries)), key=lambda at: entries[at].role)]
    stray = _stray_results(entries, runs)
    lost: dict[str | None, Block] = {}
    for at, position in sorted(stray):
        block = entries[at].content[position]
        lost.setdefault(result_id(block), block)
    splices = [*_add_missing_results(entries, runs, lost), *_remove_stray(entries, stray)]
    return tuple(sorted(splices, key=lambda splice: (splice.at, splice.removed)))


def _stray_results(entries: Sequence[Passage], runs: Sequence[_Run]) -> set[tuple[int, int]]:
    """The positions of results that answer no call of the previous message, or one that already has a result."""
    stray: set[tuple[int, int]] = set()
    open_ids: set[str] = set()
    for run in runs:
        for at in run:
            for position, block in enumerate(entries[at].content):
                call_id = result_id(block)
                if call_id is not None and call_id not in open_ids:
                    stray.add((at, position))
                open_ids.discard(call_id or "")
        open_ids = set(_calls_in(entries, run))
    return stray


def _add_missing_results(
    entries: Sequence[Passage], runs: Sequence[_Run], lost: Mapping[str | None, Block]
) -> Iterator[Splice]:
    for index, run in enumerate(runs):
        next_run = runs[index + 1] if index + 1 < len(runs) else ()
        answered_ids = {result_id(block) for at in next_run for block in entries[at].content}
        missing = {id: call for id, call in _calls_in(entries, run).items() if id not in answered_ids}
        if missing:
            results = tuple(lost.get(id) or _interrupted(id, call.name) for id, call in missing.items())
            yield Splice(run[-1] + 1, 0, (Passage("user", results),))


def _remove_stray(entries: Sequence[Passage], stray: AbstractSet[tuple[int, int]]) -> Iterator[Splice]:
    for at in sorted({at for at, _ in stray}):
        blocks = enumerate(entries[at].content)
        remaining = tuple(block for position, block in blocks if (at, position) not in stray)
        yield Splice(at, 1, (msgspec.structs.replace(entries[at], content=remaining),) if remaining else ())


def _calls_in(entries: Sequence[Passage], run: _Run) -> dict[str, ToolUse]:
    spoken = (block for at in run if entries[at].role == "assistant" for block in entries[at].content)
    return {call.id: call for block in spoken if (call := call_in(block)) is not None}


def _interrupted(id: str, name: str) -> ToolResult:
    return ToolResult(id, (Text(INTERRUPTED),), is_error=True, name=name)
