"""The limits of a test run: the minimum cache read share of a test and the maximum cost of the run."""

from decimal import Decimal, InvalidOperation
from typing import NamedTuple

import pytest

READ_SHARE = "min_read_share"
COST = "max_cost"


class Limits(NamedTuple):
    """None means no limit."""

    read_share_min: Decimal | None = None
    cost_usd_max: Decimal | None = None


def add_limit_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("holdfast", "prompt caches")
    share = "fail a test with two or more calls that reads a smaller share of its prompts from the cache: 0.8 or 80%"
    cost = "fail the run if its simulated calls cost more in total: 0.05"
    for name, meta, description in ((READ_SHARE, "SHARE", share), (COST, "USD", cost)):
        group.addoption(f"--holdfast-{name.replace('_', '-')}", metavar=meta, default=None, help=description)
        parser.addini(f"holdfast_{name}", description, default="")


def read_limits(config: pytest.Config) -> Limits:
    """Read the limits; the command line overrides the ini file. Raises `pytest.UsageError` for an invalid limit."""
    return Limits(_share(*_read_option(config, READ_SHARE)), _cost(*_read_option(config, COST)))


def _read_option(config: pytest.Config, name: str) -> tuple[str, str]:
    """The name of the option or ini setting that applies, and its text."""
    option = f"--holdfast-{name.replace('_', '-')}"
    if (value := config.getoption(option, default=None)) is not None:
        return option, str(value)
    return f"holdfast_{name}", str(config.getini(f"holdfast_{name}"))


def _share(where: str, text: str) -> Decimal | None:
    if not text.strip():
        return None
    number = _number(text.strip().removesuffix("%"))
    share = number / 100 if number is not None and text.strip().endswith("%") else number
    if share is None or not 0 <= share <= 1:
        raise pytest.UsageError(f"{where}: {text!r} is not a share; write 0.8 or 80%")
    return share


def _cost(where: str, text: str) -> Decimal | None:
    if not text.strip():
        return None
    cost = _number(text.strip().removeprefix("$"))
    if cost is None or cost < 0:
        raise pytest.UsageError(f"{where}: {text!r} is not an amount in US dollars; write 0.05")
    return cost


def _number(text: str) -> Decimal | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None
