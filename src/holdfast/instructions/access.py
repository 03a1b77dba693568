"""Access control for instructions: who the caller is, and which agents' instructions it may see."""

from collections.abc import Callable

import msgspec

from holdfast.errors import InstructionError
from holdfast.instructions.models import Agent

FindAgent = Callable[[str], Agent | None]
"""Looks up an agent by id or shortname."""


def _no_agent(name: str) -> Agent | None:
    return None


class InstructionCaller(msgspec.Struct, frozen=True):
    scope: str
    key_id: str
    entity: str | None = None

    @property
    def is_admin(self) -> bool:
        return self.scope == "admin"

    @property
    def author(self) -> str:
        """The author recorded for what the caller writes."""
        return self.entity or f"key:{self.key_id}"

    @property
    def agent_name(self) -> str | None:
        kind, _, name = self.scope.partition(":")
        return name if kind == "agent" and name else None


def is_same_agent(caller: InstructionCaller, agent_name: str, agent: Agent | None) -> bool:
    """Whether the key belongs to the named agent, by id or shortname; names are compared whole."""
    return caller.agent_name in (agent_name, *(agent.names if agent else ()))


def check_owner_access(
    caller: InstructionCaller, agent_name: str, agent: Agent | None, find: FindAgent = _no_agent
) -> None:
    """Allow admins and the agent itself; the error is the same whether the agent exists or not."""
    if not (caller.is_admin or is_same_agent(caller, agent_name, agent)):
        raise access_denied_error()


def check_recall_access(
    caller: InstructionCaller, agent_name: str, agent: Agent | None, find: FindAgent = _no_agent
) -> None:
    """Allow admins, the agent itself, and its supervisors."""
    if not (caller.is_admin or is_same_agent(caller, agent_name, agent) or _supervises(caller, agent, find)):
        raise access_denied_error()


def _supervises(caller: InstructionCaller, agent: Agent | None, find: FindAgent) -> bool:
    """Whether the caller is a supervisor of the agent, under its id or its shortname."""
    name = caller.agent_name
    if agent is None or name is None or not agent.supervisors:
        return False
    supervisor = None if name in agent.supervisors else find(name)
    return any(alias in agent.supervisors for alias in ((name,) if supervisor is None else supervisor.names))


def check_instruction_access(
    caller: InstructionCaller, agent_name: str = "", agent: Agent | None = None, find: FindAgent = _no_agent
) -> None:
    """For routes without an agent in the path: allow admins and any agent."""
    if not (caller.is_admin or caller.agent_name is not None):
        raise access_denied_error()


def access_denied_error() -> InstructionError:
    return InstructionError("instruction_scope_denied", "this key may not see or change the instructions of that agent")
