"""Who asks, and whose instructions that one may see."""

from collections.abc import Callable

import msgspec

from holdfast.instructions.failures import InstructionError
from holdfast.instructions.values import Agent

FindAgent = Callable[[str], Agent | None]
"""Who is registered under an id or a shortname."""


def _nobody(name: str) -> Agent | None:
    return None


class Caller(msgspec.Struct, frozen=True):
    scope: str
    key_id: str
    entity: str | None = None

    @property
    def is_admin(self) -> bool:
        return self.scope == "admin"

    @property
    def author(self) -> str:
        """As whom the caller writes."""
        return self.entity or f"key:{self.key_id}"

    @property
    def agent_name(self) -> str | None:
        kind, _, name = self.scope.partition(":")
        return name if kind == "agent" and name else None


def is_self(caller: Caller, said: str, agent: Agent | None) -> bool:
    """Whether the path, or the agent it means, is the one of the key; names are compared whole."""
    names = {said} if agent is None else {said, agent.id, agent.shortname}
    return caller.agent_name is not None and caller.agent_name in names


def check_own(caller: Caller, said: str, agent: Agent | None, find: FindAgent = _nobody) -> None:
    """Raises InstructionError for all but admins and the agent itself, whether the agent exists or not."""
    if not (caller.is_admin or is_self(caller, said, agent)):
        raise denied()


def check_may_recall(caller: Caller, said: str, agent: Agent | None, find: FindAgent = _nobody) -> None:
    """Supervisors too may ask what an agent would be told."""
    if not (caller.is_admin or is_self(caller, said, agent) or _supervises(caller, agent, find)):
        raise denied()


def _supervises(caller: Caller, agent: Agent | None, find: FindAgent) -> bool:
    """By the name of its key, or by the other name of the agent that is registered under it."""
    name = caller.agent_name
    if agent is None or name is None or not agent.supervisors:
        return False
    known = None if name in agent.supervisors else find(name)
    names = (name,) if known is None else (known.id, known.shortname)
    return any(one in agent.supervisors for one in names)


def check_has_instructions(
    caller: Caller, said: str = "", agent: Agent | None = None, find: FindAgent = _nobody
) -> None:
    """For routes that name no agent: admins, and agents of whatever name."""
    if not (caller.is_admin or caller.agent_name is not None):
        raise denied()


def denied() -> InstructionError:
    return InstructionError("instruction_scope_denied", "this key may not see or change the instructions of that agent")
