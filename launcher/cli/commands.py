"""The sub-commands. Each loads its own file only when it is called."""

from __future__ import annotations

import importlib

import click

from launcher.errors import BAD_INPUT, near

# Name, module and one line for the list; a command is the function of its name in its module.
COMMANDS = {
    "status": "State of runs, with one question to the scheduler for all.",
    "logs": "What a run printed, or one of its ranks.",
    "cancel": "End runs.",
    "wait": "Wait for a run and exit with its code.",
    "data": "Data sets: which are here, and how to get one.",
}


class Lazy(click.Group):
    """A group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"launcher.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            raise click.UsageError(
                f"there is no command {args[0]!r}.{near(args[0], COMMANDS)} Known: {', '.join(COMMANDS)}; "
                "anything else is KEY=VALUE and submits a run"
            )
        return super().resolve_command(ctx, args)


def main(arguments: list[str]) -> int:
    """Runs a sub-command and returns its exit code."""
    group = Lazy("launcher", help="Commands on runs that are there already.")
    try:
        code = group.main(arguments, prog_name="python -m launcher", standalone_mode=False)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        click.echo(f"launcher: {error.format_message()}", err=True)
        return BAD_INPUT
    except click.Abort:
        raise KeyboardInterrupt from None
    return code if isinstance(code, int) else 0
