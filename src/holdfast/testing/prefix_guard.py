"""The `prefix_guard` fixture: fails a test whose requests change the cached prefix, and explains where.

A request belongs to the conversation with which it shares the most messages, including the reply, wherever they are in
the prompt. So a conversation is recognised even if its first bytes changed. A request without an assistant message
starts a new conversation. Such a request needs to extend nothing, with one exception: a time of day in its tools or
system prompt must not be the reason that it cannot read the prefix of an earlier conversation.

A request that differs from another one only in its last turn, and has no more turns, is a branch of the conversation
(a parallel question or a retry), not a break.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

import msgspec
import pytest

from holdfast.catalog.lookup import Models
from holdfast.errors import UserError
from holdfast.ledger.cache.change_cause import classify_volatile_at, classify_volatile_within, parse_tool_name
from holdfast.ledger.cache.prefix_diff import PrefixDifference, RequestComparison, compare_requests
from holdfast.ledger.requests.format import format_difference, format_usd_exact, strip_control_characters
from holdfast.ledger.requests.parse import ParsedRequest, find_section_start, parse_request
from holdfast.redaction import redact_secrets
from holdfast.runtime.doctor.perturbations import ADVICE, Cause
from holdfast.testing.markers import enforce_prefix_mark
from holdfast.testing.simulated_provider import ModelCall, ServedProvider, find_price
from holdfast.types.blocks import Block, Text, ToolUse
from holdfast.types.request_buffer import common_prefix_length, count_shared_blocks

TIME_KINDS = ("a date and time", "a time of day", "seconds since the epoch")
_CAUSES: dict[str, Cause] = {
    **dict.fromkeys((*TIME_KINDS, "a date", "words for now"), "clock"),
    **dict.fromkeys(("a UUID", "a hexadecimal id"), "random"),
    "an object's address": "object address",
}
TOOLS_NAMED_MAX = 5
NAME_CHARS_MAX = 64
_WORDS = re.compile(rb"[\w-]+")


def guess_cause(before: ParsedRequest, after: ParsedRequest, difference: PrefixDifference) -> str | None:
    """The likely cause of the change, with advice; None if the bytes give no hint."""
    if difference.section == "tools" and (tool_cause := _tool_list_cause(before, after)):
        return tool_cause
    if difference.change == "changed":
        old, new = before.buffer.blocks[difference.block].data, after.buffer.blocks[difference.block].data
        # Volatile text explains most changes; the other guesses are tried only if there is none.
        kind = _volatile_kind(after, difference) or _volatile_kind(before, difference) or _inserted_kind(old, new)
        if kind in _CAUSES:
            return _with_advice(_CAUSES[kind], kind)
        if kind is not None:
            return f"it contains {kind}"
        if _same_value(old, new):
            return _with_advice("unsorted JSON keys")
        if _same_words(old, new) or _same_blocks(before, after, difference):
            return _with_advice("set order")
    if difference.section == "messages":
        return _history_cause(before, after, difference)
    return "tool schema: the description or schema of a tool changed" if difference.section == "tools" else None


def is_time_difference(before: ParsedRequest, after: ParsedRequest, difference: PrefixDifference) -> bool:
    """Whether the difference is a time of day in both requests."""
    return difference.change == "changed" and all(
        _volatile_kind(request, difference) in TIME_KINDS for request in (before, after)
    )


def _volatile_kind(request: ParsedRequest, difference: PrefixDifference) -> str | None:
    data, block_end = request.buffer.blocks[difference.block].data, request.buffer.digests[difference.block].end
    # difference.byte and block_end count from the start of the prompt, and the block starts at block_end - len(data).
    # The offset in the block is negative if the change is in the separator before it.
    return classify_volatile_at(data, max(0, difference.byte - (block_end - len(data))))


def _inserted_kind(old: bytes, new: bytes) -> str | None:
    """The kind of volatile text that was inserted or removed between equal bytes on both sides."""
    start = common_prefix_length(old, new)
    end = common_prefix_length(old[start:][::-1], new[start:][::-1])
    return classify_volatile_within(new, start, len(new) - end) or classify_volatile_within(old, start, len(old) - end)


def _tool_list_cause(before: ParsedRequest, after: ParsedRequest) -> str | None:
    """Names the tools that were added or removed."""
    old, new = (
        [parse_tool_name(block.data) or "?" for block in request.buffer.blocks if block.section == "tools"]
        for request in (before, after)
    )
    differences = [
        f"{_list_names(names)} {word}"
        for names, word in (_names_only_in(new, old, "added"), _names_only_in(old, new, "removed"))
        if names
    ]
    if not differences:
        return None
    return f"tool list: {', '.join(differences)}; declare all tools in the first call and do not change them"


def _names_only_in(names: Sequence[str], others: Sequence[str], word: str) -> tuple[list[str], str]:
    missing = sorted(set(names) - set(others))
    return missing, f"{'was' if len(missing) == 1 else 'were'} {word}"


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - TOOLS_NAMED_MAX} more" if len(names) > TOOLS_NAMED_MAX else ""
    return ", ".join(name[:NAME_CHARS_MAX] for name in names[:TOOLS_NAMED_MAX]) + more


def _history_cause(before: ParsedRequest, after: ParsedRequest, difference: PrefixDifference) -> str:
    followers = before.buffer.blocks[difference.block + 1 :]
    if difference.change == "removed":
        return "history: messages at the end were removed; only append to what was sent"
    new = after.buffer.blocks[difference.block]
    # If the block now in this position came later before, the blocks between were removed.
    if any((block.role, block.data) == (new.role, new.data) for block in followers):
        return "history: older messages were removed here; compact rarely, and remove much at a time"
    return "history: a message that was already sent has changed; only append to what was sent"


def _with_advice(cause: Cause, kind: str = "") -> str:
    return f"{cause}{f' ({kind})' if kind else ''}: {ADVICE[cause]}"


def _same_value(old: bytes, new: bytes) -> bool:
    try:
        return bool(msgspec.json.decode(old) == msgspec.json.decode(new))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False


def _same_words(old: bytes, new: bytes) -> bool:
    return Counter(_WORDS.findall(old)) == Counter(_WORDS.findall(new))


def _same_blocks(before: ParsedRequest, after: ParsedRequest, difference: PrefixDifference) -> bool:
    """Whether the section (for example the tools) holds the same blocks in another order."""
    old, new = (
        Counter(block.data for block in request.buffer.blocks if block.section == difference.section)
        for request in (before, after)
    )
    return difference.section != "messages" and old == new


CALLS_NAMED_MAX = 20


class PrefixBreak(msgspec.Struct, frozen=True):
    """`call` should have extended `call_before`, both counted from 1. `is_first_call`: of its conversation."""

    call: int
    call_before: int
    comparison: RequestComparison
    cause: str | None
    is_first_call: bool = False


class PrefixGuard:
    """Checks that each request of a test extends the earlier ones, on `check()` and at the end of the test."""

    def __init__(self, node: pytest.Item, provider: ServedProvider) -> None:
        self._node = node
        self._provider = provider

    @property
    def breaks(self) -> tuple[PrefixBreak, ...]:
        """Every call so far that did not extend the call that it continues."""
        return find_prefix_breaks(self._provider.calls, self._provider.models)

    def check(self, *, at_end: bool = False) -> None:
        """Fail the test if its prefix changed without being allowed to; `at_end` warns if it could have and did not."""
        breaks = self.breaks
        enforce_prefix_mark(self._node, describe_breaks(breaks) if breaks else None, at_end=at_end)


def describe_breaks(breaks: Sequence[PrefixBreak]) -> str:
    """Describe the first break in full and list the calls of the others."""
    first = breaks[0]
    comparison = first.comparison
    relation = "starts a conversation and could have read the prefix of" if first.is_first_call else "does not extend"
    lines = [f"the cached prefix changed: call {first.call} {relation} call {first.call_before} ({comparison.model})"]
    if comparison.difference:
        lines.append(f"  {format_difference(comparison.difference, after=f'call {first.call}')}")
        lines += [f"    {strip_control_characters(line)}" for line in comparison.difference.diff]
    for changed in comparison.parameters:
        lines.append(f"  {changed.name} changed: {changed.first_lost_section} and everything after it is lost")
    if first.cause:
        lines.append(f"  likely cause: {redact_secrets(strip_control_characters(first.cause))}")
    lines.append(
        f"  {comparison.tokens_lost} of {comparison.tokens_before} cached tokens (estimated) are lost; "
        f"writing them again costs {format_usd_exact(comparison.lost_usd)} more"
    )
    lines += [f"  note: {note}" for note in comparison.notes]
    if others := [str(prefix_break.call) for prefix_break in breaks[1:]]:
        more = f" and {len(others) - CALLS_NAMED_MAX} more" if len(others) > CALLS_NAMED_MAX else ""
        lines.append(f"  also broken: call {', '.join(others[:CALLS_NAMED_MAX])}{more}")
    return "\n".join(lines)


def find_prefix_breaks(calls: Iterable[ModelCall], models: Models) -> tuple[PrefixBreak, ...]:
    requests = RequestHistory(models)
    return tuple(prefix_break for call in calls if (prefix_break := requests.add_call(call)) is not None)


class RequestHistory:
    """The requests so far, by model; `_tips` are those that no later request has extended."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._earlier: dict[str, list[_Request]] = {}
        self._tips: dict[str, list[_Request]] = {}

    def add_call(self, call: ModelCall) -> PrefixBreak | None:
        """Record the call; returns the break if it does not extend the call that it continues."""
        try:
            request = _Request(call, parse_request(call.body, model=call.model, models=self._models))
        except UserError:
            # The simulator accepted a body that cannot be decoded, so there is nothing to compare.
            return None
        earlier = self._earlier.setdefault(call.model, [])
        tips = self._tips.setdefault(call.model, [])
        extended = next((tip for tip in reversed(tips) if request.extends(tip)), None)
        prefix_break = self._find_break(request, extended, earlier)
        if extended is not None:
            tips.remove(extended)
        tips.append(request)
        earlier.append(request)
        return prefix_break

    def _find_break(
        self, request: "_Request", extended: "_Request | None", earlier: Sequence["_Request"]
    ) -> PrefixBreak | None:
        if extended is None and not request.assistant_turns:
            return self._find_first_call_break(request, earlier)
        before = extended or _continued_request(request, earlier)
        if before is None or request.branches_off(before):
            return None
        comparison = self._compare(before, request)
        if comparison.is_prefix_unchanged:
            return None
        cause = guess_cause(before.parsed, request.parsed, comparison.difference) if comparison.difference else None
        return PrefixBreak(request.call.number, before.call.number, comparison, cause)

    def _find_first_call_break(self, request: "_Request", earlier: Sequence["_Request"]) -> PrefixBreak | None:
        # One request per distinct prefix: equal prefixes would give the same comparison.
        by_prefix = {before.stable_digest: before for before in earlier}
        if request.stable_digest in by_prefix:
            return None
        for before in reversed(by_prefix.values()):
            comparison = self._compare(before, request)
            difference = comparison.difference
            if not difference or difference.section == "messages":
                continue
            if is_time_difference(before.parsed, request.parsed, difference):
                cause = guess_cause(before.parsed, request.parsed, difference)
                return PrefixBreak(request.call.number, before.call.number, comparison, cause, is_first_call=True)
        return None

    def _compare(self, before: "_Request", request: "_Request") -> RequestComparison:
        tokens = before.parsed.buffer.tokens_total
        price = find_price(request.call.model, self._models, at=request.call.at, tokens=tokens)
        return compare_requests(before.parsed, request.parsed, price)


