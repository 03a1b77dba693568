"""`holdfast recovery`: lists known failures of stored sessions and runs their recovery recipes by hand."""

import contextlib
import os
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.format import CommandGroup, print_json
from holdfast.cli.open_store import load_configured_models, open_configured_store, resolve_session_id
from holdfast.cli.options import db_option, json_option
from holdfast.clock import new_ulid, system_clock
from holdfast.errors import UserError
from holdfast.ledger.requests.format import strip_control_characters
from holdfast.recovery.recipes import RECIPES, RecoveryRecipe, select_rules
from holdfast.recovery.scenarios import FailureScenario, StepName

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.engine.recovery.runner import PlannedRecovery, StepFunction, StepFunctions
    from holdfast.engine.recovery.transcript_repair import StoredConversation
    from holdfast.events.log import EventLog
    from holdfast.recovery.attempts import Incident, Incidents

COMMAND_OUTPUT_CHARS_MAX = 200


@click.group("recovery", cls=CommandGroup)
def command() -> None:
    """List known failures of stored sessions and run their recovery recipes."""


@command.command("list")
@click.argument("session_id", required=False)
@db_option
@json_option
@click.option("--recipes", is_flag=True, help="Show the recipe of every known failure.")
@click.option("--all", "everything", is_flag=True, help="Also show recovered incidents.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Number of sessions to read.")
def list_incidents(
    session_id: str | None, *, db: str | None, as_json: bool, recipes: bool, everything: bool, limit: int
) -> None:
    """List open incidents, newest sessions first; for one session, all its incidents."""
    if recipes:
        _show_recipes(as_json=as_json)
        return
    with open_configured_store(db) as log:
        incidents = list(_incidents(log, resolve_session_id(log, session_id) if session_id else None, limit))
    shown = [entry for entry in incidents if everything or session_id or entry[1].state != "succeeded"]
    if as_json:
        print_json([{"session_id": id, **msgspec.to_builtins(incident)} for id, incident in shown])
    elif not shown:
        recovered = f" ({len(incidents)} recovered; --all shows them)" if incidents else ""
        click.echo(f"No open incidents{recovered}.")
    else:
        from holdfast.cli.tables import print_table

        headings = ("session", "incident", "state", "attempts", "next step", "reason")
        print_table(headings, (_incident_row(id, incident) for id, incident in shown))


@command.command("run")
@click.argument("session_id")
@click.argument("scenario")
@db_option
@json_option
@click.option("--incident", default="", help="Incident to recover, if the scenario has several.")
@click.option("--step", "steps", multiple=True, metavar="NAME=COMMAND", help="Shell command that performs a step.")
@click.option("--dry-run", is_flag=True, help="Show the steps; do nothing.")
@click.option("--yes", is_flag=True, help="Do not ask, even if the session has no such incident.")
@click.pass_context
def run_recipe(
    ctx: click.Context,
    /,
    session_id: str,
    scenario: str,
    *,
    db: str | None,
    as_json: bool,
    incident: str,
    steps: tuple[str, ...],
    dry_run: bool,
    yes: bool,
) -> None:
    """Run the recipe of SCENARIO for a stored session, from its first remaining step.

    Steps that change the conversation are written to its log and take effect with the next message. All other steps
    belong to the program that runs the session, or are commands given with --step. If the session has no open incident
    of SCENARIO, it says what the steps change and asks first. Exits with status 1 if the session is not recovered.
    """
    import asyncio

    from holdfast.engine.recovery.context_steps import context_recovery_steps
    from holdfast.engine.recovery.runner import Recovered, RecoveryRunner
    from holdfast.engine.recovery.transcript_repair import RepairSteps
    from holdfast.runtime.recovery import find_scenario

    failure = find_scenario(scenario)
    commands = _commands(steps)
    with open_configured_store(db, writable=not dry_run) as log:
        stored = _open_conversation(log, resolve_session_id(log, session_id))
        row = load_configured_models().get(stored.state.model)
        # An unknown model may bind thinking blocks to their prefix, so treat it as if it did.
        view = RepairSteps(stored, binds_thinking=row is None or row.cache.binds_thinking)
        # Later entries win: a command given with --step replaces the built-in step.
        recoverer = RecoveryRunner(
            stored,
            {**view.steps, **context_recovery_steps(stored), **_large_prompt_steps(log, stored), **commands},
            clock=system_clock,
            recipes={failure: _without_request_steps(RECIPES[failure])},
            rules=select_rules(stored.state.profile),
        )
        key = incident or _newest(stored.state.incidents, failure)
        plan = recoverer.dry_run(failure, incident=key, trigger="manual")
        if dry_run:
            _show_plan(plan, as_json=as_json)
            return
        if plan.missing:
            raise UserError(_describe_missing(plan))
        if not yes and not _is_open(stored.state.incidents.get(key)):
            _confirm_changes(plan, stored.state.session_id)
        outcome = asyncio.run(recoverer.attempt(failure, incident=key, trigger="manual"))
        final = stored.state.incidents[key]
    if as_json:
        print_json(final)
    else:
        _show_outcome(final)
    if not isinstance(outcome, Recovered):
        ctx.exit(1)


