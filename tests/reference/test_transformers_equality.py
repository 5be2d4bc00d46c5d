"""The reference block in float64 against transformers' own attention layer in float64, family by family.

transformers saves a tiny model; portpe reads the folder (config, then weights) and runs each layer on the hidden
states that transformers' layer saw, with transformers' float32 tables. Prefill of a left-padded batch, then a chunk
and two decode steps from each side's own cache.
"""

import itertools
import re
from dataclasses import replace

import pytest
import torch
import transformers

import portpe
from portpe.checkpoint import load_layer
from portpe.config import read
from portpe.encodings import PerSequenceRegime, RotaryEncoding
from portpe.errors import SpecError
from portpe.reference import Attention
from portpe.spec import AttentionSpec
from portpe.tables import table_set
from tests.reference.absolute_models import ABSOLUTE_MODELS
from tests.reference.biased_models import BIASED_MODELS, GRID_MODELS
from tests.reference.decoder_models import DECODERS
from tests.reference.relative_models import RELATIVE_MODELS
from tests.reference.sam_towers import SAM_TOWERS
from tests.reference.test_detection_equality import MODELS as DETECTORS
from tests.reference.test_image_equality import MODELS as IMAGE_MODELS
from tests.reference.test_whole_table_equality import WHOLE
from tests.reference.transformers_model import Model
from tests.reference.transformers_models import LENGTH_DEPENDENT, ROPES, rope_model
from tests.reference.transformers_models import MODELS as FIRST_MODELS
from tests.reference.transformers_runs import OFFSETS, TYPED, forward, run, stack_of

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

MODELS = {**FIRST_MODELS, **DECODERS}
# After their first layer, if at all: norms stand behind.
NO_INPUT_NORM = (*TYPED, "olmo2", "olmo3", "exaone4", "flex_olmo", "olmo_hybrid", "roformer")
ROUNDED_LAYER_NORMS = ("cohere", "cohere2", "cohere2_moe", "olmo")  # in float32, whatever comes in
CHUNKS = (8, 4, 1, 1)  # windows of 5 are crossed in the first
TABLE_ROWS = 64
U32 = 2.0**-24  # unit roundoff of float32


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
    the output by |W_o| times the sum of that times |v|. ``v``: a norm of values, 8 u. ``gate``: the output gate,
    which multiplies that.
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
    if "v" in float32:
        context += 8 * U32 * stages["probs"] @ v
    if spec.output_gate is not None:
        factor = (stages["gated"] / stages["context"]).abs()
        context = context * factor
        if "gate" in float32:  # a sigmoid of x, rounded, is off by its share |x| u and a few u
            context += U32 * (torch.logit(factor).abs() + 4) * stages["gated"].abs()
    return context.transpose(1, 2).flatten(2) @ block.o_proj.weight.abs().T


def assert_equal(
    block: Attention,
    calls,
    layer: int,
    float32: tuple[str, ...],
    own_positions: bool,
    spread: float = 1.5,
    widest: float = 5e-5,
):
    seen_scores = []
    for call, stages in stages_of_calls(block, calls, layer, own_positions):
        got, expected = stages["output"], call.layers[layer][1]
        kept = call.mask[:, -got.shape[1] :].bool()
        error = (got - expected).abs()[kept]
        size = expected.abs()[kept].max()
        assert size > 0.1
        bound = 1e-12 * size + float32_bound(block, stages, float32)[kept]
        assert (bound < widest * size).all(), f"{(bound / size).max():.2e}: a bound this wide would hide a fault"
        assert (error <= bound).all(), f"{got.shape[1]} rows: off by {(error / size).max():.2e} of the largest"
        seen_scores.append(stages["scores"][stages["probs"] > 0])
    assert torch.cat(seen_scores).std() > spread, "the weights are too narrow to show a fault"


@pytest.mark.parametrize("name", MODELS)
def test_families(name, tmp_path):
    row = MODELS[name]
    model = row.save(tmp_path)
    calls = run(model, row, CHUNKS)
    for layer in row.layers:
        block = block_of(tmp_path, model, row, layer)
        assert_equal(block, calls, layer, row.float32, row.takes_positions, row.spread, row.widest)


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


