"""`holdfast instructions` index, recall, probe, replay, metrics, lint: what is loaded, and how well."""

import click

from holdfast.cli.counts import counted
from holdfast.cli.instructions_opened import agent_option, db_option, json_option, opened, print_json


@click.command("index")
@agent_option
@db_option
@json_option
def index(agent: str, db: str | None, as_json: bool) -> None:
    """The line that each unit has in the prompt, and what it costs there and in the manifest."""
    from holdfast.cli.tables import show_table
    from holdfast.instructions.publication import MANIFEST_TOKENS_MAX

    with opened(db) as library:
        text, costs = library.index(agent), library.costs(agent)
    if as_json:
        print_json({"index": text, "costs": costs})
        return
    click.echo(text)
    show_table(
        ("unit", "in the prompt", "in the manifest"),
        [(one.name, str(one.index_tokens), str(one.entry_tokens)) for one in costs],
    )
    prompt, stored = sum(one.index_tokens for one in costs), sum(one.entry_tokens for one in costs)
    click.echo(f"\n{prompt} tokens in every prompt; {stored} in the manifest, which holds {MANIFEST_TOKENS_MAX}")


@click.command("recall")
@click.argument("intent")
@agent_option
@db_option
@click.option("--max-chunks", type=click.IntRange(1, 20), help="Most units to load.")
@click.option("--budget", "token_budget", type=click.IntRange(1, 100_000), help="Most tokens to load.")
@click.option("--hint", "hints", multiple=True, metavar="UNIT", help="A unit to load first.")
@click.option("--explain", is_flag=True, help="Say why each was loaded, and why others were not.")
@click.option("--shadow", is_flag=True, help="Put it on record as a turn that had all instructions.")
@click.option("--run", "run_id", metavar="ID", help="The run that the turn belongs to; else one of its own.")
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
    """Load what fits INTENT, as an agent would; it goes on record."""
    with opened(db) as library:
        answered = library.recall(
            intent,
            agent=agent,
            max_chunks=max_chunks,
            token_budget=token_budget,
            manifest_hint=hints,
            heartbeat_id=run_id,
            shadow=shadow,
        )
    if as_json:
        print_json(answered)
        return
    recalled = answered.recalled
    for chunk in recalled.chunks:
        why = f", {chunk.kind}: {', '.join(chunk.why.matched_terms) or 'by meaning'}" if explain and chunk.why else ""
        click.echo(f"== {chunk.name} ({chunk.content.tokens} tokens, score {chunk.score:.2f}{why})")
        click.echo(f"{chunk.content.text}\n")
    if explain:
        for dropped in recalled.dropped:
            click.echo(f"not loaded: {dropped.name} ({dropped.reason}, score {dropped.score:.2f})")
    for missed in recalled.missed_hints:
        click.echo(f"there is no unit {missed!r}", err=True)
    click.echo(f"{recalled.total_tokens} tokens; audit token {answered.audit_token}")


@click.command("probe")
@agent_option
@db_option
@click.option("-k", type=click.IntRange(1, 10), default=3, show_default=True, help="Among the first so many.")
@json_option
def probe(agent: str, db: str | None, k: int, as_json: bool) -> None:
    """Ask what the triggers say, as they stand and in other words; end with 1 where a unit is not found."""
    with opened(db) as library:
        done = library.probe(agent, k=k)
    if as_json:
        print_json({"passed": done.passed, "probed": done})
    else:
        for one in (*done.units, *done.curated):
            click.echo(f"{'ok  ' if one.passed else 'FAIL'} {one.name}: {one.share:.0%} of {one.probes} probes")
            for miss in one.missed:
                click.echo(f"       {miss.intent!r} finds {', '.join(miss.found) or 'nothing'}")
    if not done.passed:
        raise click.exceptions.Exit(1)


@click.command("replay")
@click.argument("audit_token")
@db_option
@json_option
def replay(audit_token: str, db: str | None, as_json: bool) -> None:
    """Ask again what a record has asked, of what there was then; end with 1 where the answer is another."""
    with opened(db) as library:
        done = library.replay(audit_token)
    if as_json:
        print_json(done)
    else:
        click.echo(f"then: {', '.join(done.loaded_then) or 'nothing'}")
        click.echo(f"now:  {', '.join(done.loaded_now) or 'nothing'}")
        if not done.same_snapshot:
            click.echo("texts, model or lifts are not those of then")
    if not done.same_order:
        raise click.exceptions.Exit(1)


@click.command("metrics")
@agent_option
@db_option
@click.option("--days", type=click.IntRange(1, 3650), default=7, show_default=True)
@click.option("-k", type=click.IntRange(1, 20), default=3, show_default=True, help="Among the first so many.")
@json_option
def metrics(*, agent: str, db: str | None, days: int, k: int, as_json: bool) -> None:
    """Recall@k, hit@k and miss rate, by what agents said they used, and by what their traces show."""
    with opened(db) as library:
        done = library.metrics(agent, days=days, k=k)
    if as_json:
        print_json(done)
        return
    rates = {f"recall@{k}": "recall_at_k", f"hit@{k}": "hit_at_k", "miss rate": "miss_rate"}
    click.echo(f"{counted(done.recalls, 'recall')} in {counted(days, 'day')}, {done.closed} with their usage")
    for name, field in rates.items():
        click.echo(f"{name}: {_rate(getattr(done, field))}")
    if done.detected.traced:
        click.echo(f"by the traces of {done.detected.traced}:")
        for name, field in rates.items():
            click.echo(f"  {name}: {_rate(getattr(done.detected, field))}")
    for warning in done.warnings:
        click.echo(f"warning: {warning}")
    if done.alert:
        click.echo("alert: too much is missed")


def _rate(value: float | None) -> str:
    return "not known" if value is None else format(value, ".2f")


@click.command("lint")
@agent_option
@db_option
@json_option
def lint(agent: str, db: str | None, as_json: bool) -> None:
    """Triggers that say what a unit contains, duplicates, entries that cost much; end with 1 where there are any."""
    from holdfast.cli.instructions_shown import show_flaws

    with opened(db) as library:
        flaws = library.lint(agent)
    if as_json:
        print_json(flaws)
    else:
        show_flaws(flaws)
        if not flaws:
            click.echo("no flaws")
    if flaws:
        raise click.exceptions.Exit(1)
