"""The matrix: runtimes, their configurations, and the golden cases of a bundle."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

import portpe
from portpe.bundle import Bundle, split_type
from portpe.errors import SpecError
from portpe.golden import GoldenCase
from portpe.parity import agreement, call, walk
from portpe.parity.bounds import Exact
from portpe.parity.compare import Comparison, broken
from portpe.parity.layouts import QUICK
from portpe.parity.outcome import EXCEPTION, Check, Report, Unavailable, check_of
from portpe.parity.stages import Block
from portpe.runtimes import base
from portpe.runtimes.base import Configuration, Runtime, Session
from portpe.weight_shapes import weight_shapes

Matrix = Literal["quick", "default", "full"]
Progress = Callable[[str], None]

WIDE = 512  # hidden size beyond which the ONNX reference evaluator takes minutes in a 16-bit type


def check(
    bundle: Bundle | str | os.PathLike[str],
    runtimes: Iterable[str] | None = None,
    *,
    matrix: Matrix = "default",
    graph: str | Path | None = None,
    provider: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Run a bundle's golden cases in every runtime and judge each stage.

    Args:
        bundle: an open one, or its folder.
        runtimes: names; one that is missing is then a failure. None: all that are usable here.
        matrix: ``quick``: six cases at each runtime's last optimisation level; ``default``: every case in every
            configuration; ``full``: the same, with every head and row of every stage, not the sampled ones.
        graph: an ONNX file to judge in place of the bundle's own, on output and cache, by ONNX Runtime.
        provider: the execution provider, or the device, that is asked of each runtime that has any.
        progress: told each configuration.

    Raises:
        SpecError: the bundle has no golden values, an unknown runtime, a provider or graph that cannot be used.
    """
    if matrix not in ("quick", "default", "full"):
        raise SpecError(f"matrix must be quick, default or full, got {matrix!r}")
    opened = bundle if isinstance(bundle, Bundle) else Bundle.open(Path(bundle))
    run = _Run(opened, matrix, progress or (lambda _step: None))
    if graph is not None:
        return run.graph(Path(graph), provider)
    return run.everything(None if runtimes is None else list(runtimes), provider)


