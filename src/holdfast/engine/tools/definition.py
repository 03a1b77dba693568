"""Tool definitions: a Python function together with the specification that the model sees."""

import functools
import inspect
import threading
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from holdfast.engine.tools.output import OUTPUT_CHARACTERS_MAX
from holdfast.engine.tools.skill_budget import DEFAULT_LIMITS, ActivationLimits, SkillActivationRegistry
from holdfast.errors import UserError
from holdfast.events.payloads.calls import SideEffects, ToolErrorClass
from holdfast.events.payloads.union import AnyPayload
from holdfast.sources.confined_paths import Roots
from holdfast.sources.skills.store import SkillStore
from holdfast.types.blocks import Image, Json, Text
from holdfast.types.tool_spec import ToolSpec, build_tool_spec, tool_spec_from_function

ToolOutput = str | Text | Image | Sequence[Text | Image] | Json
ToolFunction = Callable[..., ToolOutput | Awaitable[ToolOutput]]
TIMEOUT_SECONDS = 60.0

LONG_TIMEOUT_SECONDS = 600.0
"""For tools that run commands or use the network."""


class ToolError(Exception):
    """Raised by a tool with a message for the model on why the call failed; `kind` is recorded in the log."""

    kind: ToolErrorClass = "execution_error"

    def __init__(self, *words: object, kind: ToolErrorClass = "execution_error") -> None:
        super().__init__(*words)
        self.kind = kind


class Tool(msgspec.Struct, frozen=True):
    """A function and its specification.

    `paths` names the arguments that are paths: a call in which one leads out of the workspace is refused.
    `context_parameter` is the parameter that takes the `ToolContext`, if there is one. If `needs_confirmation` is
    false, calls run without confirmation, whatever the side effects.
    """

    spec: ToolSpec
    run: ToolFunction
    side_effects: SideEffects = "none"
    timeout_seconds: float = TIMEOUT_SECONDS
    paths: tuple[str, ...] = ()
    context_parameter: str | None = None
    needs_confirmation: bool = True
    output_characters_max: int = OUTPUT_CHARACTERS_MAX


def tool(
    function: ToolFunction,
    *,
    name: str | None = None,
    description: str | None = None,
    input_schema: Mapping[str, Json] | None = None,
    side_effects: SideEffects = "none",
    timeout_seconds: float | None = None,
    paths: Sequence[str] = (),
) -> Tool:
    """Make a tool from a function; name, description and schema default to its name, docstring and annotations.

    The default timeout is one minute, or ten for a tool that executes something or uses the network.
    """
    readable = _as_function(function)
    _check_texts(name=name, description=description)
    context = _context_parameter(readable)
    if input_schema is not None:
        text = description if description is not None else inspect.getdoc(readable) or ""
        spec = build_tool_spec(name if name is not None else readable.__name__, text, input_schema)
    else:
        spec = tool_spec_from_function(readable, name=name, description=description, hidden=context)
    _check_side_effects(spec, side_effects, timeout_seconds)
    if timeout_seconds is None:
        timeout_seconds = LONG_TIMEOUT_SECONDS if side_effects in ("execute", "network") else TIMEOUT_SECONDS
    _check_paths(spec, paths)
    return Tool(spec, function, side_effects, timeout_seconds, tuple(paths), context)


def _check_texts(**texts: object) -> None:
    for field, text in texts.items():
        if not isinstance(text, str | None):
            raise UserError(f"the {field} of a tool must be text, not {type(text).__name__}")


def _check_side_effects(spec: ToolSpec, side_effects: object, timeout_seconds: object) -> None:
    # A call with an unknown side effect would never be confirmed, because it is in no `confirm_for`.
    known = typing.get_args(SideEffects)
    if side_effects not in known:
        raise UserError(f"tool {spec.name!r}: unknown side effect {side_effects!r:.80}; known: {', '.join(known)}")
    if timeout_seconds is None or (isinstance(timeout_seconds, int | float) and timeout_seconds > 0):
        return
    raise UserError(f"tool {spec.name!r}: timeout_seconds must be a number above 0, not {timeout_seconds!r:.80}")


def _check_paths(spec: ToolSpec, paths: Sequence[str]) -> None:
    if isinstance(paths, str):
        raise UserError(f"tool {spec.name!r}: paths must be a list of names of parameters, not one text")
    parameters = msgspec.json.decode(spec.input_schema_json).get("properties", {})
    if unknown := next((path for path in paths if path not in parameters), None):
        raise UserError(f"tool {spec.name!r} has no parameter {unknown!r} that could be a path")


def _context_parameter(function: Callable[..., object]) -> str | None:
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError, SyntaxError, AttributeError):
        # If a schema is derived from these annotations, `tool_spec_from_function` raises with the details.
        return None
    return next((name for name, hint in hints.items() if hint is ToolContext and name != "return"), None)


def _as_function(function: ToolFunction) -> Callable[..., object]:
    """A partial or a callable object as a function with its signature, without the arguments that are bound."""
    bound: set[str] = set()
    inner: Callable[..., object] = function
    while isinstance(inner, functools.partial):
        bound |= inner.keywords.keys()
        inner = inner.func
    if inner is function and hasattr(function, "__name__"):
        return function
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return function

    def stand_in() -> None: ...

    functools.update_wrapper(stand_in, inner if hasattr(inner, "__name__") else type(inner).__call__)
    if not hasattr(inner, "__name__"):
        stand_in.__name__ = type(inner).__name__
        stand_in.__doc__ = inspect.getdoc(inner) or stand_in.__doc__
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name not in bound]
    stand_in.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # PEP 362
    return stand_in


METADATA_BYTES_MAX = 16_384


class ToolEnvironment(msgspec.Struct, frozen=True):
    """What all calls of a session share. `output_folder` is where long outputs are stored in full.

    With `enforce_allowed_tools`, a skill that the model has loaded restricts which calls may follow.
    """

    session_id: str = ""
    roots: Roots | None = None
    output_folder: Path | None = None
    skills: SkillStore | None = None
    activation_limits: ActivationLimits = DEFAULT_LIMITS
    enforce_allowed_tools: bool = False


NO_ENVIRONMENT = ToolEnvironment()


class ToolContext:
    """One call, passed to the tool function's parameter of this type, which is hidden from the model.

    `stopped` is set when the call has timed out or was cancelled; a long-running function should check it. `metadata`
    is recorded with the call's end and does not go to the model; it must be JSON of at most `METADATA_BYTES_MAX` bytes.
    """

    def __init__(
        self,
        environment: ToolEnvironment,
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

    def record_event(self, payload: AnyPayload) -> None:
        """Record an event with this call, before the event of its end; may be called in any thread."""
        self._pending_events.append(payload)

    def take_events(self) -> list[AnyPayload]:
        pending, self._pending_events = self._pending_events, []
        return pending
