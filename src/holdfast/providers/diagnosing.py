"""The optional adapter protocol for providers that report why a request missed their cache."""

from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

import msgspec

from holdfast.canonical.prompt import Parameters
from holdfast.errors import ProviderError
from holdfast.providers.adapter import Adapter

ABSENT = msgspec.Raw(b"")
"""The value of a missing diagnosis field in a decoded response."""

T = TypeVar("T")


@runtime_checkable
class DiagnosesMisses(Protocol):
    """Implemented in addition to `Adapter`. Asking for a diagnosis does not change what is cached."""

    def asked_to_diagnose(self, parameters: Parameters, previous_response_id: str | None) -> Parameters:
        """The parameters with a request to compare with an earlier response, if there was one.

        Parameters in which the caller already asks for a diagnosis are returned unchanged.
        """

    def compares(self, parameters: Parameters) -> bool:
        """Whether the parameters name an earlier response; without one the response has no diagnosis."""

    def refuses_diagnosis(self, error: ProviderError) -> bool:
        """Whether a request failed because it asked for a diagnosis."""


def compares(adapter: Adapter, parameters: Parameters) -> bool:
    """Whether the response to these parameters can hold a diagnosis; in any other the field is meaningless."""
    return isinstance(adapter, DiagnosesMisses) and adapter.compares(parameters)


def read_or_none(decode: Callable[[bytes], T], raw: bytes) -> T | None:
    """None if absent or unreadable: the response is paid for and must not be lost because of a diagnosis."""
    try:
        return decode(raw) if raw else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
