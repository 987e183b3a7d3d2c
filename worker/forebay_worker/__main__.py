"""`python -m forebay_worker`: the same as `forebay work`."""

from forebay_worker.command import work

work(prog_name="python -m forebay_worker")
