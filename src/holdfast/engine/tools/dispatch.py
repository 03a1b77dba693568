"""Runs tool calls: each is checked in a fixed order, then run with limits on time, output size and concurrency.

known -> schema -> allowed, inside the workspace -> confirmed -> tool.called -> run -> tool.completed or tool.failed
"""

import asyncio
import copy
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.clock import Clock, system_clock
from holdfast.engine.tools import permissions
from holdfast.engine.tools.definition import (
    METADATA_BYTES_MAX,
    NO_ENVIRONMENT,
    Tool,
    ToolContext,
    ToolEnvironment,
    ToolError,
    ToolFunction,
    tool,
)
from holdfast.engine.tools.execution import EscapedError, call_function, is_task_cancelled
from holdfast.engine.tools.output import spill_output, to_content_blocks, truncate_middle
from holdfast.engine.tools.skill_budget import NO_ACTIVATIONS, Activations, SkillActivationRegistry
from holdfast.errors import UserError
from holdfast.events.payloads.calls import ToolCalled, ToolCompleted, ToolErrorClass, ToolFailed, ToolInputInvalid
from holdfast.events.payloads.union import AnyPayload
from holdfast.sources.confined_paths import EscapeError, PathError, check_path_inside
from holdfast.types.blocks import Image, Json, Text, ToolResult, ToolUse
from holdfast.types.json_encoding import sha256_hex
from holdfast.types.tool_spec import ToolSpec, check_arguments

logger = logging.getLogger(__name__)
RecordEvent = Callable[[AnyPayload], Awaitable[None]]
SetResult = Callable[[ToolResult], None]
CONCURRENT_CALLS_MAX = 4  # Tools run on the user's machine, whose cores and files they share.


