"""What `forebay up` says of itself: words for people, or a JSON object a line for programs."""

from __future__ import annotations

import json
import shlex
import sys

import click

from forebay_shared.cli.api import Place
from forebay_shared.cli.terminal import print_json, say
from forebay_shared.connect import safe_url


class Voice:
    """Speaks in words: results and advice on stdout, the rest on stderr."""

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

    def advise(self, place: Place, model: str) -> None:
        """What to do next."""
        click.echo("")
        click.echo(f"Ask it:   {curl_line(place, model)}")
        key = 'os.environ["FOREBAY_API_KEY"]' if place.api_key else '"none"'
        click.echo(f'SDK:      OpenAI(base_url="{place.url}/v1", api_key={key})')
        click.echo("Look:     forebay status --watch")
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

    def stopping(self) -> None:
        print_json({"event": "stopping"})

    def stopped(self) -> None:
        print_json({"event": "stopped"})


def curl_line(place: Place, model: str) -> str:
    """A command that asks the producer, ready to be pasted."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 30}
    key = ' -H "Authorization: Bearer $FOREBAY_API_KEY"' if place.api_key else ""
    return (
        f"curl {shlex.quote(place.url + '/v1/chat/completions')}{key} "
        f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    )
