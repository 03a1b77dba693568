"""The catalog's schema: one row per model with its cache rules, and its prices by date."""

import datetime
from decimal import Decimal
from typing import Annotated, Literal

import msgspec

from holdfast.types.prompt import PromptSection

Count = Annotated[int, msgspec.Meta(ge=0)]
Limit = Annotated[int, msgspec.Meta(ge=1)]
Factor = Annotated[float, msgspec.Meta(ge=0.1, le=10)]

LookbackCounting = Literal["blocks", "positions"]
"""`blocks`: every block counts. `positions`: a run of tool calls, or of tool results, counts as one.

Unsettled for Anthropic: pydantic-ai issue 9404 reports `positions` on the Claude API and `blocks` on Bedrock."""

CacheKind = Literal["explicit", "implicit", "hybrid", "none"]
"""`explicit`: written only at breakpoints in the request (Anthropic). `implicit`: the provider matches prefixes on its
own (OpenAI before GPT-5.6, Gemini). `hybrid`: both (OpenAI from GPT-5.6 on)."""


class CacheRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a provider's cache treats a model. A rule that sources disagree on is a field here, never a constant in code.

    `invalidates` maps what may differ between two requests to the first section of the prompt that is lost; every
    section after it is lost too. Effort has a field of its own, because no source settles whether it invalidates.
    """

    kind: CacheKind
    tokens_min: Count  # A shorter prefix is silently not cached.
    ttls_seconds: dict[str, Limit] = {}
    breakpoints_max: Count = 0
    # Anthropic checks the breakpoint's hash and then walks back, 20 positions in all (Anthropic, "Prompt caching").
    lookback_positions: Count = 0
    lookback_counting: LookbackCounting = "blocks"
    ttl_upgrade: bool = True  # Whether a breakpoint with a longer TTL also extends the entries before it.
    # Thinking is signed over everything before it, and refused after an edit (Anthropic, "Preserved thinking").
    binds_thinking: bool = False
    # Older models drop earlier thinking when the user speaks, which changes the cached messages.
    strips_old_thinking: bool = False
    refuses_prefill: bool = False  # Opus 4.6 and later refuse a request that ends on an assistant message.
    refuses_forced_tool_choice: bool = False  # `any` and `tool` are answered with 400.
    effort_breaks_messages: bool = False
    accepts_system_messages: bool = False  # `{"role": "system"}` among the messages.
    reads_rounded_to: Limit = 1  # OpenAI before GPT-5.6 reports reads rounded down to a multiple of 128.
    invalidates: dict[str, PromptSection] = {}
    # Whether a moved breakpoint counts as a changed prefix for signed thinking.
    breakpoints_change_binding: bool = False
    accepts_automatic_breakpoint: bool = False  # Whether the provider places the rolling breakpoint itself on request.
    explicit_tokens_min: Count = 0  # Minimum size of an explicit cache; 0 if there are none.
    diagnoses_misses: bool = False  # Whether the provider reports on request why a prefix was not read.
    # OpenAI's guide says the first 2 and the latest 50; its SDK says the latest 80.
    lookup_first_breakpoints: Count = 0  # The lookup considers this many of the first explicit breakpoints,
    lookup_latest_breakpoints: Count = 0  # and this many of the latest.


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """US dollars per million tokens, from `valid_from` on, for prompts longer than `prompt_tokens_over`.

    Where writes are free of surcharge, the write rate equals the input rate. `cache_write_12h` is None if unknown: no
    source gives OpenAI's rate for most models.
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
        for field in PRICE_RATE_FIELDS:
            rate = getattr(self, field)
            if rate is not None and not (rate.is_finite() and rate >= 0):
                raise ValueError(f"{field} must be a finite number of dollars, not below 0: {rate}")


PRICE_RATE_FIELDS = (
    "input",
    "output",
    "cache_read",
    "cache_write_5m",
    "cache_write_1h",
    "cache_write_other",
    "storage_per_hour",
    "cache_write_12h",
)
"""The fields of `Price` that are amounts of money."""


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tokens_factor` converts a count of o200k tokens into an estimate of this model's tokens."""

    provider: str
    name: str
    context_tokens_max: Limit
    output_tokens_max: Limit
    cache: CacheRules
    prices: tuple[Price, ...]
    tokens_factor: Factor
    released: datetime.date | None = None
    source: str = ""
    checked_on: datetime.date | None = None
    aliases: tuple[str, ...] = ()
    has_reasoning: bool = True  # Whether the model reasons before it responds, with adjustable effort.
    supports_prompt_caching: bool = True  # False where a request may reach any cache or none.
    # What no source says of this very model: "cache", "limits", "prices", or one rate, such as "cache_read".
    assumed: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.provider}:{self.name}"


class PriceOverride(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A correction to the price list that the catalog is filled from: what differs, from when on, and why.

    `changes` holds rates by field name. Without `prompt_tokens_over` they apply to prompts of every size.
    """

    model: str
    valid_from: datetime.date
    changes: dict[str, Decimal]
    reason: str
    valid_until: datetime.date | None = None
    prompt_tokens_over: Count | None = None


class ModelFamily(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is documented for all models whose bare name matches `pattern`; the first family that matches counts.

    `row` has the fields of a model table of config.toml, `like` included. `missing_rates` are multiples of the input
    rate, for rates that a price list leaves out. A family without documented cache rules has the cache kind "none":
    nothing is expected of its cache, and its requests are not rewritten.
    """

    pattern: str
    row: dict[str, object]
    source: str
    missing_rates: dict[str, Decimal] = {}


class CatalogFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dated: datetime.date
    notes: tuple[str, ...]
    price_overrides: tuple[PriceOverride, ...]
    families: tuple[ModelFamily, ...]
    models: tuple[Model, ...]


class ListedPrice(msgspec.Struct, frozen=True, array_like=True):
    """Rates of the price list, in dollars per million tokens; None where the list has no such rate."""

    valid_from: datetime.date
    prompt_tokens_over: Count
    input: Decimal
    output: Decimal
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None
    cache_write_1h: Decimal | None = None


class ListedModel(msgspec.Struct, frozen=True, array_like=True):
    """`names` and `pattern` say which lower-case names are this model's; the first model that matches counts.

    `assumed` names what the price list knows more about than these rates can say.
    """

    id: str
    names: tuple[str, ...]
    pattern: str
    context_tokens_max: int | None
    prices: tuple[ListedPrice, ...]
    assumed: tuple[str, ...] = ()


class ListedProvider(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`models` is decoded when a model of this provider is looked up: the whole list takes a hundred times as long.

    `ids` matches other names of the provider, `claims` the models that are taken for this provider's if no provider is
    known. `fallbacks` are the providers whose models it offers too, at their prices. `count` is how many models have
    a price.
    """

    count: int
    models: msgspec.Raw
    ids: str = ""
    claims: str = ""
    fallbacks: tuple[str, ...] = ()


class PriceListFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`size_limits` are all prompt sizes above which some price changes."""

    dated: datetime.date
    source: str
    size_limits: tuple[int, ...]
    providers: dict[str, ListedProvider]
