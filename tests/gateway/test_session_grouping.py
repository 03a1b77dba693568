"""Calls of interleaved conversations end up in the session of their own conversation, under the right parent.

The truth is known because the test writes the conversations itself: agents with one system prompt, equal first
messages, tool calls, sub-agents, titles, parallel calls, with and without ids that clients send.
"""

import json
import random
from collections import Counter, defaultdict
from typing import Any

import pytest

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import new_ulid
from holdfast.events.payloads.calls import LlmCallStarted
from holdfast.events.payloads.session import SessionStarted
from holdfast.gateway.exchange import Exchange, GatewayCaller
from holdfast.gateway.recording.recorder import GatewayRecorder
from holdfast.gateway.recording.worker_process import SynchronousQueue
from holdfast.gateway.routes import Target
from holdfast.stores.memory import MemoryStore

TARGET = Target("anthropic", "/v1/messages", "anthropic", provider="anthropic", format="anthropic")
USAGE = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
SYSTEM = "You are a careful agent. " * 20
TASKS = ("Solve the task.", "Solve the other task.", "Summarise the file.")


class Conversation:
    """One conversation as a client would lead it: each request repeats the history with the reply to the last one."""

    def __init__(self, chance: random.Random, name: str, *, first: str, system: str, headers: dict[str, str]) -> None:
        self.chance = chance
        self.name = name
        self.system = system
        self.headers = headers
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": first}]}]
        self.turns_left = chance.randint(1, 6)
        self.reply: list[dict[str, Any]] = []

    def body(self) -> bytes:
        request = {"model": "claude-sonnet-5-5", "max_tokens": 100, "system": self.system, "messages": self.messages}
        return json.dumps(request).encode()

    def take_reply(self, number: int, delegated: str | None) -> list[dict[str, Any]]:
        """The reply to the newest request, and the next message of the client, if the conversation continues."""
        tool: dict[str, Any] = {"type": "tool_use", "id": f"toolu_{number}", "name": "read", "input": {"path": "a.py"}}
        if delegated is not None:
            tool = {**tool, "name": "Task", "input": {"prompt": delegated, "description": "Look"}}
        # What agents say before a tool call is often the same in all conversations; the ids of calls never are.
        reply: list[dict[str, Any]] = [{"type": "text", "text": "Let me look."}]
        if delegated is not None or self.chance.random() < 0.7:
            reply.append(tool)
            answer = {"type": "tool_result", "tool_use_id": tool["id"], "content": "ok"}
        else:
            reply = [{"type": "text", "text": f"I found {self.name} {number}."}]
            answer = {"type": "text", "text": self.chance.choice(["continue", f"now {number}"])}
        self.messages = [
            *self.messages,
            {"role": "assistant", "content": reply},
            {"role": "user", "content": [answer]},
        ]
        self.turns_left -= 1
        return reply


def exchange_for(conversation: Conversation, at: float) -> Exchange:
    headers = [(name.encode(), value.encode()) for name, value in conversation.headers.items()]
    exchange = Exchange(TARGET, headers, GatewayCaller("account"), at)
    exchange.add_request_bytes(conversation.body())
    return exchange


def finish(exchange: Exchange, reply: list[dict[str, Any]], number: int, at: float) -> None:
    body: dict[str, Any] = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "claude-sonnet-5-5"}
    body |= {"content": reply, "stop_reason": "end_turn", "stop_sequence": None, "usage": USAGE}
    exchange.status, exchange.end, exchange.ended_at = 200, "whole", at
    exchange.response_headers = [(b"content-type", b"application/json")]
    exchange.add_response_bytes(json.dumps(body).encode())


def play(seed: int) -> tuple[dict[str, str], dict[str, str], dict[str, str], dict[str, str]]:
    """Plays conversations. Returns conversation and session by call, and parents by name, true and recorded."""
    chance = random.Random(seed)
    store = MemoryStore()
    recorder = GatewayRecorder(store, models=shipped_models(), new_id=new_ulid, make_queue=SynchronousQueue)
    identified = chance.random() < 0.5
    waiting: list[Conversation] = []
    true_parents: dict[str, str] = {}
    for index in range(chance.randint(2, 6)):
        headers = {"x-claude-code-session-id": f"session-{index}"} if identified else {}
        if identified and chance.random() < 0.5:
            # Clients ask for a title on their own, before the conversation itself.
            title = Conversation(chance, f"title{index}", first=f"Title for {index}", system="Titles", headers=headers)
            title.turns_left = 1
            waiting.append(title)
        first = chance.choice(TASKS)
        waiting.append(Conversation(chance, f"main{index}", first=first, system=SYSTEM, headers=headers))
    true_of: dict[str, str] = {}
    exchange_of: dict[str, Exchange] = {}
    open_calls: list[tuple[Conversation, Exchange, str]] = []
    number, at = 0, 1_000_000.0
    while waiting or open_calls:
        at += chance.uniform(0.1, 5.0)
        if waiting and (not open_calls or chance.random() < 0.5):
            conversation = waiting.pop(chance.randrange(len(waiting)) if chance.random() < 0.7 else 0)
            number += 1
            exchange = exchange_for(conversation, at)
            recorder.on_request(exchange)
            true_of[str(number)], exchange_of[str(number)] = conversation.name, exchange
            open_calls.append((conversation, exchange, str(number)))
            continue
        conversation, exchange, call = open_calls.pop(chance.randrange(len(open_calls)))
        delegated = None
        if conversation.name.startswith("main") and conversation.turns_left > 1 and chance.random() < 0.3:
            delegated = f"Find every use of function {call} and report the lines."
        reply = conversation.take_reply(int(call), delegated)
        finish(exchange, reply, int(call), at)
        recorder.on_end(exchange)
        if delegated is not None:
            child = Conversation(
                chance, f"sub{call}", first=delegated, system="You explore.", headers=conversation.headers
            )
            true_parents[child.name] = conversation.name
            waiting.append(child)
        if conversation.turns_left > 0:
            waiting.append(conversation)
    recorder.close()
    session_of, recorded_parents = {}, {}
    started: dict[float, str] = {}
    for row in store.sessions():
        for event in store.read(row.id):
            match event.payload:
                case LlmCallStarted():
                    started[event.at] = row.id
                case SessionStarted(parent=parent) if parent is not None:
                    recorded_parents[row.id] = parent.session_id
                case _:
                    pass
    for call, exchange in exchange_of.items():
        session_of[call] = started[exchange.started_at]
    return true_of, session_of, true_parents, recorded_parents


