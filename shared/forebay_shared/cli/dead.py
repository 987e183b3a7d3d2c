"""`forebay dead`: requests that could not be brought to an end, as letters for an operator."""

from __future__ import annotations

import click

from forebay_shared.cli.lazy import LazyCommand, LazyGroup
from forebay_shared.cli.terminal import example

COMMANDS = {
    "ls": LazyCommand("forebay_shared.cli.dead_look:ls", "List dead letters, newest first."),
    "show": LazyCommand("forebay_shared.cli.dead_look:show", "Show one dead letter."),
    "requeue": LazyCommand("forebay_shared.cli.dead_requeue:requeue", "Admit dead letters anew."),
    "purge": LazyCommand("forebay_shared.cli.dead_purge:purge", "Throw dead letters away."),
}
EXAMPLES = example("""
  forebay dead ls --reason crash_loop
  forebay dead show default.01JDX3M8Q5T2V9W7Y4Z6A1B0CD
  forebay dead requeue default.01JDX3M8Q5T2V9W7Y4Z6A1B0CD
  forebay dead purge --older 7d
""")


@click.group(name="dead", cls=LazyGroup, commands=COMMANDS, epilog=EXAMPLES)
def group() -> None:
    """Look at dead letters, admit them anew, throw them away.

    A request becomes one when it kills each engine that runs it (`crash_loop`) or when its entry
    vanished from Redis (`lost`); so does what was no request of ours (`undecodable`). The oldest go
    by themselves, by the settings `dead_count` and `dead_bytes`.
    """
