"""The gateway plans each conversation like a session does, and never makes a client's calls more expensive."""

import json
import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cachemodel.machine import run_call
from holdfast.cachemodel.values import CacheCall, CacheEntries, CacheScope, PromptPrefix
from holdfast.catalog.lookup import find_model, price_at, shipped_models, utc_date
from holdfast.economics.cost import cost_usd
from holdfast.engine.cache.conversation_plans import RestoredConversation
from holdfast.engine.cache.shared_plans import SHARED_KEYS_MAX, SharedPlans
from holdfast.engine.request_draft import RequestDraft
from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter
from holdfast.gateway.rewrite.request_analysis import RequestAnalysis
from holdfast.gateway.rewrite.volatile_text import DATE_RULE, VolatileExtractor
from holdfast.providers.anthropic import anthropic
from holdfast.providers.wire_request import drop_deferred_tools
from holdfast.stores.memory import MemoryStore
from holdfast.types.prompt import Breakpoint
from holdfast.types.usage import Usage

MODEL = "claude-sonnet-4-6"
ROW = find_model(f"anthropic:{MODEL}")
GUIDE = "You read before you write, and you say what you did. " * 200
MARK = {"type": "ephemeral"}
TOOLS = [
    {"name": name, "description": f"{name} a file. " * 60, "input_schema": {"type": "object", "properties": {}}}
    for name in ("delete", "edit", "list", "read", "search", "write")
]


class Provider:
    """A conversation's calls through the rewriter, billed by the cache model; `improve=False` sends them unchanged."""

    def __init__(self, *, improve: bool = True) -> None:
        self.records = MemoryStore().records
        self.shared = [SharedPlans(self.records)]
        self.rewriter = self._new_rewriter(())
        self.replicas = [self.rewriter]
        self.improve = improve
        self.entries = CacheEntries()
        self.cost = Decimal(0)
        self.restored: dict[str, RestoredConversation] = {}
        self.sent: list[bytes] = []
        self.usages: list[Usage] = []

    def _new_rewriter(self, restored: tuple[RestoredConversation, ...]) -> ConversationRewriter:
        return ConversationRewriter(
            shipped_models(), VolatileExtractor((DATE_RULE,)), restore=lambda: restored, shared=self.shared[-1]
        )

    def hop(self, replica: int) -> None:
        """The next calls go to another gateway on the same store."""
        while len(self.replicas) <= replica:
            self.shared.append(SharedPlans(self.records))
            self.replicas.append(self._new_rewriter(()))
        self.rewriter = self.replicas[replica]

    def restart(self) -> None:
        index = self.replicas.index(self.rewriter)
        self.rewriter = self.replicas[index] = self._new_rewriter(tuple(self.restored.values()))

    def call(self, body: dict[str, Any], at: float, conversation: str = "one") -> RequestAnalysis:
        received = json.dumps(body).encode()
        analysis = self.rewriter.analyze("anthropic", received, path="/v1/messages", account="a", at=at)
        sent = analysis.body or received if self.improve else received
        self.sent.append(sent)
        wire = drop_deferred_tools(anthropic, anthropic.decode_request(sent))
        draft = RequestDraft(anthropic, len)
        draft.update(wire.prompt)
        tokens, prefixes = 0, []
        for block, digest in zip(draft.buffer.blocks, draft.buffer.digests, strict=True):
            tokens += len(block.data) // 4
            prefixes.append(PromptPrefix(block.section, digest.digest, tokens))
        call = CacheCall(CacheScope("a", MODEL), tuple(prefixes), wire.plan.breakpoints, at)
        outcome, self.entries = run_call(ROW.cache, self.entries, call)
        self.usages.append(outcome.usage)
        self.cost += cost_usd(outcome.usage, price_at(ROW, utc_date(at), tokens))
        assert analysis.call is not None
        self.rewriter.record_response(analysis.call, encode_response(outcome.usage))
        assert all(shared.wait_until_written(10) for shared in self.shared)
        state = analysis.call.conversation
        assert state.last_request is not None
        digests = tuple(analysis.call.digests)[: state.last_request.blocks]
        self.restored[conversation] = RestoredConversation(digests, state.memory, state.last_request)
        return analysis


