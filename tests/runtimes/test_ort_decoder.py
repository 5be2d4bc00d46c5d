"""The decode loop against the written definition's full forward: every form, every causal block it carries."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from portpe.errors import SpecError
from portpe.exporters.onnx import FORMS
from portpe.interface import DTYPES, BlockInputs, BlockOutputs
from portpe.runtimes.onnxruntime import BlockDecoder, OnnxRuntimeSession
from portpe.tables import table_set
from tests.exporters.onnx.blocks import CARRIED, LAYER, SPECS, random_weights
from tests.exporters.onnx.definition import truth
from tests.exporters.onnx.files import write
from tests.exporters.onnx.judgement import excess

CAUSAL = [(form, name) for form, name in CARRIED if SPECS[name].causal]
BUFFERED = ["shared", "ort"]
CHUNKS = (5, 1, 3, 1, 1, 2)  # 13 slots
PADS = (2, 0, 4)
ROWS = sum(CHUNKS)


def _decoder(folder, name, form, dtype="float32", **settings):
    spec = SPECS[name]
    weights, tables = random_weights(spec, dtype), table_set(spec)
    files = write(folder, spec, weights, dtype, tables, form=form)
    session = OnnxRuntimeSession(spec, LAYER, files.path, files.stages_path, files.end)
    settings = {"capacity": ROWS + 4, "batch": len(PADS), **settings}
    return BlockDecoder(session, **settings), weights, tables


def _text(spec, dtype="float32", seed=5, pads=PADS, rows=ROWS):
    """A padded text as one call without a past. Positions are counted by hand: pads are 0, the first token is 0."""
    batch = len(pads)
    hidden = np.random.default_rng(seed).standard_normal((batch, rows, spec.input_width)).astype(DTYPES[dtype])
    slots = np.arange(rows)
    mask = np.array([slots >= pad for pad in pads]).astype(np.int64)
    positions = np.array([np.maximum(slots - pad, 0) for pad in pads])
    key, value = (np.zeros((batch, spec.num_kv_heads, 0, w), DTYPES[dtype]) for w in (spec.head_dim, spec.v_head_dim))
    states = {name: np.zeros((batch, count, 0), np.float32) for name, count in spec.cached_states.items()}
    return BlockInputs(hidden, positions, mask, positions, key, value, states)


def _decode(decoder, text, chunks=CHUNKS):
    """The text in chunks; the mask is given once, with the prompt."""
    first, *rest = chunks
    outputs = [decoder.prefill(text.hidden_states[:, :first], text.attention_mask[:, :first])]
    for rows in rest:
        outputs.append(decoder.step(text.hidden_states[:, decoder.length : decoder.length + rows]))
    return np.concatenate(outputs, axis=1)


def _ratios(decoder, weights, tables, text, output, dtype="float32"):
    found = BlockOutputs(output, *decoder.past_key_values, present_states=decoder.past_states)
    return excess(decoder.spec, text, found, truth(decoder.spec, weights, text, tables), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("form", "name"), CAUSAL)
def test_a_loop_is_the_full_forward(form, name, dtype, tmp_path):
    decoder, weights, tables = _decoder(tmp_path, name, form, dtype)
    text = _text(decoder.spec, dtype)
    output = _decode(decoder, text)
    assert (decoder.length, decoder.dtype) == (ROWS, DTYPES[dtype])
    np.testing.assert_array_equal(decoder.attention_mask, text.attention_mask)
    np.testing.assert_array_equal(decoder.position_ids, text.position_ids)
    ratios = _ratios(decoder, weights, tables, text, output, dtype)
    assert max(ratios.values()) <= 1, ratios


REWOUND = [
    (form, name) for form, name in CAUSAL if name in ("rotary-half", "alibi", "forget", "window", "sinks-window")
]


@pytest.mark.parametrize(("form", "name"), REWOUND)
def test_a_rewind_is_exact(form, name, tmp_path):
    """After another continuation was tried and taken back, not a bit differs; a window still has its keys."""
    decoder, _, _ = _decoder(tmp_path, name, form)
    text = _text(decoder.spec)
    expected = _decode(decoder, text)
    for length, chunks in ((9, (1, 1, 2)), (5, CHUNKS[1:])):
        decoder.rewind(length)
        assert decoder.length == length
        wrong = np.full((3, 3, decoder.spec.input_width), 1e4, np.float32)
        decoder.step(wrong, position_ids=np.full((3, 3), 7))
        decoder.rewind(length)
        outputs = []
        for rows in chunks:
            outputs.append(decoder.step(text.hidden_states[:, decoder.length : decoder.length + rows]))
        np.testing.assert_array_equal(np.concatenate(outputs, axis=1), expected[:, length:])


@pytest.mark.parametrize("form", FORMS)
def test_prefill_starts_anew(form, tmp_path):
    decoder, _, _ = _decoder(tmp_path, "alibi", form)
    expected = _decode(decoder, _text(decoder.spec))
    _decode(decoder, _text(decoder.spec, seed=6, pads=(0, 3, 1)))
    np.testing.assert_array_equal(_decode(decoder, _text(decoder.spec)), expected)
    decoder.reset()
    assert decoder.length == 0
    assert [part.shape[2] for part in decoder.past_key_values] == [0, 0]


@pytest.mark.parametrize("form", FORMS)
def test_positions_of_ones_own(form, tmp_path):
    """Each row at places of its own, and a bias that counts from the cached keys' real positions."""
    for name in ("rotary-half", "alibi"):
        (tmp_path / name).mkdir()
        decoder, weights, tables = _decoder(tmp_path / name, name, form, batch=2)
        positions = np.array([[0, 3, 4, 9, 11, 12], [7, 8, 30, 31, 33, 50]])
        text = replace(_text(decoder.spec, pads=(0, 0), rows=6), position_ids=positions, key_position_ids=positions)
        outputs = [decoder.prefill(text.hidden_states[:, :4], position_ids=positions[:, :4])]
        outputs += [decoder.step(text.hidden_states[:, i : i + 1], position_ids=positions[:, [i]]) for i in (4, 5)]
        ratios = _ratios(decoder, weights, tables, text, np.concatenate(outputs, axis=1))
        assert max(ratios.values()) <= 1, (name, ratios)


