"""How fast and how large a simulated engine is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scheduling = Literal["fcfs", "priority"]


@dataclass(frozen=True, slots=True)
class Profile:
    """Rates and sizes of a simulated engine; times are before `speed` divides them.

    One step of the batch takes `step_ms` + `step_sequence_ms` for each running sequence + the
    prompt tokens prefilled in it / `prefill_tokens_per_s`. Raises ValueError for sizes that
    contradict each other.
    """

    step_ms: float = 12.0
    step_sequence_ms: float = 0.2
    prefill_tokens_per_s: float = 20_000.0
    prefill_tokens_a_step: int = 2_048
    """Prompt tokens that one step takes at most; longer prompts spread over steps."""
    slots: int = 16
    """Sequences that run at once; the rest waits inside the engine."""
    block_size: int = 16
    """Tokens of a KV block."""
    num_blocks: int = 4_096
    max_model_len: int = 16_384
    """Tokens of the context: prompt and output together."""
    scheduling: Scheduling = "fcfs"
    """`priority` serves the lowest number first, ties by arrival."""
    instant: bool = False
    """Answer at once: no batch, no slots, no time."""

    def __post_init__(self) -> None:
        sizes = (self.prefill_tokens_a_step, self.slots, self.block_size, self.max_model_len)
        if min(sizes) < 1 or self.prefill_tokens_per_s <= 0:
            raise ValueError("sizes and rates of a profile must be above zero")
        if min(self.step_ms, self.step_sequence_ms) < 0:
            raise ValueError("times of a profile must not be negative")
        # A sequence that can never fit would wait for ever, with all behind it.
        if self.max_model_len > self.kv_tokens:
            raise ValueError(
                f"a context of {self.max_model_len} tokens does not fit into "
                f"{self.num_blocks} blocks of {self.block_size}"
            )

    @property
    def kv_tokens(self) -> int:
        """Tokens that the whole KV cache holds."""
        return self.num_blocks * self.block_size


DEFAULT = Profile()
"""Roughly a small model on one data-centre GPU."""
ZERO = Profile(instant=True, slots=1_024, num_blocks=1_048_576)
"""Serves without delay: what is left is the cost of everything round the engine."""
PROFILES = {"default": DEFAULT, "zero": ZERO}


def named(profile: Profile | str) -> Profile:
    """The profile of this name. Raises ValueError where there is none."""
    if isinstance(profile, Profile):
        return profile
    if profile not in PROFILES:
        raise ValueError(f"profile must be one of {', '.join(PROFILES)}, got {profile!r}")
    return PROFILES[profile]
