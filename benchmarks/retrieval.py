"""How often the right text is among the first, whether queries without an answer are recognised, and how long it takes.

Reads published query sets from HOLDFAST_DATA. The weights are those of the specification, the constants of BM25 the
usual ones; each set is also shown with the weights that the other sets would choose. HOLDFAST_MINILM=1 measures MiniLM
too (half an hour); HOLDFAST_MODEL, a model folder, measures that model combined with others (more than an hour;
`scripts/fetch_model.py` builds one).
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
SKIPPED = ("skipped", "HOLDFAST_DATA names no folder with retrieval.tar.gz")
BAR, BAR_OF_MINILM = (0.60, 0.75), (0.66, 0.79)
BAR_SET = "metatool_single"
ABSTENTION_SET = "clinc150"
WORDS, MEANING, OURS = StageWeights(1, 0, 0), StageWeights(0, 1, 0), StageWeights()
SHARES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
"""Of words in words and meaning together; the specification has 0.41."""
CHOSEN_ON_MAX = 200
SEARCHED = 3_000


class Query(msgspec.Struct, frozen=True):
    intent: str
    relevant: tuple[str, ...]


class Set(msgspec.Struct, frozen=True):
    name: str
    units: tuple[SearchUnit, ...]
    queries: tuple[Query, ...]

    @property
    def answerable(self) -> tuple[Query, ...]:
        return tuple(query for query in self.queries if query.relevant)


def run() -> Iterator[tuple[str, str]]:
    folder = os.environ.get("HOLDFAST_DATA")
    archive = Path(folder) / "retrieval.tar.gz" if folder else None
    if archive is None or not archive.is_file():
        yield SKIPPED
        return
    sets = _read(archive)
    yield "how things were chosen", HOW_CHOSEN
    yield from _without_vectors(sets)
    if missing := find_missing_packages("paired"):
        yield "with vectors", f"skipped, not installed: {', '.join(missing)}"
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
    means = [_hits(SearchIndex(unit_set.units), unit_set.answerable, OURS)[0] for unit_set in sets]
    yield "words and links alone, mean hit@1 hit@3", _pair(_mean(means))


def _with_vectors(sets: Sequence[Set]) -> Iterator[tuple[str, str]]:
    yield "set", "units queries | words | wordllama | ours | chosen on the others (hit@1 hit@3)"
    rows: list[list[tuple[float, float]]] = []
    indexes = {unit_set.name: SearchIndex(unit_set.units, meaning=create_semantic_stage("paired")) for unit_set in sets}
    single = {
        unit_set.name: SearchIndex(unit_set.units, meaning=create_semantic_stage("wordllama")) for unit_set in sets
    }
    sampled = {
        unit_set.name: {
            share: hits[1]
            for share, hits in zip(
                SHARES, _hits(indexes[unit_set.name], _sample(unit_set.answerable), *map(_weights, SHARES)), strict=True
            )
        }
        for unit_set in sets
    }
    picks = []
    for unit_set in sets:
        others = [by_share for name, by_share in sampled.items() if name.split("_")[0] != unit_set.name.split("_")[0]]
        share = max(SHARES, key=lambda share: sum(by_share[share] for by_share in others))
        picks.append(share)
        (alone,) = _hits(single[unit_set.name], unit_set.answerable, MEANING)
        words, ours, chosen = _hits(indexes[unit_set.name], unit_set.answerable, WORDS, OURS, _weights(share))
        row = [words, alone, ours, chosen]
        rows.append(row)
        yield unit_set.name, f"{len(unit_set.units)} {len(unit_set.queries)} | " + " | ".join(map(_pair, row))
    means = [_mean([row[column] for row in rows]) for column in range(4)]
    yield "mean", " | ".join(map(_pair, means))
    yield "share of words chosen on the others", " ".join(map(str, picks))
    best = max(means[0][1], means[1][1])
    yield "mean hit@3 above words alone and wordllama alone", f"{means[2][1]:.3f} > {best:.3f}: {means[2][1] > best}"
    yield _compare_with_bar("paired", rows[[unit_set.name for unit_set in sets].index(BAR_SET)][2])
    yield from _refusals(
        next(unit_set for unit_set in sets if unit_set.name == ABSTENTION_SET), indexes[ABSTENTION_SET]
    )
    yield _relevance_quantiles("words alone", sets, SearchIndex)
    yield _relevance_quantiles(
        "paired", sets, lambda units: next(indexes[unit_set.name] for unit_set in sets if unit_set.units is units)
    )


def _slow_encoder(sets: Sequence[Set], encoder: str) -> Iterator[tuple[str, str]]:
    for unit_set in sets:
        if unit_set.name in (BAR_SET, ABSTENTION_SET):
            index = SearchIndex(unit_set.units, meaning=create_semantic_stage(encoder))
            if unit_set.name == BAR_SET:
                yield _compare_with_bar(encoder, _hits(index, unit_set.answerable, OURS)[0])
            else:
                yield from _refusals(unit_set, index)
    yield _relevance_quantiles(encoder, sets, lambda units: SearchIndex(units, meaning=create_semantic_stage(encoder)))


def _compare_with_bar(encoder: str, hits: tuple[float, float]) -> tuple[str, str]:
    bars = BAR if encoder == "paired" else BAR_OF_MINILM
    met = all(hit >= bar for hit, bar in zip(hits, bars, strict=True))
    return f"{BAR_SET} by {encoder}, bar {bars[0]:.2f} {bars[1]:.2f}", f"{_pair(hits)} {'met' if met else 'missed'}"


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
    kept = sum(relevance >= index.floor for relevance in right) / len(right)
    yield f"{name}: at the floor of {index.floor}", f"{refused:.3f} of those without an answer refused, {kept:.3f} kept"


def _relevance_quantiles(
    name: str, sets: Sequence[Set], indexed: Callable[[tuple[SearchUnit, ...]], SearchIndex]
) -> tuple[str, str]:
    """The floor was chosen so that nearly every right answer passes, on all sets but the abstention set."""
    relevances: list[float] = []
    for unit_set in sets:
        if unit_set.name == ABSTENTION_SET:
            continue
        index = indexed(unit_set.units)
        for query in _sample(unit_set.answerable):
            first = index.search(query.intent, floor=0, limit=3).hits
            relevances += [hit.relevance for hit in first if hit.id in query.relevant][:1]
    relevances.sort()
    quantiles = " ".join(f"{relevances[int(len(relevances) * share)]:.3f}" for share in (0.01, 0.02, 0.05))
    return f"relevance of right answers by {name}: 1, 2 and 5 % are below", quantiles


def _speed(sets: Sequence[Set]) -> Iterator[tuple[str, str]]:
    heads = [
        msgspec.structs.replace(unit, id=f"{unit_set.name}/{unit.id}", content="")
        for unit_set in sets
        for unit in unit_set.units
    ]
    rounds = SEARCHED // len(heads) + 1
    units = [msgspec.structs.replace(unit, id=f"{unit.id}/{at}") for at in range(rounds) for unit in heads][:SEARCHED]
    queries = [query.intent for unit_set in sets for query in unit_set.queries][::40]
    encoders: tuple[EncoderName | None, ...] = (None, "wordllama", "paired")
    for encoder in encoders:
        name = encoder or "words and links"
        index, built = _time(lambda: SearchIndex(units, meaning=create_semantic_stage(encoder) if encoder else None))  # noqa: B023
        query_ms = sorted(_time(lambda: index.search(query))[1] for query in queries)  # noqa: B023
        _, change = _time(lambda: index.add([msgspec.structs.replace(units[0], description="Something else")]))  # noqa: B023
        p50, p99 = query_ms[len(query_ms) // 2], query_ms[int(len(query_ms) * 0.99)]
        yield (
            f"{SEARCHED} texts by {name}, processor ms",
            f"build {built:.0f}, one change {change:.2f}, a query p50 {p50:.2f} p99 {p99:.2f}",
        )


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


def _weights(share: float) -> StageWeights:
    """Weights in which words have this share of words and meaning together; links keep theirs."""
    both = 1 - OURS.graph
    return StageWeights(both * share, both * (1 - share), OURS.graph)


def _sample(query: Sequence[Query]) -> Sequence[Query]:
    return query[:: max(1, len(query) // CHOSEN_ON_MAX)]


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
