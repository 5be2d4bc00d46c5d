"""Sinusoidal rows of ``precision="hf"`` against transformers' own tables: the same float32 bits."""

import numpy as np
import pytest
import torch
import transformers

from portpe import tables
from portpe.encodings import SinusoidalEncoding
from portpe.spec import AttentionSpec


def layer(**keys):
    sizes = {"hidden_size": 96, "num_heads": 6, "num_kv_heads": 2, "head_dim": 20, "v_head_dim": 5, "scale": 0.1}
    return AttentionSpec(**{**sizes, **keys})


def sinusoidal_table(width, order, denominator, rows, offset=0):
    encoding = SinusoidalEncoding(
        width=width, order=order, denominator=denominator, rows=rows, offset=offset, precision="hf"
    )
    made = tables.table_set(layer(hidden_size=width, embedding=encoding))["embedding"]
    assert made.dtype == np.float32
    assert np.array_equal(tables.sinusoid(encoding, np.array([3, 0]))[0], made[3])
    return made


@pytest.mark.parametrize("width", [12, 384, 1280])
def test_whisper_sinusoids_bit_for_bit(width):
    from transformers.models.whisper.modeling_whisper import sinusoids

    assert np.array_equal(sinusoidal_table(width, "sin_cos", "half_minus_one", 1500), sinusoids(1500, width).numpy())


def test_whisper_encoder_module_holds_the_same_table():
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = transformers.WhisperConfig(
        d_model=24, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=8, max_source_positions=150
    )
    weight = WhisperEncoder(config).embed_positions.weight.detach().numpy()
    assert np.array_equal(sinusoidal_table(24, "sin_cos", "half_minus_one", 150), weight)


def test_musicgen_and_m2m_tables_bit_for_bit():
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
    from transformers.models.musicgen.modeling_musicgen import MusicgenSinusoidalPositionalEmbedding

    theirs = MusicgenSinusoidalPositionalEmbedding.get_embedding(700, 36).numpy()
    assert np.array_equal(sinusoidal_table(36, "cos_sin", "half_minus_one", 700), theirs)
    theirs = M2M100SinusoidalPositionalEmbedding.get_embedding(700, 36).numpy()
    assert np.array_equal(sinusoidal_table(36, "sin_cos", "half_minus_one", 700, offset=2), theirs[2:])


def test_distilbert_and_marian_tables_bit_for_bit():
    from transformers.models.distilbert.modeling_distilbert import create_sinusoidal_embeddings
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    out = torch.empty(512, 48)
    create_sinusoidal_embeddings(512, 48, out)
    assert np.array_equal(sinusoidal_table(48, "interleaved", "half", 512), out.numpy())
    theirs = MarianSinusoidalPositionalEmbedding(512, 48).create_weight().numpy()
    assert np.array_equal(sinusoidal_table(48, "sin_cos", "half", 512), theirs)
