"""A trained bias while a cache grows: it is added at every step, and its shape follows the cache."""

import numpy as np
import onnxruntime
import pytest

from portpe.encodings import BucketsEncoding
from portpe.exporters.onnx import FORMS
from portpe.interface import BlockInputs
from portpe.runtimes.onnxruntime import OnnxRuntimeSession
from portpe.spec import AttentionSpec
from portpe.tables import table_set
from tests.exporters.onnx.blocks import LAYER, random_weights
from tests.exporters.onnx.definition import truth
from tests.exporters.onnx.files import write

SIZES = {"hidden_size": 20, "num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "v_head_dim": 8, "scale": 1.0}
BIASED = {"buckets": BucketsEncoding(num_buckets=9, max_distance=14, bidirectional=False)}
STEPS = 8


def runner(form, spec, weights, folder):
    """A call of a block on inputs, in ONNX Runtime or in MLX."""
    if form == "mlx":
        from portpe.runtimes.mlx import Attention
        from portpe.runtimes.mlx.weights import to_mlx, to_numpy

        block = Attention(spec)
        block.load(weights)

        def stages(inputs):
            names = ("hidden_states", "position_ids", "attention_mask", "past_key", "past_value", "key_position_ids")
            found = block.stages(**{name: to_mlx(getattr(inputs, name)) for name in names})
            return tuple(to_numpy(found[name]) for name in ("output", "present_key", "present_value"))

        return stages
    files = write(folder, spec, weights, "float32", table_set(spec), form=form)
    session = OnnxRuntimeSession(spec, LAYER, files.path, None, files.end)

    def call(inputs):
        outputs = session.run(inputs)
        return outputs.output, outputs.present_key, outputs.present_value

    return call


def inputs_at(spec, hidden, positions, step, past_key, past_value):
    """The call of one token behind ``step`` cached ones."""
    batch = len(hidden)
    return BlockInputs(
        hidden_states=hidden[:, step : step + 1],
        position_ids=positions[:, step : step + 1],
        attention_mask=np.ones((batch, step + 1), np.int64),
        key_position_ids=positions[:, : step + 1],
        past_key=past_key,
        past_value=past_value,
    )


def empty(spec, batch, width):
    return np.zeros((batch, spec.num_kv_heads, 0, width), np.float32)


@pytest.mark.parametrize("form", [*FORMS, "mlx"])
@pytest.mark.parametrize("name", BIASED)
def test_every_step_with_a_cache_adds_the_bias(name, form, tmp_path):
    """B05: each step is the row of a whole forward, which a bias left out from the second step on would change."""
    spec = AttentionSpec(**SIZES, bias=(BIASED[name],))
    if form in FORMS and FORMS[form].carries(spec) is not None:
        pytest.skip(FORMS[form].carries(spec))
    weights = random_weights(spec, "float32")
    hidden = np.random.default_rng(3).standard_normal((3, STEPS, 20), np.float32)
    positions = np.array([0, 1, 2, 5, 6, 9, 12, 21])[None] + np.array([[0], [40], [3]])
    whole = BlockInputs(
        hidden, positions, np.ones((3, STEPS), np.int64), positions, empty(spec, 3, 8), empty(spec, 3, 8)
    )
    expected = truth(spec, weights, whole)["output"]
    unbiased = truth(spec.model_copy(update={"bias": ()}), weights, whole)["output"]
    call = runner(form, spec, weights, tmp_path)
    key, value = whole.past_key, whole.past_value
    for step in range(STEPS):
        output, key, value = call(inputs_at(spec, hidden, positions, step, key, value))
        np.testing.assert_allclose(output[:, 0], expected[:, step], rtol=0, atol=2e-6 * np.abs(expected).max())
        if step:
            assert np.abs(unbiased[:, step] - expected[:, step]).max() > 1e-2 * np.abs(expected).max()


@pytest.mark.parametrize("name", BIASED)
def test_the_bias_is_as_long_as_the_cache(name, tmp_path):
    """O12: of one graph with a past of 1, 2 and 5, what it adds is (1, heads, 1, past + 1): no length is traced."""
    spec = AttentionSpec(**SIZES, bias=(BIASED[name],))
    plain = spec.model_copy(update={"bias": ()})
    weights = random_weights(spec, "float32")
    files = {}
    for each, folder in ((spec, tmp_path / "biased"), (plain, tmp_path / "plain")):
        folder.mkdir()
        own = {key: weights[key] for key in random_weights(each, "float32")}
        files[each] = write(folder, each, own, "float32", table_set(each))
    table = weights["relative_attention_bias.weight"]
    for past in (1, 2, 5):
        random = np.random.default_rng(past)
        inputs = {
            "hidden_states": random.standard_normal((1, 1, 20), np.float32),
            "position_ids": np.array([[past]]),
            "attention_mask": np.ones((1, past + 1), np.int64),
            "key_position_ids": np.arange(past + 1)[None],
            f"past_key_values.{LAYER}.key": random.standard_normal((1, 2, past, 8), np.float32),
            f"past_key_values.{LAYER}.value": random.standard_normal((1, 2, past, 8), np.float32),
        }
        scores = []
        for each in (spec, plain):
            session = onnxruntime.InferenceSession(files[each].stages_path)
            taken = {node.name: inputs[node.name] for node in session.get_inputs()}
            scores.append(session.run(["scores"], taken)[0])
        added = scores[0] - scores[1]
        assert added.shape == (1, 6, 1, past + 1)
        np.testing.assert_allclose(added[0, :, 0], expected_bias(table, past), rtol=0, atol=2e-6)


def expected_bias(table, past):
    """Nine buckets, four of one distance each; 4 and 5 share the first wide one, up to 4 * (14/4)^(1/5) = 5.1."""
    return np.stack([table[min(past - key, 4)] for key in range(past + 1)], axis=1)
