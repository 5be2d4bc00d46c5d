"""Layer: tests. Ways to look cos and sin up are compared by time only because they give the same numbers."""

import numpy as np
import pytest

from portpe.bench import table_cost
from portpe.bench.table_cost import LOOK_UPS, Block


@pytest.fixture(scope="module")
def block():
    return Block(48, 6, 2, 16)


def outputs(block, way, length, past):
    bound = block.call(way, length, past)()  # it holds the memory that outputs in place lie in
    return [value.numpy().copy() for value in bound.get_outputs()]


@pytest.mark.parametrize(("length", "past"), [(5, 0), (1, 70000)])
def test_every_look_up_turns_by_the_same_angles(block, length, past):
    """Against the rotation worked out here in float64."""
    rng = np.random.default_rng(0)
    tokens = [rng.standard_normal((1, length, heads * 16), np.float32) for heads in (6, 2)]
    angles = np.arange(past, past + length)[:, None] * 500000.0 ** (-np.arange(8) / 8)
    for way in LOOK_UPS:
        for given, found in zip(tokens, outputs(block, way, length, past), strict=True):
            first, second = np.split(given.reshape(length, -1, 16).astype(np.float64), 2, axis=2)
            cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
            turned = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=2)
            np.testing.assert_allclose(found.reshape(turned.shape), turned, rtol=0, atol=2e-6, err_msg=way)


@pytest.mark.parametrize(("length", "past"), [(5, 0), (1, 9)])
def test_attention_is_the_same_inside_and_outside(block, length, past):
    outside, inside = (outputs(block, f"rotation {where}", length, past) for where in ("outside", "inside"))
    for one, other in zip(outside, inside, strict=True):
        assert np.abs(one).max() > 0.1
        np.testing.assert_allclose(other, one, rtol=0, atol=2e-6)


def test_a_line_a_way_and_case(capsys, monkeypatch):
    monkeypatch.setattr(table_cost, "CASES", {"1 row behind 3": (1, 3)})
    monkeypatch.setattr(table_cost, "BLOCKS", {"A": (48, 6, 2, 16)})
    table_cost.main(["--rounds", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("row behind 3")[1][:20].strip() for line in lines] == [
        *LOOK_UPS,
        "rotation outside",
        "rotation inside",
    ]
    assert [line.split()[-2] for line in lines].count("+0.0") >= 2
