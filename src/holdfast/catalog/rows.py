"""The shape of the catalog: one row per model, its cache rules, and its prices by date."""

import datetime
from decimal import Decimal
from typing import Annotated, Literal

import msgspec

from holdfast.canonical.prompt import Place

Count = Annotated[int, msgspec.Meta(ge=0)]
Limit = Annotated[int, msgspec.Meta(ge=1)]
Factor = Annotated[float, msgspec.Meta(ge=0.1, le=10)]

LookbackCounting = Literal["blocks", "positions"]
"""`blocks`: every block counts. `positions`: a run of tool calls, or of tool results, counts as one."""

CacheKind = Literal["marks", "implicit", "breakpoints", "none"]
"""`marks`: written only where the request asks. `implicit`: by prefix match. `breakpoints`: both."""


class CacheRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a provider's cache treats a model. Everything unsettled is a field here, never a constant in code.

    `invalidates` names, for what may differ between two requests, the first part of the prompt that can no
    longer be read; every part behind it is lost with it. Effort has a field of its own, because nobody knows.
    """

    kind: CacheKind
    tokens_min: Count
    ttls_seconds: dict[str, Limit] = {}
    marks_max: Count = 0
    lookback_positions: Count = 0
    lookback_counting: LookbackCounting = "blocks"
    ttl_upgrade: bool = True
    binds_thinking: bool = False
    strips_old_thinking: bool = False
    refuses_prefill: bool = False
    refuses_forced_tool_choice: bool = False
    effort_breaks_messages: bool = False
    takes_system_messages: bool = False
    rounds_reads_to: Limit = 1
    invalidates: dict[str, Place] = {}
    binding_sees_marks: bool = False  # Whether a moved mark counts as a changed prefix for bound thinking.
    takes_automatic_mark: bool = False  # Whether the provider places the rolling mark itself when asked to.
    explicit_tokens_min: Count = 0  # The smallest cache that can be made by hand; 0: none can.
    diagnoses_misses: bool = False  # Whether the provider says itself, when asked to, why a prefix was not read.
    lookup_first_marks: Count = 0  # Explicit breakpoints looked up: so many of the first,
    lookup_latest_marks: Count = 0  # and so many of the latest.


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """US dollars per million tokens, from `valid_from` on, for prompts longer than `prompt_tokens_over`.

    A write that a provider does not charge for costs what plain input costs. `cache_write_12h` is None where
    no rate is known.
    """

    valid_from: datetime.date
    input: Decimal
    output: Decimal
    cache_read: Decimal
    cache_write_5m: Decimal
    cache_write_1h: Decimal
    cache_write_other: Decimal
    storage_per_hour: Decimal = Decimal(0)
    prompt_tokens_over: Count = 0
    source: str = ""
    cache_write_12h: Decimal | None = None

    def __post_init__(self) -> None:
        for field in RATES:
            rate = getattr(self, field)
            if rate is not None and not (rate.is_finite() and rate >= 0):
                raise ValueError(f"{field} must be a finite number of dollars, not below 0: {rate}")


RATES = (
    "input",
    "output",
    "cache_read",
    "cache_write_5m",
    "cache_write_1h",
    "cache_write_other",
    "storage_per_hour",
    "cache_write_12h",
)
"""The fields of a price that are amounts of money."""


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tokens_factor` turns a count of o200k tokens into an estimate of this model's own."""

    provider: str
    name: str
    context_tokens_max: Limit
    output_tokens_max: Limit
    cache: CacheRules
    prices: tuple[Price, ...]
    tokens_factor: Factor
    released: datetime.date | None = None
    source: str = ""
    checked: datetime.date | None = None
    aliases: tuple[str, ...] = ()
    reasons: bool = True  # Whether the model thinks before it answers, and can be told how much.
    supports_prompt_caching: bool = True  # Off where nobody can say which cache, if any, a request will meet.

    @property
    def id(self) -> str:
        return f"{self.provider}:{self.name}"


class PriceOverride(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where our prices differ from the price list they are filled from, when, and why.

    `changes` holds rates by field name. Without `prompt_tokens_over` they hold for prompts of every size.
    """

    model: str
    valid_from: datetime.date
    changes: dict[str, Decimal]
    reason: str
    valid_until: datetime.date | None = None
    prompt_tokens_over: Count | None = None


class CatalogFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dated: datetime.date
    notes: tuple[str, ...]
    price_overrides: tuple[PriceOverride, ...]
    models: tuple[Model, ...]
