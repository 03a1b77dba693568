"""Replays a recorded conversation under other policies: what each call would cost with their breakpoints and pings."""

import datetime
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Protocol, runtime_checkable

import msgspec

from holdfast.cachemodel.machine import run_call
from holdfast.cachemodel.values import CacheCall, CacheEntries, CacheScope, PromptPrefix
from holdfast.catalog.lookup import price_at
from holdfast.catalog.schema import CacheRules, Model, Price
from holdfast.economics.cost import cost_usd
from holdfast.errors import UserError
from holdfast.planning.optimum import CallStep
from holdfast.planning.policy import CachePolicy, PingResult, PlanningMoment
from holdfast.providers.adapter import Adapter
from holdfast.providers.registry import find_adapter
from holdfast.replay.recording import RecordedCall, Recording, ReplayPrompt
from holdfast.types.prompt import Breakpoint, Parameters, Ttl
from holdfast.types.request_buffer import EncodedBlock
from holdfast.types.usage import Usage

PINGS_MAX = 1_000
"""A limit on the pings of one pause, against a policy that never stops."""

OUTPUT_TOKENS_MAX = 4_096  # For the request bodies handed to `on_request` only; output is not priced here.


class ReplaySetting(msgspec.Struct, frozen=True):
    """How the provider behaves (`provider_rules`), and what the policies assume (`assumed_rules`).

    Pings are sent only if `keep_alive` is set. `open_after_seconds` is how long pings continue after the last call of a
    session: a client that sends pings does not know that it was the last.
    """

    model: Model
    provider_rules: CacheRules
    assumed_rules: CacheRules
    keep_alive: bool = False
    open_after_seconds: float = 86_400.0


class ReplayedCall(msgspec.Struct, frozen=True):
    """`is_miss`: the call read less than half of the tokens that it shares with the previous call."""

    at: float
    usage: Usage
    cost_usd: Decimal
    shared_tokens: int = 0
    is_miss: bool = False
    is_ping: bool = False


class ReplayResult(msgspec.Struct, frozen=True):
    """One recording under one policy; prompts only, because no policy changes what a reply costs."""

    recording: str
    policy: str
    calls: tuple[ReplayedCall, ...]

    @property
    def cost_usd(self) -> Decimal:
        return sum((call.cost_usd for call in self.calls), Decimal(0))

    @property
    def usage(self) -> Usage:
        return sum((call.usage for call in self.calls), Usage())


OnRequest = Callable[[str, float, bytes], None]
"""Called with every request: the name of the policy, when the request started, and its body."""


def make_replay_setting(model: Model, *, ttl_upgrade: bool = True, lookback: str | None = None) -> ReplaySetting:
    if model.cache.kind != "explicit":
        raise UserError(
            f"model {model.id!r} takes no cache breakpoints, so there is no plan to compare; choose an Anthropic model"
        )
    rules = model.cache
    if lookback == "blocks" or lookback == "positions":
        rules = msgspec.structs.replace(rules, lookback_counting=lookback)
    return ReplaySetting(model, msgspec.structs.replace(rules, ttl_upgrade=ttl_upgrade), rules)


def is_cache_miss(usage: Usage, shared_tokens: int) -> bool:
    return usage.cache_read * 2 < shared_tokens


@runtime_checkable
class PromptEditor(Protocol):
    """A policy whose requests may differ from the recorded ones in more than their breakpoints."""

    @property
    def sent_blocks(self) -> Sequence[EncodedBlock]:
        """All blocks of its last request."""


class EncodedPing(msgspec.Struct, frozen=True):
    """A ping as an entry point sends it; its first `conversation_blocks` blocks belong to the conversation."""

    blocks: Sequence[EncodedBlock]
    breakpoints: tuple[Breakpoint, ...]
    conversation_blocks: int


@runtime_checkable
class PingEncoder(Protocol):
    """A policy that encodes its own pings."""

    def encode_ping(self) -> EncodedPing:
        """The ping that `next_ping` last returned."""


class _PolicyRun:
    """The cache as one policy has shaped it so far."""

    def __init__(self, policy: CachePolicy, setting: ReplaySetting, scope: CacheScope) -> None:
        self.policy = policy
        self.setting = setting
        self.scope = scope
        self.entries = CacheEntries()
        self.calls: list[ReplayedCall] = []
        self.last: CacheCall | None = None
        self.conversation_blocks = 0
        """How many blocks of the last request belong to the conversation; a ping may append a closing message."""
        self.body = b""

    def send(
        self, prefixes: Sequence[PromptPrefix], breakpoints: tuple[Breakpoint, ...], at: float, *, shared: int | None
    ) -> Usage:
        call = CacheCall(self.scope, prefixes, breakpoints, at)
        outcome, self.entries = run_call(self.setting.provider_rules, self.entries, call)
        self.last = call
        price = find_newest_price(self.setting.model, call.tokens)
        cost, is_miss = cost_usd(outcome.usage, price), is_cache_miss(outcome.usage, shared or 0)
        self.calls.append(ReplayedCall(at, outcome.usage, cost, shared or 0, is_miss, is_ping=shared is None))
        return outcome.usage


