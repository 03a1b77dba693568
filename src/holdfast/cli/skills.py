"""`holdfast skills`: lists, validates, shows and searches skills, and prints the skill index of a prompt."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.format import CommandGroup, format_count, print_json
from holdfast.cli.options import json_option
from holdfast.errors import SkillValidationError, UserError
from holdfast.ledger.requests.format import strip_control_characters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.runtime.config import Config
    from holdfast.sources.skills.library import SkillLibrary
    from holdfast.sources.skills.skill import Skill, SkillMode, SkillRanking, SkillReport

ALL_MODES = "all"
_MODES = ("seed", "strict", "lenient")

_NO_SKILLS = "There are no skills; a skill is a folder with a SKILL.md in ~/.holdfast/skills."


@click.group("skills", cls=CommandGroup)
def command() -> None:
    """List, check and search skills, and show the skill index that a prompt contains.

    DIR is a folder of skills or a single skill. Default: your own skills and those of the workspace.

    Exits with status 1 if one of these skills does not load.
    """
    import logging

    # The command prints the invalid skills itself, so the library's log messages would repeat them.
    logger = logging.getLogger("holdfast.sources.skills")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


_also = click.option(
    "--also",
    multiple=True,
    type=click.Choice((".agents/skills", ".claude/skills", ".metis/skills")),
    help="Also load another program's skills from this folder, in your home and in the workspace.",
)


_mode = click.option(
    "--mode",
    type=click.Choice(_MODES),
    help="Validation rules to apply. Default: `skills_mode` of the configuration; else seed, and lenient for --also.",
)


@command.command("list")
@click.argument("folder", metavar="[DIR]", required=False)
@_mode
@_also
@json_option
def list_skills(folder: str | None, mode: "SkillMode | None", also: tuple[str, ...], as_json: bool) -> None:
    """List the skills that load, by name."""
    library = _library(folder, mode, also)
    skills = library.store.list_skills()
    if as_json:
        print_json([_summary(skill) for skill in skills])
    elif skills:
        from holdfast.cli.tables import print_table

        rows = (
            (skill.name, skill.source, str(skill.estimated_body_tokens), " ".join(skill.description.split()))
            for skill in skills
        )
        print_table(("name", "source", "tokens", "description"), rows)
    elif not library.reports:
        click.echo(_NO_SKILLS)
    _exit_if_invalid(library.reports)


@command.command("validate")
@click.argument("folder", metavar="[DIR]", required=False)
@click.option(
    "--mode",
    type=click.Choice((*_MODES, ALL_MODES)),
    default="strict",
    show_default=True,
    help="Validation rules to apply.",
)
@_also
@json_option
def validate_skills(folder: str | None, mode: str, also: tuple[str, ...], as_json: bool) -> None:
    """Show problems per file, with line, rule and how to fix them; with --mode all, only how many skills load."""
    if mode == ALL_MODES:
        _show_counts(folder, also, as_json)
        return
    reports = _library(folder, _parse_mode(mode), also).reports
    if as_json:
        print_json(_reports_json(reports))
    else:
        for finding in (finding for report in reports for finding in report.findings):
            click.echo(strip_control_characters(f"{finding.severity}: {finding}"))
        click.echo(f"{_count_text(reports)} under the {mode} rules")
    if not all(report.loadable for report in reports):
        raise click.exceptions.Exit(1)


@command.command("show")
@click.argument("target")
@_mode
@_also
@json_option
def show_skill(target: str, mode: "SkillMode | None", also: tuple[str, ...], as_json: bool) -> None:
    """Show one skill in full. TARGET is its folder or name."""
    skill = _find_skill(target, mode, also)
    if as_json:
        print_json({**_summary(skill), **_details(skill), "body": skill.body})
        return
    for key, value in (_summary(skill) | _details(skill)).items():
        if value not in (None, {}, []):
            click.echo(f"{key}: {strip_control_characters(str(value))}")
    click.echo()
    for line in skill.body.splitlines():
        click.echo(strip_control_characters(line))


@command.command("index")
@click.argument("folder", metavar="[DIR]", required=False)
@_mode
@click.option("--tokens-max", type=click.IntRange(min=1), help="Maximum size of the index, in estimated tokens.")
@_also
@json_option
def show_skill_index(
    folder: str | None, mode: "SkillMode | None", *, tokens_max: int | None, also: tuple[str, ...], as_json: bool
) -> None:
    """Show the skill index that a prompt contains."""
    from holdfast.sources.skills.index import INDEX_TOKENS_MAX, render_skill_index

    library, config = _library(folder, mode, also), _load_config()
    if tokens_max is None and config.profile != "seed":
        tokens_max = INDEX_TOKENS_MAX
    skill_list = render_skill_index(
        library.store.list_skills(), tokens_max=tokens_max, body_tokens_max=config.skill_tokens_max
    )
    if as_json:
        print_json(skill_list)
    elif skill_list.text:
        click.echo(skill_list.text)
    elif not library.reports:
        click.echo(_NO_SKILLS, err=True)
    _exit_if_invalid(library.reports)


@command.command("search")
@click.argument("query")
@click.argument("folder", metavar="[DIR]", required=False)
@click.option("--ranking", type=click.Choice(("lexical", "semantic")), help="Rank by words only, or also by meaning.")
@click.option("--limit", type=click.IntRange(1, 50), default=10, show_default=True, help="Maximum number of results.")
@_mode
@_also
@json_option
def search_skills(
    query: str,
    folder: str | None,
    *,
    ranking: "SkillRanking | None",
    limit: int,
    mode: "SkillMode | None",
    also: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show the skills that match QUERY, best first, as the model's search would find them."""
    library = _library(folder, mode, also)
    store = library.store.with_ranking(_load_config(skill_ranking=ranking).skill_ranking)
    matches = store.search(query, limit=limit)
    if as_json:
        print_json([_summary(skill) for skill in matches])
    elif matches:
        from holdfast.cli.tables import print_table

        rows = ((skill.name, skill.source, " ".join(skill.description.split())) for skill in matches)
        print_table(("name", "source", "description"), rows)
    else:
        click.echo(strip_control_characters(f"No skills matched {query!r}."))
    _exit_if_invalid(library.reports)


