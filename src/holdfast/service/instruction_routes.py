"""How a function about instructions becomes a route: switched on or not, in a thread, refused by code."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec

from holdfast.instructions.callers import Caller
from holdfast.instructions.failures import InstructionError
from holdfast.instructions.library import Library
from holdfast.service.failures import RefusedError
from holdfast.service.routes import Answer, Asked, Method, NoReply, Route, Rule, convert
from holdfast.service.service import Service

DENIED = "instruction_scope_denied"

_STATUSES = {
    DENIED: 403,
    "wake_token_invalid": 403,
    "manifest_not_found": 404,
    "boot_stub_not_found": 404,
    "coverage_not_found": 404,
    "audit_not_found": 404,
    "manifest_version_conflict": 409,
    "unit_version_conflict": 409,
    "shortname_taken": 409,
    "wake_token_used": 409,
    "recall_backend_unavailable": 503,
    "preload_unit_unavailable": 503,
}
"""All other codes are 400."""

Request = TypeVar("Request", bound=msgspec.Struct)

Run = Callable[[Library, Caller, Request], msgspec.Struct | Answer]

_encode = msgspec.json.Encoder().encode


def instruction_route(
    method: Method,
    path: str,
    run: Run[Request],
    *,
    request: type[Request],
    reply: type[msgspec.Struct] = NoReply,
    summary: str,
    rule: Rule = "caller",
    unfit: Callable[[str], str] = lambda field: "invalid_body",
    refusals: tuple[int, ...] = (),
    successes: tuple[int, ...] = (200,),
    content_type: str = "application/json",
) -> Route:
    """`unfit` says the code for a body whose named field does not fit; such a body is always 400."""

    async def respond(service: Service, asked: Asked) -> Answer:
        library = service.library
        if library is None:
            raise RefusedError(
                404,
                "instructions_disabled",
                "instructions are not switched on here; see `holdfast serve --instructions`",
            )
        assert asked.key is not None, "a route about instructions lets nobody in without a key"
        caller = Caller(asked.key.scope, asked.key.id, asked.key.entity)
        try:
            said = convert(asked, request)
        except msgspec.ValidationError as error:
            raise _unfit(error, unfit) from error
        try:
            told = await asyncio.to_thread(run, library, caller, said)
        except InstructionError as error:
            raise refused(error) from error
        return told if isinstance(told, Answer) else Answer(_encode(told))

    return Route(
        method,
        path,
        rule,
        summary,
        request,
        reply,
        respond,
        keyless=False,
        content_type=content_type,
        refusals=(404, *refusals),
        successes=successes,
        denied=DENIED,
        body_optional=True,
    )


def refused(error: InstructionError) -> RefusedError:
    status = _STATUSES.get(error.code, 400)
    details = dict(error.details or {}) | ({"retryable": True} if status == 503 else {})
    return RefusedError(status, error.code, str(error), details=details or None)


def _unfit(error: msgspec.ValidationError, code_of: Callable[[str], str]) -> RefusedError:
    """What msgspec says names the field and the types, and quotes no value."""
    reason, _, place = str(error).partition(" - at `$")
    field = place.strip(".`").partition(".")[0].partition("[")[0]
    missing = reason.partition("missing required field `")[2].partition("`")[0]
    named = field or missing
    return RefusedError(400, code_of(named), reason, details={"field": named} if named else None)
