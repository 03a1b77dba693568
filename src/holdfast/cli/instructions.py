"""`holdfast instructions`: the instructions of agents, from files to what is recalled."""

import importlib
import os
from typing import TYPE_CHECKING

import click

from holdfast.cli.counts import counted
from holdfast.cli.groups import Group
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.events.log import Log
    from holdfast.instructions.library import Library


COMMANDS = {
    "migrate": ("migrate", "Propose units and a manifest for files of instructions."),
    "check": ("publish", "Say whether a folder of instructions could be published, and what is wrong with it."),
    "publish": ("publish", "Publish a folder of instructions, if it passes every check."),
    "approve": ("publish", "Let the new text of a unit be told that is loaded without being asked for."),
    "promote": ("publish", "Let units stand alone, after a week beside their files in which nothing was missed."),
    "archive": ("publish", "Move the files of promoted instructions to docs/legacy-instructions."),
    "rollback": ("publish", "Publish an older manifest and its texts as a new version."),
    "index": ("look", "Show the line that each unit has in the prompt, and what it costs."),
    "recall": ("look", "Show what an intent loads, and why."),
    "usage": ("usage", "Say which units of a recall were used and missed, or see it by what the agent did."),
    "probe": ("look", "Ask what the triggers say, in other words; end with 1 where a unit is not found."),
    "coverage": ("coverage", "Show how well units are found, and how that differs from another version."),
    "encoder": ("coverage", "Show by what units are found, and whether all manifests pass with it."),
    "replay": ("look", "Ask again what a record has asked, of what there was then."),
    "metrics": ("look", "Show recall, hits and misses of the last days."),
    "shadow": ("shadow", "Say whether lazy recall would have done in turns that had all instructions."),
    "hook": ("hook", "Give a runtime the stub and the preloads of an agent when a session starts."),
    "lint": ("look", "Show triggers that say what a unit contains, duplicates, and what entries cost."),
}
"""Name, module and one line of help; `holdfast.cli.instructions_<module>` holds a click command of that name."""

SIGNING = "cryptography"
"""By which units are signed; it is no part of a plain installation."""


class _Commands(Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"holdfast.cli.instructions_{COMMANDS[cmd_name][0]}")
        found = getattr(module, cmd_name)
        assert isinstance(found, click.Command)
        return found

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != SIGNING:
                raise
            raise UserError("instructions need their package: pip install 'holdfast[instructions]'") from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, told) for name, (_, told) in COMMANDS.items()])


@click.group("instructions", cls=_Commands)
def command() -> None:
    """Turn files of instructions into units that are recalled when they are needed, and look after them."""
    compute_by_one_thread()


def compute_by_one_thread() -> None:
    """More would take longer where others want the processor too; whoever knows better has said so."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def library_of(log: "Log", *, wanted: bool, for_sample: bool = False) -> "Library | None":
    """None where neither the flag nor the configuration asks for it, and no sample needs one."""
    compute_by_one_thread()
    from holdfast.clock import new_ulid, system_clock
    from holdfast.runtime.instruction_settings import load_instructions

    configured = load_instructions(os.environ)
    if not (wanted or configured.enabled):
        return _passing(log) if for_sample else None
    from holdfast.instructions.certifying import activate_encoder
    from holdfast.instructions.library import Library
    from holdfast.instructions.records import HasInstructions
    from holdfast.instructions.signatures import deployment_key

    if not isinstance(log, HasInstructions):
        raise UserError("instructions are kept in a SQLite file or in PostgreSQL: name one with --db")
    library = Library(
        log.instructions,
        configured.settings,
        key=deployment_key(configured.key_path),
        clock=system_clock,
        new_id=new_ulid,
        warn=lambda line: click.echo(line, err=True),
    )
    failed = activate_encoder(library)
    if failed:
        click.echo(
            f"the encoder stays as it was: with the new one {counted(len(failed), 'manifest')} failed, such as that of "
            f"{failed[0]}; `holdfast instructions encoder` shows all",
            err=True,
        )
    return library


def _passing(log: "Log") -> "Library | None":
    """For a store that is gone at the end, and so is the key that it signs with."""
    from holdfast.clock import new_ulid, system_clock
    from holdfast.instructions.library import Library
    from holdfast.instructions.records import HasInstructions
    from holdfast.instructions.settings import InstructionSettings
    from holdfast.instructions.signatures import KEY_BYTES, DeploymentKey
    from holdfast.retrieval.meaning import default_encoder

    if not isinstance(log, HasInstructions):
        return None
    settings = InstructionSettings(encoder=default_encoder())
    key = DeploymentKey(os.urandom(KEY_BYTES))
    return Library(log.instructions, settings, key=key, clock=system_clock, new_id=new_ulid, warn=lambda line: None)
