"""The options of a session, checked by name and type before anything is opened."""

import difflib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Literal, Protocol, TypedDict, TypeGuard, cast, get_origin, runtime_checkable

import msgspec

from holdfast.catalog.lookup import Models
from holdfast.catalog.schema import Model
from holdfast.clock import Clock, NewId, Sleep
from holdfast.compaction.models import CompactionConfig, CompactionMode
from holdfast.engine.cache.single_flight import SingleFlight
from holdfast.engine.recovery.runner import StepFunction
from holdfast.engine.tools.definition import Tool, ToolFunction
from holdfast.engine.tools.permissions import Allowed, Confirm
from holdfast.errors import UserError
from holdfast.events.log import EventListener, EventLog
from holdfast.events.payloads.calls import SideEffects
from holdfast.layers.padding import Padding
from holdfast.planning.breakpoints import CacheProfile
from holdfast.providers.adapter import Adapter
from holdfast.providers.wire_request import Transport
from holdfast.runtime.config import Config, Diagnostics, DigestRefresh
from holdfast.sources.skills.skill import SkillMode, SkillRanking
from holdfast.sources.skills.store import SkillStore
from holdfast.types.blocks import Json, replace_surrogates
from holdfast.types.prompt import LayerText, Layout, Parameters

VolatileText = str | Callable[[], str | Awaitable[str]]
VolatileLayers = Sequence[LayerText] | Callable[[], Sequence[LayerText] | Awaitable[Sequence[LayerText]]]


# Checked by isinstance, because a plain transport is also accepted in the same option.
@runtime_checkable
class TransportProvider(Protocol):
    """A substitute for any provider, such as the simulator."""

    def create_transport(self, models: Models, *, provider: str) -> Transport: ...


class SessionInstructions(msgspec.Struct, frozen=True):
    """An agent's instructions for a session. Defined here, because `runtime.instructions` needs an extra package.

    The text is pinned for an epoch; tool results become history. `listener` receives the session's events.
    """

    text: str
    tools: tuple[Tool, ...]
    listener: EventListener | None = None


class Options(TypedDict, total=False):
    """The keyword arguments of `Session.create` and `Session.resume`, which documents them."""

    # Prompt.
    model: str
    system_prompt: str
    preset_name: str
    persona: str
    persona_name: str
    system_prompt_volatile: VolatileText
    volatile: VolatileLayers
    workspace: str | Path
    another_workspace: bool
    name: str
    # Tools.
    tools: Sequence[Tool | ToolFunction]
    builtin_tools: bool | Sequence[str]
    read_roots: Sequence[str | Path]
    command_variables: Sequence[str]
    memory: bool
    delegate: bool | int
    delegation_depth_max: int
    allowed: Allowed
    confirm: Confirm
    confirm_for: Sequence[SideEffects]
    confirm_seconds_max: float
    steps_max: int
    # Instructions, skills and knowledge.
    instructions: SessionInstructions
    skills: bool | str | Path | Sequence[str | Path] | SkillStore
    skills_mode: SkillMode
    also_skills: Sequence[str]
    skill_ranking: SkillRanking
    enforce_allowed_tools: bool
    knowledge: bool
    digest_refresh: DigestRefresh
    curation: str
    rag: bool
    # History and recovery.
    compaction: CompactionMode | CompactionConfig
    compaction_tokens: int
    recall_history: bool
    compact_tool: bool
    recovery_steps: Mapping[str, StepFunction]
    # Cost and caching.
    profile: CacheProfile
    layout: Layout
    padding: Padding
    models: Sequence[str]
    calls_expected: int
    allow_uncached: bool
    spend_max_usd: Decimal | str | float
    single_flight: SingleFlight | bool
    prewarm: bool
    keep_alive: bool
    keep_alive_usd_max: Decimal | str | float
    cache_ttl_seconds: int
    cache_over_an_hour: bool
    diagnostics: Diagnostics
    completion_cache: bool
    completion_cache_seconds: float
    # Requests.
    output_tokens_max: int
    temperature: float
    thinking: Mapping[str, Json]
    tool_choice: Mapping[str, Json]
    stop_sequences: Sequence[str]
    betas: Sequence[str]
    request_fields: Mapping[str, Json]
    # Connections and storage.
    transport: Transport | TransportProvider
    base_url: str
    api_key: str
    store: EventLog | str | Path
    simulated: bool
    user_id: str
    team_id: str
    # For tests.
    clock: Clock
    sleep: Sleep
    new_id: NewId


