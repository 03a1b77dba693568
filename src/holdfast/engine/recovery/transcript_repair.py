"""Recovery steps that change what a conversation sends, for live and for stored conversations."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby

from msgspec.structs import replace

from holdfast.clock import Clock, NewId
from holdfast.engine.recovery.runner import ConversationLike, StepContext, StepFunction
from holdfast.engine.reducer import apply_event
from holdfast.engine.state import SessionState
from holdfast.engine.tools.dispatch import error_result
from holdfast.errors import UserError
from holdfast.events.log import Actor, Event, EventLog
from holdfast.events.payloads.recovery import ContextRepaired, ProviderLimited, Splice, ThinkingDropped
from holdfast.events.payloads.union import AnyPayload
from holdfast.recovery.history_edits import find_last_user_message
from holdfast.recovery.scenarios import StepName
from holdfast.types.blocks import Block, ToolUse, get_result_call_id, is_thinking, parse_tool_call
from holdfast.types.prompt import HistoryEntry
from holdfast.types.transcript import merge_into_messages, validate_transcript

# The text that answers a tool call which was interrupted before its result arrived. The model reads it: rewording it
# would change the bytes of a prompt.
INTERRUPTED_RESULT_TEXT = "This call was interrupted before it gave a result."


class StoredConversation:
    """A conversation that no session has open: its log, and the state folded from it."""

    def __init__(self, log: EventLog, state: SessionState, *, clock: Clock, new_id: NewId) -> None:
        self._log = log
        self._clock = clock
        self._new_id = new_id
        self.state = state

    async def record(self, actor: Actor, *payloads: AnyPayload) -> None:
        for payload in payloads:
            at = self._clock()
            parent_id, session_id = self.state.last_event_id, self.state.session_id
            event = Event(self._new_id(at), at, session_id, actor, payload, parent_event_id=parent_id)
            await asyncio.wrap_future(self._log.append((event,)))
            self.state = apply_event(self.state, event)


class RepairSteps:
    """Repairs that need events only. `has_changed`: the view or its limits changed since this was last reset."""

    def __init__(self, conversation: ConversationLike, *, binds_thinking: bool) -> None:
        self._conversation = conversation
        self._binds_thinking = binds_thinking
        self.has_changed = False

    @property
    def steps(self) -> dict[StepName, StepFunction]:
        return {
            StepName.RepairView: self._repair_view,
            StepName.RevalidateView: self._revalidate_view,
            StepName.DropOldThinking: self._drop_old_thinking,
            StepName.DropAllThinking: self._drop_all_thinking,
            StepName.DropAllMarkers: self._drop_all_markers,
        }

    async def apply_change(self, payload: ContextRepaired | ThinkingDropped | ProviderLimited) -> None:
        before = self._conversation.state
        await self._conversation.record("system", payload)
        after = self._conversation.state
        self.has_changed = self.has_changed or (after.entries, after.limits) != (before.entries, before.limits)

    async def _repair_view(self, context: StepContext) -> str:
        splices = repair_pairing(self._conversation.state.entries)
        if not splices:
            raise UserError("every call has its result, and every result its call")
        await self.apply_change(ContextRepaired(context.scenario.value, splices))
        return f"repaired in {len(splices)} places"

    async def _revalidate_view(self, _context: StepContext) -> None:
        if faults := find_pairing_faults(self._conversation.state.entries):
            raise UserError(faults[0])

    async def _drop_old_thinking(self, context: StepContext) -> str:
        """Where thinking is bound to everything before it, removing one block invalidates all later ones."""
        entries = self._conversation.state.entries
        count = len(entries) if self._binds_thinking else find_last_user_message(entries)
        return await self._drop_thinking(context, count)

    async def _drop_all_thinking(self, context: StepContext) -> str:
        return await self._drop_thinking(context, len(self._conversation.state.entries))

    async def _drop_thinking(self, context: StepContext, entries: int) -> str:
        all_blocks = (block for entry in self._conversation.state.entries[:entries] for block in entry.content)
        thinking_blocks = sum(map(is_thinking, all_blocks))
        if thinking_blocks:
            await self.apply_change(ThinkingDropped(context.scenario.value, entries, thinking_blocks))
        return f"dropped thinking blocks: {thinking_blocks}"

    async def _drop_all_markers(self, context: StepContext) -> str:
        await self.apply_change(ProviderLimited(context.scenario.value, breakpoints_max=0))
        return "no breakpoints are set from now on"


_Run = tuple[int, ...]
"""The indexes of consecutive entries of one role."""

_PAIRING = ("call_open", "call_unanswered", "result_repeated", "result_without_call")


def find_pairing_faults(entries: Sequence[HistoryEntry]) -> tuple[str, ...]:
    """The pairing problems, described without quoting content."""
    findings = validate_transcript(merge_into_messages(entries), complete=True)
    return tuple(finding.text for finding in findings if finding.rule in _PAIRING)


def repair_pairing(entries: Sequence[HistoryEntry]) -> tuple[Splice, ...]:
    """The splices after which every call has a result and every result a call; nothing else is touched.

    A misplaced result is moved to its call, and a call without one gets an "interrupted" result. A result without a
    call is removed from the view: turned into text, it would be attributed to the user or the model.
    """
    runs = [tuple(run) for _, run in groupby(range(len(entries)), key=lambda at: entries[at].role)]
    stray = _stray_results(entries, runs)
    lost: dict[str | None, Block] = {}
    for at, position in sorted(stray):
        block = entries[at].content[position]
        lost.setdefault(get_result_call_id(block), block)
    splices = [*_add_missing_results(entries, runs, lost), *_remove_stray(entries, stray)]
    return tuple(sorted(splices, key=lambda splice: (splice.at, splice.removed)))


def _stray_results(entries: Sequence[HistoryEntry], runs: Sequence[_Run]) -> set[tuple[int, int]]:
    """The positions of results that answer no call of the previous message, or one that already has a result."""
    stray: set[tuple[int, int]] = set()
    open_ids: set[str] = set()
    for run in runs:
        for at in run:
            for position, block in enumerate(entries[at].content):
                call_id = get_result_call_id(block)
                if call_id is not None and call_id not in open_ids:
                    stray.add((at, position))
                open_ids.discard(call_id or "")
        open_ids = set(_calls_in(entries, run))
    return stray


def _add_missing_results(
    entries: Sequence[HistoryEntry], runs: Sequence[_Run], lost: Mapping[str | None, Block]
) -> Iterator[Splice]:
    for index, run in enumerate(runs):
        next_run = runs[index + 1] if index + 1 < len(runs) else ()
        answered_ids = {get_result_call_id(block) for at in next_run for block in entries[at].content}
        missing = {id: call for id, call in _calls_in(entries, run).items() if id not in answered_ids}
        if missing:
            results = tuple(lost.get(id) or error_result(call, INTERRUPTED_RESULT_TEXT) for id, call in missing.items())
            yield Splice(run[-1] + 1, 0, (HistoryEntry("user", results),))


def _remove_stray(entries: Sequence[HistoryEntry], stray: AbstractSet[tuple[int, int]]) -> Iterator[Splice]:
    for at in sorted({at for at, _ in stray}):
        blocks = enumerate(entries[at].content)
        remaining = tuple(block for position, block in blocks if (at, position) not in stray)
        yield Splice(at, 1, (replace(entries[at], content=remaining),) if remaining else ())


def _calls_in(entries: Sequence[HistoryEntry], run: _Run) -> dict[str, ToolUse]:
    spoken = (block for at in run if entries[at].role == "assistant" for block in entries[at].content)
    return {call.id: call for block in spoken if (call := parse_tool_call(block)) is not None}
