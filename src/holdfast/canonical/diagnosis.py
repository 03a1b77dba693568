"""What a provider itself says of its cache: whether it held against an earlier request, and if not, why."""

from typing import Literal

import msgspec

from holdfast.canonical.usage import counted

REASON_CHARS_MAX = 80

DiagnosisOutcome = Literal["hit", "miss", "pending", "not_found", "unavailable"]
"""`pending`: the comparison was still going on. `not_found`: the provider no longer knows what to compare with."""


class Diagnosis(msgspec.Struct, frozen=True, omit_defaults=True):
    """`reason` is the provider's own word for a miss, `missed_tokens` what would have been read without it.

    A hit means that nothing in front differs; what has lapsed by then is not read all the same.
    """

    outcome: DiagnosisOutcome
    reason: str = ""
    missed_tokens: int = 0


def missed(reason: str, tokens: int | None) -> Diagnosis:
    """A miss in a provider's words, however long they are, and whatever it has counted."""
    return Diagnosis("miss", reason[:REASON_CHARS_MAX], counted(tokens))
