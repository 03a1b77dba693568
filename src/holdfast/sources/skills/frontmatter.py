"""Which fields the front matter of a SKILL.md has, as text, whatever its bytes are.

Every scalar stays the text it was written as: `1.10` is no number and `2024-02-31` no date.
"""

import re
from typing import NamedTuple

import yaml

from holdfast.sources.text import one_line

FRONT_MATTER_CHARS_MAX = 65_536
NESTING_MAX = 8

Value = str | None | list["Value"] | dict[str, "Value"]
"""None is what YAML calls null: nothing, `~`, or the word."""


class Fault(NamedTuple):
    rule: str
    message: str
    mend: str
    line: int | None = None


class Front(NamedTuple):
    """The fields with the line of each; without fields it could not be read, and the faults say why."""

    fields: dict[str, Value] | None
    lines: dict[str, int]
    faults: tuple[Fault, ...] = ()


class Parts(NamedTuple):
    """The two halves of a file; the front matter starts on its second line."""

    front: str
    body: str
    faults: tuple[Fault, ...] = ()


FIRST_LINE = 2
_LOADER: type[yaml.SafeLoader] | type[yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_OPENING = re.compile(r"---[ \t]*\n")
_NULLS = frozenset(("", "~", "null", "Null", "NULL"))

# Not in a plain line: controls, line breaks, what YAML cannot hold, and blanks other than the space.
_ODD = r"\x00-\x1f\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff"
_PLAIN_LINE = re.compile(
    rf"( {{0,8}})([A-Za-z][A-Za-z0-9_-]{{0,63}}):"
    rf"(?: +(?:\"([^\"\\{_ODD}]*)\"|'([^'{_ODD}]*)'|([A-Za-z0-9\xa1-\u2027\u202a-\ud7ff][^{_ODD}]*)))? *"
)


def split(text: str) -> Parts | Fault:
    """A line of three hyphens opens the front matter, the next such line closes it."""
    faults: tuple[Fault, ...] = ()
    start = 4
    if not text.startswith("---\n"):
        opening = _OPENING.match(text)
        if opening is None:
            return Fault("opening", "the file does not begin with front matter", "let the first line be ---", 1)
        start = opening.end()
        faults = (Fault("opening-blanks", "blanks follow the opening ---", "remove them", 1),)
    at = text.find("\n---", start - 1)
    while at >= 0:
        end = text.find("\n", at + 4)
        rest = text[at + 4 : end if end >= 0 else len(text)]
        if not rest.strip(" \t"):
            body = text[end + 1 :].lstrip("\n") if end >= 0 else ""
            front = text[start : at + 1]
            if len(front) > FRONT_MATTER_CHARS_MAX:
                what = f"the front matter has more than {FRONT_MATTER_CHARS_MAX} characters"
                return Fault("front-matter-size", what, "move what is long into the body", 1)
            return Parts(front, body, faults)
        at = text.find("\n---", at + 4)
    return Fault("closing", "the front matter is not closed", "add a line --- behind it", 1)


def read_front(text: str) -> Front:
    """The fields of a front matter; what is written plainly is read without YAML, to the same result."""
    plain = read_plain(text)
    return read_yaml(text) if plain is None else plain


def read_plain(text: str) -> Front | None:
    """Lines of `key: value`, with one level of such lines below a key; None for everything else."""
    fields: dict[str, Value] = {}
    lines: dict[str, int] = {}
    inner: dict[str, Value] | None = None
    indent = 0
    for number, line in enumerate(text.removesuffix("\n").split("\n"), FIRST_LINE):
        match = _PLAIN_LINE.fullmatch(line)
        if match is None:
            return None
        blanks, key, double, single, plain = match.groups()
        value = plain.rstrip(" ") if plain is not None else double if double is not None else single
        if value is None:
            # A key alone: only a top one, and only with something below it.
            if blanks or key in fields or inner == {}:
                return None
            inner = fields[key] = {}
            lines[key], indent = number, 0
            continue
        if plain is not None and (value in _NULLS or ": " in value or " #" in value or value[-1] == ":"):
            return None
        if blanks:
            if inner is None or key in inner or (indent and len(blanks) != indent):
                return None
            inner[key], indent = value, len(blanks)
        else:
            if key in fields or inner == {}:
                return None
            fields[key], lines[key], inner = value, number, None
    return None if inner == {} or not fields else Front(fields, lines)


def read_yaml(text: str) -> Front:
    """The same from YAML's events: no tag is resolved, no alias followed, and no depth can overflow a stack."""
    building = _Building()
    try:
        loader = _LOADER(text)
        try:
            while (event := loader.get_event()) is not None:
                building.take(event)
        finally:
            loader.dispose()
    except _RefusedError as refused:
        return Front(None, building.lines, (refused.fault,))
    except (yaml.YAMLError, ValueError) as error:
        return Front(None, building.lines, (_unreadable(error, text),))
    if not isinstance(building.root, dict):
        what = Fault("not-a-mapping", "the front matter is no list of fields", "write it as lines of key: value", 1)
        return Front(None, building.lines, (what,))
    return Front(building.root, building.lines, tuple(building.faults))


def mended(text: str) -> tuple[str, tuple[int, ...]]:
    """The text with every line in quotes whose value YAML cannot read as it stands, and the numbers of these."""
    lines = text.split("\n")
    changed: list[int] = []
    for index, line in enumerate(lines):
        key, colon, value = line.partition(": ")
        value = value.strip()
        if not colon or not value or value[0] in "|>" or not re.fullmatch(r" *[A-Za-z][\w-]*", key):
            continue
        if read_yaml(line.strip() + "\n").fields is None:
            lines[index] = f"{key}: '" + value.replace("'", "''") + "'"
            changed.append(index + FIRST_LINE)
    return "\n".join(lines), tuple(changed)


class _RefusedError(Exception):
    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.rule)
        self.fault = fault


