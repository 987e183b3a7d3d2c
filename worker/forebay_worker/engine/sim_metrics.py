"""The simulated engine's /metrics page under vLLM's names."""

from __future__ import annotations

from forebay_worker.engine.base import Load
from forebay_worker.engine.profile import Profile
from forebay_worker.engine.sim_log import Totals

_REASONS = ("stop", "length", "abort")


def metrics_page(model: str, profile: Profile, load: Load, totals: Totals) -> str:
    """Prometheus text."""
    label = f'engine="0",model_name="{model}"'
    sample = f"{{{label}}}"
    lines = [
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{sample} {float(load.running)}",
        "# TYPE vllm:num_requests_waiting gauge",
        f"vllm:num_requests_waiting{sample} {float(load.waiting)}",
        "# TYPE vllm:kv_cache_usage_perc gauge",
        f"vllm:kv_cache_usage_perc{sample} {load.kv_usage}",
        "# TYPE vllm:num_preemptions_total counter",
        f"vllm:num_preemptions_total{sample} {float(load.preemptions)}",
        "# TYPE vllm:prompt_tokens_total counter",
        f"vllm:prompt_tokens_total{sample} {float(totals.prompt_tokens)}",
        "# TYPE vllm:generation_tokens_total counter",
        f"vllm:generation_tokens_total{sample} {float(totals.generation_tokens)}",
        "# TYPE vllm:request_success_total counter",
        *(
            f'vllm:request_success_total{{finished_reason="{reason}",{label}}} '
            f"{float(totals.finished[reason])}"
            for reason in _REASONS
        ),
        "# TYPE vllm:cache_config_info gauge",
        f'vllm:cache_config_info{{block_size="{profile.block_size}",engine="0",'
        f'kv_cache_size_tokens="{profile.kv_tokens}",num_gpu_blocks="{profile.num_blocks}"}} 1.0',
    ]
    return "\n".join(lines) + "\n"
