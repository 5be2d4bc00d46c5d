"""Layer: tests. Norms against torch's own in float64, and over the right axes."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from portpe.layer_parts import Norm
from portpe.reference.norms import HeadNorm, Normalise

RNG = np.random.default_rng(0)


def loaded(module, **tensors):
    module.load_state_dict({name: torch.as_tensor(value) for name, value in tensors.items()}, assign=True)
    return module


def test_layer_and_rms_norm_are_torch_s():
    x, weight, bias = (torch.from_numpy(RNG.standard_normal(shape)) * 3 for shape in ((2, 3, 5), 5, 5))
    layer = loaded(Normalise(Norm(kind="layer", eps=0.1, bias=True), (5,), torch.float64), weight=weight, bias=bias)
    torch.testing.assert_close(layer(x), F.layer_norm(x, (5,), weight, bias, 0.1), rtol=1e-13, atol=1e-13)
    rms = loaded(Normalise(Norm(kind="rms", eps=0.1, weight_offset=1.0), (5,), torch.float64), weight=weight)
    torch.testing.assert_close(rms(x), F.rms_norm(x, (5,), weight + 1, 0.1), rtol=1e-13, atol=1e-13)
    bare = Normalise(Norm(kind="rms", eps=0.1, affine=False), (5,), torch.float64)
    torch.testing.assert_close(bare(x), F.rms_norm(x, (5,), None, 0.1), rtol=1e-13, atol=1e-13)
    assert list(bare.parameters()) == []


def test_head_norms_run_over_each_head_or_over_all():
    x = torch.from_numpy(RNG.standard_normal((2, 3, 5, 4)))  # batch, heads, seq, head_dim
    one, per_head, flat = (torch.from_numpy(RNG.standard_normal(shape)) for shape in (4, (3, 4), 12))
    shared = loaded(HeadNorm(Norm(kind="rms", eps=0.1), 3, 4, torch.float64), weight=one)
    torch.testing.assert_close(shared(x), F.rms_norm(x, (4,), one, 0.1), rtol=1e-13, atol=1e-13)

    own = loaded(HeadNorm(Norm(kind="layer", eps=0.1, per_head_weight=True), 3, 4, torch.float64), weight=per_head)
    expected = torch.stack([F.layer_norm(x[:, h], (4,), per_head[h], None, 0.1) for h in range(3)], 1)
    torch.testing.assert_close(own(x), expected, rtol=1e-13, atol=1e-13)

    whole = loaded(HeadNorm(Norm(kind="rms", eps=0.1, scope="all_heads"), 3, 4, torch.float64), weight=flat)
    rows = x.transpose(1, 2).reshape(2, 5, 12)
    expected = F.rms_norm(rows, (12,), flat, 0.1).reshape(2, 5, 3, 4).transpose(1, 2)
    torch.testing.assert_close(whole(x), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bit_norms_square_in_float32(dtype):
    """1000 squared overflows float16; the norm of equal numbers is one."""
    norm = Normalise(Norm(kind="rms", eps=1e-6, affine=False), (8,), dtype)
    found = norm(torch.full((1, 1, 8), 1000.0, dtype=dtype))
    assert found.dtype == dtype
    assert (found == 1).all()
