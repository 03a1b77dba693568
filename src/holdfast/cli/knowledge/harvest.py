"""`holdfast knowledge`: extracts what finished sessions learned into pages, and manages the digest of new sessions."""

import os
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Unpack

import click
import msgspec

from holdfast.cli.format import CommandGroup, format_count, print_json
from holdfast.cli.open_store import load_configured_models, open_configured_store
from holdfast.cli.options import db_option, json_option, workspace_option
from holdfast.clock import system_clock
from holdfast.errors import BudgetError, UserError
from holdfast.ledger.requests.format import strip_control_characters

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.catalog.schema import Model
    from holdfast.events.log import EventLog
    from holdfast.knowledge.folder import KnowledgeFolder
    from holdfast.knowledge.harvest import HarvestPlan, HarvestResult
    from holdfast.knowledge.items import Item
    from holdfast.knowledge.llm_extraction import SendPrompt
    from holdfast.runtime.options import Options

HOUR_SECONDS = 3600


@click.group("knowledge", cls=CommandGroup)
def command() -> None:
    """Extract knowledge from finished sessions, and inspect what is known about a project.

    Knowledge is stored as Markdown in .holdfast/knowledge of the workspace. You can edit it: your text wins.
    """


_NO_WORKSPACE, _USER = "holdfast.no_workspace", "holdfast.user"


def _remember(context: click.Context, option: click.Parameter, chosen: object) -> None:
    context.meta[_NO_WORKSPACE if option.name == "no_workspace" else _USER] = chosen


def _workspace(function: "Callable[..., None]") -> "Callable[..., None]":
    """Add --workspace, --no-workspace and --user; `_place` reads which of them apply."""
    for option, help_text in (
        ("--no-workspace", "Use the knowledge of sessions without a workspace, in $HOLDFAST_HOME."),
        ("--user", "Use the knowledge of this end user, as in Session(user_id=...); without it, your own."),
    ):
        is_flag = option == "--no-workspace"
        function = click.option(option, is_flag=is_flag, expose_value=False, callback=_remember, help=help_text)(
            function
        )
    return workspace_option("Workspace of the knowledge and of the sessions to harvest.")(function)


class _Place(NamedTuple):
    """Which knowledge a command is about."""

    workspace: Path | None
    home: Path
    user: str | None

    @property
    def folder(self) -> "KnowledgeFolder":
        from holdfast.knowledge.folder import claim_folder

        return claim_folder(self.workspace, self.home, self.user)

    @property
    def shared(self) -> "KnowledgeFolder":
        from holdfast.knowledge.folder import open_shared_folder

        return open_shared_folder(self.workspace, self.home)


def _place(workspace: str) -> _Place:
    from holdfast.knowledge.folder import list_users
    from holdfast.sources.files import holdfast_home

    # Both are stored in the context's meta, so that no command needs a parameter for them.
    meta = click.get_current_context().meta
    root, home, user = None if meta[_NO_WORKSPACE] else Path(workspace), holdfast_home(os.environ), meta[_USER]
    if user is not None and user not in list_users(root, home):
        known = ", ".join(list_users(root, home)[:5])
        raise UserError(
            f"there is no knowledge of a user {user!r}; {f'there is of: {known}' if known else 'nor of others'}"
        )
    return _Place(root, home, user)


@command.command("harvest")
@click.option("--apply", "applies", is_flag=True,
              help="Write what the rules are sure of to the pages at once; the rest still waits for you.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--quiet-hours", type=click.FloatRange(min=0), default=24.0, show_default=True,
              help="Also harvest sessions without activity for this long.")  # fmt: skip
@click.option("--ask", "model", metavar="MODEL", help="Also let this model choose from the lines that the rules found; "
              "its price is shown first.")  # fmt: skip
@click.option("--usd-max", type=click.FloatRange(min=0), default=1.0, show_default=True,
              help="Ask the model about no more sessions once it could cost more than this.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask before a model is called.")
