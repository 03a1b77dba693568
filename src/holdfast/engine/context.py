"""The context of a tool call: what a tool function receives besides its arguments and reports besides its output."""

import threading
from pathlib import Path

import msgspec

from holdfast.canonical.blocks import Json
from holdfast.engine.activation import STANDARD_LIMITS, ActivationLimits, SkillActivationRegistry
from holdfast.events.payloads import AnyPayload
from holdfast.sources.confined import Roots
from holdfast.sources.skills.store import SkillStore


class Surroundings(msgspec.Struct, frozen=True):
    """What all calls of a session share. `output_folder` is where long outputs are stored in full.

    With `enforce_allowed_tools`, a skill that the model has loaded restricts which calls may follow.
    """

    session_id: str = ""
    roots: Roots | None = None
    output_folder: Path | None = None
    skills: SkillStore | None = None
    activation_limits: ActivationLimits = STANDARD_LIMITS
    enforce_allowed_tools: bool = False


NOWHERE = Surroundings()


class ToolContext:
    """One call, passed to the tool function's parameter of this type, which is hidden from the model.

    `stopped` is set when the call has timed out or was cancelled; a long-running function should check it. `metadata`
    is for callers in this process and goes neither to the model nor into the log.
    """

    def __init__(
        self,
        environment: Surroundings,
        *,
        tool_use_id: str,
        turn_id: str | None = None,
        skill_activations: SkillActivationRegistry | None = None,
    ) -> None:
        self.session_id = environment.session_id
        self.turn_id = turn_id
        self.tool_use_id = tool_use_id
        self.roots = environment.roots
        self.output_folder = environment.output_folder
        self.skills = environment.skills
        self.skill_activations = skill_activations or SkillActivationRegistry(limits=environment.activation_limits)
        # A threading.Event, because tools run in threads of their own.
        self.stopped = threading.Event()
        self.success = True
        self.files_modified: list[str] = []
        self.command_executed: str | None = None
        self.metadata: dict[str, Json] = {}
        self._pending_events: list[AnyPayload] = []

    @property
    def workspace(self) -> Path | None:
        return self.roots.workspace if self.roots else None

    def note(self, payload: AnyPayload) -> None:
        """Record an event with this call, before the event of its end; may be called in any thread."""
        self._pending_events.append(payload)

    def take_notes(self) -> list[AnyPayload]:
        pending, self._pending_events = self._pending_events, []
        return pending
