"""A regular expression matcher with bounded run time, for patterns in tool schemas.

The dialect is the common part of JavaScript's and Python's, without lookaround and back references. The pattern is
simulated as an NFA: all states are advanced together, so the work is at most the number of states times the length of
the text, whatever the pattern.
"""

import functools
import re

import msgspec

from holdfast.errors import UserError

PATTERN_CHARS_MAX = 500
PATTERN_DEPTH_MAX = 20  # The parser recurses once per group.
PATTERN_STATES_MAX = 1_000  # Repeats multiply: `(a{100}){100}` alone has 10,000.
CodePointRanges = tuple[tuple[int, int], ...]
_CODE_MAX = 0x10FFFF
_DIGITS: CodePointRanges = ((48, 57),)
_WORD: CodePointRanges = ((48, 57), (65, 90), (95, 95), (97, 122))
# Like JavaScript's \s, without the rarer Unicode spaces.
_SPACE: CodePointRanges = ((9, 13), (32, 32), (160, 160), (0x2028, 0x2029), (0xFEFF, 0xFEFF))
_LINE_ENDS: CodePointRanges = ((10, 10), (13, 13), (0x2028, 0x2029))
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_QUANTIFIER = re.compile(r"\*|\+|\?|\{([0-9]+)(,([0-9]*))?\}")
_GROUP_HEAD = re.compile(r"\((?:\?:|\?<[A-Za-z_]\w*>|(?!\?))", re.ASCII)
_HEX_ESCAPE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})")


class StepBudget:
    """How many matching steps are left, shared by all texts of one check."""

    def __init__(self, steps: int) -> None:
        self.steps_left = steps


class _Chars(msgspec.Struct, frozen=True):
    ranges: CodePointRanges


class _Anchor(msgspec.Struct, frozen=True):
    kind: str


class _Sequence(msgspec.Struct, frozen=True):
    parts: tuple["_Node", ...]


class _Choice(msgspec.Struct, frozen=True):
    options: tuple["_Node", ...]


class _Repeat(msgspec.Struct, frozen=True):
    part: "_Node"
    minimum: int
    maximum: int | None


_Node = _Chars | _Anchor | _Sequence | _Choice | _Repeat


class _Fork(msgspec.Struct, frozen=True):
    targets: tuple[int, ...]


_Step = _Chars | _Anchor | _Fork


class Pattern:
    """A compiled pattern: each step leads to the next, a fork to its targets; reaching the end is a match."""

    def __init__(self, steps: tuple[_Step, ...]) -> None:
        self._steps = steps

    def search(self, text: str, budget: StepBudget) -> bool | None:
        """Whether the text contains a match; None if the budget ran out first."""
        active: set[int] = set()
        for position in range(len(text) + 1):
            reached = self._follow(active | {0}, text, position)
            budget.steps_left -= len(reached)
            if len(self._steps) in reached:
                return True
            if budget.steps_left < 0:
                return None
            active = self._consume(reached, ord(text[position])) if position < len(text) else set()
        return False

    def _follow(self, starts: set[int], text: str, position: int) -> set[int]:
        """Every step that can be reached from `starts` without consuming a character."""
        reached: set[int] = set()
        stack = list(starts)
        while stack:
            index = stack.pop()
            if index in reached:
                continue
            reached.add(index)
            step = self._steps[index] if index < len(self._steps) else None
            if isinstance(step, _Fork):
                stack.extend(step.targets)
            elif isinstance(step, _Anchor) and _anchor_matches(step.kind, text, position):
                stack.append(index + 1)
        return reached

    def _consume(self, reached: set[int], code: int) -> set[int]:
        following: set[int] = set()
        for index in reached:
            step = self._steps[index]
            if isinstance(step, _Chars) and any(low <= code <= high for low, high in step.ranges):
                following.add(index + 1)
        return following


@functools.lru_cache(maxsize=256)
def compile_schema_pattern(source: str) -> Pattern:
    """Raises `UserError` if the source is not a pattern of this dialect or is too large."""
    if len(source) > PATTERN_CHARS_MAX:
        raise UserError(f"is longer than {PATTERN_CHARS_MAX} characters")
    tree = _Parser(source).parse()
    if _size(tree) > PATTERN_STATES_MAX:
        raise UserError("repeats too much; use smaller repeat counts")
    return Pattern(tuple(_steps_of(tree, 0)))


def _anchor_matches(kind: str, text: str, position: int) -> bool:
    if kind == "^":
        return position == 0
    if kind == "$":
        return position == len(text)
    word_before = position > 0 and _is_word(text[position - 1])
    word_after = position < len(text) and _is_word(text[position])
    return (word_before != word_after) == (kind == "b")


def _is_word(character: str) -> bool:
    return any(low <= ord(character) <= high for low, high in _WORD)