def _library(folder: str | None, mode: "SkillMode | None", also: "Sequence[str]") -> "SkillLibrary":
    from holdfast.runtime.config import default_skill_roots
    from holdfast.sources.skills.discovery import SkillLimits
    from holdfast.sources.skills.library import read_library_at, read_skill_library

    config = _load_config(also_skills=also or None, skills_mode=mode)
    limits = SkillLimits(body_tokens_max=config.skill_tokens_max)
    if folder is None:
        return read_skill_library(default_skill_roots(config, os.environ, workspace=Path.cwd()), limits=limits)
    if also:
        raise UserError("--also applies only without DIR; leave out one of the two")
    # Accept the path of a SKILL.md for the folder that it is in.
    if os.path.basename(folder).lower() == "skill.md":
        folder = os.path.dirname(os.path.abspath(folder))
    return read_library_at(folder, config.skills_mode or "seed", nested=config.profile != "seed", limits=limits)


def _load_config(**flags: object) -> "Config":
    from holdfast.runtime.config import load_config

    return load_config(os.environ, workspace=Path.cwd(), flags=flags)


def _find_skill(target: str, mode: "SkillMode | None", also: "Sequence[str]") -> "Skill":
    import difflib

    if Path(target).exists():
        library = _library(target, mode, also)
        if len(library.reports) > 1:
            count = format_count(len(library.reports), "skill")
            raise UserError(f"{target!r} contains {count}; name the folder of one")
        skills = library.store.list_skills()
        if not skills:
            errors = [finding for finding in library.reports[0].findings if finding.severity == "error"]
            raise SkillValidationError([str(finding) for finding in errors])
        return skills[0]
    store = _library(None, mode, also).store
    skill = store.get(target)
    if skill is None:
        names = [skill.name for skill in store.list_skills()]
        near = difflib.get_close_matches(target, names, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "`holdfast skills list` shows all"
        raise UserError(f"no skill or folder is called {target!r}; {hint}")
    return skill


def _show_counts(folder: str | None, also: "Sequence[str]", as_json: bool) -> None:
    reports = {mode: _library(folder, _parse_mode(mode), also).reports for mode in _MODES}
    if as_json:
        documents = {mode: _reports_json(mode_reports) for mode, mode_reports in reports.items()}
        print_json({mode: {key: document[key] for key in ("valid", "invalid")} for mode, document in documents.items()})
    else:
        for mode, mode_reports in reports.items():
            click.echo(f"{mode}: {_count_text(mode_reports)}")
    if not all(report.loadable for mode_reports in reports.values() for report in mode_reports):
        raise click.exceptions.Exit(1)


def _parse_mode(mode: str) -> "SkillMode":
    from holdfast.sources.skills.skill import SKILL_MODES

    return next(skill_mode for skill_mode in SKILL_MODES if skill_mode == mode)


def _reports_json(reports: "Sequence[SkillReport]") -> dict[str, object]:
    valid = sum(report.valid for report in reports)
    skills = [
        {
            "path": report.path,
            "name": report.name,
            "valid": report.valid,
            "loadable": report.loadable,
            "findings": [
                {"rule": finding.rule, "line": finding.line, "message": f"{finding.message}; {finding.fix}"}
                for finding in report.findings
            ],
        }
        for report in reports
    ]
    return {"skills": skills, "valid": valid, "invalid": len(reports) - valid}


def _count_text(reports: "Sequence[SkillReport]") -> str:
    valid = sum(report.valid for report in reports)
    too_large = sum(report.valid and not report.loadable for report in reports)
    not_loadable = f" ({too_large} not loadable)" if too_large else ""
    return f"{valid} valid{not_loadable}, {len(reports) - valid} invalid"


def _summary(skill: "Skill") -> dict[str, object]:
    from holdfast.sources.files import format_path

    return {
        "name": skill.name,
        "description": skill.description,
        "source": skill.source,
        "path": format_path(skill.skill_dir),
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


def _exit_if_invalid(reports: "Sequence[SkillReport]") -> None:
    """Print the skills that do not load to stderr, and exit with status 1 if there are any."""
    invalid = [report for report in reports if not report.valid]
    for finding in (finding for report in invalid for finding in report.findings if finding.severity == "error"):
        click.echo(strip_control_characters(f"left out: {finding}"), err=True)
    if invalid:
        raise click.exceptions.Exit(1)
