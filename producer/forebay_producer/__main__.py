"""`python -m forebay_producer`: the same as `forebay serve`."""

from forebay_producer.command import serve

serve(prog_name="python -m forebay_producer")