def encode_response(usage: Usage) -> bytes:
    counters = {
        "input_tokens": usage.input,
        "output_tokens": 10,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_write_5m,
            "ephemeral_1h_input_tokens": usage.cache_write_1h,
        },
    }
    return json.dumps({"type": "message", "usage": counters}).encode()


def conversation(turns: int, *, who: str = "", marked: bool = False, system: str = GUIDE) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{who}Question {turn}. " + "What does it do? " * 80})
        messages.append({"role": "assistant", "content": [{"type": "text", "text": f"{who}Answer {turn}. " * 60}]})
    last: dict[str, Any] = {"type": "text", "text": f"{who}Question {turns}. " + "What does it do? " * 80}
    messages.append({"role": "user", "content": [{**last, "cache_control": MARK}] if marked else last["text"]})
    return {"model": MODEL, "max_tokens": 9, "system": system, "tools": TOOLS, "messages": messages}


def cached_chain(body: bytes, end: str = "") -> list[str]:
    """The prompt as the provider caches it, block by block, up to text that is only in this request."""
    draft = RequestDraft(anthropic, len)
    draft.update(anthropic.decode_request(body).prompt)
    return [digest.digest for digest in draft.buffer.digests]


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_longer_conversation_begins_with_the_shorter_one_whatever_happens_between(data: st.DataObject) -> None:
    provider, shuffle = Provider(), random.Random(data.draw(st.integers(0, 2**32)))
    at, chains = 1.79e9, dict[str, list[str]]()
    turns = {"a": 0, "b": 0, "c": 0}
    for _ in range(data.draw(st.integers(2, 9))):
        who = data.draw(st.sampled_from("abc"))
        body = conversation(turns[who], who=who, marked=data.draw(st.booleans()))
        body["tools"] = shuffle.sample(TOOLS, len(TOOLS)) if data.draw(st.booleans()) else TOOLS
        provider.hop(data.draw(st.integers(0, 1)))
        if data.draw(st.booleans()):
            provider.restart()
        analysis = provider.call(body, at, who)
        chain = cached_chain(provider.sent[-1])
        before = chains.get(who, [])
        assert chain[: len(before)] == before
        chains[who] = chain
        points = analysis.call.record.breakpoints
        assert len(points) <= ROW.cache.breakpoints_max
        ttls = [point.ttl for point in sorted(points, key=lambda point: point.block_index)]
        assert ttls == sorted(ttls, key=lambda ttl: ttl != "1h")
        assert {(point.block_index, point.ttl) for point in sent_breakpoints(provider)} == {
            (point.block_index, point.ttl) for point in points
        }
        turns[who] += 1
        at += data.draw(st.sampled_from((1.0, 60.0, 400.0, 4000.0)))


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from((1.0, 60.0, 400.0, 1_000.0, 4_000.0))), min_size=2, max_size=12
    )
)
def test_a_conversation_that_hops_between_gateways_is_planned_as_by_one(calls: list[tuple[int, float]]) -> None:
    alone, hopping, at = Provider(), Provider(), 1.79e9
    for turn, (replica, pause) in enumerate(calls):
        hopping.hop(replica)
        body = conversation(turn)
        body["tools"] = TOOLS[turn % 6 :] + TOOLS[: turn % 6]
        alone.call(body, at)
        hopping.call(body, at)
        assert hopping.sent[-1] == alone.sent[-1]
        at += pause


def test_a_gateway_looks_a_conversation_up_only_if_another_had_a_call_of_it() -> None:
    provider, lookups = Provider(), list[Sequence[str]]()
    find = provider.records.find_shared

    def find_shared(keys: Sequence[str]) -> dict[str, str]:
        lookups.append(keys)
        return find(keys)

    provider.records.find_shared = find_shared  # type: ignore[method-assign]
    for turn in range(40):
        provider.call(conversation(turn), 1.79e9 + turn)
    orders = [keys for keys in lookups if keys[0].startswith("tools")]
    assert len(orders) == 1
    assert lookups == orders
    provider.hop(1)
    provider.call(conversation(40), 1.79e9 + 41)
    assert len(lookups[-1]) == SHARED_KEYS_MAX


