"""Audit of recorded sessions: what they spent and on what, what cache misses cost, and what a better plan would cost.

Every conversation is audited on its own: an estimate depends on nothing but the conversation, the catalog and the
assumptions named here, so that a session gets the same figures whatever else is audited with it.
"""

import itertools
import sys
import threading
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from decimal import Decimal
from hashlib import blake2b
from multiprocessing import get_context
from pathlib import Path

import msgspec

from holdfast.catalog.lookup import Models, find_model_or_none, price_at, utc_date
from holdfast.catalog.schema import Model, Price
from holdfast.economics.cost import cost_usd
from holdfast.ledger.cache.verdicts import EXPECTED_KINDS, UNEXPECTED_KINDS, Verdict
from holdfast.ledger.money import to_picodollars
from holdfast.ledger.spending import (
    EVERYTHING,
    FIRST_PROMPT,
    KINDS,
    REREAD_STEPS,
    AuditScope,
    CauseSums,
    ContextPoint,
    ConversationSpending,
    KindSums,
    SourceSums,
    format_day,
)
from holdfast.ledger.spending_actions import COMPACTED_TOKENS, COMPACTION_SIZES, SUMMARY_TOKENS
from holdfast.planning.adaptive_policy import AdaptivePolicy
from holdfast.planning.learned import NOTHING_LEARNED
from holdfast.replay.cache_misses import count_losses, infer_ttls_or_default, judge_calls
from holdfast.replay.client_transcripts import read_client_file
from holdfast.replay.file_audits import BROKEN_LINES_REPORTED_MAX, BrokenLine, FileAudit, SharedConversation
from holdfast.replay.recording import CallBill, RecordedCall, Recording, SourceSize, Transcript, deduplicate_transcripts
from holdfast.replay.size_estimate import (
    PaidCall,
    has_long_ttl,
    has_plannable_cache,
    price_optimum,
    price_plans,
    reduce_to_sizes,
)
from holdfast.types.prompt import Ttl
from holdfast.types.usage import Usage

HOUR_SECONDS = 3_600.0
SHORT_TTL_SECONDS = 300.0
CONTEXT_POINTS_MAX = 400
"""Points of a curve of context growth: more than a chart has pixels for."""

PARALLEL_BYTES_MIN = {"fork": 4_000_000, "spawn": 30_000_000}
"""Below this, starting processes takes longer than it saves: a spawned one has to load all modules first."""

FILES_A_TASK = 16

_LOSING_KINDS = frozenset((*EXPECTED_KINDS, *UNEXPECTED_KINDS))


class _Rates(msgspec.Struct, frozen=True):
    """A price, and the same in picodollars per token, in the order of `KINDS`."""

    price: Price
    pico: tuple[int, ...]
    input: int