@pytest.mark.parametrize("form", FORMS)
def test_a_mask_may_hide_a_cached_key_later(form, tmp_path):
    decoder, weights, tables = _decoder(tmp_path, "rotary-half", form, batch=2)
    text = _text(decoder.spec, pads=(0, 0), rows=6)
    decoder.prefill(text.hidden_states[:, :5])
    hidden = replace(text, attention_mask=np.array([[1, 1, 0, 1, 1, 1], [0, 1, 1, 1, 0, 1]]))
    output = decoder.step(text.hidden_states[:, 5:], hidden.attention_mask, text.position_ids[:, 5:])
    expected = truth(decoder.spec, weights, hidden, tables)["output"][:, 5:]
    unmasked = truth(decoder.spec, weights, text, tables)["output"][:, 5:]
    assert np.abs(output - expected).max() < 2e-5 < 0.01 < np.abs(unmasked - expected).max()


@pytest.mark.parametrize("form", FORMS)
def test_growth_changes_no_number(form, tmp_path):
    """The capacity doubles from 3 until a call fits: 6, 12, 24."""
    decoder, _, _ = _decoder(tmp_path, "window", form)
    text = _text(decoder.spec)
    expected = _decode(decoder, text)
    growing = BlockDecoder(decoder.session, capacity=3, batch=3, grow=True)
    capacities = []
    outputs = [growing.prefill(text.hidden_states[:, :5], text.attention_mask[:, :5])]
    for rows in CHUNKS[1:]:
        capacities.append(growing.capacity)
        outputs.append(growing.step(text.hidden_states[:, growing.length : growing.length + rows]))
    assert capacities == [6, 6, 12, 12, 12]
    assert growing.capacity == 24
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), expected, rtol=0, atol=1e-6)
    for found, whole in zip(growing.past_key_values, decoder.past_key_values, strict=True):
        np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize("form", FORMS)
