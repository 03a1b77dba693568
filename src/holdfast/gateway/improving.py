"""What is sent in the place of a request, so that the cache holds: the same, said in a stable order and with marks.

It depends on the request alone, and what it makes of a longer conversation begins with what it made of a shorter one.
So nothing has to be remembered, and nothing is lost with a restart.
"""

from collections.abc import Callable, Mapping

import msgspec

from holdfast.canonical.blocks import Json
from holdfast.canonical.encoding import digest, plain_json
from holdfast.canonical.prompt import Parameters
from holdfast.catalog.lookup import Models, find_model
from holdfast.catalog.rows import Model
from holdfast.engine.draft import Draft
from holdfast.engine.marking import anthropic as marks
from holdfast.engine.marking import openai as keys
from holdfast.engine.marking.dialect import Request, Rewritten
from holdfast.engine.marking.plain import Arguments
from holdfast.errors import UserError
from holdfast.events.payloads_gateway import Change
from holdfast.gateway.lifetimes import in_order
from holdfast.gateway.volatile import Volatile
from holdfast.providers.adapter import Adapter, WireRequest
from holdfast.providers.anthropic.blocks import MARK
from holdfast.providers.openai_chat import openai_chat
from holdfast.providers.openai_responses import openai_responses
from holdfast.providers.registry import adapter_for

Body = dict[str, Json]


class Improved(msgspec.Struct, frozen=True):
    """`body` is None where the request goes as it came."""

    body: bytes | None
    changes: tuple[Change, ...] = ()


class Improver:
    """Pure, and safe to use from several threads."""

    def __init__(self, models: Models, volatile: Volatile | None = None) -> None:
        self._models = models
        self._volatile = volatile or Volatile()

    def improved(self, speaks: str, body: bytes) -> Improved:
        """Raises whatever a body that we do not understand makes us raise: then it goes as it came."""
        if speaks not in _WAYS:
            return Improved(None)
        adapter = adapter_for(speaks)
        given: Body = msgspec.json.decode(body)
        # White space is nothing to a provider, and would only look like a change.
        before = adapter.read_request(plain_json(given))
        row = find_model(f"{adapter.name}:{before.parameters.model}", self._models)
        changed, changes, moved = _WAYS[speaks](given, row, self._volatile)
        if not changes:
            return Improved(None)
        spelled = plain_json(changed)
        _check(before, adapter.read_request(spelled), moved)
        return Improved(spelled, changes)


Changed = tuple[Body, tuple[Change, ...], str]
"""The body, what was changed in it, and the text that was moved to its end."""


def _anthropic(given: Body, row: Model, volatile: Volatile) -> Changed:
    body, changes = dict(given), list[Change]()
    moved = ""
    if _ends_with_user(body):
        system, taken = _without_volatile(body.get("system"), volatile)
        if taken:
            body["system"] = system
            if not system:
                del body["system"]
            moved = "\n".join(text for _, text in taken)
            changes += [Change(f"volatile {name}", "system", done=True) for name in dict(taken)]
    _sort_tools(body, changes, lambda tool: tool.get("name"))
    body["messages"] = _in_blocks(body["messages"])
    if in_order(body):
        changes.append(Change("lifetimes out of order", "marks", done=True))
    adapter = adapter_for("anthropic")
    request = _request(adapter, body, row, "")
    rewritten = marks.rewrite({**body}, request)
    added = len(rewritten.wire.plan.marks) - len(request.wire.plan.marks)
    if added:
        changes.append(Change("marks missing", f"{added} placed", done=True))
    body = _plain(rewritten)
    if moved:
        _append(body, {"type": "text", "text": moved})
    return body, tuple(changes), moved


def _openai(given: Body, row: Model, volatile: Volatile, *, adapter: Adapter, prompt: str, part: str) -> Changed:
    body, changes = dict(given), list[Change]()
    _sort_tools(body, changes, _function_name)
    request = _request(adapter, body, row, _session_of(body, prompt))
    had_key = body.get(keys.KEY) is not None
    rewritten = keys.rewrite({**body}, request, adapter=adapter, prompt_name=prompt, part_type=part)
    if len(rewritten.wire.plan.marks) > len(request.wire.plan.marks):
        changes.append(Change("breakpoint missing", "end of the system text", done=True))
    body = _plain(rewritten)
    if not had_key and body.get(keys.KEY) is not None:
        changes.append(Change("no key of a cache", keys.KEY, done=True))
    return body, tuple(changes), ""


