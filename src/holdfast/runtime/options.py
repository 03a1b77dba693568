"""The options of a session, checked by name and type before anything is opened."""

import difflib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Protocol, TypedDict, cast, runtime_checkable

import msgspec

from holdfast.catalog.lookup import Models
from holdfast.catalog.schema import Model
from holdfast.clock import Clock, NewId, Sleep
from holdfast.compaction.models import CompactionConfig
from holdfast.engine.cache.single_flight import SingleFlight
from holdfast.engine.recovery.runner import StepFunction
from holdfast.engine.tools.definition import Tool, ToolFunction
from holdfast.engine.tools.permissions import Allowed, Confirm
from holdfast.errors import UserError
from holdfast.events.log import EventListener, EventLog
from holdfast.events.payloads.tools import SideEffects
from holdfast.knowledge.flags import DigestRefresh
from holdfast.layers.padding import Padding
from holdfast.planning.breakpoints import CacheProfile
from holdfast.providers.adapter import Adapter
from holdfast.providers.wire_request import Transport
from holdfast.runtime.config import Config, Diagnostics
from holdfast.sources.skills.skill import SkillMode
from holdfast.sources.skills.store import SkillRanking, SkillStore
from holdfast.types.blocks import Json, replace_surrogates
from holdfast.types.prompt import LayerText, Layout, Parameters

VolatileText = str | Callable[[], str | Awaitable[str]]


VolatileLayers = Sequence[LayerText] | Callable[[], Sequence[LayerText] | Awaitable[Sequence[LayerText]]]


# Checked by isinstance, because a plain wire is accepted in the same option.
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
    """Keyword arguments of `Session.create` and `Session.resume`; all are optional.

    Prompt: `system_prompt` never changes within a session; `system_prompt_volatile` may change on every call, and may
    be a function. `preset_name` and `persona_name` name files `presets/NAME.md` and `personas/NAME.md` below
    `.holdfast` that replace `system_prompt` and `persona`; they are read when a session is created. `workspace` adds
    the project's instruction files, its git state and the date; resuming in a different folder needs
    `another_workspace`.

    Cost and caching: a model without prompt caching needs `allow_uncached`. `padding` says whether a prefix that is
    too short to be cached is extended, `models` which other models the session may switch to, `calls_expected` how
    many calls it is likely to make; all three matter only when a session is created. Of sessions that start with the
    same prefix at the same time, one writes it to the cache and the others wait for it; `gate=False` turns this off, a
    `Gate` restricts it to the sessions that share it. `prewarm` writes the stable prefix to the cache when the session
    is entered. `keep_alive` pings the cache of an idle session where that is expected to save money, up to
    `keep_alive_usd_max`. By default a session asks its provider for the reason of a cache miss, if the model supports
    that; `diagnostics="off"` turns it off. With `completion_cache`, a request that is byte for byte equal to one of
    the last `completion_cache_seconds` (30), from any session of this process, gets the same reply without a call.

    Requests: `temperature`, `thinking`, `tool_choice`, `stop_sequences` and `betas` go into every request.
    `request_fields` are request fields without an option of their own, such as `top_p`, under the provider's names.
    `wire` replaces the network, for example by a simulated provider. `simulated`, set when a session is created, says
    that its calls cost nothing; `user_id` and `team_id` say whose account it is billed to. `store` is a path, a URL or
    a store.

    Tools: `builtin_tools` adds tools for files and commands of the workspace: all of them, or those named.
    `read_roots` are folders outside of the workspace that they may read. `memory` adds MEMORY.md of the workspace and
    USER.md of the user, and the tools to edit them. `delegate` adds a tool that runs a task in a child session with
    the same prefix; a number limits how many run at once, and `delegation_depth_max` how deep they nest. `confirm` is
    called before a tool runs whose side effects are in `confirm_for`, and has `confirm_seconds_max` to approve it;
    `allowed` returns the reason why a call may not run at all. `recovery_steps` maps names of recipe steps, such as
    `rebase_branch`, to functions.

    History: `compaction` configures automatic compaction; False turns it off. `recall_history` adds a tool that shows
    messages that compaction removed from the prompt.

    Instructions and skills: `instructions` come from `Library.for_session`: a stub and an index in the prompt, and a
    tool that recalls the rest. `skills` is True for the user's and the workspace's skills, or a list of folders, or a
    `SkillStore`; they are parsed by the rules of `skills_mode` and searched by `skill_ranking`. `also_skills` names
    folders of other programs to read as well. With `enforce_allowed_tools`, a loaded skill limits which tools may be
    used.

    Knowledge: the prompt includes the project's knowledge digest if there is one, unless `knowledge` is False. A newer
    digest is used from the next epoch on, or with `digest_refresh="next_turn"` from the next turn on. `curation` names
    the preset of active files, in place of the one chosen for the workspace. `rag` turns retrieved passages of project
    files on or off; by default they are on if `holdfast rag index` was run.
    """

    model: str
    system_prompt: str
    system_prompt_volatile: VolatileText
    preset_name: str
    persona: str
    persona_name: str
    volatile: VolatileLayers
    instructions: SessionInstructions
    tools: Sequence[Tool | ToolFunction]
    builtin_tools: bool | Sequence[str]
    memory: bool
    skills: bool | str | Path | Sequence[str | Path] | SkillStore
    skills_mode: SkillMode
    also_skills: Sequence[str]
    skill_ranking: SkillRanking
    enforce_allowed_tools: bool
    knowledge: bool
    rag: bool
    curation: str
    digest_refresh: DigestRefresh
    delegate: bool | int
    delegation_depth_max: int
    compaction: bool | CompactionConfig
    recall_history: bool
    read_roots: Sequence[str | Path]
    allowed: Allowed
    confirm: Confirm
    confirm_for: Sequence[SideEffects]
    confirm_seconds_max: float
    workspace: str | Path
    another_workspace: bool
    name: str
    profile: CacheProfile
    layout: Layout
    allow_uncached: bool
    spend_max_usd: Decimal | str | float
    keep_alive: bool
    keep_alive_usd_max: Decimal | str | float
    cache_ttl_seconds: int
    cache_over_an_hour: bool
    padding: Padding
    diagnostics: Diagnostics
    models: Sequence[str]
    calls_expected: int
    output_tokens_max: int
    steps_max: int
    temperature: float
    thinking: Mapping[str, Json]
    tool_choice: Mapping[str, Json]
    request_fields: Mapping[str, Json]
    betas: Sequence[str]
    stop_sequences: Sequence[str]
    store: EventLog | str | Path
    wire: Transport | TransportProvider
    simulated: bool
    user_id: str
    team_id: str
    base_url: str
    api_key: str
    gate: SingleFlight | bool
    completion_cache: bool
    completion_cache_seconds: float
    prewarm: bool
    clock: Clock
    sleep: Sleep
    new_id: NewId
    recovery_steps: Mapping[str, StepFunction]


