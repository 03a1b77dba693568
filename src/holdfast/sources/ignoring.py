"""Which files of a project are not its own work, by its ignore files: the patterns of `.gitignore`."""

import re
from collections.abc import Sequence

import msgspec

IGNORE_FILES = (".gitignore", ".ignore", ".holdfastignore")
PATTERNS_MAX = 2_000
PATTERN_CHARACTERS_MAX = 500


class IgnoreRule(msgspec.Struct, frozen=True):
    """`folder` is where its file stands, from the root on; a rule that is `kept` takes back what others ignore."""

    folder: str
    shape: re.Pattern[str]
    kept: bool = False
    only_folders: bool = False


def ignore_rules(text: str, folder: str = "") -> tuple[IgnoreRule, ...]:
    """The rules of one file; a line that cannot be read is none."""
    rules = []
    for line in text.split("\n")[:PATTERNS_MAX]:
        if (rule := _rule(line.rstrip("\r"), folder)) is not None:
            rules.append(rule)
    return tuple(rules)


def is_ignored(path: str, rules: Sequence[IgnoreRule], *, is_folder: bool) -> bool:
    """Whether a path is ignored, given that the folders above it are not; the last rule that fits decides."""
    for rule in reversed(rules):
        if rule.only_folders and not is_folder:
            continue
        if rule.folder and not path.startswith(f"{rule.folder}/"):
            continue
        if rule.shape.fullmatch(path[len(rule.folder) + 1 if rule.folder else 0 :]):
            return not rule.kept
    return False


def _rule(line: str, folder: str) -> IgnoreRule | None:
    pattern = re.sub(r"(?<!\\) +$", "", line)
    if not pattern or pattern.startswith("#") or len(pattern) > PATTERN_CHARACTERS_MAX:
        return None
    kept = pattern.startswith("!")
    pattern = pattern[1:] if kept else pattern
    only_folders = pattern.endswith("/")
    pattern = pattern.rstrip("/") if only_folders else pattern
    if not pattern:
        return None
    anchored = "/" in pattern
    shape = _shape(pattern.removeprefix("/"))
    try:
        compiled = re.compile(shape if anchored else f"(?:.*/)?{shape}", re.DOTALL)
    except re.error:
        return None
    return IgnoreRule(folder, compiled, kept, only_folders)


def _shape(pattern: str) -> str:
    """The pattern as a regular expression over a path with `/` between its parts."""
    shape, at = "", 0
    while at < len(pattern):
        rest = pattern[at:]
        if rest.startswith("**/") and (at == 0 or pattern[at - 1] == "/"):
            shape, at = shape + "(?:.*/)?", at + 3
        elif rest == "**" and (at == 0 or pattern[at - 1] == "/"):
            shape, at = shape + ".+", at + 2
        elif rest[0] == "*":
            at += len(rest) - len(rest.lstrip("*"))
            shape += "[^/]*"
        elif rest[0] == "?":
            shape, at = shape + "[^/]", at + 1
        elif rest[0] == "[" and (found := re.match(r"\[([!^]?)(\]?(?:\\.|[^\]\\])*)\]", rest)):
            inner = re.sub(r"([\[&~|])", r"\\\1", found[2])
            inner = rf"\]{inner[1:]}" if inner.startswith("]") else inner
            shape += f"(?!/)[{'^' if found[1] else ''}{inner}]"
            at += len(found[0])
        elif rest[0] == "\\" and len(rest) > 1:
            shape, at = shape + re.escape(rest[1]), at + 2
        else:
            shape, at = shape + re.escape(rest[0]), at + 1
    return shape
