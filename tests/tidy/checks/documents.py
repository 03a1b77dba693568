"""Rules for the documents. Each check takes the root of a tree and returns one line per offender."""

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

AGENTS_LINES_MAX = 100
TARGETS_MAX = 12
DECISION_HEADINGS = ("Decision", "Why", "Rejected", "What would change our mind")
TEST_REFERENCE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def unmapped_packages(root: Path) -> list[str]:
    """Packages that the import contract, the architecture page or AGENTS.md omit, or name although they do not exist.

    A name in brackets is one that may come later.
    """
    offenders = []
    there = packages_of(root) | modules_beside(root)
    for place, named, must_name in (
        ("the import contract in pyproject.toml", contract_names(root), there),
        (
            "the package table of docs/architecture.md",
            table_names(root, "docs/architecture.md"),
            packages_of(root),
        ),
        ("the package table of AGENTS.md", table_names(root, "AGENTS.md"), packages_of(root)),
    ):
        present = {name for name in named if not name.startswith("(")}
        later = {name.strip("()") for name in named - present}
        offenders += [f"{name} is not in {place}" for name in sorted(must_name - present - later)]
        offenders += [f"{name} is in {place}, but not in src/holdfast" for name in sorted(present - there)]
        offenders += [f"{name} exists: take it out of its brackets in {place}" for name in sorted(later & there)]
    return offenders


def packages_of(root: Path) -> set[str]:
    return {path.parent.name for path in root.glob("src/holdfast/*/__init__.py")}


def modules_beside(root: Path) -> set[str]:
    return {path.stem for path in root.glob("src/holdfast/*.py") if not path.stem.startswith("__")}


def contract_names(root: Path) -> set[str]:
    contracts = pyproject(root).get("tool", {}).get("importlinter", {}).get("contracts", [])
    rows = [row for contract in contracts if contract["type"] == "layers" for row in contract["layers"]]
    return {name.strip() for row in rows for name in row.split("|")}


def table_names(root: Path, document: str) -> set[str]:
    """The first cells of the table whose first heading is `package`."""
    table = re.search(r"(?m)^\| *package *\|.*\n\|[-| :]+\n((?:\|.*(?:\n|$))+)", text_of(root, document))
    rows = table[1].splitlines() if table else []
    return {row.split("|")[1].strip().strip("`") for row in rows}


def unlisted_pages(root: Path) -> list[str]:
    """Pages that the index or its mirror for agents omits, and listed pages that do not exist."""
    docs = root / "docs"
    paths = (path.relative_to(docs) for path in docs.rglob("*.md"))
    indexes = {"README.md", "AGENTS.md"}
    there = {path.as_posix() for path in paths if path.parts[0] != "decisions"} - indexes | {"decisions/"}
    offenders = []
    for index in ("docs/README.md", "docs/AGENTS.md"):
        named = set(re.findall(r"\]\(([^)#]+)[^)]*\)", text_of(root, index))) - indexes
        offenders += [f"{page} is not in {index}" for page in sorted(there - named)]
        offenders += [f"{page} is in {index}, but does not exist" for page in sorted(named - there)]
    return offenders


# The topics of the seed documents: who reads one of these pages finds the others.
TOPICS = (
    "caching",
    "memory-dimensions",
    "knowledge-curation",
    "rag-discipline",
    "feature-flags",
    "data-oriented-design",
)


def unlinked_topics(root: Path) -> list[str]:
    texts = {name: text_of(root, f"docs/{name}.md") for name in TOPICS}
    return [
        f"docs/{name}.md does not link {other}.md"
        for name, text in texts.items()
        for other in TOPICS
        if other != name and f"]({other}.md" not in text
    ]


def long_agents_page(root: Path) -> list[str]:
    lines = len(text_of(root, "AGENTS.md").splitlines())
    if not lines:
        return ["AGENTS.md is missing or empty"]
    return [f"AGENTS.md: {lines} lines, at most {AGENTS_LINES_MAX}"] if lines > AGENTS_LINES_MAX else []


