"""How a model hands a task to a session of its own, which begins with the same bytes and reads them from cache."""

import asyncio
from contextlib import suppress
from decimal import Decimal
from typing import Literal

import msgspec

from holdfast.canonical.blocks import Text
from holdfast.engine.context import ToolContext
from holdfast.engine.conversation import Conversation
from holdfast.engine.keeping import let_go
from holdfast.engine.state import State
from holdfast.engine.teaching import teach
from holdfast.engine.tools import Tool, ToolError, tool
from holdfast.engine.turn import Answer, run_turn
from holdfast.errors import HoldfastError, StoreError
from holdfast.events.bus import Bus
from holdfast.events.payloads import (
    DelegationCompleted,
    DelegationStarted,
    EpochOpened,
    Parent,
    SessionEnded,
    SessionStarted,
)
from holdfast.sources.text import one_line

NAME = "delegate"
DEPTH_MAX = 1
DELEGATION_SECONDS_MAX = 1800.0

Outcome = Literal["completed", "failed", "cancelled"]


class Delegation:
    """The `delegate` tool of one conversation: at most `at_once_max` of its children work at the same time."""

    def __init__(self, *, at_once_max: int | None = None, depth_max: int = DEPTH_MAX) -> None:
        self._at_once_max = at_once_max
        self._depth_max = depth_max
        self._places = asyncio.Semaphore(at_once_max) if at_once_max else None
        self._parent: Conversation | None = None

    @property
    def tool(self) -> Tool:
        return tool(self.delegate, name=NAME, timeout_seconds=DELEGATION_SECONDS_MAX)

    def work_for(self, parent: Conversation) -> None:
        """Whose calls these are; it is there only once its tools are."""
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
            raise ToolError(
                "This task was itself delegated, and may not be delegated further: do it here.",
                kind="permission_denied",
            )
        if not task.strip():
            raise ToolError("The task is empty: say what is to be done.", kind="validation_error")
        if self._places is None:
            return await self._run(parent, task, context.tool_use_id)
        async with self._places:
            return await self._run(parent, task, context.tool_use_id)

    async def _run(self, parent: Conversation, task: str, tool_use_id: str) -> str:
        child = self._child_of(parent)
        outcome: Outcome = "failed"
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
            raise ToolError(f"The delegated task failed: {one_line(str(error).encode())}") from error
        finally:
            await _settle(parent, child, outcome)
        return _told(answer)

    def _child_of(self, parent: Conversation) -> Conversation:
        parts = parent.given
        session_id = parts.new_id(parts.clock())
        below = Delegation(at_once_max=self._at_once_max, depth_max=self._depth_max)
        own = msgspec.structs.replace(
            parts,
            toolbox=parts.toolbox.lent(session_id, below.tool),
            bus=Bus(),
            # Nobody waits for a child that is idle, and its money is its parent's.
            keep_alive=None,
            spend_max_usd=None,
        )
        child = Conversation(own, State(session_id), parent=parent)
        below.work_for(child)
        return child


def _first_events(parent: Conversation, tool_use_id: str) -> tuple[SessionStarted, EpochOpened]:
    """The same head byte for byte, under the same parameters: that is what makes it the same cache."""
    state, parts, payer = parent.state, parent.parts, parent.payer
    above = state.parent
    limit = payer.parts.spend_max_usd
    started = SessionStarted(
        model=parts.model.id,
        workspace_path=state.workspace_path,
        workspace_hash=parts.scene.workspace_hash,
        profile=state.profile,
        layout=state.layout,
        spend_max_usd=None if limit is None else max(limit - payer.committed_usd, Decimal(0)),
        parameters=parts.parameters,
        parent=Parent(
            session_id=state.session_id,
            tool_use_id=tool_use_id,
            head_session_id=above.head_session_id if above else state.session_id,
            depth=above.depth + 1 if above else 1,
        ),
        simulated=parts.simulated,
        user_id=state.user_id,
        team_id=state.team_id,
    )
    return started, EpochOpened(1, state.pinned, state.tools, skills=state.skills, padding=state.padding)


async def _settle(parent: Conversation, child: Conversation, outcome: Outcome) -> None:
    """Whatever happened, the child is closed and its cost is its parent's."""
    try:
        with suppress(StoreError):
            await let_go(child, "the delegated task is over")
            await teach(child)
            await child.record("system", _ended(child, outcome))
    finally:
        taken = DelegationCompleted(child.state.session_id, outcome, child.state.usage, child.state.cost_usd)
        try:
            await parent.record("tool", taken)
        finally:
            parent.children.remove(child)


def _ended(child: Conversation, outcome: Outcome) -> SessionEnded:
    state = child.state
    match outcome:
        case "completed":
            disposition: Literal["completed", "abandoned", "error"] = "completed"
        case "failed":
            disposition = "error"
        case "cancelled":
            disposition = "abandoned"
    return SessionEnded(disposition, state.turn_count, state.cost_usd, child.parts.clock() - state.started_at)


def _told(answer: Answer) -> str:
    """The child's last words, and that they are not all of them where that is so."""
    if not answer.text.strip():
        raise ToolError(f"The delegated task ended without an answer ({answer.stop_reason}).")
    if answer.stop_reason in ("end_turn", "stop_sequence"):
        return answer.text
    return f"{answer.text}\n\n[The answer is not complete: {answer.stop_reason}]"