class _Parser:
    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._depth = 0

    def parse(self) -> _Node:
        tree = self._choice()
        if self._at < len(self._source):
            raise UserError(f"closes a group that is not open at character {self._at + 1}")
        return tree

    def _next(self) -> str:
        return self._source[self._at : self._at + 1]

    def _choice(self) -> _Node:
        options = [self._sequence()]
        while self._next() == "|":
            self._at += 1
            options.append(self._sequence())
        return _Choice(tuple(options))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._next() not in ("", "|", ")"):
            part = self._atom()
            if quantifier := _QUANTIFIER.match(self._source, self._at):
                part = self._repeat(part, quantifier)
            parts.append(part)
        return _Sequence(tuple(parts))

    def _repeat(self, part: _Node, quantifier: re.Match[str]) -> _Node:
        if isinstance(part, _Anchor):
            raise UserError(f"repeats an anchor at character {self._at + 1}")
        minimum, maximum = _bounds(quantifier)
        if maximum is not None and maximum < minimum:
            raise UserError(f"repeats at least {minimum} but at most {maximum} times")
        self._at = quantifier.end()
        # Lazy and greedy quantifiers differ only in which match is found, not in whether there is one.
        self._at += self._next() == "?"
        return _Repeat(part, minimum, maximum)

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
            return _Anchor(character)
        if character == ".":
            return _Chars(_complement(_LINE_ENDS))
        if character == "\\":
            if self._next() in ("b", "B"):
                self._at += 1
                return _Anchor(self._source[self._at - 1])
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
        return _Chars(_complement(tuple(ranges)) if negated else tuple(ranges))

    def _member(self) -> CodePointRanges:
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

    def _escape(self) -> CodePointRanges:
        """The characters that the escape after a backslash stands for."""
        if hexadecimal := _HEX_ESCAPE.match(self._source, self._at):
            self._at = hexadecimal.end()
            return _only(int(hexadecimal[1] or hexadecimal[2], 16))
        character = self._next()
        if not character:
            raise UserError("ends in a backslash")
        self._at += 1
        if ranges := {"d": _DIGITS, "w": _WORD, "s": _SPACE}.get(character.lower()):
            return ranges if character.islower() else _complement(ranges)
        if character in _CONTROLS:
            return _only(_CONTROLS[character])
        if character.isalnum():
            raise UserError(f"uses the escape '\\{character}', which is not allowed")
        return _only(ord(character))


def _bounds(quantifier: re.Match[str]) -> tuple[int, int | None]:
    if short := {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(quantifier[0]):
        return short
    minimum = int(quantifier[1])
    if quantifier[2] is None:
        return minimum, minimum
    return minimum, int(quantifier[3]) if quantifier[3] else None


def _only(code: int) -> CodePointRanges:
    return ((code, code),)


def _complement(ranges: CodePointRanges) -> CodePointRanges:
    """All characters outside these ranges."""
    complement: list[tuple[int, int]] = []
    start = 0
    for low, high in sorted(ranges):
        if start < low:
            complement.append((start, low - 1))
        start = max(start, high + 1)
    return (*complement, (start, _CODE_MAX)) if start <= _CODE_MAX else tuple(complement)


def _size(node: _Node) -> int:
    """The number of steps the node compiles to, computed without expanding repeats.

    An empty node counts as one: repeating it a billion times must not pass as free."""
    match node:
        case _Chars() | _Anchor():
            return 1
        case _Sequence(parts):
            return max(1, sum(map(_size, parts)))
        case _Choice((only,)):
            return _size(only)
        case _Choice(options):
            # A fork to all options, and after each option a jump to the end.
            return 1 + sum(1 + _size(option) for option in options)
        case _Repeat(part, minimum, maximum):
            if maximum is None:
                # `minimum` copies, then the loop: one more copy between a fork and a jump back.
                return (minimum + 1) * _size(part) + 2
            # `maximum` copies, with a fork before each of the optional ones.
            return max(1, maximum * _size(part) + maximum - minimum)


def _steps_of(node: _Node, at: int) -> list[_Step]:
    """The node as steps; the first has index `at` in the program."""
    steps: list[_Step] = []
    match node:
        case _Chars() | _Anchor():
            steps.append(node)
        case _Sequence(parts):
            for part in parts:
                steps += _steps_of(part, at + len(steps))
        case _Choice(options):
            return _choice_steps(options, at)
        case _Repeat(part, minimum, maximum):
            for _ in range(minimum):
                steps += _steps_of(part, at + len(steps))
            if maximum is None:
                # fork(body, end), body, jump(fork): the end is two steps after the body's last.
                start = at + len(steps)
                loop = _steps_of(part, start + 1)
                steps += [_Fork((start + 1, start + len(loop) + 2)), *loop, _Fork((start,))]
            else:
                steps += _optional_steps(part, maximum - minimum, at + len(steps))
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
    # Each optional copy is preceded by a fork that can skip to the end, so the end is found first.
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