def test_a_full_cache_refuses_and_stays_as_it_is(form, tmp_path):
    decoder, _, _ = _decoder(tmp_path, "alibi", form, capacity=ROWS)
    text = _text(decoder.spec)
    output = _decode(decoder, text)
    with pytest.raises(SpecError, match=r"^capacity must be >= 14 for 13 cached and 1 new rows, got 13; .*grow=True"):
        decoder.step(text.hidden_states[:, :1])
    with pytest.raises(SpecError, match=r"^capacity must be >= 14 for 0 cached and 14 new rows, got 13; "):
        decoder.prefill(np.zeros((3, 14, 20), np.float32))
    assert decoder.length == ROWS
    decoder.rewind(ROWS - 2)
    np.testing.assert_array_equal(decoder.step(text.hidden_states[:, -2:]), output[:, -2:])


@pytest.mark.parametrize("form", FORMS)
def test_the_cache_is_written_in_place_where_it_is_a_buffer(form, tmp_path):
    """By the memory itself: the buffers stay where they are, and hold the new keys, with one write a slot."""
    decoder, _, _ = _decoder(tmp_path, "rotary-half", form)
    text = _text(decoder.spec)
    decoder.prefill(text.hidden_states[:, :5], text.attention_mask[:, :5])
    before = [value.data_ptr() for value in decoder._cache._values]
    sizes = [value.shape()[2] for value in decoder._cache._values]
    for i in range(5, 9):
        decoder.step(text.hidden_states[:, i : i + 1])
    after = [value.data_ptr() for value in decoder._cache._values]
    if form not in BUFFERED:
        assert [value.shape()[2] for value in decoder._cache._values] == [9, 9]
        return
    assert after == before
    assert sizes == [ROWS + 4] * 2
    for array, value in zip(decoder._cache._arrays, decoder._cache._values, strict=True):
        assert array.ctypes.data == value.data_ptr()
        assert np.abs(array[:, :, 8]).min() > 0
        assert not array[:, :, 9:].any()


_LOGGED = """
import sys
import numpy as np, onnxruntime
from portpe.runtimes.onnxruntime import BlockDecoder, OnnxRuntimeSession
from tests.exporters.onnx.blocks import LAYER, SPECS
from pathlib import Path
spec = SPECS["rotary-half"]
session = OnnxRuntimeSession(spec, LAYER, Path(sys.argv[1]), None, None)
options = onnxruntime.SessionOptions()
options.log_severity_level = 0
session._loaded[session.path] = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
decoder = BlockDecoder(session, capacity=9)
x = np.ones((1, 4, 20), np.float32)
decoder.prefill(x)
decoder.step(x[:, :1])
if sys.argv[2] == "apart":
    names = [value.name for value in session.graph().get_inputs()]
    feeds = {"hidden_states": x, "position_ids": np.arange(4)[None], "attention_mask": np.ones((1, 4), np.int64)}
    feeds |= {name: np.zeros((1, 2, 9, 8), np.float32) for name in session.layout.past}
    feeds |= session.layout.told(1, 0, 4)
    session.graph().run(None, {name: feeds[name] for name in names})
"""


@pytest.mark.parametrize("how", ["bound", "apart"])
def test_onnx_runtime_logs_no_copy_of_a_bound_buffer(how, tmp_path):
    """TensorScatter says so when it has to copy the buffer: shown by a call whose past and present are apart."""
    spec = SPECS["rotary-half"]
    files = write(tmp_path, spec, random_weights(spec, "float32"), "float32", form="shared")
    command = [sys.executable, "-c", _LOGGED, str(files.path), how]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ})
    assert "Run" in done.stderr or "run" in done.stderr  # it does log
    assert ("in-place optimization not activated" in done.stderr) == (how == "apart")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"capacity": 0}, "capacity must be >= 1, got 0"),
        ({"batch": 0}, "batch must be >= 1, got 0"),
    ],
)
def test_sizes_are_checked(settings, message, tmp_path):
    with pytest.raises(SpecError, match=f"^{message}$"):
        _decoder(tmp_path, "none", "portable", **settings)


