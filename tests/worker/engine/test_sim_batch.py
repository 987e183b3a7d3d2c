"""The simulated batch step by step, on no clock but its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_worker.engine.profile import DEFAULT, Profile
from forebay_worker.engine.sim_batch import Batch, Sequence

SMALL = replace(DEFAULT, slots=2, block_size=4, num_blocks=8, max_model_len=32)


class Bench:
    """A batch, and in which step each of its sequences said each token."""

    def __init__(self, profile: Profile) -> None:
        self.batch = Batch(profile)
        self.said: dict[str, list[int]] = {}
        self.step = 0
        self.took_s: list[float] = []

    def add(self, name: str, prompt: int, tokens: int, priority: int = 0) -> Sequence:
        times = self.said[name] = []

        def advance() -> bool:
            times.append(self.step)
            return len(times) == tokens

        sequence = Sequence(prompt, advance)
        self.batch.add(sequence, priority)
        return sequence

    def run(self, most: int = 1_000) -> None:
        for _ in range(most):
            step_s = self.batch.begin_step()
            if step_s == 0:
                return
            self.step += 1
            self.took_s.append(step_s)
            self.batch.end_step()


def test_a_step_costs_12_ms_and_a_fifth_for_each_sequence() -> None:
    """Decoding three sequences: 12.6 ms a step; the prompts' tokens come on top."""
    bench = Bench(DEFAULT)
    for name in "abc":
        bench.add(name, prompt=100, tokens=3)
    bench.run()
    assert bench.took_s == pytest.approx([0.0126 + 300 / 20_000, 0.0126, 0.0126])


def test_a_long_prompt_spreads_over_steps() -> None:
    """While it is computed, others go on saying a token a step."""
    bench = Bench(replace(DEFAULT, prefill_tokens_a_step=2_000))
    bench.add("short", prompt=10, tokens=5)
    bench.run(most=1)
    bench.add("long", prompt=5_000, tokens=1)
    bench.run()
    assert bench.said == {"short": [1, 2, 3, 4, 5], "long": [4]}
    assert bench.took_s[1:4] == pytest.approx([0.0124 + n / 20_000 for n in (2_000, 2_000, 1_000)])


def test_who_finds_no_slot_waits_in_order() -> None:
    """Two slots: the third starts in the step after the first ended."""
    bench = Bench(SMALL)
    for name, tokens in (("a", 2), ("b", 4), ("c", 1), ("d", 1)):
        bench.add(name, prompt=1, tokens=tokens)
    bench.run(most=1)
    assert (bench.batch.running, bench.batch.waiting) == (2, 2)
    bench.run()
    assert bench.said == {"a": [1, 2], "b": [1, 2, 3, 4], "c": [3], "d": [4]}
    assert (bench.batch.running, bench.batch.waiting, bench.batch.kv_usage) == (0, 0, 0)


@pytest.mark.parametrize(
    ("scheduling", "order"), [("fcfs", ["b", "c", "d"]), ("priority", ["c", "b", "d"])]
)
def test_priority_counts_only_where_it_is_scheduled(scheduling: Any, order: list[str]) -> None:
    """The lowest number first, ties by arrival; a running one is not pushed out for a slot."""
    bench = Bench(replace(SMALL, slots=1, scheduling=scheduling))
    bench.add("a", prompt=1, tokens=3, priority=9)
    bench.run(most=1)
    for name, priority in (("b", 0), ("c", -1), ("d", 0)):
        bench.add(name, prompt=1, tokens=1, priority=priority)
    bench.run()
    assert bench.said["a"] == [1, 2, 3]
    assert sorted("bcd", key=lambda name: bench.said[name]) == order


@pytest.mark.parametrize(("scheduling", "victim"), [("fcfs", "b"), ("priority", "a")])
def test_full_blocks_preempt_the_worst(scheduling: Any, victim: str) -> None:
    """The latest, or the worst priority, gives its blocks and is computed again; what it said
    stays said, each token once."""
    bench = Bench(replace(SMALL, scheduling=scheduling))
    bench.add("a", prompt=8, tokens=12, priority=1)
    bench.add("b", prompt=8, tokens=12, priority=0)
    bench.run()
    other = "b" if victim == "a" else "a"
    assert bench.batch.preemptions == 1
    assert bench.said[other] == list(range(1, 13))
    assert len(bench.said[victim]) == 12
    pause = next(i for i in range(12) if bench.said[victim][i] != i + 1)
    assert bench.said[victim][pause] == 13
    # Its prompt and what it had said are computed again.
    assert bench.took_s[12] == pytest.approx(0.0122 + (8 + pause) / 20_000)


def test_blocks_let_only_those_in_that_fit() -> None:
    """Eight blocks of four: prompts of 15 take four blocks each, and a third none."""
    bench = Bench(replace(SMALL, slots=8))
    for name in "abc":
        bench.add(name, prompt=15, tokens=1)
    bench.run(most=0)
    assert bench.batch.begin_step() > 0
    assert (bench.batch.running, bench.batch.waiting, bench.batch.kv_usage) == (2, 1, 1.0)


def test_a_removed_sequence_is_gone_at_once() -> None:
    """Running or waiting, it frees its place for others; removing it again changes nothing."""
    bench = Bench(replace(SMALL, slots=1))
    running = bench.add("a", prompt=1, tokens=9)
    waiting = bench.add("b", prompt=1, tokens=9)
    bench.add("c", prompt=1, tokens=1)
    bench.run(most=1)
    for sequence in (waiting, running, running):
        bench.batch.remove(sequence)
    assert (bench.batch.running, bench.batch.waiting, bench.batch.kv_usage) == (0, 1, 0)
    bench.run()
    assert bench.said == {"a": [1], "b": [], "c": [2]}


@given(
    work=st.lists(
        st.tuples(st.integers(1, 16), st.integers(1, 16), st.integers(-2, 2), st.integers(0, 30)),
        max_size=12,
    ),
    scheduling=st.sampled_from(["fcfs", "priority"]),
)
def test_whatever_comes_all_is_said_and_nothing_leaks(work: Any, scheduling: Any) -> None:
    """Any mix of prompts, lengths, priorities and arrivals: blocks and slots are never overdrawn,
    everyone says all of its tokens, one a step at most, and at the end the cache is empty."""
    bench = Bench(replace(SMALL, slots=3, scheduling=scheduling))
    work.sort(key=lambda item: item[3])
    for number, (prompt, tokens, priority, at) in enumerate(work):
        while bench.step < at and bench.batch.running:
            bench.run(most=1)
            assert bench.batch.running <= 3
            assert 0 <= bench.batch.kv_usage <= 1
        bench.add(str(number), prompt, tokens, priority)
    bench.run()
    assert [len(bench.said[str(n)]) for n in range(len(work))] == [item[1] for item in work]
    assert all(len(set(times)) == len(times) for times in bench.said.values())
    assert (bench.batch.running, bench.batch.waiting, bench.batch.kv_usage) == (0, 0, 0)


@pytest.mark.parametrize(
    "sizes",
    [{"num_blocks": 1}, {"slots": 0}, {"step_ms": -1}, {"prefill_tokens_per_s": 0}],
)
def test_a_profile_that_cannot_serve_is_refused(sizes: dict[str, Any]) -> None:
    """A context that never fits would wait for ever."""
    with pytest.raises(ValueError, match=r"profile|fit"):
        replace(DEFAULT, **sizes)
