"""Which units an agent used, by what it did rather than by what it says of itself.

What counts, in what the agent wrote or passed to a tool, unless somebody else had shown it the same before:

- `address`: the address of a unit, or its name and version (`code-review/v2`).
- `name`: the name of a unit, in the agent's own words. One of three parts and more, or with a digit or an underscore,
  counts wherever it stands; one of two parts (`code-review`, which people write anyway) in quotes, or beside the word
  unit or instruction; one of a single word (`testing`) only in quotes beside such a word.
- `rule`: an id that begins a line of the unit, or stands in brackets there (`SEC-12`, `R3:`). Ids of one letter count
  only where they are cited: in brackets, before a colon, after a word such as rule or per.
- `tool`: a tool that the unit names in backticks, and that was called. `command`: a command that it names in backticks
  or in a block of code, and that was run with the same words. Neither where the unit forbids it or everybody does it.
- `phrase`: eight words of the unit in a row that no other one has; not of fenced code, which is often the same.

What two units that were loaded share leads to neither. One that was not loaded counts as referred to by address, name
or rule alone, unless a loaded one has the same. Recalls and reports of usage are no use; and a message that holds a
unit's whole text hands it over, and shows nothing of it beforehand.
"""

import re
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.instructions.addresses import read_address
from holdfast.instructions.failures import InstructionError
from holdfast.instructions.marks import (
    COMMAND_WORDS_MAX,
    PHRASE_WORDS,
    WORD,
    Mark,
    Marks,
    Unit,
    marks_of,
)
from holdfast.instructions.trace import Called, Said, Shown, Step, is_of_instructions, texts_in
from holdfast.instructions.values import Detected, Evidence, EvidenceKind

_TOKEN = re.compile(r"[A-Za-z0-9][\w.@+:/-]*")
_OPENING, _CLOSING = "`'\"[“‘*", "`'\"]”’*"
_BESIDE_BEFORE = re.compile(r"\b(?:(?:unit|instruction)s?:?|per)\s+[`'\"\[“‘*]*\Z", re.IGNORECASE)
_BESIDE_AFTER = re.compile(r"[`'\"\]”’*]*\s+(?:unit|instruction)s?\b", re.IGNORECASE)
_CITED_BEFORE = re.compile(
    r"\b(?:rules?|per|see|under|follow(?:s|ed|ing)?|violat\w{1,4})\s+[`'\"\[(*]*\Z", re.IGNORECASE
)
_CONTEXT_CHARACTERS = 30
_SHORT_RULE = re.compile(r"[A-Z]\d{1,5}[a-z]?")
_BARE_NAME = re.compile(r"[\d_]|[-.][^-.]+[-.]")
_COMMAND_MEMBERS = frozenset(("command", "cmd", "commands", "script", "argv", "shell_command"))
_BETWEEN_COMMANDS = re.compile(r"&&|\|\||[;|&()\n]")
_ASSIGNMENT = re.compile(r"\w+=\S*")
_WRAPPERS = tuple(
    tuple(words.split())
    for words in (
        *("sudo", "time", "env", "nohup", "exec", "command", "npx", "uv run", "poetry run", "pipenv run"),
        *("bash -c", "bash -lc", "sh -c", "sh -lc", "python -m", "python3 -m"),
    )
)
_AROUND_WORDS = "`'\"()[]*.,:;!?"

_Key = tuple[EvidenceKind, str | tuple[str, ...]]


class _Found(msgspec.Struct, frozen=True):
    key: _Key
    mark: Mark


def detect(
    units: Sequence[Unit],
    trace: Sequence[Step],
    *,
    loaded: frozenset[str],
    known: Sequence[str] = (),
    listed: Sequence[str] = (),
) -> tuple[Detected, ...]:
    """In the order of the units; one piece of evidence of each kind.

    `known` is what the agent was told or had said before, `listed` what it was told of the units: whoever refers to a
    unit by that means it, but has not read it.
    """
    marks = marks_of(units, loaded)
    shown: set[_Key] = set()
    for text in known:
        shown.update(one.key for one in _shown(marks, text) if one.key[0] != "name")
    for text in listed:
        shown.update(one.key for one in _shown(marks, text) if one.key[0] not in ("name", "rule"))
    found: dict[int, dict[EvidenceKind, Evidence]] = {}
    for number, step in enumerate(trace, 1):
        if isinstance(step, Shown):
            handed = _handed_over(units, step)
            if not is_of_instructions(step.tool):
                shown.update(one.key for one in _shown(marks, step.text) if one.mark.unit not in handed)
            continue
        for one in _done(marks, step):
            kind = one.key[0]
            if one.key not in shown:
                found.setdefault(one.mark.unit, {}).setdefault(kind, Evidence(kind, number, one.mark.line))
    return tuple(Detected(units[place].name, tuple(evidence.values())) for place, evidence in sorted(found.items()))


