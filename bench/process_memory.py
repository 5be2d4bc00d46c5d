"""Peak memory of one competitor in a process of its own.

``python -m portpe.bench.process_memory BUNDLE DTYPE NAME PHASE LENGTH THREADS FOLDER`` prints one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from portpe.bench.case import Case, inputs
from portpe.bench.competitor import Competitor
from portpe.bench.result import LeftOut, Memory, Report
from portpe.bench.settings import Settings
from portpe.bench.subject import Subject, of_bundle
from portpe.bundle import Bundle

CASES = (Case("decode", 2048), Case("prefill", 512))
LONGEST = 300  # seconds
FRAMEWORKS = {"onnxruntime": "onnxruntime", "pytorch": "torch", "mlx": "mlx.core"}

Say = Callable[[str], None]


def measure(
    report: Report, bundle: Bundle, subject: Subject, competitors: Iterable[Competitor], settings: Settings, say: Say
) -> None:
    """Fill ``memory`` with two cases a competitor, those it ran."""
    for competitor in competitors:
        for case in CASES:
            if not any(
                case.name == ran.name and any(one.competitor == competitor.name and one.wall for one in ran.results)
                for ran in report.cases
            ):
                continue
            say(f"memory: {competitor.name}, {case.name}")
            arguments = [
                *(str(bundle.path), subject.dtype, competitor.name, case.phase, str(case.length)),
                *(str(settings.threads), str(subject.folder)),
            ]
            found = _child(arguments)
            if isinstance(found, str):
                report.left_out.append(LeftOut(competitor.name, f"memory, {case.name}", found))
            else:
                report.memory.append(Memory(competitor.name, case.name, found["imported"], found["peak"]))


def _child(arguments: list[str]) -> dict[str, int] | str:
    """What the process printed, or why it did not."""
    command = [sys.executable, "-m", __name__, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return f"it took longer than {LONGEST} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1][:300]
    found: dict[str, int] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def peak_bytes() -> int:
    """The most memory that this process has had at once: VmHWM, or what getrusage says."""
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main(arguments: list[str]) -> None:
    """Load one competitor, run one case twice, and print the peaks."""
    from portpe.bench import competitors

    path, dtype, name, phase, length, threads, folder = arguments
    chosen = next(one for one in competitors.every(int(threads)) if one.name == name)
    importlib.import_module(FRAMEWORKS[chosen.runtime])
    imported = peak_bytes()
    case = Case("decode" if phase == "decode" else "prefill", int(length))
    subject = of_bundle(Bundle.open(path, verify=False), dtype, Path(folder))
    prepared = chosen.prepare(subject, case, inputs(subject.spec, case, dtype))
    for _ in range(2):
        prepared.run()
    print(json.dumps({"imported": imported, "peak": peak_bytes()}))


if __name__ == "__main__":
    main(sys.argv[1:])