def count_right_calls(true_of: dict[str, str], session_of: dict[str, str]) -> tuple[int, dict[str, str]]:
    """Calls in the session that holds most of their conversation, each session counting for one conversation only."""
    together = Counter((true_of[call], session_of[call]) for call in true_of)
    session_by_name: dict[str, str] = {}
    right = 0
    for (name, session), count in together.most_common():
        if name not in session_by_name and session not in session_by_name.values():
            session_by_name[name] = session
            right += count
    return right, session_by_name


SEEDS_AT_ONCE = 40


@pytest.mark.timeout(300)  # 3 s of processor time, which a busy machine may need a minute for.
@pytest.mark.parametrize("first_seed", range(0, 400, SEEDS_AT_ONCE))
def test_interleaved_calls_are_recorded_in_the_session_of_their_conversation(first_seed: int) -> None:
    calls = right = parents = right_parents = false_parents = 0
    wrong: defaultdict[int, int] = defaultdict(int)
    for seed in range(first_seed, first_seed + SEEDS_AT_ONCE):
        true_of, session_of, true_parents, recorded_parents = play(seed)
        count, session_by_name = count_right_calls(true_of, session_of)
        calls += len(true_of)
        right += count
        wrong[seed] += len(true_of) - count
        name_by_session = {session: name for name, session in session_by_name.items()}
        recorded = {
            name_by_session.get(child): name_by_session.get(parent) for child, parent in recorded_parents.items()
        }
        parents += len(true_parents)
        right_parents += sum(recorded.get(child) == parent for child, parent in true_parents.items())
        false_parents += sum(true_parents.get(str(child)) != parent for child, parent in recorded.items())
    assert right >= 0.99 * calls, f"{right} of {calls} calls are right; seeds {[s for s, n in wrong.items() if n][:9]}"
    assert right_parents >= 0.99 * parents, f"{right_parents} of {parents} parents are right"
    assert false_parents == 0


@pytest.mark.parametrize("seed", range(20))
def test_a_history_cut_to_the_last_step_of_each_turn_stays_one_session(seed: int) -> None:
    """Agents on the AI SDK may keep only the messages of a turn's last step, and send no id."""
    chance = random.Random(seed)
    store = MemoryStore()
    recorder = GatewayRecorder(store, models=shipped_models(), new_id=new_ulid, make_queue=SynchronousQueue)
    true_of: dict[str, str] = {}
    exchange_of: dict[str, Exchange] = {}
    conversations = [
        Conversation(chance, f"main{index}", first=chance.choice(TASKS), system=SYSTEM, headers={})
        for index in range(4)
    ]
    steps_left = {conversation.name: 6 for conversation in conversations}
    number, at = 0, 1_000_000.0
    while waiting := [conversation for conversation in conversations if steps_left[conversation.name]]:
        conversation = chance.choice(waiting)
        number, at = number + 1, at + 1.0
        exchange = exchange_for(conversation, at)
        recorder.on_request(exchange)
        true_of[str(number)], exchange_of[str(number)] = conversation.name, exchange
        kept = [message for message in conversation.messages if not has_tools(message)]
        if steps_left[conversation.name] % 3:
            reply: list[dict[str, Any]] = [{"type": "tool_use", "id": f"toolu_{number}", "name": "read", "input": {}}]
            result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": "ok"}
            kept, answer = conversation.messages, result
        else:
            reply = [{"type": "text", "text": f"Turn {number} of {conversation.name} is done."}]
            answer = {"type": "text", "text": "continue"}
        finish(exchange, reply, number, at + 0.5)
        recorder.on_end(exchange)
        conversation.messages = [*kept, {"role": "assistant", "content": reply}, {"role": "user", "content": [answer]}]
        steps_left[conversation.name] -= 1
    recorder.close()
    started = {
        event.at: row.id
        for row in store.sessions()
        for event in store.read(row.id)
        if isinstance(event.payload, LlmCallStarted)
    }
    session_of = {call: started[exchange.started_at] for call, exchange in exchange_of.items()}
    assert count_right_calls(true_of, session_of)[0] == len(true_of)


def has_tools(message: dict[str, Any]) -> bool:
    return any(block["type"] in ("tool_use", "tool_result") for block in message["content"])
