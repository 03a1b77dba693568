"""Which calls the `allowed-tools` of a skill let through.

| pattern | lets through |
| --- | --- |
| `read_file`, `mcp__docs__*` | the tools of that name; `*` stands for any characters |
| `Bash`, `Read`, `Write`, `Edit`, `Grep`, `Glob` | the built-in tool that does the same |
| `Bash(git status)` | that command |
| `Bash(git add:*)`, `Bash(git add *)` | that command, alone or with arguments; `*` is never a second command |
| `Edit(docs/**)` | paths of the workspace; `*` stays within a folder, `**` does not; `//` starts an absolute path |

A pattern that says more in its brackets than is known here lets nothing through.
"""

import posixpath
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

import msgspec

from holdfast.canonical.blocks import ToolUse
from holdfast.engine.builtin.skills import NAMES as SKILL_TOOLS
from holdfast.sources.skills.skill import Skill

OUR_NAMES = {
    "Bash": "run_command",
    "Edit": "edit_file",
    "Glob": "list_dir",
    "Grep": "grep_files",
    "LS": "list_dir",
    "MultiEdit": "edit_file",
    "Read": "read_file",
    "Write": "write_file",
}
"""What skills call tools that are built in here under another name."""

_WITH_PATHS = ("edit_file", "grep_files", "list_dir", "read_file", "write_file")
_PATTERN = re.compile(r"([^()]+)(?:\((.*)\))?", re.DOTALL)
_SECOND_COMMAND = re.compile(r"[;&|<>()`\r\n]")
_STARS = re.compile(r"(\*+)")

Fits = Callable[[str, str], bool]
"""Whether these stars may stand for this text."""


def reason_against_skills(skills: Sequence[Skill], use: ToolUse) -> str | None:
    """Why skills that are active do not let a call through; those that say nothing of tools have no say."""
    strict = [skill for skill in skills if skill.allowed_tools]
    if not strict or use.name in SKILL_TOOLS:
        return None
    patterns = [pattern for skill in strict for pattern in skill.allowed_tools]
    if any(permits(pattern, use) for pattern in patterns):
        return None
    names = ", ".join(skill.name for skill in strict)
    return f"the skills that are loaded ({names}) allow only {', '.join(dict.fromkeys(patterns))}"


def permits(pattern: str, use: ToolUse) -> bool:
    """Whether one pattern lets a call through."""
    read = _PATTERN.fullmatch(pattern)
    if read is None:
        return False
    name, inner = read[1], read[2]
    if use.name != OUR_NAMES.get(name) and not fnmatchcase(use.name, _only_stars(name)):
        return False
    if inner is None or inner == "*":
        return True
    arguments = msgspec.json.decode(use.arguments_json)
    if use.name == "run_command":
        return _fits_command(inner, str(arguments.get("command", "")).strip())
    if use.name in _WITH_PATHS:
        return _fits_path(inner, str(arguments.get("path", ".")))
    return False


def _only_stars(name: str) -> str:
    return name.replace("[", "[[]").replace("?", "[?]")


def _fits_command(inner: str, command: str) -> bool:
    bare = inner.removesuffix(":*").removesuffix(" *")
    if bare == inner:
        return _fits(inner, command, _is_one_command)
    return _fits(bare, command, _is_one_command) or _fits(f"{bare} *", command, _is_one_command)


def _is_one_command(stars: str, text: str) -> bool:
    return not _SECOND_COMMAND.search(text)


def _fits_path(inner: str, path: str) -> bool:
    path = posixpath.normpath(path)
    if posixpath.isabs(path):
        return inner.startswith("//") and _fits(inner[1:], path, _stays_in_folder)
    relative = not inner.startswith("//") and not path.startswith("../") and path != ".."
    return relative and _fits(inner.removeprefix("./").removeprefix("/"), path, _stays_in_folder)


def _stays_in_folder(stars: str, text: str) -> bool:
    return len(stars) > 1 or "/" not in text


def _fits(pattern: str, text: str, fits: Fits) -> bool:
    """Whether the words of a pattern stand in the text in this order, each as early as it can, and nothing else."""
    first, *rest = _STARS.split(pattern)
    if not rest:
        return text == pattern
    if not text.startswith(first):
        return False
    at = len(first)
    for stars, word in zip(rest[0:-2:2], rest[1:-2:2], strict=True):
        found = text.find(word, at)
        if found < 0 or not fits(stars, text[at:found]):
            return False
        at = found + len(word)
    stars, last = rest[-2:]
    end = len(text) - len(last)
    return at <= end and text.endswith(last) and fits(stars, text[at:end])