class Toolbox:
    """The tools of a session, by name."""

    def __init__(
        self,
        tools: Sequence[Tool | ToolFunction],
        *,
        clock: Clock = system_clock,
        at_once_max: int = CONCURRENT_CALLS_MAX,
        rules: permissions.PermissionRules = permissions.NO_PERMISSION_RULES,
        environment: ToolEnvironment = NO_ENVIRONMENT,
    ) -> None:
        definitions = [item if isinstance(item, Tool) else tool(item) for item in tools]
        self._tools = {item.spec.name: item for item in definitions}
        if len(self._tools) != len(definitions):
            names = sorted(item.spec.name for item in definitions)
            duplicate = next(name for name in names if names.count(name) > 1)
            raise UserError(f"two tools are named {duplicate!r}; give one of them another name")
        path_tool = next((item.spec.name for item in definitions if item.paths), None)
        if environment.roots is None and path_tool is not None:
            raise UserError(f"tool {path_tool!r} takes paths, but the session has no workspace; pass one")
        self._clock = clock
        self._at_once_max = at_once_max
        self._rules = rules
        self._environment = environment
        self._confirmer = permissions.Confirmer(rules, clock)

    def for_session(self, session_id: str, *replacements: Tool) -> "Toolbox":
        """The same tools and rules for another session; `replacements` replaces tools of the same name.

        Both sessions share one confirmer, so that the user is asked one question at a time.
        """
        toolbox = copy.copy(self)
        toolbox._tools = {**self._tools, **{replacement.spec.name: replacement for replacement in replacements}}
        toolbox._environment = replace(self._environment, session_id=session_id)
        return toolbox

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(self._tools[name].spec for name in sorted(self._tools))

    async def run_calls(
        self,
        calls: Sequence[ToolUse],
        record: RecordEvent,
        *,
        turn_id: str | None = None,
        active: Activations = NO_ACTIVATIONS,
    ) -> tuple[ToolResult, ...]:
        """Run the calls and return their results in the same order.

        If cancelled, raises ToolsCancelledError with a result for every call. `active` are the skills that the model
        had loaded before it made these calls; their rules apply to them.
        """
        if not calls:
            return ()
        slots = asyncio.Semaphore(self._at_once_max)
        results = [error_result(call, "The call was cancelled before it was run.") for call in calls]
        registry = SkillActivationRegistry(active, self._environment.activation_limits)

        async def run_one(number: int, call: ToolUse) -> None:
            async with slots:
                results[number] = error_result(call, "The call was cancelled.")
                environment = self._environment
                context = ToolContext(environment, tool_use_id=call.id, turn_id=turn_id, skill_activations=registry)
                set_result = functools.partial(results.__setitem__, number)
                await self._check_and_run(_Call(call, record, set_result, clock=self._clock, context=context), active)

        tasks = [asyncio.ensure_future(run_one(number, call)) for number, call in enumerate(calls)]
        cancelled = False
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            cancelled = True
        failure = _first_failure(tasks)
        # No tool may keep running after its turn, whatever ended the turn.
        cancelled = await _stop(tasks) or cancelled
        if cancelled:
            raise ToolsCancelledError(tuple(results))
        if failure is not None:
            raise failure
        return tuple(results)

    async def _check_and_run(self, call: "_Call", active: Activations) -> None:
        use = call.use
        definition = self._tools.get(use.name)
        if definition is None:
            tool_names = ", ".join(sorted(self._tools)) or "none"
            await call.fail("not_found", f"There is no tool {use.name!r}. Known tools: {tool_names}.")
            return
        findings = check_arguments(definition.spec, use.arguments_json)
        if findings:
            await call.record(ToolInputInvalid(use.name, findings))
            await call.fail("validation_error", "The arguments do not fit the schema: " + "; ".join(findings))
            return
        if refusal_reason := self._reason_against(definition, use, active):
            await call.fail(*refusal_reason)
            return
        if not await self._confirmed(definition, call):
            return
        arguments = use.arguments_json.encode()
        await call.record(ToolCalled(use.id, use.name, sha256_hex(arguments), len(arguments), definition.side_effects))
        await _run(definition, call)

    def _reason_against(self, definition: Tool, use: ToolUse, active: Activations) -> tuple[ToolErrorClass, str] | None:
        reason = permissions.rule_refusal_reason(self._rules, use) or self._reason_against_skills(use, active)
        if reason:
            return "permission_denied", f"This call is not allowed: {reason}"
        if self._environment.roots is None or not definition.paths:
            return None
        arguments = msgspec.json.decode(use.arguments_json)
        paths = (arguments.get(name) for name in definition.paths)
        writing = definition.side_effects not in ("none", "read")
        try:
            for path in paths:
                if isinstance(path, str):
                    check_path_inside(self._environment.roots, path, writing=writing)
        except EscapeError as error:
            return "permission_denied", f"The path is refused: {error}."
        except PathError as error:
            return "validation_error", f"The path is refused: {error}."
        return None

    def _reason_against_skills(self, use: ToolUse, active: Activations) -> str | None:
        store = self._environment.skills
        if store is None or not self._environment.enforce_allowed_tools:
            return None
        skills = (store.get(name) for name in active.names)
        return permissions.skill_refusal_reason([skill for skill in skills if skill is not None], use)

    async def _confirmed(self, definition: Tool, call: "_Call") -> bool:
        if not definition.needs_confirmation:
            return True
        try:
            decision = await self._confirmer.decide(call.use, definition.side_effects, call.record)
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
    """One call in progress.

    Its result is set before its event is recorded, so that a cancellation in between cannot report a finished call as
    cancelled.
    """

    def __init__(
        self, use: ToolUse, record: RecordEvent, set_result: SetResult, *, clock: Clock, context: ToolContext
    ) -> None:
        self.use = use
        self.record = record
        self.context = context
        self._set_result = set_result
        self._clock = clock
        self._started_at: float | None = None

    def begin(self) -> None:
        self._started_at = self._clock()

    async def fail(self, kind: ToolErrorClass, message: str) -> None:
        text = truncate_middle(message)
        self._set_result(error_result(self.use, text))
        await self._record_notes()
        await self.record(ToolFailed(self.use.id, kind, text, self._elapsed_ms()))

    async def complete(self, content: tuple[Text | Image, ...]) -> None:
        self._set_result(ToolResult(self.use.id, content, name=self.use.name))
        size = sum(len(block.text.encode()) for block in content if isinstance(block, Text))
        await self._record_notes()
        completed = ToolCompleted(
            tool_use_id=self.use.id,
            success=self.context.success,
            output_size_bytes=size,
            latency_ms=self._elapsed_ms(),
            files_modified=tuple(self.context.files_modified) or None,
            command_executed=self.context.command_executed,
            metadata=_recordable_metadata(self.use.name, self.context.metadata),
        )
        await self.record(completed)

    async def _record_notes(self) -> None:
        for payload in self.context.take_events():
            await self.record(payload)

    def _elapsed_ms(self) -> int:
        return 0 if self._started_at is None else round((self._clock() - self._started_at) * 1000)


