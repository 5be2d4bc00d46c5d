"""The data file: arrays at pages, read as they were written."""

import ml_dtypes
import numpy as np
import pytest

from portpe.data_file import read_data, write_data
from portpe.errors import SpecError


def test_data_file_is_what_its_offsets_say(tmp_path):
    tensors = {
        "a": np.arange(5, dtype=np.float32),
        "b": np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16),
        "c": np.asfortranarray(np.arange(8, dtype=np.float16).reshape(2, 4)),
    }
    places = write_data(tmp_path / "w.data", tensors)
    content = (tmp_path / "w.data").read_bytes()
    assert [offset % 4096 for offset, _length in places.values()] == [0, 0, 0]
    for name, (offset, length) in places.items():
        read = np.frombuffer(content[offset : offset + length], tensors[name].dtype).reshape(tensors[name].shape)
        np.testing.assert_array_equal(read, tensors[name])
    assert places["b"] == (4096, 12)


def test_what_was_written_is_read(tmp_path):
    tensors = {"a": np.arange(6, dtype=np.uint8).reshape(1, 2, 3), "b": np.arange(4, dtype=np.float32)}
    places = write_data(tmp_path / "w.data", tensors)
    said = {name: (*places[name], array.dtype.name, array.shape) for name, array in tensors.items()}
    for name, array in read_data(tmp_path / "w.data", said).items():
        np.testing.assert_array_equal(array, tensors[name])
        assert array.dtype == tensors[name].dtype


@pytest.mark.parametrize(
    "place", [(0, 5, "float32", (1,)), (0, 4, "float32", (2,)), (0, 4, "nothing", (1,)), (0, 99, "uint8", (99,))]
)
def test_places_that_do_not_fit_are_refused(place, tmp_path):
    write_data(tmp_path / "w.data", {"a": np.ones(1, np.float32)})
    with pytest.raises(SpecError, match=r"^w.data cannot be read as portpe.json says: "):
        read_data(tmp_path / "w.data", {"a": place})
    with pytest.raises(SpecError, match=r"^none.data cannot be read as portpe.json says: "):
        read_data(tmp_path / "none.data", {"a": place})
