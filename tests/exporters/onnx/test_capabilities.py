"""The capability table: what a form carries, and what it says of itself in a manifest."""

import json
from pathlib import Path

import pytest

from portpe.encodings import (
    AlibiEncoding,
    DynamicSchedule,
    FixedRegime,
    LongropeSchedule,
    RotaryEncoding,
)
from portpe.errors import SpecError
from portpe.exporters.onnx import FORMS, build, refusal
from tests.exporters.onnx.blocks import SPECS

LENGTH_DEPENDENT = {
    "dynamic": DynamicSchedule(factor=2.0, max_position_embeddings=64),
    "longrope": LongropeSchedule(
        short_factor=(1.0, 1.0, 1.0, 1.0),
        long_factor=(2.0, 3.0, 4.0, 5.0),
        original_max_position_embeddings=64,
        factor=16.0,
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_portable_carries_every_block(name):
    assert FORMS["portable"].carries(SPECS[name]) is None


@pytest.mark.parametrize("kind", LENGTH_DEPENDENT)
def test_a_schedule_without_a_regime_is_refused_with_the_way_out(kind):
    """A graph with a cache freezes one set of frequencies, and never without saying so."""
    rotary = RotaryEncoding(width=8, schedule=LENGTH_DEPENDENT[kind])
    spec = SPECS["rotary-half"].model_copy(update={"rotary": rotary})
    with pytest.raises(SpecError, match=f"form portable cannot carry this spec: schedule {kind} .* --context L"):
        build(spec, form="portable", dtype="float32", layer=0, tables={}, weights={})
    fixed = rotary.model_copy(update={"regime": FixedRegime(length=100)})
    assert FORMS["portable"].carries(spec.model_copy(update={"rotary": fixed})) is None


def test_two_biases_of_one_kind_are_refused():
    spec = SPECS["alibi"].model_copy(update={"bias": (AlibiEncoding(), AlibiEncoding(bias_max=4.0))})
    with pytest.raises(SpecError, match="bias alibi stands twice"):
        build(spec, form="portable", dtype="float32", layer=0, tables={}, weights={})


@pytest.mark.parametrize("form", FORMS)
def test_the_manifest_entry_is_plain_and_names_what_is_untested(form):
    entry = FORMS[form].to_dict()
    assert json.loads(json.dumps(entry)) == entry
    assert entry["tested_providers"] == ["CPUExecutionProvider"]
    assert not set(entry["tested_providers"]) & set(entry["silent_providers"])


def test_the_manifest_states_what_each_form_needs():
    stated = {
        form: (entry["opset"], entry["ir_version"], entry["minimum_runtime"].get("onnxruntime"), entry["limits"][2:])
        for form, entry in ((form, FORMS[form].to_dict()) for form in FORMS)
    }
    soft, late = "softmax attention only", "no regime per_sequence"
    states = "no bias that caches more than keys and values"
    caps, term, keys = (
        "no softcap together with a bias",
        "no bias with a value term",
        "no bias that reads the keys of a cache",
    )
    assert stated == {
        "portable": (18, 10, "1.18", []),
        "standard": (23, 11, "1.28", [soft, "no sinks", term, keys, caps]),
        "shared": (24, 11, "1.27", [soft, "causal layers only", states, "no sinks", term, caps]),
        "ort": (
            23,
            11,
            "1.32",
            [soft, late, states, "v_head_dim equals head_dim", "head_dim is a multiple of 8", term, keys, caps],
        ),
    }


def test_what_every_other_form_refuses_portable_carries():
    """So that each refusal has a way out, and says it."""
    for form in FORMS:
        for spec in SPECS.values():
            if reason := refusal(spec, form):
                assert "; form portable" in reason
                assert reason.endswith(" carries it")


def test_the_documentation_has_the_same_table():
    text = (Path(__file__).parents[3] / "docs" / "forms.md").read_text(encoding="utf-8")
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0].strip("`") in FORMS:
            rows[cells[0].strip("`")] = cells[1:]
    assert rows == {
        name: [
            str(form.opset),
            form.minimum_runtime["onnxruntime"],
            ", ".join(form.dtypes),
            "; ".join(limit.text for limit in form.limits[2:]) or "everything",
        ]
        for name, form in FORMS.items()
    }
