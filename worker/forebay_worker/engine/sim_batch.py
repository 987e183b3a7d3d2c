"""Continuous batching without a clock: who runs, who waits, what a step costs.

Each step every running sequence gets one token. A new sequence needs a slot, KV blocks for its
prompt, and prefill before its first token. When a token needs a block and none is free, the
running sequence of worst rank loses its blocks, waits at the place of its rank and is
recomputed later; what it said stays said.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass

from forebay_worker.engine.profile import Profile

Rank = tuple[int, int]


@dataclass(eq=False, slots=True)
class Sequence:
    """One prompt in the batch and what it has said so far."""

    prompt_tokens: int
    advance: Callable[[], bool]
    """Say one token (a pooling prompt: give its result); True when that was the last."""
    rank: Rank = (0, 0)
    """Priority and arrival; the lowest runs first and is preempted last."""
    said: int = 0
    to_prefill: int = 0
    blocks: int = 0
    running: bool = False
    gone: bool = False
    """Finished or aborted."""


class Batch:
    """The scheduler's state; `begin_step`, wait what it says, `end_step`."""

    def __init__(self, profile: Profile) -> None:
        self.preemptions = 0
        self._profile = profile
        self._running: list[Sequence] = []
        self._waiting: list[Sequence] = []
        self._free_blocks = profile.num_blocks
        self._arrivals = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Used part of the blocks, 0 to 1."""
        return 1 - self._free_blocks / self._profile.num_blocks

    def add(self, sequence: Sequence, priority: int) -> None:
        """Queue a sequence."""
        self._arrivals += 1
        by_priority = self._profile.scheduling == "priority"
        sequence.rank = (priority if by_priority else 0, self._arrivals)
        self._enqueue(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out wherever it is; its slot and blocks are free at once."""
        if sequence.gone:
            return
        sequence.gone = True
        if sequence.running:
            self._leave(sequence)
        else:
            self._waiting.remove(sequence)

    def begin_step(self) -> float:
        """Grow, preempt, admit; the step's length in seconds, 0 when nothing runs."""
        for sequence in tuple(self._running):
            if sequence.running:
                self._grow(sequence)
        self._admit()
        if not self._running:
            return 0.0
        profile = self._profile
        decode_ms = profile.step_ms + profile.step_sequence_ms * len(self._running)
        return decode_ms / 1e3 + self._prefill() / profile.prefill_tokens_per_s

    def end_step(self) -> None:
        """Let every sequence whose prompt is computed say its token."""
        for sequence in tuple(self._running):
            if sequence.running and sequence.to_prefill == 0:
                sequence.said += 1
                if sequence.advance():
                    self.remove(sequence)

    def _grow(self, sequence: Sequence) -> None:
        """Give the block that the next token needs, at the cost of the worst rank."""
        while sequence.running and self._missing(sequence) > self._free_blocks:
            victim = max(self._running, key=lambda s: s.rank)
            self.preemptions += 1
            self._leave(victim)
            self._enqueue(victim)
        if sequence.running:
            self._take_blocks(sequence)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._profile.slots:
            sequence = self._waiting[0]
            if self._missing(sequence) > self._free_blocks:
                return
            del self._waiting[0]
            self._take_blocks(sequence)
            sequence.to_prefill = sequence.prompt_tokens + sequence.said
            sequence.running = True
            self._running.append(sequence)

    def _prefill(self) -> int:
        """Compute prompts in order of admission; the tokens this step takes."""
        left = self._profile.prefill_tokens_a_step
        for sequence in self._running:
            part = min(left, sequence.to_prefill)
            sequence.to_prefill -= part
            left -= part
        return self._profile.prefill_tokens_a_step - left

    def _missing(self, sequence: Sequence) -> int:
        tokens = sequence.prompt_tokens + sequence.said + 1
        return -(-tokens // self._profile.block_size) - sequence.blocks

    def _take_blocks(self, sequence: Sequence) -> None:
        missing = self._missing(sequence)
        self._free_blocks -= missing
        sequence.blocks += missing

    def _enqueue(self, sequence: Sequence) -> None:
        insort(self._waiting, sequence, key=lambda s: s.rank)

    def _leave(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        sequence.running = False
        self._free_blocks += sequence.blocks
        sequence.blocks = 0
