"""The provider's own diagnosis of a cache miss, relative to an earlier request."""

from typing import Literal

import msgspec

from holdfast.canonical.usage import counted

REASON_CHARS_MAX = 80

DiagnosisOutcome = Literal["hit", "miss", "pending", "not_found", "unavailable"]
"""`pending`: the provider had not finished comparing. `not_found`: it no longer has the earlier request."""


class Diagnosis(msgspec.Struct, frozen=True, omit_defaults=True):
    """`reason` is the provider's own word for a miss, `missed_tokens` the tokens that a hit would have read.

    A hit means that the prefix did not change. An entry whose TTL has expired is still not read.
    """

    outcome: DiagnosisOutcome
    reason: str = ""
    missed_tokens: int = 0


def missed(reason: str, tokens: int | None) -> Diagnosis:
    """A miss as the provider reported it, with its reason cut to length and its count clamped."""
    return Diagnosis("miss", reason[:REASON_CHARS_MAX], counted(tokens))
