"""A recorded conversation as it would have been sent if it had been compacted whenever that was due."""

from decimal import Decimal

import msgspec

from holdfast.catalog.schema import Model
from holdfast.catalog.token_count import count_tokens
from holdfast.compaction import decision
from holdfast.compaction.models import CompactionConfig, Summary
from holdfast.compaction.summary import KeptMessages, build_summary, render_resume_note, render_summary
from holdfast.compaction.view import SUMMARY_LAYER, choose_cut, clear_results
from holdfast.compaction.working_set import WorkingSet, choose_working_set
from holdfast.economics.breakeven import CacheRates
from holdfast.events.payloads.compaction import CompactionTrigger
from holdfast.extraction.facts import FactsReader, count_requests
from holdfast.extraction.tool_calls import extract_plain_text
from holdfast.planning.learned import CALLS_EXPECTED
from holdfast.replay.playback import find_newest_price
from holdfast.replay.recording import RecordedCall, Recording
from holdfast.types.blocks import Text
from holdfast.types.prompt import HistoryEntry
from holdfast.types.usage import Usage

SHORT_TTL = "5m"


class PlacedSummary(msgspec.Struct, frozen=True):
    """A summary, the call that sent it first, and the number of the last message that it covers."""

    summary: Summary
    call: int
    last: int


class CompactedRecording(msgspec.Struct, frozen=True):
    """The conversation with its compactions, how many there were, and their summaries."""

    recording: Recording
    compactions: int
    summaries: tuple[PlacedSummary, ...] = ()


def compact_recording(recording: Recording, model: Model, config: CompactionConfig) -> CompactedRecording:
    """Decides before each call as a session does, with the short TTL; the newest input is never compacted.

    The recording must only grow: compactions by the recorded client cannot be undone here.
    """
    fold = _Fold(recording, model, config)
    calls = tuple(fold.compact_call(call) for call in recording.calls)
    return CompactedRecording(msgspec.structs.replace(recording, calls=calls), fold.count, tuple(fold.summaries))


