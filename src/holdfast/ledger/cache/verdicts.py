"""Decides for each call whether the provider's cache was read and, if not, why and at what cost.

Every call gets one verdict from three sources: the bytes sent (a digest chain over blocks), the reported usage, and the
provider's own diagnosis where it sends one. If they disagree, the bytes decide and the verdict says so.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Literal

import msgspec

from holdfast.catalog.lookup import price_at, utc_date
from holdfast.catalog.schema import CacheRules, Model
from holdfast.ledger.attribution import Payer
from holdfast.types.prompt import Plan, PrefixChange, PrefixChangeCause, PromptSection, Ttl
from holdfast.types.reply import CacheDiagnosis
from holdfast.types.usage import Usage

# Smaller drops are noise: counts are rounded, and the last block is sometimes missed. Specification 002 sets 2,000
# tokens as the default of `cache_break_min_drop`.
DROP_TOKENS_MIN = 2_000

# In order of precedence: where several causes apply, the first one is reported.
VerdictKind = Literal[
    "held",
    "planned",
    "parameter_changed",
    "prefix_changed",
    "below_floor",
    "first_use",
    "ttl_expired",
    "lookback_miss",
    "provider_side",
]

# Neither list has `held`, `below_floor` and `first_use`: nothing was lost.
EXPECTED_KINDS: tuple[VerdictKind, ...] = ("planned", "parameter_changed", "ttl_expired")
UNEXPECTED_KINDS: tuple[VerdictKind, ...] = ("prefix_changed", "lookback_miss", "provider_side")
_MILLION = Decimal(1_000_000)  # Prices are US dollars per million tokens.
UsageEvidence = Literal["read", "partly read", "nothing cached"]

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

    `usage` tells whether the tokens expected in the cache were read; there may have been none.
    """

    bytes: Literal["unchanged", "changed", "parameters changed"]
    usage: UsageEvidence
    diagnosis: CacheDiagnosis | None = None


class Verdict(msgspec.Struct, frozen=True):
    """Whether a call read what was cached, and what a miss cost.

    `expected_tokens` were in the cache and `read_tokens` were read; sending the rest again cost `lost_usd` more than a
    read. `unsent_tokens` were in the cache, but the call did not send them at all (a trimmed history, say): they cost
    nothing and are not lost. `component` is what caused the miss: a layer, a parameter, or a recorded action. `byte` is
    the offset in the cacheable bytes at which the prefix changed, `first_lost_section` the section from which nothing
    could be read, `cause` the most likely reason for the change; `diff` shows the change with all letters and digits
    masked. `evidence` holds what each of the three sources said; `disagreement` is set where they contradict each
    other.
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


class CachedPrefix(msgspec.Struct, frozen=True):
    """The prefix that the last request left in the cache."""

    model: str
    used_at: float
    tokens: int
    ttl: Ttl | None
    breakpoint_block: int | None
    settings: Mapping[str, str]
    has_images: bool


class PreparedRequest(msgspec.Struct, frozen=True):
    """A request as it was sent, compared with the one before it.

    `planned_change` is the component and reason of a deliberate change that was recorded before this request.
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

    @property
    def is_prefix_changed(self) -> bool:
        return self.blocks_shared < self.blocks_before