class _Request:
    """A call, its decoded request, and the properties by which requests are matched."""

    def __init__(self, call: ModelCall, parsed: ParsedRequest) -> None:
        self.call = call
        self.parsed = parsed

    @cached_property
    def blocks(self) -> Counter[tuple[str | None, bytes]]:
        """The message blocks with their roles, regardless of order."""
        blocks = self.parsed.buffer.blocks
        return Counter((block.role, block.data) for block in blocks if block.section == "messages")

    @cached_property
    def roles(self) -> tuple[str | None, ...]:
        return tuple(block.role for block in self.parsed.buffer.blocks)

    @cached_property
    def assistant_turns(self) -> int:
        is_assistant = [role == "assistant" for role in self.roles]
        return sum(now and not before for before, now in zip([False, *is_assistant], is_assistant, strict=False))

    @cached_property
    def stable_digest(self) -> str:
        """A digest of the tools and the system prompt."""
        end = find_section_start(self.parsed, "messages")
        return self.parsed.buffer.digests[end - 1].digest if end else ""

    @cached_property
    def assistant_keys(self) -> frozenset[str]:
        entries = (entry for entry in self.parsed.wire.prompt.entries if entry.role == "assistant")
        return frozenset(key for entry in entries for block in entry.content if (key := _block_key(block)))

    def extends(self, before: "_Request") -> bool:
        return self.count_shared_blocks(before) == len(before.parsed.buffer.digests)

    def count_shared_blocks(self, before: "_Request") -> int:
        return count_shared_blocks(before.parsed.buffer.digests, self.parsed.buffer.digests)

    def count_common_blocks(self, before: "_Request") -> int:
        """How many blocks of the earlier request and of its reply also occur here."""
        replied = sum(_block_key(block) in self.assistant_keys for block in before.call.reply)
        return (self.blocks & before.blocks).total() + replied

    def branches_off(self, before: "_Request") -> bool:
        """Whether this request differs from the earlier one only in that one's last turn."""
        last_turn = max((at + 1 for at, role in enumerate(before.roles) if role == "assistant"), default=0)
        last_turn = max(last_turn, find_section_start(before.parsed, "messages"))
        shared = self.count_shared_blocks(before)
        return self.assistant_turns <= before.assistant_turns and last_turn <= shared < len(before.roles)


def _continued_request(request: _Request, earlier: Sequence[_Request]) -> _Request | None:
    """The earlier request with the most blocks in common, if these are at least half of the smaller request.

    Ties go to the longest common prefix, then to the shortest request, then to the newest.
    """

    def match_rank(candidate: _Request) -> tuple[int, int, int, int]:
        return (
            request.count_common_blocks(candidate),
            request.count_shared_blocks(candidate),
            -candidate.blocks.total(),
            candidate.call.number,
        )

    nearest = max(earlier, key=match_rank, default=None)
    if nearest is None:
        return None
    # At least half of the smaller request must match; fewer common blocks, such as a shared greeting, are chance.
    in_common = request.count_common_blocks(nearest)
    smaller = min(nearest.blocks.total() + len(nearest.call.reply), request.blocks.total())
    return nearest if in_common and 2 * in_common >= smaller else None


def _block_key(block: Block) -> str:
    match block:
        case Text(text=text):
            return text
        case ToolUse(id=id):
            return id
        case _:
            return ""
