"""Checks of the public API: public names with their signatures against the snapshot, and the version."""

import ast
import difflib
import inspect
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

from tests.tidy.checks.documents import pyproject

SNAPSHOT = Path("tests/tidy/public_api.txt")


def unrecorded_names(root: Path) -> list[str]:
    """Lines in which the package and the snapshot of its public names differ."""
    offered = public_api(root)
    if not offered:
        return ["holdfast exports nothing: __all__ in src/holdfast/__init__.py names what is public"]
    path = root / SNAPSHOT
    recorded = path.read_text() if path.is_file() else ""
    lines = difflib.unified_diff(recorded.splitlines(), offered.splitlines(), lineterm="", n=0)
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def public_api(root: Path) -> str:
    """The snapshot: a line for every public name, and below a class a line for every public member."""
    describe = "import sys, holdfast; from tests.tidy.checks.public_api import page; sys.stdout.write(page(holdfast))"
    return in_fresh_interpreter(root, describe)


def undocumented_names(root: Path) -> list[str]:
    """Public names of the package root and of `holdfast.seed` without a docstring; constants are exempt."""
    ask = (
        "import holdfast, holdfast.seed; from tests.tidy.checks.public_api import undocumented; "
        "print(*undocumented(holdfast), *undocumented(holdfast.seed))"
    )
    return in_fresh_interpreter(root, ask).split()


def undocumented(package: ModuleType) -> list[str]:
    public = {name: getattr(package, name) for name in package.__all__}
    documented = (type, *(type(kind) for kind in (entry, ast.parse)))
    return [
        f"{package.__name__}.{name}"
        for name, value in public.items()
        if isinstance(value, documented) and not own_docstring(value)
    ]


def own_docstring(value: object) -> str | None:
    """`inspect.getdoc` would return that of a base class, such as msgspec's."""
    return vars(value).get("__doc__") if isinstance(value, type) else inspect.getdoc(value)


def differing_versions(root: Path) -> list[str]:
    """Places with another version than pyproject.toml: `__version__`, and the command's `--version`."""
    project = pyproject(root)["project"]
    ask = "import holdfast; print(getattr(holdfast, '__version__', ''))"
    versions = {"holdfast.__version__": in_fresh_interpreter(root, ask).strip()}
    module, _, function = project.get("scripts", {}).get("holdfast", "").partition(":")
    if module and (root / "src" / f"{module.replace('.', '/')}.py").is_file():
        ask = f"import sys; from {module} import {function}; sys.argv = ['holdfast', '--version']; {function}()"
        versions["holdfast --version"] = " ".join(in_fresh_interpreter(root, ask).split()[-1:])
    version = project["version"]
    return [f"{place} is {it!r}, pyproject.toml says {version!r}" for place, it in versions.items() if it != version]


def in_fresh_interpreter(root: Path, code: str) -> str:
    """The output of some code in an interpreter that imports this tree's package."""
    repository = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{repository}"}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"the package in {root} cannot be asked:\n{run.stderr}"
    return run.stdout


def page(package: ModuleType) -> str:
    names = sorted(getattr(package, "__all__", ()))
    return "".join(f"{line}\n" for name in names for line in entry(name, getattr(package, name)))


def entry(name: str, value: object) -> list[str]:
    if not inspect.isclass(value) and not inspect.isfunction(value):
        return [f"{name}: {type(value).__name__}"]
    node = ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
    if isinstance(node, ast.ClassDef):
        parts = [ast.unparse(part) for part in (*node.bases, *node.keywords)]
        members = [f"    {line}" for part in node.body for line in member(part)]
        return [f"class {name}({', '.join(parts)})" if parts else f"class {name}", *members]
    return member(node)


def member(node: ast.stmt) -> list[str]:
    """The snapshot lines that a statement adds to its module or class."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() if is_public(node.name):
            decorators = [f"@{ast.unparse(decorator)} " for decorator in node.decorator_list]
            kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
            result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            return [f"{''.join(decorators)}{kind} {node.name}({ast.unparse(node.args)}){result}"]
        case ast.AnnAssign(target=ast.Name(id=name)) if is_public(name):
            return [ast.unparse(node)]
        case ast.Assign(targets=[ast.Name(id=name)]) if is_public(name):
            return [ast.unparse(node)]
        case _:
            return []


def is_public(name: str) -> bool:
    return not name.startswith("_") or name in ("__init__", "__call__")