def sent_breakpoints(provider: Provider) -> tuple[Breakpoint, ...]:
    return anthropic.decode_request(provider.sent[-1]).plan.breakpoints


def test_a_tool_that_is_loaded_later_keeps_the_plan_and_its_place() -> None:
    provider, conversations = Provider(), []
    late: list[dict[str, Any]] = [{**TOOLS[0], "name": name, "defer_loading": True} for name in ("a", "z")]
    offers: list[list[dict[str, Any]]] = [TOOLS, [late[0], *TOOLS], [late[0], *TOOLS[:2], late[1], *TOOLS[2:]]]
    for turn, tools in enumerate(offers):
        analysis = provider.call({**conversation(turn), "tools": tools}, 1.79e9 + 30 * turn)
        assert analysis.call is not None
        conversations.append(analysis.call.conversation)
        sent = json.loads(provider.sent[-1])["tools"]
        assert [tool["name"] for tool in sent] == [tool["name"] for tool in tools]
        assert not any("cache_control" in tool for tool in sent if tool["name"] in "az")
        written = drop_deferred_tools(anthropic, anthropic.decode_request(provider.sent[-1])).plan.breakpoints
        assert {point.block_index for point in written} == {
            point.block_index for point in analysis.call.record.breakpoints
        }
    assert conversations[0] is conversations[1] is conversations[2]
    first, second, third = provider.usages
    assert second.cache_read == first.cache_read + first.cache_write > 0
    assert third.cache_read == second.cache_read + second.cache_write


def test_the_ttl_follows_the_pauses_of_the_conversation() -> None:
    def list_ttls(pause_seconds: float) -> list[set[str]]:
        provider, at, ttls = Provider(), 1.79e9, []
        for turn in range(12):
            provider.call(conversation(turn), at)
            ttls.append({str(point.ttl) for point in sent_breakpoints(provider)})
            at += pause_seconds if turn % 2 else 20
        return ttls

    # One entry for an hour is enough for several pauses.
    assert "1h" in set[str]().union(*list_ttls(900))
    assert "1h" not in set[str]().union(*list_ttls(20))


def test_a_client_that_rewrites_the_end_of_its_prompt_is_cached_up_to_there() -> None:
    """As aider does: files and a reminder follow the history, and are written again in every call."""

    def play(*, improve: bool) -> Provider:
        provider = Provider(improve=improve)
        for turn in range(8):
            body = conversation(turn)
            body["messages"][-1]["content"] += f" The file is now: {turn} " + "line of code " * 2_000
            provider.call(body, 1.79e9 + 30 * turn)
        return provider

    improved, unchanged = play(improve=True), play(improve=False)
    # Most of each prompt is the file, which no breakpoint can save.
    assert improved.cost < unchanged.cost * Decimal("0.8")
    written = [usage.cache_write for usage in improved.usages]
    # Only the first call writes the end of the prompt, because nothing shows yet that it will be rewritten.
    assert all(later < written[0] / 3 for later in written[1:])


def test_a_system_text_that_changes_in_every_call_is_not_cached_again_and_again() -> None:
    def play(*, improve: bool) -> Provider:
        provider = Provider(improve=improve)
        for turn in range(10):
            provider.call(conversation(turn, system=f"Run {turn:032x}\n{GUIDE}"), 1.79e9 + 30 * turn)
        return provider

    improved, unchanged = play(improve=True), play(improve=False)
    # Two calls are written in vain; the tools before the system text are read from then on.
    assert improved.cost < unchanged.cost
    assert all(usage.cache_write == 0 for usage in improved.usages[3:])


def test_a_tool_that_is_added_once_does_not_end_the_caching_of_a_conversation() -> None:
    provider = Provider()
    for turn in range(6):
        body = conversation(turn)
        body["tools"] = TOOLS[: 4 if turn < 3 else 5]
        provider.call(body, 1.79e9 + 30 * turn)
    reads = [usage.cache_read for usage in provider.usages]
    # The added tool changes the whole prompt after it, once.
    assert reads[3] < reads[2] < reads[4] < reads[5]


