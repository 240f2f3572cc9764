"""Where the benchmarks look for question files, as the harness does. Knows no question."""

from huggingface_hub.constants import HF_HUB_OFFLINE

from autodraft.settings import bench_dir, cache_dir
from evaluation.datasets import Locations


def locations() -> Locations:
    """Return where question files are looked for."""
    return Locations(
        bench_dir=None,
        environment_dir=bench_dir(),
        cache_dir=cache_dir(),
        download=not HF_HUB_OFFLINE,
    )
