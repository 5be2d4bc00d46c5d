"""Where transformers' attention layers differ from portpe's block by decision: each a row of the ledger of divergences.

Every test asserts both sides, so that a divergence which has gone makes it fail.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

import portpe
from portpe.checkpoint import load_layer
from portpe.reference import Attention
from portpe.tables import table_set
from tests.reference.relative_models import RELATIVE_MODELS, WIDTH
from tests.reference.test_relative_equality import COUNT, PADS, record
from tests.reference.test_transformers_equality import assert_equal, block_of
from tests.reference.transformers_model import Model
from tests.reference.transformers_models import MODELS, rope_model
from tests.reference.transformers_runs import OFFSETS, forward


def llama_with(**rope) -> Model:
    row = rope_model("default")
    return Model(row.cls, {**row.config, "rope_parameters": {"rope_theta": 100.0, **rope}}, row.query, row.output)


def mpt_with(**attn_config) -> Model:
    row = MODELS["mpt"]
    config = {**row.config, "attn_config": attn_config}
    return Model(row.cls, config, row.query, row.output, row.float32, False, row.implementation)


def falcon_of(heads: int) -> Model:
    row = MODELS["falcon alibi"]
    config = {**row.config, "num_attention_heads": heads}
    return Model(row.cls, config, row.query, row.output, row.float32, takes_positions=False)


def off(block, calls, row):
    with pytest.raises(AssertionError, match="off by"):
        assert_equal(block, calls, 0, row.float32, row.takes_positions)


def test_llama_ignores_partial_rotary_factor_under_the_default_type(tmp_path):
    """Its class rotates the whole head; the key's documented meaning is the width."""
    row = llama_with(rope_type="default", partial_rotary_factor=0.5)
    model = row.save(tmp_path)
    calls = forward(model, row, (8, 1))
    block = block_of(tmp_path, model, row, 0)
    assert block.spec.rotary is not None
    assert block.spec.rotary.width == 4
    off(block, calls, row)
    whole = block.spec.model_copy(update={"rotary": block.spec.rotary.model_copy(update={"width": 8})})
    weights = load_layer(tmp_path, whole, model_type="llama", layer=0)
    theirs = Attention(whole, dtype=torch.float64, tables=table_set(whole, 64)).load(weights)
    assert_equal(theirs, calls, 0, (), own_positions=True)


def test_llama_cannot_run_partial_rotary_factor_under_a_scaled_type(tmp_path):
    """The scaled schedules honour the key, and its class rotates the whole head all the same."""
    row = llama_with(rope_type="linear", factor=3.0, partial_rotary_factor=0.5)
    model = row.save(tmp_path)
    assert block_of(tmp_path, model, row, 0).spec.rotary.width == 4
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        forward(model, row, (8,))


def test_mpt_never_reads_its_alibi_bias_max(tmp_path):
    row = mpt_with(alibi_bias_max=5)
    model = row.save(tmp_path)
    calls = forward(model, row, (8, 1))
    block = block_of(tmp_path, model, row, 0)
    assert block.spec.bias[0].bias_max == 5
    off(block, calls, row)
    as_eight = block.spec.model_copy(update={"bias": (block.spec.bias[0].model_copy(update={"bias_max": 8.0}),)})
    weights = load_layer(tmp_path, as_eight, model_type="mpt", layer=0)
    theirs = Attention(as_eight, dtype=torch.float64, tables=table_set(as_eight, 64)).load(weights)
    assert_equal(theirs, calls, 0, row.float32, own_positions=False)


def test_falcon_rounds_its_bias_to_bfloat16_in_the_layer(tmp_path):
    """Slopes of 6 heads are powers of two and small products exact; a slope of 12 heads times a key index is not."""
    row = falcon_of(12)
    model = row.save(tmp_path)
    off(block_of(tmp_path, model, row, 0), forward(model, row, (8, 1)), row)


def test_a_row_without_a_key_attends_to_all_of_them(tmp_path):
    """Eager attention adds float32's least number, which swallows every score: a pad's row averages all values."""
    row = rope_model("default")
    eager = Model(row.cls, row.config, row.query, row.output, implementation="eager")
    model = eager.build()
    model.save_pretrained(tmp_path)
    (call,) = forward(model, eager, (8,), OFFSETS)
    spec = portpe.load_spec(tmp_path, layer=0).with_precision("hf")
    weights = load_layer(tmp_path, spec, model_type="llama", layer=0)
    block = Attention(spec, tables=table_set(spec, 64)).load(weights)
    hidden, output = call.layers[0]
    stages = block.stages(hidden, call.positions, call.mask)
    pad = 1, 0  # batch 1 begins with pads
    assert not call.mask[pad]
    assert torch.equal(stages["output"][pad], torch.zeros(42)), "o_proj has no bias: a context of 0 gives 0"
    average = (
        stages["v"].mean(2).repeat_interleave(3, dim=1).flatten(1)[1] @ torch.from_numpy(weights["o_proj.weight"]).T
    )
    torch.testing.assert_close(output[pad], average, rtol=1e-5, atol=1e-5)


