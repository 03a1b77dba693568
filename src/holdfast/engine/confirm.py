"""Decides whether a tool call may run: by the caller's rules, and by asking the user for confirmation."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from holdfast.canonical.blocks import ToolUse
from holdfast.clock import Clock
from holdfast.engine.running import asked_to_stop, call_function
from holdfast.events.payloads import AnyPayload, SideEffects, ToolConfirmationRequested, ToolConfirmationResolved
from holdfast.sources.text import one_line

logger = logging.getLogger(__name__)

CONFIRM_SECONDS_MAX = 300.0
CONFIRM_FOR: frozenset[SideEffects] = frozenset(("write", "execute", "network"))
SUMMARY_CHARACTERS_MAX = 500

# Unicode bidirectional controls change the direction in which text is shown: with them a command can be made to look
# like another one in a confirmation dialog.
_BIDI_CONTROLS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))

Decision = Literal["allow", "deny", "timeout"]


class ConfirmationRequest(msgspec.Struct, frozen=True):
    """A call for the user to confirm. `summary` is one line; `arguments_json` is complete, as the model sent it."""

    tool_use_id: str
    tool_name: str
    side_effects: SideEffects
    summary: str
    arguments_json: str
    expires_at: float


Confirmation = bool | Literal["session"]
Confirm = Callable[[ConfirmationRequest], Confirmation | Awaitable[Confirmation]]
"""True allows the call, False denies it; `session` allows all later calls of this tool too."""

Allowed = Callable[[ToolUse], str | None]
"""The reason why a call may not run, or None."""


class Rules(msgspec.Struct, frozen=True):
    """The caller's rules for tool calls; without `confirm` all calls run unconfirmed."""

    allowed: Allowed | None = None
    confirm: Confirm | None = None
    confirm_for: frozenset[SideEffects] = CONFIRM_FOR
    confirm_seconds_max: float = CONFIRM_SECONDS_MAX


NO_RULES = Rules()


def reason_against(rules: Rules, use: ToolUse) -> str | None:
    """Why the caller's rule refuses a call, or None; a rule that raises refuses it."""
    if rules.allowed is None:
        return None
    try:
        return rules.allowed(use)
    except Exception as error:  # noqa: BLE001 - whatever the caller's rule raises, the call is refused
        kind = type(error).__name__
        logger.error("the `allowed` function failed (%s); the call of %r is refused", kind, use.name)
        return "whether this call is allowed could not be found out"


class Confirmer:
    """Asks for one confirmation at a time, and remembers which tools were allowed for the whole session."""

    def __init__(self, rules: Rules, clock: Clock) -> None:
        self._rules = rules
        self._clock = clock
        self._prompt_lock = asyncio.Lock()
        self._allowed_tools: set[str] = set()

    async def decide(
        self, use: ToolUse, side_effects: SideEffects, record: Callable[[AnyPayload], Awaitable[None]]
    ) -> Decision:
        confirm = self._rules.confirm
        if confirm is None or side_effects not in self._rules.confirm_for:
            return "allow"
        async with self._prompt_lock:
            if use.name in self._allowed_tools:
                return "allow"
            request = self._request(use, side_effects)
            await record(ToolConfirmationRequested(use.id, use.name, side_effects, request.summary, request.expires_at))
            decision, scope = await self._ask(confirm, request)
            await record(ToolConfirmationResolved(use.id, decision, scope))
            if scope == "session":
                self._allowed_tools.add(use.name)
            return decision

    async def _ask(self, confirm: Confirm, request: ConfirmationRequest) -> tuple[Decision, str | None]:
        limit = asyncio.timeout(self._rules.confirm_seconds_max)
        try:
            async with limit:
                confirmation = await call_function(functools.partial(confirm, request), {})
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and asked_to_stop():
                raise
            if limit.expired():
                return "timeout", None
            # Only the class is logged, because the message may contain a key or a prompt.
            kind = type(error).__name__
            logger.warning("the confirmation of a call of %r failed (%s); it is denied", request.tool_name, kind)
            return "deny", None
        if confirmation == "session":
            return "allow", "session"
        # Only True itself is consent: a text such as "no" is truthy too.
        return ("allow", "once") if confirmation is True else ("deny", None)

    def _request(self, use: ToolUse, side_effects: SideEffects) -> ConfirmationRequest:
        expires_at = self._clock() + self._rules.confirm_seconds_max
        summary = summary_of(use)
        return ConfirmationRequest(use.id, use.name, side_effects, summary, use.arguments_json, expires_at)


def summary_of(use: ToolUse) -> str:
    """A call as one line without line breaks, control characters or bidirectional controls, which could hide text."""
    full = f"{use.name} {use.arguments_json}"
    line = one_line(full[: SUMMARY_CHARACTERS_MAX + 1].encode("utf-8", "replace"))
    line = line.translate(dict.fromkeys(_BIDI_CONTROLS, "\ufffd"))
    if len(full) <= SUMMARY_CHARACTERS_MAX:
        return line
    return line[:SUMMARY_CHARACTERS_MAX] + f"... ({len(full) - SUMMARY_CHARACTERS_MAX} more characters)"
