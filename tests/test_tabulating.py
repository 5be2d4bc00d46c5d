"""``portpe.tabulate``: names, shapes, types and numbers of each kind, and what it refuses."""

import importlib

import ml_dtypes
import mpmath
import numpy as np
import pytest

import portpe
from portpe import hf_tables
from portpe.encodings import (
    AlibiEncoding,
    DefaultSchedule,
    DynamicSchedule,
    FixedRegime,
    LearnedEncoding,
    LongropeSchedule,
    ProportionalSchedule,
    RotaryEncoding,
    SinusoidalEncoding,
    YarnSchedule,
)
from portpe.errors import SpecError
from portpe.spec import AttentionSpec
from portpe.tabulating import tabulate

POSITIONS = [5, 0, 131071, 1_000_000, 7]


def layer(**keys):
    sizes = {"hidden_size": 24, "num_heads": 6, "num_kv_heads": 2, "head_dim": 16, "v_head_dim": 5, "scale": 0.1}
    return AttentionSpec(**{**sizes, **keys})


def shapes(numbers):
    assert all(values.dtype == np.float64 for values in numbers.values())
    return {name: values.shape for name, values in numbers.items()}


ROTARY_SHAPES = {
    "inv_freq": (4,),
    "cos": (5, 4),
    "sin": (5, 4),
    "attention_factor": (),
    "softmax_scale_multiplier": (),
}


def test_it_is_the_packages_own_name_and_no_module_hides_it():
    for name, home in portpe._HOME.items():
        assert getattr(portpe, name) is getattr(importlib.import_module(home), name)
        assert home != f"portpe.{name}", "importing such a submodule binds its name over the function"


def test_rotary():
    schedule = YarnSchedule(factor=32.0, original_max_position_embeddings=4096, rope_theta=150000.0, truncate=False)
    numbers = tabulate(layer(rotary=RotaryEncoding(width=8, schedule=schedule)), POSITIONS)
    assert shapes(numbers) == ROTARY_SHAPES
    assert numbers["attention_factor"] == pytest.approx(1.3465735902799727, rel=1e-15)
    assert numbers["softmax_scale_multiplier"] == 1.0
    with mpmath.workdps(50):
        for row, position in enumerate(POSITIONS):
            angle = position * mpmath.mpf(float(numbers["inv_freq"][1]))
            cos, sin = mpmath.cos(angle) * 1.3465735902799727, mpmath.sin(angle) * 1.3465735902799727
            assert (numbers["cos"][row, 1], numbers["sin"][row, 1]) == pytest.approx((float(cos), float(sin)), abs=1e-9)


def test_sign_negates_the_sines_and_no_frequency():
    plus, minus = (
        tabulate(layer(rotary=RotaryEncoding(width=8, schedule=DefaultSchedule(), sign=sign)), POSITIONS)
        for sign in (1, -1)
    )
    assert np.array_equal(minus["sin"], -plus["sin"])
    assert np.array_equal(minus["cos"], plus["cos"])
    assert np.array_equal(minus["inv_freq"], plus["inv_freq"])
    assert np.all(minus["inv_freq"] > 0)


def test_proportional_keeps_its_zeros():
    schedule = ProportionalSchedule(partial_rotary_factor=0.5)
    numbers = tabulate(layer(rotary=RotaryEncoding(width=16, schedule=schedule)), POSITIONS)
    assert numbers["inv_freq"].shape == (8,)
    assert numbers["inv_freq"][4:].tolist() == [0.0] * 4
    assert np.all(numbers["cos"][:, 4:] == 1.0)
    assert np.all(numbers["sin"][:, 4:] == 0.0)