def test_bloom_in_float64_makes_a_row_without_a_key_nan(tmp_path):
    """It masks with float64's least number and takes the softmax in float32, where that is minus infinity."""
    row = MODELS["bloom"]
    model = row.save(tmp_path)
    mask = torch.tensor([[0, 1, 1]])
    seen = []
    layer = next(module for name, module in model.named_modules() if name.endswith(row.output))
    layer.register_forward_hook(lambda _, __, output: seen.append(output))
    with torch.no_grad():
        model(input_ids=torch.tensor([[0, 5, 7]]), attention_mask=mask)
    assert seen[0][0, 0].isnan().all()
    assert not seen[0][0, 1:].isnan().any()


def test_llama_4_counts_pads_into_its_temperature(tmp_path):
    """Layers without a rotation: with pads before it a text gets other outputs, and by its positions the same."""
    row = replace(MODELS["llama4"], config={**MODELS["llama4"].config, "no_rope_layers": [0, 0]})
    model = row.save(tmp_path)
    block = block_of(tmp_path, model, row, 0)
    assert_equal(block, forward(model, row, (8, 1)), 0, row.float32, True, spread=row.spread, widest=row.widest)
    padded = forward(model, replace(row, padded=True), (8, 1), offsets=(0, 0, 0))
    with pytest.raises(AssertionError, match="off by"):
        assert_equal(block, padded, 0, row.float32, True, spread=row.spread, widest=row.widest)
    x, mask = padded[0].layers[0][0][1:2], padded[0].mask[1:2]  # three pads
    alone = block(x[:, 3:]).output
    assert torch.allclose(block(x, attention_mask=mask).output[:, 3:], alone, rtol=1e-12, atol=1e-12)
    theirs = padded[0].layers[0][1][1:2, 3:]
    assert (theirs - alone).abs().max() > 1e-2 * alone.abs().max()


@pytest.mark.parametrize("model_type", ["beit", "data2vec-vision"])
def test_beit_turns_the_table_of_a_picture_that_is_not_square(model_type):
    """On 2 rows of 3 cells: transformers' own index finds the rows that ours does, its forward reads others."""
    config = transformers.CONFIG_MAPPING[model_type](
        image_size=[32, 48], use_relative_position_bias=True, hidden_size=12, num_attention_heads=3, num_hidden_layers=1
    )
    if model_type == "beit":
        from transformers.models.beit.modeling_beit import BeitRelativePositionBias

        module = BeitRelativePositionBias(config)
    else:
        from transformers.models.data2vec.modeling_data2vec_vision import Data2VecVisionRelativePositionBias

        module = Data2VecVisionRelativePositionBias(config, (2, 3))
    with torch.no_grad():
        table = module.relative_position_bias_table.normal_(generator=torch.Generator().manual_seed(3)).numpy()
        theirs = module((2, 3)).numpy().reshape(3, 7, 7)
    positions = np.pad(np.indices((2, 3)).reshape(2, -1), ((0, 0), (1, 0)))
    spec = portpe.load_spec(config.to_dict())
    ours = portpe.tabulate(spec, positions, weights={"relative_position_bias_table": table})["bias"]
    index = module.generate_relative_position_index((2, 3)).numpy()
    assert np.array_equal(ours, table[index].transpose(2, 0, 1).astype(np.float64))
    assert np.abs(ours - theirs).max() > 1


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_seamless_v2_adds_its_boolean_mask_to_the_scores(tmp_path):
    """Rows with pads are off where attention is eager; the row without is right, since 1 is added to all its scores."""
    mask = torch.ones(len(PADS), COUNT, dtype=torch.long)
    for batch, pads in enumerate(PADS):
        mask[batch, COUNT - pads :] = 0
    states = torch.from_numpy(np.random.default_rng(7).normal(size=(len(PADS), COUNT, WIDTH)))
    errors = {}
    for implementation in ("sdpa", "eager"):
        row = replace(RELATIVE_MODELS["seamless_m4t_v2 speech"], implementation=implementation)
        model = row.save(tmp_path)
        given, theirs = record(model, row, states, mask)[0]
        spec = portpe.load_spec(tmp_path, part="speech")
        weights = load_layer(tmp_path, spec, model_type="seamless_m4t_v2", layer=0, part="speech")
        ours = Attention(spec, dtype=torch.float64).load(weights)(given, attention_mask=mask).output
        apart = ((ours - theirs).abs() * mask[..., None]).amax((1, 2)) / theirs.abs().max()
        errors[implementation] = apart.tolist()
    assert max(errors["sdpa"]) < 1e-12
    assert errors["eager"][0] < 1e-12
    assert min(errors["eager"][1:]) > 1e-2
