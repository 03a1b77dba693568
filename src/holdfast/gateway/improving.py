"""What is sent in the place of a request, so that the cache holds: the same, said in a stable order and with marks.

It depends on the request alone, and what it makes of a longer conversation begins with what it made of a shorter one.
So nothing has to be remembered, and nothing is lost with a restart.
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
    """`body` is None where the request goes as it came; `wire` is what is said then, and `row` what its model is."""

    body: bytes | None
    wire: WireRequest
    row: Model
    changes: tuple[Change, ...] = ()


class Improver:
    """Pure, and safe to use from several threads."""

    def __init__(self, models: Models, volatile: Volatile | None = None) -> None:
        self._models = models
        self._volatile = volatile or Volatile()

    def improved(self, speaks: str, body: bytes, *, path: str = "", left: frozenset[str] = frozenset()) -> Improved:
        """Habits that are `left` are not mended. `path` is the request's own; some providers name the model there.

        Raises whatever a body that we do not understand makes us raise: then it goes as it came.
        """
        adapter = adapter_for(speaks)
        given: Body = msgspec.json.decode(body)
        told = {PATH: path}
        # White space is nothing to a provider, and would only look like a change.
        before = adapter.read_request(plain_json(given), told)
        row = find_model(f"{adapter.name}:{before.parameters.model}", self._models)
        edits = Edits(self._volatile, left)
        changed = _WAYS[speaks](dict(given), row, edits, adapter) if speaks in _WAYS else given
        if not edits.changes:
            return Improved(None, before, row)
        spelled = plain_json(changed)
        after = adapter.read_request(spelled, told)
        _check(before, after, edits.moved)
        return Improved(spelled, after, row, tuple(edits.changes))


def _anthropic(body: Body, row: Model, edits: Edits, adapter: Adapter) -> Body:
    if _ends_with_user(body):
        system, taken = edits.without_volatile(body.get("system"))
        if taken:
            body["system"] = system
            if not system:
                del body["system"]
            edits.move(taken, "system")
    ordered = edits.sorted_tools(body.get("tools"), lambda tool: tool.get("name"))
    if ordered is not None:
        body["tools"] = ordered
    body["messages"] = in_parts(body["messages"], "text", ("user", "assistant"))
    if edits.mends(LIFETIMES) and in_order(body):
        edits.note(LIFETIMES, "marks")
    if edits.mends(MARKS):
        request = _request(adapter, body, row, "")
        rewritten = marks.rewrite({**body}, request, text_follows=bool(edits.moved))
        added = len(rewritten.wire.plan.marks) - len(request.wire.plan.marks)
        if added:
            edits.note(MARKS, f"{added} placed")
        body = _plain(rewritten)
    if edits.moved:
        _append(body, {"type": "text", "text": edits.moved})
    return body


def _openai(body: Body, row: Model, edits: Edits, adapter: Adapter) -> Body:
    prompt, part = ("messages", "text") if adapter.name == "openai-chat" else ("input", "input_text")
    role = (mend_chat if prompt == "messages" else mend_responses)(body, edits)
    request = _request(adapter, body, row, session_of(body, prompt))
    had_key = body.get(keys.KEY) is not None
    if edits.mends(KEY) or edits.mends(BREAKPOINT):
        rewritten = keys.rewrite({**body}, request, adapter=adapter, prompt_name=prompt, part_type=part)
        if len(rewritten.wire.plan.marks) > len(request.wire.plan.marks):
            edits.note(BREAKPOINT, "end of the system text")
        body = _plain(rewritten)
        if not had_key and body.get(keys.KEY) is not None:
            edits.note(KEY, keys.KEY)
    if edits.moved:
        free = row.cache.marks_max - 1 > len(adapter.read_request(plain_json(body)).plan.marks)
        body[prompt] = told_at_end(
            in_parts(body[prompt], part, RESPONSES_ROLES),
            {"role": role, "content": edits.moved},
            breakpoint_in=part if row.cache.kind == "breakpoints" and free else None,
        )
    return body


def _openrouter(body: Body, row: Model, edits: Edits, adapter: Adapter) -> Body:
    if _ends_with_user(body):
        mend_chat(body, edits)
    else:
        sort_tools(body, edits)
    body["messages"] = in_parts(body["messages"], "text", openrouter.ROLES)
    if row.cache.kind == "marks":
        if edits.mends(LIFETIMES) and in_order(body):
            edits.note(LIFETIMES, "marks")
        if edits.mends(MARKS):
            request = _request(adapter, body, row, "")
            missing = marks.missing_marks(request, request.wire.plan.marks, text_follows=bool(edits.moved))
            body, added = openrouter.with_marks(body, missing, adapter)
            if added:
                edits.note(MARKS, f"{added} placed")
    if row.cache.kind != "none" and edits.mends(KEY) and body.get(openrouter.SESSION) is None:
        body[openrouter.SESSION] = openrouter.session_in(body)
        edits.note(KEY, openrouter.SESSION)
    if edits.moved:
        _append(body, {"type": "text", "text": edits.moved})
    return body


def _gemini(body: Body, row: Model, edits: Edits, adapter: Adapter) -> Body:
    return mend_gemini(body, edits)


_WAYS: Mapping[str, Callable[[Body, Model, Edits, Adapter], Body]] = {
    "anthropic": _anthropic,
    "openai-chat": _openai,
    "openai": _openai,
    "gemini": _gemini,
    "openrouter": _openrouter,
}


def _check(before: WireRequest, after: WireRequest, moved: str) -> None:
    """What is sent says what was asked, but for marks, the order of tools, and what was moved. Raises UserError."""
    same_tools = sorted(before.prompt.tools, key=repr) == sorted(after.prompt.tools, key=repr)
    old, new = _said(before), _said(after)
    said = bool(old) and new[: len(old)] == old and len(new) - len(old) == bool(moved)
    if not same_tools or not said or _kept(before) != _kept(after):
        raise UserError("the request would say something else")


def _said(wire: WireRequest) -> list[tuple[Role, Block]]:
    return [(passage.role, block) for passage in wire.prompt.passages for block in passage.content]


def _kept(wire: WireRequest) -> Parameters:
    """All parameters but the key of a cache, and the session that keeps to one."""
    ours = (keys.KEY, openrouter.SESSION)
    extra = tuple(sorted(pair for pair in wire.parameters.extra if pair[0] not in ours))
    return msgspec.structs.replace(wire.parameters, extra=extra)


def _request(adapter: Adapter, body: Body, row: Model, session: str) -> Request:
    wire = adapter.read_request(plain_json(body))
    draft = Draft(adapter, lambda spelled: 0)
    draft.update(wire.prompt)
    return Request(body, wire, draft.scroll, row, session, _tail(wire, draft))


def _tail(wire: WireRequest, draft: Draft) -> int | None:
    """Where the request before ended: in front of the newest thing that the model has said."""
    passages = wire.prompt.passages
    newest = next((place for place in range(len(passages) - 1, -1, -1) if passages[place].role == "assistant"), 0)
    in_front = len(draft.scroll.pieces) - sum(len(draft.spelled(passage)) for passage in passages[newest:])
    return in_front - 1 if newest and in_front > 0 else None


def _plain(rewritten: Rewritten) -> Body:
    """The arguments of a client as a body: what a client keeps beside its parameters is among them here."""
    body = dict(rewritten.arguments)
    extra = body.pop("extra_body", None)
    return converted({**body, **(extra if isinstance(extra, dict) else {})})


def _ends_with_user(body: Body) -> bool:
    messages = objects_in(body.get("messages"))
    return bool(messages) and messages[-1].get("role") == "user"


def _append(body: Body, block: Body) -> None:
    messages = body["messages"]
    assert isinstance(messages, list)
    last = messages[-1]
    assert isinstance(last, dict)
    content = last["content"]
    assert isinstance(content, list)
    body["messages"] = [*messages[:-1], {**last, "content": [*content, block]}]
