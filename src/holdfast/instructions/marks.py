"""By what a unit is recognised in a text: its address and name, the ids of its rules, commands it names, its sentences.

What many would write anyway is no mark: everyday commands, tools that every agent has, ids such as UTF-8, and whatever
two units have in common.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from holdfast.instructions.everyday import COMMANDS, FURTHER_WORDS, NO_RULES, PROGRAMS, TOOLS

PHRASE_WORDS = 8
PHRASE_WORDS_DISTINCT_MIN = 5
LINE_CHARACTERS_MAX = 2_000
COMMAND_WORDS_MAX = 12

WORD = re.compile(r"\w+")
_RULE = r"[A-Z]{1,10}(?:[-_][A-Z]{1,10})?[-_.]?\d{1,5}(?:\.\d{1,3}){0,2}[a-z]?"
_RULE_FIRST = re.compile(rf"({_RULE})(?![\w/])")
_RULE_BRACKETED = re.compile(rf"[\[(]({_RULE})[\])]")
_LIST_MARK = re.compile(r"\d{1,3}[.)]\s+")
_LETTERS = re.compile(r"[A-Z]+")
_SPAN = re.compile(r"`([^`\n]{2,200})`")
_FORBIDDEN = re.compile(
    r"\b(?:never|not|no|avoid|without|instead of|rather than|cannot|forbid\w*|prohibit\w*)\b|n['’]t\b", re.IGNORECASE
)
_TOOL = re.compile(r"[A-Za-z][\w.:-]{2,99}")
_DISTINCT = re.compile(r"[_./:\d-]|[a-z][A-Z]")
_PLACEHOLDER = re.compile(r"[<>{}$\[\]…]|\.\.\.|[A-Z][A-Z_]+(?:=|\Z)")
_FENCES = ("```", "~~~")
_SHELLS = frozenset(("", "sh", "bash", "zsh", "shell", "console", "shell-session", "terminal"))

Key = TypeVar("Key", str, tuple[str, ...])


class Unit(msgspec.Struct, frozen=True):
    """A unit that an agent has or could have; `uris` are all its addresses, `text` is empty where it cannot be had."""

    name: str
    uris: tuple[str, ...]
    text: str


class Mark(msgspec.Struct, frozen=True):
    """`unit` is its place among the units, `line` that in its text where it has one."""

    unit: int
    line: int | None


class Marks(msgspec.Struct, frozen=True):
    """What leads to one unit each. A command is its words, a tool its name.

    `command_sizes` is how many words those commands have that begin with a word.
    """

    addresses: dict[str, Mark]
    names: dict[str, Mark]
    rules: dict[str, Mark]
    tools: dict[str, Mark]
    commands: dict[tuple[str, ...], Mark]
    phrases: dict[tuple[str, ...], Mark]
    command_sizes: dict[str, frozenset[int]]


def marks_of(units: Sequence[Unit]) -> Marks:
    commands = _unshared(units, _commands)
    return Marks(
        _unshared(units, lambda unit: ((key, None) for key in _addresses(unit))),
        _unshared(units, lambda unit: ((unit.name, None),)),
        _unshared(units, _rules),
        _unshared(units, _tools),
        commands,
        _unshared(units, lambda unit: phrases_of(unit.text)),
        _sizes(commands),
    )


def _sizes(commands: Iterable[tuple[str, ...]]) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = {}
    for command in commands:
        found.setdefault(command[0], set()).add(len(command))
    return {word: frozenset(sizes) for word, sizes in found.items()}


def _unshared(units: Sequence[Unit], keys: Callable[[Unit], Iterable[tuple[Key, int | None]]]) -> dict[Key, Mark]:
    found: dict[Key, Mark] = {}
    shared: set[Key] = set()
    for place, unit in enumerate(units):
        for key, line in keys(unit):
            if found.setdefault(key, Mark(place, line)).unit != place:
                shared.add(key)
    return {key: mark for key, mark in found.items() if key not in shared}


def _addresses(unit: Unit) -> Iterator[str]:
    """The whole ones, and name with version."""
    for uri in unit.uris:
        yield uri
        yield "/".join(uri.split("/")[-2:])


def _rules(unit: Unit) -> Iterator[tuple[str, int]]:
    """Ids that a line begins with, or that stand in brackets: elsewhere a unit speaks of the rules of others."""
    for number, line in _lines(unit.text):
        start = line.lstrip(" \t>#*+-|_`[(")
        if mark := _LIST_MARK.match(start):
            start = start[mark.end() :].lstrip("*_`[(")
        first = _RULE_FIRST.match(start)
        for found in (*([first] if first else []), *_RULE_BRACKETED.finditer(line)):
            letters = _LETTERS.match(found[1])
            if letters and letters[0] not in NO_RULES:
                yield found[1], number


def _tools(unit: Unit) -> Iterator[tuple[str, int]]:
    for code, number in _code(unit.text):
        name = code.partition("(")[0] if code.endswith(")") else code
        if _TOOL.fullmatch(name) and _DISTINCT.search(name) and name not in TOOLS:
            yield name, number


def _commands(unit: Unit) -> Iterator[tuple[tuple[str, ...], int]]:
    for code, number in _code(unit.text):
        words = _fixed_words(code)
        if words and (len(words) > 1 or _DISTINCT.search(words[0])) and not _is_everyday(words):
            yield words, number


def _fixed_words(code: str) -> tuple[str, ...]:
    """A command up to the first word that stands for another."""
    fixed: list[str] = []
    for word in code.split()[:COMMAND_WORDS_MAX]:
        if _PLACEHOLDER.search(word) or word.startswith("#"):
            break
        fixed.append(word)
    return tuple(fixed)


def _is_everyday(words: tuple[str, ...]) -> bool:
    if words[0] in PROGRAMS:
        return True
    return words[:2] in COMMANDS and all(word in FURTHER_WORDS for word in words[2:])


def _code(text: str) -> Iterator[tuple[str, int]]:
    """Code in a line, and the lines of fenced shell code or indented code; not what the words before it forbid."""
    shell: bool | None = None
    forbidden, behind_blank = False, True
    for number, line in _lines(text):
        stripped = line.strip()
        if stripped.startswith(_FENCES):
            shell = None if shell is not None else stripped.lstrip("`~").strip().lower() in _SHELLS
        elif shell is not None:
            if shell and not forbidden and stripped:
                yield stripped.removeprefix("$ "), number
        elif stripped and behind_blank and line.startswith(("    ", "\t")):
            if not forbidden:
                yield stripped.removeprefix("$ "), number
            continue
        elif stripped:
            forbidden = bool(_FORBIDDEN.search(_last_sentence(stripped)))
            for span in _SPAN.finditer(line):
                if not _FORBIDDEN.search(_last_sentence(line[: span.start()])):
                    yield span[1].strip().removeprefix("$ "), number
        behind_blank = not stripped


def _last_sentence(line: str) -> str:
    return re.split(r"[.;!?] ", line)[-1]


def phrases_of(text: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """Every run of so many words, with the line that it begins in; not those that say one thing over and over."""
    numbered = [
        (word.casefold(), number) for number, line in enumerate(text.splitlines(), 1) for word in WORD.findall(line)
    ]
    words = [word for word, _ in numbered]
    for place in range(len(words) - PHRASE_WORDS + 1):
        phrase = tuple(words[place : place + PHRASE_WORDS])
        if sum(not word.isdigit() for word in set(phrase)) >= PHRASE_WORDS_DISTINCT_MIN:
            yield phrase, numbered[place][1]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        yield number, line[:LINE_CHARACTERS_MAX]
