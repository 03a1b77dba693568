"""The shape of the catalog: one row per model, its cache rules, and its prices by date."""

import datetime
from decimal import Decimal
from typing import Literal

import msgspec

LookbackCounting = Literal["blocks", "positions"]
"""`blocks`: every block counts. `positions`: a run of tool calls, or of tool results, counts as one."""

CacheKind = Literal["marks", "implicit", "breakpoints", "none"]
"""`marks`: written only where the request asks. `implicit`: by prefix match. `breakpoints`: both."""


class CacheRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a provider's cache treats a model. Everything unsettled is a field here, never a constant in code."""

    kind: CacheKind
    tokens_min: int
    ttls_seconds: dict[str, int] = {}
    marks_max: int = 0
    lookback_positions: int = 0
    lookback_counting: LookbackCounting = "blocks"
    ttl_upgrade: bool = True
    binds_thinking: bool = False
    strips_old_thinking: bool = False
    refuses_prefill: bool = False
    refuses_forced_tool_choice: bool = False
    effort_breaks_messages: bool = False
    takes_system_messages: bool = False
    rounds_reads_to: int = 1


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """US dollars per million tokens, from `valid_from` on, for prompts longer than `prompt_tokens_over`."""

    valid_from: datetime.date
    input: Decimal
    output: Decimal
    cache_read: Decimal
    cache_write_5m: Decimal
    cache_write_1h: Decimal
    cache_write_other: Decimal
    storage_per_hour: Decimal = Decimal(0)
    prompt_tokens_over: int = 0
    source: str = ""


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    provider: str
    name: str
    context_tokens_max: int
    output_tokens_max: int
    cache: CacheRules
    prices: tuple[Price, ...]
    tokens_factor: float
    released: datetime.date | None = None
    source: str = ""
    checked: datetime.date | None = None
    aliases: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.provider}:{self.name}"
