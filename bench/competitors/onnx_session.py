"""ONNX graphs run through IO binding, with a cache that is concatenated or one that is written in place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from portpe.bench.competitor import Prepared
from portpe.interface import Array, BlockInputs
from portpe.runtimes.base import Availability
from portpe.runtimes.onnxruntime import RUNTIME

CPU = "CPUExecutionProvider"


def availability() -> Availability:
    """That of ONNX Runtime."""
    found = RUNTIME.availability()
    return Availability(found.usable, found.version, CPU if found.usable else None, found.reason)


def thread_statement(threads: int) -> str:
    """How a session is kept to so many threads."""
    return f"intra_op_num_threads={threads}, inter_op_num_threads=1, no spinning"


def open_session(path: Path, threads: int) -> Any:
    """A session at full optimisation on exactly ``threads`` threads.

    It is opened anew for each case: what its arena took for a long one would be held through all the others.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=[CPU])


def bound(
    session: Any, feeds: Mapping[str, Array], output: str, presents: Mapping[str, str], *, in_place: bool
) -> Prepared:
    """A call that reads inputs and writes outputs in memory of the session's device.

    Args:
        session: the loaded graph.
        feeds: every input of the graph by name. Where ``in_place``, those of the cache are buffers.
        output: the name of the block's output.
        presents: graph output -> the graph input that it follows.
        in_place: whether presents are bound to the buffers of their pasts; else they are new arrays.
    """
    import onnxruntime

    binding = session.io_binding()
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(a)) for name, a in feeds.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output(output)
    for present, past in presents.items():
        if in_place:
            binding.bind_ortvalue_output(present, values[past])
        else:
            binding.bind_output(present)

    def run() -> Any:
        session.run_with_iobinding(binding)
        return binding

    def array(done: Any) -> Array:
        found: Array = done.get_outputs()[0].numpy()
        return found

    return Prepared(run, array)


def buffer(past: Array, capacity: int, axis: int = 2) -> Array:
    """The cache in a longer array, zeros after it."""
    shape = list(past.shape)
    shape[axis] = capacity
    made = np.zeros(shape, past.dtype)
    made[(slice(None),) * axis + (slice(0, past.shape[axis]),)] = past
    return made


def external_cache(inputs: BlockInputs) -> dict[str, Array]:
    """What graphs with TensorScatter ask for besides: where to write, and how many slots are valid afterwards."""
    batch, rows = inputs.hidden_states.shape[:2]
    return {
        "write_indices": np.full(batch, inputs.past, np.int64),
        "nonpad_kv_seqlen": np.full(batch, inputs.past + rows, np.int64),
    }
