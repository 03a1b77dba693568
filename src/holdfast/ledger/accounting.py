"""Session accounting: turns each event, once, into call entries with cost and verdict.

The state carried from event to event does not grow with the session. A store records events as it writes them;
`iter_entries` does the same for a whole log.
"""

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

import msgspec
from msgspec.structs import replace

from holdfast.catalog.lookup import Models, find_model_or_none, is_externally_cached, price_at, utc_date
from holdfast.catalog.schema import Model
from holdfast.economics.cost import uncached_cost_usd
from holdfast.events.log import Event
from holdfast.events.payloads.cache import CacheControlsApplied, CachePinged
from holdfast.events.payloads.calls import (
    UNPRICED,
    GatewayForwarded,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    ModelSwitched,
    RequestPrepared,
)
from holdfast.events.payloads.compaction import CompactionUndone, ContextCompacted
from holdfast.events.payloads.recovery import ProviderLimited, ViewRepair
from holdfast.events.payloads.session import EpochOpened, MessageAppended, MessagesWithdrawn, SessionStarted
from holdfast.events.payloads.union import AnyPayload
from holdfast.layers.assemble import PINNED_LAYERS
from holdfast.ledger.cache.verdicts import (
    CachedPrefix,
    PrefixEnd,
    PreparedRequest,
    Verdict,
    derive_cached_prefix,
    judge_call,
)
from holdfast.ledger.money import Payer, build_payer, clamp_event, clamp_integer, round_usd
from holdfast.providers.cache_inputs import has_image
from holdfast.types.prompt import Plan, PrefixChange
from holdfast.types.reply import ReplySource
from holdfast.types.request_buffer import PrefixDigest
from holdfast.types.usage import Usage, exclude_usage

# Requests of one session that can be in progress at once; older ones are taken as never answered. It keeps the state
# bounded when a process dies between `llm.call_started` and the end of the call.
REQUESTS_IN_PROGRESS_MAX = 64

# Cached prefixes of earlier calls that are remembered besides that of the last one: a client that alternates between
# prompts, or leaves out its breakpoints once, can still read them.
EARLIER_PREFIXES_MAX = 8

# Payloads that change the accounting state; all other events leave it unchanged.
ACCOUNTED_PAYLOADS = (
    SessionStarted,
    EpochOpened,
    ModelSwitched,
    CacheControlsApplied,
    MessagesWithdrawn,
    MessageAppended,
    RequestPrepared,
    LlmCallStarted,
    CachePinged,
    LlmCallCompleted,
    LlmCallFailed,
    ViewRepair,
    ProviderLimited,
    ContextCompacted,
    CompactionUndone,
    GatewayForwarded,
)

# Layers that are FROZEN or pinned for an epoch; `nonce` is inserted by a cache invalidation.
STABLE_LAYERS = frozenset({"tools", "nonce", *PINNED_LAYERS})


class StablePrefix(msgspec.Struct, frozen=True):
    """The blocks before the first one that grows or changes: their number, their end, and the prompt's total bytes."""

    blocks: int = 0
    end: int = 0
    total: int = 0

    @property
    def share(self) -> float:
        # Bytes stand in for tokens here: the log has exact byte offsets, but no token count per block.
        return min(1.0, max(0.0, self.end / self.total)) if self.total > 0 else 0.0


class CallRecord(msgspec.Struct, frozen=True):
    """`blocks_shared` of the previous call's `blocks_before` blocks are also in this call, byte for byte."""

    number: int
    at: float
    request_id: str
    model: str
    usage: Usage
    cost_usd: Decimal
    latency_ms: int
    completed: bool
    blocks_shared: int
    blocks_before: int
    changed_layer: str | None
    changed_byte: int | None

    @property
    def is_prefix_unchanged(self) -> bool:
        return self.blocks_shared >= self.blocks_before


