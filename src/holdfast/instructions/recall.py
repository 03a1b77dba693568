"""Which units an intent loads: hints, ranked, guaranteed, within a budget; the same question has the same answer."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import msgspec

from holdfast.errors import UserError
from holdfast.instructions.counting import count_cl100k
from holdfast.instructions.failures import InstructionError
from holdfast.instructions.values import ChunkSource, Entry, Manifest
from holdfast.retrieval.fusion import DECIMALS, Weights
from holdfast.retrieval.index import Index, Place, Ranking, Share
from holdfast.retrieval.meaning import MeaningStage
from holdfast.retrieval.units import Unit

DEFAULT_CHUNKS_MAX = 3
DEFAULT_TOKEN_BUDGET = 2000
LIFT = math.log(1 + 0.15)
UNAVAILABLE = "recall_backend_unavailable"


class Content(msgspec.Struct, frozen=True):
    """The text behind an entry, and where it came from."""

    text: str
    tokens: int
    source: ChunkSource
    fact_uri: str | None = None
    version: str | None = None
    valid_until: int | None = None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """`task_type` is why the agent was woken, where it says in which heartbeat it asks."""

    intent: str
    max_chunks: int = DEFAULT_CHUNKS_MAX
    token_budget: int = DEFAULT_TOKEN_BUDGET
    manifest_hint: tuple[str, ...] = ()
    use_floor: bool = True
    weights: Weights = Weights()
    task_type: str | None = None


class Why(msgspec.Struct, frozen=True):
    relevance: float
    stages: tuple[Share, ...]
    matched_terms: tuple[str, ...]
    links: tuple[str, ...]
    lifted: bool
    fits_task_type: bool = False


class Picked(msgspec.Struct, frozen=True):
    name: str
    content: Content
    score: float
    kind: str
    why: Why | None


class Dropped(msgspec.Struct, frozen=True):
    """`reason` is below_floor, over_budget, over_max_chunks or unavailable."""

    name: str
    reason: str
    score: float


class Recalled(msgspec.Struct, frozen=True):
    chunks: tuple[Picked, ...]
    dropped: tuple[Dropped, ...]
    total_tokens: int
    truncated: bool
    missed_hints: tuple[str, ...]
    dropped_hints: tuple[str, ...]
    unavailable: tuple[str, ...]


class Shelf:
    """A manifest with the texts behind it, ready to be asked; `since` is when the youngest of them began to hold."""

    def __init__(
        self,
        manifest: Manifest,
        contents: Mapping[str, Content],
        *,
        meaning: Callable[[], MeaningStage | None] = lambda: None,
        lifted: Collection[str] = (),
        since: int = 0,
    ) -> None:
        self.since = since
        self.manifest = manifest
        self.contents = contents
        self.lifted = frozenset(lifted)
        self._meaning = meaning

    @cached_property
    def index(self) -> Index:
        """Made when first asked: who reads only the manifest need not wait for an encoder."""
        units = (unit_of(entry, self.contents.get(entry.name)) for entry in self.manifest.body)
        with _or_unavailable():
            return Index(units, meaning=self._meaning())

    @cached_property
    def snapshot_id(self) -> str:
        """The same for the same manifest, texts, model and lifts."""
        made_of = f"{self.manifest.id} {self.index.digest} {' '.join(sorted(self.lifted))}"
        return hashlib.sha256(made_of.encode()).hexdigest()

    def rank(self, query: str, *, weights: Weights | None = None) -> Ranking:
        """All units, best first, without lifts. Raises InstructionError `recall_backend_unavailable`."""
        index = self.index
        with _or_unavailable():
            return index.rank(query, weights=weights)

    def ranking(self, question: Question) -> Ranking:
        """All units, best first, lifts included."""
        ranking = self.rank(question.intent, weights=question.weights)
        lifts = Counter((*self.lifted, *self.fitting(question)))
        if not lifts:
            return ranking
        lifted = (_lift(place, lifts[place.id]) for place in ranking.places)
        return Ranking(tuple(sorted(lifted, key=lambda one: (-one.score, one.id))), ranking.why)

    def fitting(self, question: Question) -> frozenset[str]:
        """Units that say of this type of task that they fit it: a hint, which counts as much as a lift."""
        wanted = question.task_type
        return frozenset(one.name for one in self.manifest.body if wanted in one.load_triggers.task_types)

    def recall(self, question: Question) -> Recalled:
        return _Packing(self, question).packed()


@contextmanager
def _or_unavailable() -> Iterator[None]:
    """Encoders are the work of others, and raise what they like; whoever asks can try again."""
    try:
        yield
    except UserError as error:
        raise InstructionError(UNAVAILABLE, f"units cannot be ranked now: {error}") from error
    except Exception as error:
        raise InstructionError(UNAVAILABLE, "recall cannot be used now; try again") from error


def _lift(place: Place, times: int) -> Place:
    score = place.score + times * LIFT
    return msgspec.structs.replace(place, score=round(min(1.0, score), DECIMALS)) if times else place


class _Packing:
    def __init__(self, shelf: Shelf, question: Question) -> None:
        self._shelf = shelf
        self._question = question
        self._ranking = shelf.ranking(question)
        self._fitting = shelf.fitting(question)
        self._places = {one.id: one for one in self._ranking.places}
        self._dropped: list[Dropped] = []
        self._over = False
        entries = shelf.manifest.body
        self._guaranteed = [one for one in entries if one.guarantee_load and one.name in shelf.contents]
        self._left = question.token_budget - sum(shelf.contents[one.name].tokens for one in self._guaranteed)
        self._taken: list[Picked] = []

    def packed(self) -> Recalled:
        missed, dropped_hints = self._take_hints()
        self._take_ranked()
        first = [self._picked(one.name, "guaranteed") for one in self._guaranteed if one.force_position]
        last = [self._picked(one.name, "guaranteed") for one in self._guaranteed if not one.force_position]
        chunks = (*first, *self._taken, *last)
        total = sum(one.content.tokens for one in chunks)
        unavailable = tuple(one.name for one in self._shelf.manifest.body if one.name not in self._shelf.contents)
        return Recalled(
            chunks,
            tuple(self._dropped),
            total,
            self._over or total > self._question.token_budget,
            missed,
            dropped_hints,
            unavailable,
        )

    def _take_hints(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        missed, dropped = [], []
        always = {one.name for one in self._guaranteed}
        for name in dict.fromkeys(self._question.manifest_hint):
            if name not in self._shelf.contents or name not in self._places:
                missed.append(name)
            elif name not in always and not self._take(name, "hint"):
                dropped.append(name)
                self._over = True
        return tuple(missed), tuple(dropped)

    def _take_ranked(self) -> None:
        done = {one.name for one in self._guaranteed} | {one.name for one in self._taken}
        done |= {one.name for one in self._dropped}
        floor = self._shelf.index.floor if self._question.use_floor else 0.0
        for place in self._ranking.places:
            if place.id in done:
                continue
            if place.id not in self._shelf.contents:
                self._drop(place.id, "unavailable")
            elif place.relevance < floor:
                self._drop(place.id, "below_floor")
            elif len(self._taken) >= self._question.max_chunks:
                self._drop(place.id, "over_max_chunks")
            elif not self._take(place.id, "ranked"):
                self._over = True

    def _take(self, name: str, kind: str) -> bool:
        tokens = self._shelf.contents[name].tokens
        if len(self._taken) >= self._question.max_chunks or tokens > self._left:
            full = len(self._taken) >= self._question.max_chunks
            self._drop(name, "over_max_chunks" if full else "over_budget")
            return False
        self._left -= tokens
        self._taken.append(self._picked(name, kind))
        return True

    def _drop(self, name: str, reason: str) -> None:
        self._dropped.append(Dropped(name, reason, self._places[name].score))

    def _picked(self, name: str, kind: str) -> Picked:
        found = self._ranking.why(name)
        why = Why(
            found.relevance,
            found.shares,
            found.matched_terms,
            found.links,
            name in self._shelf.lifted,
            name in self._fitting,
        )
        return Picked(name, self._shelf.contents[name], self._places[name].score, kind, why)


def unit_of(entry: Entry, content: Content | None) -> Unit:
    triggers = (*entry.load_triggers.intents, *entry.load_triggers.keywords)
    return Unit(entry.name, entry.name, entry.description, triggers, content.text if content else "")


def text_content(text: str, source: ChunkSource) -> Content:
    return Content(text, count_cl100k(text), source)


def names_of(chunks: Sequence[Picked]) -> tuple[str, ...]:
    return tuple(one.name for one in chunks)
