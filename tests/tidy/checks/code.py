"""What in the code is out of order; each function takes the root of a tree and lists the offenders in it."""

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
POSITIONAL_PARAMETERS_MAX = 4
SENTENCE_CHARACTERS_MAX = 120
FILE_BYTES_MAX = 2_000_000

VAGUE_WORDS = {"manager", "helper", "helpers", "handler", "util", "utils", "impl"}
ASSERTING_CALL = re.compile(r"raises|warns|fail|assert_.*|check.*|expect.*")
NOT_OURS = re.compile(r"\.git|\.venv|\..*_cache|\.hypothesis|__pycache__|.*\.egg-info|build|dist")

# Put together from parts, so that this file does not offend.
FOREIGN_TEXT = (
    (
        re.compile(r"(?<![A-Za-z0-9_.])/(?:" + "|".join(("work", "farm", "root")) + ")/"),
        "a path of one machine",
    ),
    (
        re.compile(r"(?i)\bindex-" + r"url\b|^registry\s*=|https?://[^\s\"']*/simp" + r"le\b", re.M),
        "an index address",
    ),
    (re.compile(r"(?i)\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX")) + r")\b"), "a note to self"),
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def long_modules(root: Path) -> list[str]:
    return [
        f"{name}: {lines} lines, at most {MODULE_LINES_MAX}"
        for name, text in modules_of(root)
        if (lines := len(text.splitlines())) > MODULE_LINES_MAX
    ]


def long_functions(root: Path) -> list[str]:
    return [
        f"{name}:{function.lineno} {function.name}: {lines} lines, at most {FUNCTION_LINES_MAX}"
        for name, function in functions_of(root)
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES_MAX
    ]


def crowded_signatures(root: Path) -> list[str]:
    return [
        f"{name}:{function.lineno} {function.name}: {count} positional parameters, at most "
        f"{POSITIONAL_PARAMETERS_MAX}; make the others keyword-only"
        for name, function in functions_of(root)
        if (count := positional_count(function)) > POSITIONAL_PARAMETERS_MAX
    ]


def positional_count(function: Function) -> int:
    names = [parameter.arg for parameter in (*function.args.posonlyargs, *function.args.args)]
    return len(names[1:] if names[:1] in (["self"], ["cls"]) else names)


def unexplained_modules(root: Path) -> list[str]:
    found = []
    for name, text in modules_of(root):
        docstring = ast.get_docstring(ast.parse(text)) or ""
        first_line = docstring.split("\n")[0]
        if not docstring:
            found.append(f"{name}: no docstring; one sentence says what question the file answers")
        elif not re.search(r"[.?](\s|$)", first_line):
            found.append(f"{name}: the docstring's first sentence does not end on its line")
        elif len(re.split(r"(?<=[.?])\s", first_line)[0]) > SENTENCE_CHARACTERS_MAX:
            found.append(f"{name}: the docstring's first sentence has over {SENTENCE_CHARACTERS_MAX} characters")
    return found


def vague_names(root: Path) -> list[str]:
    return [
        f"{name}:{node.lineno} {node.name}: says nothing; name the one job it has"
        for name, text in modules_of(root)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef | Function) and is_vague(node.name)
    ]


def is_vague(name: str) -> bool:
    """`Base` is vague at either end of a name, unless it is the base of a URL."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)]
    ends = {*words[:1], *words[-1:]} if "url" not in words else set()
    return bool(VAGUE_WORDS & set(words)) or "base" in ends


def tests_without_assertion(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}:{test.lineno} {test.name}: asserts nothing"
        for path in sorted(root.glob("tests/**/test_*.py"))
        for test in ast.walk(ast.parse(path.read_text()))
        if isinstance(test, Function) and test.name.startswith("test") and not asserts(test)
    ]


def asserts(test: Function) -> bool:
    calls = (node.func for node in ast.walk(test) if isinstance(node, ast.Call))
    names = (call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls)
    return any(isinstance(node, ast.Assert) for node in ast.walk(test)) or any(map(ASSERTING_CALL.fullmatch, names))


def foreign_text(root: Path) -> list[str]:
    found = []
    for path in files_of(root):
        if path.stat().st_size > FILE_BYTES_MAX:
            continue
        text = path.read_text(errors="replace")
        for pattern, what in FOREIGN_TEXT:
            if match := pattern.search(text):
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{path.relative_to(root)}:{line}: {what}: {match[0]}")
    return found


def modules_of(root: Path) -> Iterator[tuple[str, str]]:
    """Path and text of every module of the package."""
    for path in sorted(root.glob("src/**/*.py")):
        yield str(path.relative_to(root)), path.read_text()


def functions_of(root: Path) -> Iterator[tuple[str, Function]]:
    for name, text in modules_of(root):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, Function):
                yield name, node


def files_of(root: Path) -> list[Path]:
    """Every file that git keeps or would keep; in a tree without git, every file that no tool made."""
    if (root / ".git").exists():
        command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
        names = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
        return sorted(path for name in names if name and (path := root / name).is_file())
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not NOT_OURS.fullmatch(name)]
        found += [Path(folder, name) for name in names]
    return sorted(found)