class LedgerEntry(msgspec.Struct, frozen=True):
    """A call that a provider charged for: what was planned, what it cost, and its verdict.

    `uncached_usd` is what it would have cost without a cache, or its actual cost where no price is known;
    `prompt_digest` is the digest of everything it sent. A call has no verdict if it was interrupted, if no usage was
    reported, or if the catalog does not know the model; nor if the completion cache answered it, which costs nothing
    and leaves every provider cache unchanged. `stable_write_tokens` tokens were written for the tools and the stable
    system prompt.
    """

    event_id: str
    turn_id: str | None
    provider: str
    record: CallRecord
    uncached_usd: Decimal
    pricing_version: str = ""
    stop_reason: str = ""
    retries: int = 0
    plan: Plan = Plan()
    prompt_digest: str = ""
    verdict: Verdict | None = None
    source: ReplySource = "provider"
    completion_key: str = ""
    is_completion_cached: bool = False
    stable_write_tokens: int = 0
    payer: Payer = Payer()
    first_byte_ms: int | None = None

    @property
    def is_prefix_held(self) -> bool | None:
        """Whether the call began with what was cached before it, byte for byte; None if its request is not stored.

        Bytes that change after the last breakpoint were never cached: the verdict decides where there is one.
        """
        if self.source == "provider" and not self.prompt_digest:
            return None  # Pruned.
        if self.verdict is not None and self.verdict.evidence is not None:
            return self.verdict.kind == "held" or self.verdict.evidence.bytes != "changed"
        return self.record.is_prefix_unchanged

    @property
    def is_unpriced(self) -> bool:
        """Whether no price was known for its model when it was recorded: its cost is unknown, not zero."""
        return self.pricing_version == UNPRICED


class AccountingState(msgspec.Struct, frozen=True):
    """The accounting state of a session: everything needed to record its next call.

    The latest request has `blocks` blocks and the digest `prompt_digest`; the latest answered one had `answered_blocks`
    blocks. A request that failed without usage is stored as `refused_request`: the next one is compared with what the
    provider had accepted before it. An `is_simulated` session costs no real money.
    """

    call_count: int = 0
    blocks: int = 0
    prompt_digest: str = ""
    answered_blocks: int = 0
    has_images: bool = False
    planned_change: tuple[str, str] | None = None
    latest_request: PreparedRequest | None = None
    in_progress: tuple[tuple[str, PreparedRequest], ...] = ()
    cached_prefix: CachedPrefix | None = None
    earlier_prefixes: tuple[CachedPrefix, ...] = ()
    refused_request: PreparedRequest | None = None
    is_simulated: bool = False
    stable_prefix: StablePrefix = StablePrefix()
    payer: Payer = Payer()


def record_event(state: AccountingState, event: Event, models: Models) -> tuple[AccountingState, LedgerEntry | None]:
    """The state after one more event, and the entry of the call that the event ended, if it ended one."""
    event = clamp_event(event)
    match event.payload:
        case RequestPrepared() as payload:
            return _record_request(state, payload, event.at), None
        case LlmCallStarted(request_id=request_id) if state.latest_request is not None:
            in_progress = (*state.in_progress, (request_id, state.latest_request))[-REQUESTS_IN_PROGRESS_MAX:]
            return replace(state, in_progress=in_progress), None
        case LlmCallCompleted(source="completion-cache" | "summary") as payload:
            return _record_side_call(state, event, payload, models)
        case LlmCallCompleted() | LlmCallFailed() as payload:
            return _record_call_end(state, event, payload, models)
        case payload:
            return _record_other(state, payload), None


def iter_entries(events: Iterable[Event], models: Models) -> Iterator[LedgerEntry]:
    """The calls of a session in the order in which they ended, however they overlapped.

    Includes calls that were interrupted after the provider had begun to answer.
    """
    state = AccountingState()
    for event in events:
        if isinstance(event.payload, ACCOUNTED_PAYLOADS):
            state, entry = record_event(state, event, models)
            if entry is not None:
                yield entry


