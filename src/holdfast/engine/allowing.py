"""Decides which tool calls the `allowed-tools` of a skill permit.

| pattern | permits |
| --- | --- |
| `read_file`, `mcp__docs__*` | the tools of that name; `*` matches any characters |
| `Bash`, `Read`, `Write`, `Edit`, `Grep`, `Glob` | the built-in tool that does the same |
| `Bash(git status)` | that command |
| `Bash(git add:*)`, `Bash(git add *)` | that command, alone or with arguments; `*` never matches a second command |
| `Edit(docs/**)` | paths of the workspace; `*` stays within a folder, `**` does not; `//` starts an absolute path |

A pattern with brackets for any other tool permits nothing.
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
"""Names that skills use for built-in tools, and our names of them."""

_PATH_TOOLS = ("edit_file", "grep_files", "list_dir", "read_file", "write_file")
_PATTERN = re.compile(r"([^()]+)(?:\((.*)\))?", re.DOTALL)
# Shell characters that could start a second command or redirect output.
_SECOND_COMMAND = re.compile(r"[;&|<>()`\r\n]")
_STARS = re.compile(r"(\*+)")

StarsMatch = Callable[[str, str], bool]
"""Whether these stars may match this text."""


def reason_against_skills(skills: Sequence[Skill], use: ToolUse) -> str | None:
    """Why the active skills do not permit a call; skills without `allowed-tools` do not restrict anything."""
    strict = [skill for skill in skills if skill.allowed_tools]
    # The skill tools are always permitted: otherwise a strict skill could never be followed by another one.
    if not strict or use.name in SKILL_TOOLS:
        return None
    patterns = [pattern for skill in strict for pattern in skill.allowed_tools]
    if any(permits(pattern, use) for pattern in patterns):
        return None
    names = ", ".join(skill.name for skill in strict)
    return f"the skills that are loaded ({names}) allow only {', '.join(dict.fromkeys(patterns))}"


def permits(pattern: str, use: ToolUse) -> bool:
    """Whether one pattern permits a call."""
    match = _PATTERN.fullmatch(pattern)
    if match is None:
        return False
    name, inner = match[1], match[2]
    if use.name != OUR_NAMES.get(name) and not fnmatchcase(use.name, _escape_all_but_stars(name)):
        return False
    if inner is None or inner == "*":
        return True
    arguments = msgspec.json.decode(use.arguments_json)
    if use.name == "run_command":
        return _matches_command(inner, str(arguments.get("command", "")).strip())
    if use.name in _PATH_TOOLS:
        return _matches_path(inner, str(arguments.get("path", ".")))
    return False


def _escape_all_but_stars(name: str) -> str:
    return name.replace("[", "[[]").replace("?", "[?]")


def _matches_command(inner: str, command: str) -> bool:
    bare = inner.removesuffix(":*").removesuffix(" *")
    if bare == inner:
        return _matches(inner, command, _is_one_command)
    return _matches(bare, command, _is_one_command) or _matches(f"{bare} *", command, _is_one_command)


def _is_one_command(stars: str, text: str) -> bool:
    return not _SECOND_COMMAND.search(text)


def _matches_path(inner: str, path: str) -> bool:
    # Without `..` and `.` first: otherwise `docs/../secrets` would match `docs/**`.
    path = posixpath.normpath(path)
    if posixpath.isabs(path):
        return inner.startswith("//") and _matches(inner[1:], path, _stays_in_folder)
    relative = not inner.startswith("//") and not path.startswith("../") and path != ".."
    return relative and _matches(inner.removeprefix("./").removeprefix("/"), path, _stays_in_folder)


def _stays_in_folder(stars: str, text: str) -> bool:
    return len(stars) > 1 or "/" not in text


def _matches(pattern: str, text: str, stars_match: StarsMatch) -> bool:
    """Whether the text is the literal parts of the pattern in order, with only matches of its stars in between.

    Each literal part is matched at its earliest position, so the time is linear: no pattern can backtrack.
    """
    first, *rest = _STARS.split(pattern)
    if not rest:
        return text == pattern
    if not text.startswith(first):
        return False
    position = len(first)
    for stars, word in zip(rest[0:-2:2], rest[1:-2:2], strict=True):
        start = text.find(word, position)
        if start < 0 or not stars_match(stars, text[position:start]):
            return False
        position = start + len(word)
    stars, last = rest[-2:]
    end = len(text) - len(last)
    return position <= end and text.endswith(last) and stars_match(stars, text[position:end])