class _Run:
    """One parity run; what depends on a type alone is made once."""

    def __init__(self, bundle: Bundle, matrix: Matrix, progress: Progress) -> None:
        self.bundle, self.matrix, self.progress = bundle, matrix, progress
        self.checks: list[Check] = []
        self.unavailable: list[Unavailable] = []
        self.versions: dict[str, str] = {"portpe": portpe.__version__}
        self._truths: dict[str, tuple[Block, list[tuple[GoldenCase, call.Expected]]]] = {}

    def everything(self, names: list[str] | None, provider: str | None) -> Report:
        """Every runtime that is usable, or those asked for."""
        self._need_golden()
        missing = []
        for name in dict.fromkeys(base.names() if names is None else names):
            runtime = base.get(name)
            found = runtime.availability()
            if not found.usable:
                self.unavailable.append(Unavailable(name, found.reason or "it cannot be used here"))
                missing += [name] if names is not None else []
                continue
            self.versions[name] = found.version or "unknown"
            try:
                self._runtime(runtime, provider)
            except SpecError as error:  # a provider of ONNX Runtime's need not be one of another runtime's devices
                if names is not None or provider is None or name == "onnxruntime":
                    raise
                self.unavailable.append(Unavailable(name, str(error)))
        return self._report(tuple(missing))

    def graph(self, path: Path, provider: str | None) -> Report:
        """A graph of the user's own, at every optimisation level."""
        self._need_golden()
        runtime = base.get("onnxruntime")
        found = runtime.availability()
        if not found.usable:
            self.unavailable.append(Unavailable(runtime.name, found.reason or "it cannot be used here"))
            return self._report((runtime.name,))
        from portpe.runtimes import onnxruntime

        self.versions[runtime.name] = found.version or "unknown"
        full_name = onnxruntime.resolve_provider(provider)
        for level in onnxruntime.LEVELS:
            session = onnxruntime.open_graph(
                path, self.bundle.spec, layer=self.bundle.layer, provider=provider, optimization=level
            )
            asked = Configuration(path.name, self._dtype_of(path, full_name), full_name, level)
            self.progress(f"{path.name} {level}")
            self._cases(runtime.name, asked, session, stages=False)
        return self._report(())

    def _dtype_of(self, path: Path, provider: str) -> str:
        """The type of a graph's hidden_states, which golden values must be there for. Raises SpecError."""
        from portpe.runtimes import onnxruntime

        inputs = onnxruntime.load(path, provider, "disable").get_inputs()
        named = next(value.type for value in inputs if value.name == "hidden_states")
        dtype = {"tensor(float)": "float32"}.get(named, named.removeprefix("tensor(").removesuffix(")"))
        if dtype not in self.bundle.dtypes:
            raise SpecError(f"graph must be in {' or '.join(self.bundle.dtypes)}, the bundle's types, got {dtype}")
        return str(dtype)

    def _need_golden(self) -> None:
        if not self.bundle.has_golden:
            raise SpecError("bundle has no golden values; export it without --no-golden")

    def _report(self, missing: tuple[str, ...]) -> Report:
        errors = self.bundle.quantization_errors
        return Report(tuple(self.checks), tuple(self.unavailable), self.versions, missing, errors)

    def _runtime(self, runtime: Runtime, provider: str | None) -> None:
        gaps = list(runtime.gaps(self.bundle))
        chosen = []
        for configuration in self._configurations(runtime, provider):
            if runtime.name == "onnx-reference" and self._too_wide(configuration.dtype):
                gap = f"{configuration.form}_{configuration.dtype}"
                gaps.append((gap, f"hidden size over {WIDE}: minutes in 16-bit types; a reduced copy shows the same"))
            else:
                chosen.append(configuration)
        self.unavailable += [Unavailable(runtime.name, f"{what}: {reason}") for what, reason in gaps]
        for configuration in chosen:
            self.progress(" ".join(part for part in (runtime.name, *vars(configuration).values()) if part))
            try:
                session = runtime.open(self.bundle, configuration)
            except SpecError:  # the bundle is at fault, not the runtime
                raise
            except Exception as error:  # whatever a runtime raises is a failure of that configuration
                self._raised(runtime.name, configuration, configuration.provider, "open", error)
                continue
            self._cases(runtime.name, configuration, session, stages=True)

    def _too_wide(self, dtype: str) -> bool:
        return dtype != "float32" and self.bundle.spec.hidden_size > WIDE

    def _configurations(self, runtime: Runtime, provider: str | None) -> list[Configuration]:
        """All of them, or with ``quick`` the last optimisation level of each form and type."""
        every = runtime.configurations(self.bundle, provider)
        if self.matrix != "quick":
            return every
        return list({(one.form, one.dtype, one.provider): one for one in every}.values())

    def _cases(self, runtime: str, configuration: Configuration, session: Session, *, stages: bool) -> None:
        block, truths = self._truth(configuration.dtype)
        for golden, expected in truths:
            try:
                for comparison in self._judged(session, block, golden, expected, stages=stages):
                    self.checks.append(check_of(runtime, configuration, session.provider, golden.name, comparison))
            except Exception as error:  # never a skip: the case failed
                self._raised(runtime, configuration, session.provider, golden.name, error)

    def _judged(
        self, session: Session, block: Block, golden: GoldenCase, expected: call.Expected, *, stages: bool
    ) -> Iterator[Comparison]:
        if stages:
            found = session.run(golden.inputs, stages=True).stages
            yield from walk.each_stage(block, golden, found, full=self.matrix == "full")
        yield from call.judge(block, golden, expected, session.run(golden.inputs))

    def _raised(self, runtime: str, configuration: Configuration, provider: str, case: str, error: Exception) -> None:
        message = " ".join(f"{type(error).__name__}: {error}".split())
        self.checks.append(check_of(runtime, configuration, provider, case, broken(EXCEPTION, message)))

    def _truth(self, kind: str) -> tuple[Block, list[tuple[GoldenCase, call.Expected]]]:
        """A block and its truths in one of the bundle's graph types; a quantised one stands on its own weights."""
        if kind not in self._truths:
            self._truths.clear()  # one type at a time: a wide layer's float64 weights take hundreds of megabytes
            dtype, quantization = split_type(kind)
            own = dequantized_weights(self.bundle, kind) if quantization else None
            block = Block(self.bundle.spec, self.bundle.weights(), self.bundle.tables(), dtype, own)
            golden = self.bundle.golden(kind)
            if self.matrix == "quick":
                golden = [case for case in golden if case.name in QUICK]
            self._truths[kind] = block, [(case, _expected(block, case)) for case in golden]
        return self._truths[kind]


def _expected(block: Block, golden: GoldenCase) -> call.Expected:
    """What a case's call must give, which its golden values must agree with. Raises SpecError."""
    expected = call.expected(block, golden)
    agreement.check(block, golden, expected)
    return expected


def dequantized_weights(bundle: Bundle, kind: str) -> dict[str, Exact]:
    """The projections that the graphs of a quantised type hold, by name."""
    from portpe.exporters import onnx

    return onnx.dequantized_weights(bundle.quantized(kind), split_type(kind)[1], weight_shapes(bundle.spec))
