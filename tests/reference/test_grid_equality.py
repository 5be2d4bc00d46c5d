"""The reference block in float64 against transformers' own layer in float64: vision families with a table of offsets.

A window is a row of the batch; the moved windows of Swin have a mask besides, and are left out.
"""

import numpy as np
import pytest
import torch
import transformers

import portpe
from portpe.checkpoint import load_layer
from portpe.reference import Attention
from tests.reference.biased_models import GRID_MODELS
from tests.reference.test_transformers_equality import assert_equal
from tests.reference.transformers_runs import Call

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def run(model, row):
    """One forward of two pictures: what the projections of every layer saw, and its attention gave."""
    inputs, outputs = [], []
    for name, module in model.named_modules():
        if name.endswith(row.query):
            module.register_forward_hook(lambda _, args, __: inputs.append(args[0].detach()))
        if name.endswith(row.output):
            module.register_forward_hook(lambda _, __, output: outputs.append(output.detach()))
    pixels = np.random.default_rng(5).standard_normal((2, row.channels, *row.image))
    with torch.no_grad():
        model(torch.from_numpy(pixels))
    pairs = zip(inputs, outputs, strict=True)
    return [tuple(each.flatten(1, 2) if each.ndim == 4 else each for each in pair) for pair in pairs]


def cells(spec):
    (encoding,) = spec.bias
    grid = np.indices((encoding.height, encoding.width)).reshape(2, -1)
    return np.pad(grid, ((0, 0), (getattr(encoding, "prefix_tokens", 0), 0)))


@pytest.mark.parametrize("name", GRID_MODELS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_families(name, tmp_path):
    row = GRID_MODELS[name]
    model = row.save(tmp_path)
    layers = run(model, row)
    for layer in row.layers:
        spec = portpe.load_spec(tmp_path, layer=layer)
        weights = load_layer(tmp_path, spec, model_type=model.config.model_type, layer=layer)
        block = Attention(spec, dtype=torch.float64).load(weights)
        hidden = layers[layer][0]
        positions = torch.from_numpy(cells(spec))[:, None].expand(2, len(hidden), -1)
        mask = torch.ones(hidden.shape[:2], dtype=torch.long)
        assert_equal(block, [Call(mask, positions, layers)], layer, row.float32, own_positions=True)


def test_a_moved_window_is_told(tmp_path):
    GRID_MODELS["swin"].save(tmp_path)
    with pytest.warns(UserWarning, match="windows of this block are moved: the mask between parts"):
        portpe.load_spec(tmp_path, layer=1)
