"""Anthropic's cache diagnostics: the `diagnostics` field of requests and responses.

A public beta since 2026-05-13 (Anthropic, "Cache diagnostics").
"""

import msgspec

from holdfast.errors import ProviderError
from holdfast.providers.errors import sanitize_message
from holdfast.providers.json_splice import decode_or_none, encode_string, extra_field, nested_field
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import Parameters
from holdfast.types.reply import CacheDiagnosis, DiagnosisOutcome, make_miss_diagnosis

DIAGNOSTICS_FIELD = "diagnostics"
DIAGNOSTICS_BETA = "cache-diagnosis-2026-04-07"
_OUTCOMES: dict[str, DiagnosisOutcome] = {"previous_message_not_found": "not_found", "unavailable": "unavailable"}


class _Reason(msgspec.Struct, frozen=True):
    type: str
    cache_missed_input_tokens: int | None = None


class _Diagnostics(msgspec.Struct, frozen=True):
    cache_miss_reason: _Reason | None


_decode = msgspec.json.Decoder(_Diagnostics).decode


def request_anthropic_diagnosis(parameters: Parameters, previous_response_id: str | None) -> Parameters:
    """Sent with the first request too, so that the provider stores what later requests are compared with."""
    if any(name == DIAGNOSTICS_FIELD for name, _ in parameters.extra):
        return parameters
    previous = b"null" if previous_response_id is None else encode_string(previous_response_id)
    field = (DIAGNOSTICS_FIELD, (b'{"previous_message_id":%b}' % previous).decode())
    betas = parameters.betas if DIAGNOSTICS_BETA in parameters.betas else (*parameters.betas, DIAGNOSTICS_BETA)
    return msgspec.structs.replace(parameters, betas=betas, extra=(*parameters.extra, field))


def requests_anthropic_comparison(parameters: Parameters) -> bool:
    return nested_field(extra_field(parameters, DIAGNOSTICS_FIELD), "previous_message_id") is not None


def is_anthropic_diagnosis_refusal(error: ProviderError) -> bool:
    """Recognised by the name of the field or of the beta in the error message."""
    message = str(error).lower()
    return error.kind == "invalid_request" and ("diagnostics" in message or "cache-diagnosis" in message)


def decode_anthropic_diagnosis(raw: bytes) -> CacheDiagnosis | None:
    """None if the field is absent or unreadable. In a response to a request that asked, null means no divergence."""
    if raw == b"null":
        return CacheDiagnosis("hit")
    diagnostics = decode_or_none(_decode, raw)
    if diagnostics is None:
        return None
    if diagnostics.cache_miss_reason is None:
        return CacheDiagnosis("pending")
    reason = diagnostics.cache_miss_reason.type
    if reason in _OUTCOMES:
        return CacheDiagnosis(_OUTCOMES[reason])
    return make_miss_diagnosis(sanitize_message(reason), diagnostics.cache_miss_reason.cache_missed_input_tokens)


def encode_anthropic_diagnosis(diagnosis: CacheDiagnosis) -> bytes:
    """The value of the field."""
    match diagnosis.outcome:
        case "hit":
            return b"null"
        case "pending":
            return b'{"cache_miss_reason":null}'
        case "not_found" | "unavailable":
            name = next(name for name, outcome in _OUTCOMES.items() if outcome == diagnosis.outcome)
            return encode_json({"cache_miss_reason": {"type": name}})
        case "miss":
            miss = (encode_string(diagnosis.reason), diagnosis.missed_tokens)
            return b'{"cache_miss_reason":{"type":%b,"cache_missed_input_tokens":%d}}' % miss
