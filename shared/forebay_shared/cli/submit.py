"""`forebay submit`: a prompt, or a file of requests in OpenAI's batch format."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from forebay_shared.cli import batch
from forebay_shared.cli.api import Place, Producer, place_options
from forebay_shared.cli.prompt import Question, leave_request, stream_answer, whole_answer
from forebay_shared.cli.terminal import example, json_option, print_json, run, say

EXAMPLES = example("""
  forebay submit "What does a forebay do?"
  forebay submit --class high --max-tokens 50 < prompt.txt
  forebay submit --async "Write a long story"       # prints an id for `forebay show`
  forebay submit --file batch.jsonl --class background
""")


@click.command(epilog=EXAMPLES)
@click.argument("prompt", required=False)
@click.option("--model", help="Model to ask.  [default: the first of /v1/models]")
@click.option(
    "--class", "class_name", help="Priority class: critical, high, normal, low, background."
)
@click.option("--max-tokens", type=click.IntRange(min=1), help="Most tokens of the answer.")
@click.option("--async", "leave", is_flag=True, help="Print the request's id, don't wait.")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSONL in OpenAI's batch format: custom_id, method, url, body.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the results of --file go.  [default: <file>.results.jsonl]",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=batch.CONCURRENCY,
    show_default=True,
    help="Most requests of --file under way at once.",
)
@place_options
@json_option
def submit(
    prompt: str | None,
    model: str | None,
    class_name: str | None,
    max_tokens: int | None,
    leave: bool,
    file: Path | None,
    output: Path | None,
    concurrency: int,
    url: str,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Submit a chat PROMPT (or standard input) and print the answer as it comes.

    With --file, submit every line of a file in OpenAI's batch format. Results go to
    <file>.results.jsonl, requests that failed to <file>.errors.jsonl, in the order in which they
    end. The same command run again goes on where it was stopped. Exit code 0: all is well,
    1: some failed, 2: the input cannot be used.
    """
    place = Place(url, api_key)
    if file is None:
        _refuse(output=output)
        question = Question(_prompt(prompt), model, class_name, max_tokens)
        run(
            _ask(place, question, leave, as_json),
            "stopped; a request that was waited for is cancelled",
        )
        return
    _refuse(PROMPT=prompt, max_tokens=max_tokens, leave=leave)
    job = batch.Job(file, output, model, class_name, concurrency)
    raise click.exceptions.Exit(batch.submit_file(place, job, as_json))


def _refuse(**given: object) -> None:
    """Options of the other way to submit. Raises UsageError rather than ignore them."""
    names = {"PROMPT": "a PROMPT", "max_tokens": "--max-tokens", "leave": "--async"}
    for name, value in given.items():
        if name == "output" and value:
            raise click.UsageError("--output goes with --file.")
        if value:
            raise click.UsageError(f"{names[name]} does not go with --file.")


def _prompt(given: str | None) -> str:
    if given is None and sys.stdin.isatty():
        raise click.UsageError('Give a prompt, as in: forebay submit "Hello", or use --file.')
    text = sys.stdin.read() if given in (None, "-") else given
    if not text or not text.strip():
        raise click.UsageError("The prompt is empty.")
    return text


async def _ask(place: Place, question: Question, leave: bool, as_json: bool) -> None:
    async with Producer(place) as producer:
        if leave:
            left = await leave_request(producer, question)
            print_json(left) if as_json else click.echo(left["id"])
        elif as_json:
            print_json(await whole_answer(producer, question))
        else:
            await _print_answer(producer, question)


async def _print_answer(producer: Producer, question: Question) -> None:
    answer = await stream_answer(producer, question, _write)
    click.echo("" if not answer.endswith("\n") else None, nl=not answer.endswith("\n"))
    if not answer:
        say("the answer is empty")


def _write(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()
