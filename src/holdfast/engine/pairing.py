"""Which calls of a conversation have lost their results, which results their calls, and how that is mended."""

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
"""Neighbouring passages of one role, by their places."""

_PAIRING = ("call_open", "call_unanswered", "result_repeated", "result_without_call")


def pairing_faults(entries: Sequence[Passage]) -> tuple[str, ...]:
    """What is wrong with calls and results, in words that quote no content."""
    found = validate(messages_of(entries), complete=True)
    return tuple(finding.text for finding in found if finding.rule in _PAIRING)


def paired(entries: Sequence[Passage]) -> tuple[Splice, ...]:
    """What makes every call answered and every result an answer; nothing else is touched.

    A result that stands elsewhere is put where it belongs, and a call without one is said to be interrupted. A result
    without a call leaves the view: as anyone's text it would speak with a voice that is not its own.
    """
    runs = [tuple(run) for _, run in groupby(range(len(entries)), key=lambda at: entries[at].role)]
    stray = _stray_results(entries, runs)
    lost: dict[str | None, Block] = {}
    for at, position in sorted(stray):
        block = entries[at].content[position]
        lost.setdefault(result_id(block), block)
    splices = [*_answering(entries, runs, lost), *_without(entries, stray)]
    return tuple(sorted(splices, key=lambda splice: (splice.at, splice.removed)))


def _stray_results(entries: Sequence[Passage], runs: Sequence[_Run]) -> set[tuple[int, int]]:
    """Where the results stand that answer no call of the message before, or one that is answered already."""
    stray: set[tuple[int, int]] = set()
    waiting: set[str] = set()
    for run in runs:
        for at in run:
            for position, block in enumerate(entries[at].content):
                answers = result_id(block)
                if answers is not None and answers not in waiting:
                    stray.add((at, position))
                waiting.discard(answers or "")
        waiting = set(_calls_in(entries, run))
    return stray


def _answering(entries: Sequence[Passage], runs: Sequence[_Run], lost: Mapping[str | None, Block]) -> Iterator[Splice]:
    for index, run in enumerate(runs):
        following = runs[index + 1] if index + 1 < len(runs) else ()
        answered = {result_id(block) for at in following for block in entries[at].content}
        missing = {id: call for id, call in _calls_in(entries, run).items() if id not in answered}
        if missing:
            results = tuple(lost.get(id) or _interrupted(id, call.name) for id, call in missing.items())
            yield Splice(run[-1] + 1, 0, (Passage("user", results),))


def _without(entries: Sequence[Passage], stray: AbstractSet[tuple[int, int]]) -> Iterator[Splice]:
    for at in sorted({at for at, _ in stray}):
        blocks = enumerate(entries[at].content)
        left = tuple(block for position, block in blocks if (at, position) not in stray)
        yield Splice(at, 1, (msgspec.structs.replace(entries[at], content=left),) if left else ())


def _calls_in(entries: Sequence[Passage], run: _Run) -> dict[str, ToolUse]:
    spoken = (block for at in run if entries[at].role == "assistant" for block in entries[at].content)
    return {call.id: call for block in spoken if (call := call_in(block)) is not None}


def _interrupted(id: str, name: str) -> ToolResult:
    return ToolResult(id, (Text(INTERRUPTED),), is_error=True, name=name)
