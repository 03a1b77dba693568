"""Compares two requests: where the second stops matching the first, and what that costs."""

import difflib
from decimal import Decimal
from itertools import islice
from typing import Literal

import msgspec

from holdfast.cachemodel.tiers import CacheParameters
from holdfast.catalog.schema import CacheRules, Price
from holdfast.errors import UserError
from holdfast.ledger.requests.parse import (
    PROMPT_SECTIONS,
    ParsedRequest,
    count_readable_tokens,
    count_unaffected_blocks,
    find_section_start,
    get_tier_parameters,
    rewrite_cost_usd,
)
from holdfast.redaction import redact_secrets
from holdfast.types.prompt import PromptSection
from holdfast.types.request_buffer import EncodedBlock, common_prefix_length, count_shared_blocks

# Enough of both texts around the first difference to recognise the place, on less than one screen of a terminal.
CHARS_BEFORE = 100
CHARS_AFTER = 300
DIFF_LINES_MAX = 16
LINE_CHARS_MAX = 160


class PrefixDifference(msgspec.Struct, frozen=True):
    """The first cacheable byte that differs and the block it is in; `diff` shows both blocks around it.

    `change` is "added" where a block of the second request comes between two sections of the first (a tool after the
    last tool, say), and "removed" where a section, or the whole request, ends before this block.
    """

    path: str
    path_after: str | None
    section: PromptSection
    block: int
    byte: int
    diff: tuple[str, ...]
    change: Literal["changed", "added", "removed"] = "changed"


class ChangedParameter(msgspec.Struct, frozen=True):
    """`first_lost_section` is the first section of the prompt that can no longer be read from the cache."""

    name: str
    first_lost_section: PromptSection


class SectionComparison(msgspec.Struct, frozen=True):
    section: PromptSection
    blocks: int
    blocks_unchanged: int

    @property
    def is_unchanged(self) -> bool:
        return self.blocks_unchanged == self.blocks


class RequestComparison(msgspec.Struct, frozen=True):
    """How much of the first request's cacheable prefix the second can read. Token counts are estimates.

    The first request left `tokens_before` tokens readable; the second reads `tokens_read` of them. `lost_usd` is None
    where no price is known.
    """

    model: str
    is_prefix_unchanged: bool
    difference: PrefixDifference | None
    parameters: tuple[ChangedParameter, ...]
    sections: tuple[SectionComparison, ...]
    tokens_before: int
    tokens_read: int
    lost_usd: Decimal | None
    notes: tuple[str, ...]

    @property
    def tokens_lost(self) -> int:
        return self.tokens_before - self.tokens_read


def compare_requests(before: ParsedRequest, after: ParsedRequest, price: Price | None) -> RequestComparison:
    """Cache breakpoints are ignored: they are not part of the cacheable bytes."""
    if before.recognised.provider != after.recognised.provider:
        raise UserError(
            f"the first request is for {before.recognised.provider}, the second for {after.recognised.provider}; "
            "no cache is shared between providers"
        )
    shared = count_shared_blocks(before.buffer.digests, after.buffer.digests)
    difference = _find_difference(before, after, shared) if shared < len(before.buffer.digests) else None
    parameters = _changed_parameters(before, after)
    unaffected = count_unaffected_blocks(before, shared) if difference else shared
    # A changed parameter invalidates everything from its first lost section on, whatever the bytes say.
    unaffected = min([unaffected, *(find_section_start(before, changed.first_lost_section) for changed in parameters)])
    readable_before = count_readable_tokens(before, len(before.buffer.blocks))
    readable_after = count_readable_tokens(before, unaffected)
    return RequestComparison(
        model=before.model,
        is_prefix_unchanged=difference is None and not parameters,
        difference=difference,
        parameters=parameters,
        sections=tuple(_compare_sections(before, unaffected)),
        tokens_before=readable_before,
        tokens_read=readable_after,
        lost_usd=None if price is None else rewrite_cost_usd(before, readable_before - readable_after, price),
        notes=tuple(_notes(before, readable_before)),
    )


def _compare_sections(request: ParsedRequest, unaffected: int) -> list[SectionComparison]:
    comparisons = []
    for section in PROMPT_SECTIONS:
        first = find_section_start(request, section)
        block_count = sum(block.section == section for block in request.buffer.blocks)
        if block_count:
            comparisons.append(SectionComparison(section, block_count, min(max(unaffected - first, 0), block_count)))
    return comparisons


