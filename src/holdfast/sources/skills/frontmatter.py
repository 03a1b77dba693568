"""Parses the front matter of a SKILL.md into fields, whatever its bytes are.

Every scalar stays text as written: `1.10` is not a number and `2024-02-31` not a date. For the seed, which parses with
`yaml.safe_load`, scalars have YAML's types instead, and aliases are followed as far as the size limits allow.
"""

import datetime
import re
from typing import Any, NamedTuple

import yaml

from holdfast.redaction import redact_secrets
from holdfast.sources.files import to_one_line

FRONT_MATTER_CHARS_MAX = 65_536
NESTING_MAX = 8
NUMBER_CHARS_MAX = 100
"""For YAML's numbers: reading one with base 60 (`1:30:00`) takes time that grows with the square of its length."""

YamlValue = str | bool | int | float | datetime.date | None | list["YamlValue"] | dict[Any, "YamlValue"]
"""None is YAML's null: an empty value, `~`, or the word. If not `typed`, all other scalars and all keys are text."""


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
_TEXT_TAG = "tag:yaml.org,2002:str"
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


def parse_front_matter(text: str, *, typed: bool = False) -> FrontMatter:
    """Parse YAML from its events: no tag is resolved, and deep nesting cannot overflow the stack.

    If `typed`, the values are those of `yaml.safe_load`; otherwise they are text, and aliases are refused.
    """
    try:
        loader = _LOADER(text)
        builder = _Builder(loader if typed else None)
        try:
            while (event := loader.get_event()) is not None:
                builder.take(event)
        finally:
            loader.dispose()
    except _RefusedError as refused:
        return FrontMatter(None, builder.lines, (refused.fault,))
    except (yaml.YAMLError, ValueError) as error:
        return FrontMatter(None, {}, (_yaml_fault(error, text),))
    if not isinstance(builder.root, dict):
        fault = SkillFault("not-a-mapping", "the front matter is not a mapping", "write it as lines of key: value", 1)
        return FrontMatter(None, builder.lines, (fault,))
    fields: dict[str, YamlValue] = builder.root
    if builder.has_types:
        try:
            # The events have shown that it is small even with every alias written out, not deep, and without tags.
            typed_fields: dict[object, YamlValue] = yaml.load(text, Loader=_LOADER)
            fields = {key: value for key, value in typed_fields.items() if isinstance(key, str)}
        except yaml.YAMLError as error:
            return FrontMatter(None, builder.lines, (_yaml_fault(error, text),))
        except (ValueError, OverflowError):
            # A day or number that does not exist, such as 2024-02-31: the values stay text.
            pass
    return FrontMatter(fields, builder.lines, tuple(builder.faults))


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


class _OpenContainer(NamedTuple):
    """A list or mapping whose end has not come yet, its pending key, and the size of the document before it."""

    container: list[YamlValue] | dict[str, YamlValue]
    key: list[str]
    anchor: str | None
    size_before: int


class _Anchored(NamedTuple):
    """A value that aliases can refer to; `size` has its aliases written out."""

    value: YamlValue
    size: int
    depth: int