def test_a_block_without_a_cache_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"^causal must be true for a decoder, got false: "):
        _decoder(tmp_path, "none-bidirectional", "portable")


HIDDEN = np.zeros((3, 2, 20), np.float32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([HIDDEN[:2]], r"hidden_states must have shape \(3, rows, 20\) with rows >= 1, got \(2, 2, 20\)"),
        ([HIDDEN[:, :0]], r"hidden_states must have shape \(3, rows, 20\) with rows >= 1, got \(3, 0, 20\)"),
        ([HIDDEN[0]], r"hidden_states must have shape \(3, rows, 20\) with rows >= 1, got \(2, 20\)"),
        ([HIDDEN.astype(np.float16)], "hidden_states must be float32, the graph's type, got float16"),
        ([HIDDEN, np.ones((3, 2))], r"attention_mask must have shape \(3, 6\), got \(3, 2\)"),
        ([HIDDEN, np.full((3, 6), 2)], "attention_mask must hold 1 .keep. and 0 .pad. only, got other values"),
        ([HIDDEN, np.full((3, 6), 0.5)], "attention_mask must be integers, got float64"),
        ([HIDDEN, None, np.zeros((3, 6), int)], r"position_ids must have shape \(3, 2\), got \(3, 6\)"),
        ([HIDDEN, None, np.zeros((3, 2))], "position_ids must be integers, got float64"),
        ([HIDDEN, None, np.full((3, 2), -1)], "position_ids must be >= 0, got -1"),
        ([HIDDEN, None, np.full((3, 2), 40)], "position_ids must be < 40, the end of the position table, got 40"),
    ],
)
def test_a_bad_call_is_refused_and_changes_nothing(arguments, message, tmp_path):
    decoder, _, _ = _decoder(tmp_path, "learned", "ort")
    text = _text(decoder.spec)
    decoder.prefill(text.hidden_states[:, :4], text.attention_mask[:, :4].astype(bool))
    with pytest.raises(SpecError, match=f"^{message}$"):
        decoder.step(*arguments)
    assert decoder.length == 4
    np.testing.assert_array_equal(decoder.attention_mask, text.attention_mask[:, :4])


@pytest.mark.parametrize("length", [-1, 5])
def test_a_rewind_goes_back(length, tmp_path):
    decoder, _, _ = _decoder(tmp_path, "none", "ort")
    decoder.prefill(_text(decoder.spec).hidden_states[:, :4])
    with pytest.raises(SpecError, match=f"^length must be from 0 to 4, what the cache holds, got {length}$"):
        decoder.rewind(length)


def test_a_bundle_is_opened_in_its_fastest_form(tmp_path, spec_of):
    from portpe.exporting import export

    bundle = export(
        spec_of("rotary_llama3", v_head_dim=8), tmp_path / "b", forms=("portable", "ort", "shared"), golden=False
    )
    decoder = BlockDecoder.open(bundle, capacity=8, batch=2)
    assert decoder.session.path.name == "ort_float32.onnx"
    portable = BlockDecoder.open(bundle, capacity=8, batch=2, form="portable", dtype="float32", provider="cpu")
    x = np.random.default_rng(0).standard_normal((2, 7, 44)).astype(np.float32)
    np.testing.assert_allclose(decoder.prefill(x), portable.prefill(x), rtol=0, atol=2e-5)
    with pytest.raises(SpecError, match=r"bundle has no onnx/standard_float32.onnx"):
        BlockDecoder.open(bundle, capacity=8, form="standard")
    with pytest.raises(SpecError, match=r"provider must be one of .*, got 'quantum'"):
        BlockDecoder.open(bundle, capacity=8, provider="quantum")


def test_a_type_without_kernels_is_refused(tmp_path, spec_of):
    from portpe.exporting import export

    bundle = export(spec_of("none"), tmp_path / "b", dtypes=("bfloat16",), golden=False)
    with pytest.raises(SpecError, match=r"^dtype bfloat16 cannot run: CPUExecutionProvider has no bfloat16 kernels"):
        BlockDecoder.open(bundle, capacity=8)
