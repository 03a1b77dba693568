"""Rewrites forwarded requests so that the prompt cache hits: same content, stable order, cache breakpoints.

A rewrite depends on the request alone, and the rewrite of a longer conversation extends the rewrite of a shorter one.
So there is no state to keep or to lose in a restart.
"""

from collections.abc import Callable, Mapping

import msgspec

from holdfast.canonical.blocks import Block, Role
from holdfast.canonical.encoding import plain_json
from holdfast.canonical.prompt import Parameters
from holdfast.catalog.lookup import Models, find_model
from holdfast.catalog.rows import Model
from holdfast.engine.draft import Draft
from holdfast.engine.marking import anthropic as marks
from holdfast.engine.marking import openai as keys
from holdfast.engine.marking.dialect import Request, Rewritten
from holdfast.errors import UserError
from holdfast.events.payloads_gateway import Change
from holdfast.gateway import improving_openrouter as openrouter
from holdfast.gateway.edits import BREAKPOINT, KEY, LIFETIMES, MARKS, Body, Edits, converted, in_parts, objects_in
from holdfast.gateway.improving_gemini import mend_gemini
from holdfast.gateway.improving_openai import (
    RESPONSES_ROLES,
    mend_chat,
    mend_responses,
    session_of,
    sort_tools,
    told_at_end,
)
from holdfast.gateway.lifetimes import in_order
from holdfast.gateway.volatile import Volatile
from holdfast.providers.adapter import PATH, Adapter, WireRequest
from holdfast.providers.registry import adapter_for


class Improved(msgspec.Struct, frozen=True):
    """The result of a rewrite; `body` is None if the request is forwarded unchanged.

    `wire` is the decoded request as it will be sent, `row` the catalog row of its model.
    """

    body: bytes | None
    wire: WireRequest
    row: Model
    changes: tuple[Change, ...] = ()


class Improver:
    """Stateless and thread-safe."""

    def __init__(self, models: Models, volatile: Volatile | None = None) -> None:
        self._models = models
        self._volatile = volatile or Volatile()

    def improved(self, speaks: str, body: bytes, *, path: str = "", unfixed: frozenset[str] = frozenset()) -> Improved:
        """Fixes all anti-patterns but those in `unfixed`. `path` is the request's; Gemini names the model there.

        May raise anything for a body that we do not understand; the caller then forwards the original.
        """
        adapter = adapter_for(speaks)
        members: Body = msgspec.json.decode(body)
        headers = {PATH: path}
        # Re-encode first: insignificant white space must not count as a difference.
        before = adapter.read_request(plain_json(members), headers)
        row = find_model(f"{adapter.name}:{before.parameters.model}", self._models)
        edits = Edits(self._volatile, unfixed)
        rewritten = _REWRITERS[speaks](dict(members), row, edits, adapter) if speaks in _REWRITERS else members
        if not edits.changes:
            return Improved(None, before, row)
        encoded = plain_json(rewritten)
        after = adapter.read_request(encoded, headers)
        _check_same_content(before, after, edits.moved)
        return Improved(encoded, after, row, tuple(edits.changes))


def _rewrite_anthropic(body: Body, row: Model, edits: Edits, adapter: Adapter) -> Body:
    # Moved text is appended to the last message, which must be the user's: after an assistant prefill it would be
    # taken for the model's own words.
    if _ends_with_user(body):
        system, volatile = edits.without_volatile(body.get("system"))
        if volatile:
            body["system"] = system
            if not system:
                del body["system"]
            edits.move(volatile, "system")
    ordered = edits.sorted_tools(body.get("tools"), lambda tool: tool.get("name"))
    if ordered is not None:
        body["tools"] = ordered
    body["messages"] = in_parts(body["messages"], "text", ("user", "assistant"))
    # Before placing breakpoints: Anthropic answers 400 if a 1h breakpoint comes after a 5m one.
    if edits.mends(LIFETIMES) and in_order(body):
        edits.note(LIFETIMES, "marks")
    if edits.mends(MARKS):
        request = _request(adapter, body, row, "")
        rewritten = marks.rewrite({**body}, request, text_follows=bool(edits.moved))
        added = len(rewritten.wire.plan.marks) - len(request.wire.plan.marks)
        if added:
            edits.note(MARKS, f"{added} placed")
        body = _merge_extra_body(rewritten)
    if edits.moved:
        # After the last breakpoint, so that it is neither cached nor part of a later request's prefix.
        _append_to_last_message(body, {"type": "text", "text": edits.moved})
    return body


