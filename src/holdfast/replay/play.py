"""What a recorded conversation would have cost, call by call, had somebody else placed the marks and sent the pings."""

import datetime
from collections.abc import Callable, Sequence
from decimal import Decimal

import msgspec

from holdfast.cachemodel.machine import step
from holdfast.cachemodel.values import Call, Entries, Prefix, Scope
from holdfast.canonical.prompt import Mark, Parameters, Ttl
from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import price_at
from holdfast.catalog.rows import CacheRules, Model, Price
from holdfast.economics.cost import cost_usd
from holdfast.errors import UserError
from holdfast.planning.optimum import Step
from holdfast.planning.policy import Moment, Pinged, Policy
from holdfast.providers.adapter import Adapter
from holdfast.providers.registry import adapter_for
from holdfast.replay.recording import RecordedCall, Recording
from holdfast.replay.unrolled import Unrolled

PINGS_MAX = 1_000
"""After so many pings in one pause nobody is waited for any longer."""

OUTPUT_TOKENS_MAX = 4_096


class Setting(msgspec.Struct, frozen=True):
    """How the provider behaves: `truth` are its rules, `told` what the policies are told of them.

    Pings are sent only where `keep_alive` allows it. `open_after_seconds` is how long a session is still kept warm
    behind its last call: nobody who sends pings knows that it was the last.
    """

    model: Model
    truth: CacheRules
    told: CacheRules
    keep_alive: bool = False
    open_after_seconds: float = 86_400.0


class PlayedCall(msgspec.Struct, frozen=True):
    """`cold` says that less than half was read of what the call before had sent too."""

    at: float
    usage: Usage
    cost_usd: Decimal
    shared_tokens: int = 0
    cold: bool = False
    ping: bool = False


class Played(msgspec.Struct, frozen=True):
    """One recording under one policy; prompts only, for nothing here changes what a reply costs."""

    recording: str
    policy: str
    calls: tuple[PlayedCall, ...]

    @property
    def cost_usd(self) -> Decimal:
        return sum((call.cost_usd for call in self.calls), Decimal(0))

    @property
    def usage(self) -> Usage:
        return sum((call.usage for call in self.calls), Usage())

    def short_reads(self, tokens_min: int) -> int:
        """Calls that did not read all that the one before had sent too, though it was long enough to be kept.

        Where nothing expires, each of them looked in the wrong place.
        """
        shared = ((call, call.shared_tokens) for call in self.calls if not call.ping)
        return sum(call.usage.cache_read < tokens for call, tokens in shared if tokens >= tokens_min)


Sent = Callable[[str, float, bytes], None]
"""Told of every request: the policy's name, when it was begun, and its body."""


def setting_for(model: Model, *, ttl_upgrade: bool = True, lookback: str | None = None) -> Setting:
    if model.cache.kind != "marks":
        raise UserError(f"model {model.id!r} takes no marks, so there is no plan to compare; name one of Anthropic's")
    told = model.cache
    if lookback == "blocks" or lookback == "positions":
        told = msgspec.structs.replace(told, lookback_counting=lookback)
    return Setting(model, msgspec.structs.replace(told, ttl_upgrade=ttl_upgrade), told)


def is_cold(usage: Usage, shared_tokens: int) -> bool:
    return usage.cache_read * 2 < shared_tokens


class _Track:
    """What one policy has made of the cache so far."""

    def __init__(self, policy: Policy, setting: Setting, scope: Scope) -> None:
        self.policy = policy
        self.setting = setting
        self.scope = scope
        self.entries = Entries()
        self.calls: list[PlayedCall] = []
        self.last: Call | None = None
        self.pieces = 0
        """How many pieces of the last request are of the conversation; a ping may say a word behind them."""
        self.body = b""

    def send(self, prefixes: tuple[Prefix, ...], marks: tuple[Mark, ...], at: float, *, shared: int | None) -> Usage:
        call = Call(self.scope, prefixes, marks, at)
        outcome, self.entries = step(self.setting.truth, self.entries, call)
        self.last = call
        price = newest_price(self.setting.model, call.tokens)
        self.calls.append(
            PlayedCall(
                at,
                outcome.usage,
                cost_usd(outcome.usage, price),
                shared or 0,
                cold=is_cold(outcome.usage, shared or 0),
                ping=shared is None,
            )
        )
        return outcome.usage


