"""`holdfast instructions` index, recall, probe, replay, metrics and lint: which units load, and how reliably."""

import click

from holdfast.cli.format import format_count, print_json
from holdfast.cli.instructions.open import agent_option, open_library
from holdfast.cli.options import db_option, json_option


@click.command("index")
@agent_option
@db_option
@json_option
def index(agent: str, db: str | None, as_json: bool) -> None:
    """Show the line of each unit in the prompt, and its tokens there and in the manifest."""
    from holdfast.cli.tables import print_table
    from holdfast.instructions.manifest.validate import MANIFEST_TOKENS_MAX

    with open_library(db) as library:
        text, costs = library.index(agent), library.costs(agent)
    if as_json:
        print_json({"index": text, "costs": costs})
        return
    click.echo(text)
    rows = ((unit.name, str(unit.index_tokens), str(unit.entry_tokens)) for unit in costs)
    print_table(("unit", "in the prompt", "in the manifest"), rows)
    prompt_tokens, manifest_tokens = sum(unit.index_tokens for unit in costs), sum(unit.entry_tokens for unit in costs)
    click.echo(
        f"\n{prompt_tokens} tokens in every prompt; {manifest_tokens} of at most {MANIFEST_TOKENS_MAX} in the manifest"
    )


@click.command("recall")
@click.argument("intent")
@agent_option
@db_option
@click.option("--max-chunks", type=click.IntRange(1, 20), help="Maximum number of units to load.")
@click.option("--budget", "token_budget", type=click.IntRange(1, 100_000), help="Maximum tokens to load.")
@click.option("--hint", "hints", multiple=True, metavar="UNIT", help="A unit to load first.")
@click.option("--explain", is_flag=True, help="Show why each unit was loaded or not.")
@click.option("--shadow", is_flag=True, help="Record it as a turn that had all instructions in its prompt.")
@click.option("--run", "run_id", metavar="ID", help="Run that the turn belongs to. Default: a new one.")
@json_option
def recall(
    *,
    intent: str,
    agent: str,
    db: str | None,
    max_chunks: int | None,
    token_budget: int | None,
    hints: tuple[str, ...],
    explain: bool,
    shadow: bool,
    run_id: str | None,
    as_json: bool,
) -> None:
    """Load the units that match INTENT, as an agent would; the recall is recorded."""
    with open_library(db, writable=True) as library:
        result = library.recall(
            intent,
            agent=agent,
            max_chunks=max_chunks,
            token_budget=token_budget,
            manifest_hint=hints,
            heartbeat_id=run_id,
            shadow=shadow,
        )
    if as_json:
        print_json(result)
        return
    recalled = result.result
    for chunk in recalled.chunks:
        terms = ", ".join(chunk.why.matched_terms) if chunk.why else ""
        reason = f", {chunk.kind}: {terms or 'by meaning'}" if explain and chunk.why else ""
        click.echo(f"== {chunk.name} ({chunk.content.tokens} tokens, score {chunk.score:.2f}{reason})")
        click.echo(f"{chunk.content.text}\n")
    if explain:
        for dropped in recalled.dropped:
            click.echo(f"not loaded: {dropped.name} ({dropped.reason}, score {dropped.score:.2f})")
    for hint in recalled.missed_hints:
        click.echo(f"unknown unit {hint!r}", err=True)
    click.echo(f"{recalled.total_tokens} tokens; audit token {result.audit_token}")


@click.command("probe")
@agent_option
@db_option
@click.option(
    "-k", type=click.IntRange(1, 10), default=3, show_default=True, help="How many of the first results count."
)
@json_option
def probe(agent: str, db: str | None, k: int, as_json: bool) -> None:
    """Query the triggers, verbatim and paraphrased; exit with status 1 if a unit is not found."""
    with open_library(db) as library:
        result = library.probe(agent, k=k)
    if as_json:
        print_json({"passed": result.passed, "probed": result})
    else:
        for unit in (*result.units, *result.curated):
            click.echo(f"{'ok  ' if unit.passed else 'FAIL'} {unit.name}: {unit.share:.0%} of {unit.probes} probes")
            for miss in unit.missed:
                click.echo(f"       {miss.intent!r} finds {', '.join(miss.first_units) or 'nothing'}")
    if not result.passed:
        raise click.exceptions.Exit(1)


@click.command("replay")
@click.argument("audit_token")
@db_option
@json_option
def replay(audit_token: str, db: str | None, as_json: bool) -> None:
    """Repeat a recorded recall on the texts of that time; exit with status 1 if it loads other units."""
    with open_library(db) as library:
        result = library.replay(audit_token)
    if as_json:
        print_json(result)
    else:
        click.echo(f"then: {', '.join(result.loaded_then) or 'nothing'}")
        click.echo(f"now:  {', '.join(result.loaded_now) or 'nothing'}")
        if not result.same_snapshot:
            click.echo("texts, encoder or score boosts have changed since")
    if not result.same_order:
        raise click.exceptions.Exit(1)


@click.command("metrics")
@agent_option
@db_option
@click.option("--days", type=click.IntRange(1, 3650), default=7, show_default=True)
@click.option(
    "-k", type=click.IntRange(1, 20), default=3, show_default=True, help="How many of the first results count."
)
@json_option
def metrics(*, agent: str, db: str | None, days: int, k: int, as_json: bool) -> None:
    """Show recall@k, hit@k and miss rate, from the usage that agents reported and from their traces."""
    with open_library(db) as library:
        result = library.metrics(agent, days=days, k=k)
    if as_json:
        print_json(result)
        return
    rates = {f"recall@{k}": "recall_at_k", f"hit@{k}": "hit_at_k", "miss rate": "miss_rate"}
    click.echo(
        f"{format_count(result.recalls, 'recall')} in {format_count(days, 'day')}, {result.closed} with reported usage"
    )
    for name, field in rates.items():
        click.echo(f"{name}: {_rate(getattr(result, field))}")
    if result.detected.traced:
        click.echo(f"detected in the traces of {result.detected.traced}:")
        for name, field in rates.items():
            click.echo(f"  {name}: {_rate(getattr(result.detected, field))}")
    for warning in result.warnings:
        click.echo(f"warning: {warning}")
    if result.alert:
        click.echo("alert: the miss rate is too high")


def _rate(value: float | None) -> str:
    return "unknown" if value is None else format(value, ".2f")


@click.command("lint")
@agent_option
@db_option
@json_option
def lint(agent: str, db: str | None, as_json: bool) -> None:
    """Find triggers that describe content, duplicates, and expensive entries; exit with status 1 if there are any."""
    from holdfast.cli.instructions.format import show_flaws

    with open_library(db) as library:
        flaws = library.lint(agent)
    if as_json:
        print_json(flaws)
    else:
        show_flaws(flaws)
        if not flaws:
            click.echo("no flaws")
    if any(flaw.is_certain for flaw in flaws):
        raise click.exceptions.Exit(1)
