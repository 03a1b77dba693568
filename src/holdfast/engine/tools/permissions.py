"""Decides whether a tool call may run: by the caller's rules, the `allowed-tools` of skills, and a confirmation.

Patterns of `allowed-tools`:

| pattern | permits |
| --- | --- |
| `read_file`, `mcp__docs__*` | the tools of that name; `*` matches any characters |
| `Bash`, `Read`, `Write`, `Edit`, `Grep`, `Glob` | the built-in tool that does the same |
| `Bash(git status)` | that command |
| `Bash(git add:*)`, `Bash(git add *)` | that command, alone or with arguments; `*` never matches a second command |
| `Edit(docs/**)` | paths of the workspace; `*` stays within a folder, `**` does not; `//` starts an absolute path |

A pattern with brackets for any other tool permits nothing.
"""

import asyncio
import functools
import logging
import posixpath
import re
from collections.abc import Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from holdfast.clock import Clock
from holdfast.engine.tools.builtin.skills import SKILL_TOOL_NAMES as SKILL_TOOLS
from holdfast.engine.tools.execution import call_function, is_task_cancelled
from holdfast.events.payloads.calls import SideEffects, ToolConfirmationRequested, ToolConfirmationResolved
from holdfast.events.payloads.union import AnyPayload
from holdfast.sources.files import to_one_line
from holdfast.sources.skills.skill import Skill
from holdfast.types.blocks import ToolUse

logger = logging.getLogger(__name__)
CONFIRM_SECONDS_MAX = 300.0
CONFIRM_FOR: frozenset[SideEffects] = frozenset(("write", "execute", "network"))
SUMMARY_CHARACTERS_MAX = 500

# Unicode bidirectional controls change the direction in which text is shown: with them a command can be made to look
# like another one in a confirmation dialog.
_BIDI_CONTROLS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))

BUILTIN_NAMES = {
    "Bash": "run_command",
    "Edit": "edit_file",
    "Glob": "list_dir",
    "Grep": "grep_files",
    "LS": "list_dir",
    "MultiEdit": "edit_file",
    "Read": "read_file",
    "Write": "write_file",
}
"""Names that skills use for built-in tools, and our names of them."""

_PATH_TOOLS = ("edit_file", "grep_files", "list_dir", "read_file", "write_file")
_PATTERN = re.compile(r"([^()]+)(?:\((.*)\))?", re.DOTALL)

# Shell characters that could start a second command or redirect output.
_SECOND_COMMAND = re.compile(r"[;&|<>()`\r\n]")
_STARS = re.compile(r"(\*+)")

StarsMatch = Callable[[str, str], bool]
"""Whether these stars may match this text."""


def skill_refusal_reason(skills: Sequence[Skill], use: ToolUse) -> str | None:
    """Why the active skills do not permit a call; skills without `allowed-tools` do not restrict anything."""
    strict = [skill for skill in skills if skill.allowed_tools]
    # The skill tools are always permitted: otherwise a strict skill could never be followed by another one.
    if not strict or use.name in SKILL_TOOLS:
        return None
    patterns = [pattern for skill in strict for pattern in skill.allowed_tools]
    if any(permits_call(pattern, use) for pattern in patterns):
        return None
    names = ", ".join(skill.name for skill in strict)
    return f"the skills that are loaded ({names}) allow only {', '.join(dict.fromkeys(patterns))}"


def permits_call(pattern: str, use: ToolUse) -> bool:
    """Whether one pattern permits a call."""
    match = _PATTERN.fullmatch(pattern)
    if match is None:
        return False
    name, inner = match[1], match[2]
    # Of the characters that fnmatch knows, only stars are special.
    stars_only = name.replace("[", "[[]").replace("?", "[?]")
    if use.name != BUILTIN_NAMES.get(name) and not fnmatchcase(use.name, stars_only):
        return False
    if inner is None or inner == "*":
        return True
    arguments = msgspec.json.decode(use.arguments_json)
    if use.name == "run_command":
        return _matches_command(inner, str(arguments.get("command", "")).strip())
    if use.name in _PATH_TOOLS:
        return _matches_path(inner, str(arguments.get("path", ".")))
    return False


