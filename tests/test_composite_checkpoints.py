"""Layer: tests. A text model inside a larger one: its tensors are found where save_pretrained puts them."""

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file
from transformers import CONFIG_MAPPING

from portpe import checkpoint, config
from portpe.errors import SpecError

TEXT = {
    "vocab_size": 120,
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 64,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OPT = {
    "vocab_size": 120,
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_hidden_layers": 2,
    "ffn_dim": 20,
    "max_position_embeddings": 64,
    "word_embed_proj_dim": 48,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "image_size": 24,
    "patch_size": 8,
    "num_channels": 3,
}
# model_type: the text's and the tower's, whose tensors have the same endings
COMPOSITES = {
    "llava": ("llama", "clip_vision_model"),
    "llava_onevision": ("qwen2", "siglip_vision_model"),
    "video_llava": ("llama", "clip_vision_model"),
    "paligemma": ("gemma", "siglip_vision_model"),
    "mistral3": ("mistral", "pixtral"),
    "gemma3": ("gemma3_text", "siglip_vision_model"),
    "cohere2_vision": ("cohere2", "siglip_vision_model"),
    "idefics3": ("llama", "idefics3_vision"),
    "internvl": ("qwen2", "internvl_vision"),
    "blip-2": ("opt", "blip_2_vision_model"),
}


def built(name):
    """A tiny model with a tower as wide as it is deep elsewhere, weights drawn anew so that no two tensors agree."""
    text, vision = COMPOSITES[name]
    parts = {"text_config": (text, OPT if text == "opt" else TEXT), "vision_config": (vision, VISION)}
    made = {key: CONFIG_MAPPING[kind](**sizes).to_dict() for key, (kind, sizes) in parts.items()}
    if name == "blip-2":
        small = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 1, "intermediate_size": 20}
        made["qformer_config"] = {**small, "vocab_size": 50, "encoder_hidden_size": 32}
    whole = CONFIG_MAPPING[name](**made)
    torch.manual_seed(sorted(COMPOSITES).index(name))
    class_name = transformers.models.auto.modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[name]
    return getattr(transformers, class_name)._from_config(whole)


@pytest.mark.parametrize("name", sorted(COMPOSITES))
def test_the_text_models_own_projections_are_read(name, tmp_path):
    model = built(name)
    model.save_pretrained(tmp_path)
    reading = config.read(tmp_path, 1, "text")
    found = checkpoint.load_layer(
        tmp_path, reading.spec, model_type=reading.model_type, layer=reading.layer, part=reading.part
    )
    text = model.get_decoder()
    layer = (text.model.decoder if name == "blip-2" else text).layers[1]
    for projection in ("q_proj", "k_proj", "v_proj"):
        expected = getattr(layer.self_attn, projection).weight.detach().numpy()
        np.testing.assert_array_equal(found[f"{projection}.weight"], expected)
    stored = load_file(tmp_path / "model.safetensors")
    holders = [key for key, value in stored.items() if np.array_equal(value, found["q_proj.weight"])]
    assert len(holders) == 1


def test_a_model_that_is_no_composite_is_not_looked_for_deeper(tmp_path):
    """A llama whose tensors stand under a text_model of their own is not Llama's checkpoint."""
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT))
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({f"text_model.{key}": value for key, value in tensors.items()}, tmp_path / "model.safetensors")
    reading = config.read(tmp_path, 1)
    with pytest.raises(SpecError, match=r"checkpoint has no tensor .*layers\.\*, where layer 1 of llama is"):
        checkpoint.load_layer(tmp_path, reading.spec, model_type="llama", layer=1)
