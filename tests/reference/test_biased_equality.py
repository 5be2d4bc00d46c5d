"""The reference block in float64 against transformers' own layer in float64: families with a trained bias.

Encoders see one left-padded batch; decoders a chunk, a shorter one and two decode steps, from each side's own cache.
"""

import inspect
import operator

import numpy as np
import pytest
import torch
import transformers

import portpe
from portpe.checkpoint import load_layer
from portpe.reference import Attention
from tests.reference.biased_models import BIASED_MODELS, Biased
from tests.reference.test_transformers_equality import assert_equal
from tests.reference.transformers_runs import Call

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

PADS = (0, 3, 1)
CHUNKS = (9, 5, 1, 1)


class Seen:
    """What came through the modules that bound attention, layer by layer, and what is added to layer 0's states."""

    def __init__(self, stack, row: Biased):
        self.inputs, self.outputs, self.rows, self.sums = [], [], [], []
        for name, module in stack.named_modules():
            if name.endswith(row.query):
                self._take(module, self.inputs)
            if name.endswith(row.output):
                module.register_forward_hook(lambda _, __, output: self.outputs.append(output.detach()))
            if row.positions and name.endswith(row.positions):
                module.register_forward_hook(lambda _, __, output: self.rows.append(output.detach()))
                self._take(dict(stack.named_modules())[name.replace(row.positions, row.summed)], self.sums)

    @staticmethod
    def _take(module, into):
        def hook(_, args, named):
            into.append((args[0] if args else named["hidden_states"]).detach())

        module.register_forward_pre_hook(hook, with_kwargs=True)

    def layers(self):
        found = list(zip(self.inputs, self.outputs, strict=True))
        if self.rows:
            found[0] = (self.sums[0] - self.rows[0], found[0][1])
        for each in (self.inputs, self.outputs, self.rows, self.sums):
            each.clear()
        return found


def run(model, row: Biased, causal: bool) -> list[Call]:
    """transformers' calls: a decoder's in chunks with its own cache, an encoder's whole."""
    stack = operator.attrgetter(row.stack)(model) if row.stack else model
    takes = inspect.signature(stack.forward).parameters
    seen, rng = Seen(stack, row), np.random.default_rng(7)
    chunks = CHUNKS if causal else (sum(CHUNKS),)
    mask = torch.ones(len(PADS), sum(CHUNKS), dtype=torch.long)
    for batch, pads in enumerate(PADS):
        mask[batch, :pads] = 0
    ids = torch.from_numpy(rng.integers(5, 53, mask.shape)) * mask + model.config.pad_token_id * (1 - mask)
    cache = transformers.EncoderDecoderCache(transformers.DynamicCache(), transformers.DynamicCache())
    heard = torch.from_numpy(rng.normal(size=(len(PADS), 7, model.config.hidden_size)))
    calls, done = [], 0
    for size in chunks:
        now, done = slice(done, done + size), done + size
        given = {"input_ids": ids[:, now], "attention_mask": mask[:, :done]}
        if causal:
            given |= {"cache": cache, "use_cache": True}
        if causal and "encoder_hidden_states" in takes:
            given["encoder_hidden_states"] = heard
        with torch.no_grad():
            stack(**given)
        positions = torch.arange(now.start, now.stop).expand(len(PADS), -1)  # all count slots, whatever is padded
        calls.append(Call(mask[:, :done], positions, seen.layers()))
    return calls


def block_of(folder, model, row: Biased, layer: int) -> Attention:
    spec = portpe.load_spec(folder, layer=layer, part=row.part)
    weights = load_layer(folder, spec, model_type=model.config.model_type, layer=layer, part=row.part)
    return Attention(spec, dtype=torch.float64).load(weights)


@pytest.mark.parametrize("name", BIASED_MODELS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_families(name, tmp_path):
    row = BIASED_MODELS[name]
    model = row.save(tmp_path)
    first = block_of(tmp_path, model, row, 0)
    calls = run(model, row, first.spec.causal)
    for layer in row.layers:
        block = block_of(tmp_path, model, row, layer)
        assert block.spec.bias
        assert_equal(block, calls, layer, row.float32, own_positions=False)
