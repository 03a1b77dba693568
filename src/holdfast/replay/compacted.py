"""A recorded conversation as it would have been sent if it had been compacted whenever that was due."""

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
    """Decides before each call as a session does, with the short TTL; the newest input is never compacted.

    The recording must only grow: compactions by the recorded client cannot be undone here.
    """
    fold = _Fold(recording, model, config)
    calls = tuple(fold.sent(call) for call in recording.calls)
    return Compacted(msgspec.structs.replace(recording, calls=calls), fold.count)


class _Fold:
    """The conversation so far: the full history, and the part of it that the next request sends."""

    def __init__(self, recording: Recording, model: Model, config: CompactionConfig) -> None:
        self._model = model
        self._config = config
        self._history: list[Passage] = []
        self._view: list[Passage] = []
        self._sizes: dict[int, int] = {}
        self._facts = FactsReader()
        self._facts_read_until = 0
        self._watch = Watch()
        self._last_at: float | None = None
        self._calls = 0
        self._head_size = self._head_tokens(recording)
        self.count = 0

    def _head_tokens(self, recording: Recording) -> int:
        texts = (
            recording.system,
            *(f"{tool.name}{tool.description}{tool.input_schema_json}" for tool in recording.tools),
        )
        estimated = sum(self._tokens(text) for text in texts)
        first = recording.calls[0].added if recording.calls else ()
        reported = (recording.first_prompt_tokens or 0) - sum(
            self._tokens(plain_text(entry.content)) for entry in first
        )
        return max(estimated, reported)

    def _tokens(self, text: str) -> int:
        return count_tokens(text, self._model.tokens_factor)

    def _enter(self, entry: Passage) -> Passage:
        numbered = msgspec.structs.replace(entry, number=len(self._history) + 1)
        self._history.append(numbered)
        self._view.append(numbered)
        self._sizes[numbered.number] = self._tokens(plain_text(numbered.content))
        return numbered

    def sent(self, call: RecordedCall) -> RecordedCall:
        """The call as it would have been sent, after a compaction if one is due."""
        unsent = len(self._view)
        added = tuple(self._enter(entry) for entry in call.added)
        compacted_call = msgspec.structs.replace(call, added=added, kept=None)
        if self._is_due(call.at) and self._compact(unsent):
            compacted_call = msgspec.structs.replace(call, added=tuple(self._view), kept=0)
        self._watch = after_call(self._watch, Usage(input=self._head_size + sum(self._view_sizes())))
        self._last_at, self._calls = call.at, self._calls + 1
        if call.reply is not None:
            self._enter(call.reply)
        return compacted_call

    def _is_due(self, at: float) -> bool:
        return self._last_at is not None and due(self._outlook(at), self._watch, self._config) is not None

    def _view_sizes(self) -> list[int]:
        return [self._sizes[entry.number] for entry in self._view]

    def _outlook(self, at: float) -> Outlook:
        price = newest_price(self._model, self._head_size + sum(self._view_sizes()))
        unit = price.input or Decimal(1)
        ttl_seconds = self._model.cache.ttls_seconds.get(SHORT_LIFETIME, 0)
        return Outlook(
            prompt_tokens=self._head_size + sum(self._view_sizes()),
            head_tokens=self._head_size,
            window_tokens=self._model.context_tokens_max,
            output_tokens_max=self._model.output_tokens_max,
            # The prior minus the calls so far, but at least as many again as were made.
            calls_expected=max(CALLS_EXPECTED - self._calls, self._calls, 1.0),
            cold=self._last_at is not None and at - self._last_at >= ttl_seconds,
            rates=Rates(price.cache_read / unit, price.cache_write_5m / unit),
            calls=self._watch.calls,
            sent_tokens=self._watch.sent_tokens,
            base_tokens=self._watch.base_tokens,
        )

    def _compact(self, unsent: int) -> bool:
        sizes = self._view_sizes()
        record_max, tail_max = budgets(sum(sizes), self._config)
        cut = cut_at(self._view, sizes, tail_tokens_max=tail_max, unsent=unsent)
        if cut is None:
            return False
        recent = self._view[cut.stop :]
        text = "\n".join(plain_text(entry.content) for entry in recent)
        count: Callable[[str], int] = self._tokens
        for entry in self._history[self._facts_read_until : cut.last]:
            self._facts.read(entry)
        self._facts_read_until = cut.last
        record = build_record(
            self._facts.facts(),
            tokens_max=record_max,
            count=count,
            kept=Kept(text, len(facts_of(recent).asks)),
        )
        content = (Text(record_text(record, recall=False)), Text(note_text(recent=bool(recent))))
        self._sizes[0] = sum(self._tokens(part.text) for part in content)
        self._view = [Passage("user", content, layer=RECORD_LAYER), *recent]
        self._watch = Watch(count=self.count + 1, base_tokens=self._head_size + sum(self._view_sizes()))
        self.count += 1
        return True
