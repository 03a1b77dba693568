"""A client of the conformance run: its packages, its turns, how it is started; and its installation."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from conformance.model_script import Turn

FOLDER = Path(__file__).resolve().parents[1] / "build" / "clients"
PROGRAMS = Path(__file__).parent / "programs"
INSTALL_SECONDS_MAX = 600
ERROR_CHARS_MAX = 300


class Place(msgspec.Struct, frozen=True):
    """Where one run takes place. `url` is the base URL without `/v1`; `bin` has the client's programs."""

    url: str
    bin: Path
    home: Path
    work: Path


class Launch(msgspec.Struct, frozen=True):
    """The commands of a run, one after the other, in `work`. `input` is what is typed into each."""

    commands: tuple[tuple[str, ...], ...]
    environment: Mapping[str, str] = {}
    input: str = ""


class Client(msgspec.Struct, frozen=True):
    """`packages` are names and pinned versions. `setting` says how a user points the client at the gateway.

    Beside the conversation there are sessions of sub-agents (`children`), and of calls for titles and the like
    (`others`). `breaks` counts the cache breaks that the client itself causes in this script. A problem that contains
    one of `known_problems` is reported, but is no regression. CI runs the clients that are `in_ci`.
    """

    name: str
    registry: Literal["npm", "pypi"]
    packages: tuple[tuple[str, str], ...]
    provider: Literal["anthropic", "openai", "gemini"]
    turns: tuple[Turn, ...]
    start: Callable[[Place], Launch]
    setting: str
    children: int = 0
    others: int = 0
    breaks: int = 0
    known_problems: tuple[str, ...] = ()
    in_ci: bool = False
    folder_name: str = "pinned"

    @property
    def folder(self) -> Path:
        return FOLDER / self.folder_name / self.name

    @property
    def bin(self) -> Path:
        return self.folder / ("node_modules/.bin" if self.registry == "npm" else "bin")


class InstallationFailed(Exception):
    """npm is missing, or the registry could not be reached in time, or has no such version."""


def install_client(client: Client, *, seconds_max: float = INSTALL_SECONDS_MAX) -> None:
    """Install the pinned versions, unless they are installed already. Each step takes at most `seconds_max`."""
    install_packages(client.folder, client.registry, client.packages, seconds_max=seconds_max)


def install_packages(
    folder: Path,
    registry: Literal["npm", "pypi"],
    packages: tuple[tuple[str, str], ...],
    *,
    also: tuple[str, ...] = (),
    seconds_max: float = INSTALL_SECONDS_MAX,
) -> None:
    """Install packages into an environment of their own, unless it has exactly these versions already.

    `also` are requirements of other packages, as pip takes them.
    """
    separator = "@" if registry == "npm" else "=="
    wanted = [*(f"{name}{separator}{version}" for name, version in packages), *also]
    mark = folder / "installed.txt"
    if mark.exists() and mark.read_text().splitlines() == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if registry == "npm":
        quiet = ("--loglevel=error", "--no-audit", "--no-fund", "--fetch-retries=1")
        _run(["npm", "install", *quiet, "--prefix", str(folder), *wanted], seconds_max)
    else:
        _run([sys.executable, "-m", "venv", str(folder)], seconds_max)
        quiet = ("-q", "--no-input", "--retries=1", "--disable-pip-version-check")
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", *quiet, *wanted], seconds_max)
    mark.write_text("\n".join(wanted))


def find_newest_packages(client: Client) -> tuple[tuple[str, str], ...]:
    return tuple((name, _find_newest_version(client, name)) for name, _ in client.packages)


def _find_newest_version(client: Client, package: str) -> str:
    if client.registry == "npm":
        return _run(["npm", "view", package, "version"]).strip()
    name = package.partition("[")[0]
    lines = _run([sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", name])
    return lines.partition("(")[2].partition(")")[0]


def _run(command: list[str], seconds_max: float = INSTALL_SECONDS_MAX) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds_max,
            check=False,
        )
    except FileNotFoundError as error:
        raise InstallationFailed(f"{program} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise InstallationFailed(f"{program} had not finished after {seconds_max:.0f} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.lower().startswith(("error", "npm err"))]
        lines.append("no message")
        raise InstallationFailed(f"{program} failed: {lines[0][:ERROR_CHARS_MAX]}")
    return done.stdout
