"""Anthropic's cache: entries are written only at breakpoints, and looked up from them backwards."""

from collections.abc import Iterator, Sequence

from holdfast.cachemodel.values import CacheCall, CacheEntries, CacheEntry, CacheOutcome, PromptPrefix, refresh_entries
from holdfast.catalog.schema import CacheRules
from holdfast.errors import UserError
from holdfast.types.prompt import Breakpoint, Ttl
from holdfast.types.usage import Usage


def begin_breakpoint_call(
    rules: CacheRules, entries: CacheEntries, call: CacheCall
) -> tuple[CacheOutcome, CacheEntries]:
    check_breakpoints(rules, call.breakpoints, blocks=len(call.prefixes))
    ordered = sorted(call.breakpoints, key=lambda breakpoint: breakpoint.block_index)
    # The provider silently ignores breakpoints whose prefix is below the minimum size.
    breakpoints = [each for each in ordered if call.prefixes[each.block_index].tokens >= rules.tokens_min]
    read = _highest_hit(rules, entries, call, breakpoints)
    present_entries, missing = [], []
    for breakpoint in breakpoints:
        entry = entries.find(call.scope, call.prefixes[breakpoint.block_index].digest, at=call.at)
        if entry is None:
            missing.append(breakpoint)
        else:
            present_entries.append(entry)
    outcome = CacheOutcome(
        usage=_bill(call, breakpoints, read),
        at=call.at,
        read=read,
        written=tuple(_new_entry(rules, entries, call, breakpoint, read=read) for breakpoint in missing),
    )
    used = present_entries if read is None else [read, *present_entries]
    return outcome, refresh_entries(rules, entries, used, at=call.at)


def check_breakpoints(rules: CacheRules, breakpoints: Sequence[Breakpoint], *, blocks: int) -> None:
    """Refuse what the provider refuses: too many breakpoints, unknown TTLs, a longer TTL after a shorter one."""
    if len(breakpoints) > rules.breakpoints_max:
        raise UserError(
            f"A maximum of {rules.breakpoints_max} blocks with cache_control may be provided. Found {len(breakpoints)}."
        )
    shortest: float | None = None
    for breakpoint in sort_breakpoints(rules, breakpoints, blocks=blocks):
        seconds = rules.ttls_seconds[breakpoint.ttl]
        if shortest is not None and seconds > shortest:
            raise UserError(
                f"a ttl='{breakpoint.ttl}' cache_control block must not come after one with a shorter ttl; "
                "put longer TTLs first"
            )
        shortest = seconds


def sort_breakpoints(rules: CacheRules, breakpoints: Sequence[Breakpoint], *, blocks: int) -> tuple[Breakpoint, ...]:
    """The breakpoints in wire order; refuses those outside the prompt, duplicates, and unknown TTLs."""
    ordered = sorted(breakpoints, key=lambda breakpoint: breakpoint.block_index)
    seen: set[int] = set()
    for breakpoint in ordered:
        if not 0 <= breakpoint.block_index < blocks:
            raise UserError(f"breakpoint on block {breakpoint.block_index} of {blocks}; blocks are counted from 0")
        if breakpoint.block_index in seen:
            raise UserError(f"two breakpoints on block {breakpoint.block_index}; place one")
        if breakpoint.ttl not in rules.ttls_seconds:
            supported = ", ".join(sorted(rules.ttls_seconds))
            raise UserError(f"unknown cache_control ttl {breakpoint.ttl!r}; known: {supported}")
        seen.add(breakpoint.block_index)
    return tuple(ordered)


def _highest_hit(
    rules: CacheRules, entries: CacheEntries, call: CacheCall, breakpoints: Sequence[Breakpoint]
) -> CacheEntry | None:
    for breakpoint in reversed(breakpoints):
        for index in lookup_positions(rules, call.prefixes, breakpoint.block_index):
            prefix = call.prefixes[index]
            if prefix.tokens < rules.tokens_min:
                break
            entry = entries.find(call.scope, prefix.digest, at=call.at)
            if entry is not None:
                return entry
    return None


def _bill(call: CacheCall, breakpoints: Sequence[Breakpoint], read: CacheEntry | None) -> Usage:
    """The usage of a call, by Anthropic's rule for mixed TTLs."""
    # A = tokens at the highest hit, B = tokens at the highest 1-hour breakpoint after A (else A), C = tokens at the
    # last breakpoint. Billed: read A, 1-hour write B - A, 5-minute write C - B, uncached input after C (Anthropic,
    # "Prompt caching").
    hit = read.tokens if read else 0
    ends: dict[Ttl, int] = {"1h": hit, "5m": hit}
    for breakpoint in breakpoints:
        ends[breakpoint.ttl] = max(hit, call.prefixes[breakpoint.block_index].tokens)
    written_end = max(ends.values())
    return Usage(
        input=call.tokens - written_end,
        cache_read=hit,
        cache_write_1h=ends["1h"] - hit,
        cache_write_5m=written_end - ends["1h"],
    )


def _new_entry(
    rules: CacheRules, entries: CacheEntries, call: CacheCall, breakpoint: Breakpoint, *, read: CacheEntry | None
) -> CacheEntry:
    """The entry for the prefix that ends at this breakpoint; `read` is the entry that the call read."""
    prefix = call.prefixes[breakpoint.block_index]
    ttl: str = breakpoint.ttl
    depends_on: str | None = None
    # Using a prefix refreshes everything inside it, so of ranges with the same TTL the last one expires first. Whether
    # a longer TTL after it extends the whole prefix is not documented; `ttl_upgrade` holds the assumption.
    shortest_lived = (entries.dependency(read, at=call.at) or read) if read else None
    if shortest_lived is not None and rules.ttls_seconds[shortest_lived.ttl] < rules.ttls_seconds[ttl]:
        if prefix.tokens > shortest_lived.tokens:
            depends_on = shortest_lived.digest
        elif not rules.ttl_upgrade:
            ttl = shortest_lived.ttl
    return CacheEntry(
        call.scope,
        prefix.digest,
        prefix.tokens,
        ttl,
        expires_at=call.at + rules.ttls_seconds[ttl],
        depends_on=depends_on,
        outlives_dependency=depends_on is not None and rules.ttl_upgrade,
    )


def lookup_positions(rules: CacheRules, prefixes: Sequence[PromptPrefix], breakpoint: int) -> Iterator[int]:
    """The blocks whose prefixes are looked up for the breakpoint on block `breakpoint`: its own first, then backwards.

    Anthropic checks at most 20 positions, the breakpoint's own included ("Prompt caching"). That a run of consecutive
    tool_use (or tool_result) blocks counts as one position is reported but not documented, so the rules have a field.
    """
    collapses = rules.lookback_counting == "positions"
    position = 0
    for index in range(breakpoint, -1, -1):
        kind = prefixes[index].kind
        in_run = collapses and index < breakpoint and kind != "plain" and kind == prefixes[index + 1].kind
        position += not in_run
        if position > rules.lookback_positions:
            return
        yield index
