"""Angles in too few bits: how wrong they are, and that no table of ours has such an angle."""

import math

import ml_dtypes
import mpmath
import numpy as np
import pytest

from portpe import tables
from portpe.encodings import DefaultSchedule, RotaryEncoding, SinusoidalEncoding
from portpe.errors import SpecError
from portpe.spec import AttentionSpec


def layer(**keys):
    sizes = {"hidden_size": 24, "num_heads": 6, "num_kv_heads": 2, "head_dim": 128, "v_head_dim": 5, "scale": 0.1}
    return AttentionSpec(**{**sizes, **keys})


def rope(width=128, theta=10000.0, **keys):
    return RotaryEncoding(width=width, schedule=DefaultSchedule(rope_theta=theta), **keys)


class TestLowPrecisionAngles:
    """Casts that deployments make by accident: how bad each is, and that no table of ours has it."""

    THETA = 10000.0 ** (-np.arange(64) / 64)

    def worst_cos(self, positions, inv_freq):
        return np.max(
            np.abs(np.cos(np.multiply.outer(positions, inv_freq)) - np.cos(np.multiply.outer(positions, self.THETA)))
        )

    @pytest.mark.parametrize(
        ("low", "position", "error"),
        [
            (ml_dtypes.bfloat16, 4095, 1.6788301467895508),
            (np.float16, 4095, 0.8948813676834106),
            (np.float16, 32767, 1.9260175228118896),
        ],
    )
    def test_inverse_frequencies_cast_down(self, low, position, error):
        cast = self.THETA.astype(low).astype(np.float64)
        assert self.worst_cos(np.array([position]), cast) == pytest.approx(error, rel=2e-3)
        self.our_table_is_free_of_it(position)

    def test_bfloat16_frequencies_turn_by_whole_radians_too_much(self):
        cast = self.THETA.astype(ml_dtypes.bfloat16).astype(np.float64)
        assert np.max(np.abs(4095 * (cast - self.THETA))) == pytest.approx(5.0087890625, rel=1e-3)

    def test_float16_positions_collide(self):
        for n, distinct in ((4096, 3073), (32768, 6145)):
            assert len(np.unique(np.arange(n).astype(np.float16))) == distinct
        assert [float(np.float16(p)) for p in (4173, 4174, 2049)] == [4172.0, 4176.0, 2048.0]
        spec = layer(rotary=rope())
        cos, sin = tables.combine(tables.table_set(spec), np.arange(32768))
        assert len(np.unique(np.concatenate([cos, sin], axis=-1), axis=0)) == 32768

    def test_bfloat16_positions_lose_the_fastest_pair(self):
        position = 15962
        cast = float(np.array(position).astype(ml_dtypes.bfloat16))
        assert cast == 15936.0
        assert (math.cos(position), math.cos(cast)) == pytest.approx((-0.908015901251032, -0.2679500710721), abs=1e-9)
        cos, _ = tables.combine(tables.table_set(layer(rotary=rope())), np.array([position]))
        assert cos[0, 0] == pytest.approx(-0.908015901251032, abs=1.5e-7)

    @pytest.mark.parametrize(("position", "error"), [(131072, 7e-3), (1_000_000, 5.7e-2), (10_000_000, 0.76)])
    def test_float32_angles_are_wrong_far_out(self, position, error):
        near = np.arange(position - 2000, position + 1)
        single = np.float32(1) / np.float32(10000.0) ** (np.arange(0, 128, 2).astype(np.float32) / np.float32(128))
        angles = near.astype(np.float32)[:, None] * single
        assert angles.dtype == np.float32
        off = np.max(np.abs(np.cos(angles.astype(np.float64)) - np.cos(np.multiply.outer(near, self.THETA))))
        assert error / 3 < off < error * 1.5
        self.our_table_is_free_of_it(position)

    def our_table_is_free_of_it(self, position):
        made = tables.table_set(layer(rotary=rope()), position + 1)
        cos, sin = tables.combine(made, np.array([position]))
        with mpmath.workdps(50):
            for i in range(0, 64, 7):
                angle = position * mpmath.mpf(10000) ** (-mpmath.mpf(i) / 64)
                assert abs(cos[0, i] - float(mpmath.cos(angle))) < 2e-7
                assert abs(sin[0, i] - float(mpmath.sin(angle))) < 2e-7

    @pytest.mark.parametrize("bad", [np.array([1.0]), np.array([3], dtype=np.float16), [0.5], np.array([True])])
    def test_positions_that_are_no_integers_are_refused(self, bad):
        with pytest.raises(SpecError, match="positions must be integers, got"):
            tables.cos_sin(rope(4), bad)
        with pytest.raises(SpecError, match="positions must be integers, got"):
            tables.sinusoid(SinusoidalEncoding(width=4), bad)
