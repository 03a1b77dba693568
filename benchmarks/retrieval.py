"""How often the right text is among the first, whether queries without an answer are recognised, and how long it takes.

Reads published query sets from HOLDFAST_DATA. hit@1 and hit@3 are of at most 150 queries a set, chosen by a digest of
their text: nothing may be fitted to them from now on. HOLDFAST_MODEL, the folder of an ONNX model, measures that
model too, alone and beside wordllama.
"""

import bisect
import hashlib
import json
import os
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.retrieval.encoders.registry import COMBINED_PREFIX, WORDLLAMA, create_semantic_stage, default_encoder
from holdfast.retrieval.index import SearchIndex, SearchResult, StageWeights
from holdfast.retrieval.units import SearchUnit

Result = TypeVar("Result")
Indexes = Mapping[tuple[str, str | None], SearchIndex]
HOW_CHOSEN = (
    "weights as specified, wordllama's vectors as published; the form of the fusion was chosen with all queries in "
    "view, before some were kept apart"
)
SKIPPED = ("skipped", "HOLDFAST_DATA names no folder with retrieval.tar.gz")
ABSTENTION_SET = "clinc150"
WORDS, MEANING, FUSED = StageWeights(1, 0, 0), StageWeights(0, 1, 0), StageWeights()
HELD_OUT_MAX = 150
FLOOR_QUERIES_MAX = 200
UNITS_TIMED = 1_000


class Query(msgspec.Struct, frozen=True):
    intent: str
    relevant: tuple[str, ...]


class Set(msgspec.Struct, frozen=True):
    name: str
    units: tuple[SearchUnit, ...]
    queries: tuple[Query, ...]

    @property
    def held_out(self) -> tuple[Query, ...]:
        return self._by_digest[:HELD_OUT_MAX]

    @property
    def others(self) -> tuple[Query, ...]:
        """The queries that floors may be chosen on."""
        return self._by_digest[HELD_OUT_MAX:]

    @property
    def _by_digest(self) -> tuple[Query, ...]:
        answerable = (query for query in self.queries if query.relevant)
        return tuple(sorted(answerable, key=lambda query: hashlib.sha256(query.intent.encode()).digest()))


def run() -> Iterator[tuple[str, str]]:
    folder = os.environ.get("HOLDFAST_DATA")
    archive = Path(folder) / "retrieval.tar.gz" if folder else None
    if archive is None or not archive.is_file():
        yield SKIPPED
        return
    sets = _read(archive)
    yield "how things were chosen", HOW_CHOSEN
    encoders = [WORDLLAMA] if default_encoder() else []
    if model := os.environ.get("HOLDFAST_MODEL"):
        encoders += [model, f"{COMBINED_PREFIX}{model}"]
    # Each index is built once, because a model of one's own takes minutes for some of them.
    indexes = {
        (unit_set.name, encoder): _index(unit_set.units, encoder) for unit_set in sets for encoder in (None, *encoders)
    }
    yield from _hit_table(sets, encoders, indexes)
    for encoder in (None, *encoders):
        abstention = next(unit_set for unit_set in sets if unit_set.name == ABSTENTION_SET)
        yield from _refusals(abstention, indexes[ABSTENTION_SET, encoder])
        yield _relevance_quantiles(encoder, sets, indexes)
    for encoder in (None, *encoders):
        yield _speed(encoder, sets)


def _index(units: Sequence[SearchUnit], encoder: str | None) -> SearchIndex:
    return SearchIndex(units, meaning=create_semantic_stage(encoder) if encoder else None)


def _hit_table(sets: Sequence[Set], encoders: Sequence[str], indexes: Indexes) -> Iterator[tuple[str, str]]:
    columns = ["words", *(f"{_label(encoder)} {kind}" for encoder in encoders for kind in ("alone", "fused"))]
    yield "set", f"units queries | {' | '.join(columns)} (hit@1 hit@3)"
    rows: list[list[tuple[float, float]]] = []
    for unit_set in sets:
        row = _hits(indexes[unit_set.name, None], unit_set.held_out, WORDS)
        for encoder in encoders:
            row += _hits(indexes[unit_set.name, encoder], unit_set.held_out, MEANING, FUSED)
        rows.append(row)
        yield unit_set.name, f"{len(unit_set.units)} {len(unit_set.held_out)} | " + " | ".join(map(_pair, row))
    yield "mean", " | ".join(_pair(_mean([row[column] for row in rows])) for column in range(len(columns)))


def _refusals(one: Set, index: SearchIndex) -> Iterator[tuple[str, str]]:
    """Whether queries without an answer are recognised by the relevance of the best unit."""
    right: list[float] = []
    wrong: list[float] = []
    for query in one.queries:
        relevance = max(hit.relevance for hit in index.search(query.intent, floor=0).hits)
        (right if query.relevant else wrong).append(relevance)
    name = f"{one.name} by {index.embedding_model_version}"
    yield f"{name}: AUROC of abstention", f"{_auroc(right, wrong):.3f}"
    refused = sum(relevance < index.floor for relevance in wrong) / len(wrong)
    accepted = sum(relevance >= index.floor for relevance in right) / len(right)
    yield (
        f"{name}: at the floor of {index.floor}",
        f"{refused:.3f} of those without an answer refused, {accepted:.3f} kept",
    )


