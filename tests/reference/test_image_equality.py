"""The reference block in float64 against transformers' encoders of images: tables resampled to images not square.

What the positions were added to is what the embeddings give with a table of zeros.
"""

import inspect
import operator

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

PATCH, NATIVE = 4, 20
IMAGES = {"native": (5, 5), "wide": (3, 7), "tall": (9, 2)}  # patches, rows first
SIZES = {
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "image_size": NATIVE,
    "patch_size": PATCH,
}
# class, more keywords, tokens before the patches, whether the table is resampled (or q and k, or layer 0's input, are
# normed) in float32 whatever the model's type
MODELS = {
    "vit": ("ViTModel", {}, 1, False),
    "vit without biases": ("ViTModel", {"qkv_bias": False}, 1, False),
    "deit": ("DeiTModel", {}, 2, False),
    "vit_mae": ("ViTMAEModel", {"mask_ratio": 0.0}, 1, False),
    "vit_msn": ("ViTMSNModel", {}, 1, False),
    "ijepa": ("IJepaModel", {}, 0, False),
    "dinov2": ("Dinov2Model", {}, 1, True),
    "dinov2_with_registers": ("Dinov2WithRegistersModel", {"num_register_tokens": 3}, 4, True),
    "pixio": ("PixioModel", {"n_cls_tokens": 3}, 3, True),
    "flava_image_model": ("FlavaImageModel", {}, 1, False),
    "siglip_vision_model": ("SiglipVisionModel", {}, 0, False),
    "clip_vision_model": ("CLIPVisionModel", {}, 1, False),
    "blip_vision_model": ("BlipVisionModel", {}, 1, False),
    "internvl_vision": ("InternVLVisionModel", {"attention_bias": True}, 1, False),
    "internvl_vision norms": ("InternVLVisionModel", {"norm_type": "rms_norm", "use_qk_norm": True}, 1, True),
    "qianfan_ocr_vision": ("QianfanOCRVisionModel", {}, 1, False),
    "glm_image_vision": (
        "GlmImageVisionModel",
        {"num_hidden_layers": None, "num_attention_heads": None, "depth": 2, "num_heads": 6},
        0,
        True,
    ),
    "janus_vision_model": ("JanusVisionModel", {"attention_bias": False}, 0, False),
    "idefics2_vision": ("models.idefics2.modeling_idefics2.Idefics2VisionTransformer", {}, 0, False),
    "minicpm_ocr_vision": ("MiniCPMOcrVisionModel", {}, 0, False),
    "minicpmv4_6_vision": ("models.minicpmv4_6.modeling_minicpmv4_6.MiniCPMV4_6VisionModel", {}, 0, False),
    "minicpmv4_7_vision": ("MiniCPMV4_7VisionModel", {}, 0, False),
    "ovis2_vision": ("models.ovis2.modeling_ovis2.Ovis2VisionModel", {"qkv_bias": True}, 0, True),
    "idefics3_vision": ("Idefics3VisionTransformer", {}, 0, False),
    "smolvlm_vision": ("SmolVLMVisionTransformer", {}, 0, False),
    "radio": ("RadioModel", {"max_img_size": NATIVE, "num_cls_tokens": 2, "num_registers": 1}, 3, True),
    "rf_detr_dinov2": ("RfDetrDinov2Backbone", {"num_windows": 1}, 1, True),
    "siglip2_vision_model": ("Siglip2VisionModel", {"num_patches": 25, "image_size": None}, 0, True),
}
NATIVE_ALONE = ("ovis2_vision",)  # adds its table as it is, to pictures of one size
CASES = [(name, image) for name in MODELS for image in IMAGES if image == "native" or name not in NATIVE_ALONE]
OUTPUTS = ("o_proj", "out_proj", "projection", "projection_layer", "attention.output.dense", "attn.proj")


def model_of(name):
    cls, more, *_ = MODELS[name]
    made = operator.attrgetter(cls)(transformers)
    keywords = {key: value for key, value in {**SIZES, **more}.items() if value is not None}
    implementation = "sdpa" if made._supports_sdpa else "eager"
    model = made._from_config(made.config_class(**keywords), attn_implementation=implementation)
    widen(model, 3, 2.9)
    with torch.no_grad():
        table_of(model).normal_(generator=torch.Generator().manual_seed(5))
    return model.eval()


def table_of(model):
    (found,) = (
        p
        for n, p in model.named_parameters()
        if n.endswith(("position_embeddings", "position_embedding", "position_embedding.weight"))
    )
    return found


