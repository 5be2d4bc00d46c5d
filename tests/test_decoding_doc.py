"""The example of docs/decoding.md runs as it stands."""

import re
from pathlib import Path

import numpy as np

from portpe.exporting import export

PAGE = (Path(__file__).parents[1] / "docs" / "decoding.md").read_text(encoding="utf-8")


def test_the_example_runs(tmp_path, monkeypatch, spec_of):
    [code] = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    export(spec_of("rotary_llama3", v_head_dim=8), tmp_path / "block", forms=("portable", "ort"), golden=False)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(code, names)
    decoder = names["decoder"]
    assert (decoder.length, decoder.batch, decoder.session.path.name) == (7, 2, "ort_float32.onnx")
    np.testing.assert_array_equal(decoder.position_ids, [[0, 1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 2, 3, 4]])
    assert names["output"].shape == (2, 1, 44)
