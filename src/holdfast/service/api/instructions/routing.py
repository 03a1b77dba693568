"""Turns instruction functions into routes: enabled or not, run in a thread, InstructionError mapped to a status."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from holdfast.errors import InstructionError
from holdfast.events.records import KeyRow
from holdfast.instructions.access import FindAgent, InstructionCaller, check_owner_access
from holdfast.instructions.context import InstructionContext
from holdfast.instructions.models import Agent
from holdfast.instructions.recall.selection import UNAVAILABLE
from holdfast.service.context import AppContext
from holdfast.service.http.routes import (
    AccessRule,
    ApiError,
    Method,
    NonJsonResponse,
    Route,
    RouteRequest,
    RouteResponse,
    decode_request_fields,
    get_handler_types,
    get_summary,
)

SCOPE_DENIED = "instruction_scope_denied"
RETRY = UNAVAILABLE

_STATUSES = {
    SCOPE_DENIED: 403,
    "wake_token_invalid": 403,
    "manifest_not_found": 404,
    "agent_not_found": 404,
    "boot_stub_not_found": 404,
    "coverage_not_found": 404,
    "audit_not_found": 404,
    "signer_not_found": 404,
    "unit_not_found": 404,
    "manifest_version_conflict": 409,
    "unit_version_conflict": 409,
    "shortname_taken": 409,
    "wake_token_used": 409,
    RETRY: 503,
    "preload_unit_unavailable": 503,
}
"""All other codes map to 400."""

Request = TypeVar("Request", bound=msgspec.Struct)
InstructionHandler = Callable[[InstructionContext, InstructionCaller, Request], msgspec.Struct | RouteResponse]

InstructionBatch = Callable[
    [InstructionContext, Sequence[tuple[InstructionCaller, Request]]], Sequence[msgspec.Struct | Exception]
]

AccessCheck = Callable[[InstructionCaller, str, Agent | None, FindAgent], None]
"""Raises InstructionError if the caller has no access to this agent, which may be unknown."""

_encode = msgspec.json.Encoder().encode


def instruction_route(
    method: Method,
    path: str,
    run: InstructionHandler[Request],
    *,
    reply: type[msgspec.Struct] | None = None,
    rule: AccessRule = "caller",
    check_access: AccessCheck = check_owner_access,
    field_error_code: Callable[[str], str] = lambda field: "invalid_body",
    error_statuses: tuple[int, ...] = (),
    success_statuses: tuple[int, ...] = (200,),
    content_type: str = "application/json",
    retry_code: str | None = None,
    run_all: InstructionBatch[Request] | None = None,
) -> Route:
    """Types and summary are those of `run`; `reply` is the type of a RouteResponse's body. `run_all`, if given, answers
    calls that wait at the same time.

    `field_error_code` maps an invalid field to an error code; the status is always 400. `check_access` is for rule
    "caller"; it also runs before a decoding error is reported, so that a caller without access learns nothing else.
    """
    request, result_type = get_handler_types(run)
    if result_type is RouteResponse:
        result_type = reply or NonJsonResponse
    check_holder = _make_holder_check(rule, check_access)

    async def respond(context: AppContext, incoming: RouteRequest) -> RouteResponse:
        instructions = _require_instructions(context)
        assert incoming.key is not None, "instruction routes are never keyless"
        caller = _caller(incoming.key)
        try:
            body = decode_request_fields(incoming, request)
        except msgspec.ValidationError as error:
            await check_holder(context, incoming.key, incoming.fields)
            raise _make_field_error(error, field_error_code) from error
        try:
            if run_all is None:
                result = await asyncio.to_thread(run, instructions, caller, body)
            else:
                batches = context.find_batches(run_all, functools.partial(run_all, instructions))
                result = await batches.run((caller, body))
        except InstructionError as error:
            if error.code == RETRY:
                instructions.warn(f"{RETRY}: {error}")
            raise make_instruction_error(error) from error
        return result if isinstance(result, RouteResponse) else RouteResponse(_encode(result))

    return Route(
        method,
        path,
        rule,
        get_summary(run),
        request,
        result_type,
        respond,
        keyless=False,
        content_type=content_type,
        error_statuses=(404, *error_statuses),
        success_statuses=success_statuses,
        denied_code=SCOPE_DENIED,
        body_optional=True,
        invalid_body_status=400,
        retry_code=retry_code,
        check_holder=check_holder,
        check_enabled=_require_instructions,
    )


def _make_holder_check(
    rule: AccessRule, check_access: AccessCheck
) -> Callable[[AppContext, KeyRow, Mapping[str, object]], Awaitable[None]]:
    async def check(context: AppContext, key: KeyRow, path: Mapping[str, object]) -> None:
        instructions = _require_instructions(context)
        if rule == "caller":
            find, agent_id = instructions.records.agent, str(path.get("agent_id", ""))
            try:
                agent = await asyncio.to_thread(find, agent_id) if agent_id else None
                await asyncio.to_thread(check_access, _caller(key), agent_id, agent, find)
            except InstructionError as error:
                raise make_instruction_error(error) from error

    return check


def _require_instructions(context: AppContext) -> InstructionContext:
    if context.instructions is None:
        raise ApiError(
            404,
            "instructions_disabled",
            "instructions are not enabled; start the service with `holdfast serve --instructions`",
        )
    return context.instructions


def _caller(key: KeyRow) -> InstructionCaller:
    return InstructionCaller(key.scope, key.id, key.entity)


def make_instruction_error(error: InstructionError) -> ApiError:
    status = _STATUSES.get(error.code, 400)
    # Only a recall can be retried as it is: a failed heartbeat has used up its wake token.
    details = dict(error.details or {}) | ({"retryable": True} if error.code == RETRY else {})
    # The reason may contain paths of this machine; it goes to the operator's log only.
    message = "recall is unavailable; try again" if error.code == RETRY else str(error)
    return ApiError(status, error.code, message, details=details or None)


def _make_field_error(error: msgspec.ValidationError, code_of: Callable[[str], str]) -> ApiError:
    """msgspec's message names the field and the types, and quotes no value."""
    reason, _, location = str(error).partition(" - at `$")
    field = location.strip(".`").partition(".")[0].partition("[")[0]
    if not field:
        field = reason.partition("missing required field `")[2].partition("`")[0]
    return ApiError(400, code_of(field), reason, details={"field": field} if field else None)
