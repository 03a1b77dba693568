"""`holdfast config`: shows every setting, its value, and where that was set."""

import os
from pathlib import Path

import click

from holdfast.cli.format import print_json
from holdfast.cli.options import json_option


@click.command("config")
@json_option
@click.option(
    "--workspace",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path(),
    help="Workspace to read the configuration of.",
)
def command(as_json: bool, workspace: Path) -> None:
    """Show the configuration: flag > environment > workspace file > home file > default."""
    from holdfast.runtime.config import SETTINGS, load_config, setting_value
    from holdfast.runtime.instructions.settings import describe_instruction_settings
    from holdfast.stores.address import redact_address

    config = load_config(os.environ, workspace=workspace.resolve())
    values = (
        {"home": config.home}
        | {key: setting_value(config, key) for key in SETTINGS}
        | {"db": redact_address(config.db_path)}
    )
    origins = {"home": "HOLDFAST_HOME" if os.environ.get("HOLDFAST_HOME") else "default"} | {
        key: config.origins.get(key, "default") for key in SETTINGS
    }
    instructions = describe_instruction_settings(os.environ)
    if as_json:
        settings = {key: {"value": value, "from": origins[key]} for key, value in values.items()}
        document = {**settings, "models": config.models, "project": config.project, "upstreams": config.upstreams}
        document["instructions"] = {
            name: {"value": value, "from": origin} for name, (value, origin) in instructions.items()
        }
        print_json(document)
        return

    from holdfast.cli.tables import print_table
    from holdfast.sources.files import to_one_line

    rows = [(key, "none" if value is None else str(value), origins[key]) for key, value in values.items()]
    rows += [(f"models.{id}", "added or changed", config.origins[f"models.{id}"]) for id in config.models]
    rows += [
        (f"project.{key}", to_one_line(text.encode()), config.origins[f"project.{key}"])
        for key, text in config.project.items()
    ]
    rows += [
        (key, to_one_line(str(config.upstreams[name].get("url", "preset")).encode()), config.origins[key])
        for name in config.upstreams
        for key in (f"gateway.upstreams.{name}",)
    ]
    rows += [
        (f"instructions.{name}", "none" if value is None else to_one_line(str(value).encode()), origin)
        for name, (value, origin) in instructions.items()
    ]
    print_table(("setting", "value", "from"), rows)