CONFIG_ONLY_NAMES = ("requests_max", "base_urls", "claude_code_command", "db")


"""Names that a caller might try as options, but that are settings of config.toml."""


_TEXT_OPTIONS = (
    *("model", "system_prompt", "preset_name", "persona", "persona_name", "name", "skills_mode"),
    *("user_id", "team_id", "skill_ranking", "digest_refresh", "curation"),
    *("profile", "layout", "padding", "diagnostics", "base_url", "api_key"),
)


_TEXT_LIST_OPTIONS = ("betas", "stop_sequences", "models", "confirm_for", "also_skills")


_LIST_OPTIONS = ("tools", "read_roots", *_TEXT_LIST_OPTIONS)


def check_options(options: Options) -> Options:
    """The options without those that are None. Raises UserError for an unknown name or a wrong type."""
    passed = {key: value for key, value in options.items() if value is not None}
    for key, value in passed.items():
        if key not in Options.__annotations__:
            if key in CONFIG_ONLY_NAMES:
                raise UserError(f"{key} is not an option of a session; set it in config.toml, see `holdfast config`")
            similar = difflib.get_close_matches(key, Options.__annotations__, n=1)
            hint = (
                f"did you mean {similar[0]!r}?" if similar else f"known options: {', '.join(Options.__annotations__)}"
            )
            raise UserError(f"unknown option {key!r}; {hint}")
        if expected := _expected_type(key, value):
            received = repr(value) if "number" in expected and isinstance(value, int | float) else type(value).__name__
            raise UserError(f"{key} must be {expected}, not {received}")
    for text, file_name in (("system_prompt", "preset_name"), ("persona", "persona_name")):
        if text in passed and file_name in passed:
            raise UserError(f"{text} and {file_name} exclude each other; pass one of them")
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
        "temperature": (_is_temperature(value), "a number from 0 to 2"),
        "store": (isinstance(value, str | Path) or hasattr(value, "append"), "a path, a URL or a store"),
        "wire": (_is_wire(value), "a wire or a simulated provider"),
        "calls_expected": (_is_count(value), "a whole number of at least 1"),
        "gate": (isinstance(value, SingleFlight | bool), "a Gate, True or False"),
        "completion_cache": (isinstance(value, bool), "True or False"),
        "completion_cache_seconds": (_is_duration(value), "a number of seconds above 0"),
        "prewarm": (isinstance(value, bool), "True or False"),
        "allow_uncached": (isinstance(value, bool), "True or False"),
        "cache_over_an_hour": (isinstance(value, bool), "True or False"),
        "keep_alive": (isinstance(value, bool), "True or False"),
        "builtin_tools": (isinstance(value, bool) or _are_texts(value), "True, False or a list of names"),
        "memory": (isinstance(value, bool), "True or False"),
        "knowledge": (isinstance(value, bool), "True or False"),
        "rag": (isinstance(value, bool), "True or False"),
        "another_workspace": (isinstance(value, bool), "True or False"),
        "simulated": (isinstance(value, bool), "True or False"),
        "compaction": (isinstance(value, bool | CompactionConfig), "True, False or a CompactionConfig"),
        "recall_history": (isinstance(value, bool), "True or False"),
        "skills": (_are_skills(value), "True, False, a folder, a list of folders or a SkillStore"),
        "instructions": (isinstance(value, SessionInstructions), "the result of Library.for_session"),
        "enforce_allowed_tools": (isinstance(value, bool), "True or False"),
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


def _is_wire(value: object) -> bool:
    return not isinstance(value, type) and (hasattr(value, "send") or isinstance(value, TransportProvider))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def _is_temperature(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 2


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