def test_single_questions_are_not_cached_until_they_share_their_instructions() -> None:
    provider, at = Provider(), 1.79e9
    for number in range(4):
        body = {
            "model": MODEL,
            "max_tokens": 9,
            "system": GUIDE,
            "messages": [{"role": "user", "content": f"{number}? "}],
        }
        provider.call(body, at + number)
    assert [usage.cache_write > 0 for usage in provider.usages] == [False, True, False, False]
    assert [usage.cache_read > 0 for usage in provider.usages] == [False, False, True, True]


def test_parallel_conversations_with_one_head_keep_their_own_plans() -> None:
    provider, at = Provider(), 1.79e9
    for turn in range(5):
        for who in "abcd":
            provider.call(conversation(turn, who=who), at, who)
            at += 1
    # From the second turn on each reads everything of its own call before.
    assert all(usage.cache_read > usage.cache_write for usage in provider.usages[4:])


def test_bytes_that_carry_no_breakpoint_are_forwarded_as_received() -> None:
    body = conversation(3)
    body["messages"][0]["content"] = [{"type": "text", "text": "snöw ☃", "odd": {"b": 1.50, "a": [1e3, None]}}]
    received = json.dumps(body, ensure_ascii=True, separators=(", ", " : ")).encode()
    rewriter = ConversationRewriter(shipped_models())
    analysis = rewriter.analyze("anthropic", received, path="/v1/messages", account="a", at=1.79e9)
    assert analysis.body is not None
    for message in body["messages"][:-1]:
        assert json.dumps(message, ensure_ascii=True, separators=(", ", " : ")).encode() in analysis.body


def test_memory_is_bounded() -> None:
    provider = Provider()
    plans = provider.rewriter._plans
    plans._nodes_max = 50
    for number in range(40):
        for turn in range(3):
            provider.call(conversation(turn, who=str(number)), 1.79e9 + number, str(number))
    assert plans._node_count <= 60
    assert len(plans._conversations) + len(plans._ended) < 20


def play_marked(*, improve: bool, pauses: Sequence[float]) -> Provider:
    """A client that caches its system text and the end of its prompt, as Claude Code and opencode do."""
    provider, at = Provider(improve=improve), 1.79e9
    for turn, pause in enumerate((0.0, *pauses)):
        at += pause
        body = conversation(turn, marked=True)
        body["system"] = [{"type": "text", "text": GUIDE, "cache_control": MARK}]
        provider.call(body, at)
    return provider


def test_a_short_conversation_without_a_pause_costs_what_the_clients_own_breakpoints_cost() -> None:
    """No 1-hour TTL is paid for by a guess: most conversations of a few calls end without a pause."""
    for calls in range(1, 9):
        plain, improved = (play_marked(improve=improve, pauses=[20.0] * (calls - 1)) for improve in (False, True))
        assert improved.cost <= plain.cost
        assert not any(usage.cache_write_1h for usage in improved.usages)


def test_a_pause_that_was_seen_is_planned_for_at_once() -> None:
    plain, improved = (play_marked(improve=improve, pauses=[20.0, *[1500.0] * 8]) for improve in (False, True))
    assert any(usage.cache_write_1h for usage in improved.usages)
    assert improved.cost < plain.cost


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), st.sampled_from((1.0, 400.0))), min_size=2, max_size=9))
def test_a_longer_conversation_begins_with_the_shorter_one_on_either_of_two_replicas(
    calls: list[tuple[bool, str, float]],
) -> None:
    provider = Provider()
    replicas = [provider.rewriter, provider._new_rewriter(())]
    at, chains, turns = 1.79e9, dict[str, list[str]](), {"a": 0, "b": 0}
    for is_second, who, pause in calls:
        provider.rewriter = replicas[is_second]
        provider.call(conversation(turns[who], who=who), at, who)
        chain = cached_chain(provider.sent[-1])
        assert chain[: len(chains.get(who, []))] == chains.get(who, [])
        assert len(sent_breakpoints(provider)) <= ROW.cache.breakpoints_max
        chains[who] = chain
        turns[who] += 1
        at += pause
