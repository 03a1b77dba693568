"""How calls are answered: checked in a fixed order, run bounded in time, in size and in number at once.

known -> schema -> allowed, inside the workspace -> confirmed -> tool.called -> run -> tool.completed or tool.failed
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from holdfast.canonical.blocks import Image, Text, ToolResult, ToolUse
from holdfast.canonical.encoding import digest
from holdfast.canonical.tools import ToolSpec, check_arguments
from holdfast.clock import Clock, system_clock
from holdfast.engine.activation import NOTHING_ACTIVE, Activations, SkillActivationRegistry
from holdfast.engine.allowing import reason_against_skills
from holdfast.engine.confirm import NO_RULES, Confirmer, Rules, reason_against
from holdfast.engine.context import NOWHERE, Surroundings, ToolContext
from holdfast.engine.output import shortened, tool_content
from holdfast.engine.outputs import keep_output
from holdfast.engine.running import EscapedError, asked_to_stop, call_function
from holdfast.engine.tools import Tool, ToolError, ToolFunction, tool
from holdfast.errors import UserError
from holdfast.events.payloads import (
    AnyPayload,
    ToolCalled,
    ToolCompleted,
    ToolErrorClass,
    ToolFailed,
    ToolInputInvalid,
)
from holdfast.sources.confined import EscapeError, PathError, check_inside

Record = Callable[[AnyPayload], Awaitable[None]]
Keep = Callable[[ToolResult], None]

AT_ONCE_MAX = 4


class Toolbox:
    """The tools of a session, by name."""

    def __init__(
        self,
        tools: Sequence[Tool | ToolFunction],
        *,
        clock: Clock = system_clock,
        at_once_max: int = AT_ONCE_MAX,
        rules: Rules = NO_RULES,
        around: Surroundings = NOWHERE,
    ) -> None:
        known = [one if isinstance(one, Tool) else tool(one) for one in tools]
        self._tools = {one.spec.name: one for one in known}
        if len(self._tools) != len(known):
            names = sorted(one.spec.name for one in known)
            twice = next(name for name in names if names.count(name) > 1)
            raise UserError(f"two tools are named {twice!r}; give one of them another name")
        if around.roots is None and (lost := next((one.spec.name for one in known if one.paths), None)):
            raise UserError(f"tool {lost!r} takes paths, and the session has no workspace; give it one")
        self._clock = clock
        self._at_once_max = at_once_max
        self._rules = rules
        self._around = around
        self._confirmer = Confirmer(rules, clock)

    def lent(self, session_id: str, *instead: Tool) -> "Toolbox":
        """The same tools under the same rules for another session; those given stand in for the ones of their names.

        Whoever is asked before a tool runs is asked by both, one question at a time.
        """
        tools = {**self._tools, **{one.spec.name: one for one in instead}}
        around = msgspec.structs.replace(self._around, session_id=session_id)
        made = Toolbox(
            tuple(tools.values()), clock=self._clock, at_once_max=self._at_once_max, rules=self._rules, around=around
        )
        made._confirmer = self._confirmer
        return made

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(self._tools[name].spec for name in sorted(self._tools))

    async def run(
        self,
        calls: Sequence[ToolUse],
        record: Record,
        *,
        turn_id: str | None = None,
        active: Activations = NOTHING_ACTIVE,
    ) -> tuple[ToolResult, ...]:
        """Answer every call, in the order of the calls; cancelled, the ones under way are answered as such.

        `active` is what the model had loaded before it made these calls; the rules of those skills hold for them.
        """
        if not calls:
            return ()
        gate = asyncio.Semaphore(self._at_once_max)
        answers = [refusal(call, "The call was cancelled before it was run.") for call in calls]
        registry = SkillActivationRegistry(active, self._around.activation_limits)

        async def answer(number: int, call: ToolUse) -> None:
            async with gate:
                answers[number] = refusal(call, "The call was cancelled.")
                context = ToolContext(self._around, tool_use_id=call.id, turn_id=turn_id, skill_activations=registry)
                keep = functools.partial(answers.__setitem__, number)
                await self._answer(_Call(call, record, keep, clock=self._clock, context=context), active)

        tasks = [asyncio.ensure_future(answer(number, call)) for number, call in enumerate(calls)]
        cancelled = False
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            cancelled = True
        failure = _first_failure(tasks)
        # No tool may run on behind the turn that asked for it, whatever ends the turn.
        cancelled = await _stop(tasks) or cancelled
        if cancelled:
            raise ToolsCancelledError(tuple(answers))
        if failure is not None:
            raise failure
        return tuple(answers)

    async def _answer(self, call: "_Call", active: Activations) -> None:
        used = call.use
        chosen = self._tools.get(used.name)
        if chosen is None:
            known = ", ".join(sorted(self._tools)) or "none"
            await call.fail("not_found", f"There is no tool {used.name!r}. Known tools: {known}.")
            return
        findings = check_arguments(chosen.spec, used.arguments_json)
        if findings:
            await call.record(ToolInputInvalid(used.name, findings))
            await call.fail("validation_error", "The arguments do not fit the schema: " + "; ".join(findings))
            return
        if refused := self._reason_against(chosen, used, active):
            await call.fail(*refused)
            return
        if not await self._confirmed(chosen, call):
            return
        sent = used.arguments_json.encode()
        await call.record(ToolCalled(used.id, used.name, digest(sent), len(sent), chosen.side_effects))
        await _run(chosen, call)

    def _reason_against(self, chosen: Tool, used: ToolUse, active: Activations) -> tuple[ToolErrorClass, str] | None:
        reason = reason_against(self._rules, used) or self._reason_of_skills(used, active)
        if reason:
            return "permission_denied", f"This call is not allowed: {reason}"
        if self._around.roots is None or not chosen.paths:
            return None
        arguments = msgspec.json.decode(used.arguments_json)
        given = (arguments.get(name) for name in chosen.paths)
        writing = chosen.side_effects not in ("none", "read")
        try:
            for path in given:
                if isinstance(path, str):
                    check_inside(self._around.roots, path, writing=writing)
        except EscapeError as error:
            return "permission_denied", f"The path is refused: {error}."
        except PathError as error:
            return "validation_error", f"The path is refused: {error}."
        return None

    def _reason_of_skills(self, used: ToolUse, active: Activations) -> str | None:
        store = self._around.skills
        if store is None or not self._around.enforce_allowed_tools:
            return None
        skills = (store.get(name) for name in active.names)
        return reason_against_skills([skill for skill in skills if skill is not None], used)

    async def _confirmed(self, chosen: Tool, call: "_Call") -> bool:
        if not chosen.asks:
            return True
        try:
            decision = await self._confirmer.decide(call.use, chosen.side_effects, call.record)
        except asyncio.CancelledError:
            await call.fail("cancelled", "The call was cancelled.")
            raise
        match decision:
            case "allow":
                return True
            case "deny":
                await call.fail("user_denied", "The user did not allow this call.")
            case "timeout":
                seconds = self._rules.confirm_seconds_max
                await call.fail("confirmation_timeout", f"Nobody allowed this call within {seconds:g} s.")
        return False


class _Call:
    """One call under way: its answer is kept before it is recorded, so that a cancellation cannot belie it."""

    def __init__(self, use: ToolUse, record: Record, keep: Keep, *, clock: Clock, context: ToolContext) -> None:
        self.use = use
        self.record = record
        self.context = context
        self._keep = keep
        self._clock = clock
        self._started: float | None = None

    def begin(self) -> None:
        self._started = self._clock()

    async def fail(self, kind: ToolErrorClass, message: str) -> None:
        told = shortened(message)
        self._keep(refusal(self.use, told))
        await self._record_notes()
        await self.record(ToolFailed(self.use.id, kind, told, self._since_ms()))

    async def complete(self, content: tuple[Text | Image, ...]) -> None:
        self._keep(ToolResult(self.use.id, content, name=self.use.name))
        size = sum(len(block.text.encode()) for block in content if isinstance(block, Text))
        await self._record_notes()
        completed = ToolCompleted(
            tool_use_id=self.use.id,
            success=self.context.success,
            output_size_bytes=size,
            latency_ms=self._since_ms(),
            files_modified=tuple(self.context.files_modified) or None,
            command_executed=self.context.command_executed,
        )
        await self.record(completed)

    async def _record_notes(self) -> None:
        for payload in self.context.take_notes():
            await self.record(payload)

    def _since_ms(self) -> int:
        return 0 if self._started is None else round((self._clock() - self._started) * 1000)


class ToolsCancelledError(Exception):
    """Tools were cancelled; here is what to answer to every call so that the transcript stays legal."""

    def __init__(self, results: tuple[ToolResult, ...]) -> None:
        super().__init__("the tools were cancelled")
        self.results = results


def refusal(call: ToolUse, message: str) -> ToolResult:
    return ToolResult(call.id, (Text(message),), is_error=True, name=call.name)


async def _run(chosen: Tool, call: _Call) -> None:
    limit = asyncio.timeout(chosen.timeout_seconds)
    call.begin()
    try:
        async with limit:
            output = await call_function(chosen.run, _arguments(chosen, call))
        content = _content(output, chosen, call.context)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        # Whatever a tool raises is the model's to read, not ours to die of.
        call.context.stopped.set()
        if isinstance(error, asyncio.CancelledError) and asked_to_stop():
            await call.fail("cancelled", "The call was cancelled.")
            raise
        if limit.expired():
            await call.fail("timeout", f"The tool did not answer within {chosen.timeout_seconds:g} s.")
        else:
            await call.fail(error.kind if isinstance(error, ToolError) else "execution_error", _words(error))
    else:
        await call.complete(content)


def _arguments(chosen: Tool, call: _Call) -> dict[str, object]:
    sent: dict[str, object] = msgspec.json.decode(call.use.arguments_json)
    # Ours stands last: a model that guesses the parameter's name does not get to fill it.
    return {**sent, chosen.context_parameter: call.context} if chosen.context_parameter else sent


def _content(output: object, chosen: Tool, context: ToolContext) -> tuple[Text | Image, ...]:
    # Written here and not in a thread: a cancellation meanwhile would deny a call that is done.
    folder = context.output_folder
    keep = functools.partial(keep_output, folder, context.tool_use_id) if folder else None
    return tool_content(output, keep, characters_max=chosen.output_characters_max)


def _words(error: BaseException) -> str:
    if isinstance(error, EscapedError):
        error = error.error
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an error that cannot say what it is still has a name
        text = ""
    if isinstance(error, ToolError):
        return text if text.strip() else "The tool failed."
    return f"{type(error).__name__}: {text}" if text.strip() else type(error).__name__


def _first_failure(tasks: Sequence[asyncio.Future[None]]) -> BaseException | None:
    over = (task.exception() for task in tasks if task.done() and not task.cancelled())
    return next((error for error in over if error is not None), None)


async def _stop(tasks: Sequence[asyncio.Future[None]]) -> bool:
    """Cancel what still runs and wait for its end; whether we were asked to stop ourselves meanwhile."""
    cancelled = False
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError:
            cancelled = True
    # Asked for, so that Python does not report as unheard what failed while it was being stopped.
    _ = [task.exception() for task in tasks if not task.cancelled()]
    return cancelled