def _recordable_metadata(tool_name: str, metadata: dict[str, Json]) -> dict[str, Json] | None:
    """A copy as JSON; None if there is none, or if a tool put in what the log cannot hold."""
    if not metadata:
        return None
    try:
        encoded = msgspec.json.encode(metadata)
        if len(encoded) <= METADATA_BYTES_MAX:
            return msgspec.json.decode(encoded, type=dict[str, Any])
        reason = f"it has more than {METADATA_BYTES_MAX} bytes"
    except (TypeError, ValueError, RecursionError) as error:
        reason = f"it is not a JSON object ({type(error).__name__})"
    logger.warning("the metadata of tool %r is not recorded: %s", tool_name, reason)
    return None


class ToolsCancelledError(Exception):
    """Tool calls were cancelled. `results` has one result per call: providers reject a call without a result."""

    def __init__(self, results: tuple[ToolResult, ...]) -> None:
        super().__init__("the tools were cancelled")
        self.results = results


def error_result(call: ToolUse, message: str) -> ToolResult:
    """An error result for a call that was not run or failed."""
    return ToolResult(call.id, (Text(message),), is_error=True, name=call.name)


async def _run(definition: Tool, call: _Call) -> None:
    limit = asyncio.timeout(definition.timeout_seconds)
    call.begin()
    try:
        async with limit:
            output = await call_function(definition.run, _arguments(definition, call))
        content = _content(output, definition, call.context)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        # Any error of a tool becomes its result for the model, and must not end the session.
        call.context.stopped.set()
        if isinstance(error, asyncio.CancelledError) and is_task_cancelled():
            await call.fail("cancelled", "The call was cancelled.")
            raise
        if limit.expired():
            await call.fail("timeout", f"The tool did not answer within {definition.timeout_seconds:g} s.")
        else:
            await call.fail(error.kind if isinstance(error, ToolError) else "execution_error", _error_text(error))
    else:
        await call.complete(content)


def _arguments(definition: Tool, call: _Call) -> dict[str, object]:
    arguments: dict[str, object] = msgspec.json.decode(call.use.arguments_json)
    # The context comes last, so that a model that guesses the parameter's name cannot set it.
    return {**arguments, definition.context_parameter: call.context} if definition.context_parameter else arguments


def _content(output: object, definition: Tool, context: ToolContext) -> tuple[Text | Image, ...]:
    # Written on the event loop, not in a thread: a cancellation during an await would report a finished call as failed.
    folder = context.output_folder
    store = functools.partial(spill_output, folder, context.tool_use_id) if folder else None
    return to_content_blocks(output, store, characters_max=definition.output_characters_max)


def _error_text(error: BaseException) -> str:
    if isinstance(error, EscapedError):
        error = error.error
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - if __str__ itself fails, the class name is used
        text = ""
    if isinstance(error, ToolError):
        return text if text.strip() else "The tool failed."
    return f"{type(error).__name__}: {text}" if text.strip() else type(error).__name__


def _first_failure(tasks: Sequence[asyncio.Future[None]]) -> BaseException | None:
    errors = (task.exception() for task in tasks if task.done() and not task.cancelled())
    return next((error for error in errors if error is not None), None)


async def _stop(tasks: Sequence[asyncio.Future[None]]) -> bool:
    """Cancel the running tasks and wait for their end; return whether this task was cancelled meanwhile."""
    cancelled = False
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError:
            cancelled = True
    # Retrieved so that asyncio does not log "exception was never retrieved" for tasks that failed while stopping.
    _ = [task.exception() for task in tasks if not task.cancelled()]
    return cancelled
