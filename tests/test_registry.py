"""The registry and the code it describes say the same."""

import typing

import numpy as np
import pytest

from portpe import encodings, registry, schedules, tables
from portpe.diff import bias
from portpe.spec import AttentionSpec
from portpe.weight_shapes import weight_shapes


def members(annotated):
    """The classes of a discriminated union, or the one class, behind an Annotated name."""
    inner = typing.get_args(annotated)[0]
    return set(typing.get_args(inner)) or {inner}


def kind_of(part):
    return part.model_fields["kind"].default


def test_a_row_for_every_schedule_class_and_every_law():
    classes = members(encodings.AnySchedule)
    assert {row.spec_class for row in registry.SCHEDULES.values()} == classes
    assert set(registry.SCHEDULES) == {kind_of(part) for part in classes}
    assert set(registry.SCHEDULES) == {*schedules.LAWS, *schedules.LENGTH_LAWS}


def test_a_row_for_every_layout_of_axes():
    assert {row.spec_class for row in registry.AXES.values()} == members(encodings.AnyAxes)
    assert set(registry.AXES) == {kind_of(row.spec_class) for row in registry.AXES.values()}


def test_a_row_for_every_kind_of_block():
    assert set(registry.ATTENTIONS) == set(typing.get_args(AttentionSpec.model_fields["attention"].annotation))


def test_diff_knows_where_two_of_every_kind_of_bias_part():
    """portpe/diff/bias.py has one small function a kind: the first distance at which settings make a difference."""
    assert {*bias._LAWS, *bias._UNTRAINED} == members(encodings.BiasEncoding)


def test_a_row_for_every_decay():
    assert {row.spec_class for row in registry.DECAYS.values()} == {encodings.XposDecay}
    assert set(registry.DECAYS) == {kind_of(row.spec_class) for row in registry.DECAYS.values()}


def test_a_row_for_every_encoding_class():
    classes = members(encodings.EmbeddingEncoding) | members(encodings.BiasEncoding) | {encodings.RotaryEncoding}
    classes |= members(encodings.QueryTemperature)
    rows = {row.spec_class for row in registry.ENCODINGS.values()}
    assert rows == classes | {None}
    for row in registry.ENCODINGS.values():
        assert row.spec_class is None or row.kind == kind_of(row.spec_class)


@pytest.mark.parametrize(
    "row",
    [
        row
        for rows in (registry.ENCODINGS, registry.SCHEDULES, registry.AXES, registry.ATTENTIONS)
        for row in rows.values()
    ],
    ids=lambda row: row.kind,
)
def test_rows_are_filled_and_fit_a_docs_table(row):
    for text in (row.title, row.formula, row.source):
        assert text.strip() == text
        assert text
        assert "|" not in text.replace("|i - j|", "")
        assert "\n" not in text
    if getattr(row, "spec_class", None) is not None:
        assert type(row.example) is row.spec_class
        assert row.example.kind == row.kind


def test_laws_are_found_by_kind():
    for row in registry.SCHEDULES.values():
        laws = schedules.LENGTH_LAWS if row.length_dependent else schedules.LAWS
        assert laws[row.kind] is getattr(schedules, row.kind)
        frequencies = schedules.inv_freq(row.rotary())
        assert frequencies.shape == (6,)
        plain = schedules.inv_freq(encodings.RotaryEncoding(width=12, schedule=encodings.DefaultSchedule()))
        assert np.max(np.abs(frequencies / plain - 1)) > 0.3, "an example that equals the default shows nothing"


def test_what_transformers_has():
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theirs = {row.kind for row in registry.SCHEDULES.values() if row.in_transformers}
    assert theirs == {"default", *ROPE_INIT_FUNCTIONS}


def test_examples_stand_in_a_layer():
    sizes = {"hidden_size": 12, "num_heads": 6, "num_kv_heads": 2, "head_dim": 14, "v_head_dim": 5, "scale": 0.3}
    for row in registry.ENCODINGS.values():
        site = {"none": {}, "bias": {"bias": (row.example,)}, "query": {"query_scale": row.example}}.get(
            row.site, {row.site: row.example}
        )
        spec = AttentionSpec(**sizes, **site, causal=not getattr(row.example, "whole_sequence", False))
        assert set(row.weights) <= set(weight_shapes(spec))
        assert row.bounded == (tables.end_of(spec, {}) is not None)
