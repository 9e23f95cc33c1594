"""`completion`: tab completion for shells."""

import click
from click.shell_completion import get_completion_class

from .context import Session, pass_session
from .output import answer


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
@pass_session
def completion(session: Session, ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    For bash: `cyberkv completion bash > ~/.local/share/bash-completion/completions/cyberkv`.
    """
    generator = get_completion_class(shell)
    assert generator is not None  # noqa: S101  # each choice is one of click's own
    script = generator(ctx.find_root().command, {}, "cyberkv", "_CYBERKV_COMPLETE").source()
    answer(session, {"shell": shell, "script": script}, lambda: click.echo(script))
