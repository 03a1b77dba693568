"""Whether a call may be run: what the caller's rules and the person in front of the screen say."""

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

_TURNED = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that change in which direction others are shown: with them a command can look like another one."""

Decision = Literal["allow", "deny", "timeout"]


class ConfirmationRequest(msgspec.Struct, frozen=True):
    """What somebody is asked to allow. `summary` is one line; `arguments_json` is everything, as the model sent it."""

    tool_use_id: str
    tool_name: str
    side_effects: SideEffects
    summary: str
    arguments_json: str
    expires_at: float


Confirmation = bool | Literal["session"]
Confirm = Callable[[ConfirmationRequest], Confirmation | Awaitable[Confirmation]]
"""True lets the call run, False does not; `session` lets this tool run unasked from now on."""

Allowed = Callable[[ToolUse], str | None]
"""Why a call may not be run, or None."""


class Rules(msgspec.Struct, frozen=True):
    """Who is asked, for which side effects, and for how long; without `confirm` nobody is, and all calls run."""

    allowed: Allowed | None = None
    confirm: Confirm | None = None
    confirm_for: frozenset[SideEffects] = CONFIRM_FOR
    confirm_seconds_max: float = CONFIRM_SECONDS_MAX


NO_RULES = Rules()


def reason_against(rules: Rules, use: ToolUse) -> str | None:
    """Why the caller's rule refuses a call; a rule that fails refuses."""
    if rules.allowed is None:
        return None
    try:
        return rules.allowed(use)
    except Exception as error:  # noqa: BLE001 - whatever the caller's rule raises, the call is refused
        kind = type(error).__name__
        logger.error("the rule on which calls are allowed failed (%s); the call of %r is refused", kind, use.name)
        return "whether this call is allowed could not be found out"


class Confirmer:
    """Asks one question at a time, and remembers what was allowed for the whole session."""

    def __init__(self, rules: Rules, clock: Clock) -> None:
        self._rules = rules
        self._clock = clock
        self._asking = asyncio.Lock()
        self._allowed_tools: set[str] = set()

    async def decide(
        self, use: ToolUse, side_effects: SideEffects, record: Callable[[AnyPayload], Awaitable[None]]
    ) -> Decision:
        confirm = self._rules.confirm
        if confirm is None or side_effects not in self._rules.confirm_for:
            return "allow"
        async with self._asking:
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
                said = await call_function(functools.partial(confirm, request), {})
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and asked_to_stop():
                raise
            if limit.expired():
                return "timeout", None
            # What the error says may hold a key or a prompt; its kind does not.
            kind = type(error).__name__
            logger.warning("asking whether %r may run failed (%s); it is not run", request.tool_name, kind)
            return "deny", None
        if said == "session":
            return "allow", "session"
        # Only a plain yes is one: a text or a number that happens to be true is not.
        return ("allow", "once") if said is True else ("deny", None)

    def _request(self, use: ToolUse, side_effects: SideEffects) -> ConfirmationRequest:
        expires_at = self._clock() + self._rules.confirm_seconds_max
        summary = summary_of(use)
        return ConfirmationRequest(use.id, use.name, side_effects, summary, use.arguments_json, expires_at)


def summary_of(use: ToolUse) -> str:
    """A call in one line in which nothing can hide: no line breaks, no control characters, no turned text."""
    shown = f"{use.name} {use.arguments_json}"
    line = one_line(shown[: SUMMARY_CHARACTERS_MAX + 1].encode("utf-8", "replace"))
    line = line.translate(dict.fromkeys(_TURNED, "\ufffd"))
    if len(shown) <= SUMMARY_CHARACTERS_MAX:
        return line
    return line[:SUMMARY_CHARACTERS_MAX] + f"... ({len(shown) - SUMMARY_CHARACTERS_MAX} more characters)"
