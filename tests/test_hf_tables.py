"""``precision="hf"`` against transformers' own modules: the same float32 bits, before any cast."""

import importlib

import mpmath
import numpy as np
import pytest
import torch
import transformers

from portpe import hf_tables, schedules, tables
from portpe.encodings import (
    DefaultSchedule,
    DynamicSchedule,
    FixedRegime,
    LinearSchedule,
    Llama3Schedule,
    LongropeSchedule,
    NtkByPartsSchedule,
    NtkSchedule,
    PerSequenceRegime,
    ProportionalSchedule,
    RotaryEncoding,
    YarnSchedule,
)
from portpe.errors import SpecError
from portpe.spec import AttentionSpec

TRAINED = 320
FAMILIES = {
    # name: (config class, rotary class, its config takes head_dim)
    "llama": ("LlamaConfig", "LlamaRotaryEmbedding", True),
    "mistral": ("MistralConfig", "MistralRotaryEmbedding", True),
    "qwen2": ("Qwen2Config", "Qwen2RotaryEmbedding", False),
    "qwen3": ("Qwen3Config", "Qwen3RotaryEmbedding", True),
    "phi": ("PhiConfig", "PhiRotaryEmbedding", False),
    "phi3": ("Phi3Config", "Phi3RotaryEmbedding", False),
    "gemma": ("GemmaConfig", "GemmaRotaryEmbedding", True),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXRotaryEmbedding", False),
    "cohere": ("CohereConfig", "CohereRotaryEmbedding", False),
    "glm": ("GlmConfig", "GlmRotaryEmbedding", True),
    "glm4": ("Glm4Config", "Glm4RotaryEmbedding", True),
    "olmo2": ("Olmo2Config", "Olmo2RotaryEmbedding", False),
    "gpt_oss": ("GptOssConfig", "GptOssRotaryEmbedding", True),
    "falcon": ("FalconConfig", "FalconRotaryEmbedding", False),
}
PARTIAL = {"phi": 0.5, "phi3": 0.75, "gpt_neox": 0.25, "glm": 0.5, "glm4": 0.5}  # these read it for every rope type


def module_of(family, rope_parameters, head_dim):
    """transformers' rotary module of a tiny model, 3 heads of head_dim."""
    config_name, rotary_name, takes_head_dim = FAMILIES[family]
    keys = {
        "hidden_size": 3 * head_dim,
        "num_attention_heads": 3,
        "num_hidden_layers": 1,
        "vocab_size": 17,
        "pad_token_id": 0,
        "max_position_embeddings": TRAINED,
        "rope_parameters": dict(rope_parameters),
    }
    if family in PARTIAL:
        keys["rope_parameters"]["partial_rotary_factor"] = PARTIAL[family]
    if takes_head_dim:
        keys["head_dim"] = head_dim
    if family == "phi3":
        keys["original_max_position_embeddings"] = rope_parameters.get("original_max_position_embeddings", TRAINED)
    config = getattr(transformers, config_name)(**keys)
    assert config.rope_parameters["rope_type"] == rope_parameters["rope_type"]
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    return getattr(module, rotary_name)(config)


def width_of(family, head_dim):
    return int(head_dim * PARTIAL.get(family, 1.0))


def their_numbers(module, family, positions):
    """inv_freq (R/2,), cos and sin (B, S, R/2) in float32; both copies of a pair's number must be equal."""
    cos, sin = module(torch.zeros(1), torch.from_numpy(positions))
    assert cos.dtype == sin.dtype == torch.float32
    halves = []
    for both in (cos.numpy(), sin.numpy()):
        if family == "gpt_oss":
            halves.append(both)
            continue
        first, second = (both[..., ::2], both[..., 1::2]) if family == "cohere" else np.split(both, 2, axis=-1)
        assert np.array_equal(first, second)
        halves.append(first)
    return module.inv_freq.numpy(), *halves


