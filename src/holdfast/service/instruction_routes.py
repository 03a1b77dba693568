"""How a function about instructions becomes a route: switched on or not, in a thread, refused by code."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec

from holdfast.events.access import KeyRow
from holdfast.instructions.callers import Caller, FindAgent, check_own
from holdfast.instructions.failures import InstructionError
from holdfast.instructions.library import Library
from holdfast.instructions.recall import UNAVAILABLE
from holdfast.instructions.values import Agent
from holdfast.service.failures import RefusedError
from holdfast.service.routes import Answer, Asked, Method, NoReply, Route, Rule, convert
from holdfast.service.service import Service

DENIED = "instruction_scope_denied"
RETRY = UNAVAILABLE

_STATUSES = {
    DENIED: 403,
    "wake_token_invalid": 403,
    "manifest_not_found": 404,
    "boot_stub_not_found": 404,
    "coverage_not_found": 404,
    "audit_not_found": 404,
    "signer_not_found": 404,
    "manifest_version_conflict": 409,
    "unit_version_conflict": 409,
    "shortname_taken": 409,
    "wake_token_used": 409,
    RETRY: 503,
    "preload_unit_unavailable": 503,
}
"""All other codes are 400."""

Request = TypeVar("Request", bound=msgspec.Struct)

Run = Callable[[Library, Caller, Request], msgspec.Struct | Answer]

Who = Callable[[Caller, str, Agent | None, FindAgent], None]
"""Raises InstructionError for a caller that may not ask of this agent, who may be unknown."""

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
    who: Who = check_own,
    unfit: Callable[[str], str] = lambda field: "invalid_body",
    refusals: tuple[int, ...] = (),
    successes: tuple[int, ...] = (200,),
    content_type: str = "application/json",
    retry_code: str | None = None,
) -> Route:
    """`unfit` says the code for a body whose named field does not fit; such a body is always 400.

    `who` may ask, where that is for the route to say: those who may not learn it before what is wrong with the body.
    """

    check_holder = _checking(rule, who)

    async def respond(service: Service, asked: Asked) -> Answer:
        library = _switched_on(service)
        assert asked.key is not None, "a route about instructions lets nobody in without a key"
        caller = _caller(asked.key)
        try:
            said = convert(asked, request)
        except msgspec.ValidationError as error:
            await check_holder(service, asked.key, asked.fields)
            raise _unfit(error, unfit) from error
        try:
            told = await asyncio.to_thread(run, library, caller, said)
        except InstructionError as error:
            if error.code == RETRY:
                library.warn(f"{RETRY}: {error}")
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
        unfit_status=400,
        retry_code=retry_code,
        check_holder=check_holder,
        check_served=_switched_on,
    )


def _checking(rule: Rule, who: Who) -> Callable[[Service, KeyRow, Mapping[str, object]], Awaitable[None]]:
    async def check(service: Service, key: KeyRow, path: Mapping[str, object]) -> None:
        library = _switched_on(service)
        if rule == "caller":
            try:
                await asyncio.to_thread(_check_who, library, _caller(key), str(path.get("agent_id", "")), who)
            except InstructionError as error:
                raise refused(error) from error

    return check


def _switched_on(service: Service) -> Library:
    if service.library is None:
        raise RefusedError(
            404, "instructions_disabled", "instructions are not switched on here; see `holdfast serve --instructions`"
        )
    return service.library


def _caller(key: KeyRow) -> Caller:
    return Caller(key.scope, key.id, key.entity)


def _check_who(library: Library, caller: Caller, said: str, who: Who) -> None:
    find = library.records.agent
    who(caller, said, find(said) if said else None, find)


def refused(error: InstructionError) -> RefusedError:
    status = _STATUSES.get(error.code, 400)
    # A heartbeat that was ended has used up its token: only a new one may try again.
    details = dict(error.details or {}) | ({"retryable": True} if error.code == RETRY else {})
    # Why it cannot be used may name places of this machine, which whoever operates it is told.
    said = "recall cannot be used now; try again" if error.code == RETRY else str(error)
    return RefusedError(status, error.code, said, details=details or None)


def _unfit(error: msgspec.ValidationError, code_of: Callable[[str], str]) -> RefusedError:
    """What msgspec says names the field and the types, and quotes no value."""
    reason, _, place = str(error).partition(" - at `$")
    field = place.strip(".`").partition(".")[0].partition("[")[0]
    missing = reason.partition("missing required field `")[2].partition("`")[0]
    named = field or missing
    return RefusedError(400, code_of(named), reason, details={"field": named} if named else None)
