"""What an export costs: graphs in this process, whole processes, and imports; ours beside others'."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from portpe.bench.competitor import installed
from portpe.bench.competitors import llama, mobius, torch_export
from portpe.bench.result import LeftOut, Report, Timing
from portpe.bench.settings import Settings
from portpe.bench.statistics import spread
from portpe.bench.subject import Subject
from portpe.checkpoint import random_weights
from portpe.exporters import onnx as exporter
from portpe.sizing import reduced_spec

Say = Callable[[str], None]

TORCH_EXPORT = torch_export.TorchOnnxExport("", 1).name
BUILDS = 9
PROCESSES = 3
TINY = 64  # hidden size of the layer that whole processes export
IMPORTS = ("portpe", "onnx", "onnx_ir", "onnxruntime", "torch", "transformers", "mlx.core", "mobius")


def measure(report: Report, subject: Subject, work: Path, settings: Settings, say: Say) -> None:
    """Fill ``export``, ``processes`` and ``imports``; what cannot be run is left out by name."""
    del settings
    for form in subject.graphs:
        say(f"export: {form}")
        report.export.append(_build(subject, form))
    found = installed("torch", "onnxscript", "onnx")
    if found.usable:
        say(f"export: {TORCH_EXPORT}")
        try:
            report.export.append(_torch_export(subject))
        except Exception as error:  # the exporter raises what it likes
            report.left_out.append(LeftOut(TORCH_EXPORT, "export", f"{type(error).__name__}: {error}"[:300]))
    else:
        report.left_out.append(LeftOut(TORCH_EXPORT, "export", found.reason or "not usable"))
    report.processes += _processes(report, subject, work, say)
    for module in IMPORTS:
        if installed(module).usable:
            say(f"import: {module}")
            report.imports.append(_process(f"import {module}", ["-c", f"import {module}"]))


def _build(subject: Subject, form: str) -> Timing:
    """Portpe's own graph: serialized bytes, the weights where they lie."""
    import onnx

    walls, cpus, model = [], [], b""
    for _ in range(BUILDS):
        cpu, wall = time.process_time(), time.perf_counter()
        model = exporter.build(
            subject.spec,
            form=form,
            dtype=subject.dtype,
            layer=subject.layer,
            tables=subject.tables,
            weights=subject.external,
        )
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    nodes = len(onnx.load_model_from_string(model).graph.node)
    return Timing(f"portpe {form}", spread(walls), spread(cpus), BUILDS, nodes, len(model))


def _torch_export(subject: Subject) -> Timing:
    """One call of torch.onnx.export; its program holds the weights, which the size leaves out as ours does."""
    block = torch_export.reference(subject)  # made before the clock starts
    with torch_export.quiet():
        cpu, wall = time.process_time(), time.perf_counter()
        program = torch_export.exported(subject, block)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    model = program.model_proto
    weights = sum(
        len(tensor.raw_data) for tensor in model.graph.initializer if tensor.name.endswith((".weight", ".bias"))
    )
    return Timing(TORCH_EXPORT, spread([wall]), spread([cpu]), 1, len(model.graph.node), model.ByteSize() - weights)


def _processes(report: Report, subject: Subject, work: Path, say: Say) -> list[Timing]:
    """Whole processes on a tiny layer of the same encoding, from the first import to the files."""
    tiny = reduced_spec(subject.spec, TINY)
    home = work / "tiny"
    home.mkdir()
    (home / "spec.json").write_text(tiny.to_json())
    say("processes: portpe export --no-golden")
    output = str(home / "bundle")
    command = ["-m", "portpe", "export", str(home / "spec.json"), "-o", output, "--no-golden", "--force"]
    found = [_process("portpe export --no-golden", command)]
    able, reason = installed("mobius", "transformers"), llama.beyond_llama(tiny)
    if not able.usable or reason:
        report.left_out.append(LeftOut("mobius build", "process", able.reason or reason or "not usable"))
        return found
    say("processes: mobius build")
    layer = Subject(tiny, "float32", 0, random_weights(tiny, 0), {}, {}, home)
    source = llama.checkpoint(layer, home / "llama")
    arguments = mobius.build_command(source, home / "mobius", "float32", ())
    return [*found, _process("mobius build", ["-m", *arguments])]


def _process(name: str, arguments: Sequence[str]) -> Timing:
    """A new interpreter, run once untimed and then PROCESSES times."""
    walls, cpus = [], []
    for number in range(PROCESSES + 1):
        before, start = os.times(), time.perf_counter()
        subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
            capture_output=True,
            check=True,
        )
        wall, after = time.perf_counter() - start, os.times()
        if number:
            walls.append(wall)
            cpus.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return Timing(name, spread(walls), spread(cpus), PROCESSES)
