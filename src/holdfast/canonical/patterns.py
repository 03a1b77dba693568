"""Whether a text matches a regular expression, in time that no pattern and no text can blow up.

The dialect is what JavaScript and Python have in common, less lookaround and back references. All paths
through a pattern are walked side by side, so the work is at most its size times the length of the text.
"""

import functools
import re

import msgspec

from holdfast.errors import UserError

PATTERN_CHARS_MAX = 500
PATTERN_DEPTH_MAX = 20
PATTERN_STATES_MAX = 1_000

Ranges = tuple[tuple[int, int], ...]

_CODE_MAX = 0x10FFFF
_DIGITS: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = ((9, 13), (32, 32), (160, 160), (0x2028, 0x2029), (0xFEFF, 0xFEFF))
_LINE_ENDS: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_QUANTIFIER = re.compile(r"\*|\+|\?|\{([0-9]+)(,([0-9]*))?\}")
_GROUP_HEAD = re.compile(r"\((?:\?:|\?<[A-Za-z_]\w*>|(?!\?))", re.ASCII)
_HEX_ESCAPE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})")


class Allowance:
    """How many steps of matching are still allowed, over all the texts of one check."""

    def __init__(self, steps: int) -> None:
        self.steps = steps


class _Chars(msgspec.Struct, frozen=True):
    ranges: Ranges


class _Edge(msgspec.Struct, frozen=True):
    kind: str


class _Row(msgspec.Struct, frozen=True):
    parts: tuple["_Node", ...]


class _Choice(msgspec.Struct, frozen=True):
    options: tuple["_Node", ...]


class _Repeat(msgspec.Struct, frozen=True):
    part: "_Node"
    least: int
    most: int | None


_Node = _Chars | _Edge | _Row | _Choice | _Repeat


class _Fork(msgspec.Struct, frozen=True):
    targets: tuple[int, ...]


_Step = _Chars | _Edge | _Fork


class Pattern:
    """A program: each step leads to the next, a fork to its targets, and behind the last one is the match."""

    def __init__(self, steps: tuple[_Step, ...]) -> None:
        self._steps = steps

    def found_in(self, text: str, allowance: Allowance) -> bool | None:
        """Whether the text holds a match; None when the allowance ran out before that is known."""
        waiting: set[int] = set()
        for position in range(len(text) + 1):
            reached = self._follow(waiting | {0}, text, position)
            allowance.steps -= len(reached)
            if len(self._steps) in reached:
                return True
            if allowance.steps < 0:
                return None
            waiting = self._eat(reached, ord(text[position])) if position < len(text) else set()
        return False

    def _follow(self, starts: set[int], text: str, position: int) -> set[int]:
        """Every step that can be reached from `starts` without eating a character."""
        reached: set[int] = set()
        stack = list(starts)
        while stack:
            at = stack.pop()
            if at in reached:
                continue
            reached.add(at)
            step = self._steps[at] if at < len(self._steps) else None
            if isinstance(step, _Fork):
                stack.extend(step.targets)
            elif isinstance(step, _Edge) and _holds(step.kind, text, position):
                stack.append(at + 1)
        return reached

    def _eat(self, reached: set[int], code: int) -> set[int]:
        after: set[int] = set()
        for at in reached:
            step = self._steps[at]
            if isinstance(step, _Chars) and any(low <= code <= high for low, high in step.ranges):
                after.add(at + 1)
        return after


@functools.lru_cache(maxsize=256)
def compile_pattern(source: str) -> Pattern:
    """Raises `UserError` for what is not a pattern, not in the dialect, or too large."""
    if len(source) > PATTERN_CHARS_MAX:
        raise UserError(f"is longer than {PATTERN_CHARS_MAX} characters")
    tree = _Reader(source).read()
    if _size(tree) > PATTERN_STATES_MAX:
        raise UserError("repeats too much; use smaller repeat counts")
    return Pattern(tuple(_steps_of(tree, 0)))


def _holds(kind: str, text: str, position: int) -> bool:
    if kind == "^":
        return position == 0
    if kind == "$":
        return position == len(text)
    before = position > 0 and _is_word(text[position - 1])
    behind = position < len(text) and _is_word(text[position])
    return (before != behind) == (kind == "b")


def _is_word(character: str) -> bool:
    return any(low <= ord(character) <= high for low, high in _WORD)


