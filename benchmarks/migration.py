"""Whether real instruction files can be migrated: no line lost, and a manifest that passes its checks.

The files are read from HOLDFAST_DATA: each alone, those of one repository together, and all at once.
"""

import os
import tarfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from holdfast.instructions.manifest.check import check_draft
from holdfast.instructions.migration.proposal import MigrationProposal, MigrationTarget, propose_migration
from holdfast.instructions.migration.sections import SourceFile
from holdfast.instructions.models import Agent
from holdfast.instructions.settings import InstructionSettings
from holdfast.retrieval.encoders.registry import create_semantic_stage, default_encoder
from holdfast.sources.files import decode_text

SKIPPED = ("skipped", "HOLDFAST_DATA names no folder with instructions.tar.gz")


def run() -> Iterator[tuple[str, str]]:
    folder = os.environ.get("HOLDFAST_DATA")
    archive = Path(folder) / "instructions.tar.gz" if folder else None
    if archive is None or not archive.is_file():
        yield SKIPPED
        return
    files = _read(archive)
    repositories: dict[str, list[SourceFile]] = {}
    for file in files:
        repositories.setdefault("__".join(file.path.split("__")[:2]), []).append(file)
    yield "each file alone", _describe([[file] for file in files])
    yield "files of a repository together", _describe(list(repositories.values()))
    yield "all files at once", _describe([files])


def _read(archive: Path) -> list[SourceFile]:
    files = []
    with tarfile.open(archive) as opened:
        for member in sorted(opened.getmembers(), key=lambda member: member.name):
            content = opened.extractfile(member) if member.name.endswith(".md") else None
            if content is not None:
                text = decode_text(content.read())
                files.append(SourceFile(Path(member.name).name, text))
    return files


def _describe(groups: Sequence[Sequence[SourceFile]]) -> str:
    encoder = default_encoder()
    settings = InstructionSettings(encoder=encoder)
    lost = failing = units = without_intent = 0
    started = time.perf_counter()
    for files in groups:
        proposal = propose_migration(
            files, MigrationTarget(), meaning=lambda: create_semantic_stage(encoder) if encoder else None
        )
        migrated = _lines([*(unit.content for unit in proposal.units), *(rule.text for rule in proposal.rules)])
        lost += (_lines(file.text for file in files) - migrated).total() + (
            migrated - _lines(f.text for f in files)
        ).total()
        failing += not _passes(proposal, settings)
        units += len(proposal.units)
        without_intent += sum(not unit.entry.load_triggers.intents for unit in proposal.units)
    seconds = time.perf_counter() - started
    return (
        f"{len(groups)} migrated, {units} units, {lost} lines lost or doubled, {failing} manifests that fail, "
        f"{without_intent} units without an intent, {seconds:.0f} s"
    )


def _passes(proposal: MigrationProposal, settings: InstructionSettings) -> bool:
    agent = Agent(proposal.agent_id, "local", 0, always_rules=tuple(rule.text for rule in proposal.rules))
    texts = {unit.name: unit.content for unit in proposal.units}
    return check_draft(proposal.draft, texts, agent, settings=settings).passed


def _lines(texts: Iterable[str]) -> Counter[str]:
    return Counter(line.strip() for text in texts for line in text.split("\n") if line.strip())
