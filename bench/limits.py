"""The limits of this machine: bytes read and copied a second, and multiply-adds of large products.

They are measured in the same rounds as the competitors, so a slow spell of the machine slows both. Each limit takes
the fastest of several ways to do the same thing; which one it was is recorded.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from portpe.bench.statistics import Spread, spread

LARGE = 128 * 2**20  # bytes: several times the last-level cache of the machines that this is for
SIDE = 1024  # of the matrices whose product gives the GEMM rate
PROBES = 3  # a round takes the best of so many

Clock = Callable[[], float]


@dataclass
class Limit:
    """One limit in ``unit`` a second: its value in every round, by the fastest ``method``."""

    name: str
    unit: str
    work: float  # bytes or operations of one probe
    methods: dict[str, Callable[[], object]]
    clock: Clock
    method: str = ""
    rates: list[float] = field(default_factory=list)

    def spread(self, since: int = 0) -> Spread:
        """Median and quartiles of the values from number ``since`` on."""
        return spread(self.rates[since:])

    def measure(self) -> None:
        """Take one more value; the first time every method is tried, then the fastest one."""
        if not self.method:
            for call in self.methods.values():
                call()  # pages are mapped, kernels chosen
            self.method = min(self.methods, key=lambda name: self._best(self.methods[name]))
        self.rates.append(self.work / self._best(self.methods[self.method]))

    def _best(self, call: Callable[[], object]) -> float:
        """The least of PROBES times."""
        best = float("inf")
        for _ in range(PROBES):
            start = self.clock()
            call()
            best = min(best, self.clock() - start)
        return best


class Limits:
    """The four limits, on ``threads`` threads; ``small`` shrinks the arrays.

    One thread is timed by the process's CPU time, as competitors are, several by wall time.
    """

    def __init__(self, threads: int, *, small: bool = False) -> None:
        self.threads = threads
        self.clock: Clock = time.process_time if threads == 1 else time.perf_counter
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        size, side = (LARGE // 32, SIDE // 4) if small else (LARGE, SIDE)
        self._source = np.ones(size // 4, np.float32)
        self._target = np.zeros_like(self._source)
        self.all = {limit.name: limit for limit in (self._read(), self._copy(), self._gemm(side), self._gemv())}

    def measure(self) -> None:
        """Take one more value of every limit."""
        for limit in self.all.values():
            limit.measure()

    @property
    def count(self) -> int:
        """How many values each limit has."""
        return len(self.all["read_bandwidth"].rates)

    def rate(self, name: str, since: int = 0) -> float:
        """The median of one limit, of the values from number ``since`` on."""
        return self.all[name].spread(since).median

    def _read(self) -> Limit:
        parts = np.array_split(self._source, self.threads)
        methods: dict[str, Callable[[], object]] = {
            "numpy max": lambda: self._each(lambda part: part.max(), parts),
            "numpy sum": lambda: self._each(lambda part: part.sum(), parts),
        }
        if torch := _torch():
            tensor = torch.from_numpy(self._source)
            methods["torch sum"] = lambda: torch.sum(tensor)
            methods["torch dot"] = lambda: torch.dot(tensor, tensor)
        return Limit("read_bandwidth", "byte", float(self._source.nbytes), methods, self.clock)

    def _copy(self) -> Limit:
        halves = [np.array_split(whole, self.threads) for whole in (self._target, self._source)]
        pairs = list(zip(*halves, strict=True))
        methods: dict[str, Callable[[], object]] = {
            "numpy copyto": lambda: self._each(lambda pair: np.copyto(*pair), pairs)
        }
        if torch := _torch():
            source, target = torch.from_numpy(self._source), torch.from_numpy(self._target)
            methods["torch copy_"] = lambda: target.copy_(source)
        return Limit("copy_bandwidth", "byte", 2.0 * self._source.nbytes, methods, self.clock)

    def _gemm(self, side: int) -> Limit:
        rng = np.random.default_rng(0)
        a, b = (rng.standard_normal((side, side), np.float32) for _ in range(2))
        methods: dict[str, Callable[[], object]] = {}
        if torch := _torch():
            x, y = torch.from_numpy(a), torch.from_numpy(b)
            methods["torch mm"] = lambda: torch.mm(x, y)
        for operator, session in _product_sessions(b, self.threads).items():
            methods[f"onnxruntime {operator}"] = lambda session=session: session.run(None, {"a": a})  # type: ignore[misc]
        if not methods:  # its threads are those of the environment
            methods["numpy matmul"] = lambda: a @ b
        return Limit("gemm_rate", "flop", 2.0 * side**3, methods, self.clock)

    def _gemv(self) -> Limit:
        columns = 2048
        matrix = self._source[: len(self._source) // columns * columns].reshape(-1, columns)
        vector, row = np.ones(columns, np.float32), np.ones(len(matrix), np.float32)
        methods: dict[str, Callable[[], object]] = {
            "numpy matrix @ vector": lambda: matrix @ vector,
            "numpy vector @ matrix": lambda: row @ matrix,
        }
        if torch := _torch():
            x, y = torch.from_numpy(matrix), torch.from_numpy(vector)
            methods["torch mv"] = lambda: torch.mv(x, y)
        return Limit("gemv_bandwidth", "byte", float(matrix.nbytes), methods, self.clock)

    def _each(self, call: Callable[[Any], object], parts: list[Any]) -> None:
        if self._pool is None:
            for part in parts:
                call(part)
        else:
            list(self._pool.map(call, parts))


def _product_sessions(weight: Any, threads: int) -> dict[str, Any]:
    """ONNX Runtime's ways to multiply with a constant matrix, where it and onnx are installed: a product, which packs
    the matrix once, and a convolution of a point, which lays it out in blocks.
    """
    if importlib.util.find_spec("onnxruntime") is None or importlib.util.find_spec("onnx") is None:
        return {}
    from onnx import helper

    side = len(weight)
    return {
        "MatMul": _session([helper.make_node("MatMul", ["a", "weight"], ["out"])], weight, threads),
        "Conv": _session(
            [
                helper.make_node("Reshape", ["a", "image"], ["rows"]),
                helper.make_node("Transpose", ["rows"], ["pixels"], perm=[0, 3, 1, 2]),
                helper.make_node("Conv", ["pixels", "weight"], ["blocked"]),
                helper.make_node("Transpose", ["blocked"], ["out"], perm=[0, 2, 3, 1]),
            ],
            weight.reshape(side, side, 1, 1),
            threads,
            image=np.array([1, 1, side, side]),
        ),
    }


def _session(nodes: list[Any], weight: Any, threads: int, **constants: Any) -> Any:
    import onnx
    import onnxruntime

    side = len(weight)
    given = onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [side, side])
    found = onnx.helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, None)
    held = [onnx.numpy_helper.from_array(array, name) for name, array in {"weight": weight, **constants}.items()]
    graph = onnx.helper.make_graph(nodes, "product", [given], [found], held)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _torch() -> Any:
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch
