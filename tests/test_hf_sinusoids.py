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


def sinusoidal_table(width, order, denominator, rows, offset=0, **more):
    encoding = SinusoidalEncoding(
        width=width, order=order, denominator=denominator, rows=rows, offset=offset, precision="hf", **more
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


def test_odd_widths_end_as_the_models_end_them():
    """Marian and XLM have one sine more than cosines; fairseq and MusicGen a channel of 0."""
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
    from transformers.models.musicgen.modeling_musicgen import MusicgenSinusoidalPositionalEmbedding
    from transformers.models.xlm.modeling_xlm import create_sinusoidal_embeddings

    theirs = MarianSinusoidalPositionalEmbedding(90, 15).create_weight().numpy()
    assert np.array_equal(sinusoidal_table(15, "sin_cos", "half", 90), theirs)
    theirs = create_sinusoidal_embeddings(90, 15, torch.empty(90, 15)).numpy()
    assert np.array_equal(sinusoidal_table(15, "interleaved", "half", 90), theirs)
    theirs = M2M100SinusoidalPositionalEmbedding.get_embedding(90, 15).numpy()
    assert np.array_equal(sinusoidal_table(15, "sin_cos", "half_minus_one", 90), theirs)
    theirs = MusicgenSinusoidalPositionalEmbedding.get_embedding(90, 15).numpy()
    assert np.array_equal(sinusoidal_table(15, "cos_sin", "half_minus_one", 90), theirs)
    assert (theirs[:, -1] == 0).all()


def test_ctrl_forms_its_angles_in_float32():
    from transformers.models.ctrl.modeling_ctrl import positional_encoding

    theirs = positional_encoding(300, 48, torch.float).numpy()
    assert np.array_equal(sinusoidal_table(48, "sin_cos", "half", 300, contract="ctrl"), theirs)
    others = sinusoidal_table(48, "sin_cos", "half", 300)
    assert 1e-6 < np.abs(theirs - others).max() < 1e-4


def test_canary_stretches_and_scales_them():
    from transformers.models.canary.modeling_canary import CanaryPositionalEmbedding

    width = 48
    theirs = CanaryPositionalEmbedding(400, width)(torch.arange(400)).numpy()
    base = 10000 ** ((width - 2) / width)
    ours = sinusoidal_table(width, "sin_cos", "half_minus_one", 400, base=base, scale=width**-0.5)
    assert np.abs(ours - theirs).max() <= 2 * np.spacing(np.float32(width**-0.5))
    # the paper's frequencies: 10000 ** (-2i / d)
    exact = SinusoidalEncoding(width=width, order="sin_cos", scale=width**-0.5)
    assert np.abs(tables.sinusoid(exact, np.arange(400)) - theirs).max() < 2e-5


def test_tensor2tensor_timescales():
    from transformers import TimesFmConfig
    from transformers.models.timesfm.modeling_timesfm import TimesFmPositionalEmbedding

    config = TimesFmConfig(hidden_size=48, min_timescale=1, max_timescale=5000)
    theirs = TimesFmPositionalEmbedding(config)(seq_length=200)[0].numpy()
    assert np.array_equal(sinusoidal_table(48, "sin_cos", "half_minus_one", 200, base=5000.0), theirs)
