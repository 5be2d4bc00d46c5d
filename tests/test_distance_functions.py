"""KERPLE, FIRE and Sandwich: numbers against their formulas at 50 digits, and what tells each from its neighbours."""

import mpmath
import numpy as np
import pytest

import portpe
from portpe.biases import functions
from portpe.encodings import FireEncoding, KerpleEncoding, SandwichEncoding
from portpe.errors import SpecError
from portpe.spec import AttentionSpec

SIZES = {"hidden_size": 20, "num_heads": 3, "num_kv_heads": 3, "head_dim": 4, "v_head_dim": 5, "scale": 1.0}
POSITIONS = np.array([0, 3, 40, 7, 1000])
KERPLE = {"kerple_r1": np.array([0.5, 1.25, 2.0]), "kerple_r2": np.array([0.25, 1.0, 1.75])}
FIRE = {
    "fire_c": np.array([-0.375]),
    "fire_threshold": np.array([8.5]),
    "fire_in.weight": np.array([[2.0], [-1.5]]),
    "fire_in.bias": np.array([-0.5, 1.0]),
    "fire_out.weight": np.array([[1.0, -2.0], [0.5, 0.25], [3.0, 1.0]]),
    "fire_out.bias": np.array([0.125, -1.0, 2.0]),
}


def bias(encoding, weights=None):
    return portpe.tabulate(AttentionSpec(**SIZES, bias=(encoding,)), POSITIONS, weights=weights)["bias"]


def pairs():
    return [(i, j, int(q), int(k)) for i, q in enumerate(POSITIONS) for j, k in enumerate(POSITIONS)]


@pytest.mark.parametrize("form", ["logarithmic", "power"])
def test_kerple(form):
    found = bias(KerpleEncoding(form=form), KERPLE)
    with mpmath.workdps(50):
        for head in range(3):
            r1, r2 = (mpmath.mpf(float(KERPLE[f"kerple_{name}"][head])) for name in ("r1", "r2"))
            for i, j, query, key in pairs():
                apart = mpmath.mpf(abs(query - key))
                exact = -r1 * (mpmath.log(1 + r2 * apart) if form == "logarithmic" else apart**r2)
                assert abs(found[head, i, j] - exact) <= 4e-16 * abs(exact)


def test_a_power_of_one_is_alibi():
    weights = {"kerple_r1": np.array([0.5, 0.25, 2.0]), "kerple_r2": np.ones(3)}
    found = bias(KerpleEncoding(form="power"), weights)
    assert np.array_equal(found, -weights["kerple_r1"][:, None, None] * np.abs(POSITIONS[:, None] - POSITIONS))


def test_fire():
    """A negative c counts by its size; the query's position is in the denominator, from the threshold on."""
    found = bias(FireEncoding(width=2), FIRE)
    with mpmath.workdps(50):
        for i, j, query, key in pairs():
            c, start = mpmath.mpf("0.375"), mpmath.mpf(max(query, 8.5))
            x = mpmath.log(c * abs(query - key) + 1) / (mpmath.log(c * start + 1) + mpmath.mpf(1e-6))
            units = [max(2 * x - 0.5, 0), max(-1.5 * x + 1, 0)]
            for head, (first, second) in enumerate(FIRE["fire_out.weight"].tolist()):
                exact = first * units[0] + second * units[1] + float(FIRE["fire_out.bias"][head])
                assert abs(found[head, i, j] - exact) < 1e-14


def test_fire_by_hand():
    """c 1, L 3: of query 7 and key 4, x = log 4 / log 8 = 2/3."""
    one = FireEncoding(width=2, epsilon=0.0)
    x = functions.fire_inputs(one, np.array([7, 1]), np.array([4]), 1.0, 3.0)
    assert x[:, 0].tolist() == pytest.approx([2 / 3, 1.0], rel=1e-15)  # query 1: log 4 / log (3 + 1)


def test_fire_is_no_function_of_the_distance():
    found = bias(FireEncoding(width=2), FIRE)
    assert abs(found[0, 2, 1] - found[0, 1, 2]) > 0.01  # 37 apart, seen from 40 and from 3


def test_sandwich():
    """(8 h / 3) * sum over k of cos(d / 10^(k/2)) for width 4 and base 100."""
    found = bias(SandwichEncoding(width=4, base=100.0))
    with mpmath.workdps(50):
        for i, j, query, key in pairs():
            apart = mpmath.mpf(query - key)
            total = mpmath.cos(apart) + mpmath.cos(apart / 10)
            for head in range(3):
                exact = mpmath.mpf(8) * (head + 1) / 3 * total
                assert abs(found[head, i, j] - exact) < 1e-12
    assert found[:, 0, 0].tolist() == pytest.approx([2 * 8 / 3, 2 * 16 / 3, 2 * 8.0])


def test_settings_that_are_none():
    with pytest.raises(SpecError, match="width must be even for a sandwich bias, got 5"):
        AttentionSpec(**SIZES, bias=(SandwichEncoding(width=5),))
    with pytest.raises(SpecError, match="weights must hold kerple_r1"):
        bias(KerpleEncoding(), {"kerple_r2": KERPLE["kerple_r2"]})
    with pytest.raises(SpecError, match=r"weights.fire_in.weight must have shape \(3, 1\), got \(2, 1\)"):
        bias(FireEncoding(width=3), FIRE)
