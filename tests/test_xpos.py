"""xPos: its numbers by hand, the law that scores know the distance alone, and how far types can hold it."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import portpe
from portpe import decays, tables
from portpe.diff import compare
from portpe.encodings import DefaultSchedule, RotaryEncoding, XposDecay, YarnSchedule
from portpe.errors import SpecError
from portpe.random_weights import random_weights
from portpe.reference import Attention
from portpe.report.meaning import encoding_lines
from portpe.spec import AttentionSpec

SIZES = {"hidden_size": 20, "num_heads": 6, "num_kv_heads": 2, "head_dim": 12, "v_head_dim": 5, "scale": 0.3}


def rope(width=8, theta=500.0, *, decay=None, **keys):
    decay = {} if decay is None else decay
    return RotaryEncoding(width=width, schedule=DefaultSchedule(rope_theta=theta), decay=XposDecay(**decay), **keys)


def layer(rotary, **keys):
    return AttentionSpec(**{**SIZES, "rotary": rotary, "max_position_embeddings": 700, **keys})


def zetas(width, gamma):
    """zeta_i of the paper, for i = 0 .. width/2 - 1."""
    return (np.arange(0, width, 2) / width + gamma) / (1 + gamma)


# --- numbers ---------------------------------------------------------------------------------


def test_zeta_by_hand():
    found = np.exp(decays.rates(rope()) * 512)
    assert found == pytest.approx([0.4 / 1.4, 0.65 / 1.4, 0.9 / 1.4, 1.15 / 1.4], rel=1e-15)


@pytest.mark.parametrize(
    ("sign", "attention_factor", "offset", "centre", "gamma", "base"),
    [(1, 1.0, 0, 0, 0.4, 512.0), (-1, 1.7, 2, 41, 0.9, 130.0), (1, 0.6, 0, 300, 0.05, 700.0)],
)
def test_cos_and_sin_of_queries_and_keys_by_hand(sign, attention_factor, offset, centre, gamma, base):
    decay = {"centre": centre, "gamma": gamma, "scale_base": base}
    spec = layer(rope(sign=sign, attention_factor=attention_factor, offset=offset, decay=decay))
    positions = [0, 7, 300, 2]
    numbers = portpe.tabulate(spec, positions)
    with mpmath.workdps(40):
        for row, position in enumerate(positions):
            for i in range(4):
                p = position + offset
                angle = sign * p * mpmath.mpf(500) ** (-mpmath.mpf(2 * i) / 8)
                zeta = (mpmath.mpf(2 * i) / 8 + mpmath.mpf(gamma)) / (1 + mpmath.mpf(gamma))
                power = (p - centre) / mpmath.mpf(base)
                for prefix, scale in (("", zeta**power), ("key_", zeta**-power)):
                    exact = [attention_factor * scale * turn(angle) for turn in (mpmath.cos, mpmath.sin)]
                    got = [numbers[f"{prefix}{name}"][row, i] for name in ("cos", "sin")]
                    assert got == pytest.approx([float(value) for value in exact], rel=0, abs=3e-13 * float(scale))


def test_without_a_decay_keys_have_no_numbers_of_their_own():
    plain = layer(RotaryEncoding(width=8, schedule=DefaultSchedule()))
    assert "key_cos" not in portpe.tabulate(plain, [3])
    assert not any(name.startswith("key_") for name in tables.table_set(plain, 1024))


def score(rotary, q, k, n, m):
    """q at n times k at m, pairs as complex numbers."""
    (cos_q, sin_q), (cos_k, sin_k) = tables.cos_sin(rotary, [n]), tables.cos_sin(rotary, [m], keys=True)
    turned_q, turned_k = q * (cos_q[0] + 1j * sin_q[0]), k * (cos_k[0] + 1j * sin_k[0])
    return float((turned_q * turned_k.conj()).real.sum())


parts = st.lists(st.floats(-4, 4), min_size=4, max_size=4).map(np.array)


@settings(max_examples=80, deadline=None)
@given(parts, parts, st.integers(0, 900), st.integers(0, 60_000), st.integers(0, 60_000), st.integers(0, 40_000))
def test_a_score_depends_on_the_distance_alone_whatever_the_centre(q, k, distance, here, there, centre):
    q, k = q + 1j * q[::-1], k - 0.5j * k[::-1]
    frequencies = 500.0 ** (-np.arange(4) / 4)
    expected = (q * k.conj() * zetas(8, 0.4) ** (distance / 512) * np.exp(1j * distance * frequencies)).real.sum()
    for place, middle in ((here, 0), (there, centre)):
        found = score(rope(decay={"centre": middle}), q, k, place + distance, place)
        assert found == pytest.approx(expected, rel=0, abs=1e-9 * (1 + np.abs(q) @ np.abs(k)))


# --- two levels ------------------------------------------------------------------------------


@pytest.mark.parametrize("centre", [0, 5000])
@pytest.mark.parametrize("attention_factor", [1.0, 1.0693, 2.02])
def test_two_levels_stay_within_the_stated_error_of_a_pair_s_scale(attention_factor, centre):
    spec = layer(rope(12, 10000.0, attention_factor=attention_factor, decay={"centre": centre}))
    made = tables.table_set(spec, 10_000)
    places = np.random.default_rng(1).permutation(10_240)[:6000]
    worst = 0.0
    for prefix, power in (("", 1), ("key_", -1)):
        scale = attention_factor * zetas(12, 0.4) ** (power * (places[:, None] - centre) / 512)
        angles = np.multiply.outer(places, 10000.0 ** (-np.arange(6) / 6))
        for found, turn in zip(tables.combine(made, places, prefix), (np.cos, np.sin), strict=True):
            worst = max(worst, np.max(np.abs(found - scale * turn(angles)) / scale))
    assert 1e-7 < worst <= 2.4e-7


# --- the block -------------------------------------------------------------------------------


def by_hand(spec, weights, hidden, positions, centre):
    """A causal layer in numpy, pairs as complex numbers: what the paper's algorithm gives with this centre."""
    rotary, heads, kv_heads = spec.rotary, spec.num_heads, spec.num_kv_heads
    width, rows = rotary.width, len(positions)
    frequencies = rotary.schedule.rope_theta ** (-np.arange(0, width, 2) / width)
    scale = zetas(width, rotary.decay.gamma) ** ((positions[:, None] - centre) / rotary.decay.scale_base)
    turn = np.exp(1j * np.multiply.outer(positions, frequencies))

    def turned(name, count, factor):
        part = (hidden @ weights[f"{name}_proj.weight"].T).reshape(rows, count, spec.head_dim)
        pairs = part[..., 0:width:2] + 1j * part[..., 1:width:2]
        pairs = pairs * (turn * factor)[:, None]
        return np.concatenate(
            [np.stack([pairs.real, pairs.imag], -1).reshape(rows, count, width), part[..., width:]], -1
        )

    q, k = turned("q", heads, scale), np.repeat(turned("k", kv_heads, 1 / scale), heads // kv_heads, axis=1)
    v = np.repeat((hidden @ weights["v_proj.weight"].T).reshape(rows, kv_heads, -1), heads // kv_heads, axis=1)
    scores = np.einsum("ihd,jhd->hij", q, k) * spec.scale
    scores[:, np.triu(np.ones((rows, rows), bool), 1)] = -np.inf
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", probs, v).reshape(rows, -1) @ weights["o_proj.weight"].T


def called(spec, weights, hidden, positions, dtype=torch.float64, made=None):
    block = Attention(spec, dtype=dtype, tables=made).load(weights)
    given = torch.from_numpy(hidden)[None].to(dtype)
    return block(given, torch.from_numpy(positions)[None])


@pytest.mark.parametrize("centre", [0, 350, 2000])
def test_the_block_is_the_paper_s_whatever_the_centre(centre):
    """torchscale's own centre is half of the length: no score sees it."""
    spec = layer(rope(pairing="interleaved", decay={"centre": centre, "gamma": 0.25, "scale_base": 180.0}))
    weights = {name: array.astype(np.float64) for name, array in random_weights(spec, 3).items()}
    random = np.random.default_rng(2)
    hidden, positions = random.standard_normal((9, 20)) * 3, np.array([3, 4, 90, 91, 400, 650, 651, 653, 699])
    expected = by_hand(spec, weights, hidden, positions, len(positions) // 2)
    found = called(spec, weights, hidden, positions).output[0].numpy()
    assert np.abs(found - expected).max() < 1e-11 * np.abs(expected).max()
    undecayed = layer(rope(pairing="interleaved").model_copy(update={"decay": None}))
    assert np.abs(called(undecayed, weights, hidden, positions).output[0].numpy() - expected).max() > 1e-2


def test_a_step_on_cached_keys_gives_what_a_whole_call_gives():
    spec = layer(rope(decay={"centre": 350}))
    weights = random_weights(spec, 5)
    random = np.random.default_rng(6)
    hidden, positions = random.standard_normal((2, 11, 20)), np.stack([np.arange(11) * 60, np.arange(11) + 640])
    block = Attention(spec, dtype=torch.float64).load(weights)
    x, ids = torch.from_numpy(hidden), torch.from_numpy(positions)
    whole = block(x, ids)
    first = block(x[:, :8], ids[:, :8])
    rest = block(x[:, 8:], ids[:, 8:], past_key=first.present_key, past_value=first.present_value)
    assert torch.allclose(rest.output, whole.output[:, 8:], rtol=0, atol=1e-12)
    assert torch.allclose(rest.present_key, whole.present_key, rtol=0, atol=1e-12)


def test_tables_in_float32_and_another_centre_give_the_same_output():
    random = np.random.default_rng(8)
    hidden, positions = random.standard_normal((12, 20)), np.sort(random.permutation(2000)[:12])
    specs = [layer(rope(12, decay={"centre": centre}), max_position_embeddings=2000) for centre in (0, 1000)]
    weights = random_weights(specs[0], 9)
    outputs = [
        called(spec, weights, hidden, positions, torch.float32, tables.table_set(spec)).output[0].numpy()
        for spec in specs
    ]
    expected = called(specs[0], weights, hidden, positions).output[0].numpy()
    for output in outputs:
        assert np.abs(output - expected).max() < 4e-6 * np.abs(expected).max()


# --- what a type holds -----------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 5), ("bfloat16", 48), ("float32", 48)])
def test_the_span_of_a_type_by_hand(dtype, bits):
    reach = int(bits * math.log(2) * 512 / math.log(1.4 / 0.4))
    assert decays.span(rope(), dtype) == (-reach, reach)
    assert decays.span(rope(offset=3, decay={"centre": 40}), dtype) == (37 - reach, 37 + reach)
    with np.errstate(over="raise"):
        farthest = (0.4 / 1.4) ** (np.array([-reach, reach]) / 512)
        assert np.all(np.isfinite((farthest**2).astype({"float16": np.float16}.get(dtype, np.float32))))


REFUSED = {
    (
        "float16",
        0,
        2048,
    ): r"from 0 to 1416 .* float16 holds elsewhere, got 2047; move rotary.decay.centre, or give fewer",
    ("float16", 1500, 1024): r"from 84 to 2916 with .* float16 .*, got 0; move rotary\.decay\.centre",
    (
        "float32",
        0,
        14000,
    ): r"positions must be from 0 to 13597 with rotary\.decay, .* float32 holds elsewhere, got 14335",
    ("bfloat16", 0, 14000): r"positions must be from 0 to 13597 .*, got 14335",
}


@pytest.mark.parametrize(("dtype", "centre", "positions"), REFUSED)
def test_positions_that_a_type_does_not_hold_are_refused_at_export(dtype, centre, positions, tmp_path):
    spec = layer(rope(decay={"centre": centre}))
    with pytest.raises(SpecError, match=REFUSED[dtype, centre, positions]):
        portpe.export(spec.to_dict(), tmp_path / "b", dtypes=(dtype,), table_positions=positions, golden=False)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(("centre", "positions"), [(0, 1024), (1000, 2048)])
def test_the_mends_that_a_refusal_names_work(centre, positions, tmp_path):
    spec = layer(rope(decay={"centre": centre})).to_dict()
    bundle = portpe.export(spec, tmp_path / "b", dtypes=("float16",), table_positions=positions, golden=False)
    assert bundle.table_positions == positions


def test_tables_cover_the_trained_length_and_ask_for_one():
    assert tables.default_end(layer(rope())) == 1024
    yarn = YarnSchedule(factor=8.0, original_max_position_embeddings=300)
    assert tables.default_end(layer(RotaryEncoding(width=8, schedule=yarn, decay=XposDecay()))) == 3072
    with pytest.raises(SpecError, match="max_position_embeddings is required for tables of a decay, got None"):
        tables.default_end(layer(rope(), max_position_embeddings=None))


def test_a_plain_block_refuses_positions_past_what_its_type_holds():
    spec = layer(rope())
    weights = random_weights(spec, 1)
    hidden = np.ones((2, 20))
    for dtype, last in ((torch.float16, 1416), (torch.float32, 13597)):
        assert torch.isfinite(called(spec, weights, hidden, np.array([5, last]), dtype).output).all()
        with pytest.raises(SpecError, match=f"from 0 to {last} "):
            called(spec, weights, hidden, np.array([5, last + 1]), dtype)
    made = tables.table_set(spec, 2048)
    called(spec, weights, hidden, np.array([5, 6]), torch.bfloat16, made)
    with pytest.raises(SpecError, match=r"from 0 to 1416 .* got 2047"):
        called(spec, weights, hidden, np.array([5, 6]), torch.float16, made)
    with pytest.raises(SpecError, match=r"from 0 to 141\d\d\d with .* float64"):
        portpe.tabulate(spec, [200_000])


# --- what a spec may say ---------------------------------------------------------------------

WRONG = {
    "gamma": ({"decay": {"gamma": 0.0}}, r"decay\.gamma must be greater than 0, got 0\.0"),
    "base": ({"decay": {"scale_base": -1.0}}, r"decay\.scale_base must be greater than 0"),
    "centre": ({"decay": {"centre": 1.5}}, r"decay\.centre must be a valid integer"),
    "key": ({"decay": {"center": 1}}, r"decay\.center is not a known field"),
    "axes": ({"axes": {"kind": "sectioned", "sections": (1, 3)}}, "decay needs positions of one coordinate"),
    "prefix": ({"prefix_tokens": 1}, "decay needs every token turned, got prefix_tokens"),
    "hf": ({"precision": "hf"}, "precision must be exact with decay, which transformers does not have, got hf"),
    "regime": (
        {
            "schedule": {"kind": "dynamic", "factor": 2.0, "max_position_embeddings": 9},
            "regime": {"kind": "per_sequence"},
        },
        "regime must be fixed with decay, got per_sequence",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_has_no_meaning_is_refused_in_one_line(name):
    changes, message = WRONG[name]
    with pytest.raises(SpecError, match=message) as refusal:
        RotaryEncoding(**{"width": 8, "schedule": {"kind": "default"}, "decay": {}, **changes})
    assert "\n" not in str(refusal.value)


AFTER = {"kind": "rms", "eps": 1e-6, "when": "after"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q_norm": AFTER, "k_norm": AFTER}, r"q_norm\.when must be before with rotary\.decay"),
        ({"bias": [{"kind": "shaw", "left": 2, "right": 1}]}, r"bias must not read queries or keys .*, got shaw"),
        ({"bias": [{"kind": "cope", "rows": 9}]}, "got cope"),
        ({"bias": [{"kind": "transformer_xl"}]}, "got transformer_xl"),
        ({"bias": [{"kind": "deberta", "span": 9}]}, "got deberta"),
    ],
)
def test_nothing_else_meets_its_queries_or_keys_alone(changes, message):
    """Their scales are right in products of both; elsewhere the result would hang on the centre."""
    with pytest.raises(SpecError, match=message):
        AttentionSpec.from_dict({**layer(rope()).to_dict(), **changes})
    allowed = {
        "q_norm": {"kind": "rms", "eps": 1e-6},
        "k_norm": {"kind": "rms", "eps": 1e-6},
        "bias": [{"kind": "alibi"}],
    }
    assert AttentionSpec.from_dict({**layer(rope()).to_dict(), **allowed})


def test_it_needs_a_causal_layer_and_exact_numbers():
    with pytest.raises(SpecError, match=r"rotary\.decay needs causal true: scores of keys ahead would grow"):
        layer(rope(), causal=False)
    with pytest.raises(SpecError, match="precision must be exact with"):
        layer(rope()).with_precision("hf")


def test_it_comes_back_from_json_and_is_told():
    spec = layer(rope(decay={"centre": 9}))
    assert AttentionSpec.from_dict(spec.to_dict()) == spec
    assert spec.to_dict()["rotary"]["decay"] == {"kind": "xpos", "scale_base": 512.0, "gamma": 0.4, "centre": 9}
    lines = list(encoding_lines(spec))
    assert any(line.startswith("decay      xPos; Sun 2022") for line in lines)


# --- diff ------------------------------------------------------------------------------------


def seen(left, right):
    comparison = compare(layer(left), layer(right))
    [first] = {difference.first_position for difference in comparison.differences}
    return first


def test_diff_finds_the_first_position_that_is_scaled_otherwise():
    plain = rope().model_copy(update={"decay": None})
    assert seen(rope(), plain) == 1  # at the centre, 0, both scales are 1
    assert seen(rope(decay={"centre": 30}), plain) == 0
    # zeta_0 differs in the seventh digit: the scales part by 2^-24 near position 427, where a cosine is near 1 too
    near = rope(decay={"gamma": 0.4 * (1 + 1e-7)})
    slope = abs(math.log(0.4 / 1.4) - math.log(near.decay.gamma / (1 + near.decay.gamma))) / 512
    first = seen(rope(), near)
    assert 2.0**-24 / slope < first < 2.0**-24 / slope + 15
    assert not compare(layer(rope()), layer(rope())).differences