def broken_paths(root: Path) -> list[str]:
    """Files and folders that AGENTS.md names, relative to the root or the package, and that do not exist."""
    paths = re.findall(r"`([\w./*-]+(?:/|\.[a-z]+))`", text_of(root, "AGENTS.md").replace("NNNN", "*"))
    homes = (root, root / "src" / "holdfast")
    return [f"AGENTS.md: there is no {path}" for path in paths if not any(any(home.glob(path)) for home in homes)]


def crowded_makefile(root: Path) -> list[str]:
    targets = make_targets(root)
    if not targets:
        return ["Makefile is missing or has no target"]
    too_many = len(targets) > TARGETS_MAX
    return [f"Makefile: {len(targets)} targets, at most {TARGETS_MAX}: {', '.join(targets)}"] if too_many else []


def make_targets(root: Path) -> list[str]:
    targets = re.findall(r"(?m)^([\w./-]+):(?!=)", text_of(root, "Makefile"))
    return [target for target in dict.fromkeys(targets) if not re.fullmatch(r"\.[A-Z_]+", target)]


def unproven_requirements(root: Path) -> list[str]:
    """Rows of the specification that name no test, and named tests that do not exist."""
    text = text_of(root, "tests/specification.md")
    rows = [row for table in re.findall(r"(?m)^\|[-| :]+\|\n((?:\|.*(?:\n|$))+)", text) for row in table.splitlines()]
    if not rows:
        return ["tests/specification.md is missing or has no rows"]
    offenders = [f"tests/specification.md: names no test: {row}" for row in rows if not TEST_REFERENCE.search(row)]
    named = TEST_REFERENCE.findall(text)
    tests = {path: functions_at_top(root / path) for path in {path for path, _ in named}}
    missing = [f"{path}::{name}" for path, name in named if name not in tests[path]]
    return offenders + [f"tests/specification.md: there is no {reference}" for reference in missing]


def missing_task_files(root: Path) -> list[str]:
    """Files that the table of newcomer tasks names and that do not exist."""
    rows = re.findall(r"(?m)^\| *\d+ *\|.*\| *`([\w./]+)` *\|", text_of(root, "tests/tidy/newcomer_tasks.md"))
    if not rows:
        return ["tests/tidy/newcomer_tasks.md has no rows"]
    return [
        f"tests/tidy/newcomer_tasks.md: there is no {name}"
        for name in rows
        if not (root / "src/holdfast" / name).exists()
    ]


def functions_at_top(path: Path) -> set[str]:
    """The functions at the top of a file of tests; pytest calls parametrised ones by the same name."""
    nodes = ast.parse(path.read_text()).body if path.is_file() else []
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def disordered_decisions(root: Path) -> list[str]:
    paths = sorted(root.glob("docs/decisions/*.md"))
    if not paths:
        return ["docs/decisions holds no decision"]
    offenders = []
    for number, path in enumerate(paths, 1):
        name = path.relative_to(root)
        if not re.fullmatch(rf"{number:04d}-[a-z0-9-]+\.md", path.name):
            offenders.append(f"{name}: expected {number:04d}-<words-with-hyphens>.md here")
        headings = re.findall(r"(?m)^## (.+?) *$", path.read_text())
        missing = [heading for heading in DECISION_HEADINGS if heading not in headings]
        offenders += [f"{name}: no heading '## {heading}'" for heading in missing]
    return offenders


