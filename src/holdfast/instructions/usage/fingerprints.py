"""Fingerprints of a unit: its URI and name, the ids of its rules, the commands and tools it names, its phrases.

Common text is not a fingerprint: everyday commands, tools that every agent has, ids such as UTF-8, and anything that
two loaded units share.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, TypeVar

import msgspec

# Eight consecutive words rarely coincide by chance; of these, five must differ, or lists and tables would match.
PHRASE_WORDS = 8
PHRASE_WORDS_DISTINCT_MIN = 5
LINE_CHARACTERS_MAX = 20_000
COMMAND_WORDS_MAX = 12
WORD = re.compile(r"\w+")
_RULE = r"[A-Z]{1,10}(?:[-_][A-Z]{1,10})?[-_.]?\d{1,5}(?:\.\d{1,3}){0,2}[a-z]?"
_RULE_FIRST = re.compile(rf"({_RULE})(?![\w/])")
_RULE_BRACKETED = re.compile(rf"[\[(]({_RULE})[\])]")
_LIST_MARK = re.compile(r"\d{1,3}[.)]\s+")
_LETTERS = re.compile(r"[A-Z]+")
_SPAN = re.compile(r"`([^`\n]{2,200})`")

# `never run rm -rf` names a command that the unit forbids; running it is no evidence that the unit was followed.
_FORBIDDEN = re.compile(
    r"\b(?:never|not|no|avoid|without|instead of|rather than|cannot|forbid\w*|prohibit\w*)\b|n['’]t\b", re.IGNORECASE
)
_TOOL = re.compile(r"[A-Za-z][\w.:-]{2,99}")

# A plain English word is not distinctive as a tool or program name; one with punctuation, digits or camel case is.
_DISTINCT = re.compile(r"[_./:\d-]|[a-z][A-Z]")

# Words that stand for an argument to fill in: <name>, {id}, $VAR, [options], ..., FILE=.
_PLACEHOLDER = re.compile(r"[<>{}$\[\]…]|\.\.\.|[A-Z][A-Z_]+(?:=|\Z)")
_BETWEEN = re.compile(r"&&|[;|]")
_FLAG = re.compile(r"-\w")
_PROGRAM = re.compile(r"[\w./~][\w./~+@-]+")
_FENCE = re.compile(r"(`{3,}|~{3,})([^`]*)\Z")
_SHELLS = frozenset(("", "sh", "bash", "zsh", "shell", "console", "shell-session", "terminal"))


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Letters before a number in the names of standards, versions, headings and quarters: not the id of a rule.
NON_RULE_PREFIXES = _words(
    "AES AMD ARM BASE CSS CVE EC ECMA ED ES FLOAT GPT H HTTP INT IP IPV ISO MD MP OAUTH PEP PY Q RFC RSA SHA SSL TLS "
    "UINT UTC UTF V WCAG WEB WIN X"
)

COMMON_TOOLS = _words(
    "apply_patch edit_file execute_command file_search glob_files grep_search list_dir list_directory list_files "
    "multi_edit MultiEdit NotebookEdit open_file read_file run_command run_in_terminal run_shell_command search_files "
    "str_replace_based_edit_tool str_replace_editor TodoRead TodoWrite todo_write WebFetch WebSearch web_fetch "
    "web_search write_file"
)

COMMON_PROGRAMS = _words(
    "cat cd chmod cp curl echo export find grep head ls mkdir mv pwd rg rm sed source tail touch wc which"
)

# Matched by their first two words; further words must be one-letter flags or COMMON_ARGUMENTS.
_GIT_COMMANDS = _words("add branch checkout clone commit diff fetch log pull push show stash status")
COMMON_COMMANDS = frozenset(
    (
        *(("git", word) for word in _GIT_COMMANDS),
        *(("npm", "ci"), ("npm", "install"), ("npm", "test"), ("pip", "install"), ("docker", "ps"), ("go", "build")),
        *(("python", "-m"), ("python3", "-m")),
    )
)

COMMON_ARGUMENTS = _words("-am . -- --all --oneline --upgrade main master origin")
LinePosition = Literal["prose", "shell", "code", "indented"]
Key = TypeVar("Key", str, tuple[str, ...])


class UnitText(msgspec.Struct, frozen=True):
    """A unit of the manifest, loaded or not; `uris` are all its addresses, `text` is empty if it is unavailable."""

    name: str
    uris: tuple[str, ...]
    text: str


class Fingerprint(msgspec.Struct, frozen=True):
    """`unit_index` is an index into the units, `line` the line of its text that the fingerprint comes from, if any."""

    unit_index: int
    line: int | None


class FingerprintIndex(msgspec.Struct, frozen=True):
    """Fingerprints that identify exactly one unit: tools, commands and phrases a loaded one, the others any.

    `command_sizes` maps a first word to the word counts of the commands that start with it.
    """

    addresses: dict[str, Fingerprint]
    names: dict[str, Fingerprint]
    rules: dict[str, Fingerprint]
    tools: dict[str, Fingerprint]
    commands: dict[tuple[str, ...], Fingerprint]
    phrases: dict[tuple[str, ...], Fingerprint]
    command_sizes: dict[str, frozenset[int]]


def index_fingerprints(units: Sequence[UnitText], loaded: frozenset[str]) -> FingerprintIndex:
    """A fingerprint shared by a loaded and an unloaded unit identifies the loaded one."""
    loaded_units = [(index, unit) for index, unit in enumerate(units) if unit.name in loaded]
    other_units = [(index, unit) for index, unit in enumerate(units) if unit.name not in loaded]

    def of_all(keys: Callable[[UnitText], Iterable[tuple[str, int | None]]]) -> dict[str, Fingerprint]:
        own_keys = {key for _, unit in loaded_units for key, _ in keys(unit)}
        others = _unique_fingerprints(other_units, keys)
        for key in own_keys & others.keys():
            del others[key]
        return others | _unique_fingerprints(loaded_units, keys)

    commands = _unique_fingerprints(loaded_units, _commands)
    return FingerprintIndex(
        of_all(lambda unit: ((key, None) for key in _addresses(unit))),
        of_all(lambda unit: ((unit.name, None),)),
        of_all(_rules),
        _unique_fingerprints(loaded_units, _tools),
        commands,
        _unique_fingerprints(loaded_units, _phrases),
        _command_sizes(commands),
    )


def _command_sizes(commands: Iterable[tuple[str, ...]]) -> dict[str, frozenset[int]]:
    sizes_by_word: dict[str, set[int]] = {}
    for command in commands:
        sizes_by_word.setdefault(command[0], set()).add(len(command))
    return {word: frozenset(sizes) for word, sizes in sizes_by_word.items()}


def _unique_fingerprints(
    units: Iterable[tuple[int, UnitText]], keys: Callable[[UnitText], Iterable[tuple[Key, int | None]]]
) -> dict[Key, Fingerprint]:
    fingerprints: dict[Key, Fingerprint] = {}
    shared: set[Key] = set()
    for index, unit in units:
        for key, line in keys(unit):
            if fingerprints.setdefault(key, Fingerprint(index, line)).unit_index != index:
                shared.add(key)
    return {key: fingerprint for key, fingerprint in fingerprints.items() if key not in shared}


def _addresses(unit: UnitText) -> Iterator[str]:
    """Full URIs, and the short form name/version."""
    for uri in unit.uris:
        yield uri
        yield "/".join(uri.split("/")[-2:])


def _rules(unit: UnitText) -> Iterator[tuple[str, int]]:
    """Ids at the start of a line or in brackets; elsewhere a unit may cite the rules of other units."""
    for number, line, _ in _lines_with_position(unit.text):
        start = line.lstrip(" \t>#*+-|_`[(")
        if list_mark := _LIST_MARK.match(start):
            start = start[list_mark.end() :].lstrip("*_`[(")
        first = _RULE_FIRST.match(start)
        for match in (*([first] if first else []), *_RULE_BRACKETED.finditer(line)):
            letters = _LETTERS.match(match[1])
            if letters and letters[0] not in NON_RULE_PREFIXES:
                yield match[1], number


def _tools(unit: UnitText) -> Iterator[tuple[str, int]]:
    for code, number in _code_lines(unit.text):
        name = code.partition("(")[0] if code.endswith(")") else code
        if _TOOL.fullmatch(name) and _DISTINCT.search(name) and name not in COMMON_TOOLS:
            yield name, number


def _commands(unit: UnitText) -> Iterator[tuple[tuple[str, ...], int]]:
    parts = ((part, number) for code, number in _code_lines(unit.text) for part in _BETWEEN.split(code))
    for part, number in parts:
        words = _fixed_words(part)
        if not words or not _PROGRAM.fullmatch(words[0]) or _is_everyday(words):
            continue
        if len(words) > 1 or _DISTINCT.search(words[0]):
            yield words, number


def _fixed_words(code: str) -> tuple[str, ...]:
    """A command up to its first placeholder."""
    fixed: list[str] = []
    for word in code.split()[:COMMAND_WORDS_MAX]:
        if _PLACEHOLDER.search(word) or word.startswith("#"):
            break
        fixed.append(word)
    return tuple(fixed)


def _is_everyday(words: tuple[str, ...]) -> bool:
    if words[0] in COMMON_PROGRAMS:
        return True
    return words[:2] in COMMON_COMMANDS and all(word in COMMON_ARGUMENTS or _FLAG.fullmatch(word) for word in words[2:])


def _code_lines(text: str) -> Iterator[tuple[str, int]]:
    """Inline code, and the lines of fenced shell code or indented code, unless the text before forbids it."""
    forbidden = False
    for number, line, position in _lines_with_position(text):
        stripped = line.strip()
        if position in ("shell", "indented"):
            if stripped and not forbidden:
                yield stripped.removeprefix("$ "), number
        elif position == "prose" and stripped:
            forbidden = bool(_FORBIDDEN.search(_last_sentence(stripped)))
            for span in _SPAN.finditer(line):
                if not _FORBIDDEN.search(_last_sentence(line[: span.start()])):
                    yield span[1].strip().removeprefix("$ "), number


def _lines_with_position(text: str) -> Iterator[tuple[int, str, LinePosition]]:
    """The lines of a text with their position, truncated if very long, without the fence lines themselves."""
    fence: str = ""
    position: LinePosition = "prose"
    after_blank = True
    for number, full_line in enumerate(text.splitlines(), 1):
        line = full_line[:LINE_CHARACTERS_MAX]
        stripped = line.strip()
        if not fence and (opening := _FENCE.match(stripped)):
            fence, position = opening[1], "shell" if opening[2].strip().lower() in _SHELLS else "code"
        elif fence and len(stripped) >= len(fence) and not stripped.strip(fence[0]):
            fence = ""
        elif fence:
            yield number, line, position
        elif after_blank and stripped and line.startswith(("    ", "\t")):
            yield number, line, "indented"
            continue
        else:
            yield number, line, "prose"
        after_blank = not stripped


def _last_sentence(line: str) -> str:
    return re.split(r"[.;!?] ", line)[-1]


def _phrases(unit: UnitText) -> Iterator[tuple[tuple[str, ...], int]]:
    """Every run of PHRASE_WORDS words with the line that it starts in, except runs of mostly repeated words."""
    numbered = [
        (word.casefold(), number)
        for number, line, position in _lines_with_position(unit.text)
        if position in ("prose", "indented")
        for word in WORD.findall(line)
    ]
    words = [word for word, _ in numbered]
    for start in range(len(words) - PHRASE_WORDS + 1):
        phrase = tuple(words[start : start + PHRASE_WORDS])
        if sum(not word.isdigit() for word in set(phrase)) >= PHRASE_WORDS_DISTINCT_MIN:
            yield phrase, numbered[start][1]