def _relevance_quantiles(encoder: str | None, sets: Sequence[Set], indexes: Indexes) -> tuple[str, str]:
    """The floor was chosen so that nearly every right answer passes, on all sets but the abstention set."""
    relevances: list[float] = []
    for unit_set in sets:
        if unit_set.name == ABSTENTION_SET:
            continue
        index = indexes[unit_set.name, encoder]
        for query in unit_set.others[:FLOOR_QUERIES_MAX]:
            first = index.search(query.intent, floor=0, limit=3).hits
            relevances += [hit.relevance for hit in first if hit.id in query.relevant][:1]
    relevances.sort()
    quantiles = " ".join(f"{relevances[int(len(relevances) * share)]:.3f}" for share in (0.01, 0.02, 0.05))
    return f"relevance of right answers by {_label(encoder)}: 1, 2 and 5 % are below", quantiles


def _speed(encoder: str | None, sets: Sequence[Set]) -> tuple[str, str]:
    heads = [
        msgspec.structs.replace(unit, id=f"{unit_set.name}/{unit.id}", content="")
        for unit_set in sets
        for unit in unit_set.units
    ]
    units = heads[:: len(heads) // UNITS_TIMED][:UNITS_TIMED]
    queries = [query.intent for unit_set in sets for query in unit_set.held_out][::10]
    index, build = _time(lambda: _index(units, encoder))
    query_ms = sorted(_time(lambda: index.search(query))[1] for query in queries)  # noqa: B023
    _, change = _time(lambda: index.add([msgspec.structs.replace(units[0], description="Something else")]))
    p50, p99 = query_ms[len(query_ms) // 2], query_ms[int(len(query_ms) * 0.99)]
    return (
        f"{UNITS_TIMED} texts by {_label(encoder)}, processor ms",
        f"build {build:.0f}, one change {change:.2f}, a query p50 {p50:.2f} p99 {p99:.2f}",
    )


def _label(encoder: str | None) -> str:
    if encoder is None:
        return "words and links"
    prefix = COMBINED_PREFIX if encoder.startswith(COMBINED_PREFIX) else ""
    return f"{prefix}{Path(encoder).name}"


def _time(action: Callable[[], Result]) -> tuple[Result, float]:
    """With the processor time of this thread in milliseconds, which is meaningful even on a busy machine."""
    start = time.thread_time()
    result = action()
    return result, (time.thread_time() - start) * 1000


def _hits(index: SearchIndex, query: Sequence[Query], *weightings: StageWeights) -> list[tuple[float, float]]:
    """How often one of the right units is first, and among the first three, by each of the weightings."""
    answers = [
        [(index.search(one.intent, limit=3, floor=0, weights=weights), one.relevant) for weights in weightings]
        for one in query
    ]
    return [(_share(some, 1), _share(some, 3)) for some in zip(*answers, strict=True)]


def _share(answers: Sequence[tuple[SearchResult, tuple[str, ...]]], first: int) -> float:
    hits = sum(any(hit.id in relevant for hit in answer.hits[:first]) for answer, relevant in answers)
    return hits / len(answers)


def _auroc(right: list[float], wrong: list[float]) -> float:
    """How often a query with an answer looks more relevant than one without; ties count half."""
    ordered = sorted(wrong)
    below = sum(bisect.bisect_left(ordered, one) + bisect.bisect_right(ordered, one) for one in right)
    return below / 2 / len(right) / len(wrong)


def _mean(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return sum(one for one, _ in pairs) / len(pairs), sum(three for _, three in pairs) / len(pairs)


def _pair(hits: tuple[float, float]) -> str:
    return f"{hits[0]:.3f} {hits[1]:.3f}"


def _read(archive: Path) -> list[Set]:
    with tarfile.open(archive) as packed:
        texts = {
            Path(member.name).name: file.read().decode()
            for member in packed.getmembers()
            if member.isfile() and (file := packed.extractfile(member)) is not None
        }
    names = sorted(name.removesuffix(".units.jsonl") for name in texts if name.endswith(".units.jsonl"))
    return [
        Set(
            name,
            tuple(_unit(json.loads(line)) for line in texts[f"{name}.units.jsonl"].splitlines()),
            tuple(msgspec.convert(json.loads(line), Query) for line in texts[f"{name}.queries.jsonl"].splitlines()),
        )
        for name in names
    ]


def _unit(row: dict[str, object]) -> SearchUnit:
    """The examples that a set gives for a unit are its triggers."""
    examples = row.get("examples")
    triggers = tuple(map(str, examples)) if isinstance(examples, list) else ()
    name = str(row["name"])
    return SearchUnit(name, name, str(row.get("description") or ""), triggers, str(row.get("body") or ""))
