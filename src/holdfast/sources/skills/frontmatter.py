"""Parses the front matter of a SKILL.md into text fields, whatever its bytes are.

Every scalar stays text as written: `1.10` is not a number and `2024-02-31` not a date.
"""

import re
from typing import NamedTuple

import yaml

from holdfast.redaction import redact_secrets
from holdfast.sources.files import to_one_line

FRONT_MATTER_CHARS_MAX = 65_536
NESTING_MAX = 8

YamlValue = str | None | list["YamlValue"] | dict[str, "YamlValue"]
"""None is YAML's null: an empty value, `~`, or the word."""


class SkillFault(NamedTuple):
    rule: str
    message: str
    fix: str
    line: int | None = None


class FrontMatter(NamedTuple):
    """The fields with the line of each; `fields` is None if parsing failed, and the faults say why."""

    fields: dict[str, YamlValue] | None
    lines: dict[str, int]
    faults: tuple[SkillFault, ...] = ()


class SkillFileParts(NamedTuple):
    """Front matter and body of a file; the front matter starts on the second line."""

    front: str
    body: str
    faults: tuple[SkillFault, ...] = ()


FIRST_LINE = 2
_LOADER: type[yaml.SafeLoader] | type[yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_OPENING = re.compile(r"---[ \t]*\n")
_NULLS = frozenset(("", "~", "null", "Null", "NULL"))


def split_front_matter(text: str) -> SkillFileParts | SkillFault:
    """Split at the lines of three hyphens that open and close the front matter."""
    faults: tuple[SkillFault, ...] = ()
    start = 4
    if not text.startswith("---\n"):
        opening = _OPENING.match(text)
        if opening is None:
            return SkillFault("opening", "the file does not start with front matter", "make --- the first line", 1)
        start = opening.end()
        faults = (SkillFault("opening-blanks", "the opening --- has trailing blanks", "remove them", 1),)
    closing_at = text.find("\n---", start - 1)
    while closing_at >= 0:
        end = text.find("\n", closing_at + 4)
        rest = text[closing_at + 4 : end if end >= 0 else len(text)]
        if not rest.strip(" \t"):
            body = text[end + 1 :].lstrip("\n") if end >= 0 else ""
            front = text[start : closing_at + 1]
            if len(front) > FRONT_MATTER_CHARS_MAX:
                message = f"the front matter has more than {FRONT_MATTER_CHARS_MAX} characters"
                return SkillFault("front-matter-size", message, "move long texts into the body", 1)
            return SkillFileParts(front, body, faults)
        closing_at = text.find("\n---", closing_at + 4)
    return SkillFault("closing", "the front matter is not closed", "add a line --- after it", 1)


def parse_front_matter(text: str) -> FrontMatter:
    """Parse YAML from its events: no tag is resolved, no alias followed, and deep nesting cannot overflow the stack."""
    builder = _Builder()
    try:
        loader = _LOADER(text)
        try:
            while (event := loader.get_event()) is not None:
                builder.take(event)
        finally:
            loader.dispose()
    except _RefusedError as refused:
        return FrontMatter(None, builder.lines, (refused.fault,))
    except (yaml.YAMLError, ValueError) as error:
        return FrontMatter(None, builder.lines, (_yaml_fault(error, text),))
    if not isinstance(builder.root, dict):
        fault = SkillFault("not-a-mapping", "the front matter is not a mapping", "write it as lines of key: value", 1)
        return FrontMatter(None, builder.lines, (fault,))
    return FrontMatter(builder.root, builder.lines, tuple(builder.faults))


def quote_values(text: str) -> tuple[str, tuple[int, ...]]:
    """Quote the values that YAML cannot parse; returns the text and the numbers of the changed lines."""
    lines = text.split("\n")
    changed: list[int] = []
    for index, line in enumerate(lines):
        key, colon, value = line.partition(": ")
        value = value.strip()
        if not colon or not value or value[0] in "|>" or not re.fullmatch(r" *[A-Za-z][\w-]*", key):
            continue
        if parse_front_matter(line.strip() + "\n").fields is None:
            lines[index] = f"{key}: '" + value.replace("'", "''") + "'"
            changed.append(index + FIRST_LINE)
    return "\n".join(lines), tuple(changed)


class _RefusedError(Exception):
    def __init__(self, fault: SkillFault) -> None:
        super().__init__(fault.rule)
        self.fault = fault


class _Builder:
    """Builds one document; `_open` are the containers around the next value, each with its pending key."""

    def __init__(self) -> None:
        self.root: YamlValue = None
        self.lines: dict[str, int] = {}
        self.faults: list[SkillFault] = []
        self._open: list[tuple[list[YamlValue] | dict[str, YamlValue], list[str]]] = []
        self._documents = 0

    def take(self, event: yaml.Event) -> None:
        line = (event.start_mark.line if event.start_mark else 0) + FIRST_LINE
        if isinstance(event, yaml.AliasEvent):
            raise _RefusedError(SkillFault("alias", "an alias is used", "write the value out", line))
        if isinstance(event, yaml.NodeEvent):
            self._take_node(event, line)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._open.pop()
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise _RefusedError(SkillFault("yaml", "there is more than one document", "keep the first", line))

    def _take_node(self, event: yaml.NodeEvent, line: int) -> None:
        if event.anchor is not None:
            raise _RefusedError(SkillFault("alias", "an anchor is set", "write the value out where it is used", line))
        if getattr(event, "tag", None) is not None:
            raise _RefusedError(SkillFault("tag", "a YAML tag is used", "remove the tag", line))
        if isinstance(event, yaml.ScalarEvent):
            self._put_scalar(event, line)
            return
        if len(self._open) >= NESTING_MAX:
            raise _RefusedError(SkillFault("nesting", f"it is nested over {NESTING_MAX} deep", "make it flatter", line))
        container: list[YamlValue] | dict[str, YamlValue] = {} if isinstance(event, yaml.MappingStartEvent) else []
        if getattr(event, "flow_style", False):
            self._add_fault(
                SkillFault("flow-style", "a value is written in brackets or braces", "write it as lines", line)
            )
        self._put(container, line)
        self._open.append((container, []))

    def _put_scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        if self._open:
            container, key = self._open[-1]
            if isinstance(container, dict) and not key:
                self._put_key(container, event.value, line)
                key.append(event.value)
                return
        is_null = event.implicit[0] and event.value in _NULLS
        self._put(None if is_null else event.value, line)

    def _put_key(self, container: dict[str, YamlValue], key: str, line: int) -> None:
        if key == "<<":
            raise _RefusedError(SkillFault("alias", "a merge key is used", "write the values out", line))
        if key in container:
            message = f"the key {quote_text(key)} occurs twice"
            self._add_fault(SkillFault("duplicate-key", message, "keep one of them; the last one counts", line))
        if len(self._open) == 1:
            self.lines[key] = line

    def _add_fault(self, fault: SkillFault) -> None:
        """Add a fault once per rule, because a file can break a rule in every line."""
        if not any(known.rule == fault.rule for known in self.faults):
            self.faults.append(fault)

    def _put(self, value: YamlValue, line: int) -> None:
        if not self._open:
            self.root = value
            return
        container, key = self._open[-1]
        if isinstance(container, list):
            container.append(value)
        elif key:
            container[key.pop()] = value
        else:
            raise _RefusedError(SkillFault("yaml", "a key is not a string", "make every key a word", line))


def quote_text(text: str, chars_max: int = 80) -> str:
    """External text for use in a message: quoted, on one line, shortened, without credentials."""
    line = redact_secrets(to_one_line(text.encode("utf-8", "replace")))
    return repr(line if len(line) <= chars_max else line[:chars_max] + "…")


def _yaml_fault(error: yaml.YAMLError | ValueError, text: str) -> SkillFault:
    line, problem = 1, "it cannot be read"
    if isinstance(error, yaml.MarkedYAMLError):
        position = error.problem_mark or error.context_mark
        line = position.line + FIRST_LINE if position else 1
        problem = error.problem or problem
    elif isinstance(error, yaml.reader.ReaderError):
        line = text.encode("utf-8", "replace").count(b"\n", 0, error.position) + FIRST_LINE
        problem = error.reason
    fix = "quote the value if it contains a colon or starts with a special character"
    return SkillFault("yaml", f"not YAML: {to_one_line(problem.encode('utf-8', 'replace'))}", fix, line)