def _change_view(state: AccountingState, event: ContextCompacted | CompactionUndone, reason: str) -> AccountingState:
    return replace(
        state,
        planned_change=("compaction", reason),
        blocks=min(state.blocks, event.unchanged_blocks),
        answered_blocks=min(state.answered_blocks, event.unchanged_blocks),
        refused_request=None,
    )


def _record_other(state: AccountingState, payload: AnyPayload) -> AccountingState:
    match payload:
        case SessionStarted(simulated=simulated, user_id=user_id, team_id=team_id):
            payer = build_payer(user_id=user_id, team_id=team_id)
            return replace(state, is_simulated=state.is_simulated or simulated, payer=payer)
        case GatewayForwarded(key_id=key_id, user_id=user_id, team_id=team_id):
            return replace(state, payer=build_payer(key_id=key_id, user_id=user_id, team_id=team_id))
        case EpochOpened(epoch=epoch) if epoch > 1:
            return replace(state, planned_change=("epoch", f"epoch {epoch} was opened"))
        case ModelSwitched(after=after):
            # Caches are per model: the new one has no earlier prefix to compare with.
            return _forget_prefix(replace(state, planned_change=("model", f"the model was switched to {after}")))
        case CacheControlsApplied(reason=reason, new_prefix=new_prefix):
            updated = replace(state, planned_change=("settings", reason) if reason else state.planned_change)
            # A new prefix was requested, so there is no earlier one to compare with.
            return _forget_prefix(updated) if new_prefix else updated
        case ContextCompacted() as compacted:
            reason = f"messages {compacted.first} to {compacted.last} were compacted ({compacted.trigger})"
            return _change_view(state, compacted, reason)
        case CompactionUndone() as undone:
            return _change_view(state, undone, f"a compaction was undone (epoch {undone.epoch})")
        case MessagesWithdrawn() if state.blocks > state.answered_blocks:
            # The provider accepted no part of the refused request.
            return replace(state, blocks=state.answered_blocks)
        case ViewRepair(reason=reason):
            planned, blocks = ("recovery", f"the request was repaired: {reason}"), state.answered_blocks
            return replace(state, planned_change=planned, blocks=min(state.blocks, blocks), refused_request=None)
        case ProviderLimited(reason=reason) as limits if limits.breakpoints_max is not None or limits.shortest_ttl_only:
            return replace(state, planned_change=("recovery", f"breakpoints were changed: {reason}"))
        case MessageAppended(message=message) if not state.has_images and any(map(has_image, message.content)):
            return replace(state, has_images=True)
        case CachePinged() as ping if (
            ping.breakpoint_block is not None and state.cached_prefix and ping.sent_at >= state.cached_prefix.used_at
        ):
            # Every request that reads or writes an entry restarts its TTL, so a ping replaces what the last call left.
            cached = replace(
                state.cached_prefix,
                used_at=ping.sent_at,
                tokens=ping.usage.cache_read + ping.usage.cache_write,
                ttl=ping.ttl,
                breakpoint_block=ping.breakpoint_block,
                end=cached_end
                if (cached_end := state.cached_prefix.end).block == ping.breakpoint_block
                else PrefixEnd(),
            )
            return replace(state, cached_prefix=cached)
        case _:
            return state


def _forget_prefix(state: AccountingState) -> AccountingState:
    return replace(state, blocks=0, prompt_digest="", stable_prefix=StablePrefix(), refused_request=None)


