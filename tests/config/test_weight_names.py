"""Fused layouts, row by row: which rows of a fused tensor are q, k and v, worked by hand from each model's code."""

import numpy as np
import pytest

from portpe.checkpoint import split_fused
from portpe.config.weight_names import ROWS, Fused, weight_names
from portpe.errors import SpecError
from portpe.layer_parts import OutputGate
from portpe.spec import AttentionSpec


def spec_of(heads: int, kv_heads: int, head_dim: int, v_head_dim: int | None = None, **more) -> AttentionSpec:
    return AttentionSpec(
        hidden_size=5,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim or head_dim,
        scale=1.0,
        **more,
    )


# NeoX, BLOOM, Falcon without multi-query: head by head q, k, v. Three heads of two rows.
PER_HEAD = ([0, 1, 6, 7, 12, 13], [2, 3, 8, 9, 14, 15], [4, 5, 10, 11, 16, 17])
# Falcon multi-query: all queries, then one key and one value.
MULTI_QUERY = ([0, 1, 2, 3, 4, 5], [6, 7], [8, 9])
# Falcon's new decoder: four heads over two key/value heads of two rows: q q k v, q q k v.
GROUPED = ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15])
# Phi-3, MPT, GPT-2: four heads' queries, then two keys, then two values.
STACKED = ([0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15])


@pytest.mark.parametrize(
    ("layout", "heads", "kv_heads", "expected"),
    [
        ("grouped", 3, 3, PER_HEAD),
        ("grouped", 3, 1, MULTI_QUERY),
        ("grouped", 4, 2, GROUPED),
        ("stacked", 4, 2, STACKED),
    ],
    ids=["per_head", "multi_query", "new_decoder", "stacked"],
)
def test_rows_of_a_fused_tensor(layout, heads, kv_heads, expected):
    rows = sum(len(part) for part in expected)
    numbered = np.arange(rows)[:, None] * np.ones(5, dtype=int)
    for array in (numbered, numbered[:, 0]):  # weight and bias
        parts = split_fused(array, Fused("qkv", layout), spec_of(heads, kv_heads, 2))
        for part, wanted in zip(parts, expected, strict=True):
            assert part.reshape(len(wanted), -1)[:, 0].tolist() == wanted


@pytest.mark.parametrize(
    ("layout", "v_head_dim", "scope", "expected"),
    [
        # Qwen3-Next: three heads, each two rows of a query and then two of its gate
        ("query_and_gate", 2, "channel", ([0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11])),
        # values of three channels, so gates of three; and gates of one number a head
        ("query_and_gate", 3, "channel", ([0, 1, 5, 6, 10, 11], [2, 3, 4, 7, 8, 9, 12, 13, 14])),
        ("query_and_gate", 3, "head", ([0, 1, 3, 4, 6, 7], [2, 5, 8])),
        # HRM: all gates, then all queries, keys, values
        ("gate_stacked", 2, "channel", ([*range(6)], [*range(6, 12)], [*range(12, 18)], [*range(18, 24)])),
        ("gate_stacked", 1, "head", ([*range(3)], [*range(3, 9)], [*range(9, 15)], [*range(15, 18)])),
    ],
)
def test_rows_of_a_tensor_with_a_gate_in_it(layout, v_head_dim, scope, expected):
    spec = spec_of(3, 3, 2, v_head_dim, output_gate=OutputGate(scope=scope))
    fused = Fused("any", layout)
    numbered = np.arange(sum(len(part) for part in expected))[:, None] * np.ones(5, dtype=int)
    assert len(fused.parts) == len(expected)
    for array in (numbered, numbered[:, 0]):
        for part, wanted in zip(split_fused(array, fused, spec), expected, strict=True):
            assert part.reshape(len(wanted), -1)[:, 0].tolist() == wanted


def test_families_that_fuse_and_how():
    layouts = {family: row.fused.layout for family, row in ROWS.items() if row.fused is not None}
    assert layouts == {
        "blip_vision_model": "stacked",
        "bloom": "grouped",
        "dbrx": "stacked",
        "deberta": "grouped",
        "deepseek_ocr2_sam_vision_model": "stacked",
        "dots3_note_vision_encoder": "stacked",
        "exaone4_5_vision": "stacked",
        "falcon": "grouped",
        "glm5_next_vision": "stacked",
        "gpt_neox": "grouped",
        "gpt2": "stacked",
        "glm_image_vision": "stacked",
        "got_ocr2_vision": "stacked",
        "gpt_bigcode": "grouped",
        "hrm_text": "gate_stacked",
        "granite_speech_encoder": "kv_stacked",
        "granite_speech_plus_encoder": "kv_stacked",
        "imagegpt": "stacked",
        "layoutlmv2": "stacked",
        "layoutxlm": "stacked",
        "mgp-str": "stacked",
        "modernbert": "stacked",
        "mpt": "stacked",
        "openai-gpt": "stacked",
        "persimmon": "grouped",
        "phi3": "stacked",
        "pp_formulanet_vision": "stacked",
        "qwen2_vl_vision": "stacked",
        "qwen3_5_moe_text": "query_and_gate",
        "qwen3_5_text": "query_and_gate",
        "qwen3_5_vision": "stacked",
        "qwen3_next": "query_and_gate",
        "qwen3_vl_vision": "stacked",
        "qwen4_exp_vision": "stacked",
        "radio": "stacked",
        "sam_hq_vision_model": "stacked",
        "sam_vision_model": "stacked",
        "sarvam_moe": "stacked",
        "seggpt": "stacked",
        "slanext_vision": "stacked",
        "unlimited_ocr_sam_vision_model": "stacked",
        "vitdet": "stacked",
    }
    turned = {family for family, row in ROWS.items() if row.transposed}
    assert turned == {"gpt2", "imagegpt", "openai-gpt", "xlnet", "layoutlmv2", "layoutlmv3", "layoutxlm"}


@pytest.mark.parametrize("family", sorted(ROWS))
def test_a_row_places_every_projection(family):
    row = weight_names(*family.split())
    assert row.prefixes[-1] == "", "the bare model must be readable"
    latent = "kv_b_proj" in row.names
    keys_and_values = ("q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj") if latent else ("k_proj", "v_proj")
    for projection in ("q_proj", *keys_and_values, "o_proj"):
        templates = row.templates(projection)
        assert len(templates) == 1 or row.fused is not None, "one place, or beside the fused one"
        for template in templates:
            assert any(number in template for number in ("{layer}", "{group}", "{half}", "{block}", "{run}"))


def test_an_unknown_family_is_refused():
    with pytest.raises(SpecError, match=r"model_type 'rwkv' has no row"):
        weight_names("rwkv")
