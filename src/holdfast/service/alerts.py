"""Alerts: a read share below its usual range, a budget nearly spent, unreadable calls, a degraded recorder.

They are on the overview, in /metrics by kind, and sent to a webhook by one of the processes that share a store.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
from collections.abc import Iterable, Iterator

import aiohttp
import msgspec

from holdfast.clock import Clock, Sleep
from holdfast.errors import StoreError, UserError
from holdfast.events.records import SharedWorkStore
from holdfast.ledger.analytics.queries import LedgerScope, ReadShare
from holdfast.ledger.analytics.results import count_unreadable_calls
from holdfast.ledger.money import format_utc_day
from holdfast.service.api.keys import KeyView, make_key_views
from holdfast.service.context import AppContext

logger = logging.getLogger(__name__)

DAY_SECONDS = 86_400
SHORT_BUDGET_SHARE = 0.8
USUAL_DAYS = 14
USUAL_DAYS_MIN = 3
CALLS_MIN = 20
"""Fewer calls say nothing about a day: the first call of every session reads little."""
MARGIN = 0.05
"""A share counts as low this far below the lowest of the days before."""

KINDS = ("read_share", "budget", "unreadable", "degraded")
CHECK_SECONDS = 60.0
LEASE_NAME = "alerts"
LEASE_SECONDS = 4 * CHECK_SECONDS
REPEAT_SECONDS = 6 * 3_600.0
"""An alert that stays is sent again after this time, not before."""
QUIET_SECONDS = 900.0
"""An alert that ends and comes back is sent again after this time: a share at its limit may change every minute."""
ALERTS_A_MESSAGE_MAX = 50
ATTEMPTS_MAX = 5
FIRST_PAUSE_SECONDS = 1.0
SEND_SECONDS_MAX = 10.0
SIGNATURE_HEADER = "holdfast-signature"


class Alert(msgspec.Struct, frozen=True):
    """`subject` is the key, client or part of the service that the alert is about; no prompt is ever quoted."""

    kind: str
    subject: str
    message: str


class ShortBudget(msgspec.Struct, frozen=True):
    view: KeyView
    period: str
    spent: float
    limit: float

    @property
    def share(self) -> float:
        return round(self.spent / self.limit, 6) if self.limit else 1.0


def list_short_budgets(context: AppContext, now: float) -> tuple[ShortBudget, ...]:
    """The budgets of usable keys of which 80 % or more is spent."""
    rows = tuple(row for row in context.records.all_keys() if row.has_budget)
    views = make_key_views(rows, context.log, {}, now) if rows else ()
    return tuple(
        ShortBudget(view, period, spent, limit)
        for view in views
        if view.state == "usable"
        for period, spent, limit in (
            ("day", view.spent_today_usd, view.budget_usd_a_day),
            ("month", view.spent_month_usd, view.budget_usd_a_month),
        )
        if limit is not None and spent >= SHORT_BUDGET_SHARE * limit
    )


def find_alerts(context: AppContext, now: float) -> tuple[Alert, ...]:
    """What is wrong now. Today begins at midnight UTC."""
    return (
        *_find_degraded(context),
        *_find_budgets(context, now),
        *_find_unreadable(context, now),
        *_find_low_shares(context, now),
    )


def _find_degraded(context: AppContext) -> Iterator[Alert]:
    for number, warning in enumerate(context.warnings):
        if reason := warning():
            yield Alert("degraded", f"part {number}", reason)


def _find_budgets(context: AppContext, now: float) -> Iterator[Alert]:
    for budget in list_short_budgets(context, now):
        name = budget.view.name or budget.view.id
        message = (
            f"key {name} has spent ${budget.spent:.4f}, {budget.share:.0%} of ${budget.limit:.4f} a {budget.period}"
        )
        yield Alert("budget", f"{budget.view.id} {budget.period}", message)


def _find_unreadable(context: AppContext, now: float) -> Iterator[Alert]:
    scope = LedgerScope(now - DAY_SECONDS, now + 1, simulated=context.simulated)
    count = count_unreadable_calls(context.log.cost_queries(), scope)
    if count:
        calls = "1 call of the last 24 hours" if count == 1 else f"{count:,} calls of the last 24 hours"
        yield Alert("unreadable", "responses", f"{calls} could not be read, so usage and cost are estimates")


def _find_low_shares(context: AppContext, now: float) -> Iterator[Alert]:
    today = format_utc_day(now)
    scope = LedgerScope(now // DAY_SECONDS * DAY_SECONDS - USUAL_DAYS * DAY_SECONDS, simulated=context.simulated)
    queries = context.log.analytics_queries()
    names = {row.id: row.name or row.id for row in context.records.all_keys()}
    for what, shares in (
        ("key", queries.read_shares("gateway_key", scope)),
        ("client", queries.read_shares("client", scope)),
    ):
        for subject, share, usual in find_low_shares(shares, today):
            name = names.get(subject, subject) if what == "key" else subject
            reads = f"{what} {name} reads {share:.0%} of its prompts from the cache today"
            message = f"{reads}; its lowest day before had {usual:.0%}"
            yield Alert("read_share", f"{what} {subject}", message)


def find_low_shares(shares: Iterable[ReadShare], today: str) -> Iterator[tuple[str, float, float]]:
    """Subjects whose share today is below that of every day before, with both; days with few calls do not count."""
    days: dict[str, dict[str, float]] = {}
    for share in shares:
        if share.calls >= CALLS_MIN and share.sent_tokens:
            days.setdefault(share.subject, {})[share.day] = share.read_tokens / share.sent_tokens
    for subject, by_day in sorted(days.items()):
        now, before = by_day.pop(today, None), by_day.values()
        if now is not None and len(before) >= USUAL_DAYS_MIN and now < min(before) - MARGIN:
            yield subject, now, min(before)


def sign_message(secret: str, at: int, body: bytes) -> str:
    """The signature over time and body, so that a receiver can refuse what is forged or old."""
    digest = hmac.new(secret.encode(), b"%d." % at + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


class AlertWebhook:
    """Sends new alerts, signed, at most one message per check. Only the process that has the lease sends.

    The lease holds when each alert was last sent, so that another process that takes it over does not repeat them.
    """

    def __init__(self, url: str, secret: str, *, owner: str, clock: Clock, pause: Sleep = asyncio.sleep) -> None:
        if not url.startswith(("https://", "http://")):
            raise UserError(f"the alert webhook must be an http or https URL, not {url[:80]!a}")
        if not secret:
            raise UserError("an alert webhook needs a secret to sign with: set HOLDFAST_ALERT_SECRET")
        self._url, self._secret = url, secret
        self._owner, self._clock, self._pause = owner, clock, pause

    async def run(self, context: AppContext, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await self.check(context)
            except StoreError as error:
                logger.warning("alerts could not be checked: %s", type(error).__name__)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), CHECK_SECONDS)

    async def check(self, context: AppContext) -> tuple[Alert, ...]:
        """Sends what is new, and returns it; nothing if another process has the lease."""
        work, now = context.records.shared, self._clock()
        sent = await asyncio.to_thread(self._take_lease, work)
        if sent is None:
            return ()
        alerts = await asyncio.to_thread(find_alerts, context, now)
        due = [alert for alert in alerts if now - sent.get(_key(alert), 0.0) >= REPEAT_SECONDS][:ALERTS_A_MESSAGE_MAX]
        if due and not await self._send(due, now):
            due = []
        # An alert that has ended is forgotten, so that it is new when it comes back.
        present = {_key(alert) for alert in alerts}
        known = {key: at for key, at in sent.items() if key in present or now - at < QUIET_SECONDS}
        known |= {_key(alert): now for alert in due}
        if known != sent:
            await asyncio.to_thread(
                work.take_lease, LEASE_NAME, self._owner, seconds=LEASE_SECONDS, value=json.dumps(known)
            )
        return tuple(due)

    def _take_lease(self, work: SharedWorkStore) -> dict[str, float] | None:
        """When each alert was sent; None if another process has the lease."""
        held = next((lease for lease in work.list_leases(LEASE_NAME) if lease.name == LEASE_NAME), None)
        value = held.value if held else "{}"
        if not work.take_lease(LEASE_NAME, self._owner, seconds=LEASE_SECONDS, value=value):
            return None
        try:
            return msgspec.json.decode(value, type=dict[str, float])
        except msgspec.MsgspecError:
            return {}

    async def _send(self, alerts: list[Alert], now: float) -> bool:
        body = msgspec.json.encode({"alerts": alerts, "sent_at": int(now)})
        headers = {"content-type": "application/json", SIGNATURE_HEADER: sign_message(self._secret, int(now), body)}
        timeout = aiohttp.ClientTimeout(total=SEND_SECONDS_MAX)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            for attempt in range(ATTEMPTS_MAX):
                if attempt:
                    await self._pause(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
                try:
                    async with session.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
                        if response.status < 300:
                            return True
                        reason = f"status {response.status}"
                        if response.status < 500 and response.status != 429:
                            break
                except (aiohttp.ClientError, TimeoutError) as error:
                    reason = type(error).__name__
        # The URL may have a secret in its path, so it is not in the log.
        logger.warning("the alert webhook does not accept alerts: %s", reason)
        return False


def _key(alert: Alert) -> str:
    return f"{alert.kind} {alert.subject}"
