"""What a tool is told besides its arguments, and what it tells besides its output."""

import threading
from pathlib import Path

import msgspec

from holdfast.canonical.blocks import Json
from holdfast.engine.activation import STANDARD_LIMITS, ActivationLimits, SkillActivationRegistry
from holdfast.events.payloads import AnyPayload
from holdfast.sources.confined import Roots
from holdfast.sources.skills.store import SkillStore


class Surroundings(msgspec.Struct, frozen=True):
    """What is the same for all calls of a session. `output_folder` is where long outputs are kept whole.

    With `enforce_allowed_tools` a skill that the model has loaded says which calls may follow.
    """

    session_id: str = ""
    roots: Roots | None = None
    output_folder: Path | None = None
    skills: SkillStore | None = None
    activation_limits: ActivationLimits = STANDARD_LIMITS
    enforce_allowed_tools: bool = False


NOWHERE = Surroundings()


class ToolContext:
    """One call, as its function sees it: give a parameter this type, and the model does not see the parameter.

    `stopped` is set when the call has run out of time or was cancelled: a function that takes long looks at it.
    `metadata` is for callers in this process; it reaches neither the model nor the log.
    """

    def __init__(
        self,
        around: Surroundings,
        *,
        tool_use_id: str,
        turn_id: str | None = None,
        skill_activations: SkillActivationRegistry | None = None,
    ) -> None:
        self.session_id = around.session_id
        self.turn_id = turn_id
        self.tool_use_id = tool_use_id
        self.roots = around.roots
        self.output_folder = around.output_folder
        self.skills = around.skills
        self.skill_activations = skill_activations or SkillActivationRegistry(limits=around.activation_limits)
        self.stopped = threading.Event()
        self.success = True
        self.files_modified: list[str] = []
        self.command_executed: str | None = None
        self.metadata: dict[str, Json] = {}
        self._noted: list[AnyPayload] = []

    @property
    def workspace(self) -> Path | None:
        return self.roots.workspace if self.roots else None

    def note(self, payload: AnyPayload) -> None:
        """Have an event recorded with this call, in front of its end; safe in any thread."""
        self._noted.append(payload)

    def take_notes(self) -> list[AnyPayload]:
        noted, self._noted = self._noted, []
        return noted