@click.option("--simulated", is_flag=True, help="Include sessions with a simulated model.")
@_workspace
@db_option
@json_option
def harvest_knowledge(
    *,
    applies: bool,
    dry_run: bool,
    quiet_hours: float,
    model: str | None,
    usd_max: float,
    yes: bool,
    simulated: bool,
    workspace: str,
    db: str | None,
    as_json: bool,
) -> None:
    """Find decisions, facts, playbooks and notes on files in finished sessions, by rules, for you to review.

    Items wait until `holdfast knowledge review` accepts them. Each end user's items go to a folder of their own. Text
    that may contain a secret is left out. An unchanged session is never harvested twice.
    """
    from holdfast.catalog.lookup import find_model
    from holdfast.knowledge.folder import claim_folder, open_knowledge_folder
    from holdfast.knowledge.harvest import apply_harvest, plan_harvest
    from holdfast.runtime.knowledge import finished_sessions, group_by_user, known_sessions, project_lookup

    if applies and dry_run:
        raise UserError("--apply writes and --dry-run does not; leave one of them out")
    place = _place(workspace)
    root, home = place.workspace, place.home
    model_row = find_model(model, load_configured_models()) if model else None
    with open_configured_store(db, writable=not dry_run and model is not None) as log:
        sessions = finished_sessions(
            log,
            at=system_clock(),
            workspace=root,
            quiet_seconds=quiet_hours * HOUR_SECONDS,
            known=known_sessions(root, home),
            simulated=simulated,
        )
        groups = group_by_user(sessions, root, home)
        if place.user is not None:
            groups = {place.user: groups[place.user]}
        plans = [
            (user, plan_harvest(open_knowledge_folder(root, home, user=user), ended)) for user, ended in groups.items()
        ]
        if dry_run:
            if as_json:
                print_json([{"user": user, "plan": plan} for user, plan in plans])
            else:
                _show_plans(plans, model_row)
            return
        ask = None
        if model_row is not None:
            _confirm_price([plan for _, plan in plans], model_row, usd_max, skips_question=yes, to_stderr=as_json)
            ask = limit_spending(knowledge_model(log, model_row.id), model_row, Decimal(str(usd_max)))
        outcomes = []
        for user, ended in groups.items():
            folder = claim_folder(root, home, user) if ended else open_knowledge_folder(root, home, user=user)
            outcome = apply_harvest(
                folder,
                ended,
                accept="confident" if applies else "none",
                shared=place.shared,
                project=project_lookup(root),
                ask=ask,
            )
            outcomes.append((user, outcome))
    if as_json:
        print_json([{"user": user, "result": outcome} for user, outcome in outcomes])
        return
    for user, outcome in outcomes:
        if user is None or outcome.sessions or outcome.failed:
            _show_outcome(outcome, open_knowledge_folder(root, home, user=user))


@command.command("review")
@click.option("--list", "lists", is_flag=True, help="Only list what waits, without asking.")
@_workspace
@db_option
@json_option
def review_knowledge(*, lists: bool, workspace: str, db: str | None, as_json: bool) -> None:
    """Accept, edit or reject harvested items one by one, with the lines of the conversation that they come from."""
    from holdfast.knowledge.review import read_pending
    from holdfast.runtime.knowledge import read_source_lines

    place = _place(workspace)
    waiting = read_pending(place.folder).waiting
    with open_configured_store(db, writable=False) as log:
        if as_json:
            print_json([{"item": item, "sources": read_source_lines(log, item)} for item in waiting])
            return
        if not waiting:
            click.echo("Nothing waits for review; `holdfast knowledge harvest` looks for more.")
        for position, item in enumerate(waiting, 1):
            click.echo(_describe_pending(item, f"{position} of {len(waiting)}"))
            for source in read_source_lines(log, item):
                click.echo(strip_control_characters(f"    {source.session_id} m{source.number} ({source.origin}):"))
                for line in source.lines or ("(the session is not in this store)",):
                    click.echo(strip_control_characters(f"      | {line}"))
            if not lists and not _ask_about(item, place):
                break


def _describe_pending(item: "Item", position: str) -> str:
    scope = f" on {item.scope}" if item.category == "files" else ""
    evidence = f"\n    evidence: {item.evidence}" if item.evidence else ""
    flagged = f"\n    looks like {item.flagged}" if item.flagged else ""
    return strip_control_characters(f"[{position}] {item.id}  {item.category}{scope}: {item.text}") + evidence + flagged