def _record_request(state: AccountingState, prepared: RequestPrepared, at: float) -> AccountingState:
    digests = prepared.digests
    first_changed = digests[0] if digests and prepared.shared_blocks < state.blocks else None
    chain = digests[-1].digest if digests else state.prompt_digest
    stable_prefix = extend_stable_prefix(state.stable_prefix, prepared.shared_blocks, digests)
    prompt_bytes = digests[-1].end if digests else latest.prompt_bytes if (latest := state.latest_request) else 0
    known, dropped, is_return = _trace_prefixes(state, prepared)
    request = PreparedRequest(
        at=at,
        plan=prepared.plan,
        prompt_digest=chain,
        settings=dict(prepared.settings),
        blocks_before=state.blocks,
        blocks_shared=prepared.shared_blocks,
        changed_layer=first_changed.layer if first_changed else None,
        prefix_change=prepared.prefix_change or (PrefixChange(first_changed.start) if first_changed else None),
        planned_change=state.planned_change,
        has_images=state.has_images,
        stable_share=stable_prefix.share,
        payer=state.payer,
        end=_find_prefix_end(prepared, known),
        shared_bytes=digests[0].start if digests else prompt_bytes,
        prompt_bytes=prompt_bytes,
        known_digests=tuple(end.digest for end in known),
        dropped_digests=dropped,
        is_return=is_return,
    )
    if state.refused_request is not None:
        request = _compare_past_refusal(state.refused_request, request)
    return replace(
        state,
        latest_request=request,
        planned_change=None,
        blocks=prepared.shared_blocks + len(digests),
        prompt_digest=chain,
        stable_prefix=stable_prefix,
        refused_request=None,
    )


def _trace_prefixes(
    state: AccountingState, prepared: RequestPrepared
) -> tuple[tuple[PrefixEnd, ...], tuple[str, ...], bool]:
    """Which of the prefixes that earlier requests marked this one begins with, and which it no longer does.

    The last item says whether it begins with one that the request before did not have.
    """
    latest, shared = state.latest_request, prepared.shared_blocks
    cached = (state.cached_prefix,) if state.cached_prefix else ()
    requests = [request for _, request in state.in_progress] + ([latest] if latest else [])
    ends = {
        source.end.digest: source.end for source in (*state.earlier_prefixes, *cached, *requests) if source.end.digest
    }
    before = {*latest.known_digests, latest.end.digest} if latest else set[str]()
    known, is_return = [], False
    for digest, end in ends.items():
        if end.block < shared:
            is_known = digest in before
        else:
            at = end.block - shared
            is_known = at < len(prepared.digests) and prepared.digests[at].digest == digest
            is_return = is_return or (is_known and digest not in before)
        if is_known:
            known.append(end)
    dropped = before.intersection(ends).difference(end.digest for end in known)
    return tuple(known), tuple(dropped), is_return


def _find_prefix_end(prepared: RequestPrepared, known: Iterable[PrefixEnd]) -> PrefixEnd:
    """Where the marked prefix ends: at the last breakpoint, or with the prompt where there is none."""
    shared, digests = prepared.shared_blocks, prepared.digests
    breakpoints = prepared.plan.breakpoints
    block = max(point.block_index for point in breakpoints) if breakpoints else shared + len(digests) - 1
    if shared <= block < shared + len(digests):
        return PrefixEnd(block, digests[block - shared].digest, digests[block - shared].end)
    # A block of the request before: its digest is known only if a prefix ended there.
    return next((end for end in known if end.block == block), PrefixEnd())


def _compare_past_refusal(refused: PreparedRequest, request: PreparedRequest) -> PreparedRequest:
    """The request compared with the one before the refused one: a change made by the refused request still counts."""
    source = refused if refused.is_prefix_changed and refused.blocks_shared <= request.blocks_shared else request
    changes = {name: getattr(source, name) for name in ("blocks_shared", "changed_layer", "prefix_change")}
    return replace(request, blocks_before=refused.blocks_before, **changes)


