"""How OpenAI is asked why its cache did not hold, and how it answers."""

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
_WORDS = {outcome: word for word, outcome in _OUTCOMES.items()}


class _Diagnostics(msgspec.Struct, frozen=True):
    type: str
    reason: str | None = None
    cache_missed_tokens: int | None = None


_decode = msgspec.json.Decoder(_Diagnostics).decode


def asked_to_diagnose(parameters: Parameters, previous_response_id: str | None) -> Parameters:
    """Nothing is asked where there is nothing to compare with; the other options stay, and stay where they are."""
    extra = dict(parameters.extra)
    before = extra_field(parameters, OPTIONS) if OPTIONS in extra else {}
    if previous_response_id is None or not isinstance(before, dict) or COMPARISON in before:
        return parameters
    options = take_apart(spliced(extra[OPTIONS])) if OPTIONS in extra else {}
    asked = put_together({**options, COMPARISON: quoted(previous_response_id)})
    return msgspec.structs.replace(parameters, extra=tuple({**extra, OPTIONS: asked.decode()}.items()))


def compares(parameters: Parameters) -> bool:
    return field_of(extra_field(parameters, OPTIONS), COMPARISON) is not None


def refuses_diagnosis(error: ProviderError) -> bool:
    return error.kind == "invalid_request" and COMPARISON in str(error).lower()


def read_diagnosis(raw: bytes) -> Diagnosis | None:
    """None where nothing is said, or nothing that can be read; a word that we do not know is kept as the reason."""
    told = read_or_none(_decode, raw)
    if told is None:
        return None
    if told.type == _MISS:
        return missed(one_line(told.reason or ""), told.cache_missed_tokens)
    if told.type in _OUTCOMES:
        return Diagnosis(_OUTCOMES[told.type])
    return Diagnosis("unavailable", one_line(told.type)[:REASON_CHARS_MAX])


def write_diagnosis(diagnosis: Diagnosis) -> bytes:
    """The value of the field; OpenAI has no word for a comparison that is still going on."""
    if diagnosis.outcome != "miss":
        return plain_json({"type": _WORDS.get(diagnosis.outcome, "unavailable")})
    told = (quoted(diagnosis.reason), diagnosis.missed_tokens)
    return b'{"type":"cache_miss","reason":%b,"cache_missed_tokens":%d}' % told
