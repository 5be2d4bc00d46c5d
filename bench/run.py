"""The whole bench of one bundle."""

from __future__ import annotations

import dataclasses
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from portpe.bench import competitors as entrants
from portpe.bench import export_cost, machine, process_memory
from portpe.bench.competitor import Competitor
from portpe.bench.limits import Limits
from portpe.bench.matrix import Machine
from portpe.bench.measure import CaseRun
from portpe.bench.result import Entrant, LeftOut, Report
from portpe.bench.settings import Settings
from portpe.bench.subject import Subject, of_bundle, plain_twin
from portpe.bundle import Bundle
from portpe.errors import SpecError
from portpe.spec import AttentionSpec
from portpe.tables import end_of

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

Say = Callable[[str], None]


def bench(
    bundle: Bundle, settings: Settings, work: Path, *, dtype: str | None = None, say: Say = lambda _step: None
) -> Report:
    """Measure every competitor that can run the bundle's layer.

    Args:
        bundle: the layer, with the graph forms that take part.
        settings: what is measured.
        work: an empty folder for what is built on the way.
        dtype: the type, if the bundle has several; None takes its first.
        say: told each step.

    Raises:
        SpecError: settings that break a rule, a type that the bundle lacks, a runtime that is unknown or missing.
    """
    settings.check()
    check(bundle.spec)
    dtype = dtype or bundle.dtypes[0]
    if dtype not in bundle.dtypes:
        raise SpecError(f"dtype must be one of the bundle's {', '.join(bundle.dtypes)}, got {dtype}")
    _set_threads(settings.threads)
    usable, listed = _entrants(settings)
    subject = of_bundle(bundle, dtype, work / "encoded")
    subject.folder.mkdir(parents=True)
    say("the layer without its encoding")
    twin = plain_twin(subject, work / "plain")
    subjects = [one for one in (subject, twin) if one is not None]
    say("limits of this machine")
    limits = Limits(settings.threads, small=settings.small)
    limits.measure()
    report = _report(bundle, dtype, settings, listed)
    _cases(report, subjects, usable, settings, limits, say)
    if settings.processes:
        export_cost.measure(report, subject, work, settings, say)
        process_memory.measure(report, bundle, subject, usable, settings, say)
    report.limits = {
        name: {**dataclasses.asdict(limit.spread()), "unit": f"{limit.unit}/s", "method": limit.method}
        for name, limit in limits.all.items()
    }
    report.machine["load_average_after"] = machine.describe()["load_average"]
    return report


def check(spec: AttentionSpec) -> None:
    """Refuse a layer that has neither peers nor limits here. Raises SpecError."""
    if spec.attention != "softmax":
        raise SpecError(
            f"attention must be softmax for bench, whose peers and limits are those of a softmax, got {spec.attention}"
        )
    if spec.cached_states:
        names = ", ".join(spec.cached_states)
        raise SpecError(f"bias must cache keys and values alone for bench, whose caches hold no more, got {names}")


def _cases(
    report: Report,
    subjects: list[Subject],
    usable: list[Competitor],
    settings: Settings,
    limits: Limits,
    say: Say,
) -> None:
    """Every case, the cheap ones first."""
    ends = {one.key: end_of(one.spec, one.tables) for one in subjects}
    for case in settings.cases(subjects[0].spec):
        run = CaseRun(case, subjects, ends, settings, limits, lambda: _estimate(limits), say)
        if (found := run.run(usable)) is not None:
            report.cases.append(found)
        report.left_out += run.left_out
    report.left_out[:] = _merged(report.left_out, [case.name for case in settings.cases(subjects[0].spec)])


def _estimate(limits: Limits) -> Machine:
    """As it is now: those who are ready for a case hold memory until it is over."""
    gc.collect()
    return Machine(machine.available_memory(), limits.rate("read_bandwidth"), limits.rate("gemm_rate"))


def _merged(left_out: list[LeftOut], cases: list[str]) -> list[LeftOut]:
    """One line where a competitor stays out of every case for the same reason."""
    seen: dict[tuple[str | None, str], list[LeftOut]] = {}
    for one in left_out:
        seen.setdefault((one.competitor, one.reason), []).append(one)
    found = []
    for (name, reason), members in seen.items():
        if set(cases) <= {one.case for one in members}:
            found.append(LeftOut(name, None, reason, members[0].failed))
        else:
            found += members
    return found


def _entrants(settings: Settings) -> tuple[list[Competitor], list[Entrant]]:
    """Those that can run here, and all of them as they are listed. Raises SpecError."""
    for name in settings.runtimes:
        if name not in entrants.RUNTIMES:
            raise SpecError(f"runtime must be one of {', '.join(entrants.RUNTIMES)}, got {name!r}")
    everybody = entrants.every(settings.threads)
    for name in settings.only:
        if name not in (names := [one.name for one in everybody]):
            raise SpecError(f"only must be one of {', '.join(names)}, got {name!r}")
    usable, listed = [], []
    for competitor in everybody:
        if settings.only and competitor.name not in settings.only:
            continue
        if settings.runtimes and competitor.runtime not in settings.runtimes:
            continue
        if competitor.peer and not settings.peers:
            continue
        found = competitor.availability()
        if found.usable:
            usable.append(competitor)
        listed.append(
            Entrant(
                competitor.name,
                competitor.runtime,
                competitor.peer,
                found.usable,
                found.version,
                found.reason,
                competitor.threads,
                competitor.note,
            )
        )
    return usable, listed


def _report(bundle: Bundle, dtype: str, settings: Settings, listed: list[Entrant]) -> Report:
    spec = bundle.spec
    sizes = ("hidden_size", "num_heads", "num_kv_heads", "head_dim", "v_head_dim", "window")
    subject: dict[str, Any] = {
        "name": bundle.manifest.get("source", {}).get("name"),
        "layer": bundle.layer,
        "dtype": dtype,
        "batch": 1,
        **{name: getattr(spec, name) for name in sizes},
        "encodings": [site.kind for site in (spec.embedding, spec.rotary, *spec.bias) if site is not None],
        "spec": spec.to_dict(),
    }
    notes = [f"{one.name}: {one.note}" for one in listed if one.usable and one.note]
    asked = {**dataclasses.asdict(settings), "clock": settings.clock}
    return Report(subject, asked, machine.describe(), machine.versions(), {}, listed, notes=notes)


def _set_threads(threads: int) -> None:
    """As far as that can be done after the start: libraries that read the environment have read it by now."""
    for variable in THREAD_VARIABLES:
        os.environ.setdefault(variable, str(threads))
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(threads)