@pytest.mark.parametrize("name", [name for name in ROPES if name.split()[0] in LENGTH_DEPENDENT])
def test_each_length_is_that_of_one_forward(name, tmp_path):
    """Whole sequences on both sides of the trained length, in rising order, so that nothing sticks: by each row's
    length they are transformers' own, layer by layer.
    """
    row = replace(rope_model(name), padded=False)
    model = row.save(tmp_path)
    for layer in row.layers:
        whole = block_of(tmp_path, model, row, layer).spec
        rotary = RotaryEncoding(**{**dict(whole.rotary), "regime": PerSequenceRegime()})
        spec = whole.model_copy(update={"rotary": rotary})
        weights = load_layer(tmp_path, spec, model_type=model.config.model_type, layer=layer, part=row.part)
        block = Attention(spec, dtype=torch.float64).load(weights)
        for length in (15, 16, 17, 23):
            assert_equal(block, forward(row.build().double(), row, (length,)), layer, (), own_positions=True)


def test_rope_types_give_other_outputs_each(tmp_path):
    """No two rows of the table are one: each key that is set moves transformers' own output."""
    outputs = {}
    for name in ROPES:
        row = rope_model(name)
        (call,) = forward(row.save(tmp_path / name), row, (20,))
        outputs[name] = call.layers[0][1][call.mask.bool()]
    for (first, one), (second, other) in itertools.combinations(outputs.items(), 2):
        assert (one - other).abs().max() > 1e-3 * one.abs().max(), f"{first} and {second} are one"


# A bare EXAONE is saved under Llama's names, which no published one has.
@pytest.mark.parametrize("name", [name for name in MODELS if name != "exaone"])
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


@pytest.mark.parametrize("name", MODELS)
def test_input_norms(name, tmp_path):
    """With the norm before it included, a later layer's block takes what transformers' layer takes."""
    row = MODELS[name]
    model = row.save(tmp_path)
    family, layer = model.config.model_type, row.layers[-1]
    if family in NO_INPUT_NORM or name == "opt norm after":
        with pytest.raises(SpecError, match="no norm stands before its attention"):
            read(tmp_path, layer=layer, part=row.part, input_norm=True)
        return
    spec = read(tmp_path, layer=layer, part=row.part, input_norm=True).spec
    weights = load_layer(tmp_path, spec, model_type=family, layer=layer, part=row.part)
    block = Attention(spec, dtype=torch.float64).load(weights)
    seen = []
    stack = stack_of(model, row)
    place = {  # a stack that runs in cycles; a layer whose norm takes a mixture of several streams
        "hrm_text": r"H_module\.layers\.0$",
        "gemma3n_text": rf"layers\.{layer}\.input_layernorm$",
        "hy_v4": rf"layers\.{layer}\.input_layernorm$",
    }.get(family, rf"(^|\.)(layers|h|blocks)\.{layer}$")
    numbered = [m for n, m in stack.named_modules() if re.search(place, n)]
    assert len(numbered) == 1
    numbered[0].register_forward_pre_hook(
        lambda _, args, named: seen.append(args[0] if args else named["hidden_states"]), with_kwargs=True
    )
    call = run(model, row, (8,))[0]
    got = block.stages(torch.nan_to_num(seen[0]), call.positions, call.mask)["normed"]
    kept = call.mask.bool()
    expected = call.layers[layer][0][kept]
    # 48 channels: mean, root, quotient and weight in float32, where transformers' norm turns to it
    roundings = 16 * U32 if spec.input_norm.kind == "rms" or family in ROUNDED_LAYER_NORMS else 1e-14
    assert ((got[kept] - expected).abs() <= roundings * expected.abs().max()).all()


def test_every_family_of_the_weight_table_is_compared():
    from portpe.config.weight_names import ROWS
    from tests.reference.axes_models import CASES as AXES_CASES
    from tests.reference.test_axis_tables import MODELS as AXIS_TABLE_MODELS
    from tests.reference.test_layout_equality import MODELS as LAYOUT_MODELS
    from tests.reference.test_wavlm import MODELS as WAVLM_MODELS

    rows = [*MODELS.values(), *ABSOLUTE_MODELS.values(), *BIASED_MODELS.values(), *GRID_MODELS.values()]
    rows += RELATIVE_MODELS.values()
    families = {row.configuration.model_type for row in rows}
    families |= {name.split()[0] for name in IMAGE_MODELS}
    families |= {name.split()[0] for name in LAYOUT_MODELS}
    families |= {getattr(transformers, row.cls).config_class.model_type for row in WHOLE.values()}
    families |= {name.split()[0] for name in DETECTORS}
    families |= {"kimi_k2", *AXES_CASES}  # kimi_k2: deepseek_v3 by another name
    families.add("nemotron_asr_streaming_encoder")  # Parakeet's layers, whose chunks a spec does not hold
    families |= {name.split()[0] for name in (*SAM_TOWERS, *AXIS_TABLE_MODELS, *WAVLM_MODELS)}
    assert families == {name.split()[0] for name in ROWS}


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
