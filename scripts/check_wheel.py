"""Builds the wheel, installs it with each extra into a clean virtual environment, and uses each installation once.

    python scripts/check_wheel.py            all extras
    python scripts/check_wheel.py server     one of them

It fails if the wheel cannot be built, if an extra does not install, or if what the extra is for does not work.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# These are for work on the repository itself: `make check` has installed them, and runs on them.
OWN_EXTRAS = {"dev", "docs"}
EXTRAS = ("", *(name for name in PROJECT["optional-dependencies"] if name not in OWN_EXTRAS))
SECONDS_MAX = 600
# Installing waits for the network and the disk in turns, so two at a time finish sooner than one.
CONCURRENT_MAX = 2

# A program for each extra that fails unless the extra does its job; "" is the installation without extras.
PROGRAMS = {
    "": """
import holdfast
for name in set(holdfast.__all__) - {"Library"}:  # A library of instructions signs, and needs the extra for that.
    getattr(holdfast, name)
from importlib.metadata import version
assert version("holdfast-context") == holdfast.__version__, version("holdfast-context")
""",
    "server": """
import cryptography, httptools, uvicorn, uvloop, wsproto
import holdfast.cli.serve.gateway, holdfast.service.app, holdfast.service.http.uvicorn_protocol
from importlib.resources import files
assert (files("holdfast.service.dashboard") / "static" / "verdicts.md").is_file()
""",
    "codings": """
import brotli, zstandard
from holdfast.gateway.http.content_encoding import decompress_body
assert decompress_body(brotli.compress(b"text"), "br") == b"text"
assert decompress_body(zstandard.compress(b"text"), "zstd") == b"text"
""",
    "semantic": """
from holdfast.retrieval.encoders.registry import create_semantic_stage, default_encoder
assert default_encoder() == "wordllama", default_encoder()
create_semantic_stage().match("a query", slots=0)
""",
    "onnx": """
from pathlib import Path
from holdfast.errors import UserError
from holdfast.retrieval.encoders.registry import create_semantic_stage
for name in ("model.onnx", "tokenizer.json"):
    Path(name).write_text("{}")
try:
    create_semantic_stage(str(Path.cwd()))
except UserError as error:
    assert "is not a supported model" in str(error), error
""",
    "postgres": """
from holdfast.errors import HoldfastError
from holdfast.stores.open import open_store
try:
    open_store("postgresql://nobody@127.0.0.1:1/nothing")
except HoldfastError as error:
    assert "pip install" not in str(error), error
""",
    "otel": """
from holdfast.service.telemetry.exporter import check_collector_url
assert check_collector_url("http://127.0.0.1:4318") == "http://127.0.0.1:4318"
""",
    "mcp": """
import holdfast.mcp.server, holdfast.runtime.instructions.embedded
""",
    "instructions": """
from pathlib import Path
from holdfast.runtime.instructions.embedded import Library
Library("instructions.db", key_path=Path("key")).close()
""",
    "prices": """
import genai_prices
""",
    "testing": """
import pathlib, pytest
pathlib.Path("test_wheel.py").write_text("def test_the_provider_answers(simulated_provider): pass")
raise SystemExit(pytest.main(["-q", "test_wheel.py"]))
""",
}


class CheckFailedError(Exception):
    """A command of the check failed; the message holds the command and its output."""


def main(extras: Sequence[str]) -> int:
    if unchecked := set(EXTRAS) - set(PROGRAMS):
        print(f"no check for the extras {', '.join(sorted(unchecked))}: add one to PROGRAMS", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="holdfast-wheel-") as name, ThreadPoolExecutor(CONCURRENT_MAX) as threads:
        folder = Path(name)
        try:
            wheel = build_wheel(folder)
            checks = [(extra, threads.submit(check_extra, folder, wheel, extra)) for extra in extras or EXTRAS]
        except CheckFailedError as error:
            print(error, file=sys.stderr)
            return 1
        failed = 0
        for extra, check in checks:
            try:
                print(f"{extra or 'no extra'}: installed and used in {check.result():.0f} s", flush=True)
            except CheckFailedError as error:
                print(f"{extra or 'no extra'}: {error}", file=sys.stderr, flush=True)
                failed += 1
    return min(failed, 1)


def build_wheel(folder: Path) -> Path:
    uv = find_uv()
    command = (
        [uv, "build", "--quiet", "--wheel", "--out-dir"] if uv else [*pip(), "wheel", "--quiet", "--no-deps", "-w"]
    )
    run([*command, str(folder), str(ROOT)], folder)
    (wheel,) = folder.glob(f"{PROJECT['name'].replace('-', '_')}-{PROJECT['version']}-*.whl")
    return wheel


def check_extra(folder: Path, wheel: Path, extra: str) -> float:
    """Install the wheel with the extra into an environment of its own, use it, and return the seconds taken."""
    began = time.monotonic()
    home = folder / (extra or "core")
    python = home / "venv" / "bin" / "python"
    uv = find_uv()
    # Without pip in it: ours installs from the outside, which saves seconds for each environment.
    run([sys.executable, "-m", "venv", "--without-pip", str(home / "venv")], folder)
    install = [uv, "pip", "install", "--python", str(python)] if uv else [*pip(), "--python", str(python), "install"]
    requirement = f"{PROJECT['name']}[{extra}] @ {wheel.as_uri()}" if extra else f"{PROJECT['name']} @ {wheel.as_uri()}"
    run(
        [*install, "--quiet", *([] if uv else ["--no-compile"]), requirement, "-c", str(ROOT / "constraints.txt")],
        folder,
    )
    command = str(python.with_name("holdfast"))
    shown = run([command, "--version"], home)
    if PROJECT["version"] not in shown:
        raise CheckFailedError(f"`holdfast --version` shows {shown!r}, the wheel is {PROJECT['version']}")
    run([command, "--help"], home)
    if not extra:
        run([command, "demo"], home)
    run([str(python), "-c", PROGRAMS[extra]], home)
    shutil.rmtree(home, ignore_errors=True)
    return time.monotonic() - began


def find_uv() -> str | None:
    """uv, a fifth of pip's time, unless pip was given another index: uv would not look there."""
    settings = subprocess.run([*pip(), "config", "list"], capture_output=True, text=True, check=False).stdout
    if any(line.partition("=")[0].endswith("index-" + "url") or "no-index" in line for line in settings.splitlines()):
        return None
    return shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))


def pip() -> list[str]:
    return [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def run(command: Sequence[str], cwd: Path) -> str:
    # PYTHONPATH and similar variables would let the tree's own source replace what the wheel lacks.
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HOLDFAST", "VIRTUAL"))
    }
    environ["HOLDFAST_HOME"] = str(cwd / "home")
    try:
        result = subprocess.run(
            command, cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=SECONDS_MAX
        )
    except subprocess.TimeoutExpired:
        raise CheckFailedError(f"{' '.join(command)} took more than {SECONDS_MAX} s") from None
    if result.returncode:
        output = f"{result.stdout}\n{result.stderr}".strip()
        raise CheckFailedError(f"{' '.join(command)} ended with status {result.returncode}\n{output[-4000:]}")
    return result.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