class Replayer:
    """Replays one recording under several policies side by side; they share one growing prompt."""

    def __init__(self, recording: Recording, setting: ReplaySetting, on_request: OnRequest | None = None) -> None:
        self._recording = recording
        self._setting = setting
        self._on_request = on_request
        self._adapter: Adapter = find_adapter(setting.model.provider)
        self._prompt = ReplayPrompt(recording, self._adapter, setting.model.tokens_factor)
        self.steps: list[CallStep] = []
        """Sizes and idle times, the input of the bound and the optimum; complete once the recording was replayed."""

    def replay(self, policies: Sequence[CachePolicy]) -> tuple[ReplayResult, ...]:
        recording = self._recording
        scope = CacheScope(recording.id, self._setting.model.name)
        tracks = [_PolicyRun(policy, self._setting, scope) for policy in policies]
        previous: RecordedCall | None = None
        for index, call in enumerate(self._prompt.iterate_calls(recording)):
            idle = call.at - previous.at if previous else None
            prompt = self._prompt
            self.steps.append(CallStep(prompt.prefixes[-1].tokens, prompt.shared_tokens, idle, prompt.reply_tokens))
            next_at = recording.calls[index + 1].at if index + 1 < len(recording.calls) else None
            until = next_at if next_at is not None else call.at + self._setting.open_after_seconds
            self._call(tracks, call, idle, until)
            previous = call
        return tuple(ReplayResult(recording.id, track.policy.name, tuple(track.calls)) for track in tracks)

    def _call(self, tracks: Sequence[_PolicyRun], call: RecordedCall, idle: float | None, until: float) -> None:
        prompt, setting = self._prompt, self._setting
        prefixes = tuple(prompt.prefixes)
        price = find_newest_price(setting.model, prefixes[-1].tokens)
        moment = PlanningMoment(prompt.buffer, setting.assumed_rules, price, call.at, idle, call.waited_for)
        for track in tracks:
            breakpoints = track.policy.choose_breakpoints(moment)
            if self._on_request is not None:
                track.body = prompt.buffer.render(b"", breakpoints)
                self._report_request(track, call.at, OUTPUT_TOKENS_MAX)
            editor = track.policy if isinstance(track.policy, PromptEditor) else None
            sent = prompt.measure_blocks(editor.sent_blocks) if editor is not None else prefixes
            usage = track.send(sent, breakpoints, call.at, shared=prompt.shared_tokens)
            track.conversation_blocks = len(sent)
            track.policy.record_usage(moment, usage)
        # Pings after this call may contain its reply.
        prompt.append_reply()
        for track in tracks if setting.keep_alive else ():
            self._keep_warm(track, moment, call, until=until)

    def _keep_warm(self, track: _PolicyRun, moment: PlanningMoment, call: RecordedCall, *, until: float) -> None:
        """Pings are sent only while the session is idle: after the reply has arrived and before the next call."""
        waits_for = call.next_waits_for
        for count in range(PINGS_MAX):
            ping = track.policy.next_ping(moment, count, waits_for)
            due = track.calls[-1].at + ping.after_seconds if ping is not None else until
            if ping is None or due >= until or due < call.replied_at:
                return
            self._ping(track, ping.ttl, due)

    def _ping(self, track: _PolicyRun, ttl: Ttl, at: float) -> None:
        """Repeat the last request if its last breakpoint has that TTL; else add the reply with a breakpoint on it."""
        last = track.last
        assert last is not None
        if isinstance(track.policy, PingEncoder):
            self._send_encoded(track, track.policy.encode_ping(), at)
            return
        newest = max(last.breakpoints, key=lambda breakpoint: breakpoint.block_index, default=None)
        if newest is not None and (newest.ttl == ttl or ttl == "5m"):
            self._report_request(track, at, 0)
            usage = track.send(last.prefixes, last.breakpoints, at, shared=None)
            tokens = last.prefixes[track.conversation_blocks - 1].tokens
            ping = PingResult(at, newest.ttl, usage, newest.block_index, track.conversation_blocks, tokens)
            track.policy.record_ping(ping)
            return
        prefixes = self._prompt.prefixes
        last_block = next((index for index in range(len(prefixes) - 1, -1, -1) if self._takes_breakpoint(index)), None)
        if last_block is None:
            return
        # The newest breakpoint takes one of the provider's slots; the deepest of the earlier ones keep the rest.
        earlier = sorted({point.block_index for point in last.breakpoints if point.block_index < last_block})
        earlier = earlier[-(self._setting.provider_rules.breakpoints_max - 1) :]
        breakpoints = tuple(Breakpoint(block, ttl, "kept warm") for block in (*earlier, last_block))
        closing = PromptPrefix("messages", "", prefixes[-1].tokens + self._prompt.count_closing_tokens())
        if self._on_request is not None:
            track.body = self._prompt.render_closed(breakpoints)
            self._report_request(track, at, 0)
        usage = track.send((*prefixes, closing), breakpoints, at, shared=None)
        track.conversation_blocks = len(prefixes)
        track.policy.record_ping(PingResult(at, ttl, usage, last_block, len(prefixes), prefixes[-1].tokens))

    def _send_encoded(self, track: _PolicyRun, ping: EncodedPing, at: float) -> None:
        prefixes, last = self._prompt.measure_blocks(ping.blocks), ping.breakpoints[-1]
        usage = track.send(prefixes, ping.breakpoints, at, shared=None)
        track.conversation_blocks = ping.conversation_blocks
        tokens = prefixes[ping.conversation_blocks - 1].tokens
        result = PingResult(at, last.ttl, usage, last.block_index, ping.conversation_blocks, tokens)
        track.policy.record_ping(result)

    def _takes_breakpoint(self, index: int) -> bool:
        block = self._prompt.buffer.blocks[index]
        return block.accepts_breakpoint and not block.ephemeral

    def _report_request(self, track: _PolicyRun, at: float, output_tokens_max: int) -> None:
        if self._on_request is not None:
            request_head = self._adapter.request_head(Parameters(self._setting.model.name, output_tokens_max))
            self._on_request(track.policy.name, at, request_head + track.body)


def find_newest_price(model: Model, prompt_tokens: int) -> Price:
    """Recordings are priced as if they were made today, because plans are compared, not days."""
    newest = max((price.valid_from for price in model.prices), default=datetime.date.min)
    return price_at(model, newest, prompt_tokens)
