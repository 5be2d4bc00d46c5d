"""The reference block in float64 against transformers' own layer: tokens and patches of several coordinates.

Weights come through the checkpoint path.
"""

from __future__ import annotations

import pytest
import torch
import transformers

import portpe
from portpe.checkpoint import load_layer
from portpe.reference import Attention
from tests.reference.axes_models import CASES
from tests.reference.test_transformers_equality import assert_equal

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_families(name, tmp_path):
    case = CASES[name]
    model = case.build(tmp_path)
    calls = case.run(model, case)
    for layer in (0, 1):
        spec = portpe.load_spec(tmp_path, layer=layer, part=case.part)
        spec = spec if case.exact else spec.with_precision("hf")
        weights = load_layer(tmp_path, spec, model_type=model.config.model_type, layer=layer, part=case.part)
        block = Attention(spec, dtype=torch.float64).load(weights)
        assert_equal(block, calls, layer, case.float32, True, widest=case.widest)
