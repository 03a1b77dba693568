"""Rules for the code. Each check takes the root of a tree and returns one line per offender."""

import ast
import io
import os
import re
import subprocess
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.support.secret_examples import SECRETS

# A module is one idea: usually 100 to 400 lines, up to 600 where splitting it would only scatter the idea.
MODULE_LINES_MAX = 600
# A flat list of named stages is fine at 80 lines; anything longer hides its structure.
FUNCTION_LINES_MAX = 80
# A module that only one neighbour imports, and that is shorter than this, is a part of that neighbour.
SINGLE_IMPORTER_LINES_MIN = 60
POSITIONAL_PARAMETERS_MAX = 4
SENTENCE_CHARACTERS_MAX = 120
FILE_BYTES_MAX = 2_000_000

VAGUE_WORDS = {"manager", "helper", "helpers", "util", "utils", "impl"}
# The project's former vocabulary: the same words that scripts/tree_report.py counts in prose.
RETIRED_WORDS = {
    *("mend", "mends", "mended", "mending", "heed", "heeds", "heeded", "heeding", "told", "dearest", "dearer"),
    *("reckon", "reckons", "reckoned", "anew", "lapsed"),
}
# Words that only tests still used, and that src has no need of.
RETIRED_WORDS_OF_TESTS = RETIRED_WORDS | {
    *("dear", "heard", "lifetime", "lifetimes", "nobody", "scroll", "shelf", "shelves", "somebody", "spell", "spelled"),
    *("spelling", "spells", "talk", "whoever"),
}
# Folders (with subfolders) and files outside src that are free of them. Add a folder once it has been rewritten.
CLEAN_FOLDERS = (
    "benchmarks",
    "conformance",
    "examples",
    "scripts",
    "tests/browser",
    "tests/cachemodel",
    "tests/catalog",
    "tests/cli",
    "tests/compaction",
    "tests/conftest.py",
    "tests/economics",
    "tests/engine",
    "tests/examples",
    "tests/gateway",
    "tests/golden",
    "tests/instructions",
    "tests/integrations",
    "tests/knowledge",
    "tests/layers",
    "tests/ledger",
    "tests/mcp",
    "tests/planning",
    "tests/providers",
    "tests/recovery",
    "tests/replay",
    "tests/runtime",
    "tests/scripts",
    "tests/service",
    "tests/simulator",
    "tests/sources",
    "tests/stores",
    "tests/support",
    "tests/testing",
    "tests/tidy",
    "tests/types",
)
ASSERTING_CALL = re.compile(r"raises|warns|fail|assert_.*|check.*|expect.*")
NOT_OURS = re.compile(r"\.git|\.venv|\..*_cache|\.hypothesis|__pycache__|.*\.egg-info|build|dist")

# Assembled from parts, so that this file is not an offender.
NOTE_TO_SELF = "a note to self"
FOREIGN_TEXT = (
    (
        re.compile(r"(?<![A-Za-z0-9_.])/(?:" + "|".join(("work", "farm", "root")) + ")/"),
        "a path of one machine",
    ),
    (
        re.compile(r"(?i)\bindex-" + r"url\b|^registry\s*=|https?://[^\s\"']*/simp" + r"le\b", re.M),
        "an index address",
    ),
    (re.compile(r"(?i)\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX")) + r")\b"), NOTE_TO_SELF),
)

# The list itself; the two that check our own keys; and what shows the address of a database without its user.
MODULES_THAT_KNOW_CREDENTIALS = (
    *("src/holdfast/redaction.py", "src/holdfast/gateway/auth.py", "src/holdfast/service/auth/keys.py"),
    "src/holdfast/stores/address.py",
)

# Exchanges the letters of each half of the alphabet, vowels for vowels.
ROTATED = str.maketrans("aeioubcdfgkmprstxyAEIOUBCDFGKMPRSTXY", "eiouacdfgbmpkstrqzEIOUACDFGBMPKSTRQZ")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def long_modules(root: Path) -> list[str]:
    return [
        f"{name}: {lines} lines, at most {MODULE_LINES_MAX}"
        for name, text in modules_of(root)
        if (lines := len(text.splitlines())) > MODULE_LINES_MAX
    ]


def tiny_single_importer_modules(root: Path) -> list[str]:
    """Short modules with one importer, in the same folder: they belong in that importer."""
    importers: dict[str, set[str]] = {}
    modules = dict(modules_of(root))
    for name, text in modules.items():
        for imported in imported_modules(ast.parse(text), modules):
            if imported != name:
                importers.setdefault(imported, set()).add(name)
    return [
        f"{name}: {lines} lines, imported only by {importer}: merge it into that module"
        for name, text in modules.items()
        if (lines := len(text.splitlines())) < SINGLE_IMPORTER_LINES_MIN
        and not name.endswith("__init__.py")
        and len(users := importers.get(name, set())) == 1
        and Path(importer := next(iter(users))).parent == Path(name).parent
        and not importer.endswith("__init__.py")
    ]


def imported_modules(tree: ast.Module, modules: dict[str, str]) -> set[str]:
    """The paths of our own modules that a module imports, also inside functions."""
    offenders = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            paths = [f"src/{name.replace('.', '/')}.py" for name in (*names, node.module)]
            offenders |= {path for path in paths if path in modules}
    return offenders


def retired_identifiers(root: Path) -> list[str]:
    """Names in the code that contain a retired word, such as "mend_surrogates"."""
    return [
        f"{name}:{line} {identifier}"
        for name, text in modules_of(root)
        if may_contain(text, RETIRED_WORDS)
        for line, identifier in identifiers_in(ast.parse(text))
        if RETIRED_WORDS & words_in(identifier)
    ]


