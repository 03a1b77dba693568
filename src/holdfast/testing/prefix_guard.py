"""The `prefix_guard` fixture: fails a test whose requests change the cached prefix, and explains where.

A request belongs to the conversation with which it shares the most messages, including the reply, wherever they are in
the prompt. So a conversation is recognised even if its first bytes changed. A request without an assistant message
starts a new conversation. Such a request needs to extend nothing, with one exception: a time of day in its tools or
system prompt must not be the reason that it cannot read the prefix of an earlier conversation.

A request that differs from another one only in its last turn, and has no more turns, is a branch of the conversation
(a parallel question or a retry), not a break.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

import msgspec
import pytest

from holdfast.catalog.lookup import Models
from holdfast.errors import UserError
from holdfast.ledger.cache.prefix_diff import RequestComparison, compare_requests
from holdfast.ledger.requests.format import format_difference, format_usd_exact, strip_control_characters
from holdfast.ledger.requests.parse import ParsedRequest, find_section_start, parse_request
from holdfast.redaction import redact_secrets
from holdfast.testing.change_causes import guess_cause, is_time_difference
from holdfast.testing.markers import enforce_prefix_mark
from holdfast.testing.simulated_provider import ServedProvider
from holdfast.testing.spending import ModelCall, find_price
from holdfast.types.blocks import Block, Text, ToolUse
from holdfast.types.request_buffer import count_shared_blocks

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