class _Builder:
    """Builds one document; `_open` are the containers around the next value.

    With a `resolver`, aliases are followed, and `has_types` says whether a scalar is something else than text.
    """

    def __init__(self, resolver: yaml.SafeLoader | yaml.CSafeLoader | None = None) -> None:
        self.root: YamlValue = None
        self.lines: dict[str, int] = {}
        self.faults: list[SkillFault] = []
        self.has_types = False
        self._resolver = resolver
        self._open: list[_OpenContainer] = []
        self._anchors: dict[str, _Anchored] = {}
        self._size = 0
        self._documents = 0

    def take(self, event: yaml.Event) -> None:
        line = (event.start_mark.line if event.start_mark else 0) + FIRST_LINE
        if isinstance(event, yaml.AliasEvent):
            self._take_alias(event.anchor or "", line)
        elif isinstance(event, yaml.NodeEvent):
            self._take_node(event, line)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            closed = self._open.pop()
            if closed.anchor is not None:
                size = self._size - closed.size_before
                self._anchors[closed.anchor] = _Anchored(closed.container, size, _measure_depth(closed.container))
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise _RefusedError(SkillFault("yaml", "there is more than one document", "keep the first", line))

    def _take_alias(self, name: str, line: int) -> None:
        if self._resolver is None:
            raise _RefusedError(SkillFault("alias", "an alias is used", "write the value out", line))
        anchored = self._anchors.get(name)
        if anchored is None:
            raise _RefusedError(SkillFault("alias", "an alias has no value yet", "write the value out", line))
        self._size += anchored.size
        if self._size > FRONT_MATTER_CHARS_MAX:
            message = f"with its aliases written out, it has more than {FRONT_MATTER_CHARS_MAX} characters"
            raise _RefusedError(SkillFault("alias", message, "use fewer aliases", line))
        if len(self._open) + anchored.depth > NESTING_MAX:
            raise _RefusedError(_too_deep(line))
        self.has_types = True
        if self._awaits_key():
            self._put_key(str(anchored.value), line)
        else:
            self._put(anchored.value, line)

    def _take_node(self, event: yaml.NodeEvent, line: int) -> None:
        if event.anchor is not None and self._resolver is None:
            raise _RefusedError(SkillFault("alias", "an anchor is set", "write the value out where it is used", line))
        if getattr(event, "tag", None) is not None:
            raise _RefusedError(SkillFault("tag", "a YAML tag is used", "remove the tag", line))
        if isinstance(event, yaml.ScalarEvent):
            self._put_scalar(event, line)
            return
        if len(self._open) >= NESTING_MAX:
            raise _RefusedError(_too_deep(line))
        container: list[YamlValue] | dict[str, YamlValue] = {} if isinstance(event, yaml.MappingStartEvent) else []
        if getattr(event, "flow_style", False):
            self._add_fault(
                SkillFault("flow-style", "a value is written in brackets or braces", "write it as lines", line)
            )
        self._put(container, line)
        # An alias inside of its own value is refused, because the anchor is known only at its end.
        self._open.append(_OpenContainer(container, [], event.anchor, self._size))
        self._size += 1

    def _put_scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        # One more than its length: empty values count as well, as do containers.
        size = len(event.value) + 1
        self._size += size
        if self._resolver is not None and event.implicit[0]:
            tag = self._resolver.resolve(yaml.ScalarNode, event.value, event.implicit)  # type: ignore[no-untyped-call]
            self.has_types = self.has_types or tag != _TEXT_TAG
            if tag != _TEXT_TAG and len(event.value) > NUMBER_CHARS_MAX:
                message = f"a number has more than {NUMBER_CHARS_MAX} characters"
                raise _RefusedError(SkillFault("number-length", message, "put it in quotes", line))
        is_null = event.implicit[0] and event.value in _NULLS
        value = None if is_null else event.value
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchored(value, size, 0)
        if self._awaits_key():
            self._put_key(event.value, line)
        else:
            self._put(value, line)

    def _awaits_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].container, dict) and not self._open[-1].key

    def _put_key(self, key: str, line: int) -> None:
        if key == "<<" and self._resolver is None:
            raise _RefusedError(SkillFault("alias", "a merge key is used", "write the values out", line))
        if key in self._open[-1].container:
            message = f"the key {quote_text(key)} occurs twice"
            self._add_fault(SkillFault("duplicate-key", message, "keep one of them; the last one counts", line))
        if len(self._open) == 1:
            self.lines[key] = line
        self._open[-1].key.append(key)

    def _add_fault(self, fault: SkillFault) -> None:
        """Add a fault once per rule, because a file can break a rule in every line."""
        if not any(known.rule == fault.rule for known in self.faults):
            self.faults.append(fault)

    def _put(self, value: YamlValue, line: int) -> None:
        if not self._open:
            self.root = value
            return
        container, key = self._open[-1].container, self._open[-1].key
        if isinstance(container, list):
            container.append(value)
        elif key:
            container[key.pop()] = value
        else:
            raise _RefusedError(SkillFault("yaml", "a key is not a string", "make every key a word", line))


def _measure_depth(value: YamlValue) -> int:
    """How many containers are inside of one another; aliases make no cycles, and at most `NESTING_MAX` levels."""
    if isinstance(value, list | dict):
        return 1 + max(map(_measure_depth, value.values() if isinstance(value, dict) else value), default=0)
    return 0


def _too_deep(line: int) -> SkillFault:
    return SkillFault("nesting", f"it is nested over {NESTING_MAX} deep", "make it flatter", line)


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