def _ask_about(item: "Item", place: _Place) -> bool:
    """One decision of a person; returns whether to go on with the next item."""
    from holdfast.knowledge.review import accept_item, reject_item
    from holdfast.runtime.knowledge import project_lookup

    project = project_lookup(place.workspace)
    # What comes from the project alone is for everybody, unless the reviewer keeps it.
    shared = place.shared if item.is_shareable else None
    while True:
        asked = "  [a]ccept  [s]hare with all users  [k]eep for this user  [e]dit  [r]eject  [n]ext  [q]uit"
        choice = click.prompt(asked, type=click.Choice(list("askernq")), show_choices=False, default="n")
        try:
            if choice == "r":
                reject_item(place.folder, item.id)
                click.echo(f"  rejected; `holdfast knowledge restore {item.id}` brings it back")
            elif choice in ("a", "e", "s", "k"):
                text = click.prompt("  text", default=item.text) if choice == "e" else ""
                target = place.shared if choice == "s" else None if choice == "k" else shared
                accept_item(place.folder, item.id, text=text, shared=target, project=project)
                whose = "shared with all users of the workspace" if target else "for this user only"
                click.echo(f"  accepted, {whose}")
        except UserError as error:
            click.echo(f"  {error}")
            continue
        return bool(choice != "q")


@command.command("accept")
@click.argument("item_ids", nargs=-1, required=True, metavar="ID...")
@click.option("--text", default="", help="Accept it with this text instead.")
@click.option("--share", is_flag=True, help="Give it to all users of the workspace.")
@_workspace
def accept_knowledge(item_ids: tuple[str, ...], text: str, share: bool, workspace: str) -> None:
    """Accept waiting items by id; what comes from the project alone is shared with all users of the workspace."""
    from holdfast.knowledge.review import accept_item, read_pending
    from holdfast.runtime.knowledge import project_lookup

    place = _place(workspace)
    if text and len(item_ids) > 1:
        raise UserError("--text is for one item at a time")
    shareable = {item.id for item in read_pending(place.folder).waiting if item.is_shareable}
    for item_id in item_ids:
        target = place.shared if share or item_id in shareable else None
        item = accept_item(place.folder, item_id, text=text, shared=target, project=project_lookup(place.workspace))
        click.echo(strip_control_characters(f"accepted{' and shared' if target else ''}: {item.text}"))


@command.command("reject")
@click.argument("item_ids", nargs=-1, required=True, metavar="ID...")
@_workspace
def reject_knowledge(item_ids: tuple[str, ...], workspace: str) -> None:
    """Reject waiting items by id; later harvests do not bring them back, `restore` does."""
    from holdfast.knowledge.review import reject_item

    folder = _place(workspace).folder
    for item_id in item_ids:
        click.echo(strip_control_characters(f"rejected: {reject_item(folder, item_id).text}"))


@command.command("restore")
@click.argument("item_id", required=False, metavar="[ID]")
@_workspace
def restore_knowledge(item_id: str | None, workspace: str) -> None:
    """Undo: let a rejected, removed or accepted item wait again; without an id, list what was set aside."""
    from holdfast.knowledge.review import read_pending, restore_item

    place = _place(workspace)
    if item_id is None:
        set_aside = (*read_pending(place.folder).set_aside, *read_pending(place.shared).set_aside)
        for item in set_aside:
            click.echo(strip_control_characters(f"{item.id}  {item.category}: {item.text}"))
        if not set_aside:
            click.echo("Nothing was set aside.")
        return
    item = restore_item(place.folder, item_id, shared=place.shared)
    click.echo(strip_control_characters(f"waits for review again: {item.text}"))


@command.command("share")
@click.argument("item_id", metavar="ID")
@_workspace
def share_knowledge(item_id: str, workspace: str) -> None:
    """Give an item of your pages to all users of the workspace."""
    from holdfast.knowledge.review import share_item
    from holdfast.runtime.knowledge import project_lookup

    place = _place(workspace)
    item = share_item(place.folder, place.shared, item_id, project=project_lookup(place.workspace))
    click.echo(strip_control_characters(f"shared: {item.text}"))


@command.command("list")
@click.option("--category", type=click.Choice(("facts", "decisions", "tasks", "questions", "playbooks", "files")))
@_workspace
@json_option
def list_knowledge(category: str | None, workspace: str, as_json: bool) -> None:
    """List the items of your pages and the shared ones; those that are not in the digest show why."""
    from holdfast.knowledge.review import list_knowledge_items, read_pending

    place = _place(workspace)
    owned = [(False, item) for item in list_knowledge_items(place.folder)]
    owned += [(True, item) for item in list_knowledge_items(place.shared)]
    rows = [(is_shared, item) for is_shared, item in owned if category in (None, item.category)]
    if as_json:
        print_json(
            [
                {
                    **msgspec.to_builtins(item),
                    "exclusion_reason": item.exclusion_reason,
                    "shared": is_shared,
                    "user": None if is_shared else place.user,
                }
                for is_shared, item in rows
            ]
        )
        return
    for is_shared, item in rows:
        reason = f"  [{item.exclusion_reason}]" if item.exclusion_reason else ""
        scope = f" {item.scope}:" if item.category == "files" else ""
        shared = "shared " if is_shared else f"of {place.user} " if place.user else ""
        click.echo(strip_control_characters(f"{item.id}  {shared}{item.category}:{scope} {item.text}{reason}"))
    waiting = len(read_pending(place.folder).waiting)
    click.echo(format_count(len(rows), "item") + (f", {waiting} waiting for review" if waiting else ""))


