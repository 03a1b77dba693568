"""`holdfast skills`: which skills there are, what is wrong with them, and what a prompt says of them."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.counts import counted
from holdfast.cli.groups import Group

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.sources.skills.library import SkillLibrary
    from holdfast.sources.skills.skill import Skill, SkillMode, SkillReport
    from holdfast.sources.skills.store import SkillRanking

ALL_MODES = "all"
_MODES = ("seed", "strict", "lenient")


@click.group("skills", cls=Group)
def command() -> None:
    """List, check and show skills, and what a prompt says of them.

    DIR is a folder of skills, or one skill; without it, your own skills and those of the workspace.

    Ends with 1 if a skill that was looked at would not load.
    """
    import logging

    # The command itself says what is left out.
    logger = logging.getLogger("holdfast.sources.skills")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_also = click.option(
    "--also",
    multiple=True,
    type=click.Choice((".agents/skills", ".claude/skills", ".metis/skills")),
    help="A folder of another program to read too, at home and in the workspace.",
)


def _mode(default: str, *more: str) -> "Callable[[Callable[..., None]], Callable[..., None]]":
    choice = click.Choice((*_MODES, *more))
    return click.option("--mode", type=choice, default=default, show_default=True, help="By which rules.")


@command.command("list")
@click.argument("folder", metavar="[DIR]", required=False)
@_mode("seed")
@_also
@_json
def list_skills(folder: str | None, mode: "SkillMode", also: tuple[str, ...], as_json: bool) -> None:
    """The skills that load, by name."""
    library = _library(folder, mode, also)
    skills = library.store.list_skills()
    if as_json:
        _print_json([_summary(skill) for skill in skills])
    elif skills:
        from holdfast.cli.tables import show_table

        show_table(
            ("name", "source", "tokens", "description"),
            (
                (one.name, one.source, str(one.estimated_body_tokens), " ".join(one.description.split()))
                for one in skills
            ),
        )
    elif not library.reports:
        click.echo("There are no skills; a skill is a folder with a SKILL.md in it, in ~/.holdfast/skills.")
    _end(library.reports)


@command.command("validate")
@click.argument("folder", metavar="[DIR]", required=False)
@_mode("strict", ALL_MODES)
@_also
@_json
def validate(folder: str | None, mode: str, also: tuple[str, ...], as_json: bool) -> None:
    """What is wrong, file by file, with the line, the rule and how to mend it; by all rules, only how many load."""
    if mode == ALL_MODES:
        _count(folder, also, as_json)
        return
    reports = _library(folder, _narrowed(mode), also).reports
    if as_json:
        _print_json(_verdicts(reports))
    else:
        from holdfast.cli.requests import printable

        for finding in (finding for one in reports for finding in one.findings):
            click.echo(printable(f"{finding.severity}: {finding}"))
        click.echo(f"{_counted(reports)} by the rules of {mode}")
    if not all(one.valid for one in reports):
        raise click.exceptions.Exit(1)


@command.command("show")
@click.argument("target")
@_mode("seed")
@_also
@_json
def show(target: str, mode: "SkillMode", also: tuple[str, ...], as_json: bool) -> None:
    """One skill whole. TARGET is its folder, or its name."""
    from holdfast.cli.requests import printable

    skill = _one_skill(target, mode, also)
    if as_json:
        _print_json({**_summary(skill), **_details(skill), "body": skill.body})
        return
    for key, value in (_summary(skill) | _details(skill)).items():
        if value not in (None, {}, []):
            click.echo(f"{key}: {printable(str(value))}")
    click.echo()
    for line in skill.body.splitlines():
        click.echo(printable(line))


@command.command("index")
@click.argument("folder", metavar="[DIR]", required=False)
@_mode("seed")
@click.option("--tokens-max", type=click.IntRange(min=1), help="Budget of the index, in estimated tokens.")
@_also
@_json
def index(
    folder: str | None, mode: "SkillMode", *, tokens_max: int | None, also: tuple[str, ...], as_json: bool
) -> None:
    """What a prompt says of the skills."""
    import msgspec

    from holdfast.sources.skills.index import INDEX_TOKENS_MAX, skill_index

    library = _library(folder, mode, also)
    made = skill_index(library.store.list_skills(), tokens_max=tokens_max or INDEX_TOKENS_MAX)
    if as_json:
        _print_json(msgspec.to_builtins(made))
    elif made.text:
        click.echo(made.text)
    _end(library.reports)


@command.command("search")
@click.argument("query")
@click.argument("folder", metavar="[DIR]", required=False)
@click.option("--ranking", type=click.Choice(("lexical", "semantic")), help="By words alone, or by their meaning too.")
@click.option("--limit", type=click.IntRange(1, 50), default=10, show_default=True, help="How many at most.")
@_mode("seed")
@_also
@_json
def search(
    query: str,
    folder: str | None,
    *,
    ranking: "SkillRanking | None",
    limit: int,
    mode: "SkillMode",
    also: tuple[str, ...],
    as_json: bool,
) -> None:
    """The skills that fit QUERY, best first, as the model finds them."""
    import os
    from pathlib import Path

    from holdfast.runtime.config import load_config

    config = load_config(os.environ, workspace=Path.cwd(), flags={"skill_ranking": ranking})
    library = _library(folder, mode, also)
    store = library.store.with_ranking(config.skill_ranking)
    found = store.search(query, limit=limit)
    if as_json:
        _print_json([_summary(skill) for skill in found])
    elif found:
        from holdfast.cli.tables import show_table

        rows = ((one.name, one.source, " ".join(one.description.split())) for one in found)
        show_table(("name", "source", "description"), rows)
    else:
        from holdfast.cli.requests import printable

        click.echo(printable(f"No skills matched {query!r}."))
    _end(library.reports)


def _library(folder: str | None, mode: "SkillMode", also: "Sequence[str]") -> "SkillLibrary":
    import os
    from pathlib import Path

    from holdfast.errors import UserError
    from holdfast.runtime.config import load_config
    from holdfast.runtime.skill_folders import usual_roots
    from holdfast.sources.skills.library import library_at, read_library

    if folder is None:
        here = Path.cwd()
        config = load_config(os.environ, workspace=here, flags={"also_skills": also or None})
        return read_library(usual_roots(config, os.environ, workspace=here), mode)
    if also:
        raise UserError("--also is for your own skills and those of the workspace; leave it out, or leave out DIR")
    if os.path.basename(folder).lower() == "skill.md":
        folder = os.path.dirname(os.path.abspath(folder))
    return library_at(folder, mode)


def _one_skill(target: str, mode: "SkillMode", also: "Sequence[str]") -> "Skill":
    import difflib
    from pathlib import Path

    from holdfast.errors import SkillValidationError, UserError

    if Path(target).exists():
        library = _library(target, mode, also)
        if len(library.reports) > 1:
            raise UserError(f"there are {counted(len(library.reports), 'skill')} in {target!r}; name the folder of one")
        found = library.store.list_skills()
        if not found:
            raise SkillValidationError([str(one) for one in library.reports[0].findings if one.severity == "error"])
        return found[0]
    store = _library(None, mode, also).store
    skill = store.get(target)
    if skill is None:
        names = [one.name for one in store.list_skills()]
        near = difflib.get_close_matches(target, names, n=3)
        meant = f"did you mean {', '.join(near)}?" if near else "`holdfast skills list` shows all"
        raise UserError(f"there is no skill and no folder {target!r}; {meant}")
    return skill


def _count(folder: str | None, also: "Sequence[str]", as_json: bool) -> None:
    reports = {mode: _library(folder, _narrowed(mode), also).reports for mode in _MODES}
    if as_json:
        verdicts = {mode: _verdicts(told) for mode, told in reports.items()}
        _print_json({mode: {key: one[key] for key in ("valid", "invalid")} for mode, one in verdicts.items()})
    else:
        for mode, told in reports.items():
            click.echo(f"{mode}: {_counted(told)}")
    if not all(one.valid for told in reports.values() for one in told):
        raise click.exceptions.Exit(1)


def _narrowed(mode: str) -> "SkillMode":
    from holdfast.sources.skills.skill import SKILL_MODES

    return next(one for one in SKILL_MODES if one == mode)


def _verdicts(reports: "Sequence[SkillReport]") -> dict[str, object]:
    valid = sum(one.valid for one in reports)
    skills = [
        {
            "path": one.path,
            "name": one.name,
            "valid": one.valid,
            "findings": [
                {"rule": finding.rule, "line": finding.line, "message": f"{finding.message}; {finding.mend}"}
                for finding in one.findings
            ],
        }
        for one in reports
    ]
    return {"skills": skills, "valid": valid, "invalid": len(reports) - valid}


def _counted(reports: "Sequence[SkillReport]") -> str:
    valid = sum(one.valid for one in reports)
    return f"{valid} valid, {len(reports) - valid} invalid"


def _summary(skill: "Skill") -> dict[str, object]:
    from holdfast.sources.text import path_text

    return {
        "name": skill.name,
        "description": skill.description,
        "source": skill.source,
        "path": path_text(skill.skill_dir),
        "version": skill.version,
        "tokens": skill.estimated_body_tokens,
    }


def _details(skill: "Skill") -> dict[str, object]:
    return {
        "license": skill.license,
        "compatibility": skill.compatibility,
        "metadata": skill.metadata or {},
        "allowed_tools": list(skill.allowed_tools),
    }


def _end(reports: "Sequence[SkillReport]") -> None:
    """What would not load goes to the other stream, and into the status."""
    from holdfast.cli.requests import printable

    invalid = [one for one in reports if not one.valid]
    for finding in (finding for one in invalid for finding in one.findings if finding.severity == "error"):
        click.echo(printable(f"left out: {finding}"), err=True)
    if invalid:
        raise click.exceptions.Exit(1)


def _print_json(value: object) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())
