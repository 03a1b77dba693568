"""Whether real instruction files can be migrated: no line lost, and a manifest that passes its checks.

The files are read from HOLDFAST_DATA: each alone, those of one repository together, and all at once.
"""

import hashlib
import json
import os
import statistics
import tarfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.catalog.token_count import count_cl100k_tokens
from holdfast.instructions.manifest.check import check_draft
from holdfast.instructions.migration.proposal import MigrationProposal, MigrationTarget, propose_migration
from holdfast.instructions.migration.sections import LineSpan, SourceFile, parse_markdown
from holdfast.instructions.models import Agent, Manifest, Provenance
from holdfast.instructions.recall.selection import InstructionSet, RecallQuery, make_content
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
    yield from _measure_intents(files)


class _Found(msgspec.Struct, frozen=True):
    """What the recalls of one file found: shares of its intents, and the share of its tokens per recall."""

    first: float
    among_three: float
    token_share: float
    units: int
    mixed_units: int


def _measure_intents(files: Sequence[SourceFile]) -> Iterator[tuple[str, str]]:
    """Recalls with the intents of `migration_intents.json`, which were written from each file's text alone."""
    intents = json.loads(Path(__file__).with_name("migration_intents.json").read_text())
    by_digest = {hashlib.sha256(file.text.encode()).hexdigest(): file for file in files}
    results = []
    for digest, asked in intents["files"].items():
        if digest not in by_digest:
            yield f"intents of {asked['file']}", "skipped: the file has other contents"
            continue
        found = _ask(by_digest[digest], asked["intents"], default_encoder())
        results.append(found)
        yield f"intents of {asked['file']}", _describe_found(found)
    # Changes are made with every second file in view; the others say whether a change holds elsewhere too.
    halves = {"development half": results[0::2], "held-out half": results[1::2], f"all {len(results)} files": results}
    others = intents["development_files"]
    halves[f"{len(others)} other files, for development"] = _ask_all(by_digest, others, default_encoder())
    halves[f"all {len(results)} files, without the extra semantic"] = _ask_all(by_digest, intents["files"], None)
    for name, some in halves.items():
        if some:
            yield f"intents, {name}", _describe_found(_average(some))


def _ask_all(by_digest: Mapping[str, SourceFile], asked: Mapping[str, Any], encoder: str | None) -> list[_Found]:
    return [
        _ask(by_digest[digest], intents["intents"], encoder) for digest, intents in asked.items() if digest in by_digest
    ]


def _average(results: Sequence[_Found]) -> _Found:
    first, among, share = (statistics.mean(values) for values in zip(*map(_shares, results), strict=True))
    units, mixed = sum(found.units for found in results), sum(found.mixed_units for found in results)
    return _Found(first, among, share, units, mixed)


def _shares(found: _Found) -> tuple[float, float, float]:
    return found.first, found.among_three, found.token_share


def _describe_found(found: _Found) -> str:
    return (
        f"hit@1 {found.first:.3f}, hit@3 {found.among_three:.3f}, {found.token_share:.1%} of the tokens per recall, "
        f"{found.units} units, {found.mixed_units} that mix topics"
    )


def _ask(file: SourceFile, intents: Sequence[Mapping[str, Any]], encoder: str | None) -> _Found:
    proposal = _propose([file], encoder)
    spans = {unit.name: unit.spans for unit in proposal.units}
    always = [span for rule in proposal.rules for span in rule.spans]
    manifest = Manifest("m", "main", "v1", "", 0, proposal.draft.entries, 0, "stigmem", Provenance("benchmark"))
    contents = {unit.name: make_content(unit.content, "stigmem") for unit in proposal.units}
    instruction_set = InstructionSet(manifest, contents, encoder=encoder)
    hits, loaded = [], []
    for intent in intents:
        recalled = instruction_set.recall(RecallQuery(intent=intent["intent"]))
        # What the stub holds is in every prompt: it is found without a recall.
        ranks = [
            _answers(always, intent["lines"]),
            *(_answers(spans[c.name], intent["lines"]) for c in recalled.chunks),
        ]
        hits.append((any(ranks[:2]), any(ranks)))
        loaded.append(recalled.total_tokens)
    share = statistics.mean(loaded) / count_cl100k_tokens(file.text)
    first, among = (sum(column) / len(hits) for column in zip(*hits, strict=True))
    return _Found(first, among, share, len(spans), sum(_mixes(file.text, s) for s in spans.values()))


def _answers(spans: Sequence[LineSpan], ranges: Sequence[Sequence[int]]) -> bool:
    """Whether these lines hold at least half of one of the ranges."""
    lines = {line for span in spans for line in range(span.first_line, span.last_line + 1)}
    return any(2 * len(lines & set(range(first, last + 1))) >= last + 1 - first for first, last in ranges)


def _mixes(text: str, spans: Sequence[LineSpan]) -> bool:
    """The rubric: a unit mixes topics if it has text of two sections, and no heading in it is above both.

    A heading without text of its own belongs to the section below it; text before the first heading is a section.
    """
    lines = sorted(line for span in spans for line in range(span.first_line, span.last_line + 1))
    headings = {cut.line + 1: cut.level for cut in parse_markdown(text).cuts if cut.level}
    own = [line for line in lines if line in headings]
    if not own:
        return False
    source = text.split("\n")
    starts_above = any(source[line - 1].strip() for line in lines if line < own[0])
    top = headings[own[0]]
    beside = [line for line in own[1:] if headings[line] <= top]
    has_text = any(source[line - 1].strip() for line in range(own[0] + 1, beside[0])) if beside else False
    return starts_above or has_text


def _propose(files: Sequence[SourceFile], encoder: str | None) -> MigrationProposal:
    return propose_migration(
        files, MigrationTarget(), meaning=lambda: create_semantic_stage(encoder) if encoder else None
    )


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
        proposal = _propose(files, encoder)
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