def _chat(given: Body, row: Model, volatile: Volatile) -> Changed:
    return _openai(given, row, volatile, adapter=openai_chat, prompt="messages", part="text")


def _responses(given: Body, row: Model, volatile: Volatile) -> Changed:
    return _openai(given, row, volatile, adapter=openai_responses, prompt="input", part="input_text")


_WAYS: Mapping[str, Callable[[Body, Model, Volatile], Changed]] = {
    "anthropic": _anthropic,
    "openai-chat": _chat,
    "openai": _responses,
}


def _check(before: WireRequest, after: WireRequest, moved: str) -> None:
    """What is sent says what was asked, but for marks, the order of tools, and what was moved. Raises UserError."""
    same_tools = sorted(before.prompt.tools, key=repr) == sorted(after.prompt.tools, key=repr)
    old, new = before.prompt.passages, after.prompt.passages
    said = bool(old) and old[:-1] == new[:-1] and old[-1].content == new[-1].content[: len(old[-1].content)]
    added = len(new[-1].content) - len(old[-1].content) if said else 0
    if not same_tools or not said or added != bool(moved) or _kept(before) != _kept(after):
        raise UserError("the request would say something else")


def _kept(wire: WireRequest) -> Parameters:
    """All parameters but the key of a cache."""
    extra = tuple(sorted(pair for pair in wire.parameters.extra if pair[0] != keys.KEY))
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
    body: Arguments = dict(rewritten.arguments)
    extra = body.pop("extra_body", None)
    merged: Body = msgspec.convert({**body, **(extra if isinstance(extra, dict) else {})}, dict)
    return merged


def _ends_with_user(body: Body) -> bool:
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    return isinstance(last, dict) and last.get("role") == "user"


def _without_volatile(system: Json | None, volatile: Volatile) -> tuple[Json, list[tuple[str, str]]]:
    """The system prompt, and what was taken out of it, with the names of the rules."""
    if isinstance(system, str):
        rest, found = volatile.taken_out(system)
        return rest, list(found)
    kept: list[Json] = []
    taken: list[tuple[str, str]] = []
    for block in system if isinstance(system, list) else ():
        text = block.get("text") if isinstance(block, dict) else None
        if not isinstance(block, dict) or not isinstance(text, str):
            kept.append(block)
            continue
        rest, found = volatile.taken_out(text)
        taken += found
        if rest.strip() or not found:
            kept.append({**block, "text": rest} if found else block)
    return kept, taken


def _sort_tools(body: Body, changes: list[Change], name_of: Callable[[dict[str, Json]], Json | None]) -> None:
    """By name, where all have one of their own; a mark on the last tool stays on the last."""
    tools = body.get("tools")
    if not isinstance(tools, list):
        return
    named = [(name_of(tool), tool) for tool in tools if isinstance(tool, dict)]
    names = [name for name, _ in named if isinstance(name, str)]
    if len(set(names)) != len(tools) or any(tool.get(MARK) for _, tool in named):
        return
    ordered: list[Json] = [tool for _, tool in sorted(named, key=lambda pair: str(pair[0]))]
    if ordered != tools:
        body["tools"] = ordered
        changes.append(Change("tools out of order", "tools", done=True))


def _function_name(tool: dict[str, Json]) -> Json | None:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else tool.get("name")


def _in_blocks(messages: Json) -> Json:
    """Text alone as a block, in every message, so that a mark on one of them changes no other byte."""
    if not isinstance(messages, list):
        return messages
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message, dict) and isinstance(message.get("content"), str) and message["content"]
        else message
        for message in messages
    ]


def _append(body: Body, block: dict[str, Json]) -> None:
    messages = body["messages"]
    assert isinstance(messages, list)
    last = messages[-1]
    assert isinstance(last, dict)
    content = last["content"]
    assert isinstance(content, list)
    body["messages"] = [*messages[:-1], {**last, "content": [*content, block]}]


def _session_of(body: Body, prompt: str) -> str:
    """The same for all requests of one conversation: the first thing that was asked, and what it is called with."""
    said = body.get(prompt)
    users = (
        (one for one in said if isinstance(one, dict) and one.get("role") == "user") if isinstance(said, list) else ()
    )
    return f"holdfast-{digest(plain_json([next(iter(users), said), body.get('tools')]))[:32]}"
