"""Builds the toolbox of a session: its tools, their confirmation rules, and the folders they may access."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from holdfast.clock import system_clock
from holdfast.compaction.working_set import COMPACT_TOOL
from holdfast.engine.compaction.compact import RECALL_TOOL
from holdfast.engine.state import SessionState
from holdfast.engine.tools.builtin.files import list_dir, make_edit_tools, read_file
from holdfast.engine.tools.builtin.grep import make_grep_files
from holdfast.engine.tools.builtin.history import compact_tool, recall_tool
from holdfast.engine.tools.builtin.memory import MEMORY_TOOL_NAMES, memory_tools
from holdfast.engine.tools.builtin.shell import COMMAND_SECONDS_MAX, command_environment, make_run_command
from holdfast.engine.tools.builtin.skills import skill_tools
from holdfast.engine.tools.definition import Tool, ToolEnvironment, tool
from holdfast.engine.tools.delegate import DELEGATE_TOOL, DEPTH_MAX, Delegation
from holdfast.engine.tools.dispatch import Toolbox
from holdfast.engine.tools.output import OUTPUTS_FOLDER, delete_old_outputs, mark_used
from holdfast.engine.tools.permissions import CONFIRM_FOR, CONFIRM_SECONDS_MAX, PermissionRules
from holdfast.errors import UserError
from holdfast.events.log import EventLog
from holdfast.events.payloads.calls import SideEffects
from holdfast.runtime.compaction import compaction_config
from holdfast.runtime.config import Config
from holdfast.runtime.options import Options
from holdfast.runtime.skills import SessionSkills
from holdfast.sources.confined_paths import resolve_roots
from holdfast.sources.memory_files import MemoryFile, user_memory, workspace_memory

READ_ONLY_FOLDERS = (".git", ".holdfast")
"""Folders of a workspace that built-in tools read but never write."""

CLEANUP_INTERVAL_SECONDS = 3_600.0
"""How often a process deletes old spilled outputs."""

_cleaned_at: dict[Path, float] = {}


def build_toolbox(
    options: Options,
    state: SessionState,
    log: EventLog,
    *,
    workspace: Path | None,
    config: Config,
    skills: SessionSkills,
    extra: Sequence[Tool],
) -> Toolbox:
    """The caller's tools and the requested built-in ones, under the caller's rules."""
    session_id = state.session_id
    home = Path(config.home)
    built_in = _selected_builtins(options, workspace, config.command_variables)
    rules = _confirmation_rules(options, built_in)
    # A long output is spilled to a file only if the model has a tool to read that file.
    can_read_files = any(builtin.spec.name == "read_file" for builtin in built_in)
    output_folder = Path(os.path.realpath(home / OUTPUTS_FOLDER / session_id)) if can_read_files else None
    if output_folder is not None:
        _clean_outputs(home / OUTPUTS_FOLDER, output_folder, now=time.time())
    readable = [Path(root) for root in options.get("read_roots", ())]
    if readable and workspace is None:
        raise UserError("read_roots need a workspace; pass one to the session")
    # A skill's body refers to files in its folder.
    readable += [skill.skill_dir for skill in skills.skills]
    # Read only: git hooks run at a commit, and .holdfast configures this agent, so the agent must not write there.
    readable += [workspace / name for name in READ_ONLY_FOLDERS] if workspace else []
    roots = resolve_roots(workspace, [*readable, *([output_folder] if output_folder else [])]) if workspace else None
    memory = memory_tools(memory_files(workspace, home)) if options.get("memory") else ()
    tools = (
        *options.get("tools", ()),
        *(options["instructions"].tools if "instructions" in options else ()),
        *built_in,
        *memory,
        *(skill_tools(skills.store) if skills.has_tools else ()),
        *extra,
        *((compact_tool(),) if _has_compact(options, state) else ()),
    )
    return Toolbox(
        (*tools, recall_tool(log)) if _has_recall(options, config, state, has_tools=bool(tools)) else tools,
        clock=options.get("clock", system_clock),
        rules=rules,
        environment=ToolEnvironment(
            session_id, roots, output_folder, skills.store, skills.limits, skills.enforce_allowed_tools
        ),
    )


def _has_recall(options: Options, config: Config, state: SessionState, *, has_tools: bool) -> bool:
    """Whether the model can read what a compaction removed: from the start, because a tool that is added later
    rewrites the cached prefix. A session without any tool stays without."""
    if "recall_history" in options:
        return options["recall_history"]
    if state.model:
        return any(spec.name == RECALL_TOOL for spec in state.tools)
    return has_tools and config.profile != "seed" and compaction_config(options, config).mode != "off"


def _has_compact(options: Options, state: SessionState) -> bool:
    """Whether the model may ask for a compaction; a resumed session keeps its tools."""
    return options.get("compact_tool", any(spec.name == COMPACT_TOOL for spec in state.tools))


def _clean_outputs(outputs: Path, folder: Path, *, now: float) -> None:
    """Mark this session's outputs as used, and delete outputs that other sessions have not used for long."""
    mark_used(folder)
    if now - _cleaned_at.get(outputs, 0.0) >= CLEANUP_INTERVAL_SECONDS:
        _cleaned_at[outputs] = now
        delete_old_outputs(outputs, now=now)