CONFIG_ONLY_NAMES = ("requests_max", "base_urls", "claude_code_command", "db")
"""Names that a caller might try as options, but that are settings of config.toml."""

_OPTION_TYPES: Mapping[str, object] = Options.__annotations__
_TEXT_OPTIONS = [name for name, kind in _OPTION_TYPES.items() if kind is str or get_origin(kind) is Literal]
_SWITCH_OPTIONS = [name for name, kind in _OPTION_TYPES.items() if kind is bool]
_TEXT_LIST_OPTIONS = ("betas", "stop_sequences", "models", "confirm_for", "also_skills", "command_variables")
_LIST_OPTIONS = ("tools", "read_roots", *_TEXT_LIST_OPTIONS)


def collect_options(arguments: Mapping[str, object]) -> Options:
    """The options among the local variables of `Session.create` or `Session.resume`; unknown names are kept too."""
    options = {name: value for name, value in arguments.items() if name not in ("cls", "session_id", "unknown")}
    options.update(cast("dict[str, object]", arguments.get("unknown", {})))
    return cast("Options", options)  # Names and types are checked when the session is made.


def check_options(options: Options) -> Options:
    """The options without those that are None. Raises UserError for an unknown name or a wrong type."""
    passed = {key: value for key, value in options.items() if value is not None}
    for key, value in passed.items():
        if key not in _OPTION_TYPES:
            if key in CONFIG_ONLY_NAMES:
                raise UserError(f"{key} is not an option of a session; set it in config.toml, see `holdfast config`")
            similar = difflib.get_close_matches(key, _OPTION_TYPES, n=1)
            hint = f"did you mean {similar[0]!r}?" if similar else f"known options: {', '.join(_OPTION_TYPES)}"
            raise UserError(f"unknown option {key!r}; {hint}")
        if expected := _expected_type(key, value):
            received = repr(value) if "number" in expected and isinstance(value, int | float) else type(value).__name__
            raise UserError(f"{key} must be {expected}, not {received}")
    for text, file_name in (("system_prompt", "preset_name"), ("persona", "persona_name")):
        if text in passed and file_name in passed:
            raise UserError(f"{text} and {file_name} exclude each other; pass one of them")
    if "compaction_tokens" in passed and isinstance(passed.get("compaction"), CompactionConfig):
        raise UserError(
            "compaction_tokens and a CompactionConfig exclude each other; set "
            "auto_compaction_input_tokens_threshold of the CompactionConfig"
        )
    _check_folders(passed)
    return cast("Options", passed)  # Every key and value was just checked.


def _check_folders(options: Mapping[str, object]) -> None:
    workspace, roots = options.get("workspace"), options.get("read_roots")
    if isinstance(workspace, str | Path) and not Path(workspace).is_dir():
        raise UserError(f"workspace {str(workspace)!r} is not a folder")
    for root in roots if isinstance(roots, Sequence) else ():
        if not Path(root).is_dir():
            raise UserError(f"read_roots: {str(root)!r} is not a folder; check the path, or leave it out")


def _expected_type(key: str, value: object) -> str | None:
    """A description of the type the option expects, or None if the value fits."""
    if key in _TEXT_OPTIONS:
        return None if isinstance(value, str) else "text"
    if key in _SWITCH_OPTIONS:
        return None if isinstance(value, bool) else "True or False"
    if key in _LIST_OPTIONS:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            return "a list"
        if key in _TEXT_LIST_OPTIONS and not _are_texts(value):
            return "a list of texts"
        if key == "read_roots" and not _are_paths(value):
            return "a list of paths"
        return None
    fits, expected = {
        "system_prompt_volatile": (isinstance(value, str) or callable(value), "text or a function that returns text"),
        "volatile": (callable(value) or _are_layers(value), "a list of LayerText or a function that returns one"),
        "workspace": (isinstance(value, str | Path), "a path"),
        "thinking": (isinstance(value, Mapping), "a mapping such as {'type': 'adaptive'}"),
        "tool_choice": (isinstance(value, Mapping), "a mapping such as {'type': 'auto'}"),
        "request_fields": (_are_fields(value), "a mapping from names of fields to values, such as {'top_p': 0.9}"),
        "temperature": (_is_number(value) and 0 <= value <= 2, "a number from 0 to 2"),
        "store": (isinstance(value, str | Path) or hasattr(value, "append"), "a path, a URL or a store"),
        "transport": (_is_transport(value), "a transport or a simulated provider"),
        "calls_expected": (_is_count(value), "a whole number of at least 1"),
        "single_flight": (isinstance(value, SingleFlight | bool), "a SingleFlight, True or False"),
        "completion_cache_seconds": (_is_duration(value), "a number of seconds above 0"),
        "builtin_tools": (isinstance(value, bool) or _are_texts(value), "True, False or a list of names"),
        "compaction": (isinstance(value, str | CompactionConfig), "off, threshold, economical or a CompactionConfig"),
        "compaction_tokens": (_is_count(value), "a whole number of at least 1"),
        "skills": (_are_skills(value), "True, False, a folder, a list of folders or a SkillStore"),
        "instructions": (isinstance(value, SessionInstructions), "the result of Library.for_session"),
        "delegate": (isinstance(value, bool) or _is_count(value), "True, False or a whole number of at least 1"),
        "delegation_depth_max": (_is_count(value), "a whole number of at least 1"),
        "allowed": (callable(value), "a function that returns the reason why a call may not run"),
        "confirm": (callable(value), "a function that says whether a call may run"),
        "confirm_seconds_max": (_is_duration(value), "a number of seconds above 0"),
        "clock": (callable(value), "a function that returns the time"),
        "sleep": (callable(value), "a function to await, such as asyncio.sleep"),
        "new_id": (callable(value), "a function that returns an id"),
        "recovery_steps": (_are_functions(value), "a mapping from names of steps to functions"),
    }.get(key, (True, ""))
    return None if fits else expected


