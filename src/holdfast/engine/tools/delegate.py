"""Delegation: a model hands a task to a child session, which starts with the same prefix and reads it from cache."""

import asyncio
from contextlib import suppress
from decimal import Decimal
from typing import Literal

from msgspec.structs import replace

from holdfast.engine.budget import budget_owner, committed_usd
from holdfast.engine.cache.explicit_cache import delete_explicit_cache
from holdfast.engine.cache.plan import record_learned
from holdfast.engine.conversation import Conversation
from holdfast.engine.loop import TurnResult, run_turn
from holdfast.engine.state import SessionState
from holdfast.engine.tools.definition import Tool, ToolContext, ToolError, tool
from holdfast.errors import HoldfastError, StoreError
from holdfast.events.log import EventBus
from holdfast.events.payloads.session import (
    DelegationCompleted,
    DelegationStarted,
    EpochOpened,
    ParentSession,
    SessionEnded,
    SessionStarted,
)
from holdfast.sources.files import to_one_line
from holdfast.types.blocks import Text

DELEGATE_TOOL = "delegate"
# By default a child may not delegate further, so that a task cannot multiply.
DEPTH_MAX = 1
DELEGATION_SECONDS_MAX = 1800.0  # A child runs whole turns with tools; other tools have ten minutes at most.
DelegationOutcome = Literal["completed", "failed", "cancelled"]
_DISPOSITIONS: dict[DelegationOutcome, Literal["completed", "abandoned", "error"]] = {
    "completed": "completed",
    "failed": "error",
    "cancelled": "abandoned",
}


class Delegation:
    """The `delegate` tool of one conversation; at most `at_once_max` of its children run at the same time."""

    def __init__(self, *, at_once_max: int | None = None, depth_max: int = DEPTH_MAX) -> None:
        self._at_once_max = at_once_max
        self._depth_max = depth_max
        self._slots = asyncio.Semaphore(at_once_max) if at_once_max else None
        self._parent: Conversation | None = None

    @property
    def tool(self) -> Tool:
        return tool(self.delegate, name=DELEGATE_TOOL, timeout_seconds=DELEGATION_SECONDS_MAX)

    def set_parent(self, parent: Conversation) -> None:
        """Set the delegating conversation, which is created after its tools and cannot be passed to the constructor."""
        self._parent = parent

    async def delegate(self, task: str, context: ToolContext) -> str:
        """Hand a task to a second session that has the same instructions and tools, and get its final answer as text.

        It sees nothing of this conversation: the task must say all that it needs, which is the goal, the files or facts
        it concerns, and what to report. Use it for work whose details need not be seen here, such as a search through
        many files. Tasks that do not depend on one another can be handed over at once; they are worked on side by side.
        """
        parent = self._parent
        assert parent is not None
        depth = parent.state.parent.depth if parent.state.parent else 0
        if depth >= self._depth_max:
            reason = "This task was itself delegated, and may not be delegated further: do it here."
            raise ToolError(reason, kind="permission_denied")
        if not task.strip():
            raise ToolError("The task is empty: say what is to be done.", kind="validation_error")
        if self._slots is None:
            return await self._run(parent, task, context.tool_use_id)
        async with self._slots:
            return await self._run(parent, task, context.tool_use_id)

    async def _run(self, parent: Conversation, task: str, tool_use_id: str) -> str:
        child = self._new_child(parent)
        outcome: DelegationOutcome = "failed"
        await parent.record("tool", DelegationStarted(tool_use_id, child.state.session_id))
        parent.children.append(child)
        try:
            await child.record("system", *_first_events(parent, tool_use_id))
            answer = await run_turn(child, (Text(task),), lambda delta: None)
            outcome = "completed"
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except HoldfastError as error:
            raise ToolError(f"The delegated task failed: {to_one_line(str(error).encode())}") from error
        finally:
            await _finish_child(parent, child, outcome)
        return _answer_text(answer)

    def _new_child(self, parent: Conversation) -> Conversation:
        deps = parent.base_deps
        session_id = deps.new_id(deps.clock())
        child_delegation = Delegation(at_once_max=self._at_once_max, depth_max=self._depth_max)
        child_deps = replace(
            deps,
            toolbox=deps.toolbox.for_session(session_id, child_delegation.tool),
            bus=EventBus(),
            # A child is never idle, so it needs no keep-alive; its spending counts against the parent's limit.
            keep_alive=None,
            spend_max_usd=None,
        )
        child = Conversation(child_deps, SessionState(session_id), parent=parent)
        child_delegation.set_parent(child)
        return child


def _first_events(parent: Conversation, tool_use_id: str) -> tuple[SessionStarted, EpochOpened]:
    """The first events of a child: the parent's prefix byte for byte and its parameters, so that both share a cache."""
    state, deps, payer = parent.state, parent.deps, budget_owner(parent)
    grandparent = state.parent
    limit = payer.deps.spend_max_usd
    started = SessionStarted(
        model=deps.model.id,
        workspace_path=state.workspace_path,
        workspace_hash=deps.learning_scope.workspace_hash,
        profile=state.profile,
        layout=state.layout,
        spend_max_usd=None if limit is None else max(limit - committed_usd(payer), Decimal(0)),
        parameters=deps.parameters,
        parent=ParentSession(
            session_id=state.session_id,
            tool_use_id=tool_use_id,
            prefix_session_id=grandparent.prefix_session_id if grandparent else state.session_id,
            depth=grandparent.depth + 1 if grandparent else 1,
        ),
        simulated=deps.simulated,
        user_id=state.user_id,
        team_id=state.team_id,
    )
    preloaded = state.activations.preloaded
    opened = EpochOpened(1, state.pinned, state.tools, skills=state.skills, padding=state.padding, preloaded=preloaded)
    return started, opened


async def _finish_child(parent: Conversation, child: Conversation, outcome: DelegationOutcome) -> None:
    """Close the child and add its cost to the parent, whatever the outcome."""
    try:
        # A failing store must not keep the child's cost from its parent.
        with suppress(StoreError):
            await delete_explicit_cache(child, "the delegated task is over")
            await record_learned(child)
            await child.record("system", _session_ended(child, outcome))
    finally:
        completed = DelegationCompleted(child.state.session_id, outcome, child.state.usage, child.state.cost_usd)
        try:
            await parent.record("tool", completed)
        finally:
            parent.children.remove(child)


def _session_ended(child: Conversation, outcome: DelegationOutcome) -> SessionEnded:
    state = child.state
    return SessionEnded(_DISPOSITIONS[outcome], state.turn_count, state.cost_usd, child.deps.clock() - state.started_at)


def _answer_text(answer: TurnResult) -> str:
    """The child's final answer, with a note if it is incomplete."""
    if not answer.text.strip():
        raise ToolError(f"The delegated task ended without an answer ({answer.stop_reason}).")
    if answer.stop_reason in ("end_turn", "stop_sequence"):
        return answer.text
    return f"{answer.text}\n\n[The answer is not complete: {answer.stop_reason}]"