def retired_words_in(root: Path, folders: tuple[str, ...] = CLEAN_FOLDERS) -> list[str]:
    """Retired words in the file names, identifiers, docstrings, comments and Markdown of folders outside src.

    Other string literals are exempt, and so is what docstrings, comments and Markdown quote: tests quote texts from
    the wire, and this module's own lists.
    """
    offenders = []
    for path in files_of(root):
        name = str(path.relative_to(root))
        if not any(name == clean or name.startswith(f"{clean}/") for clean in folders):
            continue
        texts = [(0, path.stem)]
        source = path.read_text() if path.suffix in (".py", ".md") else ""
        if path.suffix == ".py" and may_contain(source, RETIRED_WORDS_OF_TESTS):
            tree = ast.parse(source)
            texts += [*identifiers_in(tree), *docstrings_in(tree), *comments_in(source)]
        elif path.suffix == ".md":
            texts += enumerate(source.splitlines(), 1)
        offenders += [
            f"{name}:{line} {word}"
            for line, text in texts
            for word in sorted(RETIRED_WORDS_OF_TESTS & words_in(re.sub(r'"[^"]*"', "", text)))
        ]
    return offenders


def may_contain(text: str, words: Iterable[str]) -> bool:
    """Whether one of the words may be in a text; far faster than looking at its words one by one."""
    text = text.lower()
    return any(word in text for word in words)


def words_in(text: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", text)}


def docstrings_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def comments_in(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def identifiers_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case _:
                pass


def long_functions(root: Path) -> list[str]:
    return [
        f"{name}:{function.lineno} {function.name}: {lines} lines, at most {FUNCTION_LINES_MAX}"
        for name, function in functions_of(root)
        if (lines := line_count(function)) > FUNCTION_LINES_MAX
    ]


def line_count(function: Function) -> int:
    """The lines of a function; where its body is a single statement, only those of the statement.

    Such a function is a documented signature (`Session.create` has a keyword argument for every option), and has no
    structure that its length could hide.
    """
    statements = function.body[1:] if ast.get_docstring(function) is not None else function.body
    first = statements[0] if len(statements) == 1 else function
    return (function.end_lineno or 0) - first.lineno + 1


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
    offenders = []
    for name, text in modules_of(root):
        docstring = ast.get_docstring(ast.parse(text)) or ""
        first_line = docstring.split("\n")[0]
        if not docstring:
            offenders.append(f"{name}: no docstring; say in one sentence what the module is responsible for")
        elif not re.search(r"[.?](\s|$)", first_line):
            offenders.append(f"{name}: the docstring's first sentence does not end on its line")
        elif len(re.split(r"(?<=[.?])\s", first_line)[0]) > SENTENCE_CHARACTERS_MAX:
            offenders.append(f"{name}: the docstring's first sentence has over {SENTENCE_CHARACTERS_MAX} characters")
    return offenders


def vague_names(root: Path) -> list[str]:
    return [
        f"{name}:{node.lineno} {node.name}: does not say what it does; name its one job"
        for name, text in modules_of(root)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef | Function) and is_vague(node.name)
    ]


def is_vague(name: str) -> bool:
    return bool(VAGUE_WORDS & words_in(name))


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
    offenders = []
    for path in files_of(root):
        if path.stat().st_size > FILE_BYTES_MAX:
            continue
        text = path.read_text(errors="replace")
        # In the bodies of clients it is the name of a tool.
        is_client_text = path.is_relative_to(root / "tests" / "wire")
        for pattern, what in FOREIGN_TEXT:
            if (match := pattern.search(text)) and not (is_client_text and what == NOTE_TO_SELF):
                line = text.count("\n", 0, match.start()) + 1
                offenders.append(f"{path.relative_to(root)}:{line}: {what}: {match[0]}")
    return offenders


def second_secret_patterns(root: Path) -> list[str]:
    """Regular expressions that recognise a credential by its beginning: only one module has a list of these."""
    found = []
    for name, text in modules_of(root):
        for node in ast.walk(ast.parse(text)) if name not in MODULES_THAT_KNOW_CREDENTIALS else ():
            if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).startswith("re."):
                verbose = re.VERBOSE if any("VERBOSE" in ast.unparse(given) for given in node.args[1:]) else 0
                for part in ast.walk(node.args[0]):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str | bytes):
                        found += [f"{name}:{part.lineno}: {kind}" for kind in _recognised_secrets(part.value, verbose)]
    return found


def _recognised_secrets(source: str | bytes, flags: int) -> Iterator[str]:
    try:
        pattern = re.compile(source if isinstance(source, str) else source.decode("latin-1"), flags)
    except re.error:
        return
    for kind, secret in SECRETS.items():
        # The same with another beginning, to tell a pattern for this credential from one for any word or address.
        other = secret[:12].translate(ROTATED) + secret[12:]
        if "://" in secret:
            other = secret.replace("ann:", "") + " ann:s3cret"
        if pattern.search(secret) and not pattern.search(other):
            yield kind


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
    """Every file that git tracks or would track; in a tree without git, every file that is not tool output."""
    if (root / ".git").exists():
        command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
        names = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
        return sorted(path for name in names if name and (path := root / name).is_file())
    offenders = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not NOT_OURS.fullmatch(name)]
        offenders += [Path(folder, name) for name in names]
    return sorted(offenders)
