"""Vision families with offsets between cells: what default configs of transformers mean, and what is refused."""

import pytest
import transformers

import portpe
from portpe.config import load_layers, read
from portpe.encodings import GridNetworkEncoding, GridTableEncoding
from portpe.errors import SpecError
from portpe.layer_parts import Norm

transformers.utils.logging.set_verbosity_error()


def config_of(model_type, **changes):
    return transformers.CONFIG_MAPPING[model_type](**changes).to_dict()


@pytest.mark.parametrize("model_type", ["swin", "donut-swin", "maskformer-swin"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_windows(model_type):
    specs = load_layers(config_of(model_type))
    assert len(specs) == 12
    assert [spec.hidden_size for spec in specs] == [96] * 2 + [192] * 2 + [384] * 6 + [768] * 2
    assert [spec.num_heads for spec in specs] == [3] * 2 + [6] * 2 + [12] * 6 + [24] * 2
    for spec in specs:
        assert spec.bias == (GridTableEncoding(height=7, width=7),)
        assert (spec.head_dim, spec.causal, spec.scale) == (32, False, 32**-0.5)
        assert spec.biases.model_dump() == dict.fromkeys("qkvo", True)
    assert not load_layers(config_of(model_type, qkv_bias=False))[0].biases.q


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_swin_v2_is_a_network_of_offsets_and_cosines():
    """The RMS norms of q and k are each sqrt(head_dim) times as long as their vectors of length 1."""
    config = config_of("swinv2", window_size=8, pretrained_window_sizes=[0, 12, 12, 6])
    readings = [read(config, layer=layer) for layer in (0, 2, 11)]
    extents = [None, (12, 12), (6, 6)]
    for reading, extent in zip(readings, extents, strict=True):
        assert reading.spec.bias == (GridNetworkEncoding(height=8, width=8, extent=extent),)
        spec, width = reading.spec, reading.spec.head_dim
        assert reading.beyond is None
        assert spec.scale == 1 / width
        assert spec.q_norm == Norm(kind="rms", eps=1e-24 / width, per_head_weight=True)
        assert spec.k_norm == Norm(kind="rms", eps=1e-24 / width, affine=False)
        assert reading.spec.biases.model_dump() == {"q": True, "k": False, "v": True, "o": True}


@pytest.mark.parametrize("model_type", ["beit", "data2vec-vision"])
def test_whole_pictures(model_type):
    assert [spec.bias for spec in load_layers(config_of(model_type))] == [()] * 12
    for key in ("use_relative_position_bias", "use_shared_relative_position_bias"):
        specs = load_layers(config_of(model_type, image_size=384, **{key: True}))
        assert {spec.bias for spec in specs} == {(GridTableEncoding(height=24, width=24, prefix_tokens=1),)}
        assert {spec.biases.k for spec in specs} == {False}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_levit():
    specs = load_layers(config_of("levit"))
    assert [spec.bias[0].height for spec in specs] == [14] * 4 + [7] * 4 + [4] * 4
    assert {spec.bias[0].offsets for spec in specs} == {"absolute"}
    assert [(s.hidden_size, s.num_heads, s.head_dim, s.v_head_dim, s.scale) for s in specs[::4]] == [
        (128, 4, 16, 32, 0.25),
        (256, 8, 16, 32, 0.25),
        (384, 12, 16, 32, 0.25),
    ]
    assert "batch norms" in read(config_of("levit")).beyond


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("swin", {"use_absolute_embeddings": True}, "use_absolute_embeddings must be false, got true"),
        ("beit", {"use_absolute_position_embeddings": True}, "use_absolute_position_embeddings must be false"),
        (
            "beit",
            {"use_relative_position_bias": True, "use_shared_relative_position_bias": True},
            "use_shared_relative_position_bias must be false where each layer has its own table, got true",
        ),
        ("levit", {"image_size": [224, 192]}, r"image_size must be a square for this model_type, got \[224, 192\]"),
        ("swin", {"num_heads": [2, 4]}, "num_heads must have an entry for each of 4 depths, got 2"),
        ("swin", {"depths": [2, 0, 1, 1]}, r"depths must hold integers >= 1, got \[2, 0, 1, 1\]"),
        ("swin", {"depths": 4}, "depths must be a list of integers, got 4"),
    ],
)
def test_what_is_refused(model_type, changes, message):
    with pytest.raises(SpecError, match=message):
        portpe.load_spec({"model_type": model_type, **changes})
