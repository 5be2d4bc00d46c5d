"""A table an axis: the block against transformers' Pix2Struct and KOSMOS-2.5, and rows by hand."""

import operator

import numpy as np
import pytest
import torch
import transformers

import portpe
from portpe.checkpoint import load_layer
from portpe.encodings import LearnedAxesEncoding
from portpe.errors import SpecError
from portpe.reference import Attention
from portpe.spec import AttentionSpec
from tests.reference.transformers_model import widen

torch.set_num_threads(1)
SIZES = {"hidden_size": 4, "num_heads": 6, "num_kv_heads": 3, "head_dim": 4, "v_head_dim": 5, "scale": 1.0}
MODELS = {
    "pix2struct_vision_model": {
        "hidden_size": 36,
        "patch_embed_hidden_size": 5,
        "d_ff": 20,
        "d_kv": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "seq_len": 20,
    },
    "kosmos_2_5_vision_model": {
        "hidden_size": 36,
        "patch_embed_hidden_size": 5,
        "intermediate_size": 20,
        "head_dim": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "max_num_patches": 20,
    },
}
# class, how wide its weights are: KOSMOS-2.5 scales its scores
CLASSES = {
    "pix2struct_vision_model": ("Pix2StructVisionModel", 1.2),
    "kosmos_2_5_vision_model": ("models.kosmos2_5.modeling_kosmos2_5.Kosmos2_5VisionModel", 2.9),
}


@pytest.mark.parametrize("name", MODELS)
def test_layers_equal_transformers(name, tmp_path):
    """What the patches' projection gives, with the tables and through layer 0; and layer 1. Its norms are float32."""
    path, gain = CLASSES[name]
    cls = operator.attrgetter(path)(transformers)
    model = cls._from_config(cls.config_class(**MODELS[name]), attn_implementation="eager")
    widen(model, 3, gain)
    with torch.no_grad():
        for table in (model.embeddings.row_embedder, model.embeddings.column_embedder):
            table.weight.normal_()
    model.save_pretrained(tmp_path)
    model = model.double().eval()
    random = np.random.default_rng(4)
    cells = np.stack([random.integers(0, 18, (2, 11)), random.integers(0, 19, (2, 11))])
    patches = random.normal(size=(2, 11, 7))
    patches[..., 0], patches[..., 1] = cells + 1
    mask = torch.ones(2, 11, dtype=torch.long)
    mask[1, 8:] = 0
    seen = {"embeddings": [], "attention": [], "inputs": []}
    model.embeddings.register_forward_hook(lambda _, __, output: seen["embeddings"].append(output))
    for layer in model.encoder.layer:
        layer.attention.query.register_forward_pre_hook(lambda _, args: seen["inputs"].append(args[0]))
        layer.attention.register_forward_hook(lambda _, __, output: seen["attention"].append(output[0]))
    with torch.no_grad():
        model(torch.from_numpy(patches), attention_mask=mask)
        projected = model.embeddings.patch_projection(torch.from_numpy(patches[..., 2:]))
    for layer, given in ((0, projected), (1, seen["inputs"][1])):
        spec = portpe.load_spec(tmp_path, layer=layer)
        weights = load_layer(tmp_path, spec, model_type=name, layer=layer)
        block = Attention(spec, dtype=torch.float64).load(weights)
        places = torch.from_numpy(cells if layer == 0 else cells[0])
        stages = block.stages(given, places, mask)
        if layer == 0:
            torch.testing.assert_close(stages["embedded"], seen["embeddings"][0], rtol=0, atol=1e-12)
        kept, theirs = mask.bool(), seen["attention"][layer]
        error = (stages["output"] - theirs).abs()[kept].max() / theirs.abs()[kept].max()
        assert error < 2e-6
        assert stages["scores"].std() > 1.5


def test_rows_are_added_up_by_hand():
    encoding = LearnedAxesEncoding(rows=(3, 4), width=4, offset=1)
    first, second = np.arange(12.0).reshape(3, 4), 100 * np.arange(16.0).reshape(4, 4)
    weights = {"position_embedding.axis_0.weight": first, "position_embedding.axis_1.weight": second}
    found = portpe.tabulate(AttentionSpec(**SIZES, embedding=encoding), [[0, 1], [2, 0]], weights=weights)
    assert found["embedding"].tolist() == [[1204, 1305, 1406, 1507], [408, 509, 610, 711]]
    del weights["position_embedding.axis_1.weight"]
    with pytest.raises(SpecError, match=r"weights must hold the learned table position_embedding.axis_1.weight"):
        portpe.tabulate(AttentionSpec(**SIZES, embedding=encoding), [[0], [2]], weights=weights)


def test_a_table_has_a_row_for_position_0():
    with pytest.raises(SpecError, match="rows must be > offset = 2, got"):
        LearnedAxesEncoding(rows=(5, 2), width=4, offset=2)