def _record_call_end(
    state: AccountingState, event: Event, payload: LlmCallCompleted | LlmCallFailed, models: Models
) -> tuple[AccountingState, LedgerEntry | None]:
    request = dict(state.in_progress).get(payload.request_id, state.latest_request)
    in_progress = tuple(pair for pair in state.in_progress if pair[0] != payload.request_id)
    completed = payload if isinstance(payload, LlmCallCompleted) else None
    if completed is None and payload.usage == Usage():
        # A change planned before a request that failed without usage applies to the next one.
        planned = state.planned_change or (request.planned_change if request else None)
        refused = request if request is state.latest_request else state.refused_request
        return replace(state, in_progress=in_progress, planned_change=planned, refused_request=refused), None
    model = find_priced_model(payload.model, models)
    verdict, cached, earlier = None, state.cached_prefix, state.earlier_prefixes
    if request is not None and model is not None and payload.usage.tokens_sent and not is_externally_cached(model):
        if completed is not None:
            diagnosis = completed.diagnosis
            verdict = judge_call(cached, request, payload.usage, model, earlier=earlier, diagnosis=diagnosis)
        usage = answer_usage(completed) if completed else payload.usage
        left = derive_cached_prefix(request, usage, model, verdict=verdict, readable_at=event.at)
        # A provider that compacted the conversation itself no longer reads what it had cached before.
        is_compacted = completed is not None and completed.compaction_usage is not msgspec.UNSET
        earlier = () if is_compacted else _remember_prefixes(state, request, usage, left=left)
        cached = left
    elif request is not None and cached is not None and not payload.usage.tokens_sent:
        # No usage was reported: the cached prefix is still there, unless the prompt no longer begins with it.
        used_at = max(cached.used_at, request.at)
        earlier = _remember_prefixes(state, request, payload.usage)
        cached = None if request.is_prefix_changed else replace(cached, used_at=used_at)
    number = state.call_count + 1
    entry = LedgerEntry(
        event_id=event.id,
        turn_id=event.turn_id,
        provider=payload.provider,
        record=_build_call_record(number, event.at, payload, request),
        uncached_usd=round_usd(uncached_call_usd(payload, event.at, model)),
        pricing_version=completed.pricing_version if completed else "" if model or payload.cost_usd else UNPRICED,
        stop_reason=payload.stop_reason if isinstance(payload, LlmCallCompleted) else payload.error_class,
        retries=payload.retry_count,
        plan=request.plan if request else Plan(),
        prompt_digest=request.prompt_digest if request else "",
        verdict=verdict,
        completion_key=completed.completion_key if completed else "",
        is_completion_cached=completed is not None and completed.is_completion_cached,
        stable_write_tokens=estimate_stable_writes(request.stable_share, payload.usage) if request else 0,
        payer=request.payer if request else state.payer,
        first_byte_ms=completed.first_byte_ms if completed and completed.first_byte_ms is not msgspec.UNSET else None,
    )
    answered = state.blocks if completed else state.answered_blocks
    ended = replace(
        state,
        call_count=number,
        in_progress=in_progress,
        answered_blocks=answered,
        cached_prefix=cached,
        earlier_prefixes=earlier,
    )
    return ended, entry


def _remember_prefixes(
    state: AccountingState, request: PreparedRequest, usage: Usage, *, left: CachedPrefix | None = None
) -> tuple[CachedPrefix, ...]:
    """The prefixes of earlier calls after one more call, which left `left`; the newest come first."""
    cached, earlier = state.cached_prefix, state.earlier_prefixes
    marked = {point.block_index for point in request.plan.breakpoints}
    prefixes = []
    for prefix in (*((cached,) if cached else ()), *earlier):
        if not prefix.tokens or not prefix.end.digest or (left is not None and left.end == prefix.end and left.tokens):
            continue
        # A read restarts the TTL of the prefix that was read, and of those that the request marked again.
        is_used = prefix.end.digest in request.known_digests and (
            prefix.tokens == usage.cache_read or prefix.end.block in marked
        )
        prefixes.append(replace(prefix, used_at=max(prefix.used_at, request.at)) if is_used else prefix)
    return tuple(prefixes[:EARLIER_PREFIXES_MAX])