class _Fold:
    """The conversation so far: the full history, and the part of it that the next request sends."""

    def __init__(self, recording: Recording, model: Model, config: CompactionConfig) -> None:
        self._model = model
        self._config = config
        self._history: list[HistoryEntry] = []
        self._view: list[HistoryEntry] = []
        self._sizes: dict[int, int] = {}
        self._facts = FactsReader()
        self._facts_read_until = 0
        self._monitor = decision.CompactionMonitor()
        self._last_at: float | None = None
        self._calls = 0
        self._prefix_tokens = self._count_prefix_tokens(recording)
        self._summary_tokens_max = 0
        self.count = 0
        self.summaries: list[PlacedSummary] = []

    def _count_prefix_tokens(self, recording: Recording) -> int:
        tools = (f"{tool.name}{tool.description}{tool.input_schema_json}" for tool in recording.tools)
        estimated = sum(map(self._tokens, (recording.system, *tools)))
        first = recording.calls[0].added if recording.calls else ()
        first_tokens = sum(self._tokens(extract_plain_text(entry.content)) for entry in first)
        return max(estimated, (recording.first_prompt_tokens or 0) - first_tokens)

    def _tokens(self, text: str) -> int:
        return count_tokens(text, self._model.tokens_factor)

    def _enter(self, entry: HistoryEntry) -> HistoryEntry:
        numbered = msgspec.structs.replace(entry, number=len(self._history) + 1)
        self._history.append(numbered)
        self._view.append(numbered)
        self._sizes[numbered.number] = self._tokens(extract_plain_text(numbered.content))
        return numbered

    def compact_call(self, call: RecordedCall) -> RecordedCall:
        """The call as it would have been sent, after a compaction if one is due."""
        unsent = len(self._view)
        added = tuple(self._enter(entry) for entry in call.added)
        compacted_call = msgspec.structs.replace(call, added=added, kept_entries=None)
        if (trigger := self._find_trigger(call.at)) is not None and not self._compact(unsent, trigger):
            self._monitor = msgspec.structs.replace(self._monitor, calls_to_wait=decision.WAIT_CALLS)
        elif trigger is not None:
            compacted_call = msgspec.structs.replace(call, added=tuple(self._view), kept_entries=0)
        self._monitor = decision.observe_call(self._monitor, Usage(input=self._prompt_tokens()))
        self._last_at, self._calls = call.at, self._calls + 1
        if call.reply is not None:
            self._enter(call.reply)
        return compacted_call

    def _find_trigger(self, at: float) -> CompactionTrigger | None:
        if self._last_at is None:
            return None
        return decision.find_compaction_trigger(self._outlook(at), self._monitor, self._config)

    def _prompt_tokens(self) -> int:
        return self._prefix_tokens + sum(self._view_sizes())

    def _view_sizes(self) -> list[int]:
        return [self._sizes[entry.number] for entry in self._view]

    def _outlook(self, at: float) -> decision.CompactionOutlook:
        price = find_newest_price(self._model, self._prompt_tokens())
        unit = price.input or Decimal(1)
        ttl_seconds = self._model.cache.ttls_seconds.get(SHORT_TTL, 0)
        return decision.CompactionOutlook(
            prompt_tokens=self._prompt_tokens(),
            stable_prefix_tokens=self._prefix_tokens,
            window_tokens=self._model.context_tokens_max,
            output_tokens_max=self._model.output_tokens_max,
            # The prior minus the calls so far, but at least as many again as were made.
            expected_calls=max(CALLS_EXPECTED - self._calls, self._calls, 1.0),
            is_cache_cold=self._last_at is not None and at - self._last_at >= ttl_seconds,
            rates=CacheRates(price.cache_read / unit, price.cache_write_5m / unit),
            calls=self._monitor.calls,
            sent_tokens=self._monitor.sent_tokens,
            base_tokens=self._monitor.base_tokens,
        )

    def _keep(self, files: WorkingSet, last: int, sizes: dict[int, int]) -> list[HistoryEntry]:
        """The entries of the view that stay after a compaction up to message `last`; `sizes` are updated."""
        texts = {result.tool_use_id: result.text for result in files.cleared}
        kept = []
        for entry in self._view:
            if entry.number in files.numbers:
                cleared = clear_results(entry, texts)
                sizes[entry.number] = self._tokens(extract_plain_text(cleared.content))
                kept.append(cleared)
            elif entry.number > last:
                kept.append(entry)
        return kept

    def _compact(self, unsent: int, trigger: CompactionTrigger) -> bool:
        sizes = self._view_sizes()
        summary_max, tail_max, files_max = decision.split_token_budget(sum(sizes), self._config)
        groups_tokens_max = decision.recent_groups_tokens_max(trigger, self._monitor, self._config)
        cut = choose_cut(
            self._view,
            sizes,
            tail_tokens_max=tail_max,
            unsent=unsent,
            covered_until=self._facts_read_until,
            groups_tokens_max=groups_tokens_max,
        )
        if cut is None:
            return False
        files = choose_working_set(self._view, sizes, cut, tokens_max=files_max if groups_tokens_max else 0)
        kept_sizes = dict(self._sizes)
        recent = self._keep(files, cut.last, kept_sizes)
        removed = sum(sizes) - summary_max - sum(kept_sizes[entry.number] for entry in recent)
        if removed < decision.removed_tokens_min(self._prompt_tokens(), trigger):
            return False
        self._sizes = kept_sizes
        text = "\n".join(extract_plain_text(entry.content) for entry in recent)
        for entry in self._history[self._facts_read_until : cut.last]:
            self._facts.read(entry)
        self._facts_read_until = cut.last
        self._summary_tokens_max = max(self._summary_tokens_max, summary_max)
        summary = build_summary(
            self._facts.facts(),
            tokens_max=self._summary_tokens_max,
            count=self._tokens,
            kept=KeptMessages(text, count_requests(recent)),
        )
        self.summaries.append(PlacedSummary(summary, self._calls, cut.last))
        content = (Text(render_summary(summary, recall=False)), Text(render_resume_note(recent=bool(recent))))
        self._sizes[0] = sum(self._tokens(part.text) for part in content)
        self._view = [HistoryEntry("user", content, layer=SUMMARY_LAYER), *recent]
        self.count += 1
        self._monitor = decision.CompactionMonitor(count=self.count, base_tokens=self._prompt_tokens())
        return True
