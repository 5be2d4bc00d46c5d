"""Positions with several coordinates in every graph form, in a decode loop, and in mlx."""

import numpy as np
import pytest

from portpe.errors import SpecError
from portpe.exporters.onnx import FORMS, refusal
from portpe.exporting import export
from portpe.parity import check
from portpe.runtimes import base
from portpe.runtimes.ort_decoder import BlockDecoder

KINDS = ("rotary_sections", "rotary_every_third", "rotary_over_channels", "rotary_axial", "rotary_tiled")
KINDS += ("rotary_centred", "axis_buckets", "axis_buckets_cached")


@pytest.mark.parametrize("name", KINDS)
def test_every_form_that_carries_the_block_agrees_with_the_truth(name, spec_of, tmp_path):
    spec = spec_of(name, v_head_dim=8)
    forms = tuple(form for form in FORMS if refusal(spec, form) is None)
    assert {"portable", "standard", "ort"} <= set(forms)
    bundle = export(spec, tmp_path / "bundle", forms=forms)
    report = check(bundle, ["onnxruntime"], matrix="default" if not spec.causal else "quick")
    judged = {(one.form, one.case) for one in report.checks}
    assert {form for form, _ in judged} == set(forms)
    assert spec.causal or spec.rotary is None or {"grid", "grid_padded"} <= {case for _, case in judged}
    assert report.passed, report.failures[:3]


@pytest.mark.parametrize("form", ["portable", "shared"])
def test_a_decode_loop_takes_and_counts_coordinates(form, spec_of, tmp_path):
    """A picture's positions are given, those of the text behind it counted: as a call that is given all of them."""
    spec = spec_of("rotary_every_third", v_head_dim=8, window=None)
    bundle = export(spec, tmp_path / "bundle", forms=(form,), golden=False)
    rng = np.random.default_rng(3)
    hidden = rng.standard_normal((2, 9, spec.hidden_size)).astype(np.float32)
    picture = np.array([[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]])[:, None].repeat(2, 1)
    text = np.broadcast_to(np.arange(6, 9), (3, 2, 3))
    whole = BlockDecoder.open(bundle, capacity=9, batch=2).prefill(
        hidden, position_ids=np.concatenate([picture, text], axis=2)
    )
    decoder = BlockDecoder.open(bundle, capacity=9, batch=2)
    steps = [decoder.prefill(hidden[:, :6], position_ids=picture)]
    steps += [decoder.step(hidden[:, at : at + 1]) for at in range(6, 9)]
    np.testing.assert_array_equal(decoder.position_ids, np.concatenate([picture, text], axis=2))
    np.testing.assert_allclose(np.concatenate(steps, axis=1), whole, atol=2e-6 * np.abs(whole).max(), rtol=0)
    decoder.rewind(6)
    again = decoder.step(hidden[:, 6:7])
    np.testing.assert_array_equal(again, steps[1])
    with pytest.raises(SpecError, match=r"position_ids must have shape \(3, 2, 1\), got \(2, 1\)"):
        decoder.step(hidden[:, 7:8], position_ids=[[7], [7]])


def test_channels_behind_a_partial_factor_pass_unchanged(tmp_path):
    """Sections [2, 1, 1] over a quarter of the head, as Qwen3.5's config has them: in every form and in mlx channels
    8 to 31 of queries and keys are those of the projections to the last bit, and those before are not.
    """
    pytest.importorskip("mlx.core")
    config = {
        "model_type": "qwen3_5_text",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_hidden_layers": 4,
        "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1]},
    }
    bundle = export(config, tmp_path / "bundle", layer=3, forms=("portable", "standard", "ort"))
    golden = next(case for case in bundle.golden("float32") if case.name == "prefill")
    assert golden.inputs.position_ids.shape[0] == 3
    seen = set()
    for name in ("pytorch", "onnxruntime", "mlx"):
        runtime = base.get(name)
        for configuration in runtime.configurations(bundle):
            stages = runtime.open(bundle, configuration).run(golden.inputs, stages=True).stages
            for part in "qk":
                plain, turned = stages[part], stages[f"{part}_rotated"]
                np.testing.assert_array_equal(turned[..., 8:], plain[..., 8:])
                assert np.abs(turned[..., :8] - plain[..., :8]).max() > 0.5
            seen.add((name, configuration.form))
    assert {("onnxruntime", form) for form in ("portable", "standard", "ort")} < seen


def test_mlx_counts_the_same_on_every_axis(spec_of):
    mx = pytest.importorskip("mlx.core")
    from portpe.random_weights import random_weights
    from portpe.runtimes.mlx import Attention

    spec = spec_of("rotary_every_third", window=None)
    weights = random_weights(spec, 4)
    block, plain = Attention(spec), Attention(spec_of("rotary_default", q_norm=spec.q_norm, k_norm=spec.k_norm))
    block.load(weights)
    plain.load(weights)
    x = mx.array(np.random.default_rng(5).standard_normal((2, 70, spec.hidden_size)).astype(np.float32))
    assert mx.array_equal(block(x, "causal"), plain(x, "causal"))
    ids = np.arange(70)
    np.testing.assert_array_equal(block(x, "causal", None, np.stack([ids] * 3)), block(x, "causal"))
    apart = block(x, "causal", None, np.stack([ids, ids // 7, ids % 7]))
    assert float(mx.abs(apart - block(x, "causal")).max()) > 0.1
    with pytest.raises(SpecError, match=r"position_ids must have shape \(3, n\) or \(3, batch, n\), got \(2, 70\)"):
        block(x, "causal", None, np.stack([ids] * 2))


def test_mlx_names_the_way_it_cannot_go(spec_of):
    pytest.importorskip("mlx.core")
    from portpe.runtimes.mlx import Attention

    spec = spec_of("rotary_every_third")
    assert Attention(spec).rotation_way() == (
        "plain",
        "the Metal kernel reads one coordinate a position from a table, and here it is otherwise",
    )
    with pytest.raises(SpecError, match="the Metal kernel reads one coordinate a position"):
        Attention(spec, rotation="metal")
    with pytest.raises(SpecError, match=r"rotary.axes, blocks, offset and the like must be left out"):
        Attention(spec, rotation="fast_rope")