class _Reader:
    """Reads a pattern from left to right."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._depth = 0

    def read(self) -> _Node:
        tree = self._choice()
        if self._at < len(self._source):
            raise UserError(f"closes a group that is not open at character {self._at + 1}")
        return tree

    def _next(self) -> str:
        return self._source[self._at : self._at + 1]

    def _choice(self) -> _Node:
        options = [self._row()]
        while self._next() == "|":
            self._at += 1
            options.append(self._row())
        return _Choice(tuple(options))

    def _row(self) -> _Node:
        parts: list[_Node] = []
        while self._next() not in ("", "|", ")"):
            part = self._atom()
            if quantifier := _QUANTIFIER.match(self._source, self._at):
                part = self._repeat(part, quantifier)
            parts.append(part)
        return _Row(tuple(parts))

    def _repeat(self, part: _Node, quantifier: re.Match[str]) -> _Node:
        if isinstance(part, _Edge):
            raise UserError(f"repeats an anchor at character {self._at + 1}")
        least, most = _bounds(quantifier)
        if most is not None and most < least:
            raise UserError(f"repeats at least {least} but at most {most} times")
        self._at = quantifier.end()
        if self._next() == "?":  # Lazy or greedy makes no difference to whether there is a match.
            self._at += 1
        return _Repeat(part, least, most)

    def _atom(self) -> _Node:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return self._class()
        if _QUANTIFIER.match(self._source, self._at):
            raise UserError(f"repeats nothing at character {self._at + 1}")
        self._at += 1
        if character in "^$":
            return _Edge(character)
        if character == ".":
            return _Chars(_without(_LINE_ENDS))
        if character == "\\":
            if self._next() in ("b", "B"):
                self._at += 1
                return _Edge(self._source[self._at - 1])
            return _Chars(self._escape())
        return _Chars(_only(ord(character)))

    def _group(self) -> _Node:
        head = _GROUP_HEAD.match(self._source, self._at)
        if head is None:
            kind = self._source[self._at : self._at + 3]
            raise UserError(f"uses the group {kind!r}; only plain, (?:...) and (?<name>...) groups are allowed")
        self._depth += 1
        if self._depth > PATTERN_DEPTH_MAX:
            raise UserError(f"nests groups deeper than {PATTERN_DEPTH_MAX}")
        self._at = head.end()
        inside = self._choice()
        if self._next() != ")":
            raise UserError("leaves a group open")
        self._at += 1
        self._depth -= 1
        return inside

    def _class(self) -> _Node:
        self._at += 1
        negated = self._next() == "^"
        self._at += negated
        ranges: list[tuple[int, int]] = []
        while self._next() != "]":
            low = self._member()
            if self._next() == "-" and self._source[self._at + 1 : self._at + 2] not in ("", "]"):
                self._at += 1
                high = self._member()
                if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or low[0][0] > high[0][1]:
                    raise UserError(f"has a character range out of order at character {self._at}")
                low = ((low[0][0], high[0][1]),)
            ranges += low
        self._at += 1
        if not ranges:
            raise UserError("has an empty character class")
        return _Chars(_without(tuple(ranges)) if negated else tuple(ranges))

    def _member(self) -> Ranges:
        character = self._next()
        if not character:
            raise UserError("leaves a character class open")
        self._at += 1
        if character != "\\":
            return _only(ord(character))
        if self._next() == "b":
            self._at += 1
            return _only(8)
        return self._escape()

    def _escape(self) -> Ranges:
        """The characters meant by what stands behind a backslash."""
        if hexadecimal := _HEX_ESCAPE.match(self._source, self._at):
            self._at = hexadecimal.end()
            return _only(int(hexadecimal[1] or hexadecimal[2], 16))
        character = self._next()
        if not character:
            raise UserError("ends in a backslash")
        self._at += 1
        if sets := {"d": _DIGITS, "w": _WORD, "s": _SPACE}.get(character.lower()):
            return sets if character.islower() else _without(sets)
        if character in _CONTROLS:
            return _only(_CONTROLS[character])
        if character.isalnum():
            raise UserError(f"uses the escape '\\{character}', which is not allowed")
        return _only(ord(character))


def _bounds(quantifier: re.Match[str]) -> tuple[int, int | None]:
    if short := {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(quantifier[0]):
        return short
    least = int(quantifier[1])
    if quantifier[2] is None:
        return least, least
    return least, int(quantifier[3]) if quantifier[3] else None


def _only(code: int) -> Ranges:
    return ((code, code),)


def _without(ranges: Ranges) -> Ranges:
    """All characters but these."""
    rest: list[tuple[int, int]] = []
    start = 0
    for low, high in sorted(ranges):
        if start < low:
            rest.append((start, low - 1))
        start = max(start, high + 1)
    return (*rest, (start, _CODE_MAX)) if start <= _CODE_MAX else tuple(rest)


def _size(node: _Node) -> int:
    """The number of steps, found before anything is repeated; nothing counts as one, it is repeated as well."""
    match node:
        case _Chars() | _Edge():
            return 1
        case _Row(parts):
            return max(1, sum(map(_size, parts)))
        case _Choice((only,)):
            return _size(only)
        case _Choice(options):
            return 1 + sum(1 + _size(option) for option in options)
        case _Repeat(part, least, most):
            if most is None:
                return (least + 1) * _size(part) + 2
            return max(1, most * _size(part) + most - least)


def _steps_of(node: _Node, at: int) -> list[_Step]:
    """The node as steps, the first of which stands at index `at` of the program."""
    steps: list[_Step] = []
    match node:
        case _Chars() | _Edge():
            steps.append(node)
        case _Row(parts):
            for part in parts:
                steps += _steps_of(part, at + len(steps))
        case _Choice(options):
            return _choice_steps(options, at)
        case _Repeat(part, least, most):
            for _ in range(least):
                steps += _steps_of(part, at + len(steps))
            if most is None:
                start = at + len(steps)
                loop = _steps_of(part, start + 1)
                steps += [_Fork((start + 1, start + len(loop) + 2)), *loop, _Fork((start,))]
            else:
                steps += _optional_steps(part, most - least, at + len(steps))
    return steps


def _choice_steps(options: tuple[_Node, ...], at: int) -> list[_Step]:
    if len(options) == 1:
        return _steps_of(options[0], at)
    bodies: list[list[_Step]] = []
    start = at + 1
    starts = []
    for option in options:
        starts.append(start)
        bodies.append(_steps_of(option, start))
        start += len(bodies[-1]) + 1
    steps: list[_Step] = [_Fork(tuple(starts))]
    for body in bodies:
        steps += [*body, _Fork((start,))]
    return steps


def _optional_steps(part: _Node, times: int, at: int) -> list[_Step]:
    bodies: list[list[_Step]] = []
    starts = []
    end = at
    for _ in range(times):
        starts.append(end)
        bodies.append(_steps_of(part, end + 1))
        end += 1 + len(bodies[-1])
    steps: list[_Step] = []
    for start, body in zip(starts, bodies, strict=True):
        steps += [_Fork((start + 1, end)), *body]
    return steps
