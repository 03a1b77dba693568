"""Which tools a session has, who is asked before they run, and what they may reach."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import msgspec

from holdfast.clock import system_clock
from holdfast.engine.builtin.chosen import NAMES, builtin_tools
from holdfast.engine.builtin.remembering import NAMES as MEMORY_NAMES
from holdfast.engine.builtin.remembering import memory_tools
from holdfast.engine.builtin.skills import skill_tools
from holdfast.engine.compacting import RECALL_TOOL
from holdfast.engine.confirm import CONFIRM_FOR, CONFIRM_SECONDS_MAX, Rules
from holdfast.engine.context import Surroundings
from holdfast.engine.delegating import DEPTH_MAX, Delegation
from holdfast.engine.delegating import NAME as DELEGATE
from holdfast.engine.dispatch import Toolbox
from holdfast.engine.kept_outputs import OUTPUTS, forget_old, mark_used
from holdfast.engine.tools import Tool
from holdfast.errors import UserError
from holdfast.events.payloads import SideEffects
from holdfast.runtime.options import Options
from holdfast.runtime.skills import SessionSkills
from holdfast.sources.confined import roots_of
from holdfast.sources.memory import MemoryFile, user_memory, workspace_memory

CLOSED = (".git", ".holdfast")
"""Folders of a workspace that built-in tools read and never write."""

TENDED_EVERY_SECONDS = 3_600.0
"""How often a process looks for outputs that nobody needs any more."""

_tended: dict[Path, float] = {}


class Where(msgspec.Struct, frozen=True):
    """Which session it is, where it works, and where Holdfast keeps what is its own."""

    session_id: str
    workspace: Path | None
    home: Path


def toolbox_of(options: Options, where: Where, *, skilled: SessionSkills, more: Sequence[Tool] = ()) -> Toolbox:
    """The caller's tools and the built-in ones that were asked for, under the caller's rules."""
    workspace, home = where.workspace, where.home
    built_in = _built_in(options, workspace)
    rules = _rules(options, built_in)
    # Only who can read a file is told that there is one.
    keeps_outputs = any(one.spec.name == "read_file" for one in built_in)
    folder = Path(os.path.realpath(home / OUTPUTS / where.session_id)) if keeps_outputs else None
    if folder is not None:
        _tend_outputs(home / OUTPUTS, folder, now=time.time())
    extra = [Path(one) for one in options.get("read_roots", ())]
    if extra and workspace is None:
        raise UserError("read_roots are read from within a workspace; give the session one")
    # What a skill's body refers to lies in its folder, which may be read for that.
    extra += [skill.skill_dir for skill in skilled.skills]
    # What is run at a commit, and what says how this agent works, is no place for the agent itself to write to.
    extra += [workspace / name for name in CLOSED] if workspace else []
    roots = roots_of(workspace, [*extra, *([folder] if folder else [])]) if workspace else None
    remembering = memory_tools(memory_files(workspace, home)) if options.get("memory") else ()
    return Toolbox(
        (
            *options.get("tools", ()),
            *(options["instructions"].tools if "instructions" in options else ()),
            *built_in,
            *remembering,
            *(skill_tools(skilled.store) if skilled.offered else ()),
            *more,
        ),
        clock=options.get("clock", system_clock),
        rules=rules,
        around=Surroundings(
            where.session_id,
            roots,
            folder,
            skills=skilled.store,
            activation_limits=skilled.limits,
            enforce_allowed_tools=skilled.enforced,
        ),
    )


def _tend_outputs(place: Path, folder: Path, *, now: float) -> None:
    """What this session has kept is in use from now on; what others have not used for long goes."""
    mark_used(folder)
    if now - _tended.get(place, 0.0) >= TENDED_EVERY_SECONDS:
        _tended[place] = now
        forget_old(place, now=now)


def delegation_of(options: Options) -> Delegation | None:
    """The way to hand tasks to other sessions, where the caller wants one."""
    asked = options.get("delegate", False)
    if asked is False:
        return None
    depth_max = options.get("delegation_depth_max", DEPTH_MAX)
    return Delegation(at_once_max=None if asked is True else asked, depth_max=depth_max)


def memory_files(workspace: Path | None, home: Path) -> tuple[MemoryFile, ...]:
    """The file of the workspace, if there is one, and that of the user."""
    return (*((workspace_memory(workspace),) if workspace else ()), user_memory(home))


def missing_tools_hint(missing: Sequence[str]) -> str:
    """How to give a resumed session the tools whose functions it lacks."""
    ways = []
    if any(name in NAMES for name in missing):
        ways.append("builtin_tools")
    if any(name in MEMORY_NAMES for name in missing):
        ways.append("memory=True")
    if DELEGATE in missing:
        ways.append("delegate=True")
    if RECALL_TOOL in missing:
        ways.append("recall_history=True")
    if any(name not in (*NAMES, *MEMORY_NAMES, DELEGATE, RECALL_TOOL) for name in missing) or not ways:
        ways.append("tools")
    return f"give them as {' and '.join(ways)}"


def _built_in(options: Options, workspace: Path | None) -> tuple[Tool, ...]:
    asked = options.get("builtin_tools", False)
    names = (NAMES if asked else ()) if isinstance(asked, bool) else tuple(asked)
    if names and workspace is None:
        raise UserError("builtin_tools work in a workspace; give the session one")
    return builtin_tools(names, environ=os.environ)


def _rules(options: Options, built_in: Sequence[Tool]) -> Rules:
    known = get_args(SideEffects)
    confirm_for = frozenset(options.get("confirm_for", CONFIRM_FOR))
    if strange := sorted(confirm_for.difference(known)):
        raise UserError(f"unknown side effect {strange[0]!r} in confirm_for; known: {', '.join(known)}")
    if "confirm" not in options and "confirm_for" not in options:
        # A caller's own tools are the caller's business; ours do not write or execute unless somebody said so.
        unasked = [one.spec.name for one in built_in if one.side_effects in CONFIRM_FOR]
        if unasked:
            raise UserError(
                f"{', '.join(unasked)} can change things, and nobody would be asked: give confirm=, or say "
                "confirm_for=[] to let them run unasked, or name only the tools that read in builtin_tools"
            )
    if "confirm" not in options and options.get("confirm_for"):
        raise UserError("confirm_for needs somebody to ask: give confirm=")
    return Rules(
        allowed=options.get("allowed"),
        confirm=options.get("confirm"),
        confirm_for=confirm_for,
        confirm_seconds_max=options.get("confirm_seconds_max", CONFIRM_SECONDS_MAX),
    )
