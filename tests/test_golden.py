"""Golden values: one set of inputs for every type, a long past from one tile, any machine can read them."""

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from portpe import golden
from portpe.errors import SpecError
from portpe.golden import CaseInputs, GoldenCase


def _case(name="decode", past=7, tile=3):
    random = np.random.default_rng(1)

    def drawn(*shape):
        return random.standard_normal(shape).astype(ml_dtypes.bfloat16)

    ids = np.arange(2 * (past + 4)).reshape(2, past + 4)
    return CaseInputs(
        name=name,
        hidden_states=drawn(2, 4, 10),
        position_ids=ids[:, past:],
        attention_mask=(ids % 3 > 0).astype(np.int64),
        key_position_ids=ids,
        past_key_tile=drawn(2, 3, tile, 6),
        past_value_tile=drawn(2, 3, tile, 5),
        past=past,
        pairs=np.array([[0, 1], [1, 3]]),
        heads=np.array([0, 5]),
        slots=np.array([[1, past + 2]]),
    )


def _truth(case, dtype):
    random = np.random.default_rng(2)
    return GoldenCase(
        case,
        dtype,
        random.standard_normal((2, 10)),
        random.standard_normal((1, 3, 6)),
        random.standard_normal((1, 3, 5)),
        {"q": random.standard_normal((2, 2, 6)), "probs": random.standard_normal((2, 2, 11))},
    )


def test_every_array_comes_back(tmp_path):
    cases = [_case("prefill", past=0, tile=0), _case("decode")]
    truths = [_truth(case, dtype) for dtype in ("float32", "float16") for case in cases]
    golden.save(tmp_path / "g.safetensors", cases, truths)
    back = golden.load(tmp_path / "g.safetensors", "float16")
    assert [one.name for one in back] == ["prefill", "decode"]
    for one, expected in zip(back, truths[2:], strict=True):
        for name, value in vars(expected.case).items():
            np.testing.assert_array_equal(getattr(one.case, name), value)
        for name in ("output", "present_key", "present_value"):
            np.testing.assert_array_equal(getattr(one, name), getattr(expected, name))
        assert one.stages.keys() == expected.stages.keys()
        np.testing.assert_array_equal(one.stages["probs"], expected.stages["probs"])
        assert one.output.dtype == np.float64
    with pytest.raises(SpecError, match="must hold prefill/bfloat16/output"):
        golden.load(tmp_path / "g.safetensors", "bfloat16")


def test_same_arrays_same_bytes(tmp_path):
    for name in ("a", "b"):
        golden.save(tmp_path / name, [_case()], [_truth(_case(), "float32")])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_inputs_are_the_same_numbers_in_every_type(dtype):
    case = _case()
    inputs = case.inputs(dtype)
    for name, stored in (("hidden_states", case.hidden_states),):
        assert getattr(inputs, name).dtype.name == dtype
        np.testing.assert_array_equal(getattr(inputs, name).astype(np.float64), stored.astype(np.float64))


def test_a_long_past_is_the_tile_over_and_over():
    """Seven slots of a tile of three: channels as stored, then rolled by one, then by two."""
    case = _case(past=7, tile=3)
    past = case.inputs("float32").past_key
    assert past.shape == (2, 3, 7, 6)
    for slot, (of_tile, rolled) in enumerate([(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2)]):
        for channel in range(6):
            stored = case.past_key_tile[:, :, of_tile, (channel - rolled) % 6].astype(np.float32)
            np.testing.assert_array_equal(past[:, :, slot, channel], stored)


def test_kv_heads_of_query_heads():
    """Eight query heads on four kv heads: pairs of neighbours share one."""
    np.testing.assert_array_equal(golden.kv_heads_of(np.array([0, 1, 5, 7]), 8, 4), [0, 2, 3])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop("decode/pairs"), "must hold decode/pairs"),
        (lambda arrays: arrays.pop("prefill/float32/present_key"), "must hold prefill/float32/present_key"),
        (lambda arrays: arrays.update({"decode/slots": np.zeros((0, 2), np.int64)}), "decode/slots must name at least"),
        (lambda arrays: arrays["decode/float32/output"].fill(np.nan), "decode/float32/output must be finite"),
        (lambda arrays: arrays["decode/float32/stage.q"].fill(np.inf), "decode/float32/stage.q must be finite"),
        (lambda arrays: arrays["prefill/hidden_states"].fill(np.nan), "prefill/hidden_states must be finite"),
    ],
)
def test_values_that_nothing_can_be_judged_by_are_refused(copy_of, change, message):
    """Digests that fit do not make them better: a NaN would compare as equal to everything."""
    path = copy_of("rotary_default") / "golden.safetensors"
    arrays = {name: array.copy() for name, array in load_file(path).items()}
    change(arrays)
    save_file(arrays, path, metadata={"cases": "prefill,decode"})
    with pytest.raises(SpecError, match=message) as caught:
        golden.load(path, "float32")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cases", [{}, {"cases": ""}])
def test_a_file_without_cases_is_refused(copy_of, cases):
    path = copy_of("rotary_default") / "golden.safetensors"
    save_file(load_file(path), path, metadata=cases)
    with pytest.raises(SpecError, match="must hold at least one case, got none"):
        golden.load(path, "float32")
