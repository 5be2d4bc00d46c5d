"""Layer: bench. A decode loop for users, form against form: ``python -m portpe.bench.decode_loop``.

Every form decodes the same text behind the same prompt through ``portpe.runtimes.onnxruntime.BlockDecoder``. The loops
run interleaved, a burst of steps each in turn, so that a busy machine is busy for all of them alike.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from portpe.bench import pages
from portpe.bundle import Bundle
from portpe.errors import SpecError
from portpe.exporters.onnx import FORMS
from portpe.exporting import export
from portpe.interface import Array
from portpe.runtimes.onnxruntime import BlockDecoder

BURST = 8  # steps of a form before the next one's turn
PROMPT_CHUNK = 512

BLOCKS = {  # hidden size, heads, kv_heads, head_dim
    "A": (2048, 32, 8, 64),
    "B": (4096, 32, 8, 128),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line a form: CPU time of a step, its ratio to ``portable``, distance from it, growth of memory."""
    parser = argparse.ArgumentParser(prog="python -m portpe.bench.decode_loop", description=main.__doc__)
    parser.add_argument("--block", choices=BLOCKS, default="A")
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    if min(given.prompt, given.steps, given.rounds) < 1:
        raise SpecError("prompt, steps and rounds must be >= 1")
    with tempfile.TemporaryDirectory() as folder:
        bundle = _bundle(given.block, Path(folder) / "block")
        times, growth, outputs = _loops(bundle, given.prompt, given.steps, given.rounds)
    base = [statistics.median(each) for each in times["portable"]]
    memory = pages.current(os.environ)
    loop = f"block {given.block}, {given.steps} steps behind {given.prompt}, {given.rounds} rounds"
    print(f"{loop}; CPU time; {memory} pages")
    for form, rounds in times.items():
        medians = [statistics.median(each) for each in rounds]
        ratios = [a / b for a, b in zip(medians, base, strict=True)]
        distance = float(np.abs(outputs[form] - outputs["portable"]).max())
        print(
            f"{form:9} {1e3 * statistics.median(medians):8.3f} ms a step, ratio {statistics.median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}), largest difference {distance:.1e}, "
            f"memory {growth[form] / 2**20:+.1f} MiB"
        )


def _bundle(block: str, folder: Path) -> Bundle:
    hidden, heads, kv_heads, width = BLOCKS[block]
    spec = {
        "portpe_spec": 1,
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": width,
        "v_head_dim": width,
        "scale": width**-0.5,
        "max_position_embeddings": 131072,
        "rotary": {"kind": "rotary", "width": width, "schedule": {"kind": "default", "rope_theta": 500000.0}},
    }
    return export(spec, folder, forms=tuple(FORMS), golden=False)


def _loops(
    bundle: Bundle, prompt: int, steps: int, rounds: int
) -> tuple[dict[str, list[list[float]]], dict[str, int], dict[str, Array]]:
    """Seconds of every step, form by round; bytes that resident memory grew by over a form's steps; the outputs."""
    rng = np.random.default_rng(0)
    text = rng.standard_normal((1, prompt + steps, bundle.spec.input_width), dtype=np.float32)
    decoders = {form: BlockDecoder.open(bundle, form=form, capacity=prompt + steps) for form in bundle.forms}
    for decoder in decoders.values():
        for start in range(0, prompt, PROMPT_CHUNK):
            decoder.step(text[:, start : min(start + PROMPT_CHUNK, prompt)])
    times: dict[str, list[list[float]]] = {form: [] for form in decoders}
    growth = dict.fromkeys(decoders, 0)
    outputs: dict[str, Array] = {}
    for _ in range(rounds):
        found: dict[str, list[Array]] = {form: [] for form in decoders}
        for form, decoder in decoders.items():
            decoder.rewind(prompt)
            times[form].append([])
        for start in range(prompt, prompt + steps, BURST):
            for form, decoder in decoders.items():
                before = _resident_bytes()
                for index in range(start, min(start + BURST, prompt + steps)):
                    began = time.process_time()
                    found[form].append(decoder.step(text[:, index : index + 1]))
                    times[form][-1].append(time.process_time() - began)
                growth[form] += _resident_bytes() - before
        outputs = {form: np.concatenate(rows, axis=1) for form, rows in found.items()}
    return times, growth, outputs


def _resident_bytes() -> int:
    """Of this process, where Linux tells; else 0."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096
    except OSError:
        return 0


if __name__ == "__main__":
    pages.start_again(None)
    main()
