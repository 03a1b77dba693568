"""Matches paths against ignore files with the patterns of `.gitignore`."""

import re
from collections.abc import Sequence

import msgspec

IGNORE_FILES = (".gitignore", ".ignore", ".holdfastignore")
PATTERNS_MAX = 2_000
PATTERN_CHARACTERS_MAX = 500


class IgnoreRule(msgspec.Struct, frozen=True):
    """`folder` is that of the ignore file, relative to the root; an `is_negated` rule (`!pattern`) un-ignores paths."""

    folder: str
    shape: re.Pattern[str]
    kept: bool = False
    only_folders: bool = False


def ignore_rules(text: str, folder: str = "") -> tuple[IgnoreRule, ...]:
    """The rules of one ignore file; invalid lines are skipped."""
    rules = []
    for line in text.split("\n")[:PATTERNS_MAX]:
        if (rule := _parse_rule(line.rstrip("\r"), folder)) is not None:
            rules.append(rule)
    return tuple(rules)


def is_ignored(path: str, rules: Sequence[IgnoreRule], *, is_folder: bool) -> bool:
    """Whether a path is ignored, given that its parent folders are not; the last matching rule decides."""
    for rule in reversed(rules):
        if rule.only_folders and not is_folder:
            continue
        if rule.folder and not path.startswith(f"{rule.folder}/"):
            continue
        if rule.shape.fullmatch(path[len(rule.folder) + 1 if rule.folder else 0 :]):
            return not rule.kept
    return False


def _parse_rule(line: str, folder: str) -> IgnoreRule | None:
    pattern = re.sub(r"(?<!\\) +$", "", line)
    if not pattern or pattern.startswith("#") or len(pattern) > PATTERN_CHARACTERS_MAX:
        return None
    negated = pattern.startswith("!")
    pattern = pattern[1:] if negated else pattern
    only_folders = pattern.endswith("/")
    pattern = pattern.rstrip("/") if only_folders else pattern
    if not pattern:
        return None
    anchored = "/" in pattern
    expression = _translate(pattern.removeprefix("/"))
    try:
        compiled = re.compile(expression if anchored else f"(?:.*/)?{expression}", re.DOTALL)
    except re.error:
        return None
    return IgnoreRule(folder, compiled, negated, only_folders)


def _translate(pattern: str) -> str:
    """Translate a pattern to a regular expression over `/`-separated paths."""
    expression, position = "", 0
    while position < len(pattern):
        rest = pattern[position:]
        if rest.startswith("**/") and (position == 0 or pattern[position - 1] == "/"):
            expression, position = expression + "(?:.*/)?", position + 3
        elif rest == "**" and (position == 0 or pattern[position - 1] == "/"):
            expression, position = expression + ".+", position + 2
        elif rest[0] == "*":
            position += len(rest) - len(rest.lstrip("*"))
            expression += "[^/]*"
        elif rest[0] == "?":
            expression, position = expression + "[^/]", position + 1
        elif rest[0] == "[" and (bracket := re.match(r"\[([!^]?)(\]?(?:\\.|[^\]\\])*)\]", rest)):
            inner = re.sub(r"([\[&~|])", r"\\\1", bracket[2])
            inner = rf"\]{inner[1:]}" if inner.startswith("]") else inner
            expression += f"(?!/)[{'^' if bracket[1] else ''}{inner}]"
            position += len(bracket[0])
        elif rest[0] == "\\" and len(rest) > 1:
            expression, position = expression + re.escape(rest[1]), position + 2
        else:
            expression, position = expression + re.escape(rest[0]), position + 1
    return expression
