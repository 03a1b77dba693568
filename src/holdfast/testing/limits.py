"""How much of the prompts must a test read from the cache, and how much may a run cost?"""

from decimal import Decimal, InvalidOperation
from typing import NamedTuple

import pytest

READ_SHARE = "min_read_share"
COST = "max_cost"


class Limits(NamedTuple):
    """None where there is none."""

    read_share_min: Decimal | None = None
    cost_usd_max: Decimal | None = None


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("holdfast", "prompt caches")
    for name, meta, says in (
        (
            READ_SHARE,
            "SHARE",
            "fail a test of two calls or more that reads less of its prompts from the cache: 0.8 or 80%",
        ),
        (COST, "USD", "fail the run if its simulated calls cost more in all: 0.05"),
    ):
        group.addoption(f"--holdfast-{name.replace('_', '-')}", metavar=meta, default=None, help=says)
        parser.addini(f"holdfast_{name}", says, default="")


def limits_of(config: pytest.Config) -> Limits:
    """The command line beats the file. Raises `pytest.UsageError` for what is no limit."""
    return Limits(_share(*_given(config, READ_SHARE)), _cost(*_given(config, COST)))


def _given(config: pytest.Config, name: str) -> tuple[str, str]:
    """Where the limit stands, and what stands there."""
    option = f"--holdfast-{name.replace('_', '-')}"
    if (told := config.getoption(option, default=None)) is not None:
        return option, str(told)
    return f"holdfast_{name}", str(config.getini(f"holdfast_{name}"))


def _share(where: str, text: str) -> Decimal | None:
    if not text.strip():
        return None
    number = _number(text.strip().removesuffix("%"))
    share = number / 100 if number is not None and text.strip().endswith("%") else number
    if share is None or not 0 <= share <= 1:
        raise pytest.UsageError(f"{where}: {text!r} is no share; write 0.8 or 80%")
    return share


def _cost(where: str, text: str) -> Decimal | None:
    if not text.strip():
        return None
    cost = _number(text.strip().removeprefix("$"))
    if cost is None or cost < 0:
        raise pytest.UsageError(f"{where}: {text!r} is no amount in US dollars; write 0.05")
    return cost


def _number(text: str) -> Decimal | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None
