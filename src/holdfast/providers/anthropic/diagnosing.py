"""Anthropic's cache diagnostics: the `diagnostics` field of requests and responses.

A public beta since 2026-05-13 (Anthropic, "Cache diagnostics").
"""

import msgspec

from holdfast.canonical.diagnosis import Diagnosis, DiagnosisOutcome, missed
from holdfast.canonical.encoding import plain_json
from holdfast.canonical.prompt import Parameters
from holdfast.errors import ProviderError
from holdfast.providers.diagnosing import read_or_none
from holdfast.providers.failures import one_line
from holdfast.providers.fields import extra_field, field_of
from holdfast.providers.members import quoted

FIELD = "diagnostics"
BETA = "cache-diagnosis-2026-04-07"

_OUTCOMES: dict[str, DiagnosisOutcome] = {"previous_message_not_found": "not_found", "unavailable": "unavailable"}


class _Reason(msgspec.Struct, frozen=True):
    type: str
    cache_missed_input_tokens: int | None = None


class _Diagnostics(msgspec.Struct, frozen=True):
    cache_miss_reason: _Reason | None


_decode = msgspec.json.Decoder(_Diagnostics).decode


def asked_to_diagnose(parameters: Parameters, previous_response_id: str | None) -> Parameters:
    """Sent with the first request too, so that the provider stores what later requests are compared with."""
    if any(name == FIELD for name, _ in parameters.extra):
        return parameters
    previous = b"null" if previous_response_id is None else quoted(previous_response_id)
    field = (FIELD, (b'{"previous_message_id":%b}' % previous).decode())
    betas = parameters.betas if BETA in parameters.betas else (*parameters.betas, BETA)
    return msgspec.structs.replace(parameters, betas=betas, extra=(*parameters.extra, field))


def compares(parameters: Parameters) -> bool:
    return field_of(extra_field(parameters, FIELD), "previous_message_id") is not None


def refuses_diagnosis(error: ProviderError) -> bool:
    """Recognised by the name of the field or of the beta in the error message."""
    message = str(error).lower()
    return error.kind == "invalid_request" and ("diagnostics" in message or "cache-diagnosis" in message)


def read_diagnosis(raw: bytes) -> Diagnosis | None:
    """None if the field is absent or unreadable. In a response to a request that asked, null means no divergence."""
    if raw == b"null":
        return Diagnosis("hit")
    diagnostics = read_or_none(_decode, raw)
    if diagnostics is None:
        return None
    if diagnostics.cache_miss_reason is None:
        return Diagnosis("pending")
    reason = diagnostics.cache_miss_reason.type
    if reason in _OUTCOMES:
        return Diagnosis(_OUTCOMES[reason])
    return missed(one_line(reason), diagnostics.cache_miss_reason.cache_missed_input_tokens)


def write_diagnosis(diagnosis: Diagnosis) -> bytes:
    """The value of the field."""
    match diagnosis.outcome:
        case "hit":
            return b"null"
        case "pending":
            return b'{"cache_miss_reason":null}'
        case "not_found" | "unavailable":
            name = next(name for name, outcome in _OUTCOMES.items() if outcome == diagnosis.outcome)
            return plain_json({"cache_miss_reason": {"type": name}})
        case "miss":
            miss = (quoted(diagnosis.reason), diagnosis.missed_tokens)
            return b'{"cache_miss_reason":{"type":%b,"cache_missed_input_tokens":%d}}' % miss
