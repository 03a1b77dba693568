"""How often the right text is among the first, when queries without an answer are known, and how long that takes.

Sets of queries others have published, read from HOLDFAST_DATA. The weights are those of the specification and the
constants of BM25 the usual ones; each set is also shown with the weights that the other sets would have chosen.
HOLDFAST_MINILM=1 measures MiniLM too (half an hour), and HOLDFAST_MODEL, the folder of a model, that model beside
others (more than an hour; `scripts/fetch_model.py` puts one together).
"""

import bisect
import json
import os
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.retrieval.encoders.registry import EncoderName, create_semantic_stage, find_missing_packages
from holdfast.retrieval.index import SearchIndex, SearchResult, StageWeights
from holdfast.retrieval.units import SearchUnit

Result = TypeVar("Result")
HOW_CHOSEN = (
    "weights as specified; the form of the fusion with all sets in view, so that these are numbers of development; "
    "the floors on all sets but clinc150, the shares of encoders and of words on all sets; "
    "those of joined and of a model of one's own on MetaTool alone; the matrices that turn encoders were fitted to "
    "none of them, in a number of rounds that was chosen with MetaTool in view"
)
LEFT_OUT = ("left out", "HOLDFAST_DATA names no folder with retrieval.tar.gz")
BAR, BAR_OF_MINILM = (0.60, 0.75), (0.66, 0.79)
JUDGED = "metatool_single"
REFUSED = "clinc150"
WORDS, MEANING, OURS = StageWeights(1, 0, 0), StageWeights(0, 1, 0), StageWeights()
SHARES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
"""Of words in words and meaning together; the specification has 0.41."""
CHOSEN_ON_MAX = 200
SEARCHED = 3_000


class Asked(msgspec.Struct, frozen=True):
    intent: str
    relevant: tuple[str, ...]


class Set(msgspec.Struct, frozen=True):
    name: str
    units: tuple[SearchUnit, ...]
    queries: tuple[Asked, ...]

    @property
    def answerable(self) -> tuple[Asked, ...]:
        return tuple(one for one in self.queries if one.relevant)


def run() -> Iterator[tuple[str, str]]:
    folder = os.environ.get("HOLDFAST_DATA")
    archive = Path(folder) / "retrieval.tar.gz" if folder else None
    if archive is None or not archive.is_file():
        yield LEFT_OUT
        return
    sets = _read(archive)
    yield "how things were chosen", HOW_CHOSEN
    yield from _without_vectors(sets)
    if missing := find_missing_packages("paired"):
        yield "with vectors", f"left out, not installed: {', '.join(missing)}"
        return
    yield from _with_vectors(sets)
    if os.environ.get("HOLDFAST_MINILM") and not find_missing_packages("joined"):
        for encoder in ("minilm", "joined"):
            yield from _slow_encoder(sets, encoder)
    if model := os.environ.get("HOLDFAST_MODEL"):
        beside: tuple[EncoderName, ...] = ("paired", "joined")
        for encoder in beside:
            if not find_missing_packages(encoder):
                yield from _slow_encoder(sets, f"{encoder}+{model}")
    yield from _speed(sets)


def _without_vectors(sets: Sequence[Set]) -> Iterator[tuple[str, str]]:
    means = [_hits(SearchIndex(one.units), one.answerable, OURS)[0] for one in sets]
    yield "words and links alone, mean hit@1 hit@3", _pair(_mean(means))


def _with_vectors(sets: Sequence[Set]) -> Iterator[tuple[str, str]]:
    yield "set", "units queries | words | wordllama | ours | chosen on the others (hit@1 hit@3)"
    rows: list[list[tuple[float, float]]] = []
    indexes = {one.name: SearchIndex(one.units, meaning=create_semantic_stage("paired")) for one in sets}
    single = {one.name: SearchIndex(one.units, meaning=create_semantic_stage("wordllama")) for one in sets}
    sampled = {
        one.name: {
            share: hits[1]
            for share, hits in zip(
                SHARES, _hits(indexes[one.name], _sample(one.answerable), *map(_weights, SHARES)), strict=True
            )
        }
        for one in sets
    }
    picks = []
    for one in sets:
        others = [by_share for name, by_share in sampled.items() if name.split("_")[0] != one.name.split("_")[0]]
        share = max(SHARES, key=lambda share: sum(by_share[share] for by_share in others))
        picks.append(share)
        (alone,) = _hits(single[one.name], one.answerable, MEANING)
        words, ours, chosen = _hits(indexes[one.name], one.answerable, WORDS, OURS, _weights(share))
        row = [words, alone, ours, chosen]
        rows.append(row)
        yield one.name, f"{len(one.units)} {len(one.queries)} | " + " | ".join(map(_pair, row))
    means = [_mean([row[column] for row in rows]) for column in range(4)]
    yield "mean", " | ".join(map(_pair, means))
    yield "share of words chosen on the others", " ".join(map(str, picks))
    best = max(means[0][1], means[1][1])
    yield "mean hit@3 above words alone and wordllama alone", f"{means[2][1]:.3f} > {best:.3f}: {means[2][1] > best}"
    yield _judged("paired", rows[[one.name for one in sets].index(JUDGED)][2])
    yield from _refusals(next(one for one in sets if one.name == REFUSED), indexes[REFUSED])
    yield _kept("words alone", sets, SearchIndex)
    yield _kept("paired", sets, lambda units: next(indexes[one.name] for one in sets if one.units is units))