def _matches_command(inner: str, command: str) -> bool:
    bare = inner.removesuffix(":*").removesuffix(" *")
    patterns = (inner,) if bare == inner else (bare, f"{bare} *")
    return any(_matches(pattern, command, _is_one_command) for pattern in patterns)


def _is_one_command(stars: str, text: str) -> bool:
    return not _SECOND_COMMAND.search(text)


def _matches_path(inner: str, path: str) -> bool:
    # Without `..` and `.` first: otherwise `docs/../secrets` would match `docs/**`.
    path = posixpath.normpath(path)
    if posixpath.isabs(path):
        return inner.startswith("//") and _matches(inner[1:], path, _stays_in_folder)
    relative = not inner.startswith("//") and not path.startswith("../") and path != ".."
    return relative and _matches(inner.removeprefix("./").removeprefix("/"), path, _stays_in_folder)


def _stays_in_folder(stars: str, text: str) -> bool:
    return len(stars) > 1 or "/" not in text


def _matches(pattern: str, text: str, stars_match: StarsMatch) -> bool:
    """Whether the text is the literal parts of the pattern in order, with only matches of its stars in between.

    Each literal part is matched at its earliest position, so the time is linear: no pattern can backtrack.
    """
    first, *rest = _STARS.split(pattern)
    if not rest:
        return text == pattern
    if not text.startswith(first):
        return False
    position = len(first)
    for stars, word in zip(rest[0:-2:2], rest[1:-2:2], strict=True):
        start = text.find(word, position)
        if start < 0 or not stars_match(stars, text[position:start]):
            return False
        position = start + len(word)
    stars, last = rest[-2:]
    end = len(text) - len(last)
    return position <= end and text.endswith(last) and stars_match(stars, text[position:end])


ConfirmationDecision = Literal["allow", "deny", "timeout"]


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


class PermissionRules(msgspec.Struct, frozen=True):
    """The caller's rules for tool calls; without `confirm` all calls run unconfirmed."""

    allowed: Allowed | None = None
    confirm: Confirm | None = None
    confirm_for: frozenset[SideEffects] = CONFIRM_FOR
    confirm_seconds_max: float = CONFIRM_SECONDS_MAX


NO_PERMISSION_RULES = PermissionRules()


def rule_refusal_reason(rules: PermissionRules, use: ToolUse) -> str | None:
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

    def __init__(self, rules: PermissionRules, clock: Clock) -> None:
        self._rules = rules
        self._clock = clock
        self._prompt_lock = asyncio.Lock()
        self._allowed_tools: set[str] = set()

    async def decide(
        self, use: ToolUse, side_effects: SideEffects, record: Callable[[AnyPayload], Awaitable[None]]
    ) -> ConfirmationDecision:
        confirm = self._rules.confirm
        if confirm is None or side_effects not in self._rules.confirm_for:
            return "allow"
        async with self._prompt_lock:
            if use.name in self._allowed_tools:
                return "allow"
            summary, expires_at = summarize_call(use), self._clock() + self._rules.confirm_seconds_max
            request = ConfirmationRequest(use.id, use.name, side_effects, summary, use.arguments_json, expires_at)
            await record(ToolConfirmationRequested(use.id, use.name, side_effects, summary, expires_at))
            decision, scope = await self._ask(confirm, request)
            await record(ToolConfirmationResolved(use.id, decision, scope))
            if scope == "session":
                self._allowed_tools.add(use.name)
            return decision

    async def _ask(self, confirm: Confirm, request: ConfirmationRequest) -> tuple[ConfirmationDecision, str | None]:
        limit = asyncio.timeout(self._rules.confirm_seconds_max)
        try:
            async with limit:
                confirmation = await call_function(functools.partial(confirm, request), {})
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_task_cancelled():
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


def summarize_call(use: ToolUse) -> str:
    """A call as one line without line breaks, control characters or bidirectional controls, which could hide text."""
    full = f"{use.name} {use.arguments_json}"
    line = to_one_line(full[: SUMMARY_CHARACTERS_MAX + 1].encode("utf-8", "replace"))
    line = line.translate(dict.fromkeys(_BIDI_CONTROLS, "\ufffd"))
    if len(full) <= SUMMARY_CHARACTERS_MAX:
        return line
    return line[:SUMMARY_CHARACTERS_MAX] + f"... ({len(full) - SUMMARY_CHARACTERS_MAX} more characters)"
