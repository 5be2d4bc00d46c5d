"""The reference block in float64 against transformers' own attention layer in float64, family by family.

transformers saves a tiny model; portpe reads the folder (config, then weights) and runs each layer on the hidden
states that transformers' layer saw, with transformers' float32 tables. Prefill of a left-padded batch, then a chunk
and two decode steps from each side's own cache.
"""

import itertools

import numpy as np
import pytest
import torch
import transformers

import portpe
from portpe.checkpoint import load_layer
from portpe.reference import Attention
from portpe.spec import AttentionSpec
from portpe.tables import table_set
from tests.reference.transformers_models import LENGTH_DEPENDENT, MODELS, ROPES, Model, rope_model

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

PADS = (0, 3, 1)
OFFSETS = (5, 0, 11)  # first positions: position_ids that are no arange of the slots
CHUNKS = (8, 4, 1, 1)  # windows of 5 are crossed in the first
TABLE_ROWS = 64
U32 = 2.0**-24  # unit roundoff of float32


# --- transformers' side --------------------------------------------------------------------


class Record:
    """What the bounding modules saw in one forward, in call order: layers that share modules come one by one."""

    def __init__(self, model, row: Model):
        self.inputs, self.outputs = [], []
        for name, module in model.named_modules():
            if name.endswith(row.query):
                module.register_forward_hook(lambda _, args, __: self.inputs.append(args[0].detach()))
            if name.endswith(row.output):
                module.register_forward_hook(self._output)

    def _output(self, _, __, output):
        """bloom and mpt mask with float64's least number and then take a softmax in float32: a row that sees no key
        (a pad) is NaN, and would be a NaN key of the next layer, whose product with a weight of 0 is NaN everywhere."""
        self.outputs.append(output.detach())
        return torch.nan_to_num(output)

    def take(self):
        taken = list(zip(self.inputs, self.outputs, strict=True))
        self.inputs.clear()
        self.outputs.clear()
        return taken


def gpt2_states(model, ids, types):
    return model.transformer.wte(ids)


def opt_states(model, ids, types):
    decoder = model.model.decoder
    embedded = decoder.embed_tokens(ids)
    return embedded if decoder.project_in is None else decoder.project_in(embedded)


def bert_states(model, ids, types):
    embeddings = model.base_model.embeddings
    return embeddings.word_embeddings(ids) + embeddings.token_type_embeddings(types)


# What a block with an embedding site takes: token (and token type) embeddings before the position's.
EMBEDDED = {"gpt2": gpt2_states, "opt": opt_states, "bert": bert_states, "roberta": bert_states, "albert": bert_states}
ENCODERS = ("bert", "roberta", "albert")


class Call:
    """One forward: its mask (B, past + S), positions (B, S), and by layer hidden states and transformers' output."""

    def __init__(self, mask, positions, layers):
        self.mask, self.positions, self.layers = mask, positions, layers


def forward(model, row: Model, chunks, offsets=OFFSETS):
    """transformers' calls, one a chunk, with its own cache."""
    family, record = model.config.model_type, Record(model, row)
    rng = np.random.default_rng(7)
    total = sum(chunks)
    mask = torch.ones(len(PADS), total, dtype=torch.long)
    for batch, pads in enumerate(PADS):
        mask[batch, :pads] = 0
    ids = torch.from_numpy(rng.integers(3, 53, mask.shape)) * mask + model.config.pad_token_id * (1 - mask)
    types = torch.from_numpy(rng.integers(0, 2, mask.shape)) if family != "roberta" else torch.zeros_like(ids)
    positions = ((mask.cumsum(-1) - 1) + torch.tensor(offsets)[:, None] * row.takes_positions) * mask
    cache = None if family in ENCODERS else transformers.DynamicCache(config=model.config)
    calls, done = [], 0
    for size in chunks:
        now = slice(done, done + size)
        done += size
        more = {"position_ids": positions[:, now]} if row.takes_positions else {}
        if family in ENCODERS:
            more["token_type_ids"] = types[:, now]
        else:
            more |= {"cache": cache, "use_cache": True}
        with torch.no_grad():
            model(input_ids=ids[:, now], attention_mask=mask[:, :done], **more)
            layers = record.take()
            if family in EMBEDDED:
                layers[0] = (EMBEDDED[family](model, ids[:, now], types[:, now]), layers[0][1])
        calls.append(Call(mask[:, :done], positions[:, now], layers))
    return calls


