"""FoX's forgetting bias as a spec: its rules, what it caches, which forms carry it."""

import numpy as np
import pytest

import portpe
from portpe.encodings import AlibiEncoding, ForgetEncoding
from portpe.errors import SpecError
from portpe.exporters.onnx import FORMS, refusal
from portpe.interface import cache_of
from portpe.random_weights import random_weights
from portpe.report.budget import cache_bytes
from portpe.report.meaning import cache_lines
from portpe.spec import AttentionSpec
from portpe.weight_shapes import weight_shapes

SIZES = {"hidden_size": 20, "num_heads": 6, "num_kv_heads": 2, "head_dim": 4, "v_head_dim": 3, "scale": 0.4}


def forget(**changes):
    return AttentionSpec(**SIZES, bias=(ForgetEncoding(),), **changes)


def test_tensors_have_the_authors_names():
    shapes = weight_shapes(forget())
    assert shapes["fgate_proj.weight"] == (6, 20)
    assert shapes["fgate_proj.bias"] == (6,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"causal": False}, "causal must be true for a forget bias, whose gates lie between a key and a later query"),
        ({"chunk": 8}, "chunk must be left out with a forget bias, which counts slots, got 8"),
    ],
)
def test_layers_that_have_no_such_bias_are_refused(changes, message):
    with pytest.raises(SpecError, match=f"^{message}$"):
        forget(**changes)


def test_it_comes_back_from_json():
    assert AttentionSpec.from_dict(forget(window=5).to_dict()) == forget(window=5)


def test_other_specs_cache_what_they_did():
    assert forget().cached_states == {"gate": 6}
    assert cache_of(forget()) == ("present_key", "present_value", "present_gate")
    other = AttentionSpec(**SIZES, bias=(AlibiEncoding(),))
    assert other.cached_states == {}
    assert cache_of(other) == ("present_key", "present_value")


def test_the_cache_is_counted_with_its_gates():
    """A token takes 2 kv heads of 4 + 3 channels, and one float32 for each of 6 heads whatever the type."""
    assert cache_bytes([forget()], 1000, 2) == 1000 * (2 * 7 * 2 + 6 * 4)
    assert cache_bytes([forget(window=100)], 1000, 4) == 100 * (2 * 7 * 4 + 6 * 4)


def test_what_is_cached_besides_is_told():
    told = list(cache_lines(forget()))
    assert told == ["cache      gate besides keys and values: 6 float32 numbers a token"]
    assert list(cache_lines(AttentionSpec(**SIZES))) == []


def test_forms_with_a_buffer_refuse_it_and_name_those_that_carry_it():
    assert [name for name, form in FORMS.items() if form.carries(forget()) is None] == ["portable", "standard"]
    for form in ("shared", "ort"):
        assert refusal(forget(), form) == (
            f"form {form} cannot carry this spec: an encoding caches gate too, and its buffers hold keys and values "
            "alone; form portable or standard carries it"
        )


def test_nothing_of_it_follows_from_positions():
    assert portpe.tabulate(forget(), [0, 5]) == {}


def test_random_gates_lie_near_1_and_near_0():
    """Both must be there for a parity case to show a fault in either."""
    spec = AttentionSpec(**{**SIZES, "hidden_size": 60, "num_heads": 16}, bias=(ForgetEncoding(),))
    weights = random_weights(spec, 0)
    x = np.random.default_rng(4).standard_normal((500, 60))
    f = 1 / (1 + np.exp(-(x @ weights["fgate_proj.weight"].T + weights["fgate_proj.bias"])))
    assert np.median(f) > 0.8
    assert (f > 0.999).mean() > 0.02
    assert (f < 0.1).mean() > 0.02


def test_bench_refuses_it(tmp_path):
    from portpe.bench.run import bench
    from portpe.bench.settings import Settings
    from portpe.exporting import export

    bundle = export(forget(), tmp_path / "bundle", golden=False)
    message = "^bias must cache keys and values alone for bench, whose caches hold no more, got gate$"
    with pytest.raises(SpecError, match=message):
        bench(bundle, Settings(), tmp_path)