def _rewrite_openai(body: Body, row: Model, edits: Edits, adapter: Adapter) -> Body:
    prompt_member, part_type = ("messages", "text") if adapter.name == "openai-chat" else ("input", "input_text")
    role = (mend_chat if prompt_member == "messages" else mend_responses)(body, edits)
    request = _request(adapter, body, row, session_of(body, prompt_member))
    had_key = body.get(keys.KEY) is not None
    if edits.mends(KEY) or edits.mends(BREAKPOINT):
        rewritten = keys.rewrite({**body}, request, adapter=adapter, prompt_name=prompt_member, part_type=part_type)
        if len(rewritten.wire.plan.marks) > len(request.wire.plan.marks):
            edits.note(BREAKPOINT, "end of the system text")
        body = _merge_extra_body(rewritten)
        if not had_key and body.get(keys.KEY) is not None:
            edits.note(KEY, keys.KEY)
    if edits.moved:
        has_free_breakpoint = row.cache.marks_max - 1 > len(adapter.read_request(plain_json(body)).plan.marks)
        body[prompt_member] = told_at_end(
            in_parts(body[prompt_member], part_type, RESPONSES_ROLES),
            {"role": role, "content": edits.moved},
            breakpoint_in=part_type if row.cache.kind == "breakpoints" and has_free_breakpoint else None,
        )
    return body


def _rewrite_openrouter(body: Body, row: Model, edits: Edits, adapter: Adapter) -> Body:
    if _ends_with_user(body):
        mend_chat(body, edits)
    else:
        sort_tools(body, edits)
    body["messages"] = in_parts(body["messages"], "text", openrouter.ROLES)
    if row.cache.kind == "marks":
        if edits.mends(LIFETIMES) and in_order(body):
            edits.note(LIFETIMES, "breakpoints")
        if edits.mends(MARKS):
            request = _request(adapter, body, row, "")
            missing = marks.missing_marks(request, request.wire.plan.marks, text_follows=bool(edits.moved))
            body, added = openrouter.with_marks(body, missing, adapter)
            if added:
                edits.note(MARKS, f"{added} placed")
    # OpenRouter routes requests with the same session_id to the same provider, whose cache they share.
    if row.cache.kind != "none" and edits.mends(KEY) and body.get(openrouter.SESSION) is None:
        body[openrouter.SESSION] = openrouter.session_in(body)
        edits.note(KEY, openrouter.SESSION)
    if edits.moved:
        _append_to_last_message(body, {"type": "text", "text": edits.moved})
    return body


def _rewrite_gemini(body: Body, row: Model, edits: Edits, adapter: Adapter) -> Body:
    return mend_gemini(body, edits)


_REWRITERS: Mapping[str, Callable[[Body, Model, Edits, Adapter], Body]] = {
    "anthropic": _rewrite_anthropic,
    "openai-chat": _rewrite_openai,
    "openai": _rewrite_openai,
    "gemini": _rewrite_gemini,
    "openrouter": _rewrite_openrouter,
}


def _check_same_content(before: WireRequest, after: WireRequest, moved: str) -> None:
    """Raises UserError unless both requests differ only in breakpoints, tool order and the moved volatile text."""
    same_tools = sorted(before.prompt.tools, key=repr) == sorted(after.prompt.tools, key=repr)
    old, new = _content_blocks(before), _content_blocks(after)
    # Moved text becomes exactly one extra block at the end.
    same_content = bool(old) and new[: len(old)] == old and len(new) - len(old) == bool(moved)
    if not same_tools or not same_content or _comparable_parameters(before) != _comparable_parameters(after):
        raise UserError("the rewrite would change the content of the request")


def _content_blocks(wire: WireRequest) -> list[tuple[Role, Block]]:
    return [(entry.role, block) for entry in wire.prompt.passages for block in entry.content]


def _comparable_parameters(wire: WireRequest) -> Parameters:
    """All parameters but the cache key and the OpenRouter session id, which a rewrite may add."""
    added = (keys.KEY, openrouter.SESSION)
    extra = tuple(sorted(pair for pair in wire.parameters.extra if pair[0] not in added))
    return msgspec.structs.replace(wire.parameters, extra=extra)


def _request(adapter: Adapter, body: Body, row: Model, session: str) -> Request:
    wire = adapter.read_request(plain_json(body))
    draft = Draft(adapter, lambda encoded: 0)
    draft.update(wire.prompt)
    return Request(body, wire, draft.scroll, row, session, _previous_end(wire, draft))


def _previous_end(wire: WireRequest, draft: Draft) -> int | None:
    """Index of the last block of the previous request: the one before the newest assistant message."""
    entries = wire.prompt.passages
    newest = next((index for index in range(len(entries) - 1, -1, -1) if entries[index].role == "assistant"), 0)
    blocks_before = len(draft.scroll.pieces) - sum(len(draft.spelled(entry)) for entry in entries[newest:])
    return blocks_before - 1 if newest and blocks_before > 0 else None


def _merge_extra_body(rewritten: Rewritten) -> Body:
    """SDK arguments as a request body: the members of `extra_body` move to the top level."""
    body = dict(rewritten.arguments)
    extra = body.pop("extra_body", None)
    return converted({**body, **(extra if isinstance(extra, dict) else {})})


def _ends_with_user(body: Body) -> bool:
    messages = objects_in(body.get("messages"))
    return bool(messages) and messages[-1].get("role") == "user"


def _append_to_last_message(body: Body, block: Body) -> None:
    messages = body["messages"]
    assert isinstance(messages, list)
    last = messages[-1]
    assert isinstance(last, dict)
    content = last["content"]
    assert isinstance(content, list)
    body["messages"] = [*messages[:-1], {**last, "content": [*content, block]}]
