"""`forebay submit --file`: a whole batch, with a bar on the terminal and a summary at the end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from forebay_shared.cli.api import Place, Producer
from forebay_shared.cli.bar import progress_bar
from forebay_shared.cli.batch_files import BatchFiles
from forebay_shared.cli.batch_lines import Line, read_batch
from forebay_shared.cli.batch_send import Sender
from forebay_shared.cli.terminal import print_json, run

CONCURRENCY = 128
"""Enough to keep a fleet's slots busy, and far below the depth of a class."""
STOPPED = "stopped; what was submitted goes on. Run the same command again to collect it"


@dataclass(frozen=True, slots=True)
class Job:
    """What to send and where its results go. `results` None: beside the file."""

    file: Path
    results: Path | None = None
    model: str | None = None
    class_name: str | None = None
    concurrency: int = CONCURRENCY

    @property
    def results_path(self) -> Path:
        return self.results or self._beside("results")

    @property
    def errors_path(self) -> Path:
        return self._beside("errors")

    def _beside(self, what: str) -> Path:
        """`batch.jsonl` → `batch.results.jsonl`; any other name gets the whole ending."""
        return self.file.with_name(f"{self.file.name.removesuffix('.jsonl')}.{what}.jsonl")


class Tally:
    """How a batch stands. `before`: done by an earlier run."""

    def __init__(self, total: int, before: int) -> None:
        self.total = total
        self.before = before
        self.done = before
        self.failed = 0

    def count(self, well: bool) -> None:
        if well:
            self.done += 1
        else:
            self.failed += 1

    def sentence(self) -> str:
        """For people."""
        earlier = f" ({self.before:,} before this run)" if self.before else ""
        return f"{self.done:,} of {self.total:,} done{earlier}, {self.failed:,} failed"


def submit_file(place: Place, job: Job, as_json: bool) -> int:
    """Send the batch to its end; the exit code: 0, or 1 where some requests failed.

    Raises BadBatch (exit code 2) before anything is sent.
    """
    lines = read_batch(job.file, job.model)
    with BatchFiles(job.results_path, job.errors_path, lines) as files:
        missing = [line for line in lines if not files.is_done(line)]
        tally = Tally(len(lines), len(lines) - len(missing))
        if missing:
            run(_send(place, job, files, missing, tally), STOPPED)
    _tell(job, tally, as_json)
    return 1 if tally.failed else 0


async def _send(place: Place, job: Job, files: BatchFiles, lines: list[Line], tally: Tally) -> None:
    headers = {"X-Priority": job.class_name} if job.class_name else {}
    async with Producer(place) as producer:
        # Nobody there, or a wrong key, is told at once and not after the patience of a batch.
        await producer.models()
        with progress_bar(tally.total, tally.before, "0 failed") as move:

            def progress(well: bool) -> None:
                tally.count(well)
                move(tally.done + tally.failed, f"{tally.failed} failed")

            await Sender(producer, files, headers, progress).send(lines, job.concurrency)


def _tell(job: Job, tally: Tally, as_json: bool) -> None:
    errors = str(job.errors_path) if tally.failed else None
    if as_json:
        counts = {"total": tally.total, "done": tally.done, "failed": tally.failed}
        print_json(
            counts | {"before": tally.before, "results": str(job.results_path), "errors": errors}
        )
        return
    click.echo(tally.sentence())
    click.echo(f"results: {job.results_path}")
    if errors:
        click.echo(f"errors:  {errors}")
