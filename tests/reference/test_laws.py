"""Layer: tests. The laws that make an encoding what it is, as properties of the block and of the rotation.

Every encoding and every schedule of the registry is put to them, so a new row is tested as it comes.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from portpe.encodings import AlibiEncoding, RotaryEncoding
from portpe.reference import Attention
from portpe.reference.bias import BIASES
from portpe.reference.embedding import EMBEDDINGS
from portpe.reference.rotary import ROTATIONS, rotate
from portpe.registry import ENCODINGS, SCHEDULES
from portpe.schedules import magnitude
from portpe.spec import AttentionSpec

SIZES = {"hidden_size": 12, "num_heads": 6, "num_kv_heads": 2, "head_dim": 12, "v_head_dim": 7, "scale": 0.4}
FAR = 10_000_000
ROTARIES = {row.kind: row.rotary() for row in SCHEDULES.values()}
ROTARIES["last channels"] = RotaryEncoding(
    width=8, channels="last", pairing="interleaved", sign=-1, schedule=SCHEDULES["default"].example
)
SITES = {
    "none": {},
    **{f"rotary {name}": {"rotary": rotary} for name, rotary in ROTARIES.items()},
    **{row.kind: {"embedding": row.example} for row in ENCODINGS.values() if row.site == "embedding"},
    **{row.kind: {"bias": (row.example,)} for row in ENCODINGS.values() if row.site == "bias"},
    "alibi symmetric": {"bias": (AlibiEncoding(symmetric=True),)},
}
CAUSAL = ["forget"]  # its gates lie between a key and a later query
IN_GRIDS = [name for name, site in SITES.items() if any(each.position_axes > 1 for each in site.get("bias", ()))]
RELATIVE = [name for name, site in SITES.items() if "embedding" not in site and name not in (*IN_GRIDS, "fire")]
ABSOLUTE = [name for name, site in SITES.items() if "embedding" in site or name == "fire"]

seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=25, deadline=None)


def block(name, weights_of, causal=False):
    spec = AttentionSpec(**SIZES, causal=causal or name in CAUSAL, **SITES[name])
    return Attention(spec, dtype=torch.float64).load(weights_of(spec))


def drawn(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def test_every_kind_of_the_registry_is_built():
    by_site = {"embedding": EMBEDDINGS, "rotary": ROTATIONS, "bias": BIASES}
    for site, built in by_site.items():
        assert set(built) == {row.kind for row in ENCODINGS.values() if row.site == site}


# --- order -------------------------------------------------------------------------------------------------------


@few
@given(order=st.permutations(range(6)), seed=seeds)
def test_without_an_encoding_attention_commutes_with_permutations(weights_of_spec, order, seed):
    attention, x = block("none", weights_of_spec), drawn(seed, 2, 6, 12)
    torch.testing.assert_close(attention(x[:, order]).output, attention(x).output[:, order], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in SITES if name not in ("none", *CAUSAL)])
def test_every_encoding_tells_the_order(name, weights_of):
    """The same words in another order: some row of the output must notice, loudly."""
    attention, x, order = block(name, weights_of), drawn(0, 2, 6, 12), [3, 0, 5, 1, 4, 2]
    change = (attention(x[:, order]).output - attention(x).output[:, order]).abs()
    assert change.max() > 0.05


def test_a_causal_mask_alone_tells_the_order_too(weights_of):
    attention, x, order = block("none", weights_of, causal=True), drawn(0, 2, 6, 12), [3, 0, 5, 1, 4, 2]
    assert (attention(x[:, order]).output - attention(x).output[:, order]).abs().max() > 0.05


# --- shift -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", RELATIVE)
@few
@given(shift=st.integers(0, FAR), seed=seeds)
def test_a_relative_encoding_knows_distances_only(weights_of_spec, name, causal, shift, seed):
    """All positions + c: equal outputs, to the float64 error of angles of ten million radians (2e-9 each)."""
    attention, x = block(name, weights_of_spec, causal), drawn(seed, 2, 5, 12)
    positions = torch.tensor([[0, 3, 4, 9, 70], [12, 5, 6, 0, 31]])
    near, far = attention(x, positions).output, attention(x, positions + shift).output
    torch.testing.assert_close(far, near, rtol=0, atol=2e-7 * float(near.abs().max()))


@pytest.mark.parametrize("name", ABSOLUTE)
def test_an_absolute_encoding_knows_the_place(name, weights_of):
    attention, x = block(name, weights_of), drawn(0, 2, 5, 12)
    positions = torch.tensor([[0, 3, 4, 9, 20], [12, 5, 6, 0, 11]])
    shift = 7
    if attention.spec.position_ends is not None:
        positions, shift = positions % 4, 2
    if attention.spec.position_axes > 1:
        positions = torch.stack([positions, positions.flip(1)])
    assert (attention(x, positions).output - attention(x, positions + shift).output).abs().max() > 0.05


# --- rotation ----------------------------------------------------------------------------------------------------


def turned(rotary, x, *positions):
    return rotate(x, ROTATIONS["rotary"](rotary, None, torch.float64)(torch.tensor([positions])))


@pytest.mark.parametrize("name", ROTARIES)
@few
@given(position=st.integers(0, FAR), seed=seeds)
def test_a_rotation_keeps_norms(name, position, seed):
    """Of each pair, so of the whole vector: times the attention factor where it is turned."""
    rotary, x = ROTARIES[name], drawn(seed, 1, 3, 1, 12)
    start = 0 if rotary.channels == "first" else 12 - rotary.width

    def pairs(y):
        y = y[..., start : start + rotary.width]
        shape = (-1, 2) if rotary.pairing == "interleaved" else (2, -1)
        return y.unflatten(-1, shape).norm(dim=-1 if rotary.pairing == "interleaved" else -2)

    found = pairs(turned(rotary, x, position))
    torch.testing.assert_close(found, magnitude(rotary) * pairs(x), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", ROTARIES)
@few
@given(first=st.integers(0, FAR), second=st.integers(0, FAR), seed=seeds)
def test_rotations_add_up(name, first, second, seed):
    """By p, then by r, is by p + r; the attention factor comes in twice."""
    rotary, x = ROTARIES[name], drawn(seed, 1, 3, 1, 12)
    plain = rotary.model_copy(update={"attention_factor": rotary.attention_factor / magnitude(rotary)})
    found = turned(plain, turned(rotary, x, first), second)
    torch.testing.assert_close(found, turned(rotary, x, first + second), rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", ROTARIES)
@few
@given(query=st.integers(0, FAR), distance=st.integers(0, 1000), seed=seeds)
def test_a_score_depends_on_the_distance_only(name, query, distance, seed):
    rotary, (q, k) = ROTARIES[name], drawn(seed, 2, 1, 1, 1, 12)

    def score(m, n):
        return (turned(rotary, q, m) * turned(rotary, k, n)).sum()

    torch.testing.assert_close(score(query + distance, query), score(distance, 0), rtol=0, atol=2e-7)