def test_alibi():
    numbers = tabulate(layer(bias=(AlibiEncoding(scale=0.5),)), [9, 4, 11, 0])
    assert shapes(numbers) == {"bias": (6, 4, 4), "slopes": (6,)}
    assert numbers["slopes"][:4].tolist() == [2.0**-3, 2.0**-5, 2.0**-7, 2.0**-9]
    # queries along axis 1: query 9 looks at keys 9, 4, 11 and 0
    assert numbers["bias"][0, 0].tolist() == [0.0, -5 / 8, 2 / 8, -9 / 8]
    assert numbers["bias"][0, :, 0].tolist() == [0.0, 5 / 8, -2 / 8, 9 / 8]


def test_two_biases_add_up():
    one, other = AlibiEncoding(), AlibiEncoding(symmetric=True, bias_max=4.0)
    numbers = tabulate(layer(bias=(one, other)), [3, 8])
    apart = [tabulate(layer(bias=(b,)), [3, 8])["bias"] for b in (one, other)]
    assert set(numbers) == {"bias"}
    assert np.array_equal(numbers["bias"], apart[0] + apart[1])


def test_sinusoidal():
    encoding = SinusoidalEncoding(width=24, order="cos_sin", denominator="half_minus_one", offset=2)
    numbers = tabulate(layer(embedding=encoding), POSITIONS)
    assert shapes(numbers) == {"embedding": (5, 24)}
    assert numbers["embedding"][0, [0, 12]] == pytest.approx([np.cos(7.0), np.sin(7.0)], rel=1e-14)


class TestLearned:
    SPEC = layer(embedding=LearnedEncoding(rows=9, width=24, offset=2))
    TABLE = np.random.default_rng(0).normal(size=(9, 24)).astype(ml_dtypes.bfloat16)

    def test_rows_are_looked_up_past_the_offset(self):
        numbers = tabulate(self.SPEC, [6, 0, 3], weights={"position_embedding.weight": self.TABLE})
        assert shapes(numbers) == {"embedding": (3, 24)}
        assert np.array_equal(numbers["embedding"], self.TABLE[[8, 2, 5]].astype(np.float64))

    @pytest.mark.parametrize("weights", [None, {}, {"q_proj.weight": TABLE}])
    def test_the_missing_tensor_is_named(self, weights):
        with pytest.raises(SpecError, match=r"weights must hold the learned table position_embedding\.weight, got"):
            tabulate(self.SPEC, [0], weights=weights)

    def test_a_table_of_another_shape_is_refused(self):
        with pytest.raises(SpecError, match=r"position_embedding\.weight must have shape \(9, 24\), got \(8, 24\)"):
            tabulate(self.SPEC, [0], weights={"position_embedding.weight": self.TABLE[:8]})

    def test_no_row_exists_past_the_table(self):
        weights = {"position_embedding.weight": self.TABLE}
        with pytest.raises(SpecError, match="positions must be < 7, the end of the position table, got 7"):
            tabulate(self.SPEC, [1, 7], weights=weights)


def test_a_models_own_sinusoidal_table_ends_too():
    spec = layer(embedding=SinusoidalEncoding(width=24, rows=1500))
    assert tabulate(spec, [1499])["embedding"].shape == (1, 24)
    with pytest.raises(SpecError, match="positions must be < 1500"):
        tabulate(spec, [1500])


def test_several_sites_give_the_union_and_none_gives_nothing():
    spec = layer(
        rotary=RotaryEncoding(width=8, schedule=DefaultSchedule()),
        bias=(AlibiEncoding(),),
        embedding=SinusoidalEncoding(width=24),
    )
    assert set(tabulate(spec, [3, 1])) == {*ROTARY_SHAPES, "bias", "slopes", "embedding"}
    assert tabulate(layer(), [3, 1]) == {}


