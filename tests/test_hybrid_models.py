"""Models whose layers differ, from config to parity: one bundle a layer, and what two of a family differ in."""

import json

import numpy as np
import pytest

from portpe import bundle as bundles
from portpe import parity
from portpe.cli import run
from portpe.config import load_spec
from portpe.diff import compare
from portpe.exporting import export

FULL, SLIDING = "full_attention", "sliding_attention"
GEMMA3 = {
    "model_type": "gemma3_text",
    "hidden_size": 20,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "num_hidden_layers": 2,
    "max_position_embeddings": 60,
    "query_pre_attn_scalar": 9,
    "sliding_window": 7,
    "layer_types": [SLIDING, FULL],
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
SMOLLM3 = {
    "model_type": "smollm3",
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 60,
    "no_rope_layers": [1, 0],
}
JAMBA = {
    "model_type": "jamba",
    "hidden_size": 20,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 5,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
}


@pytest.mark.parametrize(
    ("config", "layers"), [(GEMMA3, [0, 1]), (SMOLLM3, [0, 1]), (JAMBA, [1, 3])], ids=["gemma3", "smollm3", "jamba"]
)
def test_every_layer_with_attention_is_exported_and_equal_everywhere(config, layers, tmp_path):
    export(config, tmp_path / "out", layer="all")
    made = bundles.open_all(tmp_path / "out")
    assert [bundle.layer for bundle in made] == layers
    assert [bundle.spec for bundle in made] == [load_spec(config, layer=layer) for layer in layers]
    for bundle in made:
        report = parity.check(bundle)
        assert report.passed, report.failures[:3]
        assert {check.runtime for check in report.checks} == {"pytorch", "onnxruntime", "onnx-reference", "mlx"}


def test_two_configs_of_a_family_differ_layer_by_layer():
    """A wider window is seen by sliding layers alone, another factor by full layers alone."""
    wider = GEMMA3 | {"sliding_window": 9}
    (difference,) = compare(load_spec(GEMMA3), load_spec(wider)).differences
    assert (difference.field, difference.left, difference.right) == ("window", 7, 9)
    assert (difference.unit, difference.first_position) == ("slot", 7)
    assert compare(load_spec(GEMMA3, layer=1), load_spec(wider, layer=1)).differences == ()
    closer = GEMMA3 | {"rope_scaling": {"rope_type": "linear", "factor": 8.0001}}
    assert compare(load_spec(GEMMA3), load_spec(closer)).differences == ()
    (difference,) = compare(load_spec(GEMMA3, layer=1), load_spec(closer, layer=1)).differences
    assert (difference.field, difference.first_position) == ("rotary.schedule.factor", 1)
    # sin(p / 8) and sin(p / 8.0001) part by more than half a unit of float16 once p * 1.5625e-6 |cos(p / 8)| > 2**-11
    steps = np.arange(2000)
    apart = np.maximum(*(np.abs(f(steps / 8) - f(steps / 8.0001)) for f in (np.sin, np.cos)))
    assert difference.seen["float16"] == int(np.argmax(apart > 2.0**-11)) > 200


def test_diff_in_the_shell(tmp_path, capsys):
    for name, config in (("one", GEMMA3), ("other", GEMMA3 | {"sliding_window": 9})):
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    paths = [str(tmp_path / "one.json"), str(tmp_path / "other.json")]
    assert run(["diff", *paths]) == 1
    assert "window" in capsys.readouterr().out
    assert run(["diff", *paths, "--layer", "1"]) == 0
