"""What an adapter offers whose provider says itself why its cache did not hold."""

from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

import msgspec

from holdfast.canonical.prompt import Parameters
from holdfast.errors import ProviderError
from holdfast.providers.adapter import Adapter

ABSENT = msgspec.Raw(b"")
"""What stands in place of a diagnosis in a reply that has none."""

T = TypeVar("T")


@runtime_checkable
class DiagnosesMisses(Protocol):
    """Beside what every adapter offers. No cache depends on whether a diagnosis is asked for."""

    def asked_to_diagnose(self, parameters: Parameters, previous_response_id: str | None) -> Parameters:
        """The same parameters, with the wish to be compared with an earlier request, if there was one.

        Whoever has asked in words of their own is left alone.
        """

    def compares(self, parameters: Parameters) -> bool:
        """Whether these parameters name what to compare with; a reply to any others says nothing of the cache."""

    def refuses_diagnosis(self, error: ProviderError) -> bool:
        """Whether a request failed because it asked for a diagnosis."""


def compares(adapter: Adapter, parameters: Parameters) -> bool:
    """Whether a reply to these parameters can say anything of the cache; in any other, a diagnosis means nothing."""
    return isinstance(adapter, DiagnosesMisses) and adapter.compares(parameters)


def read_or_none(decode: Callable[[bytes], T], raw: bytes) -> T | None:
    """None for what is absent or cannot be read: a reply is paid for, and is not lost because of a remark on it."""
    try:
        return decode(raw) if raw else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