def _is_transport(value: object) -> bool:
    return not isinstance(value, type) and (hasattr(value, "send") or isinstance(value, TransportProvider))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_duration(value: object) -> bool:
    return _is_number(value) and 0 < value < float("inf")


def _are_fields(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) and name for name in value)


def _are_texts(value: object) -> bool:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return False
    return all(isinstance(item, str) for item in value)


def _are_paths(value: Sequence[object]) -> bool:
    return all(isinstance(item, str | Path) for item in value)


def _are_skills(value: object) -> bool:
    if isinstance(value, bool | str | Path | SkillStore):
        return True
    return isinstance(value, Sequence) and not isinstance(value, bytes) and _are_paths(value)


def _are_functions(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) and callable(step) for name, step in value.items())


def _are_layers(value: object) -> bool:
    return isinstance(value, Sequence) and all(isinstance(item, LayerText) for item in value)


# Fields that the cache planner sets itself.
_RESERVED_FIELDS = re.compile(r"cache_control|cachedContent|diagnostics|prompt_cache_.*|session_id|stream_options")


def request_parameters(
    options: Options, config: Config, model: Model, *, adapter: Adapter, stored: Parameters | None
) -> Parameters:
    """The parameters of the options. A stored session keeps its own, because some of them are part of the cache key.

    Raises UserError for parameters that the provider's API cannot express, before anything is sent.
    """
    base = stored or Parameters(model.name, min(config.output_tokens_max, model.output_tokens_max), stream=True)
    changes: dict[str, object] = {}
    if "output_tokens_max" in options:
        changes["output_tokens_max"] = min(config.output_tokens_max, model.output_tokens_max)
    if "temperature" in options:
        changes["temperature"] = float(options["temperature"])
    if "thinking" in options:
        changes["thinking_json"] = _json("thinking", options["thinking"])
    if "tool_choice" in options:
        changes["tool_choice_json"] = _json("tool_choice", options["tool_choice"])
    if "betas" in options:
        changes["betas"] = tuple(options["betas"])
    if "stop_sequences" in options:
        changes["stop_sequences"] = tuple(_checked_stop_sequence(text) for text in options["stop_sequences"])
    if "request_fields" in options:
        changes["extra"] = tuple(_field(name, value) for name, value in options["request_fields"].items())
    parameters: Parameters = msgspec.structs.replace(base, **changes)
    if changes:
        # Encoding them once here raises for a parameter that the provider does not support.
        adapter.request_head(parameters)
    return parameters


def _field(name: str, value: Json) -> tuple[str, str]:
    if _RESERVED_FIELDS.fullmatch(name):
        raise UserError(f"request_fields: {name!r} is set by the session, which manages the cache; leave it out")
    return name, _json(f"request_fields: {name!r}", value)


def _checked_stop_sequence(text: str) -> str:
    if not text or text != replace_surrogates(text):
        raise UserError("stop_sequences must be non-empty texts in valid Unicode")
    return text


def _json(name: str, value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise UserError(f"{name} cannot be written as JSON: use texts, numbers, lists and mappings") from error