def assert_same_bits(family, rope_parameters, schedule, head_dim, positions, **keys):
    width = width_of(family, head_dim)
    rotary = RotaryEncoding(width=width, schedule=schedule, precision="hf", **keys)
    seq_len = int(positions.max()) + 1
    inv_freq, cos, sin = their_numbers(module_of(family, rope_parameters, head_dim), family, positions)
    ours = hf_tables.inv_freq(rotary, seq_len).numpy()
    assert ours.dtype == inv_freq.dtype == np.float32
    assert np.array_equal(ours, inv_freq)
    our_cos, our_sin = hf_tables.cos_sin(rotary, positions, seq_len)
    assert our_cos.dtype == our_sin.dtype == np.float32
    assert np.array_equal(our_cos, cos)
    assert np.array_equal(our_sin, sin)


# Two rows of positions: neither sorted nor consecutive, the trained length, past it, far out.
POSITIONS = np.array([[0, 7, TRAINED - 1, 131071, 5], [TRAINED, 3, 1_000_000, 2048, TRAINED + 1]])
WITHIN = np.array([[0, 9, 4, 17], [TRAINED - 1, 2, 300, 3]])


def divisors(width, step):
    return tuple(1.0 + step * i**1.2 for i in range(width // 2))


def settings_of(kind, width):
    """(rope_parameters, schedule) pairs of a rope type; ints and floats as configs write them."""
    yarn = {"factor": 4.0, "original_max_position_embeddings": 80, "rope_theta": 150000.0}
    llama3 = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
        "rope_theta": 500000.0,
    }
    longrope = {
        "short_factor": divisors(width, 0.01),
        "long_factor": divisors(width, 0.3),
        "original_max_position_embeddings": 64,
        "rope_theta": 10000.0,
    }
    as_lists = {
        **longrope,
        "short_factor": list(longrope["short_factor"]),
        "long_factor": list(longrope["long_factor"]),
    }
    dynamic = {"factor": 2.0, "rope_theta": 10000.0}
    return {
        "default": [
            ({"rope_theta": 10000}, DefaultSchedule()),
            ({"rope_theta": 1e6}, DefaultSchedule(rope_theta=1e6)),
            ({"rope_theta": 25000000}, DefaultSchedule(rope_theta=25000000.0)),
        ],
        "linear": [({"rope_theta": 10000.0, "factor": 2.7}, LinearSchedule(factor=2.7))],
        "dynamic": [
            (dynamic, DynamicSchedule(max_position_embeddings=TRAINED, **dynamic)),
            ({**dynamic, "factor": 3}, DynamicSchedule(max_position_embeddings=TRAINED, factor=3.0)),
            ({**dynamic, "factor": 1.3}, DynamicSchedule(max_position_embeddings=TRAINED, factor=1.3)),
        ],
        "yarn": [
            (yarn, YarnSchedule(**yarn)),
            ({**yarn, "truncate": False}, YarnSchedule(**yarn, truncate=False)),
            ({**yarn, "beta_fast": 16, "beta_slow": 2}, YarnSchedule(**yarn, beta_fast=16.0, beta_slow=2.0)),
            (
                {**yarn, "beta_fast": 3, "beta_slow": 3, "truncate": False},
                YarnSchedule(**yarn, beta_fast=3.0, beta_slow=3.0, truncate=False),
            ),
            ({**yarn, "mscale": 0.707, "mscale_all_dim": 1.0}, YarnSchedule(**yarn, mscale=0.707, mscale_all_dim=1.0)),
        ],
        "longrope": [
            ({**as_lists, "factor": 4.0}, LongropeSchedule(factor=4.0, **longrope)),
            (as_lists, LongropeSchedule(factor=TRAINED / 64, **longrope)),
        ],
        "llama3": [
            (llama3, Llama3Schedule(**llama3)),
            # no power of two anywhere, so that no two orders of operations round alike
            (
                {**llama3, "factor": 6.7, "low_freq_factor": 0.3, "high_freq_factor": 4.9},
                Llama3Schedule(**{**llama3, "factor": 6.7, "low_freq_factor": 0.3, "high_freq_factor": 4.9}),
            ),
            ({**llama3, "high_freq_factor": 1.0}, Llama3Schedule(**{**llama3, "high_freq_factor": 1.0})),  # a step
        ],
        "proportional": [
            (
                {"rope_theta": 1e6, "partial_rotary_factor": 0.25},
                ProportionalSchedule(rope_theta=1e6, partial_rotary_factor=0.25),
            ),
            (
                {"rope_theta": 1e6, "partial_rotary_factor": 0.5, "factor": 8.0},
                ProportionalSchedule(rope_theta=1e6, partial_rotary_factor=0.5, factor=8.0),
            ),
        ],
    }[kind]


ROPE_TYPES = ["default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional"]


def test_every_rope_type_of_transformers_is_here():
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    assert {"default", *ROPE_INIT_FUNCTIONS} == set(ROPE_TYPES)


@pytest.mark.parametrize("kind", ROPE_TYPES)
@pytest.mark.parametrize("head_dim", [16, 20, 64, 80, 96, 128, 192])
def test_every_rope_type_bit_for_bit(kind, head_dim):
    for parameters, schedule in settings_of(kind, head_dim):
        for positions in (POSITIONS, WITHIN):
            assert_same_bits("llama", {"rope_type": kind, **parameters}, schedule, head_dim, positions)


FAMILY_TYPES = [
    (family, kind)
    for family in FAMILIES
    for kind in ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
    if family != "phi3" or kind in ("default", "longrope")  # Phi-3's config takes no other
]


@pytest.mark.parametrize(("family", "kind"), FAMILY_TYPES)
def test_every_family_bit_for_bit(family, kind):
    head_dim = 96
    for parameters, schedule in settings_of(kind, width_of(family, head_dim)):
        for positions in (POSITIONS, WITHIN):
            assert_same_bits(family, {"rope_type": kind, **parameters}, schedule, head_dim, positions)


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_a_given_attention_factor_is_multiplied_in_float32(family):
    parameters = {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 150000.0,
        "attention_factor": 0.83,
    }
    schedule = YarnSchedule(factor=32.0, original_max_position_embeddings=64, rope_theta=150000.0)
    assert_same_bits(family, parameters, schedule, 64, POSITIONS, attention_factor=0.83)


@pytest.mark.parametrize("head_dim", [64, 96])
def test_a_yarn_ramp_of_no_width_is_a_thousandth_wide(head_dim):
    turns = 80 / (2 * np.pi) * 150000.0 ** (-2 * (1 - 0.0004) / head_dim)  # starts 0.0004 before pair 1
    keys = {
        "factor": 4.0,
        "original_max_position_embeddings": 80,
        "rope_theta": 150000.0,
        "beta_fast": float(turns),
        "beta_slow": float(turns),
        "truncate": False,
    }
    assert_same_bits("llama", {"rope_type": "yarn", **keys}, YarnSchedule(**keys), head_dim, POSITIONS)


@pytest.mark.parametrize("length", [1, 319, 320, 321, 322, 640, 4096, 1_000_001])
def test_dynamic_at_each_side_of_the_trained_length(length):
    (parameters, schedule), *_ = settings_of("dynamic", 64)
    positions = np.array([[0, length - 1, length // 2]])
    assert_same_bits("llama", {"rope_type": "dynamic", **parameters}, schedule, 64, positions)


@pytest.mark.parametrize("length", [63, 64, 65, 320])
def test_longrope_at_each_side_of_the_original_length(length):
    (parameters, schedule), *_ = settings_of("longrope", 64)
    positions = np.array([[length - 1, 0]])
    assert_same_bits("llama", {"rope_type": "longrope", **parameters}, schedule, 64, positions)


@pytest.mark.parametrize(("family", "config"), [("gptj", "GPTJConfig"), ("codegen", "CodeGenConfig")])
@pytest.mark.parametrize("rotary_dim", [8, 20, 64])
def test_gptj_and_codegen_tables_bit_for_bit(family, config, rotary_dim):
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    sin, cos = np.split(module.create_sinusoidal_positions(2100, rotary_dim).numpy(), 2, axis=-1)
    spec = layer(
        rotary=RotaryEncoding(width=rotary_dim, pairing="interleaved", schedule=DefaultSchedule(), precision="hf")
    )
    made = hf_tables.table_set(spec, 2100)
    assert np.array_equal(made["cos"], cos)
    assert np.array_equal(made["sin"], sin)


def layer(**keys):
    sizes = {"hidden_size": 96, "num_heads": 6, "num_kv_heads": 2, "head_dim": 192, "v_head_dim": 5, "scale": 0.1}
    return AttentionSpec(**{**sizes, **keys})


def test_a_table_row_is_what_any_call_gives_for_its_position():
    """Rows must not depend on the portion, the order, the batch or the memory they are made in."""
    schedule = YarnSchedule(factor=4.0, original_max_position_embeddings=4096)
    rotary = RotaryEncoding(width=80, schedule=schedule, precision="hf")
    end = hf_tables._ROWS_AT_ONCE + 1237
    made = hf_tables.table_set(layer(rotary=rotary), end)
    assert made["cos"].shape == made["sin"].shape == (end, 40)
    module = module_of("llama", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 80)
    rng = np.random.default_rng(17)
    for shape in [(1, 1), (1, 2), (3, 5), (2, 33), (7, 129)]:
        positions = rng.integers(0, end, shape)
        _, cos, sin = their_numbers(module, "llama", positions)
        assert np.array_equal(made["cos"][positions], cos)
        assert np.array_equal(made["sin"][positions], sin)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_change_no_bit(threads):
    rotary = RotaryEncoding(width=96, schedule=DefaultSchedule(), precision="hf")
    positions = np.arange(9000)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        cos, _ = hf_tables.cos_sin(rotary, positions)
    finally:
        torch.set_num_threads(before)
    single = np.concatenate([hf_tables.cos_sin(rotary, positions[i : i + 7])[0] for i in range(0, 9000, 7)])
    assert np.array_equal(cos, single)


def test_sign_and_pairing_leave_the_bits_alone():
    plus, minus = (
        RotaryEncoding(width=20, schedule=DefaultSchedule(), precision="hf", sign=sign, pairing=pairing)
        for sign, pairing in ((1, "half"), (-1, "interleaved"))
    )
    (cos, sin), (other_cos, other_sin) = (hf_tables.cos_sin(r, np.arange(50)) for r in (plus, minus))
    assert np.array_equal(cos, other_cos)
    assert np.array_equal(-sin, other_sin)


def test_regime_fixes_the_length_of_a_table():
    (parameters, schedule), *_ = settings_of("dynamic", 64)
    rotary = RotaryEncoding(width=64, schedule=schedule, precision="hf", regime=FixedRegime(length=1000))
    made = tables.table_set(layer(rotary=rotary))
    module = module_of("llama", {"rope_type": "dynamic", **parameters}, 64)
    _, cos, _ = their_numbers(module, "llama", np.arange(1000)[None])
    assert np.array_equal(made["cos"], cos[0])
    with pytest.raises(SpecError, match="seq_len is required"):
        hf_tables.inv_freq(RotaryEncoding(width=64, schedule=schedule, precision="hf"))


# --- what transformers lacks ------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule",
    [
        NtkSchedule(factor=3.0),
        NtkByPartsSchedule(factor=4.0, original_max_position_embeddings=4096),
        NtkByPartsSchedule(factor=4.0, original_max_position_embeddings=4096, truncate=False),
        *[s for kind in ROPE_TYPES for _, s in settings_of(kind, 96)],
    ],
)
def test_float32_frequencies_are_near_the_exact_ones(schedule):
    rotary = RotaryEncoding(width=96, schedule=schedule)
    single, exact = hf_tables.inv_freq(rotary, 1500).double().numpy(), schedules.inv_freq(rotary, 1500)
    nonzero = exact > 0
    assert np.array_equal(single[~nonzero], exact[~nonzero])
    # llama3's ramp subtracts; a power's relative error grows with the exponent times ln(base).
    assert np.max(np.abs(single[nonzero] / exact[nonzero] - 1)) < 2e-6


def test_ntk_by_parts_is_yarn_without_a_temperature():
    keys = {"factor": 4.0, "original_max_position_embeddings": 4096}
    parts, yarn = (
        RotaryEncoding(width=96, schedule=s, precision="hf") for s in (NtkByPartsSchedule(**keys), YarnSchedule(**keys))
    )
    assert torch.equal(hf_tables.inv_freq(parts), hf_tables.inv_freq(yarn))
    assert (parts.magnitude, yarn.magnitude) == (1.0, pytest.approx(1.138629436111989))


def test_a_base_of_one_is_refused():
    schedule = YarnSchedule(rope_theta=1.0, factor=4.0, original_max_position_embeddings=64)
    with pytest.raises(SpecError, match="rope_theta must differ from 1"):
        hf_tables.inv_freq(RotaryEncoding(width=8, schedule=schedule))


def test_exact_calls_of_an_hf_encoding_give_the_float32_numbers():
    rotary = RotaryEncoding(width=96, schedule=DefaultSchedule(), precision="hf")
    positions = np.array([5, 131071, 1_000_000])
    for ours, theirs in zip(tables.cos_sin(rotary, positions), hf_tables.cos_sin(rotary, positions), strict=True):
        assert ours.dtype == np.float64
        assert np.array_equal(ours, theirs.astype(np.float64))
    made = tables.table_set(layer(rotary=rotary), 40)
    for looked_up, table in zip(tables.combine(made, positions[:1]), (made["cos"], made["sin"]), strict=True):
        assert np.array_equal(looked_up, table[[5]])


# --- the ledger of divergences: each test states both sides -----------------------------------


def test_transformers_forms_angles_in_float32():
    """Their table is off by 7e-3 at position 131072; ours, rounded once, is not."""
    theirs = their_numbers(
        module_of("llama", {"rope_type": "default", "rope_theta": 10000.0}, 128), "llama", np.array([[131072]])
    )[1]
    exact = tables.cos_sin(RotaryEncoding(width=128, schedule=DefaultSchedule()), np.array([131072]))[0]
    with mpmath.workdps(50):
        truth = [float(mpmath.cos(131072 * mpmath.mpf(10000) ** (-mpmath.mpf(i) / 64))) for i in range(64)]
    assert 3e-3 < np.max(np.abs(theirs[0, 0] - truth)) < 1e-2
    assert np.max(np.abs(exact[0] - truth)) < 1e-10


def test_transformers_dynamic_remembers_longer_requests():
    """A 500-token call gives other numbers after a 1000-token call; ours depends on its own length alone."""
    (parameters, schedule), *_ = settings_of("dynamic", 64)
    rotary = RotaryEncoding(width=64, schedule=schedule, precision="hf")
    short, long = np.arange(500)[None], np.arange(1000)[None]
    fresh = module_of("llama", {"rope_type": "dynamic", **parameters}, 64)
    _, cos, _ = their_numbers(fresh, "llama", short)
    assert np.array_equal(hf_tables.cos_sin(rotary, short, 500)[0], cos)
    used = module_of("llama", {"rope_type": "dynamic", **parameters}, 64)
    their_numbers(used, "llama", long)
    _, stale, _ = their_numbers(used, "llama", short)
    assert np.max(np.abs(stale - cos)) > 0.1
    hf_tables.cos_sin(rotary, long, 1000)
    assert np.array_equal(hf_tables.cos_sin(rotary, short, 500)[0], cos)


def test_transformers_dynamic_is_not_reset_by_a_call_of_the_trained_length():
    """Trained length, four times it, trained length: the third call keeps the second's numbers; one token less
    resets. Ours are a call's own, in any order.
    """
    (parameters, schedule), *_ = settings_of("dynamic", 64)
    trained, longer, shorter = (np.arange(n)[None] for n in (TRAINED, 4 * TRAINED, TRAINED - 1))
    module = module_of("llama", {"rope_type": "dynamic", **parameters}, 64)
    first, long, third, reset = (
        their_numbers(module, "llama", places)[1] for places in (trained, longer, trained, shorter)
    )
    assert np.array_equal(third, long[:, :TRAINED])
    assert np.max(np.abs(third - first)) > 0.1
    assert np.array_equal(reset, first[:, :-1])
    rotary = RotaryEncoding(width=64, schedule=schedule, precision="hf", regime=PerSequenceRegime())
    ours = [hf_tables.cos_sin(rotary, places, places.size)[0] for places in (trained, longer, trained)]
    assert np.array_equal(ours[0], first)
    assert np.array_equal(ours[1], long)
    assert np.array_equal(ours[2], first)


def test_transformers_yarn_loses_truncate_in_nested_parameters():
    """Per-layer-type rope_parameters: truncate is looked up one level too high, so false is ignored."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    yarn = {
        "rope_type": "yarn",
        "factor": 32.0,
        "rope_theta": 150000.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    }
    flat = transformers.LlamaConfig(hidden_size=192, num_attention_heads=3, head_dim=64, rope_parameters=dict(yarn))
    nested = transformers.Olmo3Config(
        hidden_size=192,
        num_attention_heads=3,
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
    )
    nested.rope_parameters = {
        "full_attention": dict(yarn),
        "sliding_attention": {"rope_type": "default", "rope_theta": 150000.0},
    }
    honoured, _ = ROPE_INIT_FUNCTIONS["yarn"](flat)
    ignored, _ = ROPE_INIT_FUNCTIONS["yarn"](nested, layer_type="full_attention")
    keys = {key: value for key, value in yarn.items() if key not in ("rope_type", "truncate")}
    ours = {
        truncate: hf_tables.inv_freq(RotaryEncoding(width=64, schedule=YarnSchedule(**keys, truncate=truncate)))
        for truncate in (False, True)
    }
    assert torch.equal(ours[False], honoured)
    assert torch.equal(ours[True], ignored)
    assert torch.max(torch.abs(ours[True] / ours[False] - 1)) > 0.7


def test_transformers_phimoe_keeps_the_short_factors():
    """PhiMoE recomputes its frequencies without the length: past the original one it stays short."""
    from transformers.models.phimoe.modeling_phimoe import PhimoeRotaryEmbedding

    short, long = divisors(64, 0.01), divisors(64, 0.3)
    config = transformers.PhimoeConfig(
        hidden_size=192,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=256,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": list(short),
            "long_factor": list(long),
            "short_mscale": 1.1,
            "long_mscale": 1.2,
            "original_max_position_embeddings": 64,
        },
    )
    positions = np.array([[0, 100, 200]])
    cos, _ = PhimoeRotaryEmbedding(config)(torch.zeros(1), torch.from_numpy(positions))
    schedule = LongropeSchedule(short_factor=short, long_factor=long, original_max_position_embeddings=64, factor=4.0)
    rotary = RotaryEncoding(width=64, schedule=schedule, attention_factor=1.2, precision="hf")
    assert np.array_equal(
        hf_tables.cos_sin(rotary, positions, 64)[0], cos[..., :32].numpy()
    )  # short, whatever the length
    both = schedule.model_copy(update={"short_mscale": 1.1, "long_mscale": 1.2})
    ours = RotaryEncoding(width=64, schedule=both, precision="hf", regime=PerSequenceRegime())
    assert ours.attention_factor == 1.0
    assert np.array_equal(hf_tables.cos_sin(ours, positions, 201)[0][0, 0], cos[0, 0, :32].numpy())  # 1.2 at position 0
    assert np.all(hf_tables.cos_sin(ours, positions, 64)[0][0, 0] == np.float32(1.1))
    assert np.max(np.abs(hf_tables.cos_sin(rotary, positions, 201)[0] - cos[..., :32].numpy())) > 0.5
