"""What a caller may give to a session, checked by name and type before anything is opened."""

import difflib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Protocol, TypedDict, cast, runtime_checkable

from holdfast.canonical.blocks import Json
from holdfast.canonical.view import LayerText, Layout
from holdfast.catalog.lookup import Models
from holdfast.clock import Clock, NewId, Sleep
from holdfast.compaction.values import CompactionConfig
from holdfast.engine.confirm import Allowed, Confirm
from holdfast.engine.gate import Gate
from holdfast.engine.recovering import StepFunction
from holdfast.engine.tools import Tool, ToolFunction
from holdfast.errors import UserError
from holdfast.events.log import Log
from holdfast.events.payloads import SideEffects
from holdfast.knowledge.switches import DigestRefresh
from holdfast.layers.padding import Padding
from holdfast.planning.marks import Profile
from holdfast.providers.wire import Wire
from holdfast.runtime.config import Diagnostics
from holdfast.runtime.instructed import Instructed
from holdfast.sources.skills.skill import SkillMode
from holdfast.sources.skills.store import SkillRanking, SkillStore

VolatileText = str | Callable[[], str | Awaitable[str]]
VolatileLayers = Sequence[LayerText] | Callable[[], Sequence[LayerText] | Awaitable[Sequence[LayerText]]]


@runtime_checkable
class ProvidesWire(Protocol):
    """Something that stands in for a provider, such as a simulator."""

    def wire(self, models: Models, *, provider: str) -> Wire: ...


class Options(TypedDict, total=False):
    """What a caller may give to `Session.create` and `Session.resume`; everything has a default.

    `system_prompt` never changes within a session; `system_prompt_volatile` may change on every call, and may be a
    function. `workspace` adds the project's instruction files, its git state and the date; a session stays in its own
    unless `another_workspace` says that another one is meant. A model that does not cache is taken only with
    `allow_uncached`. `padding` says whether a prefix that is too short to be cached is made longer, `models` which
    other models the session may use, `calls_expected` how many calls it is likely to make; all three matter only when a
    session is created. `wire` replaces the network, for example by a simulated provider; `simulated` says when a
    session is created that what it takes is nobody's money, and `user_id` and `team_id` on whose account it goes.
    `store` is a path, a URL or a store. Sessions that start with the same head let one of them write it first;
    `gate=False` lets all go at once, a `Gate` is shared by those that are given it. `prewarm` puts the head into the
    cache when the session is entered. `keep_alive` lets an idle session use its cache again where that is expected to
    pay, for `keep_alive_usd_max` at most. `diagnostics` is "off" for sessions that never ask their provider why its
    cache did not hold; by default they do, where the model can say. With `completion_cache` a request that equals one
    of the last `completion_cache_seconds` (30), to the byte and from any session of this process, gets the same reply
    for nothing.

    `temperature`, `thinking`, `tool_choice`, `stop_sequences` and `betas` go into every request. `request_fields` are
    members of a request that have no option here, such as `top_p`, in the provider's own words.

    `builtin_tools` adds tools for the files of the workspace and for commands in it: all of them, or those named.
    `read_roots` are folders outside of the workspace that they may read. `memory` adds MEMORY.md of the workspace and
    USER.md of the user, and the tools to keep them. `delegate` adds a tool that hands a task to a session with the same
    head, so many at once if it is a number; below `delegation_depth_max` that session may do the same. `confirm` is
    asked before a tool runs whose side effects are among `confirm_for`, and has `confirm_seconds_max` to say yes;
    `allowed` gives the reason why a call may not run at all.

    `compaction` says when a conversation is made shorter by itself, and how; False is never. `recall_history` adds a
    tool that shows what has left the view.

    `instructions` are those of an agent (`Library.for_session`): a stub and an index in the prompt, and a tool that
    recalls the rest.

    `skills` are the user's and the workspace's (True), those below these folders, or a `SkillStore`, read by the rules
    of `skills_mode` and searched by `skill_ranking`; `also_skills` names folders of other programs to be read with the
    usual ones. With `enforce_allowed_tools` a skill that was loaded says which tools may be used. `preset_name` and
    `persona_name` are files `presets/NAME.md` and `personas/NAME.md` below `.holdfast`, in place of `system_prompt` and
    `persona`; they are read when a session is created. `recovery_steps` are functions by the steps of recipes that they
    do, such as `rebase_branch`.

    A session is told the project's knowledge digest if there is one; `knowledge` says otherwise. It takes a newer one
    with its next epoch, or if `digest_refresh` is "next_turn" with its next turn. `curation` names the preset of files
    that it is told, in place of the one that was chosen for the workspace; `rag` lets it see passages of project files
    that fit the question, or not, whether or not `holdfast rag index` was run.
    """

    model: str
    system_prompt: str
    system_prompt_volatile: VolatileText
    preset_name: str
    persona: str
    persona_name: str
    volatile: VolatileLayers
    instructions: Instructed
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
    profile: Profile
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
    store: Log | str | Path
    wire: Wire | ProvidesWire
    simulated: bool
    user_id: str
    team_id: str
    base_url: str
    api_key: str
    gate: Gate | bool
    completion_cache: bool
    completion_cache_seconds: float
    prewarm: bool
    clock: Clock
    sleep: Sleep
    new_id: NewId
    recovery_steps: Mapping[str, StepFunction]