def unexplained_dependencies(root: Path) -> list[str]:
    """Packages that docs/dependencies.md leaves out: required by pyproject.toml, or pinned; and rows for no package."""
    page = text_of(root, "docs/dependencies.md")
    direct = {canonical_name(name) for name in re.findall(r"(?m)^\| `([\w.-]+)` \|", page)}
    transitive = {canonical_name(name) for name in re.findall(r"[|,] ([\w.-]+) \([^)]*, [\d,]+\)", page)}
    pins = text_of(root, "constraints.txt").split()
    pinned = {canonical_name(pin.partition("==")[0]) for pin in pins}
    required = required_packages(root)
    return [
        *(f"{name} has no row in docs/dependencies.md" for name in sorted(required - direct)),
        *(f"docs/dependencies.md: nothing requires {name}" for name in sorted(direct - required - pinned)),
        *(f"{name} is pinned, but not in docs/dependencies.md" for name in sorted(pinned - direct - transitive)),
        *(f"docs/dependencies.md: {name} is not pinned" for name in sorted(transitive - pinned)),
        *(f"docs/dependencies.md: {name} is listed twice" for name in sorted(transitive & direct)),
    ]


def required_packages(root: Path) -> set[str]:
    project = pyproject(root)
    lists = [
        project["build-system"]["requires"],
        project["project"]["dependencies"],
        *project["project"]["optional-dependencies"].values(),
    ]
    names = (re.match(r"[\w.-]+", requirement) for requirements in lists for requirement in requirements)
    return {canonical_name(name[0]) for name in names if name}


def canonical_name(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def stale_changelog(root: Path) -> list[str]:
    newest = re.search(r"(?m)^## (.+)$", text_of(root, "CHANGELOG.md"))
    if not newest:
        return ["CHANGELOG.md is missing or has no section"]
    version = pyproject(root)["project"]["version"]
    mentions_version = re.search(rf"(?<![\w.]){re.escape(version)}(?![\w.])", newest[1])
    return [] if mentions_version else [f"CHANGELOG.md: the newest section is {newest[1]!r}, the version is {version}"]


def pyproject(root: Path) -> dict[str, Any]:
    return tomllib.loads(text_of(root, "pyproject.toml"))


def text_of(root: Path, name: str) -> str:
    path = root / name
    return path.read_text() if path.is_file() else ""


CODE = re.compile(r"[a-z]+(?:_[a-z]+)+")


def unexplained_codes(root: Path) -> list[str]:
    """Error codes that the service or the instructions raise and docs/errors.md omits, and rows for no code."""
    explained = set(re.findall(r"(?m)^\| `([a-z_]+)` \|(?: [\d, ]*\|)", text_of(root, "docs/errors.md")))
    raised = set()
    for path in sorted(root.glob("src/holdfast/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                values = [part.value for part in node.args if isinstance(part, ast.Constant)]
                texts = [value for value in values if isinstance(value, str)]
                codes = [text for text in texts if CODE.fullmatch(text)]
                if node.func.id in ("ApiError", "InstructionError"):
                    raised |= set(codes[:1])
                elif node.func.id == "make_not_found_error":
                    raised |= {f"{text}_not_found" for text in texts[:1]}
    # Raised through a name or a default value.
    there = {code for code in explained if any(f'"{code}"' in path.read_text() for path in root.glob("src/**/*.py"))}
    return [
        *(f"{code} is not in docs/errors.md" for code in sorted(raised - explained)),
        *(f"docs/errors.md: nothing raises {code}" for code in sorted(explained - raised - there)),
    ]


PAGE_BYTES_MAX = 15_000
GENERATED_PAGES = {"docs/clients.md"}


def long_pages(root: Path) -> list[str]:
    """Pages with over 15 KB, blocks of code included: too long to find something in. Marks of figures do not show."""
    offenders = []
    for path in sorted((*root.glob("docs/**/*.md"), root / "README.md")):
        name = path.relative_to(root).as_posix()
        shown = re.sub(r"<!--.*?-->", "", text_of(root, name))
        if name not in GENERATED_PAGES and len(shown.encode()) > PAGE_BYTES_MAX:
            offenders.append(f"{name}: {len(shown.encode())} bytes, at most {PAGE_BYTES_MAX}")
    return offenders
