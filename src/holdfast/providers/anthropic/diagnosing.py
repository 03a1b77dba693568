"""How Anthropic is asked why its cache did not hold, and how it answers."""

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

_NO_ANSWER: dict[str, DiagnosisOutcome] = {"previous_message_not_found": "not_found", "unavailable": "unavailable"}


class _Reason(msgspec.Struct, frozen=True):
    type: str
    cache_missed_input_tokens: int | None = None


class _Diagnostics(msgspec.Struct, frozen=True):
    cache_miss_reason: _Reason | None


_decode = msgspec.json.Decoder(_Diagnostics).decode


def asked_to_diagnose(parameters: Parameters, previous_response_id: str | None) -> Parameters:
    """Also with the first request: what it is compared by has to be kept from then on."""
    if any(name == FIELD for name, _ in parameters.extra):
        return parameters
    previous = b"null" if previous_response_id is None else quoted(previous_response_id)
    asked = (FIELD, (b'{"previous_message_id":%b}' % previous).decode())
    betas = parameters.betas if BETA in parameters.betas else (*parameters.betas, BETA)
    return msgspec.structs.replace(parameters, betas=betas, extra=(*parameters.extra, asked))


def compares(parameters: Parameters) -> bool:
    return field_of(extra_field(parameters, FIELD), "previous_message_id") is not None


def refuses_diagnosis(error: ProviderError) -> bool:
    """By the name of the field or of the beta."""
    said = str(error).lower()
    return error.kind == "invalid_request" and ("diagnostics" in said or "cache-diagnosis" in said)


def read_diagnosis(raw: bytes) -> Diagnosis | None:
    """None where the field is absent or unreadable. That it is null says that nothing differs, if anybody asked."""
    if raw == b"null":
        return Diagnosis("hit")
    told = read_or_none(_decode, raw)
    if told is None:
        return None
    if told.cache_miss_reason is None:
        return Diagnosis("pending")
    reason = told.cache_miss_reason.type
    if reason in _NO_ANSWER:
        return Diagnosis(_NO_ANSWER[reason])
    return missed(one_line(reason), told.cache_miss_reason.cache_missed_input_tokens)


def write_diagnosis(diagnosis: Diagnosis) -> bytes:
    """The value of the field."""
    match diagnosis.outcome:
        case "hit":
            return b"null"
        case "pending":
            return b'{"cache_miss_reason":null}'
        case "not_found" | "unavailable":
            word = next(word for word, outcome in _NO_ANSWER.items() if outcome == diagnosis.outcome)
            return plain_json({"cache_miss_reason": {"type": word}})
        case "miss":
            told = (quoted(diagnosis.reason), diagnosis.missed_tokens)
            return b'{"cache_miss_reason":{"type":%b,"cache_missed_input_tokens":%d}}' % told
