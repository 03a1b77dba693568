"""`holdfast gateway`: costs of forwarded sessions and their alternatives, rewritten requests, spending per key."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.format import CommandGroup, format_count, format_usd, print_json
from holdfast.cli.open_store import (
    load_configured_models,
    open_configured_store,
    resolve_session_id,
    resolve_store_address,
)
from holdfast.cli.options import convert_to_option_error, db_option, json_option, parse_time_option, split_pair
from holdfast.clock import system_clock
from holdfast.errors import HoldfastError, UserError
from holdfast.ledger.requests.format import strip_control_characters

if TYPE_CHECKING:
    from holdfast.events.log import Event
    from holdfast.replay.counterfactual import Counterfactual
    from holdfast.stores.open import Store

REQUEST_BYTES_MAX = 32 * 1024 * 1024
WIRE_FORMATS = ("anthropic", "gemini", "openai", "openai-chat")

_Amounts = tuple[int, int, int, int]
"""Calls, failed calls, picodollars, unpriced tokens."""

_AddedAmounts = tuple[str, str, str, _Amounts]
"""Day, key, name of the session, and what to add."""


@click.group("gateway", cls=CommandGroup)
def command() -> None:
    """Show gateway traffic: costs and possible savings, rewritten requests, spending."""


@command.command("costs")
@click.argument("session_id", required=False)
@click.option("--since", metavar="7d|12h|2w|DATE", help="Without SESSION_ID: only calls from then on.")
@click.option("--simulated", is_flag=True, help="Without SESSION_ID: include simulated sessions.")
@db_option
@json_option
def show_costs(*, session_id: str | None, since: str | None, simulated: bool, db: str | None, as_json: bool) -> None:
    """Show what each client or one session cost, and what it would have cost without or with a rewrite.

    For a session also: what single anti-patterns cost, other tools' caching policies, and the optimum, which is the
    lowest cost that any plan could have reached in hindsight.
    """
    from holdfast.replay.audit import PriceLookup
    from holdfast.replay.counterfactual import estimate_counterfactual

    if session_id is None:
        _show_clients(since, db, simulated=simulated, as_json=as_json)
        return
    with open_configured_store(db) as log:
        resolved_id = resolve_session_id(log, session_id)
        events = list(log.read(resolved_id))
    costs = estimate_counterfactual(events, resolved_id, PriceLookup(load_configured_models()))
    if costs is None:
        raise UserError(f"session {resolved_id!r} {_explain_missing_costs(events)}")
    if as_json:
        print_json(costs)
        return
    _show_session_costs(costs)


def _show_clients(since: str | None, db: str | None, *, simulated: bool, as_json: bool) -> None:
    from holdfast.cli.costs.report import audit_stored_sessions, parse_scope
    from holdfast.cli.tables import print_table, print_text
    from holdfast.ledger.analytics.queries import LedgerScope
    from holdfast.replay.counterfactual import sum_gateway_costs

    scope = parse_scope(since, None, None, verbose=False)
    with open_configured_store(db) as log:
        window = LedgerScope(scope.since, scope.until, None, simulated)
        address, _ = resolve_store_address(db)
        spending = audit_stored_sessions(log, log.cost_queries().list_sessions(window), scope, address=address)
    forwarded = [row for row in spending.sessions if row.unplanned_usd is not None]
    clients = dict.fromkeys(row.client for row in forwarded)
    rows = [sum_gateway_costs(client, [row for row in forwarded if row.client == client]) for client in clients]
    rows.sort(key=lambda row: (-row.observed_usd, row.client))
    if as_json:
        print_json(rows)
        return
    if not rows:
        since_then = "" if since is None else " in that time"
        others = "" if simulated else ", and --simulated includes simulated ones"
        how = "`holdfast connect CLIENT` points a client at it"
        print_text(f"No session has gone through the gateway{since_then}; {how}{others}.")
        return
    print_table(
        ("client", "sessions", "calls", "observed", "without rewrite", "with rewrite", "saved"),
        (
            (
                strip_control_characters(row.client),
                str(row.sessions),
                str(row.calls),
                *(format_usd(usd, 4) for usd in (row.observed_usd, row.unplanned_usd, row.planned_usd, row.saved_usd)),
            )
            for row in rows
        ),
    )
    for row in rows:
        if row.overspent:
            click.echo(f"{strip_control_characters(row.client)} costs more with a rewrite: {row.overspent}")


def _explain_missing_costs(events: "Sequence[Event]") -> str:
    from holdfast.events.payloads.calls import GatewayForwarded, LlmCallCompleted, LlmCallStarted

    payloads = [event.payload for event in events]
    if not any(isinstance(payload, GatewayForwarded) for payload in payloads):
        return "did not go through the gateway; `holdfast report --session ID` shows its costs"
    if not any(isinstance(payload, LlmCallCompleted) for payload in payloads):
        return "has no call that was answered; `holdfast sessions show ID` says why"
    models = dict.fromkeys(payload.model for payload in payloads if isinstance(payload, LlmCallStarted))
    names = ", ".join(map(strip_control_characters, models))
    return f'has calls without a known price, of {names}; add prices to [models."provider:name"] in config.toml'


def _show_session_costs(costs: "Counterfactual") -> None:
    from holdfast.cli.tables import print_table

    click.echo(f"paid: ${costs.observed_usd:.6f} for {format_count(costs.calls, 'call')}, replies included")
    reason = f" ({costs.overspent})" if costs.overspent else ""
    click.echo(f"saved by a rewrite: {format_usd(costs.saved_usd, 6)}{reason}")
    rows = [
        ("without a rewrite", costs.unplanned_usd),
        ("with a rewrite", costs.planned_usd),
        ("optimum in hindsight", costs.optimum_usd),
        *((f"policy {row.policy}", row.usd) for row in costs.policies),
    ]
    print_table(
        ("", "cost", "vs rewrite"),
        ((name, f"${usd:.6f}", _times(usd, costs.planned_usd)) for name, usd in rows),
    )
    if costs.anti_patterns:
        click.echo("cost of each anti-pattern, if only the others are fixed:")
        pattern_rows = (
            (row.anti_pattern, str(row.calls), "fixed" if row.is_fixed else format_usd(row.usd, 6))
            for row in costs.anti_patterns
        )
        print_table(("anti-pattern", "calls", "cost"), pattern_rows)


def _times(usd: float, reference_usd: float) -> str:
    return f"{usd / reference_usd:.2f}x" if reference_usd else ""


@command.command("changes")
@click.argument("session_id")
@db_option
def show_changes(session_id: str, db: str | None) -> None:
    """Show what was or could be rewritten in the requests of a session; letters appear as x and digits as 0."""
    from holdfast.events.payloads.calls import GatewayForwarded

    with open_configured_store(db) as log:
        payloads = [event.payload for event in log.read(resolve_session_id(log, session_id))]
    forwarded = [payload for payload in payloads if isinstance(payload, GatewayForwarded)]
    for number, call in enumerate(forwarded, 1):
        for change in call.changes:
            done = "fixed" if change.is_applied else "can be fixed"
            change_text = strip_control_characters(f"{change.anti_pattern} ({change.location})")
            click.echo(f"call {number}: {done}: {change_text}")
            for line in change.diff:
                click.echo(f"    {strip_control_characters(line)}")
    if not any(call.changes for call in forwarded):
        click.echo("No request of this session was rewritten, and none needed to be.")


@command.command("spend")
@click.option("--since", metavar="7d|12h|2w|DATE", help="Only days from then on.")
@db_option
@json_option
def show_spending(since: str | None, db: str | None, as_json: bool) -> None:
    """Show spending through the gateway by day and key."""
    from holdfast.catalog.lookup import utc_date
    from holdfast.cli.tables import print_table
    from holdfast.ledger.money import to_dollars

    first_day = "" if since is None else utc_date(parse_time_option(since, system_clock())).isoformat()
    sums: dict[tuple[str, str, str], _Amounts] = {}
    with open_configured_store(db) as log:
        # Not the name of the session: keys that share a provider account may continue one another's conversations.
        key_names = {key.id: key.name or "" for key in log.records.all_keys()}
        added: list[_AddedAmounts] = [
            (row.day, row.key_id, row.label, (row.calls, 0, row.spent, row.unpriced_tokens))
            for row in log.sum_key_spending(first_day)
        ]
        added += _list_failures(log, first_day)
    for day, key_id, label, amounts in added:
        if day >= first_day:
            row = (day, key_id, key_names.get(key_id, label))
            sums[row] = _add_amounts(sums.get(row, (0, 0, 0, 0)), amounts)
    rows = [
        (*row, calls, failed, float(to_dollars(spent)), unpriced)
        for row, (calls, failed, spent, unpriced) in sorted(sums.items())
    ]
    if as_json:
        names = ("day", "key_id", "label", "calls", "failed", "cost_usd", "unpriced_tokens")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    if not rows:
        click.echo(f"No gateway spending{'' if since is None else ' in that time'}.")
        return
    table_rows = (
        (day, key or "none", label, str(calls), str(failed), _format_spending(usd, unpriced))
        for day, key, label, calls, failed, usd, unpriced in rows
    )
    print_table(("day", "key", "name", "calls", "failed", "cost"), table_rows)


def _list_failures(log: "Store", first_day: str) -> list[_AddedAmounts]:
    """From the log, because the tables do not have the key of a failed call."""
    from holdfast.catalog.lookup import utc_date

    session_ids = log.list_failed_sessions(first_day)
    if not session_ids:
        return []
    try:
        from holdfast.gateway.recording.restore import iterate_failures
    except ImportError as error:
        raise UserError("the gateway needs extra packages: pip install 'holdfast-context[server]'") from error
    return [
        (utc_date(call.ended_at).isoformat(), call.key_id or "", call.label or "", (0, 1, 0, 0))
        for call in iterate_failures(log, session_ids)
    ]


def _add_amounts(before: _Amounts, added: _Amounts) -> _Amounts:
    calls, failed, spent, unpriced = (left + right for left, right in zip(before, added, strict=True))
    return calls, failed, spent, unpriced


def _format_spending(usd: float, unpriced_tokens: int) -> str:
    unpriced = f"{format_count(unpriced_tokens, 'unpriced token')}" if unpriced_tokens else ""
    return " + ".join(part for part in (f"${usd:.6f}" if usd or not unpriced else "", unpriced) if part)


@command.command("try")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--speaks", type=click.Choice(WIRE_FORMATS), default="anthropic", show_default=True)
@click.option("--path", default="", help="Path of the request, needed for Gemini, whose path names the model.")
@click.option("--volatile", metavar="NAME=REGEX", multiple=True, help="As for `holdfast serve`.")
def preview_improvement(file: str, speaks: str, path: str, volatile: tuple[str, ...]) -> None:
    """Show, as a diff, what --improve would rewrite in the request body in FILE, if it were the first of its kind."""
    try:
        from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter
        from holdfast.gateway.rewrite.findings import iterate_diff_lines
        from holdfast.gateway.rewrite.volatile_text import DATE_RULE, VolatileExtractor, VolatileRule
    except ImportError as error:
        raise UserError("the gateway needs extra packages: pip install 'holdfast-context[server]'") from error
    if speaks == "gemini" and not path:
        raise click.UsageError("--speaks gemini needs --path, such as /v1beta/models/NAME:generateContent")
    with convert_to_option_error():
        rules = tuple(VolatileRule(*split_pair(option, "--volatile")) for option in volatile)
        extractor = VolatileExtractor((DATE_RULE, *rules))
    body = _read(Path(file))
    _check_request(file, body)
    rewriter = ConversationRewriter(load_configured_models(), extractor)
    try:
        improved = rewriter.analyze(speaks, body, path=path, account="", at=system_clock())
    except HoldfastError:
        raise
    # FILE may hold anything, and a body that is no request can fail anywhere in the rewriter.
    except Exception as error:
        raise UserError(
            f"{file!r} is not a request in the format {speaks}; choose another with --speaks, or correct the file"
        ) from error
    if improved.body is None:
        click.echo("The request would be forwarded unchanged.")
        return
    for change in improved.changes:
        click.echo(f"{change.anti_pattern} ({change.location})")
    for line in iterate_diff_lines(body, improved.body):
        click.echo(line)


def _check_request(file: str, body: bytes) -> None:
    try:
        request = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        reason = f"not one JSON document: {error}"
    else:
        if isinstance(request, dict):
            return
        reason = "JSON, but not an object"
    raise UserError(f"{file!r} is {reason}; a request body is one JSON object")


def _read(path: Path) -> bytes:
    try:
        body = path.read_bytes()
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    if len(body) > REQUEST_BYTES_MAX:
        raise UserError(f"{str(path)!r} has more than {REQUEST_BYTES_MAX} bytes")
    return body