def _slow_encoder(sets: Sequence[Set], encoder: str) -> Iterator[tuple[str, str]]:
    for one in sets:
        if one.name in (JUDGED, REFUSED):
            index = SearchIndex(one.units, meaning=create_semantic_stage(encoder))
            if one.name == JUDGED:
                yield _judged(encoder, _hits(index, one.answerable, OURS)[0])
            else:
                yield from _refusals(one, index)
    yield _kept(encoder, sets, lambda units: SearchIndex(units, meaning=create_semantic_stage(encoder)))


def _judged(encoder: str, hits: tuple[float, float]) -> tuple[str, str]:
    bars = BAR if encoder == "paired" else BAR_OF_MINILM
    met = all(hit >= bar for hit, bar in zip(hits, bars, strict=True))
    return f"{JUDGED} by {encoder}, bar {bars[0]:.2f} {bars[1]:.2f}", f"{_pair(hits)} {'met' if met else 'missed'}"


def _refusals(one: Set, index: SearchIndex) -> Iterator[tuple[str, str]]:
    """Queries without an answer, told by how relevant the best unit is."""
    right: list[float] = []
    wrong: list[float] = []
    for asked in one.queries:
        relevance = max(found.relevance for found in index.search(asked.intent, floor=0).hits)
        (right if asked.relevant else wrong).append(relevance)
    name = f"{one.name} by {index.embedding_model_version}"
    yield f"{name}: AUROC of abstention", f"{_auroc(right, wrong):.3f}"
    refused = sum(relevance < index.floor for relevance in wrong) / len(wrong)
    kept = sum(relevance >= index.floor for relevance in right) / len(right)
    yield f"{name}: at the floor of {index.floor}", f"{refused:.3f} of those without an answer refused, {kept:.3f} kept"


def _kept(name: str, sets: Sequence[Set], indexed: Callable[[tuple[SearchUnit, ...]], SearchIndex]) -> tuple[str, str]:
    """The floor was set where nearly every right answer passes, on the sets other than that of the refusals."""
    relevances: list[float] = []
    for one in sets:
        if one.name == REFUSED:
            continue
        index = indexed(one.units)
        for asked in _sample(one.answerable):
            first = index.search(asked.intent, floor=0, limit=3).hits
            relevances += [found.relevance for found in first if found.id in asked.relevant][:1]
    relevances.sort()
    quantiles = " ".join(f"{relevances[int(len(relevances) * share)]:.3f}" for share in (0.01, 0.02, 0.05))
    return f"relevance of right answers by {name}: 1, 2 and 5 % are below", quantiles


def _speed(sets: Sequence[Set]) -> Iterator[tuple[str, str]]:
    heads = [
        msgspec.structs.replace(unit, id=f"{one.name}/{unit.id}", content="") for one in sets for unit in one.units
    ]
    rounds = SEARCHED // len(heads) + 1
    units = [msgspec.structs.replace(unit, id=f"{unit.id}/{at}") for at in range(rounds) for unit in heads][:SEARCHED]
    queries = [asked.intent for one in sets for asked in one.queries][::40]
    encoders: tuple[EncoderName | None, ...] = (None, "wordllama", "paired")
    for encoder in encoders:
        name = encoder or "words and links"
        index, built = _timed(lambda: SearchIndex(units, meaning=create_semantic_stage(encoder) if encoder else None))  # noqa: B023
        took = sorted(_timed(lambda: index.search(query))[1] for query in queries)  # noqa: B023
        _, change = _timed(lambda: index.add([msgspec.structs.replace(units[0], description="Something else")]))  # noqa: B023
        p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
        yield (
            f"{SEARCHED} texts by {name}, processor ms",
            f"build {built:.0f}, one change {change:.2f}, a query p50 {p50:.2f} p99 {p99:.2f}",
        )


def _timed(action: Callable[[], Result]) -> tuple[Result, float]:
    """With the milliseconds of this thread: on a busy machine, only they say something of the program."""
    start = time.thread_time()
    result = action()
    return result, (time.thread_time() - start) * 1000


def _hits(index: SearchIndex, asked: Sequence[Asked], *weightings: StageWeights) -> list[tuple[float, float]]:
    """How often one of the right units is first, and among the first three, by each of the weightings."""
    answers = [
        [(index.search(one.intent, limit=3, floor=0, weights=weights), one.relevant) for weights in weightings]
        for one in asked
    ]
    return [(_share(some, 1), _share(some, 3)) for some in zip(*answers, strict=True)]


def _share(answers: Sequence[tuple[SearchResult, tuple[str, ...]]], first: int) -> float:
    hits = sum(any(found.id in relevant for found in answer.hits[:first]) for answer, relevant in answers)
    return hits / len(answers)


def _weights(share: float) -> StageWeights:
    """Such that words have this share of what words and meaning can add; links keep theirs."""
    both = 1 - OURS.graph
    return StageWeights(both * share, both * (1 - share), OURS.graph)


def _sample(asked: Sequence[Asked]) -> Sequence[Asked]:
    return asked[:: max(1, len(asked) // CHOSEN_ON_MAX)]


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
            tuple(msgspec.convert(json.loads(line), Asked) for line in texts[f"{name}.queries.jsonl"].splitlines()),
        )
        for name in names
    ]


def _unit(row: dict[str, object]) -> SearchUnit:
    """What examples a set gives for a unit are its triggers."""
    examples = row.get("examples")
    triggers = tuple(map(str, examples)) if isinstance(examples, list) else ()
    name = str(row["name"])
    return SearchUnit(name, name, str(row.get("description") or ""), triggers, str(row.get("body") or ""))