def _done(marks: Marks, step: Said | Called) -> Iterator[_Found]:
    if isinstance(step, Said):
        yield from _references(marks, step.text, names=True)
        yield from _phrases(marks, step.text)
    elif not is_of_instructions(step.tool):
        for name in {step.tool, step.tool.rpartition("__")[2]}:
            if name in marks.tools:
                yield _Found(("tool", name), marks.tools[name])
        for member, text in texts_in(step.arguments):
            yield from _references(marks, text, names=False)
            yield from _phrases(marks, text)
            if member in _COMMAND_MEMBERS:
                yield from _commands_run(marks, text)


def _shown(marks: Marks, text: str) -> Iterator[_Found]:
    """All that could be taken from a text, what is only spoken of in it too; an address means its unit anyhow."""
    yield from _phrases(marks, text)
    for token, _, _ in _tokens(text):
        if token in marks.names:
            yield _Found(("name", token), marks.names[token])
        if token in marks.rules:
            yield _Found(("rule", token), marks.rules[token])
        if token in marks.tools:
            yield _Found(("tool", token), marks.tools[token])
    words = [word.strip(_AROUND_WORDS) for word in text.split()]
    for place, word in enumerate(words):
        for size in marks.command_sizes.get(word, ()):
            command = tuple(words[place : place + size])
            if command in marks.commands:
                yield _Found(("command", command), marks.commands[command])


def _handed_over(units: Sequence[Unit], step: Shown) -> frozenset[int]:
    """The units whose whole text stands in a message: that is how a unit reaches an agent without a tool."""
    if step.tool:
        return frozenset()
    return frozenset(place for place, unit in enumerate(units) if unit.text.strip() and unit.text.strip() in step.text)


def _references(marks: Marks, text: str, *, names: bool) -> Iterator[_Found]:
    for token, start, end in _tokens(text):
        address = _plain_address(token)
        if address in marks.addresses:
            yield _Found(("address", address), marks.addresses[address])
        elif names and token in marks.names and _is_meant(token, text, start, end):
            yield _Found(("name", token), marks.names[token])
        elif token in marks.rules and _is_cited(token, text, start, end):
            yield _Found(("rule", token), marks.rules[token])


def _tokens(text: str) -> Iterator[tuple[str, int, int]]:
    """Words with all that belongs to them, and not the punctuation of the sentence."""
    for found in _TOKEN.finditer(text):
        token = found[0].rstrip(".:/@+-")
        yield token, found.start(), found.start() + len(token)


def _plain_address(token: str) -> str:
    if not token.startswith("instruction:"):
        return token
    try:
        return read_address(token).uri
    except InstructionError:
        return token


def _is_meant(name: str, text: str, start: int, end: int) -> bool:
    if _BARE_NAME.search(name):
        return True
    quoted = text[max(0, start - 1) : start] in _OPENING and text[end : end + 1] in _CLOSING
    quoted = quoted and start > 0 and end < len(text)
    before, after = text[max(0, start - _CONTEXT_CHARACTERS) : start], text[end : end + _CONTEXT_CHARACTERS]
    beside = bool(_BESIDE_BEFORE.search(before) or _BESIDE_AFTER.match(after))
    return (quoted or beside) if re.search(r"[-.]", name) else (quoted and beside)


def _is_cited(rule: str, text: str, start: int, end: int) -> bool:
    if not _SHORT_RULE.fullmatch(rule):
        return True
    bracketed = text[max(0, start - 1) : start] in ("(", "[") and text[end : end + 1] in (")", "]")
    before = text[max(0, start - _CONTEXT_CHARACTERS) : start]
    return bracketed or text[end : end + 1] == ":" or bool(_CITED_BEFORE.search(before))


def _phrases(marks: Marks, text: str) -> Iterator[_Found]:
    if not marks.phrases:
        return
    words = [word.casefold() for word in WORD.findall(text)]
    for place in range(len(words) - PHRASE_WORDS + 1):
        phrase = tuple(words[place : place + PHRASE_WORDS])
        if phrase in marks.phrases:
            yield _Found(("phrase", phrase), marks.phrases[phrase])


def _commands_run(marks: Marks, text: str) -> Iterator[_Found]:
    """At the beginning of each command of a line; what a here-document holds is not run."""
    for part in _BETWEEN_COMMANDS.split(text.partition("<<")[0]):
        words = _unwrapped([word.strip("'\"") for word in part.split()])
        for size in marks.command_sizes.get(words[0], ()) if words else ():
            command = tuple(words[:size])
            if command in marks.commands:
                yield _Found(("command", command), marks.commands[command])


def _unwrapped(words: list[str]) -> list[str]:
    """Without the assignments and the programs that only run another."""
    start = 0
    while start < len(words):
        wrapper = next((one for one in _WRAPPERS if tuple(words[start : start + len(one)]) == one), None)
        if wrapper is not None:
            start += len(wrapper)
        elif _ASSIGNMENT.fullmatch(words[start]):
            start += 1
        else:
            break
    return words[start : start + COMMAND_WORDS_MAX]