CONFIGURED = ("requests_max", "base_urls", "claude_code_command", "db")
"""Names that a caller may look for here, and that are settings."""

_TEXTS = (
    *("model", "system_prompt", "preset_name", "persona", "persona_name", "name", "skills_mode"),
    *("user_id", "team_id", "skill_ranking", "digest_refresh", "curation"),
    *("profile", "layout", "padding", "diagnostics", "base_url", "api_key"),
)
_TEXT_LISTS = ("betas", "stop_sequences", "models", "confirm_for", "also_skills")
_LISTS = ("tools", "read_roots", *_TEXT_LISTS)


def checked(options: Options) -> Options:
    """The options without those that are None; what is misspelt or of the wrong type is refused by name."""
    given = {key: value for key, value in options.items() if value is not None}
    for key, value in given.items():
        if key not in Options.__annotations__:
            if key in CONFIGURED:
                raise UserError(f"{key} is no option of a session; it is set in config.toml, see `holdfast config`")
            near = difflib.get_close_matches(key, Options.__annotations__, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known options: {', '.join(Options.__annotations__)}"
            raise UserError(f"unknown option {key!r}; {hint}")
        if wanted := _misfit(key, value):
            shown = repr(value) if "number" in wanted and isinstance(value, int | float) else type(value).__name__
            raise UserError(f"{key} must be {wanted}, not {shown}")
    for text, named in (("system_prompt", "preset_name"), ("persona", "persona_name")):
        if text in given and named in given:
            raise UserError(f"{text} and {named} say the same thing twice; give one of them")
    _check_folders(given)
    return cast("Options", given)  # Every key and value was just checked.


def _check_folders(given: Mapping[str, object]) -> None:
    workspace, roots = given.get("workspace"), given.get("read_roots")
    if isinstance(workspace, str | Path) and not Path(workspace).is_dir():
        raise UserError(f"workspace {str(workspace)!r} is not a folder")
    for root in roots if isinstance(roots, Sequence) else ():
        if not Path(root).is_dir():
            raise UserError(f"read_roots: {str(root)!r} is not a folder; check the path, or leave it out")


def _misfit(key: str, value: object) -> str | None:
    """What the option takes, if this value is not it."""
    if key in _TEXTS:
        return None if isinstance(value, str) else "text"
    if key in _LISTS:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            return "a list"
        if key in _TEXT_LISTS and not _are_texts(value):
            return "a list of texts"
        if key == "read_roots" and not _are_paths(value):
            return "a list of paths"
        return None
    fits, wanted = {
        "system_prompt_volatile": (isinstance(value, str) or callable(value), "text or a function that gives text"),
        "volatile": (callable(value) or _are_layers(value), "a list of LayerText or a function that gives one"),
        "workspace": (isinstance(value, str | Path), "a path"),
        "thinking": (isinstance(value, Mapping), "a mapping such as {'type': 'adaptive'}"),
        "tool_choice": (isinstance(value, Mapping), "a mapping such as {'type': 'auto'}"),
        "request_fields": (_are_fields(value), "a mapping from names of fields to values, such as {'top_p': 0.9}"),
        "temperature": (_is_temperature(value), "a number from 0 to 2"),
        "store": (isinstance(value, str | Path) or hasattr(value, "append"), "a path, a URL or a store"),
        "wire": (_is_wire(value), "a wire or a simulated provider"),
        "calls_expected": (_is_count(value), "a whole number of at least 1"),
        "gate": (isinstance(value, Gate | bool), "a Gate, True or False"),
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
        "instructions": (isinstance(value, Instructed), "what Library.for_session gives"),
        "enforce_allowed_tools": (isinstance(value, bool), "True or False"),
        "delegate": (isinstance(value, bool) or _is_count(value), "True, False or a whole number of at least 1"),
        "delegation_depth_max": (_is_count(value), "a whole number of at least 1"),
        "allowed": (callable(value), "a function from a call to the reason against it"),
        "confirm": (callable(value), "a function that says whether a call may run"),
        "confirm_seconds_max": (_is_duration(value), "a number of seconds above 0"),
        "clock": (callable(value), "a function that gives the time"),
        "sleep": (callable(value), "a function to await, such as asyncio.sleep"),
        "new_id": (callable(value), "a function that gives an id"),
        "recovery_steps": (_are_functions(value), "a mapping from names of steps to functions"),
    }.get(key, (True, ""))
    return None if fits else wanted


def _is_wire(value: object) -> bool:
    return not isinstance(value, type) and (hasattr(value, "send") or isinstance(value, ProvidesWire))


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
    return all(isinstance(one, str) for one in value)


def _are_paths(value: Sequence[object]) -> bool:
    return all(isinstance(one, str | Path) for one in value)


def _are_skills(value: object) -> bool:
    if isinstance(value, bool | str | Path | SkillStore):
        return True
    return isinstance(value, Sequence) and not isinstance(value, bytes) and _are_paths(value)


def _are_functions(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) and callable(one) for name, one in value.items())


def _are_layers(value: object) -> bool:
    return isinstance(value, Sequence) and all(isinstance(one, LayerText) for one in value)
