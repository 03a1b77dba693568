"""A recorded conversation as it would have been sent, had it been made shorter whenever that was due."""

from collections.abc import Callable
from decimal import Decimal

import msgspec

from holdfast.canonical.blocks import Text
from holdfast.canonical.prompt import Passage
from holdfast.canonical.usage import Usage
from holdfast.catalog.rows import Model
from holdfast.catalog.tokens import count_tokens
from holdfast.compaction.decide import Outlook, budgets, due
from holdfast.compaction.groups import RECORD_LAYER, cut_at
from holdfast.compaction.record import Kept, build_record, note_text, record_text
from holdfast.compaction.values import CompactionConfig
from holdfast.compaction.watch import Watch, after_call
from holdfast.economics.compacting import Rates
from holdfast.extraction.calls import plain_text
from holdfast.extraction.facts import FactsReader, facts_of
from holdfast.planning.memory import CALLS_EXPECTED
from holdfast.replay.play import newest_price
from holdfast.replay.recording import RecordedCall, Recording

SHORT_LIFETIME = "5m"


class Compacted(msgspec.Struct, frozen=True):
    """The conversation with its compactions, and how many there were."""

    recording: Recording
    compactions: int


def compacted_recording(recording: Recording, model: Model, config: CompactionConfig) -> Compacted:
    """Decided before each call as a session decides it, by the marks' short lifetime; the last step is a checkpoint.

    The recording must be one that only grows: what its own client has compacted cannot be taken back here.
    """
    fold = _Fold(recording, model, config)
    calls = tuple(fold.sent(call) for call in recording.calls)
    return Compacted(msgspec.structs.replace(recording, calls=calls), fold.count)


class _Fold:
    """The conversation so far: all that was said, and what of it is in view."""

    def __init__(self, recording: Recording, model: Model, config: CompactionConfig) -> None:
        self._model = model
        self._config = config
        self._said: list[Passage] = []
        self._view: list[Passage] = []
        self._sizes: dict[int, int] = {}
        self._facts = FactsReader()
        self._read = 0
        self._watch = Watch()
        self._last_at: float | None = None
        self._calls = 0
        self._head = self._head_tokens(recording)
        self.count = 0

    def _head_tokens(self, recording: Recording) -> int:
        texts = (recording.system, *(f"{one.name}{one.description}{one.input_schema_json}" for one in recording.tools))
        counted = sum(self._tokens(text) for text in texts)
        first = recording.calls[0].added if recording.calls else ()
        told = (recording.first_prompt_tokens or 0) - sum(self._tokens(plain_text(one.content)) for one in first)
        return max(counted, told)

    def _tokens(self, text: str) -> int:
        return count_tokens(text, self._model.tokens_factor)

    def _enter(self, passage: Passage) -> Passage:
        entered = msgspec.structs.replace(passage, number=len(self._said) + 1)
        self._said.append(entered)
        self._view.append(entered)
        self._sizes[entered.number] = self._tokens(plain_text(entered.content))
        return entered

    def sent(self, call: RecordedCall) -> RecordedCall:
        """The call as it would have been sent."""
        unsent = len(self._view)
        added = tuple(self._enter(passage) for passage in call.added)
        made = msgspec.structs.replace(call, added=added, kept=None)
        if self._is_due(call.at) and self._shorten(unsent):
            made = msgspec.structs.replace(call, added=tuple(self._view), kept=0)
        self._watch = after_call(self._watch, Usage(input=self._head + sum(self._view_sizes())))
        self._last_at, self._calls = call.at, self._calls + 1
        if call.reply is not None:
            self._enter(call.reply)
        return made

    def _is_due(self, at: float) -> bool:
        return self._last_at is not None and due(self._outlook(at), self._watch, self._config) is not None

    def _view_sizes(self) -> list[int]:
        return [self._sizes[one.number] for one in self._view]

    def _outlook(self, at: float) -> Outlook:
        price = newest_price(self._model, self._head + sum(self._view_sizes()))
        unit = price.input or Decimal(1)
        lifetime = self._model.cache.ttls_seconds.get(SHORT_LIFETIME, 0)
        return Outlook(
            prompt_tokens=self._head + sum(self._view_sizes()),
            head_tokens=self._head,
            window_tokens=self._model.context_tokens_max,
            output_tokens_max=self._model.output_tokens_max,
            calls_expected=max(CALLS_EXPECTED - self._calls, self._calls, 1.0),
            cold=self._last_at is not None and at - self._last_at >= lifetime,
            rates=Rates(price.cache_read / unit, price.cache_write_5m / unit),
            calls=self._watch.calls,
            sent_tokens=self._watch.sent_tokens,
            base_tokens=self._watch.base_tokens,
        )

    def _shorten(self, unsent: int) -> bool:
        sizes = self._view_sizes()
        record_max, tail_max = budgets(sum(sizes), self._config)
        cut = cut_at(self._view, sizes, tail_tokens_max=tail_max, unsent=unsent)
        if cut is None:
            return False
        kept = self._view[cut.stop :]
        text = "\n".join(plain_text(one.content) for one in kept)
        count: Callable[[str], int] = self._tokens
        for passage in self._said[self._read : cut.last]:
            self._facts.read(passage)
        self._read = cut.last
        record = build_record(
            self._facts.facts(),
            tokens_max=record_max,
            count=count,
            kept=Kept(text, len(facts_of(kept).asks)),
        )
        said = (Text(record_text(record, recall=False)), Text(note_text(recent=bool(kept))))
        self._sizes[0] = sum(self._tokens(part.text) for part in said)
        self._view = [Passage("user", said, layer=RECORD_LAYER), *kept]
        self._watch = Watch(count=self.count + 1, base_tokens=self._head + sum(self._view_sizes()))
        self.count += 1
        return True
