"""`holdfast completion`: prints or installs the completion of commands and options for a shell."""

import os

import click

VARIABLE = "_HOLDFAST_COMPLETE"
FILES = {
    "bash": ".local/share/bash-completion/completions/holdfast",
    "zsh": ".zfunc/_holdfast",
    "fish": ".config/fish/completions/holdfast.fish",
}
"""Shell -> the file below the home folder from which it loads completions."""

NEXT_STEPS = {
    "bash": "start a new shell; this needs the package bash-completion",
    "zsh": "put `fpath+=~/.zfunc; autoload -Uz compinit; compinit` into ~/.zshrc, then start a new shell",
    "fish": "start a new shell",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(tuple(FILES)))
@click.option("--install", is_flag=True, help="Write it to the file from which the shell loads completions.")
@click.pass_context
def command(ctx: click.Context, shell: str, install: bool) -> None:
    """Print the script that completes commands and options in SHELL, or install it.

    Without --install, `eval "$(holdfast completion bash)"` turns it on for the running shell.
    """
    from click.shell_completion import get_completion_class

    from holdfast.sources.files import user_home

    completion = get_completion_class(shell)
    assert completion is not None
    script = completion(ctx.find_root().command, {}, "holdfast", VARIABLE).source()
    if not install:
        click.echo(script)
        return
    path = user_home(os.environ) / FILES[shell]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script, encoding="utf-8")
    click.echo(f"{path} written; {NEXT_STEPS[shell]}")
