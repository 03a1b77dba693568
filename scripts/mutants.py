"""The small changes to a function that a test should notice, and a random choice of them by seed.

A change is made in the text, so that everything around it keeps its formatting. Docstrings, annotations, decorators,
f-strings, log messages and error texts are not changed, because no test should depend on them.
"""

import ast
import re
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate, pairwise
from random import Random

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

FLIPPED: Mapping[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
}
SWAPPED: Mapping[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
    ast.BitXor: ("^", "&"),
}
LOGS = {"logger", "logging", "log", "warnings"}
ORDER_IRRELEVANT = {"max", "min", "isinstance", "issubclass", "cast"}
LEFT_ALONE = {"annotation", "returns", "decorator_list", "type_params", "msg"}


@dataclass(frozen=True)
class Function:
    """A function of the package; the lines are those of its body."""

    path: str
    name: str
    first_line: int
    last_line: int


@dataclass(frozen=True)
class Mutant:
    """One change to one function: the text in [start, end) becomes `after`."""

    function: Function
    kind: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def apply(self, text: str) -> str:
        return text[: self.start] + self.after + text[self.end :]


def draw(texts: Mapping[str, str], *, seed: int, count: int, only: str = "") -> list[Mutant]:
    """One mutant each of `count` functions; the same texts and seed always give the same ones."""
    found = [
        (function, node)
        for path in sorted(texts)
        for function, node in functions_of(path, texts[path])
        if fnmatchcase(f"{path}::{function.name}", f"*{only}*")
    ]
    Random(seed).shuffle(found)
    drawn: list[Mutant] = []
    for function, node in found:
        if len(drawn) == count:
            break
        mutants = mutants_of(function, node, texts[function.path])
        chosen = pick(mutants, texts[function.path], Random(f"{seed} {function.path} {function.name}"))
        drawn += [chosen] if chosen else []
    return drawn


def pick(mutants: list[Mutant], text: str, chance: Random) -> Mutant | None:
    """A mutant that compiles, each kind of change as likely as another."""
    while mutants:
        kind = chance.choice(sorted({mutant.kind for mutant in mutants}))
        mutant = chance.choice([mutant for mutant in mutants if mutant.kind == kind])
        if compiles(mutant.apply(text)):
            return mutant
        mutants = [other for other in mutants if other != mutant]
    return None


def compiles(text: str) -> bool:
    with warnings.catch_warnings(action="ignore"):
        try:
            compile(text, "mutant", "exec", dont_inherit=True)
        except SyntaxError:
            return False
    return True


def functions_of(path: str, text: str) -> Iterator[tuple[Function, FunctionNode]]:
    """Functions and methods with a body; nested functions belong to the function around them."""
    return within(path, ast.parse(text), "")


def within(path: str, scope: ast.AST, prefix: str) -> Iterator[tuple[Function, FunctionNode]]:
    for node in ast.iter_child_nodes(scope):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if not is_stub(node):
                    lines = node.body[0].lineno, node.end_lineno or node.lineno
                    yield Function(path, prefix + node.name, *lines), node
            case ast.ClassDef():
                yield from within(path, node, f"{prefix}{node.name}.")
            case _:
                yield from within(path, node, prefix)


def is_stub(node: FunctionNode) -> bool:
    return all(
        (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        or isinstance(statement, ast.Pass)
        or (isinstance(statement, ast.Raise) and "NotImplementedError" in ast.dump(statement))
        for statement in node.body
    )


def mutants_of(function: Function, node: FunctionNode, text: str) -> list[Mutant]:
    changes = Changes(text, rebound_names(node), last=node.body[-1])
    return [
        Mutant(function, kind, changes.line_of(start), start, end, text[start:end], after)
        for part in parts_of(node)
        for kind, start, end, after in changes.of(part)
        if text[start:end] != after
    ]


def parts_of(node: ast.AST, *, raising: bool = False) -> Iterator[ast.AST]:
    """The nodes of a function that may be changed."""
    wording = raising and isinstance(node, ast.Constant) and " " in str(node.value)
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if wording or docstring or isinstance(node, ast.JoinedStr) or is_log(node):
        return
    yield node
    for field, value in ast.iter_fields(node):
        if field not in LEFT_ALONE:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from parts_of(child, raising=raising or isinstance(node, ast.Raise))


def is_log(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Expr) else node
    return isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[0] in LOGS


def rebound_names(node: FunctionNode) -> set[str]:
    """Names that are assigned more than once in the function, so that one assignment can be removed."""
    arguments = [part.arg for part in ast.walk(node) if isinstance(part, ast.arg)]
    stored = [part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)]
    return {name for name, times in Counter(arguments + stored).items() if times > 1}