def whisper_forward(model, row: Model):
    """The encoder, which has neither mask nor cache; its block begins after the convolutions."""
    encoder = model.model.encoder
    record = Record(encoder, row)
    length = model.config.max_source_positions
    sound = torch.from_numpy(np.random.default_rng(7).normal(size=(2, model.config.num_mel_bins, 2 * length)))
    with torch.no_grad():
        encoder(sound)
        gelu = torch.nn.functional.gelu
        embedded = gelu(encoder.conv2(gelu(encoder.conv1(sound)))).permute(0, 2, 1)
    layers = record.take()
    layers[0] = (embedded, layers[0][1])
    return [Call(torch.ones(2, length, dtype=torch.long), torch.arange(length).expand(2, -1), layers)]


def run(model, row: Model, chunks, **more):
    if model.config.model_type == "whisper":
        return whisper_forward(model, row)
    return forward(model, row, (sum(chunks),) if model.config.model_type in ENCODERS else chunks, **more)


# --- portpe's side -------------------------------------------------------------------------


def block_of(folder, model, row: Model, layer: int) -> Attention:
    spec = portpe.load_spec(folder, layer=layer, part=row.part).with_precision("hf")
    weights = load_layer(folder, spec, model_type=model.config.model_type, layer=layer, part=row.part)
    tables = None if spec.length_dependent else table_set(spec, TABLE_ROWS)
    return Attention(spec, dtype=torch.float64, tables=tables).load(weights)


def stages_of_calls(block: Attention, calls, layer: int, own_positions: bool):
    """Every call's stages, from the block's own cache."""
    past_key = past_value = None
    for call in calls:
        stages = block.stages(
            call.layers[layer][0],
            call.positions if own_positions else None,
            call.mask,
            past_key=past_key,
            past_value=past_value,
        )
        if block.spec.causal:
            past_key, past_value = stages["present_key"], stages["present_value"]
        yield call, stages


def float32_bound(block: Attention, stages, float32: tuple[str, ...]) -> torch.Tensor:
    """How far an output may be off for what is computed in float32 (unit roundoff u).

    Scores are off by e_ij, the sum of what applies. ``qk``: a norm over n <= 48 channels (mean, division, square root,
    weight) and a rotation round each element of q and k some 8 times, so 16 u scale sum |q||k|. ``softmax``: scores are
    rounded once, u |s|, and the weights' own sum makes (T + 4) u more. ``bias``: slope and product are rounded, 2 u
    times the farthest key's bias. To first order a softmax's weight p_ij then moves by p_ij (e_ij + sum p_ij e_ij), and
    the output by |W_o| times the sum of that times |v|.
    """
    spec = block.spec
    group = spec.num_heads // spec.num_kv_heads
    q, k = stages.get("q_rotated", stages["q"]), stages["present_key"].repeat_interleave(group, dim=1)
    v = stages["present_value"].abs().repeat_interleave(group, dim=1)
    errors = torch.zeros_like(stages["scores"])
    if "qk" in float32:
        errors += 16 * spec.scale * q.abs() @ k.abs().transpose(-1, -2)
    if "softmax" in float32:
        errors += stages["scores"].abs() + (k.shape[2] + 4) / 2
    if "bias" in float32:
        bias = stages["scores"] - spec.scale * q @ k.transpose(-1, -2)
        errors += 2 * bias.abs().amax((-2, -1), keepdim=True)
    moved = errors + (stages["probs"] * errors).sum(-1, keepdim=True)
    context = U32 * (stages["probs"] * moved) @ v
    return context.transpose(1, 2).flatten(2) @ block.o_proj.weight.abs().T


