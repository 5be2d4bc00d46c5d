"""The machine and the versions that a measurement was made with."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import portpe
from portpe.bench import pages

PACKAGES = (
    *("numpy", "onnx", "onnx-ir", "onnxruntime", "torch", "onnxscript", "transformers", "mlx", "mlx-lm"),
    *("mobius-onnx", "onnxruntime-genai"),
)


def describe() -> dict[str, Any]:
    """Processor, cores that this process may use, memory and its pages, system, and how busy the machine is."""
    return {
        "processor": _processor(),
        "architecture": platform.machine(),
        "cores": cores(),
        "memory_bytes": _meminfo("MemTotal"),
        "pages": pages.current(os.environ),
        "transparent_hugepage": pages.kernel(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
    }


def versions() -> dict[str, str]:
    """Portpe's and those of every package installed that has a part."""
    found = {"portpe": portpe.__version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory() -> int | None:
    """Bytes that can be had without swapping; None where the system does not say."""
    return _meminfo("MemAvailable")


def _meminfo(key: str) -> int | None:
    path = Path("/proc/meminfo")
    if path.is_file():
        for line in path.read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    if key == "MemTotal" and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
