"""How many skills of real libraries load in each mode, and whether each skipped one is reported."""

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
    data_folder = os.environ.get("HOLDFAST_DATA")
    if not data_folder or not (archive := Path(data_folder, ARCHIVE)).is_file():
        yield "libraries", f"set HOLDFAST_DATA to a folder with {ARCHIVE} to read some"
        return
    # Skipped skills are counted below.
    logging.getLogger("holdfast.sources.skills").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        libraries = sorted(path for path in Path(folder, "skills").iterdir() if path.is_dir())
        files = {str(file.parent) for library in libraries for file in library.glob("*/SKILL.md")}
        yield "libraries", f"{len(libraries)} with {len(files)} skills"
        unreported: dict[str, int] = {}
        for mode in SKILL_MODES:
            roots = [(SkillRoot(str(library), "global"),) for library in libraries]
            reports = [report for root in roots for report in read_skill_library(root, mode).reports]
            unreported[mode] = len(files - {report.path for report in reports})
            yield f"{mode}, skills that load", _describe(reports)
        yield "skills without a report", ", ".join(f"{mode} {count}" for mode, count in unreported.items())


def _describe(reports: list[SkillReport]) -> str:
    left_out = [report for report in reports if not report.valid]
    rules: dict[str, int] = {}
    for report in left_out:
        first = next(finding.rule for finding in report.findings if finding.severity == "error")
        rules[first] = rules.get(first, 0) + 1
    most = ", ".join(
        f"{rule} {count}" for rule, count in sorted(rules.items(), key=lambda path: (-path[1], path[0]))[:4]
    )
    why = f", mostly for {most}" if most else ""
    loaded = len(reports) - len(left_out)
    return f"{loaded:,} of {len(reports):,} ({loaded / len(reports):.1%}); {len(left_out)} skipped{why}"