def derive_cached_prefix(request: PreparedRequest, usage: Usage, row: Model) -> CachedPrefix:
    """The cached prefix that a call leaves for the next one."""
    breakpoint_ = max(request.plan.breakpoints, key=lambda point: point.block_index, default=None)
    return CachedPrefix(
        model=row.id,
        used_at=request.at,
        tokens=cached_tokens_after(usage, row.cache),
        ttl=breakpoint_.ttl if breakpoint_ else None,
        breakpoint_block=breakpoint_.block_index if breakpoint_ else None,
        settings=request.settings,
        has_images=request.has_images,
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


def judge_call(
    cached: CachedPrefix | None,
    request: PreparedRequest,
    usage: Usage,
    row: Model,
    *,
    diagnosis: CacheDiagnosis | None = None,
    drop_tokens_min: int = DROP_TOKENS_MIN,
) -> Verdict:
    """Whether the call read what the call before left in the cache; if not, the first cause that applies."""
    # A call should read everything that the call before it had read or written.
    expected = cached.tokens if cached is not None else 0
    changed_parameter = _find_changed_parameter(cached, request, row) if cached is not None else None
    evidence = VerdictEvidence(
        bytes="changed" if request.is_prefix_changed else "parameters changed" if changed_parameter else "unchanged",
        usage=_compare_usage(expected, usage, drop_tokens_min),
        diagnosis=diagnosis,
    )
    if evidence.usage == "read":
        verdict, lost_usd = Verdict("held"), Decimal(0)
    else:
        by_parameter = changed_parameter if not request.planned_change else None
        verdict = by_parameter or _find_cause(cached, request, usage, row.cache)
        lost_usd = _lost_usd(request, usage, row, max(0, expected - usage.cache_read))
    return msgspec.structs.replace(
        verdict,
        expected_tokens=expected,
        read_tokens=usage.cache_read,
        lost_usd=lost_usd,
        evidence=evidence,
        disagreement=_disagreement(verdict, evidence, request),
        # The cached prefix was longer than the whole prompt: at least the difference was not sent.
        unsent_tokens=max(0, expected - usage.tokens_sent),
    )


def _compare_usage(expected: int, usage: Usage, drop_tokens_min: int) -> UsageEvidence:
    if not expected:
        return "nothing cached"
    return "read" if expected - usage.cache_read < drop_tokens_min else "partly read"


def _lost_usd(request: PreparedRequest, usage: Usage, row: Model, tokens: int) -> Decimal:
    """What sending these tokens again cost above reading them, as far as they were sent at all."""
    # lost_usd = sum over billing buckets b of resent_b * max(0, price_b - price_read) / 10**6, where resent_b is the
    # part of the lost tokens that was billed in bucket b. The lost tokens follow directly after those that were read,
    # and a prompt is billed from its start as 1-hour writes, then shorter writes, then plain input (Anthropic
    # requires longer TTLs before shorter ones): fill the buckets in that order until no lost token is left.
    prices = price_at(row, utc_date(request.at), usage.tokens_sent)
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
    return lost / _MILLION if lost else Decimal(0)


def _disagreement(verdict: Verdict, evidence: VerdictEvidence, request: PreparedRequest) -> str:
    """Describes where the provider's diagnosis contradicts the bytes or the usage; empty if it does not."""
    diagnosis = evidence.diagnosis
    if diagnosis is None or diagnosis.outcome not in ("hit", "miss") or verdict.kind == "planned":
        return ""
    if diagnosis.outcome == "hit":
        return "the provider sees no change, but our bytes changed" if evidence.bytes == "changed" else ""
    if evidence.usage == "read":
        return f"the provider reports a miss ({diagnosis.reason}), but the cached tokens were read"
    if evidence.bytes == "unchanged" and verdict.kind not in ("first_use", "below_floor"):
        return f"the provider reports {diagnosis.reason}, but the bytes that we sent were the same"
    blamed_section = _SECTION_BY_DIAGNOSIS.get(diagnosis.reason)
    changed_section = request.prefix_change.section if request.prefix_change is not None else None
    blames_section = blamed_section in ("tools", "system", "messages") and blamed_section != changed_section
    if evidence.bytes == "changed" and changed_section is not None and blames_section:
        return f"the provider reports {diagnosis.reason}, but our bytes changed in the {changed_section}"
    return ""


def _find_cause(cached: CachedPrefix | None, request: PreparedRequest, usage: Usage, rules: CacheRules) -> Verdict:
    """The first cause that applies, changed parameters excepted; `provider_side` is what remains."""
    if request.planned_change is not None:
        component, detail = request.planned_change
        return Verdict("planned", component=component, detail=detail)
    if request.is_prefix_changed:
        return _judge_prefix_change(request)
    if usage.tokens_sent < rules.tokens_min:
        return Verdict("below_floor", detail=f"{usage.tokens_sent} tokens, minimum is {rules.tokens_min}")
    if cached is None or not cached.tokens:
        return Verdict("first_use", detail="nothing was cached before")
    # Where no breakpoint requested a TTL, assume the provider's shortest one.
    ttl_seconds = rules.ttls_seconds.get(cached.ttl or "", 0) or min(rules.ttls_seconds.values(), default=0)
    idle_seconds = request.at - cached.used_at
    ttl_seconds_min = min(rules.ttls_seconds.values(), default=ttl_seconds)
    if ttl_seconds and idle_seconds >= ttl_seconds:
        return Verdict("ttl_expired", detail=f"idle for {idle_seconds:.0f} s, TTL {ttl_seconds} s")
    if ttl_seconds_min and idle_seconds >= ttl_seconds_min and not request.plan.expected_read_tokens:
        # The last breakpoint had the longer TTL, but a shorter one before it expired and was not upgraded, so the chain
        # from the first byte was broken. A plan that expected a read had reason to believe in the upgrade.
        detail = f"idle for {idle_seconds:.0f} s, and a part had a TTL of only {ttl_seconds_min} s"
        return Verdict("ttl_expired", detail=detail)
    # Anthropic looks back at most this many blocks from each breakpoint for an existing cache entry.
    last_block, reach = cached.breakpoint_block, rules.lookback_positions
    if (
        rules.kind == "explicit"
        and last_block is not None
        and not any(0 <= later.block_index - last_block < reach for later in request.plan.breakpoints)
    ):
        detail = f"the last breakpoint was at block {last_block}, more than {reach} blocks back"
        return Verdict("lookback_miss", component="history", detail=detail)
    return Verdict("provider_side", detail="the same bytes, sent in time, but not read")


def _judge_prefix_change(request: PreparedRequest) -> Verdict:
    where = f"block {request.blocks_shared} of {request.blocks_before} changed"
    change = request.prefix_change
    if change is None:
        return Verdict("prefix_changed", component=request.changed_layer, detail=where)
    return Verdict(
        "prefix_changed",
        component=request.changed_layer,
        byte=change.byte,
        first_lost_section=change.section,
        detail=f"{where}: {change.detail}" if change.detail else where,
        cause=change.cause,
        diff=change.diff,
    )


def _find_changed_parameter(cached: CachedPrefix, request: PreparedRequest, row: Model) -> Verdict | None:
    """The changed parameter that invalidates the most of the prompt, if any invalidates anything."""
    rules, before, after = row.cache, cached.settings, request.settings
    if before == after and request.has_images == cached.has_images and cached.model == row.id:
        return None
    changed = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    changed += ["images"] if request.has_images != cached.has_images else []
    changed += ["model"] if cached.model != row.id else []
    first_lost_by_name = {**rules.invalidates, **({"effort": "messages"} if rules.effort_breaks_messages else {})}
    sections: tuple[PromptSection, ...] = ("tools", "system", "messages")
    ranks = [(sections.index(first_lost_by_name[name]), name) for name in changed if name in first_lost_by_name]
    if not ranks:
        return None
    rank, name = min(ranks)
    return Verdict("parameter_changed", component=name, first_lost_section=sections[rank], detail=f"{name} changed")
