"""Linear attention with what else a rotation can be, in every runtime: axes, transformers' own numbers, regimes.

Keys are turned late here, by ``key_position_ids``, where a softmax caches them turned.
"""

import pytest

from portpe import export, parity
from portpe.spec import AttentionSpec
from tests.kinds import LAYER_NORM, LONGROPE, PLAIN, YARN

DEFAULT = {"kind": "default", "rope_theta": 700.0}


def rotary(schedule=DEFAULT, width=8, **fields):
    return {"rotary": {"kind": "rotary", "width": width, "schedule": schedule, **fields}}


KINDS = {
    "sections": rotary(width=6, pairing="interleaved", axes={"kind": "sectioned", "sections": [1, 2]}),
    "centred": {**rotary(axes={"kind": "axial"}, coordinates="centred", prefix_tokens=3), "causal": False},
    "blocks": {**rotary(axes={"kind": "axial", "order": [1, 0]}, blocks=2, suffix_tokens=1), "causal": False},
    "hf": rotary(YARN, attention_factor=1.0, precision="hf"),
    "by length": rotary({"kind": "longrope", **LONGROPE}, attention_factor=1.0, regime={"kind": "per_sequence"}),
    "chunks": {**rotary(sign=-1), "chunk": 6, "output_gate": {"scope": "channel"}},
    "learned": {
        "embedding": {"kind": "learned", "rows": 75, "width": 44},
        "input_norm": LAYER_NORM,
        "num_kv_heads": 1,
        "q_norm": {**LAYER_NORM, "scope": "all_heads"},
        "k_norm": {**LAYER_NORM, "scope": "all_heads"},
    },
}


@pytest.mark.parametrize("name", KINDS)
def test_every_runtime_agrees_with_the_truth(name, tmp_path):
    spec = AttentionSpec.from_dict({**PLAIN, "attention": "linear", "scale": 1.0, **KINDS[name]})
    report = parity.check(export(spec, tmp_path / "bundle"), matrix="quick")
    assert [vars(check) for check in report.failures[:3]] == []
    assert report.passed
    assert {"pytorch", "onnxruntime", "onnx-reference", "mlx"} == {check.runtime for check in report.checks}
    assert {"q_features", "k_features", "normaliser"} <= {check.stage for check in report.checks}
    if name == "by length":
        assert "crossing_trained_length" in {check.case for check in report.checks}


def test_quantised_projections_stay_within_their_bounds(tmp_path):
    """Errors of rounded activations go through features and the quotient; 32 channels are the quantiser's least."""
    sizes = {"hidden_size": 64, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "v_head_dim": 16}
    fields = {**PLAIN, **sizes, "attention": "linear", "scale": 1.0, **rotary(width=12)}
    bundle = export(AttentionSpec.from_dict(fields), tmp_path / "bundle", quantize=("int8",))
    report = parity.check(bundle, ["onnxruntime"], matrix="quick")
    assert [vars(check) for check in report.failures[:3]] == []
    assert "float32_int8" in {check.dtype for check in report.checks}