def session_delegation(options: Options) -> Delegation | None:
    """The delegation to child sessions, if the caller turned it on."""
    setting = options.get("delegate", False)
    if setting is False:
        return None
    depth_max = options.get("delegation_depth_max", DEPTH_MAX)
    return Delegation(at_once_max=None if setting is True else setting, depth_max=depth_max)


def memory_files(workspace: Path | None, home: Path) -> tuple[MemoryFile, ...]:
    """The memory file of the workspace, if there is one, and that of the user."""
    return (*((workspace_memory(workspace),) if workspace else ()), user_memory(home))


def missing_tools_hint(missing: Sequence[str]) -> str:
    """How to pass a resumed session the tools whose functions it lacks."""
    names_by_parameter = {
        "builtin_tools": BUILTIN_TOOL_NAMES,
        "memory=True": MEMORY_TOOL_NAMES,
        "delegate=True": (DELEGATE_TOOL,),
    }
    parameters = [parameter for parameter, names in names_by_parameter.items() if set(names) & set(missing)]
    if set(missing).difference(*names_by_parameter.values()):
        parameters.append("tools")
    return f"pass them as {' and '.join(parameters)}"


def _selected_builtins(options: Options, workspace: Path | None, variables: Sequence[str]) -> tuple[Tool, ...]:
    setting = options.get("builtin_tools", False)
    names = (BUILTIN_TOOL_NAMES if setting else ()) if isinstance(setting, bool) else tuple(setting)
    if names and workspace is None:
        raise UserError("builtin_tools need a workspace; pass one to the session")
    return builtin_tools(names, environ=os.environ, variables=variables)


def _confirmation_rules(options: Options, built_in: Sequence[Tool]) -> PermissionRules:
    side_effects = get_args(SideEffects)
    confirm_for = frozenset(options.get("confirm_for", CONFIRM_FOR))
    if unknown := sorted(confirm_for.difference(side_effects)):
        raise UserError(f"unknown side effect {unknown[0]!r} in confirm_for; known: {', '.join(side_effects)}")
    if "confirm" not in options and "confirm_for" not in options:
        # The caller is responsible for their own tools; ours do not write or execute without explicit consent.
        unconfirmed = [builtin.spec.name for builtin in built_in if builtin.side_effects in CONFIRM_FOR]
        if unconfirmed:
            raise UserError(
                f"{', '.join(unconfirmed)} can change things, and would run without confirmation: pass confirm=, or "
                "confirm_for=[] to allow that, or name only the tools that read in builtin_tools"
            )
    if "confirm" not in options and options.get("confirm_for"):
        raise UserError("confirm_for needs a function to ask; pass confirm=")
    seconds_max = options.get("confirm_seconds_max", CONFIRM_SECONDS_MAX)
    return PermissionRules(options.get("allowed"), options.get("confirm"), confirm_for, seconds_max)


BUILTIN_TOOL_NAMES = ("edit_file", "grep_files", "list_dir", "read_file", "run_command", "write_file")

# The tool's timeout is this much longer than a command's own limit, because a command that runs out of time gets
# a grace period to end before it is killed.
_MARGIN_SECONDS = 15


def builtin_tools(
    names: Sequence[str] = BUILTIN_TOOL_NAMES, *, environ: Mapping[str, str] = os.environ, variables: Sequence[str] = ()
) -> tuple[Tool, ...]:
    """The tools of these names. Commands see the harmless part of this environment, and the `variables` named."""
    if unknown := next((name for name in names if name not in BUILTIN_TOOL_NAMES), None):
        raise UserError(f"there is no built-in tool {unknown!r}; there are {', '.join(BUILTIN_TOOL_NAMES)}")
    write_file, edit_file = make_edit_tools()
    tools = (
        tool(edit_file, side_effects="write", paths=("path",)),
        tool(make_grep_files(command_environment(environ)), side_effects="read", paths=("path",)),
        tool(list_dir, side_effects="read", paths=("path",)),
        tool(read_file, side_effects="read", paths=("path",)),
        tool(
            make_run_command(command_environment(environ, also=variables)),
            side_effects="execute",
            timeout_seconds=COMMAND_SECONDS_MAX + _MARGIN_SECONDS,
        ),
        tool(write_file, side_effects="write", paths=("path",)),
    )
    return tuple(builtin for builtin in tools if builtin.spec.name in names)
