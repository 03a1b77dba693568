"""How a lexical search, a change and building the index grow with the number of units, beside bm25s.

Milliseconds of processor time, with numpy loaded, which an index does by itself after some searches. bm25s has no
changes: its index is built again. With meaning, the index is built by two processes, one after the other, on a SQLite
store that keeps encodings.
"""

import importlib
import importlib.util
import multiprocessing
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from conformance.client import InstallationFailed

from benchmarks._peers import run_in_peer
from holdfast.instructions.recall import snapshot
from holdfast.retrieval.encoders.registry import create_semantic_stage, default_encoder
from holdfast.retrieval.index import SearchIndex
from holdfast.retrieval.units import SearchUnit
from holdfast.stores.sqlite.store import SqliteStore

SIZES = (100, 1_000, 10_000)
SEMANTIC_SIZES = (100, 1_000, 10_000)
BAR_UNITS_MIN = 1_000
"""From here on a search should take at most twice as long as with bm25s."""

BUILD_MILLISECONDS_MAX = {1_000: 2_000, 10_000: 20_000}
QUERIES = 50
UNIT_WORDS = 120
VOCABULARY = 20_000
BM25S = ("bm25s[core]", "0.3.16")
_PEER = """
import json, sys, time
import bm25s, Stemmer
given = json.loads(sys.stdin.read())
stemmer, rows = Stemmer.Stemmer("english"), []
for texts, queries in given:
    start = time.thread_time()
    index = bm25s.BM25()
    index.index(bm25s.tokenize(texts, stemmer=stemmer, show_progress=False), show_progress=False)
    build = time.thread_time() - start
    def search(query):
        words = bm25s.tokenize(query, stemmer=stemmer, show_progress=False)
        index.retrieve(words, k=10, show_progress=False)
    for query in queries:
        search(query)
    start = time.thread_time()
    for query in queries:
        search(query)
    rows.append([len(texts), build * 1000, (time.thread_time() - start) * 1000 / len(queries)])
print(json.dumps(rows))
"""


def run() -> Iterator[tuple[str, str]]:
    if importlib.util.find_spec("numpy"):
        importlib.import_module("numpy")
    collections = [_make_collection(size) for size in SIZES]
    for units, queries in collections:
        yield _measure(units, queries)
    given = [([unit.content for unit in units], queries) for units, queries in collections]
    try:
        name, measured = run_in_peer(*BM25S, _PEER, given)
        assert isinstance(measured, list)
        for size, build, query in measured:
            yield f"{name}, {size:,} units", f"a search {query:.2f} ms, build {build:,.0f} ms"
    except InstallationFailed as failure:
        yield "bm25s", f"not measured: {failure}"
    if default_encoder():
        create_semantic_stage()  # Loads the weights.
        for size in SEMANTIC_SIZES:
            yield _measure(*_make_collection(size), semantic=True)
        for size in SEMANTIC_SIZES:
            yield _measure_two_processes(size)


def _make_collection(size: int) -> tuple[list[SearchUnit], list[str]]:
    """Texts of words with the frequencies of natural language (the nth word is 1/n as frequent as the first)."""
    source = random.Random(size)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(source.choices(letters, k=source.randrange(3, 10))) for _ in range(VOCABULARY)]
    weights = [1 / (rank + 5) for rank in range(VOCABULARY)]
    units = [
        SearchUnit(f"u{number}", content=" ".join(source.choices(words, weights, k=UNIT_WORDS)))
        for number in range(size)
    ]
    return units, [" ".join(source.choices(words, weights, k=6)) for _ in range(QUERIES)]


def _measure(units: Sequence[SearchUnit], queries: Sequence[str], *, semantic: bool = False) -> tuple[str, str]:
    start = time.thread_time()
    index = SearchIndex(units, meaning=create_semantic_stage() if semantic else None)
    build = (time.thread_time() - start) * 1000
    # The first searches make the arrays of their terms.
    for query in queries:
        index.search(query)
    start = time.thread_time()
    for query in queries:
        index.search(query)
    search = (time.thread_time() - start) * 1000 / len(queries)
    start = time.thread_time()
    index.add([SearchUnit(units[0].id, content="Something else")])
    index.search(queries[0])
    change = (time.thread_time() - start) * 1000
    name = f"holdfast, {'words and meaning' if semantic else 'words'}, {len(units):,} units"
    return name, f"a search {search:.2f} ms, a change and a search {change:.2f} ms, build {build:,.0f} ms"


def _measure_two_processes(size: int) -> tuple[str, str]:
    name = f"holdfast, words and meaning, {size:,} units, with a store"
    if not hasattr(snapshot, "KeptEncodings"):
        return name, "not measured: this package keeps no encodings"
    builds: list[float] = []
    with TemporaryDirectory() as folder:
        for _ in range(2):
            # Nothing of a process that is spawned comes from this one.
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
                builds.append(processes.submit(_time_build, Path(folder) / "store.db", size).result())
    first, again = builds
    return name, f"build {first:,.0f} ms, in another process afterwards {again:,.0f} ms"


def _time_build(path: Path, size: int) -> float:
    create_semantic_stage()  # Loads the weights.
    units, _ = _make_collection(size)
    with closing(SqliteStore(path)) as store:
        encodings = snapshot.KeptEncodings(store.instructions, lambda: int(time.time() * 1000))
        start = time.thread_time()
        SearchIndex(units, meaning=create_semantic_stage(encodings=encodings))
        return (time.thread_time() - start) * 1000
