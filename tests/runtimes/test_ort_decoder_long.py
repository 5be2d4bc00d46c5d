"""A long loop: 256 steps behind a prompt of 4096, in every form, against the reference; memory stays flat."""

import numpy as np
import pytest
import torch

from portpe.encodings import DefaultSchedule, RotaryEncoding
from portpe.exporters.onnx import FORMS
from portpe.reference import Attention
from portpe.runtimes.onnxruntime import BlockDecoder, OnnxRuntimeSession
from portpe.spec import AttentionSpec
from tests.exporters.onnx.blocks import LAYER, random_weights
from tests.exporters.onnx.files import write

PROMPT, CHUNK, STEPS = 4096, 512, 256
SPEC = AttentionSpec(
    hidden_size=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    v_head_dim=16,
    scale=0.25,
    rotary=RotaryEncoding(width=16, schedule=DefaultSchedule(rope_theta=500000.0)),
)
CACHE_BYTES = 2 * 2 * (PROMPT + STEPS) * 16 * 4  # keys and values, 2 heads, float32
LEAK = 32 * CACHE_BYTES  # a step that kept its past would leave 192 of these behind


@pytest.fixture(scope="module")
def text():
    return np.random.default_rng(3).standard_normal((1, PROMPT + STEPS, SPEC.hidden_size)).astype(np.float32)


@pytest.fixture(scope="module")
def expected(text):
    """The last rows by the reference in float64, and how far a float32 block may be from them."""
    reference = Attention(SPEC, dtype=torch.float64)
    reference.load(random_weights(SPEC, "float32"))
    past = None, None
    with torch.no_grad():
        for start in range(0, PROMPT, CHUNK):
            chunk = torch.from_numpy(text[:, start : start + CHUNK].astype(np.float64))
            result = reference(chunk, past_key=past[0], past_value=past[1])
            past = result.present_key, result.present_value
        last = torch.from_numpy(text[:, PROMPT:].astype(np.float64))
        stages = reference.stages(last, past_key=past[0], past_value=past[1])
    output = stages["output"].numpy()
    return output, 4 * 2.0**-24 * np.abs(output).max() * (1 + stages["scores"].abs().max().item())


def _resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.parametrize("form", FORMS)
def test_a_long_loop(form, text, expected, tmp_path):
    files = write(tmp_path, SPEC, random_weights(SPEC, "float32"), "float32", form=form)
    session = OnnxRuntimeSession(SPEC, LAYER, files.path, None, files.end)
    decoder = BlockDecoder(session, capacity=PROMPT + STEPS)
    for start in range(0, PROMPT, CHUNK):
        decoder.step(text[:, start : start + CHUNK])
    outputs, resident = [], []
    for index in range(PROMPT, PROMPT + STEPS):
        outputs.append(decoder.step(text[:, index : index + 1]))
        resident.append(_resident_bytes())
    output, allowed = expected
    assert np.abs(np.concatenate(outputs, axis=1) - output).max() <= allowed
    assert resident[-1] - resident[STEPS // 4] < LEAK
