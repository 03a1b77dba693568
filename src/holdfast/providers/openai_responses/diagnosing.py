"""OpenAI's cache diagnostics: `comparison_response_id` in requests, `prompt_cache_diagnostics` in responses.

The reasons and fields are those of the types in OpenAI's SDK 3.49.
"""

import msgspec

from holdfast.canonical.diagnosis import REASON_CHARS_MAX, Diagnosis, DiagnosisOutcome, missed
from holdfast.canonical.encoding import plain_json
from holdfast.canonical.prompt import Parameters
from holdfast.errors import ProviderError
from holdfast.providers.diagnosing import read_or_none
from holdfast.providers.failures import one_line
from holdfast.providers.fields import extra_field, field_of
from holdfast.providers.members import put_together, quoted, spliced, take_apart

FIELD = "prompt_cache_diagnostics"
OPTIONS = "prompt_cache_options"
COMPARISON = "comparison_response_id"

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


def asked_to_diagnose(parameters: Parameters, previous_response_id: str | None) -> Parameters:
    """Unchanged if there is nothing to compare with. The other options keep their values and their order."""
    extra = dict(parameters.extra)
    current = extra_field(parameters, OPTIONS) if OPTIONS in extra else {}
    if previous_response_id is None or not isinstance(current, dict) or COMPARISON in current:
        return parameters
    options = take_apart(spliced(extra[OPTIONS])) if OPTIONS in extra else {}
    encoded = put_together({**options, COMPARISON: quoted(previous_response_id)})
    return msgspec.structs.replace(parameters, extra=tuple({**extra, OPTIONS: encoded.decode()}.items()))


def compares(parameters: Parameters) -> bool:
    return field_of(extra_field(parameters, OPTIONS), COMPARISON) is not None


def refuses_diagnosis(error: ProviderError) -> bool:
    return error.kind == "invalid_request" and COMPARISON in str(error).lower()


def read_diagnosis(raw: bytes) -> Diagnosis | None:
    """None if the field is absent or unreadable. An unknown type is kept as the reason."""
    diagnostics = read_or_none(_decode, raw)
    if diagnostics is None:
        return None
    if diagnostics.type == _MISS:
        return missed(one_line(diagnostics.reason or ""), diagnostics.cache_missed_tokens)
    if diagnostics.type in _OUTCOMES:
        return Diagnosis(_OUTCOMES[diagnostics.type])
    return Diagnosis("unavailable", one_line(diagnostics.type)[:REASON_CHARS_MAX])


def write_diagnosis(diagnosis: Diagnosis) -> bytes:
    """The value of the field; OpenAI has no type for a pending comparison."""
    if diagnosis.outcome != "miss":
        return plain_json({"type": _TYPES.get(diagnosis.outcome, "unavailable")})
    miss = (quoted(diagnosis.reason), diagnosis.missed_tokens)
    return b'{"type":"cache_miss","reason":%b,"cache_missed_tokens":%d}' % miss