@command.command("digest")
@click.option("--rebuild", is_flag=True, help="Rebuild it from the pages, for instance after editing them.")
@_workspace
def show_digest(rebuild: bool, workspace: str) -> None:
    """Show what new sessions receive: what is shared, then the user's own."""
    from holdfast.runtime.knowledge import digest_text

    place = _place(workspace)
    if rebuild:
        _rebuild_digests(place)
    text = digest_text(place.workspace, place.home, user=place.user)
    click.echo(
        "\n".join(strip_control_characters(line) for line in text.split("\n")) if text else "There is no digest."
    )


@command.command("off")
@_workspace
def turn_off(workspace: str) -> None:
    """Stop giving the digest to new sessions, even after the next harvest."""
    from holdfast.knowledge.folder import DIGEST_FILE, DISABLED_FILE

    folder = _place(workspace)._replace(user=None).folder
    folder.replace(DISABLED_FILE, b"Knowledge is turned off here; delete this file to turn it on again.\n")
    folder.remove(DIGEST_FILE)
    marker = f"{folder.display_path}/{DISABLED_FILE}"
    click.echo(f"Knowledge is off; `holdfast knowledge on` or deleting {marker} turns it on again.")


@command.command("on")
@_workspace
def turn_on(workspace: str) -> None:
    """Give new sessions the digest again, rebuilt from the current pages."""
    from holdfast.knowledge.folder import DISABLED_FILE

    place = _place(workspace)._replace(user=None)
    place.folder.remove(DISABLED_FILE)
    click.echo(f"Knowledge is on: {format_count(_rebuild_digests(place), 'item')} in the digest.")


def _rebuild_digests(place: _Place) -> int:
    """Rebuild the user's digest and the shared one; how many items they have."""
    from holdfast.knowledge.digest import SHARED_DIGEST_BYTES_MAX
    from holdfast.knowledge.review import rebuild_digest

    with place.folder.lock(), place.shared.lock():
        _, own, _ = rebuild_digest(place.folder)
        _, shared, _ = rebuild_digest(place.shared, bytes_max=SHARED_DIGEST_BYTES_MAX)
    return own.items + shared.items


def _show_plans(plans: "list[tuple[str | None, HarvestPlan]]", model: "Model | None") -> None:
    for user, plan in plans:
        if user is not None and not plan.sources and not plan.pending:
            continue
        if user is not None:
            click.echo(strip_control_characters(f"user {user}:"))
        for source in plan.sources:
            items = format_count(len(source.extracted.items), "item")
            click.echo(f"{source.session}  {source.content_bytes:>10,} bytes  {items}")
        click.echo(
            f"{format_count(len(plan.sources), 'session')} to harvest, {plan.unchanged} already harvested: "
            f"{format_count(plan.new_items, 'new item')}, {plan.merged_items} with another source"
        )
        if plan.secrets:
            click.echo(f"{format_count(plan.secrets, 'text')} left out because of possible secrets")
        if plan.pending:
            click.echo(
                f"{format_count(plan.pending, 'session')} left over from an interrupted run; the next one finishes it"
            )
    if model is None:
        click.echo("Extracted by rules, at no cost. Nothing was written.")
    else:
        click.echo(
            f"{_describe_price([plan for _, plan in plans], model)} Nothing was written and no model was called."
        )


def _describe_price(plans: "list[HarvestPlan]", model: "Model") -> str:
    tokens, calls = sum(plan.model_tokens for plan in plans), sum(plan.model_calls for plan in plans)
    likely, most = estimate_ask_cost(model, tokens, calls, system_clock())
    return (
        f"{model.id} would be asked about {format_count(calls, 'session')}: about {tokens:,} tokens of input, "
        f"${likely:.4f} without its replies, at most ${most:.4f}."
    )


