"""How the providers of Chat Completions differ."""

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from holdfast.catalog.schema import Model
from holdfast.errors import FailureKind
from holdfast.types.prompt import Ttl

RequestFields = tuple[tuple[str, str], ...]


class ErrorEncoder(Protocol):
    def __call__(self, kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]: ...


class ChatVariant(msgspec.Struct, frozen=True):
    """`breakpoints` are the values of the member `breakpoint_name`, by TTL."""

    name: str
    vendor: str
    output_limit_name: str
    thinking_name: str
    breakpoint_name: str
    breakpoints: Mapping[Ttl, bytes]
    parts_with_breakpoints: frozenset[str]
    carries_reasoning: bool
    session_fields: Callable[[Model, str], RequestFields]
    encode_error: ErrorEncoder
    # Whether a model's cache writes have the TTL 5m; all others count as `cache_write_other`.
    writes_with_ttl_5m: Callable[[str], bool]
