"""Explains a request: its blocks and layers, its cache breakpoints, and what a change of each part would cost."""

from collections.abc import Iterator
from decimal import Decimal

import msgspec

from holdfast.catalog.schema import Price
from holdfast.ledger.requests.parse import (
    ParsedRequest,
    count_readable_tokens,
    count_unaffected_blocks,
    read_saving_usd,
    rewrite_cost_usd,
)
from holdfast.planning.breakpoints import place_breakpoints
from holdfast.planning.idle_times import expected_idle_times
from holdfast.planning.learned import NOTHING_LEARNED, CacheMemory
from holdfast.planning.plan import PromptWarmth, add_savings, plan_cache
from holdfast.planning.policy import PlanningMoment
from holdfast.types.json_encoding import sha256_hex
from holdfast.types.prompt import Breakpoint, Plan, PromptSection, Ttl

DIGEST_CHARS = 12  # 48 bits: unique among the blocks of a request, and short enough for a table.


class ExplainedBlock(msgspec.Struct, frozen=True):
    """One block. If it changes, the next call rewrites `rewritten_tokens` that it could have read."""

    path: str
    section: PromptSection
    layer: str
    stability: str
    tokens: int
    digest: str
    rewritten_tokens: int
    rewritten_usd: Decimal | None


class ExplainedLayer(msgspec.Struct, frozen=True):
    """Blocks that change together, and what the next call rewrites if the first of them changes."""

    name: str
    stability: str
    blocks: int
    tokens: int
    rewritten_tokens: int
    rewritten_usd: Decimal | None


class ExplainedBreakpoint(msgspec.Struct, frozen=True):
    """A cache breakpoint and what it saves.

    `saving_usd` is what each later call saves by reading up to here instead of sending those tokens uncached.
    `expected_usd` is what the breakpoint is expected to save on the next call beyond the breakpoints before it, minus
    the cost of writing it, weighted by the probability that the next call comes within the TTL.
    """

    block: int
    path: str
    ttl: Ttl
    reason: str
    prefix_tokens: int
    is_below_floor: bool
    saving_usd: Decimal | None
    expected_usd: Decimal | None


class RequestExplanation(msgspec.Struct, frozen=True):
    """All token counts are estimates. Stabilities are inferred from the section, since a request does not state them.

    `padding` says whether the stable prefix was padded, or would be, and why.
    """

    model: str
    detected_by: str
    cache: str
    tokens: int
    floor_tokens: int | None
    layers: tuple[ExplainedLayer, ...]
    blocks: tuple[ExplainedBlock, ...]
    breakpoints: tuple[ExplainedBreakpoint, ...]
    planned_breakpoints: tuple[ExplainedBreakpoint, ...]
    padding: str | None
    notes: tuple[str, ...]


def explain_request(request: ParsedRequest, price: Price | None, *, padding: str | None = None) -> RequestExplanation:
    model = request.row
    planned = _plan_first_call(request, price)
    planned_breakpoints = _explain_breakpoints(request, planned.breakpoints, price)
    own_blocks = {own.block_index for own in request.breakpoints}
    blocks = tuple(_explain_blocks(request, price))
    return RequestExplanation(
        model=request.model,
        detected_by=request.recognised.reason,
        cache=model.cache.kind if model else "unknown",
        tokens=request.buffer.tokens_total,
        floor_tokens=model.cache.tokens_min if model else None,
        layers=tuple(_group_layers(blocks)),
        blocks=blocks,
        breakpoints=tuple(_explain_breakpoints(request, tuple(map(_label_own, request.breakpoints)), price)),
        planned_breakpoints=tuple(planned for planned in planned_breakpoints if planned.block not in own_blocks),
        padding=padding,
        notes=(*_notes(request), *planned.notes),
    )


def _plan_first_call(request: ParsedRequest, price: Price | None) -> Plan:
    """The plan that we would make for the first call of a session, with nothing learned yet."""
    if request.row is None:
        return Plan()
    if price is None:
        return place_breakpoints(request.buffer, request.row.cache)
    return plan_cache(PlanningMoment(request.buffer, request.row.cache, price, at=0.0), CacheMemory(), keep_small=True)


