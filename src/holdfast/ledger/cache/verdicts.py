"""Decides for each call whether the provider's cache was read and, if not, why and at what cost.

Every call gets one verdict from three sources: the bytes sent (a digest chain over blocks), the reported usage, and the
provider's own diagnosis where it sends one. If they disagree, the bytes decide and the verdict says so. Every view
shows this verdict; none decides again whether a call held.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Literal

import msgspec

from holdfast.catalog.lookup import price_at, utc_date
from holdfast.catalog.schema import CacheRules, Model
from holdfast.ledger.money import Payer
from holdfast.types.prompt import OLD_THINKING, Plan, PrefixChange, PrefixChangeCause, PromptSection, Ttl
from holdfast.types.reply import CacheDiagnosis
from holdfast.types.usage import Usage

# Specification 002 sets 2,000 tokens as the default of `cache_break_min_drop`: the seed's counters leave out smaller
# drops. Verdicts do not: every shortfall has its cause and its price.
DROP_TOKENS_MIN = 2_000

# In order of precedence: where several causes apply, the first one is reported.
VerdictKind = Literal[
    "held",
    "planned",
    "model_switched",
    "image_rule",
    "parameter_changed",
    "no_breakpoint",
    "tail_rewritten",
    "prefix_changed",
    "below_floor",
    "first_use",
    "ttl_expired",
    "lookback_miss",
    "provider_side",
]

NO_BREAKS: tuple[VerdictKind, ...] = ("held", "first_use")
"""Nothing that was cached was sent again."""

# Neither list has `held`, `first_use` and `below_floor`: the cache did what its rules promise.
EXPECTED_KINDS: tuple[VerdictKind, ...] = (
    "planned",
    "model_switched",
    "image_rule",
    "parameter_changed",
    "no_breakpoint",
    "ttl_expired",
)
UNEXPECTED_KINDS: tuple[VerdictKind, ...] = ("tail_rewritten", "prefix_changed", "lookback_miss", "provider_side")
_KIND_BY_PARAMETER: dict[str, VerdictKind] = {"model": "model_switched", "images": "image_rule"}
_MILLION = Decimal(1_000_000)  # Prices are US dollars per million tokens.
UsageEvidence = Literal["read", "partly read", "nothing cached"]
BreakClass = Literal["expected", "unexpected"]

# Which section of the prompt a provider's miss reason refers to; `model` and `planned` are no sections.
_SECTION_BY_DIAGNOSIS: dict[str, str] = {
    "model_changed": "model",
    "tools_changed": "tools",
    "system_changed": "system",
    "messages_changed": "messages",
    "input_changed": "messages",
    "context_compacted": "planned",
}


class VerdictEvidence(msgspec.Struct, frozen=True):
    """What each of the three sources says on its own: our bytes, the reported usage, the provider's diagnosis.

    `bytes` is about the cached part of the prompt. `usage` tells whether the tokens expected in the cache were read;
    there may have been none.
    """

    bytes: Literal["unchanged", "changed", "parameters changed"]
    usage: UsageEvidence
    diagnosis: CacheDiagnosis | None = None


class Verdict(msgspec.Struct, frozen=True):
    """Whether a call read everything that it could have read, and what a miss cost.

    `held` means that it did, within the provider's rounding; every other kind names the first cause that applies.
    `expected_tokens` could have been read and `read_tokens` were; sending the rest again cost `lost_usd` more than a
    read, however few they are. What could have been read: the prefix that the call before left in the cache, or a
    longer one that an earlier call left and that this prompt begins with; with `no_breakpoint`, where nothing was
    marked, the part of the prompt that the call before had sent too. `unsent_tokens` were in the cache, but the call
    did not send them at all (a trimmed history, say): they cost nothing and are not lost.

    `component` is what caused the miss: a layer, a parameter, or a recorded action. `byte` is the offset in the
    cacheable bytes at which the prefix changed, `first_lost_section` the section from which nothing could be read,
    `cause` the most likely reason for the change; `diff` shows the change with all letters and digits masked. With
    `below_floor`, `floor_tokens_missing` is what the prompt, or its marked part, lacks to be cached at all. `evidence`
    holds what each of the three sources said; `disagreement` is set where they contradict each other.

    `drop_tokens` and `drop_class` are the seed's statistics: how many tokens fewer were read than the call before had
    left in the cache, and whether that was expected; None where it counts as neither.
    """

    kind: VerdictKind
    expected_tokens: int = 0
    read_tokens: int = 0
    lost_usd: Decimal = Decimal(0)
    component: str | None = None
    byte: int | None = None
    first_lost_section: PromptSection | None = None
    detail: str = ""
    cause: PrefixChangeCause | None = None
    diff: tuple[str, ...] = ()
    evidence: VerdictEvidence | None = None
    disagreement: str = ""
    unsent_tokens: int = 0
    floor_tokens_missing: int = 0
    drop_tokens: int = 0
    drop_class: BreakClass | None = None

    @property
    def missing_tokens(self) -> int:
        return max(0, self.expected_tokens - self.read_tokens)

    @property
    def lost_tokens(self) -> int:
        """Tokens that could have been read from the cache and were sent again instead."""
        # lost = (expected - read) - unsent: what the prompt no longer contains was neither read nor paid for again.
        return max(0, self.missing_tokens - self.unsent_tokens)

    @property
    def is_unexpected(self) -> bool:
        """Whether the miss was unexpected."""
        return self.kind in UNEXPECTED_KINDS


class PrefixEnd(msgspec.Struct, frozen=True):
    """Where a cached prefix ends: at this block, with the digest of everything up to it and its size in bytes."""

    block: int = -1
    digest: str = ""
    bytes: int = 0


class CachedPrefix(msgspec.Struct, frozen=True):
    """The prefix that a request left in the cache, and the size of its whole prompt.

    Requests sent before `readable_at`, when the reply was complete, may not have been able to read it. `new_tokens` of
    the prompt's `prompt_tokens` would have had to be written by a request that marked all of it.
    """

    model: str
    used_at: float
    tokens: int
    ttl: Ttl | None
    breakpoint_block: int | None
    settings: Mapping[str, str]
    has_images: bool
    end: PrefixEnd = PrefixEnd()
    readable_at: float = 0.0
    prompt_tokens: int = 0
    prompt_bytes: int = 0
    new_tokens: int = 0


class PreparedRequest(msgspec.Struct, frozen=True):
    """A request as it was sent, compared with the one before it.

    `planned_change` is the component and reason of a deliberate change that was recorded before this request. Of the
    prefixes that earlier requests marked, this prompt begins with those in `known_digests`; the prompt before, but not
    this one, began with those in `dropped_digests`. `is_return`: it continues an older prompt than the one before.
    """

    at: float
    plan: Plan
    prompt_digest: str = ""
    settings: Mapping[str, str] = {}
    blocks_before: int = 0
    blocks_shared: int = 0
    changed_layer: str | None = None
    prefix_change: PrefixChange | None = None
    planned_change: tuple[str, str] | None = None
    has_images: bool = False
    stable_share: float = 0.0
    payer: Payer = Payer()
    end: PrefixEnd = PrefixEnd()
    shared_bytes: int = 0
    prompt_bytes: int = 0
    known_digests: tuple[str, ...] = ()
    dropped_digests: tuple[str, ...] = ()
    is_return: bool = False

    @property
    def is_prefix_changed(self) -> bool:
        return self.blocks_shared < self.blocks_before

    def begins_with(self, cached: CachedPrefix) -> bool:
        if cached.end.digest:
            return cached.end.digest in self.known_digests
        last = cached.breakpoint_block
        return not self.is_prefix_changed or (last is not None and last < self.blocks_shared)


def derive_cached_prefix(
    request: PreparedRequest, usage: Usage, row: Model, *, verdict: Verdict | None = None, readable_at: float = 0.0
) -> CachedPrefix:
    """The cached prefix that a call leaves for the next one."""
    breakpoint_ = max(request.plan.breakpoints, key=lambda point: point.block_index, default=None)
    reached = verdict.expected_tokens if verdict is not None and verdict.kind == "no_breakpoint" else usage.cache_read
    return CachedPrefix(
        model=row.id,
        used_at=request.at,
        tokens=cached_tokens_after(usage, row.cache),
        ttl=breakpoint_.ttl if breakpoint_ else None,
        breakpoint_block=breakpoint_.block_index if breakpoint_ else None,
        settings=request.settings,
        has_images=request.has_images,
        end=request.end,
        readable_at=readable_at,
        prompt_tokens=usage.tokens_sent,
        prompt_bytes=request.prompt_bytes,
        new_tokens=max(0, usage.tokens_sent - reached),
    )


def cached_tokens_after(usage: Usage, rules: CacheRules) -> int:
    """What the next call can read: the reported reads and writes, or the whole prompt where writes are not reported."""
    match rules.kind:
        case "explicit" | "hybrid":
            return usage.cache_read + usage.cache_write
        case "implicit":
            return usage.tokens_sent if usage.tokens_sent >= rules.tokens_min else 0
        case "none":
            return 0


def find_read_granularity(rules: CacheRules) -> int:
    """By how many tokens a read may fall short of a cached prefix although everything was read."""
    # Reads that are reported in steps end at a step, and the last step of a prompt has the marker that opens the
    # reply, which the next prompt need not repeat. Reads that are reported exactly have no tolerance.
    return rules.reads_rounded_to if rules.reads_rounded_to > 1 else 0


def judge_call(
    cached: CachedPrefix | None,
    request: PreparedRequest,
    usage: Usage,
    row: Model,
    *,
    earlier: Sequence[CachedPrefix] = (),
    diagnosis: CacheDiagnosis | None = None,
) -> Verdict:
    """Whether the call read everything that it could have; if not, the first cause that applies.

    `cached` is what the last call left in the cache, `earlier` what is left of the calls before it.
    """
    prefix = _find_readable_prefix(cached, earlier, request, row)
    judged = _JudgedCall(request, usage, row, cached=cached, prefix=prefix)
    expected, verdict = judged.expected_tokens, judged.find_verdict()
    drop_tokens = max(0, cached.tokens - usage.cache_read) if cached is not None else 0
    usage_evidence: UsageEvidence = "nothing cached" if not expected else "partly read"
    if verdict.kind == "held":
        usage_evidence, expected = "read", min(expected, usage.cache_read)
    evidence = VerdictEvidence(
        bytes="changed" if judged.is_changed else "parameters changed" if judged.changed_parameter else "unchanged",
        usage=usage_evidence,
        diagnosis=diagnosis,
    )
    return msgspec.structs.replace(
        verdict,
        expected_tokens=expected,
        read_tokens=usage.cache_read,
        lost_usd=judged.lost_usd(max(0, expected - usage.cache_read)),
        evidence=evidence,
        disagreement=_disagreement(verdict, evidence, request),
        # The cached prefix was longer than the whole prompt: at least the difference was not sent.
        unsent_tokens=max(0, expected - usage.tokens_sent),
        drop_tokens=drop_tokens,
        drop_class=_classify_drop(cached, request, usage, row) if cached is not None and drop_tokens else None,
    )


def _find_readable_prefix(
    cached: CachedPrefix | None, earlier: Sequence[CachedPrefix], request: PreparedRequest, row: Model
) -> CachedPrefix | None:
    """The longest prefix that the call could have read if it had been sent in time and like the call before."""
    digests = request.known_digests if request.is_return else (*request.known_digests, *request.dropped_digests)
    same = (row.id, request.settings, request.has_images)
    prefixes = [
        prefix
        for prefix in earlier
        if prefix.end.digest in digests and (prefix.model, prefix.settings, prefix.has_images) == same
    ]
    # A call that returns to an older prompt is no change of the one before.
    if cached is not None and (not request.is_return or cached.end.digest in digests):
        prefixes.insert(0, cached)
    # What was still being answered when this request was sent may not have been readable yet.
    readable = (prefix for prefix in prefixes if prefix.readable_at <= request.at)
    return max(readable, key=lambda prefix: prefix.tokens, default=None)


class _JudgedCall:
    """One call with `prefix`, the longest cached prefix that it could have read, and `cached`, what the last left."""

    def __init__(
        self,
        request: PreparedRequest,
        usage: Usage,
        row: Model,
        *,
        cached: CachedPrefix | None,
        prefix: CachedPrefix | None,
    ) -> None:
        self.request, self.usage, self.row, self.rules = request, usage, row, row.cache
        self.prefix = prefix if prefix is not None and prefix.tokens else None
        self.previous = prefix if request.is_return else cached
        self.changed_parameter = find_changed_parameter(self.previous, request, row) if self.previous else None
        self.is_changed = not request.begins_with(self.prefix) if self.prefix else request.is_prefix_changed
        # Nothing is marked, and nothing was read or written: the provider had no reason to look into its cache.
        self.is_unmarked = (
            self.rules.kind == "explicit" and not request.plan.breakpoints and not usage.cache_read + usage.cache_write
        )
        self.tail = request.prefix_change.tail if self.is_changed and request.prefix_change is not None else None
        self.expected_tokens = self._expect_tokens()

    def _expect_tokens(self) -> int:
        rules, prefix = self.rules, self.prefix
        if prefix is None:
            return self._shared_prompt_tokens() if self.is_unmarked else 0
        tokens = prefix.tokens
        if rules.kind == "implicit":
            tokens -= tokens % rules.reads_rounded_to
        if self.tail != "replaced":
            return tokens
        # Another message in place of the last one: only what comes before it could have been read. How many tokens that
        # is, is known if it was read; if not, it is estimated by its share of the bytes.
        shared = tokens * self.request.shared_bytes // prefix.end.bytes if prefix.end.bytes else 0
        return min(tokens, self.usage.cache_read) or (shared if shared >= rules.tokens_min else 0)

    def _shared_prompt_tokens(self) -> int:
        """What breakpoints would have let this call read: as much of the previous prompt as this one begins with."""
        previous, request = self.previous, self.request
        # A prefix marked without a TTL lives for the shortest one.
        ttl_seconds = min(self.rules.ttls_seconds.values(), default=0)
        if (
            previous is None
            or self.changed_parameter is not None
            or not previous.readable_at <= request.at < previous.used_at + ttl_seconds
        ):
            return 0
        tokens = previous.prompt_tokens
        if request.is_prefix_changed:
            tokens = tokens * request.shared_bytes // previous.prompt_bytes if previous.prompt_bytes else 0
        return tokens if tokens >= self.rules.tokens_min else 0

    def find_verdict(self) -> Verdict:
        """`held`, or the first cause that applies; `provider_side` is what remains."""
        request, usage, rules = self.request, self.usage, self.rules
        if self.expected_tokens and self.expected_tokens - usage.cache_read <= find_read_granularity(rules):
            return Verdict("held")
        if request.planned_change is not None:
            component, detail = request.planned_change
            return Verdict("model_switched" if component == "model" else "planned", component=component, detail=detail)
        if self.changed_parameter is not None:
            return self.changed_parameter
        has_floor = usage.tokens_sent >= rules.tokens_min
        if self.is_unmarked and has_floor and self.previous and (self.expected_tokens or not self.is_changed):
            return Verdict("no_breakpoint", detail="nothing in the request is marked, so nothing is cached")
        if self.is_changed and (self.tail != "replaced" or self.expected_tokens):
            return _judge_prefix_change(request, "tail_rewritten" if self.tail is not None else "prefix_changed")
        if (below := self._judge_floor()) is not None:
            return below
        if self.prefix is None or not self.expected_tokens:
            return Verdict("first_use", detail="nothing that this prompt begins with was cached before")
        return self._judge_unread_prefix(self.prefix)

    def _judge_floor(self) -> Verdict | None:
        sent, floor = self.usage.tokens_sent, self.rules.tokens_min
        if sent < floor:
            detail = f"the prompt has {sent:,} tokens; caching begins at {floor:,}, so {floor - sent:,} are missing"
            return Verdict("below_floor", detail=detail, floor_tokens_missing=floor - sent)
        request, is_used = self.request, self.usage.cache_read + self.usage.cache_write > 0
        if self.rules.kind != "explicit" or is_used or not request.plan.breakpoints or not request.prompt_bytes:
            return None
        # A long enough prompt whose last breakpoint comes too early; bytes stand in for tokens.
        marked = sent * request.end.bytes // request.prompt_bytes
        if not 0 < marked < floor:
            return None
        missing = floor - marked
        detail = (
            f"about {marked:,} of {sent:,} tokens are marked; caching begins at {floor:,}, so {missing:,} are missing"
        )
        return Verdict("below_floor", detail=detail, floor_tokens_missing=missing)

    def _judge_unread_prefix(self, prefix: CachedPrefix) -> Verdict:
        """The prompt begins with the cached prefix, but it was not read to its end."""
        request, rules = self.request, self.rules
        if (expired := _judge_ttl(prefix, request, rules)) is not None:
            return expired
        # Anthropic looks back at most this many blocks from each breakpoint for an existing cache entry.
        last_block, reach = prefix.breakpoint_block, rules.lookback_positions
        if (
            rules.kind == "explicit"
            and last_block is not None
            and not any(0 <= later.block_index - last_block < reach for later in request.plan.breakpoints)
        ):
            detail = f"the last breakpoint was at block {last_block}, more than {reach} blocks back"
            return Verdict("lookback_miss", component="history", detail=detail)
        return Verdict("provider_side", detail="the same bytes, sent in time, but not read")

    def lost_usd(self, tokens: int) -> Decimal:
        """What sending these tokens again cost above reading them, as far as they were sent at all."""
        # lost_usd = sum over billing buckets b of resent_b * max(0, price_b - price_read) / 10**6, where resent_b is
        # the part of the lost tokens that was billed in bucket b. The lost tokens follow directly after those that were
        # read, and a prompt is billed from its start as 1-hour writes, then shorter writes, then plain input (Anthropic
        # requires longer TTLs before shorter ones): fill the buckets in that order until no lost token is left.
        if not tokens:
            return Decimal(0)
        usage, prices = self.usage, price_at(self.row, utc_date(self.request.at), self.usage.tokens_sent)
        lost = Decimal(0)
        for sent, price_per_million in (
            (usage.cache_write_1h, prices.cache_write_1h),
            (usage.cache_write_5m, prices.cache_write_5m),
            (usage.cache_write_other, prices.cache_write_other),
            (usage.input, prices.input),
        ):
            resent = min(tokens, sent)
            lost += max(Decimal(0), price_per_million - prices.cache_read) * resent
            tokens -= resent
        if self.is_unmarked and self.prefix is None and self.previous is not None:
            # Nothing was cached. To be read now, the new part of the previous prompt would have had to be written, at
            # a write's surcharge above plain input: summed over a conversation, this is what breakpoints save.
            lost -= self.previous.new_tokens * max(Decimal(0), prices.cache_write_5m - prices.input)
        return lost / _MILLION if lost > 0 else Decimal(0)


def _judge_ttl(prefix: CachedPrefix, request: PreparedRequest, rules: CacheRules) -> Verdict | None:
    # Where no breakpoint requested a TTL, assume the provider's shortest one.
    ttl_seconds = rules.ttls_seconds.get(prefix.ttl or "", 0) or min(rules.ttls_seconds.values(), default=0)
    idle_seconds = request.at - prefix.used_at
    ttl_seconds_min = min(rules.ttls_seconds.values(), default=ttl_seconds)
    if ttl_seconds and idle_seconds >= ttl_seconds:
        return Verdict("ttl_expired", detail=f"idle for {idle_seconds:.0f} s, TTL {ttl_seconds} s")
    if ttl_seconds_min and idle_seconds >= ttl_seconds_min and not request.plan.expected_read_tokens:
        # The last breakpoint had the longer TTL, but a shorter one before it expired and was not upgraded, so the chain
        # from the first byte was broken. A plan that expected a read had reason to believe in the upgrade.
        detail = f"idle for {idle_seconds:.0f} s, and a part had a TTL of only {ttl_seconds_min} s"
        return Verdict("ttl_expired", detail=detail)
    return None


def _judge_prefix_change(request: PreparedRequest, kind: VerdictKind) -> Verdict:
    where = f"block {request.blocks_shared} of {request.blocks_before} changed"
    change = request.prefix_change
    if change is None:
        return Verdict(kind, component=request.changed_layer, detail=where)
    return Verdict(
        kind,
        component=request.changed_layer,
        byte=change.byte,
        first_lost_section=change.section,
        detail=f"{where}: {change.detail}" if change.detail else where,
        cause=change.cause,
        diff=change.diff,
    )


def find_changed_parameter(cached: CachedPrefix, request: PreparedRequest, row: Model) -> Verdict | None:
    """The changed parameter that invalidates the most of the prompt, if any invalidates anything."""
    rules, before, after = row.cache, cached.settings, request.settings
    if before == after and request.has_images == cached.has_images and cached.model == row.id:
        return None
    changed = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    changed += ["images"] if request.has_images != cached.has_images else []
    changed += ["model"] if cached.model != row.id else []
    first_lost_by_name = {**rules.invalidates, **({"effort": "messages"} if rules.effort_breaks_messages else {})}
    if rules.strips_old_thinking:
        first_lost_by_name[OLD_THINKING] = "messages"
    sections: tuple[PromptSection, ...] = ("tools", "system", "messages")
    ranks = [(sections.index(first_lost_by_name[name]), name) for name in changed if name in first_lost_by_name]
    if not ranks:
        return None
    rank, name = min(ranks)
    kind = _KIND_BY_PARAMETER.get(name, "parameter_changed")
    has_images = request.has_images or "images" in after
    details = {
        "model": f"the model was switched from {cached.model} to {row.id}",
        "images": f"the prompt has {'an image now, and had none' if has_images else 'no image now, and had one'}",
    }
    details[OLD_THINKING] = "the model drops the thinking of the turn that ended, and all after it is sent again"
    detail = details.get(name, f"{name} changed")
    return Verdict(kind, component=name, first_lost_section=sections[rank], detail=detail)


def _classify_drop(cached: CachedPrefix, request: PreparedRequest, usage: Usage, row: Model) -> BreakClass | None:
    """How the seed's counters class a call that read less than the call before left in the cache.

    They know nothing of earlier entries and missing breakpoints, so that the same history gives the same counts.
    """
    parameter = find_changed_parameter(cached, request, row)
    # The seed does not know that thinking is dropped.
    if request.planned_change is not None or (parameter is not None and parameter.component != OLD_THINKING):
        return "expected"
    if request.is_prefix_changed:
        return "unexpected"
    if usage.tokens_sent < row.cache.tokens_min:
        return None
    return "expected" if _judge_ttl(cached, request, row.cache) is not None else "unexpected"


def _disagreement(verdict: Verdict, evidence: VerdictEvidence, request: PreparedRequest) -> str:
    """Describes where the provider's diagnosis contradicts the bytes or the usage; empty if it does not."""
    diagnosis = evidence.diagnosis
    is_planned = request.planned_change is not None and verdict.kind in ("planned", "model_switched")
    if diagnosis is None or diagnosis.outcome not in ("hit", "miss") or is_planned:
        return ""
    if diagnosis.outcome == "hit":
        return "the provider sees no change, but our bytes changed" if evidence.bytes == "changed" else ""
    if evidence.usage == "read":
        return f"the provider reports a miss ({diagnosis.reason}), but the cached tokens were read"
    if evidence.bytes == "unchanged" and verdict.kind not in ("first_use", "below_floor", "no_breakpoint"):
        return f"the provider reports {diagnosis.reason}, but the bytes that we sent were the same"
    blamed_section = _SECTION_BY_DIAGNOSIS.get(diagnosis.reason)
    changed_section = request.prefix_change.section if request.prefix_change is not None else None
    blames_section = blamed_section in ("tools", "system", "messages") and blamed_section != changed_section
    if evidence.bytes == "changed" and changed_section is not None and blames_section:
        return f"the provider reports {diagnosis.reason}, but our bytes changed in the {changed_section}"
    return ""
