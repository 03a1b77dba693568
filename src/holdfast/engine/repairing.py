"""Recovery steps that change what a conversation sends, for live and for stored conversations."""

import asyncio
from typing import Protocol

from holdfast.canonical.blocks import is_thinking
from holdfast.clock import Clock, NewId
from holdfast.engine.pairing import paired, pairing_faults
from holdfast.engine.recovering import StepContext, StepFunction
from holdfast.engine.state import State, apply
from holdfast.errors import UserError
from holdfast.events.envelope import Actor, Event
from holdfast.events.log import Log
from holdfast.events.payloads import AnyPayload
from holdfast.events.payloads_recovery import AnyRecoveryPayload, PassagesMended, ProviderLimited, ThinkingDropped
from holdfast.recovery.ledger import Ledger
from holdfast.recovery.passages import newest_question
from holdfast.recovery.scenarios import StepName


class HoldsConversation(Protocol):
    """A state, and the only way to change it."""

    state: State

    async def record(self, actor: Actor, *payloads: AnyPayload) -> None: ...


class StoredConversation:
    """A conversation that no session has open: its log, and the state folded from it."""

    def __init__(self, log: Log, state: State, *, clock: Clock, new_id: NewId) -> None:
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
            self.state = apply(self.state, event)


class ConversationLedger:
    """Records recovery attempts as events of the conversation."""

    def __init__(self, conversation: HoldsConversation) -> None:
        self._conversation = conversation

    @property
    def ledger(self) -> Ledger:
        return self._conversation.state.incidents

    async def record(self, *payloads: AnyRecoveryPayload) -> None:
        await self._conversation.record("system", *payloads)


class ViewSteps:
    """Repairs that need events only. `changed` says whether the view or its limits changed since it was last reset."""

    def __init__(self, conversation: HoldsConversation, *, binds_thinking: bool) -> None:
        self._conversation = conversation
        self._binds_thinking = binds_thinking
        self.changed = False

    @property
    def steps(self) -> dict[StepName, StepFunction]:
        return {
            StepName.RepairView: self._repair_view,
            StepName.RevalidateView: self._revalidate_view,
            StepName.DropOldThinking: self._drop_old_thinking,
            StepName.DropAllThinking: self._drop_all_thinking,
            StepName.DropAllMarkers: self._drop_all_markers,
        }

    async def change(self, payload: PassagesMended | ThinkingDropped | ProviderLimited) -> None:
        before = self._conversation.state
        await self._conversation.record("system", payload)
        after = self._conversation.state
        self.changed = self.changed or (after.passages, after.limits) != (before.passages, before.limits)

    async def _repair_view(self, context: StepContext) -> str:
        splices = paired(self._conversation.state.passages)
        if not splices:
            raise UserError("every call has its result, and every result its call")
        await self.change(PassagesMended(context.scenario.value, splices))
        return f"repaired in {len(splices)} places"

    async def _revalidate_view(self, context: StepContext) -> None:
        del context
        if faults := pairing_faults(self._conversation.state.passages):
            raise UserError(faults[0])

    async def _drop_old_thinking(self, context: StepContext) -> str:
        """Where thinking is bound to everything before it, removing one block invalidates all later ones."""
        entries = self._conversation.state.passages
        return await self._drop_thinking(context, len(entries) if self._binds_thinking else newest_question(entries))

    async def _drop_all_thinking(self, context: StepContext) -> str:
        return await self._drop_thinking(context, len(self._conversation.state.passages))

    async def _drop_thinking(self, context: StepContext, entries: int) -> str:
        all_blocks = (block for entry in self._conversation.state.passages[:entries] for block in entry.content)
        thinking_blocks = sum(map(is_thinking, all_blocks))
        if thinking_blocks:
            await self.change(ThinkingDropped(context.scenario.value, entries, thinking_blocks))
        return f"dropped thinking blocks: {thinking_blocks}"

    async def _drop_all_markers(self, context: StepContext) -> str:
        await self.change(ProviderLimited(context.scenario.value, marks_max=0))
        return "no breakpoints are set from now on"