class Player:
    """Plays one recording under several policies side by side: one prompt grows, and all of them look at it."""

    def __init__(self, recording: Recording, setting: Setting, sent: Sent | None = None) -> None:
        self._recording = recording
        self._setting = setting
        self._sent = sent
        self._adapter: Adapter = adapter_for(setting.model.provider)
        self._prompt = Unrolled(recording, self._adapter, setting.model.tokens_factor)
        self.steps: list[Step] = []
        """The sizes and gaps that the bound and the optimum are made of; whole once the recording was played."""

    def play(self, policies: Sequence[Policy]) -> tuple[Played, ...]:
        recording = self._recording
        tracks = [_Track(policy, self._setting, Scope(recording.id, self._setting.model.name)) for policy in policies]
        before: RecordedCall | None = None
        for index, call in enumerate(self._prompt.calls(recording)):
            idle = call.at - before.at if before else None
            self._note(idle)
            following = recording.calls[index + 1].at if index + 1 < len(recording.calls) else None
            until = following if following is not None else call.at + self._setting.open_after_seconds
            self._call(tracks, call, idle, until)
            before = call
        return tuple(Played(recording.id, track.policy.name, tuple(track.calls)) for track in tracks)

    def _note(self, idle_seconds: float | None) -> None:
        self.steps.append(
            Step(
                prompt_tokens=self._prompt.prefixes[-1].tokens,
                shared_tokens=self._prompt.shared_tokens,
                replied_tokens=self._prompt.replied_tokens,
                gap_seconds=idle_seconds,
            )
        )

    def _call(self, tracks: Sequence[_Track], call: RecordedCall, idle: float | None, until: float) -> None:
        prompt, setting = self._prompt, self._setting
        prefixes = tuple(prompt.prefixes)
        price = newest_price(setting.model, prefixes[-1].tokens)
        moment = Moment(prompt.scroll, setting.told, price, call.at, idle, call.waited_for)
        for track in tracks:
            marks = track.policy.marks(moment)
            if self._sent is not None:
                track.body = prompt.scroll.render(b"", marks)
                self._tell(track, call.at, OUTPUT_TOKENS_MAX)
            usage = track.send(prefixes, marks, call.at, shared=prompt.shared_tokens)
            track.pieces = len(prefixes)
            track.policy.heard(moment, usage)
        prompt.enter_reply()
        for track in tracks if setting.keep_alive else ():
            self._keep_warm(track, moment, call, until=until)

    def _keep_warm(self, track: _Track, moment: Moment, call: RecordedCall, *, until: float) -> None:
        """A ping goes out while nothing else does: neither before the reply is there nor once the next call began."""
        waits_for = call.waits_for
        for count in range(PINGS_MAX):
            ping = track.policy.ping(moment, count, waits_for)
            due = track.calls[-1].at + ping.after_seconds if ping is not None else until
            if ping is None or due >= until or due < call.replied_at:
                return
            self._ping(track, ping.ttl, due)

    def _ping(self, track: _Track, ttl: Ttl, at: float) -> None:
        """What was sent last once more, if its last mark lives as long; else with the reply and a longer mark on it."""
        last = track.last
        assert last is not None
        newest = max(last.marks, key=lambda mark: mark.piece) if last.marks else None
        if newest is not None and (newest.ttl == ttl or ttl == "5m"):
            self._tell(track, at, 0)
            usage = track.send(last.prefixes, last.marks, at, shared=None)
            tokens = last.prefixes[track.pieces - 1].tokens
            track.policy.pinged(Pinged(at, newest.ttl, usage, newest.piece, track.pieces, tokens))
            return
        prefixes = self._prompt.prefixes
        place = next((index for index in range(len(prefixes) - 1, -1, -1) if self._may_mark(index)), None)
        if place is None:
            return
        held = sorted({mark.piece for mark in last.marks if mark.piece < place})[-(self._setting.truth.marks_max - 1) :]
        marks = tuple(Mark(piece, ttl, "kept warm") for piece in (*held, place))
        closing = Prefix("messages", "", prefixes[-1].tokens + self._prompt.closing_tokens())
        if self._sent is not None:
            track.body = self._prompt.closed(marks)
            self._tell(track, at, 0)
        usage = track.send((*prefixes, closing), marks, at, shared=None)
        track.pieces = len(prefixes)
        track.policy.pinged(Pinged(at, ttl, usage, place, len(prefixes), prefixes[-1].tokens))

    def _may_mark(self, index: int) -> bool:
        piece = self._prompt.scroll.pieces[index]
        return piece.markable and not piece.ephemeral

    def _tell(self, track: _Track, at: float, output_tokens_max: int) -> None:
        if self._sent is not None:
            opening = self._adapter.opening(Parameters(self._setting.model.name, output_tokens_max))
            self._sent(track.policy.name, at, opening + track.body)


def newest_price(model: Model, prompt_tokens: int) -> Price:
    """Recordings are priced as if they were made today: what is compared are plans, not days."""
    newest = max((price.valid_from for price in model.prices), default=datetime.date.min)
    return price_at(model, newest, prompt_tokens)