def _label_own(own: Breakpoint) -> Breakpoint:
    return msgspec.structs.replace(own, reason=f"yours, {own.reason}" if own.reason else "yours")


def _group_layers(blocks: tuple[ExplainedBlock, ...]) -> Iterator[ExplainedLayer]:
    for name in dict.fromkeys(block.layer for block in blocks):
        in_layer = [block for block in blocks if block.layer == name]
        yield ExplainedLayer(
            name=name,
            stability=in_layer[0].stability,
            blocks=len(in_layer),
            tokens=sum(block.tokens for block in in_layer),
            rewritten_tokens=in_layer[0].rewritten_tokens,
            rewritten_usd=in_layer[0].rewritten_usd,
        )


def _explain_blocks(request: ParsedRequest, price: Price | None) -> Iterator[ExplainedBlock]:
    buffer = request.buffer
    readable = count_readable_tokens(request, len(buffer.blocks))
    for index, block in enumerate(buffer.blocks):
        # Rewritten if this block changes: what is readable now minus what stays readable before it.
        lost = readable - count_readable_tokens(request, count_unaffected_blocks(request, index))
        yield ExplainedBlock(
            path=request.paths[index],
            section=block.section,
            layer=block.layer,
            stability=block.stability.name.lower(),
            tokens=buffer.tokens[index],
            digest=sha256_hex(block.container_start + block.data)[:DIGEST_CHARS],
            rewritten_tokens=lost,
            rewritten_usd=None if price is None else rewrite_cost_usd(request, lost, price),
        )


def _explain_breakpoints(
    request: ParsedRequest, breakpoints: tuple[Breakpoint, ...], price: Price | None
) -> Iterator[ExplainedBreakpoint]:
    floor = request.row.cache.tokens_min if request.row else 0
    tokens = {each.block_index: request.tokens_before(each.block_index + 1) for each in breakpoints}
    cacheable = tuple(each for each in breakpoints if tokens[each.block_index] >= floor)
    expected = {each.block_index: each.saving_usd for each in _expect_savings(request, cacheable, price)}
    for breakpoint_ in breakpoints:
        block = breakpoint_.block_index
        below_floor = tokens[block] < floor
        yield ExplainedBreakpoint(
            block=block,
            path=request.paths[block],
            ttl=breakpoint_.ttl,
            reason=breakpoint_.reason,
            prefix_tokens=tokens[block],
            is_below_floor=below_floor,
            saving_usd=None if price is None else Decimal(0) if below_floor else read_saving_usd(tokens[block], price),
            expected_usd=None if price is None or request.row is None else expected.get(block, Decimal(0)),
        )


def _expect_savings(
    request: ParsedRequest, breakpoints: tuple[Breakpoint, ...], price: Price | None
) -> tuple[Breakpoint, ...]:
    """The breakpoints with the saving expected of each if nothing of the request is cached yet."""
    if price is None or request.row is None:
        return ()
    # Nothing learned: the prior distribution of idle times alone.
    idle_times = expected_idle_times(CacheMemory().idle_times.all, NOTHING_LEARNED.idle_times.all)
    warmth = PromptWarmth(request.buffer.tokens_total, 0)
    return add_savings(breakpoints, request.buffer, warmth, idle_times, rules=request.row.cache, price=price)


def _notes(request: ParsedRequest) -> Iterator[str]:
    row, tokens = request.row, request.buffer.tokens_total
    if row is None:
        yield f"the catalog does not know {request.model[:120]}: no prices, no floor, and no breakpoints of ours"
        return
    rules = row.cache
    if rules.kind == "none":
        yield "this model has no prompt cache"
    elif not row.supports_prompt_caching:
        yield f'caching is turned off for {row.id}: [models."{row.id}"] supports_prompt_caching = true turns it on'
    elif tokens < rules.tokens_min:
        yield f"{tokens} tokens are below the floor of {rules.tokens_min}: the provider caches nothing of this request"
    if rules.kind == "implicit":
        yield "the provider takes no breakpoints: it caches prefixes automatically"
    if len(request.breakpoints) > rules.breakpoints_max > 0:
        yield f"{len(request.breakpoints)} breakpoints are too many: the provider accepts {rules.breakpoints_max}"
