"""Layer: tests. Where mlx and mlx-lm, as installed, give other numbers than portpe: both sides of every row of the
ledger. A divergence that has gone fails here."""

import math

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_lm.models.rope_utils import initialize_rope

from portpe.encodings import (
    AlibiEncoding,
    DynamicSchedule,
    FixedRegime,
    LongropeSchedule,
    ProportionalSchedule,
    RotaryEncoding,
    SinusoidalEncoding,
    YarnSchedule,
)
from portpe.errors import SpecError
from portpe.runtimes.mlx import Attention
from portpe.runtimes.mlx.bias import ScoreInputs
from portpe.runtimes.mlx.rotary import SITES
from portpe.spec import AttentionSpec
from portpe.tables import table_set

WIDTH, THETA = 12, 500.0
PAIRS = np.arange(WIDTH // 2)
PLAIN = THETA ** (-2 * PAIRS / WIDTH)
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
LONGROPE = {
    "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.5],
    "long_factor": [1.1, 1.4, 2.5, 4.0, 6.5, 9.0],
    "original_max_position_embeddings": 64,
}


def spec_with(**fields):
    sizes = {"hidden_size": WIDTH, "num_heads": 2, "num_kv_heads": 1, "head_dim": WIDTH, "v_head_dim": WIDTH}
    return AttentionSpec(**(sizes | {"scale": 1.0} | fields))


def ones():
    """A head whose turned channels are cos and sin themselves."""
    x = np.zeros((1, 1, 1, WIDTH), np.float32)
    x[..., : WIDTH // 2] = 1.0
    return mx.array(x)


def theirs(scaling, position, max_position_embeddings=256):
    rope = initialize_rope(WIDTH, THETA, False, scaling, max_position_embeddings)
    return np.array(rope(ones(), offset=position)).ravel()


def ours(schedule, position, **fields):
    encoding = RotaryEncoding(width=WIDTH, schedule=schedule, **fields)
    rope = SITES["rotary"](encoding, table_set(spec_with(rotary=encoding)))
    return np.array(rope(ones(), *rope.cos_sin(mx.array([[position]])))).ravel()


def cos_sin(frequencies, position, factor=1.0):
    angles = position * np.asarray(frequencies)
    return factor * np.concatenate([np.cos(angles), np.sin(angles)])


def yarn_frequencies(truncate):
    """Peng 2023, section 3.2, for beta_fast 32 and beta_slow 1."""

    def turns(count):
        return WIDTH * math.log(64 / (count * 2 * math.pi)) / (2 * math.log(THETA))

    low, high = turns(32), turns(1)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, WIDTH - 1)
    ramp = np.clip((PAIRS - low) / (high - low), 0, 1)
    return ramp * PLAIN / 4.0 + (1 - ramp) * PLAIN


def agrees(found, expected):
    return bool(np.abs(found - expected).max() < 1e-5)


def differs(found, expected):
    return bool(np.abs(found - expected).max() > 0.05)


def test_mlx_lm_yarn_ignores_attention_factor():
    named = cos_sin(yarn_frequencies(True), 3, factor=1.5)
    assert agrees(ours(YarnSchedule(rope_theta=THETA, **YARN), 3, attention_factor=1.5), named)
    found = theirs({"rope_type": "yarn", "attention_factor": 1.5} | YARN, 3)
    assert differs(found, named)
    assert agrees(found, cos_sin(yarn_frequencies(True), 3, factor=0.1 * math.log(4) + 1))


def test_mlx_lm_yarn_always_truncates():
    named = cos_sin(yarn_frequencies(False), 30, factor=0.1 * math.log(4) + 1)
    assert agrees(ours(YarnSchedule(rope_theta=THETA, truncate=False, **YARN), 30), named)
    found = theirs({"rope_type": "yarn", "truncate": False} | YARN, 30)
    assert differs(found, named)
    assert agrees(found, cos_sin(yarn_frequencies(True), 30, factor=0.1 * math.log(4) + 1))


def test_mlx_lm_yarn_takes_mscale_alone():
    """transformers takes mscale only together with mscale_all_dim."""
    named = cos_sin(yarn_frequencies(True), 3, factor=0.1 * math.log(4) + 1)
    assert agrees(ours(YarnSchedule(rope_theta=THETA, mscale=2.0, **YARN), 3), named)
    found = theirs({"rope_type": "yarn", "mscale": 2.0} | YARN, 3)
    assert differs(found, named)
    assert agrees(found, cos_sin(yarn_frequencies(True), 3, factor=0.2 * math.log(4) + 1))


@pytest.mark.parametrize("length", [31, 80])
def test_mlx_lm_longrope_is_always_long(length):
    divisors = LONGROPE["short_factor" if length <= 64 else "long_factor"]
    magnitude = math.sqrt(1 + math.log(4) / math.log(64))
    named = cos_sin(PLAIN / np.array(divisors), 30, magnitude)
    schedule = LongropeSchedule(rope_theta=THETA, factor=4.0, **LONGROPE)
    assert agrees(ours(schedule, 30, regime=FixedRegime(length=length)), named)
    found = theirs({"rope_type": "longrope"} | LONGROPE, 30)
    assert differs(found, named) is (length <= 64)


def test_mlx_lm_longrope_ignores_attention_factor():
    named = cos_sin(PLAIN / np.array(LONGROPE["long_factor"]), 30, 1.7)
    schedule = LongropeSchedule(rope_theta=THETA, factor=4.0, **LONGROPE)
    assert agrees(ours(schedule, 30, attention_factor=1.7, regime=FixedRegime(length=80)), named)
    assert differs(theirs({"rope_type": "longrope", "attention_factor": 1.7} | LONGROPE, 30), named)


def test_mlx_lm_dynamic_turns_each_call_by_its_own_base():
    """Keys that were cached at another length keep the angles of that length; a fixed regime gives one base to all."""

    def base(length):
        return THETA * (2.0 * length / 64 - 1) ** (WIDTH / (WIDTH - 2))

    scaling = {"rope_type": "dynamic", "factor": 2.0}
    for position in (63, 99):  # the call that turns key ``position`` is position + 1 long
        expected = cos_sin(base(position + 1) ** (-2 * PAIRS / WIDTH), position)
        assert agrees(theirs(scaling, position, 64), expected)
    schedule = DynamicSchedule(rope_theta=THETA, factor=2.0, max_position_embeddings=64)
    named = cos_sin(base(100) ** (-2 * PAIRS / WIDTH), 63)
    assert agrees(ours(schedule, 63, regime=FixedRegime(length=100)), named)
    assert differs(theirs(scaling, 63, 64), named)
    with pytest.raises(SpecError, match="dynamic"):
        Attention(spec_with(rotary=RotaryEncoding(width=WIDTH, schedule=schedule)))


def test_mlx_lm_proportional_rounds_the_turned_pairs_up():
    """0.3 of 12 channels is 1.8 pairs: one in transformers' int(prf * head_dim // 2), two in mlx-lm."""
    named = cos_sin(np.where(PAIRS < 1, PLAIN, 0.0), 50)
    assert agrees(ours(ProportionalSchedule(rope_theta=THETA, partial_rotary_factor=0.3), 50), named)
    found = theirs({"rope_type": "proportional", "partial_rotary_factor": 0.3}, 50)
    assert differs(found, named)
    assert agrees(found, cos_sin(np.where(PAIRS < 2, PLAIN, 0.0), 50))


def test_mlx_lm_reads_type_before_rope_type():
    """transformers lets rope_type win; portpe warns."""
    linear, plain = cos_sin(PLAIN / 2, 50), cos_sin(PLAIN, 50)
    found = theirs({"rope_type": "linear", "type": "default", "factor": 2.0}, 50)
    assert agrees(found, plain)
    assert differs(found, linear)


def test_mlx_sinusoids_are_not_those_of_the_paper():
    """X08: half - 1 in the exponent from max_freq 1 to min_freq 1e-4, halves, and times sqrt(2 / d)."""
    paper = [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)]
    encoding = SinusoidalEncoding(width=4)
    block = Attention(spec_with(hidden_size=4, embedding=encoding))
    embedded = block.stages(mx.zeros((1, 1, 4)), np.array([[1]]))["embedded"]
    np.testing.assert_allclose(np.array(embedded).ravel(), paper, rtol=0, atol=2e-7)
    found = np.array(nn.SinusoidalPositionalEncoding(4)(mx.array([1]))).ravel()
    by_hand = math.sqrt(2 / 4) * np.array([math.sin(1), math.sin(1e-4), math.cos(1), math.cos(1e-4)])
    np.testing.assert_allclose(found, by_hand, rtol=0, atol=2e-7)
    assert differs(found, paper)


