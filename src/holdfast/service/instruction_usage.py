"""HTTP route that closes a recall audit: the agent reports used and missed units, or sends a trace."""

from msgspec import UNSET

from holdfast.instructions.asking import close
from holdfast.instructions.callers import Caller, check_has_instructions
from holdfast.instructions.library import Library
from holdfast.instructions.trace import check_size
from holdfast.instructions.watching import keep_trace
from holdfast.service.instruction_routes import instruction_route
from holdfast.service.instruction_values import AuditClose
from holdfast.service.routes import Answer, Route


def close_audit(library: Library, caller: Caller, request: AuditClose) -> Answer:
    check_has_instructions(caller)
    trace = request.trace or ()
    # Check what could be refused before anything is written.
    check_size(trace)
    used, missed = request.used_chunks, request.missed_chunks
    if request.trace is UNSET or used is not UNSET or missed is not UNSET:
        close(library, request.audit_token, caller, used=used or (), missed=missed or ())
    if request.trace is not UNSET:
        keep_trace(library, request.audit_token, caller, trace)
    return Answer(b"", status=204)


ROUTES: tuple[Route, ...] = (
    instruction_route(
        "POST",
        "/v1/instruction/audit",
        close_audit,
        request=AuditClose,
        who=check_has_instructions,
        summary="Report which loaded units were used and which were missed, or send a trace.",
        unfit=lambda field: "audit_token_invalid" if field in ("audit_token", "") else "invalid_body",
        successes=(204,),
    ),
)
