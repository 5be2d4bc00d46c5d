"""The reference block in float64 against transformers' own layer in float64: scores that read vectors of the distance.

transformers saves a tiny model; portpe reads the folder (config, then weights) and runs each layer on the hidden states
that transformers' layer saw, with transformers' float32 sinusoids. One batch of which rows are padded on the right, as
these encoders take them.
"""

import numpy as np
import pytest
import torch
import transformers

import portpe
from portpe.checkpoint import load_layer
from portpe.reference import Attention
from portpe.tables import table_set
from tests.reference.relative_models import RELATIVE_MODELS, WIDTH, Relative
from tests.reference.test_transformers_equality import assert_equal
from tests.reference.transformers_runs import Call

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

COUNT, PADS = 15, (0, 3, 1)


def record(model, row: Relative, states, mask):
    """What each layer's attention saw and gave, layer 0's states without what it adds itself."""
    inputs, outputs, added, sums = [], [], [], []

    def finite(_, __, output):
        """Parakeet's pad rows see no key and are NaN, which would be NaN keys of the next layer."""
        outputs.append(output.detach())
        return torch.nan_to_num(output)

    def keep(into):
        def hook(_, args, named):
            given = args[0] if args else named["hidden_states"]
            if len(given) == len(PADS):  # q_proj may take a table of distances too
                into.append(given.detach())

        return hook

    for name, module in model.named_modules():
        if name.endswith(row.query):
            module.register_forward_pre_hook(keep(inputs), with_kwargs=True)
        if name.endswith(row.output):
            module.register_forward_hook(finite)
        if row.added and name.endswith(row.added):
            module.register_forward_hook(lambda _, __, output: added.append(output.detach()))
        if row.summed and name.endswith(row.summed):
            module.register_forward_pre_hook(keep(sums), with_kwargs=True)
    with torch.no_grad():
        row.call(model, states, mask)
    layers = list(zip(inputs, outputs, strict=True))
    if added:
        layers[0] = (sums[0] - added[0], layers[0][1])
    return layers


def xlnet_layers(model, row: Relative, states, mask):
    """XLNet's attention projects inside of one function: its input, and its output before the residual and the norm."""
    inputs, outputs = [], []
    for name, module in model.named_modules():
        if name.endswith(row.query):
            module.layer_norm.register_forward_pre_hook(lambda _, args: outputs.append(args[0].detach()))
            module.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()))
    with torch.no_grad():
        row.call(model, states, mask)
    pairs = zip(inputs, outputs, strict=True)
    return [(each.transpose(0, 1), (summed - each).transpose(0, 1)) for each, summed in pairs]


def with_float32_scale(spec):
    """DeBERTa forms the square root in float32, whatever its tensors are."""
    theirs = 1 / float(torch.sqrt(torch.tensor(round(spec.scale**-2), dtype=torch.float32)))
    assert abs(theirs / spec.scale - 1) < 2**-23
    return spec.model_copy(update={"scale": theirs})


@pytest.mark.parametrize("name", RELATIVE_MODELS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_families(name, tmp_path):
    row = RELATIVE_MODELS[name]
    model = row.save(tmp_path)
    mask = torch.ones(len(PADS), COUNT, dtype=torch.long)
    for batch, pads in enumerate(PADS if row.padded else ()):
        mask[batch, COUNT - pads :] = 0
    states = torch.from_numpy(np.random.default_rng(7).normal(size=(len(PADS), COUNT, WIDTH)))
    layers = (xlnet_layers if name.startswith("xlnet") else record)(model, row, states, mask)
    calls = [Call(mask, torch.arange(COUNT).expand(len(PADS), -1), layers)]
    for layer in row.layers:
        spec = portpe.load_spec(tmp_path, layer=layer, part=row.part).with_precision("hf")
        assert not spec.causal
        assert bool(spec.bias) != name.endswith("without")
        if model.config.model_type.startswith(("deberta", "sew-d")):
            spec = with_float32_scale(spec)
        weights = load_layer(tmp_path, spec, model_type=model.config.model_type, layer=layer, part=row.part)
        block = Attention(spec, dtype=torch.float64, tables=table_set(spec, 64)).load(weights)
        assert_equal(block, calls, layer, row.float32, own_positions=True)