def _confirm_price(
    plans: "list[HarvestPlan]", model: "Model", usd_max: float, *, skips_question: bool, to_stderr: bool
) -> None:
    """Show what asking the model may cost, before anything is paid; ends the command if the person declines."""
    click.echo(f"{_describe_price(plans, model)} It stops before ${usd_max:.2f}.", err=to_stderr)
    if not skips_question and any(plan.model_calls for plan in plans):
        click.confirm("Ask it?", abort=True, err=to_stderr)


def _show_outcome(outcome: "HarvestResult", folder: "KnowledgeFolder") -> None:
    items = format_count(outcome.items, "item")
    click.echo(f"{format_count(outcome.sessions, 'session')} harvested into {folder.display_path}: {items}")
    if outcome.accepted:
        click.echo(f"{format_count(outcome.accepted, 'item')} in the pages")
    if outcome.waiting:
        verb = "waits" if outcome.waiting == 1 else "wait"
        click.echo(f"{format_count(outcome.waiting, 'item')} {verb} for you: holdfast knowledge review")
    if outcome.secrets:
        click.echo(f"{format_count(outcome.secrets, 'text')} left out because of possible secrets")
    if outcome.failed:
        click.echo(
            f"{format_count(outcome.failed, 'session')} not harvested: "
            "the model gave no usable answer, or its limit was reached"
        )
    if Decimal(outcome.cost_usd):
        click.echo(f"the model cost ${Decimal(outcome.cost_usd):.4f}")
    if outcome.quarantined:
        click.echo(f"{format_count(outcome.quarantined, 'line')} of the journal could not be read and was set aside")
    change, digest_items = outcome.digest_change, format_count(outcome.digest.items, "item")
    if not outcome.digest_written:
        click.echo("The digest is turned off and was not written.")
    elif change.bytes_changed:
        # About four bytes per token: only an order of magnitude is needed here.
        tokens_changed = change.bytes_changed // 4
        click.echo(
            f"digest.md: {digest_items}, {change.bytes_after:,} bytes, changed from byte {change.first_byte:,} on; "
            f"new sessions write about {tokens_changed:,} tokens of it again, and everything after it"
        )
    else:
        click.echo(f"digest.md: {digest_items}, unchanged")


def knowledge_model(log: "EventLog", model: str, /, **options: "Unpack[Options]") -> "SendPrompt":
    """Return a function that sends one prompt to the model.

    Each prompt runs in a session of its own, so that its cost is recorded in `log` like that of any other session.
    """
    from holdfast.knowledge.llm_extraction import REPLY_TOKENS_MAX, ModelReply
    from holdfast.runtime.session_functions import run_sync

    def ask(prompt: str) -> ModelReply:
        defaults: Options = {
            "model": model,
            "store": log,
            "name": "knowledge harvest",
            "knowledge": False,
            "output_tokens_max": REPLY_TOKENS_MAX,
        }
        reply = run_sync(prompt, **(defaults | options))
        return ModelReply(reply.text, reply.cost_usd)

    return ask


def limit_spending(ask: "SendPrompt", model: "Model", usd_max: Decimal) -> "SendPrompt":
    """The same model, asked no more once its next reply could exceed the limit."""
    from holdfast.knowledge.llm_extraction import ModelReply

    spent = Decimal(0)

    def ask_within_limit(prompt: str) -> ModelReply:
        nonlocal spent
        _, most = estimate_ask_cost(model, len(prompt) // 4, 1, system_clock())
        if spent + most / 2 > usd_max:
            raise BudgetError(f"the limit of ${usd_max} for the model is reached; --usd-max raises it")
        reply = ask(prompt)
        spent += reply.cost_usd
        return reply

    return ask_within_limit


def estimate_ask_cost(model: "Model", tokens: int, calls: int, at: float) -> tuple[Decimal, Decimal]:
    """The price of reading `tokens` once, and the most that can be paid: every call repeated, every reply full."""
    from holdfast.catalog.lookup import price_at, utc_date
    from holdfast.knowledge.llm_extraction import CALLS_MAX, REPLY_TOKENS_MAX

    price = price_at(model, utc_date(at), tokens // max(1, calls))
    # Catalog prices are US dollars per million tokens. Other characters than ASCII take more than a quarter of a token
    # each, and a write to the cache costs 1.25 times an uncached token: twice the estimate covers both.
    reading = price.input * tokens / 1_000_000
    return reading, CALLS_MAX * (2 * reading + price.output * REPLY_TOKENS_MAX * calls / 1_000_000)
