"""`python -m forebay_shared.cli` is `forebay`."""

from forebay_shared.cli import main

main(prog_name="forebay")
