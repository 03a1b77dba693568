"""Applies a cache plan to the body of a request: breakpoints where the plan wants them, the rest byte for byte."""

import hashlib
from collections.abc import Mapping

import msgspec

from holdfast.catalog.schema import Model
from holdfast.engine.cache.conversation_plans import ConversationPlans, PlannedCall, RawPrompt
from holdfast.engine.inject.anthropic_body import (
    AnthropicBody,
    RawItem,
    count_nested_marks,
    find_mark,
    is_marked,
    list_marks,
    mark_block,
    mark_message,
)
from holdfast.providers.anthropic import anthropic
from holdfast.types.prompt import Breakpoint, Ttl


class PlacedBreakpoints(msgspec.Struct, frozen=True):
    """The breakpoints of a request as sent; `is_changed` if they are not the client's."""

    breakpoints: tuple[Breakpoint, ...]
    is_changed: bool


def plan_anthropic_call(
    plans: ConversationPlans, body: AnthropicBody, row: Model, *, scope: str, at: float
) -> PlannedCall:
    head = hashlib.sha256()
    for item in (*body.tools, b"\0", *body.system):
        head.update(mark_block(item, None) if is_marked(item) else item)
    digests = [hashlib.sha256(message).digest() for message in body.messages]
    prompt = RawPrompt(scope, head.digest(), digests, bool(body.tools), body.encode_head, body.encode_message)
    return plans.plan_call(anthropic, row, prompt, at)


def place_planned_breakpoints(body: AnthropicBody, call: PlannedCall, slots: int) -> PlacedBreakpoints:
    """Set the planned breakpoints in place. The client's own on tools and system text stay: it may know them better.

    Those on messages are replaced, because they follow the client's fixed rule and use up the slots.
    """
    head_items = [*body.tools, *body.system]
    client_head = {index: ttl for index, item in enumerate(head_items) if (ttl := find_mark(item)) is not None}
    planned = call.plan.breakpoints
    client = _client_breakpoints(body, call, client_head)
    # A client that caches a single call may know that another follows.
    if not planned or (call.is_limited and client):
        return PlacedBreakpoints(client, is_changed=False)
    nested_count = sum(count_nested_marks(message) for message in body.messages if is_marked(message))
    slots = max(0, slots - nested_count)
    wanted_head: dict[int, Ttl] = dict(client_head)
    if not client_head:
        in_head = [point for point in planned if call.locate_block(point.block_index) is None]
        wanted_head = {point.block_index: point.ttl for point in in_head[max(0, len(in_head) - slots) :]}
    free = max(0, slots - len(wanted_head))
    in_messages = [point for point in planned if call.locate_block(point.block_index) is not None]
    chosen = in_messages[len(in_messages) - min(free, len(in_messages)) :]
    if any(point.ttl == "1h" for point in chosen):
        # A 1-hour breakpoint after a 5-minute one is refused (Anthropic, "Prompt caching").
        wanted_head = dict.fromkeys(wanted_head, "1h")
    is_changed = wanted_head != client_head
    for index, ttl in wanted_head.items():
        if client_head.get(index) != ttl:
            _set_head_item(body, index, mark_block(head_items[index], ttl))
    wanted: dict[int, dict[int, Ttl]] = {}
    for point in chosen:
        place = call.locate_block(point.block_index)
        assert place is not None
        wanted.setdefault(place[0], {})[place[1]] = point.ttl
    for index, message in enumerate(body.messages):
        if index not in wanted and not is_marked(message):
            continue
        marks = wanted.get(index, {})
        if list_marks(message) != marks:
            body.messages[index] = mark_message(message, marks)
            is_changed = True
    if body.members.pop("cache_control", None) is not None:
        is_changed = True
    head_points = tuple(Breakpoint(index, ttl) for index, ttl in sorted(wanted_head.items()))
    return PlacedBreakpoints((*head_points, *chosen), is_changed)


def _client_breakpoints(body: AnthropicBody, call: PlannedCall, head: Mapping[int, Ttl]) -> tuple[Breakpoint, ...]:
    points = [Breakpoint(index, ttl) for index, ttl in head.items()]
    for index, message in enumerate(body.messages):
        if is_marked(message):
            points += [Breakpoint(call.starts[index] + block, ttl) for block, ttl in list_marks(message).items()]
    # An automatic breakpoint is on the last block.
    ttl, last = body.automatic_ttl, len(call.digests) - 1
    automatic = (
        [Breakpoint(last, ttl)] if ttl is not None and all(point.block_index != last for point in points) else []
    )
    return (*points, *automatic)


def _set_head_item(body: AnthropicBody, index: int, item: RawItem) -> None:
    items, position = (body.tools, index) if index < len(body.tools) else (body.system, index - len(body.tools))
    items[position] = item
