"""What `forebay up` says of itself: words for people, or a JSON object a line for programs."""

from __future__ import annotations

import json
import shlex
import shutil
import sys

import click

from forebay_shared.cli.api import Place
from forebay_shared.cli.terminal import print_json, say
from forebay_shared.connect import safe_url


class Voice:
    """Speaks in words: results and advice on stdout, the rest on stderr.

    `look`: the options with which `forebay status` finds this system.
    """

    def __init__(self, look: str = "") -> None:
        self._look = look

    def ready(self, url: str, redis_url: str, model: str, pids: dict[str, int | None]) -> None:
        """Everything serves."""
        say(f"ready: {url}/v1 serves {model}; Redis is {safe_url(redis_url)}")

    def question(self, text: str) -> None:
        """A question is being asked."""
        click.echo(f"\n> {text}\n")

    def piece(self, text: str) -> None:
        """A part of the answer."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def answered(self, text: str) -> None:
        """The whole answer has come."""
        click.echo("")

    def simulated(self) -> None:
        """The answer is not a model's."""
        say("(the engine is simulated: its words mean nothing; see --engine)")

    def advise(self, place: Place, model: str) -> None:
        """What to do next."""
        click.echo("")
        click.echo(f"Ask it:   {curl_line(place, model)}")
        key = 'os.environ["FOREBAY_API_KEY"]' if place.api_key else '"none"'
        click.echo(f'SDK:      OpenAI(base_url="{place.url}/v1", api_key={key})')
        click.echo(f"Look:     {_program()} status --watch{self._look}")
        click.echo("Stop:     ^C")

    def stopping(self) -> None:
        """The stop begins."""
        say("stopping: what is open may finish; ^C again to hurry")

    def stopped(self) -> None:
        """All children are gone."""
        say("stopped")


class JsonVoice(Voice):
    """Speaks in JSON: one object a line on stdout, with its kind in `event`."""

    def ready(self, url: str, redis_url: str, model: str, pids: dict[str, int | None]) -> None:
        row = {"event": "ready", "url": url, "base_url": f"{url}/v1", "model": model}
        print_json(row | {"redis": safe_url(redis_url), "pids": pids})

    def question(self, text: str) -> None:
        """It is known who asked."""

    def piece(self, text: str) -> None:
        """The whole answer follows."""

    def answered(self, text: str) -> None:
        print_json({"event": "answer", "text": text})

    def advise(self, place: Place, model: str) -> None:
        """Programs need none."""

    def simulated(self) -> None:
        """Programs know what they have started."""

    def stopping(self) -> None:
        print_json({"event": "stopping"})

    def stopped(self) -> None:
        print_json({"event": "stopped"})


def _program() -> str:
    """What to type for this program: its path where it is not on PATH."""
    called = sys.argv[0]
    return "forebay" if shutil.which("forebay") or called.endswith(".py") else shlex.quote(called)


def curl_line(place: Place, model: str) -> str:
    """A command that asks the producer, ready to be pasted."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 30}
    key = ' -H "Authorization: Bearer $FOREBAY_API_KEY"' if place.api_key else ""
    return (
        f"curl {shlex.quote(place.url + '/v1/chat/completions')}{key} "
        f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    )