def _is_open(incident: "Incident | None") -> bool:
    return incident is not None and incident.state != "succeeded"


def _describe_missing(plan: "PlannedRecovery") -> str:
    """Which steps can be done here, and which belong to the program that runs the session."""
    own = ", ".join(step.name.value for step in plan.steps if step.name not in plan.missing) or "nothing"
    missing = ", ".join(name.value for name in plan.missing)
    options = " ".join(f"--step {name.value}=COMMAND" for name in plan.missing)
    return (
        f"{plan.scenario.value}: holdfast can do {own} here itself; {missing} belongs to the program that runs the "
        f"session: run it there with session.recovery.run({plan.scenario.value!r}), or give {options}"
    )


def _confirm_changes(plan: "PlannedRecovery", session_id: str) -> None:
    """Ask before a recipe runs on a session that has no such problem."""
    click.echo(f"session {session_id} has no open incident of {plan.scenario.value}; this would:", err=True)
    for step in plan.steps:
        click.echo(f"  {step.name.value}: {_describe_change(step.name)}", err=True)
    try:
        is_confirmed = click.confirm("Run it anyway?", err=True)
    except click.Abort:
        # No terminal, or the end of its input.
        is_confirmed = False
    if not is_confirmed:
        raise UserError("nothing was changed; pass --yes to run it without being asked")


def _describe_change(name: StepName) -> str:

    nothing, compacted = "change nothing, and report", "replace old messages of the view by a summary"
    changes = {
        StepName.Checkpoint: compacted,
        StepName.DeterministicTidy: compacted,
        StepName.ConfirmCost: nothing,
        StepName.DiagnoseHeadAndTail: nothing,
        StepName.SuggestCuts: nothing,
        StepName.RevalidateView: nothing,
        StepName.DisableAutoCompaction: "turn automatic compaction off until the next user message",
        StepName.RepairView: "give every tool call in the view one result, and drop results without a call",
        StepName.DropAllThinking: "send the thinking of earlier replies no more",
        StepName.DropAllMarkers: "set no cache breakpoints until the model is switched, which turns caching off",
    }
    return changes.get(name, "run your command")


def _incidents(log: "EventLog", session_id: str | None, limit: int) -> "Iterator[tuple[str, Incident]]":
    from holdfast.recovery.attempts import fold_recovery_events

    ids = [session_id] if session_id else [row.id for row in log.sessions(limit=limit)]
    for id in ids:
        for incident in reversed(tuple(fold_recovery_events(list(log.read(id))).values())):
            yield id, incident


def _open_conversation(log: "EventLog", session_id: str) -> "StoredConversation":
    from holdfast.engine.recovery.transcript_repair import StoredConversation
    from holdfast.engine.reducer import fold_events

    state = fold_events(log.read(session_id), session_id)
    return StoredConversation(log, state, clock=system_clock, new_id=new_ulid)


def _large_prompt_steps(log: "EventLog", stored: "StoredConversation") -> "StepFunctions":
    """Steps for a prompt that is too large, or large with an expired cache, before it is sent again."""
    from holdfast.cli.sessions.compact import load_compaction_snapshot
    from holdfast.compaction.models import CompactionConfig
    from holdfast.engine.compaction.compact import NoCompaction, compaction_outlook, propose_compaction
    from holdfast.engine.recovery.runner import StepContext

    async def tidy(context: StepContext) -> str:
        snapshot = load_compaction_snapshot(log, stored.state.session_id)
        is_cold = context.step.name is StepName.DeterministicTidy
        proposal = propose_compaction(snapshot, CompactionConfig(), "cache_expired" if is_cold else "requested")
        if isinstance(proposal, NoCompaction):
            if is_cold:
                return proposal.reason
            raise UserError(proposal.reason)
        await stored.record("user", *proposal.payloads)
        return f"{proposal.event.tokens_before} tokens became {proposal.event.tokens_after}"

    async def confirm(context: StepContext) -> str:
        del context
        outlook = compaction_outlook(load_compaction_snapshot(log, stored.state.session_id))
        # rates.write is the price of a cache write relative to plain input, unit_usd the price of one input token.
        usd = outlook.prompt_tokens * outlook.rates.write * outlook.unit_usd
        return f"the next message writes {outlook.prompt_tokens} tokens, for about ${usd:.2f}"

    return {StepName.DeterministicTidy: tidy, StepName.Checkpoint: tidy, StepName.ConfirmCost: confirm}


