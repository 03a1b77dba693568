"""How many skills of real libraries load in each mode, and is each that does not told of?"""

import logging
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from holdfast.sources.skills.discovery import SkillRoot
from holdfast.sources.skills.library import read_skill_library
from holdfast.sources.skills.skill import SKILL_MODES, SkillReport

ARCHIVE = "skills.tar.gz"


def run() -> Iterator[tuple[str, str]]:
    place = os.environ.get("HOLDFAST_DATA")
    if not place or not (archive := Path(place, ARCHIVE)).is_file():
        yield "libraries", f"set HOLDFAST_DATA to a folder with {ARCHIVE} to read some"
        return
    # What is left out is counted below.
    logging.getLogger("holdfast.sources.skills").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        libraries = sorted(one for one in Path(folder, "skills").iterdir() if one.is_dir())
        files = {str(file.parent) for library in libraries for file in library.glob("*/SKILL.md")}
        yield "libraries", f"{len(libraries)} with {len(files)} skills"
        untold: dict[str, int] = {}
        for mode in SKILL_MODES:
            roots = [(SkillRoot(str(library), "global"),) for library in libraries]
            reports = [told for root in roots for told in read_skill_library(root, mode).reports]
            untold[mode] = len(files - {told.path for told in reports})
            yield f"{mode}, skills that load", _counted(reports)
        yield "skills of which nothing is told", ", ".join(f"{mode} {count}" for mode, count in untold.items())


def _counted(reports: list[SkillReport]) -> str:
    left_out = [told for told in reports if not told.valid]
    rules: dict[str, int] = {}
    for told in left_out:
        first = next(finding.rule for finding in told.findings if finding.severity == "error")
        rules[first] = rules.get(first, 0) + 1
    most = ", ".join(f"{rule} {count}" for rule, count in sorted(rules.items(), key=lambda one: (-one[1], one[0]))[:4])
    why = f", mostly for {most}" if most else ""
    return f"{len(reports) - len(left_out)} of {len(reports)}; {len(left_out)} left out{why}"
