"""The process beside each engine: takes requests, runs them, writes their results."""
