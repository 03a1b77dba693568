"""Keeping an idle session's cache alive: used again in time, for as long as that is expected to pay."""

import asyncio
import logging
from collections.abc import Callable
from decimal import Decimal

import msgspec

from holdfast.canonical.prompt import Mark
from holdfast.engine.conversation import Conversation, KeepAlive
from holdfast.engine.empty import Empty, empty_parameters, send_empty
from holdfast.engine.planned import moment_of
from holdfast.engine.state import open_calls, sent_view
from holdfast.events.envelope import Event
from holdfast.events.payloads import CachePinged, LlmCallCompleted, LlmCallStarted, ModelSwitched, PingKind
from holdfast.layers.assemble import assemble
from holdfast.planning.closing import closing_behind
from holdfast.planning.marks import takes_mark
from holdfast.planning.ours import ping_of
from holdfast.planning.pings import MARGIN_SECONDS
from holdfast.planning.policy import Ping

logger = logging.getLogger(__name__)

_MILLION = Decimal(1_000_000)


class Letter(msgspec.Struct, frozen=True):
    """A ping as it is sent."""

    body: bytes
    wish: Empty


class Keeper:
    """Watches one session from its opening to its close. A call that begins stops what has not been sent yet."""

    def __init__(self, talk: Conversation, rules: KeepAlive) -> None:
        self._talk = talk
        self._rules = rules
        self._waiting: asyncio.Task[None] | None = None
        self._sending = False
        self._stop: Callable[[], None] = talk.parts.bus.subscribe(self._hear)

    def _hear(self, event: Event) -> None:
        match event.payload:
            case LlmCallStarted() | ModelSwitched():
                self._leave()
            case LlmCallCompleted():
                self._leave()
                self._waiting = asyncio.ensure_future(self._keep())
            case _:
                return

    def _leave(self) -> None:
        # What is under way is paid for already: it is read to its end, and recorded.
        if self._waiting is not None and not self._sending:
            self._waiting.cancel()
        self._waiting = None

    async def _keep(self) -> None:
        this = asyncio.current_task()
        while self._waiting is this:
            ping = next_ping(self._talk, self._rules)
            if isinstance(ping, str):
                logger.info("the cache of session %s is not kept alive: %s", self._talk.state.session_id, ping)
                return
            used_at = self._talk.state.memory.used_at or 0.0
            await self._rules.sleep(max(0.0, used_at + ping.after_seconds - self._talk.parts.clock()))
            if self._talk.parts.clock() - used_at >= ping.after_seconds + MARGIN_SECONDS:
                return  # The machine slept longer than it was told to: nothing is left to be kept.
            if not await self._send(ping):
                return

    async def _send(self, ping: Ping) -> bool:
        letter = letter_of(self._talk, ping)
        if isinstance(letter, str):
            logger.info("the cache of session %s is not kept alive: %s", self._talk.state.session_id, letter)
            return False
        self._sending = True
        try:
            return isinstance(await send_empty(self._talk, letter.body, letter.wish), CachePinged)
        finally:
            self._sending = False

    async def aclose(self) -> None:
        self._stop()
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


def next_ping(talk: Conversation, rules: KeepAlive) -> Ping | str:
    """The ping that is due if nothing else happens; or why there is none."""
    state, parts = talk.state, talk.parts
    made = empty_parameters(talk.parameters, parts.model)
    if isinstance(made, str):
        return made
    if state.memory.tail_piece is None or not {"5m", "1h"} <= parts.model.cache.ttls_seconds.keys():
        return "nothing was marked"
    moment = moment_of(talk, talk.draft.scroll)
    ping = ping_of(state.memory, parts.learned, moment, "tool" if open_calls(state) else "person")
    if ping is None:
        return "it is not expected to pay"
    cost = moment.price.cache_read * state.memory.tail_tokens / _MILLION
    if state.pinged_usd + cost > rules.usd_max:
        return f"${state.pinged_usd:.4f} of its ${rules.usd_max:f} is spent, and another ping would cost ${cost:.4f}"
    return ping


def letter_of(talk: Conversation, ping: Ping) -> Letter | str:
    """The last request once more, where its mark lives as long; else with the reply, marked for longer."""
    request, memory = talk.state.request, talk.state.memory
    parameters = empty_parameters(talk.parameters, talk.parts.model)
    if request is None or not request.marks or len(talk.draft.scroll.pieces) < request.pieces:
        return "nothing was marked"
    if isinstance(parameters, str):
        return parameters
    opening = talk.parts.adapter.opening(parameters)
    scroll, last = talk.draft.scroll, request.marks[-1]
    if memory.pieces == request.pieces and (last.ttl == ping.ttl or ping.ttl == "5m"):
        behind = scroll.pieces[request.pieces :]
        scroll.cut(request.pieces)
        body = scroll.render(opening, request.marks)
        scroll.extend(behind)
        tokens = talk.state.calibration.corrected(scroll.tokens_total)
        return Letter(body, Empty("refresh", last.ttl, tokens, ping.reason, last.piece, request.pieces))
    return _with_reply(talk, ping, opening)


def _with_reply(talk: Conversation, ping: Ping, opening: bytes) -> Letter | str:
    state = talk.state
    if state.first_ephemeral is not None:
        return "the prompt holds text that leaves it with the turn"
    # The reply stands behind what was sent from now on, whatever comes next.
    talk.draft.update(assemble(sent_view(state)))
    scroll = talk.draft.scroll
    pieces = len(scroll.pieces)
    place = next((at for at in range(pieces - 1, -1, -1) if takes_mark(scroll.pieces, at)), None)
    if place is None:
        return "nothing in the prompt takes a mark"
    request = state.request
    before = sorted({mark.piece for mark in (request.marks if request else ()) if mark.piece < place})
    held = before[-(talk.parts.model.cache.marks_max - 1) :]
    marks = tuple(Mark(piece, ping.ttl, "kept alive") for piece in (*held, place))
    scroll.extend(closing_pieces := talk.draft.spelled(closing_behind(state.passages[-1] if state.passages else None)))
    body = scroll.render(opening, marks)
    closing_tokens = sum(scroll.tokens[-len(closing_pieces) :])
    tokens = state.calibration.corrected(scroll.tokens_total)
    scroll.cut(pieces)
    kind: PingKind = "refresh" if talk.state.memory.pieces == pieces else "upgrade"
    return Letter(body, Empty(kind, ping.ttl, tokens, ping.reason, place, pieces, closing_tokens))
