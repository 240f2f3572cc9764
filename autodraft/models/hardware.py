"""What the processors of this machine are called and what they can do.

Knows torch's view of the hardware. Knows no models, no configuration and no prices.
"""

import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

_CPU_INFO: Final = Path("/proc/cpuinfo")
_NATIVE_BFLOAT16_FEATURES: Final = ("amx_bf16", "avx512_bf16")


@dataclass(frozen=True)
class Device:
    """One processor that a model can run on.

    Attributes:
        name: torch's name, for example ``cpu`` or ``cuda:0``.
        label: What its maker calls it.
        memory_bytes: Its own memory; ``None`` where torch does not tell (CPU, MPS).
        native_bfloat16: Whether it multiplies bfloat16 without emulation.
    """

    name: str
    label: str
    memory_bytes: int | None
    native_bfloat16: bool


def native_bfloat16(device: torch.device | str = "cpu") -> bool:
    """Tell whether a device multiplies bfloat16 natively, which decides ``DTYPE=auto`` on a CPU.

    On a CPU that means AMX or AVX512-BF16: without them bfloat16 is emulated and slower than
    float32. An accelerator that torch cannot be asked about counts as not native.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return any(_cpu_has(feature) for feature in _NATIVE_BFLOAT16_FEATURES)
    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return False


def device_label(device: torch.device | str) -> str:
    """Return the maker's name of a device, for tables and profiles."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        return _cpu_label()
    return f"{platform.machine()} {device.type}"


def devices() -> tuple[Device, ...]:
    """List the processors that a model can run on, the CPU first."""
    names = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        names.append("mps")
    return tuple(
        Device(
            name=name,
            label=device_label(name),
            memory_bytes=_memory_bytes(name),
            native_bfloat16=native_bfloat16(name),
        )
        for name in names
    )


def gpu_uuids(devices: Iterable[torch.device | str]) -> tuple[str, ...]:
    """Return what the vendor's library calls the CUDA devices among ``devices``, each once."""
    cuda = {torch.device(device) for device in devices}
    indices = {
        torch.cuda.current_device() if device.index is None else device.index
        for device in cuda
        if device.type == "cuda"
    }
    return tuple(f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in sorted(indices))


def torch_threads() -> int:
    """Return how many threads one torch operation uses on the CPU."""
    return torch.get_num_threads()


def _memory_bytes(name: str) -> int | None:
    if not name.startswith("cuda"):
        return None
    return int(torch.cuda.get_device_properties(name).total_memory)


def _cpu_has(feature: str) -> bool:
    if hasattr(torch.cpu, "get_capabilities"):
        return bool(torch.cpu.get_capabilities().get(feature))
    return feature in _cpu_info("flags").split()  # an older torch


def _cpu_label() -> str:
    return _cpu_info("model name") or platform.processor() or platform.machine()


def _cpu_info(key: str) -> str:
    """Return one field of the first processor, or an empty string where there is no such file."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return ""
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in fields if name.strip() == key), "")