def assert_equal(block: Attention, calls, layer: int, float32: tuple[str, ...], own_positions: bool):
    seen_scores = []
    for call, stages in stages_of_calls(block, calls, layer, own_positions):
        got, expected = stages["output"], call.layers[layer][1]
        kept = call.mask[:, -got.shape[1] :].bool()
        error = (got - expected).abs()[kept]
        size = expected.abs()[kept].max()
        assert size > 0.1
        bound = 1e-12 * size + float32_bound(block, stages, float32)[kept]
        assert (bound < 5e-5 * size).all(), "a bound this wide would hide a fault"
        assert (error <= bound).all(), f"{got.shape[1]} rows: off by {(error / size).max():.2e} of the largest"
        seen_scores.append(stages["scores"][stages["probs"] > 0])
    assert torch.cat(seen_scores).std() > 1.5, "the weights are too narrow to show a fault"


# --- tests ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_families(name, tmp_path):
    row = MODELS[name]
    model = row.save(tmp_path)
    calls = run(model, row, CHUNKS)
    for layer in row.layers:
        assert_equal(block_of(tmp_path, model, row, layer), calls, layer, row.float32, row.takes_positions)


@pytest.mark.parametrize("name", ROPES)
def test_rope_types(name, tmp_path):
    """Past the trained length; a type that follows the length in one forward, and also within that length."""
    row = rope_model(name)
    model = row.save(tmp_path)
    follows = name.split()[0] in LENGTH_DEPENDENT
    for chunks, offsets in (((9,), (0, 2, 1)), ((20,), (0, 2, 1))) if follows else ((CHUNKS, OFFSETS),):
        calls = forward(model, row, chunks, offsets)
        for layer in row.layers:
            assert_equal(block_of(tmp_path, model, row, layer), calls, layer, (), own_positions=True)


def test_rope_types_give_other_outputs_each(tmp_path):
    """No two rows of the table are one: each key that is set moves transformers' own output."""
    outputs = {}
    for name in ROPES:
        row = rope_model(name)
        (call,) = forward(row.save(tmp_path / name), row, (20,))
        outputs[name] = call.layers[0][1][call.mask.bool()]
    for (first, one), (second, other) in itertools.combinations(outputs.items(), 2):
        assert (one - other).abs().max() > 1e-3 * one.abs().max(), f"{first} and {second} are one"


@pytest.mark.parametrize("name", MODELS)
def test_bare_models_and_models_with_a_head_hold_the_same_layer(name, tmp_path):
    row = MODELS[name]
    model = row.build()
    model.save_pretrained(tmp_path / "head")
    model.base_model.save_pretrained(tmp_path / "bare")
    for layer in row.layers:
        loaded = []
        for folder in (tmp_path / "head", tmp_path / "bare"):
            spec = portpe.load_spec(folder, layer=layer, part=row.part)
            loaded.append(load_layer(folder, spec, model_type=model.config.model_type, layer=layer, part=row.part))
        head, bare = loaded
        assert head.keys() == bare.keys()
        assert all(head[key].tobytes() == bare[key].tobytes() for key in head)


def test_every_family_of_the_weight_table_is_compared():
    from portpe.config.weight_names import ROWS

    families = {getattr(transformers, row.cls).config_class.model_type for row in MODELS.values()}
    assert families == set(ROWS)


def test_the_comparison_sees_a_wrong_spec(tmp_path):
    """The same assertion fails for another theta, pairing, window or scale."""
    row = MODELS["mistral window"]
    model = row.save(tmp_path)
    calls = run(model, row, CHUNKS)
    right = portpe.load_spec(tmp_path, layer=0).with_precision("hf")
    weights = load_layer(tmp_path, right, model_type="mistral", layer=0)
    assert right.rotary is not None
    theta = right.rotary.schedule.model_copy(update={"rope_theta": 10001.0})
    wrong: list[AttentionSpec] = [
        right.model_copy(update={"rotary": right.rotary.model_copy(update={"schedule": theta})}),
        right.model_copy(update={"rotary": right.rotary.model_copy(update={"pairing": "interleaved"})}),
        right.model_copy(update={"window": 6}),
        right.model_copy(update={"scale": right.scale * (1 + 1e-9)}),
    ]
    for spec in wrong:
        block = Attention(spec, dtype=torch.float64, tables=table_set(spec, TABLE_ROWS)).load(weights)
        with pytest.raises(AssertionError, match="off by"):
            assert_equal(block, calls, 0, (), own_positions=True)
