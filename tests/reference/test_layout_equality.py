"""The reference block in float64 against transformers' own layer in float64: LayoutLM's descendants.

LayoutLMv2 as a whole needs detectron2 for its pictures, so its encoder is run on states drawn at random.
"""

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers.models.layoutlmv2.modeling_layoutlmv2 import LayoutLMv2Encoder
from transformers.models.layoutlmv3.modeling_layoutlmv3 import LayoutLMv3Encoder

import portpe
from portpe.checkpoint import load_layer
from portpe.errors import SpecError
from portpe.reference import Attention
from tests.reference.test_transformers_equality import assert_equal
from tests.reference.transformers_model import widen
from tests.reference.transformers_runs import Call

torch.set_num_threads(1)

HEADS, HEAD_DIM, COUNT, PADS = 6, 8, 23, (0, 3, 1)
WIDTH = HEADS * HEAD_DIM
_SIZES = {
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "rel_pos_bins": 12,
    "max_rel_pos": 9,
    "rel_2d_pos_bins": 18,
    "max_rel_2d_pos": 300,
}
# class of the encoder and of the config, its keywords, what is float32
MODELS = {
    "layoutlmv2": (LayoutLMv2Encoder, "LayoutLMv2Config", {}, ("softmax",)),
    "layoutlmv2 apart": (LayoutLMv2Encoder, "LayoutLMv2Config", {"fast_qkv": False}, ("softmax",)),
    "layoutlmv2 places": (LayoutLMv2Encoder, "LayoutLMv2Config", {"has_spatial_attention_bias": False}, ("softmax",)),
    "layoutxlm": (LayoutLMv2Encoder, "LayoutXLMConfig", {}, ("softmax",)),
    "layoutlmv3": (LayoutLMv3Encoder, "LayoutLMv3Config", {}, ()),
    "layoutlmv3 places": (LayoutLMv3Encoder, "LayoutLMv3Config", {"has_spatial_attention_bias": False}, ()),
    "layoutlmv3 without": (LayoutLMv3Encoder, "LayoutLMv3Config", {"has_relative_attention_bias": False}, ()),
}


class Model(torch.nn.Module):
    """An encoder under the name that it has in a model."""

    def __init__(self, cls, config):
        super().__init__()
        self.encoder = cls(config)


def saved(folder, name):
    """The model in float64, its weights in the folder as the model's own checkpoint has them."""
    cls, config_class, changes, float32 = MODELS[name]
    config = getattr(transformers, config_class)(**_SIZES, **changes)
    config._attn_implementation = "eager"
    model = Model(cls, config)
    widen(model, 0, 2.9)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith(("q_bias", "v_bias")):
                parameter.normal_()
            if "rel_pos" in key:  # as wide as scores, before LayoutLMv3 divides them
                parameter.normal_(std=2 if "v2" in config_class else 6)
    config.save_pretrained(folder)
    save_file(model.state_dict(), folder / "model.safetensors")
    return model.double().eval(), config, float32


def record(model, states, mask, places, boxes, monkeypatch):
    """What each layer saw and gave. LayoutLMv2 fills float32 scores with the least number of the states' type, which
    float32 has not where these are float64.
    """
    least = torch.finfo(torch.float32)
    monkeypatch.setattr(torch, "finfo", lambda _: least)
    inputs, outputs = [], []
    for name, module in model.named_modules():
        if name.endswith("attention.self"):
            module.register_forward_pre_hook(
                lambda _, args, named: inputs.append((args[0] if args else named["hidden_states"]).detach()),
                with_kwargs=True,
            )
        if name.endswith("attention.output.dense"):
            module.register_forward_hook(lambda _, __, output: outputs.append(output.detach()))
    hidden = (1.0 - mask.double()) * least.min
    with torch.no_grad():
        model.encoder(states, attention_mask=hidden[:, None, None], bbox=boxes, position_ids=places)
    monkeypatch.undo()
    return list(zip(inputs, outputs, strict=True))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_families(name, tmp_path, monkeypatch):
    model, config, float32 = saved(tmp_path, name)
    rng = np.random.default_rng(7)
    batch = len(PADS)
    mask = torch.ones(batch, COUNT, dtype=torch.long)
    for row, pads in enumerate(PADS):
        mask[row, COUNT - pads :] = 0
    places = torch.from_numpy(rng.permutation(3 * COUNT)[None, :COUNT] + np.arange(batch)[:, None])
    boxes = torch.from_numpy(rng.integers(0, 1001, (batch, COUNT, 4)))
    states = torch.from_numpy(rng.normal(size=(batch, COUNT, WIDTH)))
    layers = record(model, states, mask, places, boxes, monkeypatch)
    for layer in (0, 1):
        spec = portpe.load_spec(tmp_path, layer=layer)
        axes = torch.stack([places, boxes[..., 0], boxes[..., 3]])
        positions = axes if spec.position_axes == 3 else places
        assert bool(spec.bias) != name.endswith("without")
        weights = load_layer(tmp_path, spec, model_type=config.model_type, layer=layer)
        block = Attention(spec, dtype=torch.float64).load(weights)
        assert_equal(block, [Call(mask, positions, layers)], layer, float32, own_positions=True)


def test_boxes_without_places_are_refused():
    """LayoutLMv2 adds them alone, LayoutLMv3 drops them."""
    config = transformers.LayoutLMv2Config(has_relative_attention_bias=False)
    with pytest.raises(SpecError, match="has_relative_attention_bias must be true where has_spatial_attention_bias is"):
        portpe.load_spec(config)
    config = transformers.LayoutLMv3Config(has_relative_attention_bias=False)
    with pytest.warns(UserWarning, match="belongs to hidden_states"):
        assert portpe.load_spec(config).bias == ()
