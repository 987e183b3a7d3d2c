"""vLLM's Prometheus names: what a load reading takes from them."""

from __future__ import annotations

import re
from typing import NamedTuple

from forebay_worker.engine.base import Load

# One search over the page instead of a parse of it: it has thousands of lines and is read
# several times a second. The pattern begins with plain text (not `^`, which costs twenty times
# as much), so that the lines of no interest are skipped fast.
_SAMPLE = re.compile(
    rb"\nvllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc"
    rb"|num_preemptions_total|cache_config_info)(?:\{(.*)\})? (\S+)"
)
_LABEL = re.compile(rb'(kv_cache_size_tokens|num_gpu_blocks|block_size)="(\d+)"')


class _Sample(NamedTuple):
    name: bytes
    labels: bytes
    value: float


def parse_load(page: bytes) -> Load:
    """The load that a /metrics page tells; replicas behind one server (label `engine`) are
    summed, their KV usage averaged. `slots` is always None: vLLM does not show its limit."""
    samples = [_Sample(m[1], m[2] or b"", float(m[3])) for m in _SAMPLE.finditer(b"\n" + page)]
    usage = _values(samples, b"kv_cache_usage_perc")
    tokens = [_kv_tokens(s.labels) for s in samples if s.name == b"cache_config_info"]
    known = [t for t in tokens if t is not None]
    return Load(
        running=int(sum(_values(samples, b"num_requests_running"))),
        waiting=int(sum(_values(samples, b"num_requests_waiting"))),
        kv_usage=sum(usage) / len(usage) if usage else 0.0,
        preemptions=int(sum(_values(samples, b"num_preemptions_total"))),
        kv_tokens=sum(known) if known else None,
        slots=None,
    )


def _values(samples: list[_Sample], name: bytes) -> list[float]:
    return [s.value for s in samples if s.name == name]


def _kv_tokens(labels: bytes) -> int | None:
    """Newer vLLM tells the tokens; with older ones they are blocks times block size."""
    found = {name: int(value) for name, value in _LABEL.findall(labels)}
    tokens = found.get(b"kv_cache_size_tokens")
    if tokens is None and b"num_gpu_blocks" in found and b"block_size" in found:
        tokens = found[b"num_gpu_blocks"] * found[b"block_size"]
    return tokens
