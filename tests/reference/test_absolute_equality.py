"""The reference block in float64 against transformers' own layer in float64: families with an embedding site."""

import contextlib
import inspect
import operator

import numpy as np
import pytest
import torch
import transformers

import portpe
from portpe.checkpoint import load_layer
from portpe.reference import Attention
from portpe.tables import table_set
from tests.reference.absolute_models import ABSOLUTE_MODELS, HIDDEN, Absolute
from tests.reference.test_transformers_equality import assert_equal
from tests.reference.transformers_runs import Call

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

PADS = (0, 3, 1)
SLOTS = 9
OFFSETS = (5, 0, 11)
TABLE_ROWS = 30


class Seen:
    """What came through the modules that bound attention and the embeddings, in call order."""

    def __init__(self, stack, row: Absolute):
        self.inputs, self.outputs, self.rows, self.sums = [], [], [], []
        for name, module in stack.named_modules():
            if name.endswith(row.query):
                self._take_input(module, self.inputs)
            if name.endswith(row.output):
                module.register_forward_hook(lambda _, __, output: self.outputs.append(_first(output)))
            if name.endswith(row.table):
                module.register_forward_hook(lambda _, __, output: self.rows.append(_first(output)))
            if name.endswith(row.summed or row.query):
                self._take_input(module, self.sums)

    @staticmethod
    def _take_input(module, into):
        def hook(_, args, named):
            into.append((args[0] if args else named["hidden_states"]).detach())

        module.register_forward_pre_hook(hook, with_kwargs=True)


def _first(output):
    """I-BERT's modules give a scaling factor besides."""
    return (output[0] if isinstance(output, tuple) else output).detach()


def inputs_of(model, stack, row: Absolute, mask):
    rng = np.random.default_rng(7)
    ids = torch.from_numpy(rng.integers(5, 53, mask.shape)) * mask + model.config.pad_token_id * (1 - mask)
    takes = inspect.signature(stack.forward).parameters
    given = {"input_ids": ids}
    if "attention_mask" in takes:
        given["attention_mask"] = mask
    if "encoder_hidden_states" in takes and row.part == "decoder":
        given["encoder_hidden_states"] = torch.from_numpy(rng.normal(size=(len(PADS), 7, HIDDEN)))
    if "decoder_causal_mask" in takes:  # FSMT's decoder wants its masks made
        later = torch.full((SLOTS, SLOTS), -torch.inf, dtype=torch.float64).triu(1)
        given |= {"encoder_padding_mask": None, "decoder_padding_mask": mask == 0, "decoder_causal_mask": later}
    if "visual_feats" in takes:
        seen = rng.normal(size=(len(PADS), 3, model.config.visual_feat_dim))
        given |= {"visual_feats": torch.from_numpy(seen), "visual_pos": torch.from_numpy(rng.random((len(PADS), 3, 4)))}
    if "use_cache" in takes:
        given["use_cache"] = False
    return given


@contextlib.contextmanager
def default_float64():
    """XGLM makes the least number of the scores' type as a tensor of the default type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def positions_of(row: Absolute, mask):
    """The numbers that transformers gives tokens by itself, or those that it is given."""
    if row.counts == "slots":
        return torch.arange(mask.shape[1]).expand(len(mask), -1)
    return ((mask.cumsum(-1) - 1) + torch.tensor(OFFSETS)[:, None] * (row.counts == "given")) * mask


def run(model, row: Absolute) -> list[Call]:
    """One prefill of a left-padded batch: hidden states and outputs of each layer."""
    stack = operator.attrgetter(row.stack)(model) if row.stack else model
    mask = torch.ones(len(PADS), SLOTS, dtype=torch.long)
    for batch, pads in enumerate(PADS):
        mask[batch, SLOTS - pads if row.right else 0 : SLOTS if row.right else pads] = 0
    seen, given = Seen(stack, row), inputs_of(model, stack, row, mask)
    positions = positions_of(row, mask)
    if row.counts == "given":
        given["position_ids"] = positions
    with torch.no_grad(), default_float64():
        stack(**given)
    turn = (lambda x: x.transpose(0, 1)) if row.sequence_first else (lambda x: x)
    layers = [(turn(x)[:, :SLOTS], turn(y)[:, :SLOTS]) for x, y in zip(seen.inputs, seen.outputs, strict=True)]
    rows = seen.rows[0]
    added = rows if rows.shape[-2] == SLOTS else rows[..., :SLOTS, :]
    layers[0] = (turn(seen.sums[0])[:, :SLOTS] - added, layers[0][1])
    return [Call(mask, positions, layers)]


def block_of(folder, model, row: Absolute, layer: int, scaled: float) -> Attention:
    spec = portpe.load_spec(folder, layer=layer, part=row.part)
    spec = spec if row.exact else spec.with_precision("hf")
    weights = load_layer(folder, spec, model_type=model.config.model_type, layer=layer, part=row.part)
    return Attention(spec, dtype=torch.float64, tables=None if row.exact else table_set(spec, TABLE_ROWS)).load(weights)


@pytest.mark.parametrize("name", ABSOLUTE_MODELS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_families(name, tmp_path):
    row = ABSOLUTE_MODELS[name]
    model = row.save(tmp_path)
    calls = run(model, row)
    for layer in row.layers:
        block = block_of(tmp_path, model, row, layer, 1.0)
        if layer == 0:
            assert block.spec.embedding is not None
            hidden, output = calls[0].layers[0]
            calls[0].layers[0] = (hidden / (block.spec.embed_scale or 1.0), output)
        assert_equal(block, calls, layer, row.float32, row.counts != "mask")
