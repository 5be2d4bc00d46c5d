"""ALiBi slopes of ``precision="hf"`` against BLOOM, MPT and Falcon in transformers: the same float32 bits."""

import numpy as np
import pytest
import torch

from portpe import hf_tables, tables
from portpe.biases import alibi
from portpe.encodings import AlibiEncoding
from portpe.errors import SpecError
from portpe.spec import AttentionSpec


def layer(**keys):
    sizes = {"hidden_size": 96, "num_heads": 6, "num_kv_heads": 2, "head_dim": 20, "v_head_dim": 5, "scale": 0.1}
    return AttentionSpec(**{**sizes, **keys})


HEADS = [1, 2, 3, 6, 8, 12, 16, 20, 32, 40, 71, 112, 128]


@pytest.mark.parametrize("heads", HEADS)
def test_bloom_slopes_bit_for_bit(heads):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    # The key of index 1 is biased by exactly the slope.
    theirs = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32).numpy()[:, 0, 1]
    assert np.array_equal(hf_tables.alibi_slopes(AlibiEncoding(contract="bloom", precision="hf"), heads), theirs)


@pytest.mark.parametrize("heads", HEADS)
def test_falcon_slopes_bit_for_bit(heads):
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    theirs = build_alibi_tensor(torch.ones(1, 2, dtype=torch.int64), heads, torch.float32).numpy()[:, 0, 1]
    encoding = AlibiEncoding(contract="falcon", precision="hf", scale=0.125)
    assert np.array_equal(hf_tables.alibi_slopes(encoding, heads), theirs * np.float32(0.125))


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("bias_max", [8.0, 6.0, 16.0])
def test_mpt_slopes_bit_for_bit(heads, bias_max):
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    theirs = -build_mpt_alibi_tensor(heads, 2, bias_max).numpy()[:, 0, 0]
    for contract in ("mpt", "paper"):
        encoding = AlibiEncoding(contract=contract, precision="hf", bias_max=bias_max)
        assert np.array_equal(hf_tables.alibi_slopes(encoding, heads), theirs)


def test_slopes_reach_the_tables_and_the_bias():
    encoding = AlibiEncoding(contract="falcon", precision="hf", scale=0.25)
    slopes = hf_tables.alibi_slopes(encoding, 6)
    assert np.array_equal(tables.table_set(layer(bias=(encoding,)))["slopes"], slopes)
    bias = alibi.additive(encoding, 6, np.array([9]), np.array([4]))
    assert np.array_equal(bias[:, 0, 0], -5.0 * slopes.astype(np.float64))


@pytest.mark.parametrize("contract", ["bloom", "falcon"])
def test_bias_max_is_mpts_alone(contract):
    with pytest.raises(SpecError, match=rf"bias_max must be 8\.0 for contract {contract}, got 6\.0"):
        hf_tables.alibi_slopes(AlibiEncoding(contract=contract, precision="hf", bias_max=6.0), 8)


def test_transformers_falcon_rounds_the_bias_to_bfloat16():
    """Slope times key index in bfloat16 is off by 4 at key 4096; ours is formed from distances, in float64."""
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    theirs = build_alibi_tensor(torch.ones(1, 4097, dtype=torch.int64), 8, torch.float32).numpy()[:, 0]
    exact = 2.0 ** -np.arange(1, 9)[:, None] * np.arange(4097)
    assert np.max(np.abs(theirs - exact), axis=1).tolist() == [4.0, 2.0, 1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125]
    assert len(np.unique(theirs[0])) == 769
    encoding = AlibiEncoding(contract="falcon", precision="hf")
    ours = alibi.additive(encoding, 8, np.array([4096]), np.arange(4097))[:, 0]
    assert np.array_equal(ours - ours[:, :1], exact)
