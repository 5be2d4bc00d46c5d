"""Sinusoids of a distance: their numbers, both signs, clamped, and as transformers makes them."""

import mpmath
import numpy as np
import pytest
import torch

import portpe
from portpe import tables
from portpe.encodings import TransformerXlEncoding
from portpe.errors import SpecError
from portpe.spec import AttentionSpec
from portpe.weight_shapes import weight_shapes

SIZES = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 5, "v_head_dim": 7, "scale": 0.3}
WIDTH = 24
DISTANCES = np.array([0, 1, -1, 7, -30, 1024, -5001, 131_071, -1_000_000])


def layer(encoding, **changes):
    return AttentionSpec(**{"hidden_size": WIDTH, **SIZES, **changes}, bias=(encoding,))


@pytest.mark.parametrize("order", ["interleaved", "sin_cos"])
def test_rows_equal_fifty_digits_and_two_levels_come_close(order):
    encoding = TransformerXlEncoding(order=order, base=700.0)
    spec = layer(encoding)
    exact = tables.relative_sinusoid(encoding, spec, DISTANCES)
    made = tables.table_set(spec)
    assert set(made) == {f"relative_{name}" for name in ("cos_hi", "sin_hi", "cos_lo", "sin_lo")}
    assert tables.end_of(spec, made) == 2**20
    cos, sin = tables.combine(made, np.abs(DISTANCES), "relative_")
    sin = sin * np.sign(DISTANCES)[:, None]
    with mpmath.workdps(50):
        for row, distance in enumerate(DISTANCES.tolist()):
            for c in range(WIDTH // 2):
                angle = distance * mpmath.mpf(700) ** (-mpmath.mpf(2 * c) / WIDTH)
                s, k = (2 * c, 2 * c + 1) if order == "interleaved" else (c, WIDTH // 2 + c)
                for value, level, true in (
                    (exact[row, s], sin[row, c], mpmath.sin(angle)),
                    (exact[row, k], cos[row, c], mpmath.cos(angle)),
                ):
                    assert abs(mpmath.mpf(float(value)) - true) <= 2**-52 * (1 + abs(distance))
                    assert abs(mpmath.mpf(float(level)) - true) <= 2e-7


def test_transformers_rows_bit_for_bit():
    """XLNet and Parakeet: powers; wav2vec 2's Conformers: exp. Distances from far behind to far ahead."""
    from transformers import ParakeetEncoderConfig, Wav2Vec2ConformerConfig, XLNetConfig, XLNetModel
    from transformers.models.parakeet.modeling_parakeet import ParakeetEncoderRelPositionalEncoding
    from transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer import (
        Wav2Vec2ConformerRelPositionalEmbedding,
    )

    length = 2500
    behind = np.arange(length - 1, -length, -1)
    states = torch.zeros(1, length, WIDTH)

    def ours(**settings):
        encoding = TransformerXlEncoding(precision="hf", **settings)
        made = tables.table_set(layer(encoding), length)
        assert set(made) == {"relative_cos", "relative_sin"}
        rows = tables.relative_sinusoid(encoding, layer(encoding), behind, made).astype(np.float32)
        again = tables.relative_sinusoid(encoding, layer(encoding), behind).astype(np.float32)
        assert rows.tobytes() == again.tobytes()
        return rows

    conformer = Wav2Vec2ConformerRelPositionalEmbedding(
        Wav2Vec2ConformerConfig(hidden_size=WIDTH, num_attention_heads=2, max_source_positions=7)
    )
    theirs = conformer(states)[0].numpy()
    assert np.array_equal(ours(order="interleaved", contract="conformer"), theirs)
    parakeet = ParakeetEncoderRelPositionalEncoding(ParakeetEncoderConfig(hidden_size=WIDTH, num_attention_heads=2))
    theirs = parakeet(states)[0].numpy()
    assert np.array_equal(ours(order="interleaved"), theirs)
    xlnet = XLNetModel(XLNetConfig(vocab_size=9, d_model=WIDTH, n_head=2, n_layer=1, d_inner=4))
    theirs = xlnet.relative_positional_encoding(length, length)[1:, 0].numpy()  # the first is one farther behind
    assert np.array_equal(ours(), theirs)


def test_the_angle_of_float32_is_off_far_away():
    """Why exact is the default: at distance 100 000 transformers' rows are off by 1e-3 and more."""
    far = np.array([100_003])
    exact, hf = (
        tables.relative_sinusoid(TransformerXlEncoding(precision=precision), layer(TransformerXlEncoding()), far)
        for precision in ("exact", "hf")
    )
    assert 1e-3 < np.abs(exact - hf).max() < 1e-2


def test_tabulate_lists_rows_and_no_bias():
    spec = layer(TransformerXlEncoding(base=16.0, clamp=2), hidden_size=4)
    found = portpe.tabulate(spec, [0, 1, 2, 9])
    assert set(found) == {"relative"}
    by_hand = [[0, 0, 1, 1], *([np.sin(d), np.sin(d / 4), np.cos(d), np.cos(d / 4)] for d in (1, 2, 2))]
    np.testing.assert_allclose(found["relative"], by_hand, rtol=0, atol=1e-15)


def test_weights_by_name():
    shapes = weight_shapes(layer(TransformerXlEncoding()))
    assert shapes["relative_proj.weight"] == (30, 24)
    assert shapes["content_bias"] == shapes["position_bias"] == (6, 5)


def test_an_odd_width_is_refused():
    with pytest.raises(SpecError, match="hidden_size must be even for a transformer_xl bias, got 23"):
        layer(TransformerXlEncoding(), hidden_size=23)


def test_tables_of_precision_hf_need_a_length():
    with pytest.raises(SpecError, match="max_position_embeddings is required for tables of precision hf, got None"):
        tables.table_set(layer(TransformerXlEncoding(precision="hf")))