class _Building:
    """One document in the making; `_open` are the containers around the next value, each with the key it waits for."""

    def __init__(self) -> None:
        self.root: Value = None
        self.lines: dict[str, int] = {}
        self.faults: list[Fault] = []
        self._open: list[tuple[list[Value] | dict[str, Value], list[str]]] = []
        self._documents = 0

    def take(self, event: yaml.Event) -> None:
        line = (event.start_mark.line if event.start_mark else 0) + FIRST_LINE
        if isinstance(event, yaml.AliasEvent):
            raise _RefusedError(Fault("alias", "an alias is used", "write the value out", line))
        if isinstance(event, yaml.NodeEvent):
            self._take_node(event, line)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._open.pop()
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise _RefusedError(Fault("yaml", "there is more than one document", "keep the first", line))

    def _take_node(self, event: yaml.NodeEvent, line: int) -> None:
        if event.anchor is not None:
            raise _RefusedError(Fault("alias", "an anchor is set", "write the value out where it is used", line))
        if getattr(event, "tag", None) is not None:
            raise _RefusedError(Fault("tag", "a YAML tag is used", "remove the tag", line))
        if isinstance(event, yaml.ScalarEvent):
            self._put_scalar(event, line)
            return
        if len(self._open) >= NESTING_MAX:
            raise _RefusedError(Fault("nesting", f"it is nested over {NESTING_MAX} deep", "make it flatter", line))
        opened: list[Value] | dict[str, Value] = {} if isinstance(event, yaml.MappingStartEvent) else []
        if getattr(event, "flow_style", False):
            self._note(Fault("flow-style", "brackets or braces hold a value", "write it as lines", line))
        self._put(opened, line)
        self._open.append((opened, []))

    def _put_scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        if self._open:
            container, key = self._open[-1]
            if isinstance(container, dict) and not key:
                self._put_key(container, event.value, line)
                key.append(event.value)
                return
        is_null = event.implicit[0] and event.value in _NULLS
        self._put(None if is_null else event.value, line)

    def _put_key(self, container: dict[str, Value], key: str, line: int) -> None:
        if key == "<<":
            raise _RefusedError(Fault("alias", "a merge key is used", "write the values out", line))
        if key in container:
            what = f"the key {shown(key)} stands twice"
            self._note(Fault("duplicate-key", what, "keep one of them; the last one counts", line))
        if len(self._open) == 1:
            self.lines[key] = line

    def _note(self, fault: Fault) -> None:
        """Once a rule: a file can break one in every line."""
        if not any(one.rule == fault.rule for one in self.faults):
            self.faults.append(fault)

    def _put(self, value: Value, line: int) -> None:
        if not self._open:
            self.root = value
            return
        container, key = self._open[-1]
        if isinstance(container, list):
            container.append(value)
        elif key:
            container[key.pop()] = value
        else:
            raise _RefusedError(Fault("yaml", "a key is no text", "let every key be a word", line))


def shown(text: str, chars_max: int = 80) -> str:
    """Somebody's text in a message: quoted, on one line, not long."""
    line = one_line(text.encode("utf-8", "replace"))
    return repr(line if len(line) <= chars_max else line[:chars_max] + "…")


def _unreadable(error: yaml.YAMLError | ValueError, text: str) -> Fault:
    line, problem = 1, "it cannot be read"
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line = mark.line + FIRST_LINE if mark else 1
        problem = error.problem or problem
    elif isinstance(error, yaml.reader.ReaderError):
        line = text.encode("utf-8", "replace").count(b"\n", 0, error.position) + FIRST_LINE
        problem = error.reason
    mend = "put the value in quotes if it holds a colon or begins with a sign"
    return Fault("yaml", f"not YAML: {one_line(problem.encode('utf-8', 'replace'))}", mend, line)