def _without_request_steps(recipe: RecoveryRecipe) -> RecoveryRecipe:
    """The recipe without the steps that act on a rejected request: here the next message makes that request.

    A live session tries the ways to shorten its view one after another; here only the checkpoint remains.
    """

    left_out = (
        *(StepName.RetryRequest, StepName.DropDeepestMarker, StepName.DropOldThinking),
        *(StepName.LearnWindow, StepName.ShortenNewestResults, StepName.BatchClear, StepName.SmallerTail),
    )
    steps = tuple(step for step in recipe.steps if step.name not in left_out)
    return msgspec.structs.replace(recipe, steps=steps)


def _newest(incidents: "Incidents", scenario: FailureScenario) -> str:
    """The key of the scenario's newest open incident; the scenario's own name if there is none."""
    keys = (
        key for key, incident in incidents.items() if incident.scenario == scenario and incident.state != "succeeded"
    )
    return next(reversed(tuple(keys)), scenario.value)


def _commands(options: "Sequence[str]") -> "StepFunctions":
    from holdfast.runtime.recovery import find_step

    steps = {}
    for option in options:
        name, equals, line = option.partition("=")
        if not equals or not line.strip():
            raise click.UsageError(f"--step takes NAME=COMMAND, not {option!r}")
        steps[find_step(name.strip())] = _command(line)
    return steps


def _command(line: str) -> "StepFunction":
    from holdfast.engine.recovery.runner import StepContext

    async def perform(context: StepContext) -> str:
        import asyncio
        import signal

        del context
        # Its own process group, so that a cancelled step also stops what the command has started.
        process = await asyncio.create_subprocess_shell(
            line,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        tail = output.decode(errors="replace").strip()[-COMMAND_OUTPUT_CHARS_MAX:]
        if process.returncode:
            raise RuntimeError(f"the command exited with {process.returncode}{': ' if tail else ''}{tail}")
        return tail

    return perform


def _show_recipes(*, as_json: bool) -> None:

    if as_json:
        print_json(list(RECIPES.values()))
        return
    from holdfast.cli.tables import print_table

    rows = (
        (
            recipe.scenario.value,
            ", ".join(step.name.value for step in recipe.steps),
            str(recipe.attempts_max),
            recipe.escalation.value,
        )
        for recipe in RECIPES.values()
    )
    print_table(("scenario", "steps", "attempts", "escalation"), rows)


def _show_plan(plan: "PlannedRecovery", *, as_json: bool) -> None:
    if as_json:
        print_json(plan)
        return
    click.echo(f"{plan.incident}: would run")
    for step in plan.steps:
        is_missing = step.name in plan.missing
        change = "belongs to the program that runs the session, or give --step" if is_missing else None
        click.echo(f"  {step.name.value}: {change or _describe_change(step.name)}")


def _show_outcome(incident: "Incident") -> None:
    for result in incident.results:
        detail = f": {strip_control_characters(result.detail)}" if result.detail else ""
        click.echo(f"  {result.step}: {result.status}{detail}")
    key = strip_control_characters(incident.key)
    if incident.state == "succeeded":
        click.echo(f"{key}: recovered")
    else:
        click.echo(f"{key}: not recovered; the next run starts with {incident.remaining_steps[0]}")


def _incident_row(session_id: str, incident: "Incident") -> tuple[str, ...]:
    limit = "" if incident.attempts_max is None else f" of {incident.attempts_max}"
    next_step = next(iter(incident.remaining_steps or _recipe_steps(incident.scenario)), "")
    status = {"run": "", "surface": "waits for a user", "end": "ended the session"}.get(incident.follow_up or "", "")
    reason = incident.escalation or incident.last_failure or incident.detail or status
    next_step = "" if incident.state == "succeeded" else next_step
    return session_id, incident.key, incident.state, f"{incident.attempts}{limit}", next_step, reason


def _recipe_steps(scenario: str) -> tuple[str, ...]:
    """The recipe's steps, for an incident never attempted; none for a scenario that this version does not know."""

    return next(
        (tuple(step.name.value for step in recipe.steps) for recipe in RECIPES.values() if recipe.scenario == scenario),
        (),
    )