def embeddings_of(model):
    (found,) = (m for n, m in model.named_modules() if n.endswith("embeddings") and "patch" not in n)
    return found


class Seen:
    """Inputs and outputs of each layer's attention, and what the embeddings gave."""

    def __init__(self, model):
        self.inputs, self.outputs, self.sums, self.masks = [], [], [], []
        embeddings_of(model).register_forward_hook(
            lambda _, __, y: self.sums.append((y if torch.is_tensor(y) else y[0]).detach())
        )
        for name, module in model.named_modules():
            if ".head." in f".{name}." or not ("attn" in name or "attention" in name):
                continue
            if name.endswith(("q_proj", "qkv", ".query")):
                module.register_forward_hook(lambda _, x, __: self.inputs.append(x[0].detach()))
            if name.endswith(OUTPUTS):
                module.register_forward_hook(lambda _, __, y: self.outputs.append(y.detach()))


def inputs_of(model, grid):
    """Two images of the same grid; SigLIP 2 takes patches, in a sequence with room behind them, and MiniCPM-V and
    GLM-Image a row of the patches of both.
    """
    generator = torch.Generator().manual_seed(1)
    rows, columns = grid
    if "spatial_shapes" in inspect.signature(model.forward).parameters:
        patches = torch.randn(2, rows * columns, 3 * PATCH * PATCH, generator=generator).double()
        shapes = torch.tensor([grid, grid])
        return {
            "pixel_values": patches,
            "pixel_attention_mask": torch.ones(2, rows * columns, dtype=torch.long),
            "spatial_shapes": shapes,
        }
    takes = inspect.signature(embeddings_of(model).forward).parameters
    if "image_shapes" in takes:
        patches = torch.randn(2 * rows * columns, 3 * PATCH * PATCH, generator=generator).double()
        return {"pixel_values": patches, "grid_thw": torch.tensor([[1, *grid], [1, *grid]])}
    if "target_sizes" in takes:
        patches = torch.randn(1, 3, PATCH, 2 * rows * columns * PATCH, generator=generator).double()
        return {"pixel_values": patches, "target_sizes": torch.tensor([grid, grid]), "use_vit_merger": False}
    pixels = torch.randn(2, 3, rows * PATCH, columns * PATCH, generator=generator).double()
    given = {
        "interpolate_pos_encoding": True,
        "noise": torch.arange(rows * columns).expand(2, -1),  # ViT-MAE sorts patches by it: it leaves them as they are
    }
    return {"pixel_values": pixels} | {key: value for key, value in given.items() if key in takes}


def positions_of(grid, prefix):
    rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    places = torch.stack([rows.flatten(), columns.flatten()])
    return torch.nn.functional.pad(places, (prefix, 0))[:, None].expand(2, 2, -1)


def by_image(states):
    """(2, tokens, width), also of both images in one row."""
    return states.reshape(2, -1, states.shape[-1])


@pytest.mark.parametrize(("name", "image"), CASES)
def test_families(name, image, tmp_path):
    grid, (_, _, prefix, in_float32) = IMAGES[image], MODELS[name]
    model = model_of(name)
    assert model.config.model_type == name.split()[0]
    model.save_pretrained(tmp_path)
    model = model.double()
    seen, given = Seen(model), inputs_of(model, grid)
    with torch.no_grad():
        model(**given)
        layers = [tuple(map(by_image, pair)) for pair in zip(seen.inputs, seen.outputs, strict=True)]
        total = by_image(*seen.sums)
        kept = table_of(model).clone()
        table_of(model).zero_()
        model(**given)
        plain = by_image(seen.sums[1])
        table_of(model).copy_(kept)
    tolerance = 3e-6 if in_float32 else 1e-12
    for layer, (hidden, output) in enumerate(layers):
        spec = portpe.load_spec(tmp_path, layer=layer)
        weights = load_layer(tmp_path, spec, model_type=model.config.model_type, layer=layer)
        block = Attention(spec, dtype=torch.float64).load(weights)
        assert (spec.embedding is None) == (layer > 0)
        stages = block.stages(plain if layer == 0 else hidden, positions_of(grid, prefix) if layer == 0 else None)
        if layer == 0:
            assert (stages["embedded"] - total).abs().max() <= tolerance * total.abs().max()
            assert (total - plain).abs().max() > 0.5, "the table adds too little to be seen"
        assert (stages["output"] - output).abs().max() <= 10 * tolerance * output.abs().max()
        assert stages["scores"].std() > 1.5, "the weights are too narrow to show a fault"