class TestLength:
    DYNAMIC = DynamicSchedule(factor=2.0, max_position_embeddings=2048)
    LONGROPE = LongropeSchedule(
        short_factor=(1.0,) * 4, long_factor=(2.0,) * 4, original_max_position_embeddings=4096, factor=32.0
    )

    def first(self, schedule, positions, seq_len=None, regime=None, pair=0):
        rotary = RotaryEncoding(width=8, schedule=schedule, regime=regime)
        return float(tabulate(layer(rotary=rotary), positions, seq_len)["inv_freq"][pair])

    def test_it_is_one_past_the_largest_position(self):
        assert self.first(self.LONGROPE, [0, 4095, 17]) == 1.0
        assert self.first(self.LONGROPE, [0, 4096, 17]) == 0.5

    def test_a_given_length_goes_before_positions(self):
        assert self.first(self.LONGROPE, [0], seq_len=4097) == 0.5
        assert self.first(self.LONGROPE, [4096], seq_len=4096) == 1.0

    def test_a_regime_goes_before_both(self):
        regime = FixedRegime(length=5000)
        assert self.first(self.LONGROPE, [0], regime=regime) == 0.5
        assert self.first(self.LONGROPE, [0], seq_len=10, regime=regime) == 0.5

    @pytest.mark.parametrize("length", [0, -1, 100.5, True, "9"])
    def test_it_is_a_whole_number_also_where_nothing_depends_on_it(self, length):
        with pytest.raises(SpecError, match=r"^seq_len must be an integer >= 1, got "):
            self.first(DefaultSchedule(), [0], seq_len=length)

    def test_dynamic_takes_at_least_its_trained_length(self):
        default = self.first(DefaultSchedule(), [3], pair=3)
        assert self.first(self.DYNAMIC, [3], pair=3) == default
        assert self.first(self.DYNAMIC, [2047], pair=3) == default
        # Width 8, three doublings of length: base * (2 * 2 - 1) ** (8/6), to the power -6/8.
        assert self.first(self.DYNAMIC, [4095], pair=3) == pytest.approx((10000 * 3 ** (8 / 6)) ** (-6 / 8), rel=1e-14)


def test_hf_numbers_are_transformers_float32_ones_widened():
    schedule = YarnSchedule(factor=4.0, original_max_position_embeddings=32768, rope_theta=1e6)
    spec = layer(
        rotary=RotaryEncoding(width=8, schedule=schedule),
        bias=(AlibiEncoding(contract="falcon"),),
        embedding=SinusoidalEncoding(width=24, order="sin_cos", denominator="half_minus_one"),
        num_heads=12,
    )
    hf, exact = tabulate(spec.with_precision("hf"), POSITIONS), tabulate(spec, POSITIONS)
    assert shapes(hf) == shapes(exact)
    cos, sin = hf_tables.cos_sin(spec.with_precision("hf").rotary, np.array(POSITIONS))
    assert np.array_equal(hf["cos"], cos)
    assert np.array_equal(hf["sin"], sin)
    for name in ("inv_freq", "cos", "sin", "embedding", "slopes"):
        assert np.array_equal(hf[name], hf[name].astype(np.float32))
        assert not np.array_equal(hf[name], exact[name])
    near = np.array(POSITIONS) < 10
    assert hf["cos"][near] == pytest.approx(exact["cos"][near], abs=1e-5)


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([-1, 4], "positions must be >= 0, got -1"),
        ([0.0, 1.0], "positions must be integers, got float64"),
        (np.array([True, False]), "positions must be integers, got bool"),
        (["1"], "positions must be integers, got <U1"),
        ([], "positions must be .P,. with P >= 1, got shape .0,."),
        (3, "positions must be .P,. with P >= 1, got shape ..$"),
        ([[0, 1], [2, 3]], "positions must be .P,. with P >= 1, got shape .2, 2."),
        ([3, 2**53 + 1], "positions must be at most 2.53 = 9007199254740992, got 9007199254740993"),
        (np.array([2**63], dtype=np.uint64), "positions must be < 2 .. 63"),
    ],
)
def test_positions_are_checked(positions, message):
    for spec in (layer(rotary=RotaryEncoding(width=8, schedule=DefaultSchedule())), layer()):
        with pytest.raises(SpecError, match=message):
            tabulate(spec, positions)
