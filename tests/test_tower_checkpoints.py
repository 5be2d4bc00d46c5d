"""A tower inside a larger model: its own tensors are read, whatever other tower has tensors of the same endings."""

import numpy as np
import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING

from portpe import checkpoint, config

TEXT = {
    "vocab_size": 60,
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION = {
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "image_size": 24,
    "patch_size": 8,
}
# model_type: the class, and the projection of queries of each part's layer 1; both parts have one width
MODELS = {
    "clip": ("CLIPModel", "text_model.encoder.layers.1.self_attn", "vision_model.encoder.layers.1.self_attn"),
    "siglip": ("SiglipModel", "text_model.encoder.layers.1.self_attn", "vision_model.encoder.layers.1.self_attn"),
}


@pytest.mark.parametrize("part", ["text", "vision"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_each_part_has_its_own_projections(name, part, tmp_path):
    class_name, *homes = MODELS[name]
    whole = CONFIG_MAPPING[name](text_config=TEXT, vision_config=VISION)
    torch.manual_seed(7)
    model = getattr(transformers, class_name)._from_config(whole)
    model.save_pretrained(tmp_path)
    reading = config.read(tmp_path, 1, part)
    found = checkpoint.load_layer(
        tmp_path, reading.spec, model_type=reading.model_type, layer=reading.layer, part=reading.part
    )
    tensors = model.state_dict()
    home = homes[0 if part == "text" else 1]
    (query,) = [key for key in tensors if key.endswith(f"{home}.q_proj.weight")]
    np.testing.assert_array_equal(found["q_proj.weight"], tensors[query].numpy())


def test_a_towers_stages_are_counted_by_its_own_config(tmp_path):
    """CLAP's audio tower has 2 and 2 blocks; the numbers of blocks stand in its part of the config."""
    audio = {
        "depths": [2, 2],
        "num_attention_heads": [2, 4],
        "patch_embeds_hidden_size": 16,
        "window_size": 4,
        "spec_size": 32,
        "num_mel_bins": 16,
        "patch_stride": [4, 4],
        "hidden_size": 32,
        "num_hidden_layers": 2,
    }
    text = {**TEXT, "num_hidden_layers": 1}
    torch.manual_seed(8)
    model = transformers.ClapModel._from_config(CONFIG_MAPPING["clap"](text_config=text, audio_config=audio))
    model.save_pretrained(tmp_path)
    tensors = model.state_dict()
    for layer, (stage, block) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        reading = config.read(tmp_path, layer, "audio")
        found = checkpoint.load_layer(
            tmp_path, reading.spec, model_type=reading.model_type, layer=layer, part=reading.part
        )
        (query,) = [
            key
            for key in tensors
            if key.endswith(f"audio_encoder.layers.{stage}.blocks.{block}.attention.self.query.weight")
        ]
        np.testing.assert_array_equal(found["q_proj.weight"], tensors[query].numpy())