def test_mlx_alibi_is_always_symmetric():
    """-m |i - j| without a choice; with a causal mask that is the paper's -m (i - j)."""
    found = np.array(nn.ALiBi.create_alibi_matrix(5, 5, 2))[0]
    slopes = np.array([2.0**-4, 2.0**-8])[:, None, None]
    i, j = np.arange(5)[:, None], np.arange(5)
    np.testing.assert_allclose(found, -slopes * abs(i - j), rtol=1e-6)
    for symmetric, distance in ((True, abs(i - j)), (False, i - j)):
        block = Attention(spec_with(bias=(AlibiEncoding(symmetric=symmetric),), causal=False))
        positions = mx.array(np.arange(5)[None])
        given = ScoreInputs(*[positions] * 5, visible=None, weights={}, project=None)  # ALiBi reads positions alone
        ours = np.array(block.position_biases[0](given))[0]
        np.testing.assert_allclose(ours, -slopes * distance, rtol=1e-6)


def test_mlx_alibi_slopes_of_twelve_heads():
    """X05: eight slopes of 8 heads, then every other one of 16. No divergence since mlx 0.31."""
    expected = [2.0**-h for h in range(1, 9)] + [2.0 ** (-h / 2) for h in (1, 3, 5, 7)]
    np.testing.assert_allclose(np.array(nn.ALiBi.create_alibi_slope(12)).ravel(), expected, rtol=3e-7)
    block = Attention(spec_with(num_heads=12, bias=(AlibiEncoding(),)))
    np.testing.assert_allclose(np.array(block.position_biases[0]._slopes), expected, rtol=1e-7)


def test_mlx_takes_rows_that_do_not_exist():
    """X04: no error, and whatever lies there; only that it does not raise can be relied on."""
    rows = nn.Embedding(4, 2)(mx.array([4, 100]))
    mx.eval(rows)
    assert rows.shape == (2, 2)
    with pytest.raises(SpecError, match="position_ids must be < 4, the end of the position table, got 100"):
        Attention(spec_with(embedding={"kind": "learned", "rows": 4, "width": WIDTH}))(
            mx.zeros((1, 2, WIDTH)), position_ids=mx.array([[4, 100]])
        )
