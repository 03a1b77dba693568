"""`holdfast recovery`: what went wrong in stored sessions and is known, and what can be done about it by hand."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.groups import Group
from holdfast.cli.stores import configured_models, found_session, open_configured

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.engine.recovering import PlannedRecovery, StepFunction, Steps
    from holdfast.engine.repairing import StoredConversation
    from holdfast.events.log import Log
    from holdfast.recovery.ledger import Incident, Ledger
    from holdfast.recovery.recipes import RecoveryRecipe
    from holdfast.recovery.scenarios import FailureScenario

COMMAND_OUTPUT_CHARS_MAX = 200


@click.group("recovery", cls=Group)
def command() -> None:
    """List known failures of stored sessions, and follow their recipes."""


_db = click.option("--db", help="Store to use instead of the configured one.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@command.command("list")
@click.argument("session_id", required=False)
@_db
@_json
@click.option("--recipes", is_flag=True, help="Show what is done about every failure that is known.")
@click.option("--all", "everything", is_flag=True, help="Show also what was recovered.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many sessions to read.")
def list_incidents(
    session_id: str | None, *, db: str | None, as_json: bool, recipes: bool, everything: bool, limit: int
) -> None:
    """What went wrong and waits for someone, newest sessions first; of one session, all of it."""
    import msgspec

    if recipes:
        _show_recipes(as_json=as_json)
        return
    with open_configured(db) as log:
        found = list(_incidents(log, found_session(log, session_id) if session_id else None, limit))
    shown = [one for one in found if everything or session_id or one[1].state != "succeeded"]
    if as_json:
        told = [{"session_id": id, **msgspec.to_builtins(incident)} for id, incident in shown]
        click.echo(msgspec.json.format(msgspec.json.encode(told)).decode())
    elif not shown:
        recovered = f" ({len(found)} recovered; --all shows them)" if found else ""
        click.echo(f"Nothing waits to be recovered{recovered}.")
    else:
        from holdfast.cli.tables import show_table

        headings = ("session", "incident", "state", "attempts", "next step", "why")
        show_table(headings, (_incident_row(id, incident) for id, incident in shown))


@command.command("run")
@click.argument("session_id")
@click.argument("scenario")
@_db
@_json
@click.option("--incident", default="", help="Which incident, where the scenario has several.")
@click.option("--step", "steps", multiple=True, metavar="NAME=COMMAND", help="The command that does a step.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@click.pass_context
def run(
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
) -> None:
    """Follow the recipe of SCENARIO for a stored session, from the first step that remains.

    Steps that change what a conversation holds are done on its log: the next message is sent with them. All others are
    done by the commands that are given. Ends with 1 where it is not recovered.
    """
    import asyncio

    import msgspec

    from holdfast.clock import system_clock
    from holdfast.engine.context_steps import ContextSteps
    from holdfast.engine.recovering import Recovered, Recoverer
    from holdfast.engine.repairing import ConversationLedger, ViewSteps
    from holdfast.recovery.recipes import RECIPES, rules_of
    from holdfast.runtime.recovering import scenario_named

    known = scenario_named(scenario)
    commands = _commands(steps)
    with open_configured(db) as log:
        stored = _opened(log, found_session(log, session_id))
        keeps = ConversationLedger(stored)
        row = configured_models().get(stored.state.model)
        view = ViewSteps(stored, binds_thinking=row is None or row.cache.binds_thinking)
        recoverer = Recoverer(
            keeps,
            {**view.steps, **ContextSteps(stored).steps, **_cold_steps(log, stored), **commands},
            clock=system_clock,
            recipes={known: _by_hand(RECIPES[known])},
            rules=rules_of(stored.state.profile),
        )
        key = incident or _newest(keeps.ledger, known)
        plan = recoverer.dry_run(known, incident=key, trigger="manual")
        if dry_run:
            _show_plan(plan, as_json=as_json)
            return
        if plan.missing:
            names = " ".join(f"--step {name.value}=COMMAND" for name in plan.missing)
            raise click.UsageError(f"nobody does these steps yet: give {names}")
        outcome = asyncio.run(recoverer.attempt(known, incident=key, trigger="manual"))
        results = keeps.ledger.incidents[key]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(results)).decode())
    else:
        _show_outcome(results)
    if not isinstance(outcome, Recovered):
        ctx.exit(1)


def _incidents(log: "Log", session_id: str | None, limit: int) -> "Iterator[tuple[str, Incident]]":
    from holdfast.recovery.ledger import ledger_of

    ids = [session_id] if session_id else [row.id for row in log.sessions(limit=limit)]
    for id in ids:
        for incident in reversed(tuple(ledger_of(list(log.read(id))).incidents.values())):
            yield id, incident


def _opened(log: "Log", session_id: str) -> "StoredConversation":
    from holdfast.clock import new_ulid, system_clock
    from holdfast.engine.repairing import StoredConversation
    from holdfast.engine.state import fold

    state = fold(log.read(session_id), session_id)
    return StoredConversation(log, state, clock=system_clock, new_id=new_ulid)


def _cold_steps(log: "Log", stored: "StoredConversation") -> "Steps":
    """What is done about a large prompt that is in no cache any more, before it is sent again."""
    from holdfast.cli.compact import standing_in
    from holdfast.compaction.values import CompactionConfig
    from holdfast.engine.compacting import Unhelpful, outlook_of, propose
    from holdfast.engine.recovering import StepContext
    from holdfast.recovery.scenarios import StepName

    async def tidy(context: StepContext) -> str:
        del context
        found = propose(standing_in(log, stored.state.session_id), CompactionConfig(), "cold")
        if isinstance(found, Unhelpful):
            return found.reason
        await stored.record("user", *found.payloads)
        return f"{found.event.tokens_before} tokens became {found.event.tokens_after}"

    async def confirm(context: StepContext) -> str:
        del context
        outlook = outlook_of(standing_in(log, stored.state.session_id))
        usd = outlook.prompt_tokens * outlook.rates.write * outlook.unit_usd
        return f"the next message writes {outlook.prompt_tokens} tokens, for about ${usd:.2f}"

    return {StepName.DeterministicTidy: tidy, StepName.ConfirmCost: confirm}


def _by_hand(recipe: "RecoveryRecipe") -> "RecoveryRecipe":
    """The recipe without what belongs to a request that is refused just now: the next message is that request."""
    import msgspec

    from holdfast.recovery.scenarios import StepName

    left_out = (
        *(StepName.RetryRequest, StepName.DropDeepestMarker, StepName.DropOldThinking),
        *(StepName.LearnWindow, StepName.ShortenNewestResults),
    )
    steps = tuple(step for step in recipe.steps if step.name not in left_out)
    return msgspec.structs.replace(recipe, steps=steps)


def _newest(ledger: "Ledger", scenario: "FailureScenario") -> str:
    """The newest incident of a scenario that is not over; its name alone where there is none."""
    keys = (key for key, one in ledger.incidents.items() if one.scenario == scenario and one.state != "succeeded")
    return next(reversed(tuple(keys)), scenario.value)


def _commands(given: "Sequence[str]") -> "Steps":
    from holdfast.runtime.recovering import step_named

    made = {}
    for one in given:
        name, equals, line = one.partition("=")
        if not equals or not line.strip():
            raise click.UsageError(f"--step takes NAME=COMMAND, not {one!r}")
        made[step_named(name.strip())] = _command(line)
    return made


def _command(line: str) -> "StepFunction":
    from holdfast.engine.recovering import StepContext

    async def perform(context: StepContext) -> str:
        import asyncio
        import contextlib
        import os
        import signal

        del context
        process = await asyncio.create_subprocess_shell(
            line, stdin=-3, stdout=-1, stderr=asyncio.subprocess.STDOUT, start_new_session=True
        )
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        said = output.decode(errors="replace").strip()[-COMMAND_OUTPUT_CHARS_MAX:]
        if process.returncode:
            raise RuntimeError(f"the command ended with {process.returncode}{': ' if said else ''}{said}")
        return said

    return perform


def _show_recipes(*, as_json: bool) -> None:
    import msgspec

    from holdfast.recovery.recipes import RECIPES

    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(list(RECIPES.values()))).decode())
        return
    from holdfast.cli.tables import show_table

    rows = (
        (
            one.scenario.value,
            ", ".join(step.name.value for step in one.steps),
            str(one.attempts_max),
            one.escalation.value,
        )
        for one in RECIPES.values()
    )
    show_table(("scenario", "steps", "attempts", "then"), rows)


def _show_plan(plan: "PlannedRecovery", *, as_json: bool) -> None:
    import msgspec

    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(plan)).decode())
        return
    click.echo(f"{plan.incident}: would do")
    for step in plan.steps:
        lacks = "  (nobody does it yet: give --step)" if step.name in plan.missing else ""
        click.echo(f"  {step.name.value}{lacks}")


def _show_outcome(incident: "Incident") -> None:
    from holdfast.cli.requests import printable

    for result in incident.results:
        click.echo(f"  {result.step}: {result.status}{': ' if result.detail else ''}{printable(result.detail)}")
    if incident.state == "succeeded":
        click.echo(f"{printable(incident.key)}: recovered")
        return
    click.echo(f"{printable(incident.key)}: not recovered; the next run starts with {incident.remaining[0]}")


def _incident_row(session_id: str, incident: "Incident") -> tuple[str, ...]:
    most = "" if incident.attempts_max is None else f" of {incident.attempts_max}"
    ahead = next(iter(incident.remaining or _steps_of(incident.scenario)), "")
    waits = {"run": "", "surface": "waits for a person", "end": "ended the work"}.get(incident.follow_up or "", "")
    why = incident.escalation or incident.last_failure or incident.detail or waits
    ahead = "" if incident.state == "succeeded" else ahead
    return session_id, incident.key, incident.state, f"{incident.attempts}{most}", ahead, why


def _steps_of(scenario: str) -> tuple[str, ...]:
    """By the recipe, for what was never tried; none for a scenario that only another version knows."""
    from holdfast.recovery.recipes import RECIPES

    return next(
        (tuple(step.name.value for step in one.steps) for one in RECIPES.values() if one.scenario == scenario), ()
    )
