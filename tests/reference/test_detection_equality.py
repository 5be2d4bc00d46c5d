"""The reference block in float64 against detectors' encoders: positions in queries and keys, none in values."""

from typing import Any

import pytest
import torch
import transformers

import portpe
from portpe.checkpoint import load_layer
from portpe.reference import Attention
from tests.reference.transformers_model import widen

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

GRID = (4, 6)  # of the last feature map: a sixteenth of the picture each way
_DETR: dict[str, Any] = {
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20,
    "num_queries": 3,
}
_RT_DETR = {
    **_DETR,
    "d_model": 32,
    "encoder_hidden_dim": 48,
    "decoder_attention_heads": 4,
    "encoder_in_channels": [8, 8, 8],
    "decoder_in_channels": [48, 48, 48],
    "num_denoising": 0,
    "positional_encoding_temperature": 50,
}
# class, config, how far its sinusoids may be off: Table Transformer's are made in float32 whatever the model's type
MODELS = {
    "detr": ("DetrForObjectDetection", _DETR, 1e-12),
    "conditional_detr": ("ConditionalDetrForObjectDetection", _DETR, 1e-12),
    "table-transformer": ("TableTransformerForObjectDetection", _DETR, 3e-6),
    "rt_detr": ("RTDetrForObjectDetection", _RT_DETR, 1e-12),
    "rt_detr norm before": ("RTDetrForObjectDetection", {**_RT_DETR, "normalize_before": True}, 1e-12),
}


def model_of(name):
    cls, config, _ = MODELS[name]
    backbone = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 8, 8],
        depths=[1, 1, 1],
        layer_type="basic",
        out_features=["stage1", "stage2", "stage3"],
    )
    made = getattr(transformers, cls)
    model = made(made.config_class(**config, backbone_config=backbone)).eval()
    widen(model.model.encoder, 3, 2.9)
    return model


class Seen:
    """What each layer's projections see, by name, and what its attention gives."""

    def __init__(self, model):
        self.inputs = {"q": [], "k": [], "v": []}
        self.outputs = []
        for name, module in model.model.encoder.named_modules():
            if name.endswith((".o_proj", ".out_proj")):
                module.register_forward_hook(lambda _, __, found: self.outputs.append(found.detach()))
            for part, into in self.inputs.items():
                if name.endswith(f".{part}_proj"):
                    module.register_forward_pre_hook(lambda _, given, into=into: into.append(given[0].detach()))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_families(name, tmp_path):
    model = model_of(name)
    model.save_pretrained(tmp_path)
    model, tolerance = model.double(), MODELS[name][2]
    seen, (rows, columns) = Seen(model), GRID
    picture = torch.randn(2, 3, 16 * rows, 16 * columns, generator=torch.Generator().manual_seed(1)).double()
    with torch.no_grad():
        model(picture)
    cells = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).T
    positions = cells[:, None].expand(-1, 2, -1)
    assert len(seen.outputs) == 2
    for layer, output in enumerate(seen.outputs):
        q, k, v = (seen.inputs[part][layer] for part in "qkv")
        spec = portpe.load_spec(tmp_path, layer=layer, part="encoder")
        weights = load_layer(tmp_path, spec, model_type=model.config.model_type, layer=layer, part="encoder")
        block = Attention(spec, dtype=torch.float64).load(weights)
        stages = block.stages(v, positions)
        for given in (q, k):
            assert (stages["embedded"] - given).abs().max() <= tolerance * given.abs().max()
        assert (stages["output"] - output).abs().max() <= 10 * tolerance * output.abs().max()
        assert stages["scores"].std() > 1.5, "the weights are too narrow to show a fault"
        wrong = Attention(spec.model_copy(update={"embedding_to": "input"}), dtype=torch.float64).load(weights)
        assert (wrong.stages(v, positions)["output"] - output).abs().max() > 0.05 * output.abs().max()