Change = tuple[str, int, int, str]
"""The kind, and the text that replaces [start, end)."""


class Changes:
    """The changes that can be made to a node, in the text of its module."""

    def __init__(self, text: str, rebound: set[str], *, last: ast.stmt) -> None:
        self._text = text
        self._lines = [f"{line}\n" for line in text.split("\n")]
        self._starts = [0, *accumulate(map(len, self._lines))]
        self._rebound = rebound
        self._last = last

    def line_of(self, offset: int) -> int:
        return bisect_right(self._starts, offset)

    def of(self, node: ast.AST) -> Iterator[Change]:
        match node:
            case ast.Compare():
                yield from self._comparisons(node)
            case ast.BinOp(op=operator) if type(operator) in SWAPPED:
                yield from self._between("arithmetic", node.left, node.right, *SWAPPED[type(operator)])
            case ast.AugAssign(op=operator) if type(operator) in SWAPPED:
                yield from self._between("arithmetic", node.target, node.value, *SWAPPED[type(operator)])
            case ast.BoolOp():
                words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                for left, right in pairwise(node.values):
                    yield from self._between("boolean", left, right, *words)
            case ast.UnaryOp(op=ast.Not()):
                start, end = self._span(node)
                yield "condition", start, end, self._text[start:end].removeprefix("not").lstrip()
            case ast.Constant():
                yield from self._constants(node)
            case ast.Return(value=ast.expr() as value) if not is_none(value):
                yield "result", *self._span(value), "None"
            case ast.Yield(value=ast.expr() as value) if not is_none(value):
                yield "result", *self._span(value), "None"
            case ast.YieldFrom(value=value):
                yield "result", *self._span(value), "()"
            case ast.Call(args=[first, second, *_]):
                yield from self._arguments(node, first, second)
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                yield from self._negation(test)
            case ast.comprehension(ifs=tests):
                for test in tests:
                    yield from self._negation(test)
            case _:
                pass
        if isinstance(node, ast.stmt) and self._has_effect(node):
            yield "statement", *self._span(node), "pass"

    def _comparisons(self, node: ast.Compare) -> Iterator[Change]:
        for (left, right), operator in zip(pairwise((node.left, *node.comparators)), node.ops, strict=True):
            written, others = FLIPPED[type(operator)]
            for other in others:
                yield from self._between("comparison", left, right, written, other)

    def _between(self, kind: str, left: ast.AST, right: ast.AST, *words: str) -> Iterator[Change]:
        """The first word becomes the second, in the gap between two operands."""
        _, gap_start = self._span(left)
        gap_end, _ = self._span(right)
        pattern = r"\s+".join(map(re.escape, words[0].split()))
        if match := re.search(pattern, self._text[gap_start:gap_end]):
            yield kind, gap_start + match.start(), gap_start + match.end(), words[1]

    def _negation(self, test: ast.expr) -> Iterator[Change]:
        if not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            start, end = self._span(test)
            yield "condition", start, end, f"not ({self._text[start:end]})"

    def _constants(self, node: ast.Constant) -> Iterator[Change]:
        match node.value:
            case bool() as value:
                yield "constant", *self._span(node), repr(not value)
            case int() | float() as value:
                yield "constant", *self._span(node), repr(value + 1)
            case str() as value:
                yield "constant", *self._span(node), repr(f"XX{value}")
            case bytes() as value:
                yield "constant", *self._span(node), repr(b"XX" + value)
            case _:
                pass

    def _arguments(self, call: ast.Call, first: ast.expr, second: ast.expr) -> Iterator[Change]:
        starred = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
        if not starred and ast.unparse(call.func) not in ORDER_IRRELEVANT:
            (start, gap_start), (gap_end, end) = self._span(first), self._span(second)
            before, after = self._text[start:gap_start], self._text[gap_end:end]
            yield "arguments", start, end, after + self._text[gap_start:gap_end] + before

    def _has_effect(self, node: ast.stmt) -> bool:
        match node:
            case ast.Expr(value=ast.Call() | ast.Await()):
                return True
            case ast.Assign(targets=[target]) | ast.AnnAssign(target=target, value=ast.expr()):
                return not isinstance(target, ast.Name) or target.id in self._rebound
            case ast.Delete():
                return not all(isinstance(target, ast.Name) for target in node.targets)
            case ast.Return(value=None):
                return node is not self._last
            case _:
                return isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break)

    def _span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt)
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        return self._offset(node.lineno, node.col_offset), self._offset(end_line, end_column)

    def _offset(self, line: int, column_bytes: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column_bytes].decode())


def is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None