def _record_side_call(
    state: AccountingState, event: Event, payload: LlmCallCompleted, models: Models
) -> tuple[AccountingState, LedgerEntry]:
    """Records a call outside the conversation (a summary, or a completion-cache hit).

    No request was prepared for it, and no later request is compared with it.
    """
    entry = LedgerEntry(
        event_id=event.id,
        turn_id=event.turn_id,
        provider=payload.provider,
        record=_build_call_record(state.call_count + 1, event.at, payload, None),
        uncached_usd=round_usd(uncached_call_usd(payload, event.at, find_priced_model(payload.model, models))),
        pricing_version=payload.pricing_version,
        stop_reason=payload.stop_reason,
        source=payload.source,
        completion_key=payload.completion_key,
        payer=state.payer,
    )
    return replace(state, call_count=state.call_count + 1), entry


def find_priced_model(name: str, models: Models) -> Model | None:
    """The catalog's model, if it has a price: without one no loss can be computed."""
    model = find_model_or_none(name, models)
    return model if model is not None and model.prices else None


def uncached_call_usd(call: LlmCallCompleted | LlmCallFailed, at: float, model: Model | None) -> Decimal:
    """What a call would have cost without a cache; what was paid, where no price is known."""
    if isinstance(call, LlmCallCompleted) and isinstance(call.uncached_cost_usd, Decimal):
        return call.uncached_cost_usd
    if model is None:
        return call.cost_usd
    return uncached_cost_usd(call.usage, price_at(model, utc_date(at), call.usage.tokens_sent))


def _build_call_record(
    number: int, at: float, payload: LlmCallCompleted | LlmCallFailed, request: PreparedRequest | None
) -> CallRecord:
    changed_at = request.prefix_change if request and request.is_prefix_changed else None
    return CallRecord(
        number=number,
        at=at,
        request_id=payload.request_id,
        model=payload.model,
        usage=payload.usage,
        cost_usd=payload.cost_usd,
        latency_ms=payload.latency_ms,
        completed=isinstance(payload, LlmCallCompleted),
        blocks_shared=clamp_integer(request.blocks_shared) if request else 0,
        blocks_before=clamp_integer(request.blocks_before) if request else 0,
        changed_layer=request.changed_layer if request else None,
        changed_byte=clamp_integer(changed_at.byte) if changed_at else None,
    )


def extend_stable_prefix(before: StablePrefix, shared_blocks: int, digests: Sequence[PrefixDigest]) -> StablePrefix:
    """The stable prefix of the next request, which shares `shared_blocks` with the one before and adds `digests`."""
    if not digests:
        return before
    total = digests[-1].end
    # The first block after the stable prefix is shared too, so the prefix ends where it did.
    if shared_blocks > before.blocks:
        return StablePrefix(before.blocks, before.end, total)
    blocks, end = shared_blocks, before.end if shared_blocks == before.blocks else digests[0].start
    # The stable prefix was cut short or ends exactly here: extend it by the new blocks of stable layers.
    for digest in digests:
        if digest.layer not in STABLE_LAYERS:
            break
        blocks, end = blocks + 1, digest.end
    return StablePrefix(blocks, end, total)


def estimate_stable_writes(share: float, usage: Usage) -> int:
    """Estimates how many tokens a call wrote for its stable prefix."""
    # With s = the stable prefix's share of the prompt's bytes, t = tokens sent, r = tokens read and w = tokens written,
    # the prefix has about s * t tokens. Reads cover the prompt from its start, so max(0, s * t - r) of them were not
    # read; of these at most w were written.
    return min(usage.cache_write, max(0, round(share * usage.tokens_sent) - usage.cache_read))


def answer_usage(call: LlmCallCompleted) -> Usage:
    """The usage of the answer itself; only what that read and wrote is in the cache afterwards."""
    compaction = call.compaction_usage
    return call.usage if compaction is msgspec.UNSET else exclude_usage(call.usage, compaction)
