"""OpenAI's cache diagnostics: `comparison_response_id` in requests, `prompt_cache_diagnostics` in responses.

The reasons and fields are those of the types in OpenAI's SDK 3.49.
"""

import msgspec

from holdfast.errors import ProviderError
from holdfast.providers.errors import sanitize_message
from holdfast.providers.json_splice import (
    decode_or_none,
    encode_json_text,
    encode_string,
    extra_field,
    join_object,
    nested_field,
    split_object,
)
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import Parameters
from holdfast.types.reply import REASON_CHARS_MAX, CacheDiagnosis, DiagnosisOutcome, make_miss_diagnosis

DIAGNOSTICS_FIELD = "prompt_cache_diagnostics"
CACHE_OPTIONS_FIELD = "prompt_cache_options"
COMPARISON_FIELD = "comparison_response_id"
_MISS = "cache_miss"
_OUTCOMES: dict[str, DiagnosisOutcome] = {
    "cache_hit": "hit",
    "comparison_response_not_found": "not_found",
    "unavailable": "unavailable",
}
_TYPES = {outcome: name for name, outcome in _OUTCOMES.items()}


class _Diagnostics(msgspec.Struct, frozen=True):
    type: str
    reason: str | None = None
    cache_missed_tokens: int | None = None


_decode = msgspec.json.Decoder(_Diagnostics).decode


def request_responses_diagnosis(parameters: Parameters, previous_response_id: str | None) -> Parameters:
    """Unchanged if there is nothing to compare with. The other options keep their values and their order."""
    extra = dict(parameters.extra)
    current = extra_field(parameters, CACHE_OPTIONS_FIELD) if CACHE_OPTIONS_FIELD in extra else {}
    if previous_response_id is None or not isinstance(current, dict) or COMPARISON_FIELD in current:
        return parameters
    options = split_object(encode_json_text(extra[CACHE_OPTIONS_FIELD])) if CACHE_OPTIONS_FIELD in extra else {}
    encoded = join_object({**options, COMPARISON_FIELD: encode_string(previous_response_id)})
    return msgspec.structs.replace(parameters, extra=tuple({**extra, CACHE_OPTIONS_FIELD: encoded.decode()}.items()))


def requests_responses_comparison(parameters: Parameters) -> bool:
    return nested_field(extra_field(parameters, CACHE_OPTIONS_FIELD), COMPARISON_FIELD) is not None


def is_responses_diagnosis_refusal(error: ProviderError) -> bool:
    return error.kind == "invalid_request" and COMPARISON_FIELD in str(error).lower()


def decode_responses_diagnosis(raw: bytes) -> CacheDiagnosis | None:
    """None if the field is absent or unreadable. An unknown type is kept as the reason."""
    diagnostics = decode_or_none(_decode, raw)
    if diagnostics is None:
        return None
    if diagnostics.type == _MISS:
        return make_miss_diagnosis(sanitize_message(diagnostics.reason or ""), diagnostics.cache_missed_tokens)
    if diagnostics.type in _OUTCOMES:
        return CacheDiagnosis(_OUTCOMES[diagnostics.type])
    return CacheDiagnosis("unavailable", sanitize_message(diagnostics.type)[:REASON_CHARS_MAX])


def encode_responses_diagnosis(diagnosis: CacheDiagnosis) -> bytes:
    """The value of the field; OpenAI has no type for a pending comparison."""
    if diagnosis.outcome != "miss":
        return encode_json({"type": _TYPES.get(diagnosis.outcome, "unavailable")})
    miss = (encode_string(diagnosis.reason), diagnosis.missed_tokens)
    return b'{"type":"cache_miss","reason":%b,"cache_missed_tokens":%d}' % miss
