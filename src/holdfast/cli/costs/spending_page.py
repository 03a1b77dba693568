"""Placeholder."""

from holdfast.ledger.spending import Spending


def render_spending_page(spending: Spending) -> str:
    return ""
