"""The reference block in float64 against transformers' own layer in float64: vision families with a table of offsets.

A window is a row of the batch; the moved windows of Swin have a mask besides, and are left out.
"""

import inspect

import numpy as np
import pytest
import torch
import transformers

import portpe
from portpe.checkpoint import load_layer
from portpe.reference import Attention
from tests.reference.biased_models import GRID_MODELS
from tests.reference.sam_towers import SAM_TOWERS
from tests.reference.test_transformers_equality import assert_equal
from tests.reference.transformers_runs import Call

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

PROMPTS = ("prompt_pixel_values", "prompt_masks")  # SegGPT's example and its answer, behind the picture


def run(model, row):
    """One forward of two pictures: what the projections of every layer saw, and its attention gave."""
    inputs, outputs = [], []
    for name, module in model.named_modules():
        if name.endswith(row.query):
            module.register_forward_hook(lambda _, args, __: inputs.append(args[0].detach()))
        if name.endswith(row.output):
            module.register_forward_hook(lambda _, __, output: outputs.append(output.detach()))
    random = np.random.default_rng(5)
    pictures = [name for name in inspect.signature(model.forward).parameters if name in PROMPTS]
    with torch.no_grad():
        model(*(torch.from_numpy(random.standard_normal((2, row.channels, *row.image))) for _ in (0, *pictures)))
    pairs = zip(inputs, outputs, strict=True)
    return [tuple(each.flatten(1, 2) if each.ndim == 4 else each for each in pair) for pair in pairs]


def cells(spec):
    (encoding,) = spec.bias
    grid = np.indices((encoding.height, encoding.width)).reshape(2, -1)
    return np.pad(grid, ((0, 0), (getattr(encoding, "prefix_tokens", 0), 0)))


def compare(row, layers, folder, config, model_type):
    """Weights out of ``folder``, specs out of ``config``."""
    for layer in row.layers:
        spec = portpe.load_spec(config, layer=layer)
        weights = load_layer(folder, spec, model_type=model_type, layer=layer)
        block = Attention(spec, dtype=torch.float64).load(weights)
        hidden = layers[layer][0]
        positions = torch.from_numpy(cells(spec))[:, None].expand(2, len(hidden), -1)
        mask = torch.ones(hidden.shape[:2], dtype=torch.long)
        assert_equal(block, [Call(mask, positions, layers)], layer, row.float32, own_positions=True)


@pytest.mark.parametrize("name", GRID_MODELS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_families(name, tmp_path):
    row = GRID_MODELS[name]
    model = row.save(tmp_path)
    compare(row, run(model, row), tmp_path, tmp_path, model.config.model_type)


@pytest.mark.parametrize("name", SAM_TOWERS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_towers_of_a_whole(name, tmp_path):
    """Out of the whole model's checkpoint, which save_pretrained writes under published names."""
    row = SAM_TOWERS[name]
    tower = row.save_both(tmp_path)
    assert tower.config.model_type == name
    compare(row, run(tower, row), tmp_path, tmp_path / "tower", name)


def test_a_moved_window_is_told(tmp_path):
    GRID_MODELS["swin"].save(tmp_path)
    with pytest.warns(UserWarning, match="windows of this block are moved: the mask between parts"):
        portpe.load_spec(tmp_path, layer=1)