class PriceLookup:
    """Rows and prices by the names that clients recorded; remembers what it looked up."""

    def __init__(self, models: Models) -> None:
        self.models = models
        self._rows: dict[str, Model | None] = {}
        self._limits: dict[str, tuple[int, ...]] = {}
        self._rates: dict[tuple[str, int, int], _Rates] = {}

    def find_row(self, name: str) -> Model | None:
        """The catalog row of a model, or None if the catalog does not know or price it."""
        if name not in self._rows:
            row = find_model_or_none(name, self.models)
            self._rows[name] = row if row is not None and row.prices else None
            limits = {price.prompt_tokens_over for price in row.prices} if row is not None else set()
            self._limits[name] = tuple(sorted(limits))
        return self._rows[name]

    def find_rates(self, name: str, at: float, tokens: int) -> _Rates | None:
        """The price of the day, for a prompt of this size; None if there is none."""
        row = self.find_row(name)
        if row is None:
            return None
        # A tier applies above its size: `bisect_right(limits, tokens - 1)` counts the limits that are exceeded.
        key = (name, int(at // 86_400), bisect_right(self._limits[name], tokens - 1))
        if key not in self._rates:
            price = price_at(row, utc_date(at), tokens)
            # Dollars per million tokens with at most six decimals: a whole number of picodollars per token.
            pico = {kind: round(getattr(price, kind).scaleb(6)) for kind in KINDS[:6]}
            self._rates[key] = _Rates(price, (*pico.values(), pico["output"], 0), pico["input"])
        return self._rates[key]


class _AuditedCall(msgspec.Struct, frozen=True):
    """A call as it was paid for. A call without a catalog row or price counts as free."""

    call: RecordedCall
    usage: Usage
    rates: _Rates | None
    ttl: Ttl
    counted: bool


def audit_transcript(
    transcript: Transcript, prices: PriceLookup, scope: AuditScope = EVERYTHING
) -> ConversationSpending | None:
    """The sums of one conversation; None if no call is in the scope."""
    calls, before = transcript.recording.calls, transcript.previous_call
    all_calls = calls if before is None else (before, *calls)
    ttls = infer_ttls_or_default(all_calls)
    audited = [
        _AuditedCall(
            call,
            usage := call.usage or Usage(),
            prices.find_rates(call.model or "", call.at, usage.tokens_sent),
            ttls[index],
            call is not before and scope.includes(call.at, call.model or ""),
        )
        for index, call in enumerate(all_calls)
    ]
    counted = [entry for entry in audited if entry.counted]
    if not counted:
        return None
    result = ConversationSpending(
        session=transcript.session,
        project=transcript.project,
        client=transcript.client,
        is_subagent=transcript.is_subagent,
        started_at=counted[0].call.at,
        ended_at=counted[-1].call.at,
        compactions=sum(entry.call.kept_entries == 0 for entry in counted),
        largest_prompt=max(entry.usage.tokens_sent for entry in counted),
        groups={},
        causes={},
    )
    bills = (*([None] if before is not None else []), *(transcript.bills or (None,) * len(calls)))
    _sum_calls(result, audited, bills, prices)
    if transcript.cache_storage_usd:
        # Storage of explicit caches, and pings, are paid under any plan.
        last = counted[-1]
        key = f"{format_day(last.call.at)} {last.call.model or ''}"
        result.groups[key].pico[-1] += to_picodollars(transcript.cache_storage_usd)
    _track_context(result, audited)
    _plan_models(result, counted, prices, ranges=scope.ranges)
    _apply_estimates(result, [bill for entry, bill in zip(audited, bills, strict=True) if entry.counted and bill])
    stored = to_picodollars(transcript.cache_storage_usd)
    result.planned += stored
    if result.unplanned is not None:
        result.unplanned += stored - to_picodollars(transcript.keep_alive_usd)
        if result.unplanned < result.planned:
            result.overspent = _explain_overspending(result, counted, transcript.keep_alive_usd)
    if result.plans is not None and result.optimum is not None:
        result.plans = (result.plans[0] + stored, result.plans[1] + stored)
        result.optimum += stored
    return result


def _sum_calls(
    result: ConversationSpending,
    audited: Sequence[_AuditedCall],
    bills: Sequence[CallBill | None],
    prices: PriceLookup,
) -> None:
    ttl_saved = 0
    verdicts = _judge_audited(audited, prices) if not any(bills) else []
    for index, entry in enumerate(audited):
        if not entry.counted:
            continue
        call, usage, rates = entry.call, entry.usage, entry.rates
        sums = result.groups.setdefault(f"{format_day(call.at)} {call.model or ''}", KindSums())
        tokens = (*_list_prompt_tokens(usage), usage.output - call.thinking_tokens, call.thinking_tokens, 0)
        sums.calls += 1
        sums.hits += usage.cache_read > 0
        for kind, count in enumerate(tokens):
            sums.tokens[kind] += count
        bill = bills[index]
        if rates is None or (bill is not None and bill.is_unpriced):
            sums.unpriced_calls += 1
            sums.unpriced_tokens += usage.tokens_sent + usage.output
        else:
            spent = 0
            for kind, count in enumerate(tokens):
                cost = count * rates.pico[kind]
                sums.pico[kind] += cost
                spent += cost
            sums.uncached += usage.tokens_sent * rates.input + usage.output * rates.pico[5]
            if bill is not None:
                # The ledger has the price at the time of the call; what differs from today's catalog is `other`.
                sums.pico[-1] += to_picodollars(bill.cost_usd) - spent
        cause, lost_tokens, lost = _find_loss(bill, verdicts[index] if verdicts else None)
        if cause:
            sums.misses += 1
            sums.lost += lost
            result.causes.setdefault(cause, CauseSums()).add(CauseSums(1, lost_tokens, lost))
        if (
            index
            and rates is not None
            and audited[index - 1].ttl == "5m"
            and has_long_ttl(prices.find_row(call.model or ""))
        ):
            ttl_saved += _price_longer_ttl(audited[index - 1], entry, lost if "expired" in cause else 0)
    result.longer_ttl = ttl_saved


def _list_prompt_tokens(usage: Usage) -> tuple[int, ...]:
    """In the order of `KINDS`."""
    return (usage.cache_read, usage.cache_write_5m, usage.cache_write_1h, usage.cache_write_other, usage.input)


def _judge_audited(audited: Sequence[_AuditedCall], prices: PriceLookup) -> list[Verdict | None]:
    calls = [entry.call for entry in audited]
    rows = [prices.find_row(entry.call.model or "") if entry.rates is not None else None for entry in audited]
    verdicts = judge_calls(calls, rows)
    blamed = [row for row, verdict in zip(rows, verdicts, strict=True) if verdict and verdict.kind == "provider_side"]
    if not blamed or not has_long_ttl(row := blamed[0]):
        return verdicts
    # Before the provider is blamed: the client, if this conversation is mostly lost after messages of the user.
    assert row is not None
    losses = count_losses(Recording("", "", (), tuple(calls)), row.cache)
    return judge_calls(calls, rows, client_losses=losses) if losses.is_likely_client else verdicts


def _find_loss(bill: CallBill | None, verdict: Verdict | None) -> tuple[str, int, int]:
    """The cause of what a call lost, the tokens, and the cost; from the ledger if it has one."""
    if bill is not None:
        if not bill.lost_usd:
            return "", 0, 0
        return f"{bill.cause}\t{bill.component}", bill.lost_tokens, to_picodollars(bill.lost_usd)
    if verdict is None or verdict.kind not in _LOSING_KINDS or not verdict.lost_usd:
        return "", 0, 0
    return f"{verdict.kind}\t{verdict.component or ''}", verdict.lost_tokens, to_picodollars(verdict.lost_usd)


def _price_longer_ttl(before: _AuditedCall, entry: _AuditedCall, lost: int) -> int:
    """What a TTL of one hour would have saved on a call: its loss, less the surcharge on what it still writes."""
    assert entry.rates is not None
    pico, usage = entry.rates.pico, entry.usage
    expired_within_hour = lost > 0 and entry.call.at - before.call.at < HOUR_SECONDS
    rewritten = min(before.usage.tokens_sent, usage.tokens_sent) - usage.cache_read if expired_within_hour else 0
    still_written = max(0, usage.cache_write_5m - rewritten)
    return (lost if expired_within_hour else 0) - still_written * (pico[2] - pico[1])


def _track_context(result: ConversationSpending, audited: Sequence[_AuditedCall]) -> None:
    """How often each part of the context was sent again, from which source it came, and what a compaction saves.

    The provider's count of what a call added is spread over the added parts by their size in bytes.
    """
    tracker = _ContextTracker()
    compactions = [_TriedCompaction(size) for size in COMPACTION_SIZES]
    for entry in audited:
        tracker.send(entry)
        if entry.rates is not None:
            for compaction in compactions:
                compaction.send(entry, tracker.previous_tokens, restarted=tracker.restarted)
    tracker.close()
    result.sources = {name: sums for name, sums in tracker.sources.items() if sums.tokens or sums.resent_tokens}
    result.context, result.resent = tracker.context, tracker.resent
    result.compacted = [compaction.saved for compaction in compactions]


class _ContextTracker:
    """The context as a list of segments, each with the call that first sent it."""

    def __init__(self) -> None:
        self.sources: dict[str, SourceSums] = {}
        self.context = [0.0] * len(REREAD_STEPS)
        self.resent = [0.0] * len(REREAD_STEPS)
        self.previous_tokens = 0
        self.restarted = False
        self._segments: list[tuple[int, int]] = []  # Tokens, and the number of the call that first sent them.
        self._in_context: dict[str, float] = {}
        self._sent = 0
        self._calls = 0

    def send(self, entry: _AuditedCall) -> None:
        self.previous_tokens, sent = self._sent, entry.usage.tokens_sent
        self.restarted = entry.call.kept_entries is not None
        if self._calls and (self.restarted or sent < self._sent):
            self._shrink(sent)
        if entry.counted:
            self._charge(entry)
        added = sent - self._sent
        if added > 0:
            self._segments.append((added, self._calls))
            self._attribute(entry.call.sources, added, counted=entry.counted)
        self._sent = sent
        self._calls += 1

    def _shrink(self, sent: int) -> None:
        """Segments at the end are gone; after a compaction all but the first prompt is."""
        kept = min(sent, self._segments[0][0] if self._segments else 0) if self.restarted else sent
        total = sum(tokens for tokens, _ in self._segments)
        while self._segments and total > kept:
            tokens, since = self._segments.pop()
            total -= tokens
            if total < kept:
                self._segments.append((kept - total, since))
                tokens -= kept - total
                total = kept
            self._count_segment(tokens, self._calls - 1 - since)
        before, first = self._sent or 1, self._in_context.get(FIRST_PROMPT, 0.0)
        first = min(first, kept)
        # What is left of the rest is spread over its sources as before.
        share = max(0.0, kept - first) / max(1.0, before - first)
        self._in_context = {name: tokens * share for name, tokens in self._in_context.items()}
        self._in_context[FIRST_PROMPT] = first
        self._sent = kept

    def _charge(self, entry: _AuditedCall) -> None:
        """What the context cost that this call sends again: at the price per token of its whole prompt."""
        sent = entry.usage.tokens_sent
        if not sent:
            return
        price = 0.0
        if entry.rates is not None:
            price = sum(map(int.__mul__, _list_prompt_tokens(entry.usage), entry.rates.pico)) / sent
        for name, tokens in self._in_context.items():
            if tokens:
                sums = self.sources.setdefault(name, SourceSums())
                sums.resent_tokens += tokens
                sums.pico += tokens * price

    def _attribute(self, sources: Sequence[SourceSize], added: int, *, counted: bool) -> None:
        if not self._calls or not sources:
            name = FIRST_PROMPT if not self._calls else "(not recorded)"
            sources = (SourceSize(name, 1, 1),)
        total = sum(source.bytes for source in sources) or 1
        for source in sources:
            tokens = added * source.bytes / total
            self._in_context[source.name] = self._in_context.get(source.name, 0.0) + tokens
            if counted:
                self.sources.setdefault(source.name, SourceSums()).add(SourceSums(source.results, tokens))

    def _count_segment(self, tokens: int, times: int) -> None:
        step = bisect_right(REREAD_STEPS, times) - 1
        self.context[step] += tokens
        self.resent[step] += tokens * times

    def close(self) -> None:
        for tokens, since in self._segments:
            self._count_segment(tokens, self._calls - 1 - since)


class _TriedCompaction:
    """What compacting at a size would have saved so far, and how many tokens the prompts would have lost by it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._first: int | None = None
        self._removed = 0
        self.saved = 0

    def send(self, entry: _AuditedCall, previous_tokens: int, *, restarted: bool) -> None:
        assert entry.rates is not None
        usage, pico, sent = entry.usage, entry.rates.pico, entry.usage.tokens_sent
        if self._first is None:
            self._first = sent
        if restarted or sent < previous_tokens:
            # The client compacted, or the user went back: what was removed before is gone anyway.
            self._removed = 0
        if entry.counted and self._removed:
            self.saved += self._price_removed(usage, pico, min(previous_tokens, sent))
        kept = self._first + COMPACTED_TOKENS
        if sent - self._removed > self._size > kept:
            removed = sent - self._removed - kept
            if entry.counted:
                summary = SUMMARY_TOKENS * pico[5] + COMPACTED_TOKENS * pico[1]
                self.saved -= (sent - self._removed) * pico[0] + summary
            self._removed += removed

    def _price_removed(self, usage: Usage, pico: tuple[int, ...], old_tokens: int) -> int:
        """What the removed tokens cost in this call: read as far as it read, and at the price of the rest otherwise."""
        read_share = min(1.0, usage.cache_read / old_tokens) if old_tokens else 1.0
        unread = usage.tokens_sent - usage.cache_read
        unread_price = sum(map(int.__mul__, _list_prompt_tokens(usage)[1:], pico[1:])) / unread if unread else 0.0
        return round(self._removed * (read_share * pico[0] + (1 - read_share) * unread_price))


def _plan_models(
    result: ConversationSpending, counted: Sequence[_AuditedCall], prices: PriceLookup, *, ranges: bool
) -> None:
    """What our plan costs, replies included. Every model has its own cache, so each is planned separately."""
    by_model: dict[str, list[_AuditedCall]] = {}
    for entry in counted:
        by_model.setdefault(entry.call.model or "", []).append(entry)
    low = high = optimum = 0
    for name, entries in by_model.items():
        row = prices.find_row(name)
        priced = [entry for entry in entries if entry.rates is not None]
        if row is None or not has_plannable_cache(row):
            spent = sum(_price_call(entry) for entry in priced)
            result.planned += spent
            low, high, optimum = low + spent, high + spent, optimum + spent
            continue
        result.takes_breakpoints = True
        sized = reduce_to_sizes(
            (PaidCall(entry.call, entry.rates.price, entry.ttl) for entry in priced if entry.rates), row.cache
        )
        replies = sum(entry.usage.output * entry.rates.pico[5] for entry in priced if entry.rates)
        # No provider documents whether a longer TTL also keeps the shorter prefix before it. The estimate assumes what
        # the catalog's row says, as the planner itself does; the range has both.
        rules = [row.cache]
        if ranges:
            rules.append(msgspec.structs.replace(row.cache, ttl_upgrade=not row.cache.ttl_upgrade))
        costs = price_plans(sized, row, ((rule, AdaptivePolicy(NOTHING_LEARNED)) for rule in rules))
        picos = [to_pico_sum(cost) + replies for cost in costs]
        result.planned += picos[0]
        low, high = low + min(picos), high + max(picos)
        if ranges:
            best = msgspec.structs.replace(row.cache, ttl_upgrade=True)
            optimum += round(price_optimum(sized, row, best) * 1e12) + replies
    if ranges:
        result.plans, result.optimum = (low, high), min(optimum, low)


def _apply_estimates(result: ConversationSpending, bills: Sequence[CallBill]) -> None:
    """What the gateway's planner recorded with each call takes the place of what sizes and times let us guess.

    It had the bytes: it knows that a prompt changes, and what of that a rewrite avoids.
    """
    if not any(bill.rewrite for bill in bills):
        return
    planned = unplanned = 0
    for bill in bills:
        planned += to_picodollars(bill.rewrite.with_usd if bill.rewrite else bill.cost_usd)
        unplanned += to_picodollars(bill.rewrite.without_usd if bill.rewrite else bill.cost_usd)
    result.planned, result.unplanned = planned, unplanned
    if result.plans is not None and result.optimum is not None:
        result.plans, result.optimum = (planned, planned), min(result.optimum, planned, unplanned)


def _explain_overspending(
    result: ConversationSpending, counted: Sequence[_AuditedCall], keep_alive_usd: Decimal
) -> str:
    """Why our plan costs more than the requests as the client wrote them."""
    assert result.unplanned is not None
    overspent = result.planned - result.unplanned
    if to_picodollars(keep_alive_usd) >= overspent:
        return f"keep-alive pings and explicit caches cost ${keep_alive_usd:.4f}"
    if len(counted) == 1:
        return "a single call: nothing reads what it writes to the cache"
    for cause in ("tail_rewritten", "prefix_changed"):
        calls = sum(sums.calls for key, sums in result.causes.items() if key.partition("\t")[0] == cause)
        if calls:
            return f"{calls} of {len(counted)} calls changed what had been written to the cache ({cause})"
    pauses = [later.call.at - entry.call.at for entry, later in itertools.pairwise(counted)]
    if max(pauses) < SHORT_TTL_SECONDS and any(entry.usage.cache_write_1h for entry in counted):
        return "it wrote for an hour, and no pause was longer than five minutes"
    return "too little of what it writes to the cache is read again"


def to_pico_sum(usd: Decimal) -> int:
    """Picodollars of a sum over calls, which may exceed what one call may cost."""
    return round(usd.scaleb(12))


def _price_call(entry: _AuditedCall) -> int:
    return to_pico_sum(cost_usd(entry.usage, entry.rates.price)) if entry.rates is not None else 0


def trace_context(transcript: Transcript) -> tuple[ContextPoint, ...]:
    """The prompt sizes of a conversation over time."""
    calls = transcript.recording.calls
    step = max(1, -(-len(calls) // CONTEXT_POINTS_MAX))
    points = ((call.at, call.usage or Usage()) for call in calls[::step])
    return tuple(ContextPoint(at, usage.tokens_sent, usage.cache_read) for at, usage in points)


def audit_file(file: Path, prices: PriceLookup, scope: AuditScope) -> FileAudit:
    result, unknown, transcripts = FileAudit([]), Counter[str](), list[Transcript]()
    broken = list[BrokenLine]()
    for item in read_client_file(file, unknown=unknown):
        if isinstance(item, Transcript):
            transcripts.append(item)
        else:
            result.broken_count += 1
            if len(broken) < BROKEN_LINES_REPORTED_MAX:
                broken.append(item)
    result.call_ids, result.broken, result.unknown = hash_call_ids(transcripts), broken, dict(unknown)
    if len(set(array("Q", result.call_ids))) * 8 < len(result.call_ids):
        transcripts = deduplicate_transcripts(transcripts)
    audited = (audit_transcript(transcript, prices, scope) for transcript in transcripts)
    result.conversations = [conversation for conversation in audited if conversation is not None]
    return result


def audit_files(
    files: Sequence[Path], models: Models, scope: AuditScope = EVERYTHING, *, workers: int = 1
) -> Iterator[FileAudit]:
    """One result per file, in order. Calls that several files repeat are counted in each: see `find_repeated_files`."""
    size, method = sum(file.stat().st_size for file in files), _choose_start_method()
    if workers < 2 or size < PARALLEL_BYTES_MIN[method]:
        prices = PriceLookup(models)
        return (audit_file(file, prices, scope) for file in files)
    chunks = [files[at : at + FILES_A_TASK] for at in range(0, len(files), FILES_A_TASK)]
    pool = ProcessPoolExecutor(workers, get_context(method), _start_worker, (models, scope))
    # The processes start here and not with the first result: whoever shows progress starts a thread before that.
    return _decode_audits(pool, pool.map(_audit_chunk, chunks))


def _decode_audits(pool: ProcessPoolExecutor, chunks: Iterable[bytes]) -> Iterator[FileAudit]:
    decode = msgspec.msgpack.Decoder(list[FileAudit]).decode
    with pool:
        for encoded in chunks:
            yield from decode(encoded)


def _choose_start_method() -> str:
    # A fork has all modules loaded, which takes a new interpreter longer than it takes to audit 10 MB. It would also
    # copy the locks that other threads hold (progress is shown by one), and macOS does not support it after threads.
    return "fork" if sys.platform == "linux" and threading.active_count() == 1 else "spawn"


_worker: tuple[PriceLookup, AuditScope]


def _start_worker(models: Models, scope: AuditScope) -> None:
    global _worker  # A pool has no other place for what its tasks share.
    _worker = PriceLookup(models), scope


def _audit_chunk(files: Sequence[Path]) -> bytes:
    return msgspec.msgpack.encode([audit_file(file, *_worker) for file in files])


def audit_together(files: Iterable[Path], models: Models, scope: AuditScope) -> list[SharedConversation]:
    """Audit files that share calls, each call once."""
    items = (item for file in files for item in read_client_file(file))
    transcripts = deduplicate_transcripts(item for item in items if isinstance(item, Transcript))
    prices, shared = PriceLookup(models), []
    for transcript in transcripts:
        if (spending := audit_transcript(transcript, prices, scope)) is not None:
            shared.append(SharedConversation(transcript.recording.started_at, transcript.recording.id, spending))
    return shared


def hash_call_ids(transcripts: Iterable[Transcript]) -> bytes:
    """Eight bytes per call id: enough to find the calls that two files share, at a tenth of the memory."""
    digests = array("Q")
    for transcript in transcripts:
        for id in transcript.call_ids:
            digests.frombytes(blake2b(id.encode(errors="surrogatepass"), digest_size=8).digest())
    return digests.tobytes()