def _notes(request: ParsedRequest, readable: int) -> list[str]:
    if request.row is None:
        model = request.model[:120]
        return [f"the catalog does not know {model}: no price is known, and every token is assumed cached"]
    rules = request.row.cache
    if rules.kind == "none" or not request.row.supports_prompt_caching:
        return ["this model has no prompt cache that we know of: nothing is cached, so nothing is lost"]
    if not readable:
        total = request.buffer.tokens_total
        return [f"{total} tokens (estimated) are below the floor of {rules.tokens_min}: nothing is cached"]
    if rules.kind == "explicit" and not request.breakpoints:
        return ["the first request has no breakpoint, so nothing of it is cached; the figures assume our breakpoints"]
    return []


def _changed_parameters(before: ParsedRequest, after: ParsedRequest) -> tuple[ChangedParameter, ...]:
    rules = before.row.cache if before.row else None
    old, new = _parameter_values(get_tier_parameters(before)), _parameter_values(get_tier_parameters(after))
    changed = (name for name in old if old[name] != new.get(name))
    parameters = (ChangedParameter(name, lost) for name in changed if (lost := _first_lost(name, rules)) is not None)
    return tuple(sorted(parameters, key=lambda each: (PROMPT_SECTIONS.index(each.first_lost_section), each.name)))


def _first_lost(name: str, rules: CacheRules | None) -> PromptSection | None:
    if rules is None:
        return "tools" if name == "model" else None
    if name == "effort":
        return "messages" if rules.effort_breaks_messages else None
    return rules.invalidates.get(name)


def _parameter_values(parameters: CacheParameters) -> dict[str, object]:
    values: dict[str, object] = msgspec.structs.asdict(parameters)
    del values["others"]
    return {**values, **parameters.others}


def _find_difference(before: ParsedRequest, after: ParsedRequest, block: int) -> PrefixDifference:
    old, new = before.buffer.cacheable_bytes(), after.buffer.cacheable_bytes()
    is_present = block < len(after.buffer.digests)
    byte = common_prefix_length(old, new, before.buffer.digests[block].start)
    old_block = before.buffer.blocks[block]
    new_block = after.buffer.blocks[block] if is_present else None
    change = _classify_change(old_block, new_block)
    old_text = "" if change == "added" else format_block(old_block)
    new_text = format_block(new_block) if new_block and change != "removed" else ""
    return PrefixDifference(
        path=before.paths[block],
        path_after=after.paths[block] if is_present else None,
        section=new_block.section if new_block and change == "added" else old_block.section,
        block=block,
        byte=byte,
        diff=_diff_redacted(old_text, new_text),
        change=change,
    )


def _classify_change(old: EncodedBlock, new: EncodedBlock | None) -> Literal["changed", "added", "removed"]:
    if new is None or PROMPT_SECTIONS.index(new.section) > PROMPT_SECTIONS.index(old.section):
        return "removed"
    return "added" if new.section != old.section else "changed"


def format_block(block: EncodedBlock) -> str:
    """A block for a reader: its role, then its text, or its indented JSON."""
    role_line = f"[{block.role}]\n" if block.role else ""
    try:
        value = msgspec.json.decode(block.data)
        if isinstance(value, dict) and isinstance(value.get("text"), str) and value.keys() <= {"type", "text"}:
            return role_line + str(value["text"])
        return role_line + msgspec.json.format(block.data).decode()
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return role_line + (block.container_start + block.data).decode(errors="replace")


def _diff_redacted(old: str, new: str) -> tuple[str, ...]:
    # Before the diff cuts out a window: half a credential might no longer be recognised.
    shown_old, shown_new = redact_secrets(old), redact_secrets(new)
    if shown_old == shown_new and old != new:
        return ("(the difference is hidden: it looks like a key)",)
    return tuple(diff_texts(shown_old, shown_new))


def diff_texts(old: str, new: str) -> list[str]:
    """A few lines of a unified diff around the first difference, with long lines truncated."""
    # UTF-32 has four bytes per character, so bytes in common / 4 is the number of characters in common.
    first_difference = common_prefix_length(old.encode("utf-32-le", "replace"), new.encode("utf-32-le", "replace")) // 4
    start = max(0, first_difference - CHARS_BEFORE)
    excerpts = [_window(text, start, first_difference + CHARS_AFTER) for text in (old, new)]
    lines = difflib.unified_diff(excerpts[0].splitlines(), excerpts[1].splitlines(), lineterm="", n=1)
    # Skip the three header lines: there are no file names or line numbers to show.
    return [_truncate_line(line) for line in islice(lines, 3, 3 + DIFF_LINES_MAX)]


def _window(text: str, start: int, end: int) -> str:
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")


def _truncate_line(line: str) -> str:
    return line if len(line) <= LINE_CHARS_MAX else line[: LINE_CHARS_MAX - 1] + "…"
