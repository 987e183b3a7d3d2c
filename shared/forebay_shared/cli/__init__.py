"""The command line. `main` is what the console script `forebay` runs.

Commands are named here and imported when they are used: help comes at once, and this package
imports neither producer nor worker.
"""

from __future__ import annotations

import click

from forebay_shared.cli.lazy import LazyCommand, LazyGroup

COMMANDS = {
    "up": LazyCommand("forebay_shared.cli.up:up", "Start the whole system on this machine."),
    "serve": LazyCommand("forebay_producer.command:serve", "Run a producer: the HTTP API."),
    "work": LazyCommand("forebay_worker.command:work", "Run a worker beside an engine."),
    "submit": LazyCommand("forebay_shared.cli.submit:submit", "Submit a prompt or a batch file."),
    "show": LazyCommand("forebay_shared.cli.show:show", "Show one request: state, place, result."),
    "cancel": LazyCommand("forebay_shared.cli.cancel:cancel", "Cancel a request."),
    "status": LazyCommand(
        "forebay_shared.cli.status:status", "Show what waits and runs, and where."
    ),
    "doctor": LazyCommand(
        "forebay_shared.cli.doctor.command:doctor", "Check Redis and the pools; print ACL users."
    ),
    "pause": LazyCommand("forebay_shared.cli.switch:pause", "Give workers nothing new."),
    "resume": LazyCommand("forebay_shared.cli.switch:resume", "End a pause."),
    "drain": LazyCommand(
        "forebay_shared.cli.drain:drain", "End a worker in order, or let a pool run dry."
    ),
    "dead": LazyCommand(
        "forebay_shared.cli.dead:group", "Look at dead letters, admit them anew, purge them."
    ),
    "settings": LazyCommand(
        "forebay_shared.cli.settings:group", "Show or change what a pool's processes obey."
    ),
}


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    from importlib import metadata

    try:
        click.echo(f"forebay {metadata.version('forebay')}")
    except metadata.PackageNotFoundError:
        click.echo("forebay, run from a checkout that is not installed")
    context.exit()


@click.group(
    cls=LazyGroup,
    commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="`forebay up` is the place to start. Each command has --help with an example.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Forebay: a durable, fair request queue in front of vLLM.

    Clients keep their OpenAI SDK and speak to a producer; Redis keeps the requests; workers take
    what their engines have room for.
    """
