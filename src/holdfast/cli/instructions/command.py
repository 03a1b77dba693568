"""`holdfast instructions`: manages agents' instructions, from files to recalled units."""

import importlib
import os
from functools import partial
from typing import TYPE_CHECKING

import click

from holdfast.cli.format import CommandGroup, format_count
from holdfast.cli.instructions.open import explain_missing_package

if TYPE_CHECKING:
    from holdfast.instructions.context import InstructionContext
    from holdfast.stores.open import Store


INSTRUCTION_COMMANDS = {
    "migrate": ("migrate", "Propose units and a manifest for instruction files."),
    "check": ("publish", "Check whether a folder of instructions can be published."),
    "publish": ("publish", "Publish a folder of instructions if it passes every check."),
    "approve": ("publish", "Approve the new text of a unit that is preloaded or guaranteed."),
    "withdraw": ("publish", "Withdraw a unit, so that no recall returns it from now on."),
    "promote": ("publish", "Use units without their files, after a week in which units were rarely missed."),
    "archive": ("publish", "Move the files of promoted instructions to docs/legacy-instructions."),
    "rollback": ("publish", "Publish an older manifest and its texts as a new version."),
    "index": ("recall", "Show the line of each unit in the prompt, and its cost in tokens."),
    "recall": ("recall", "Show which units an intent loads, and why."),
    "usage": ("usage", "Report which units of a recall were used or missed, or detect it from a trace."),
    "probe": ("recall", "Query the triggers, verbatim and paraphrased, and check that each unit is found."),
    "coverage": ("coverage", "Show how reliably units are found, and compare with another version."),
    "encoder": ("coverage", "Show the encoder that finds units, and whether all manifests pass with it."),
    "replay": ("recall", "Repeat a recorded recall on the texts of that time and compare the results."),
    "metrics": ("recall", "Show recall, hit and miss rates of the last days."),
    "shadow": ("usage", "Check whether lazy recall would have sufficed in turns that had all instructions."),
    "connect": ("connect", "Give Claude Code, Codex or another client an agent's instructions, and check it."),
    "hook": ("hook", "Print the boot stub and preloads of an agent for a runtime that starts a session."),
    "lint": ("recall", "Find triggers that describe content, duplicates, and expensive entries."),
}
"""Command name -> (module, one line of help). `holdfast.cli.instructions.<module>` defines the click command."""


class _Commands(CommandGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(INSTRUCTION_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in INSTRUCTION_COMMANDS:
            return None
        module = importlib.import_module(f"holdfast.cli.instructions.{INSTRUCTION_COMMANDS[cmd_name][0]}")
        subcommand = getattr(module, cmd_name)
        assert isinstance(subcommand, click.Command)
        return subcommand

    def invoke(self, ctx: click.Context) -> object:
        with explain_missing_package():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in INSTRUCTION_COMMANDS.items()])


@click.group("instructions", cls=_Commands)
def command() -> None:
    """Split instruction files into units that agents recall when they need them, and manage these units."""
    limit_blas_threads()


def limit_blas_threads() -> None:
    """Limit numpy's BLAS to one thread unless the user set a number: several are slower on a busy machine."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def open_instruction_context(
    log: "Store", *, wanted: bool, for_sample: bool = False, load_encoder: bool = True
) -> "InstructionContext | None":
    """The instruction library over this store; None if no flag, configuration or sample needs one.

    Without `load_encoder` the first recall loads it.
    """
    limit_blas_threads()
    from holdfast.runtime.instructions.settings import load_instruction_config

    configured = load_instruction_config(os.environ)
    if not (wanted or configured.enabled):
        return _temporary_library(log) if for_sample else None
    from holdfast.instructions.context import InstructionContext
    from holdfast.instructions.coverage.schedule import activate_encoder, choose_encoder
    from holdfast.instructions.units.signatures import load_deployment_key

    key = load_deployment_key(configured.key_path)
    warn = partial(click.echo, err=True)
    library = InstructionContext(log.instructions, configured.settings, key=key, warn=warn)
    failed = activate_encoder(library) if load_encoder else choose_encoder(library, again=True)
    if failed:
        click.echo(
            f"the encoder is not switched: {format_count(len(failed), 'manifest')} failed with the new one, such as "
            f"that of {failed[0]}; `holdfast instructions encoder` shows all",
            err=True,
        )
    return library


def _temporary_library(log: "Store") -> "InstructionContext":
    """A library for a temporary store; its signing key is lost with the process too."""
    from holdfast.instructions.context import InstructionContext
    from holdfast.instructions.settings import InstructionSettings
    from holdfast.instructions.units.signatures import KEY_BYTES, DeploymentKey
    from holdfast.retrieval.encoders.registry import default_encoder

    settings = InstructionSettings(encoder=default_encoder())
    key = DeploymentKey(os.urandom(KEY_BYTES))
    return InstructionContext(log.instructions, settings, key=key)
