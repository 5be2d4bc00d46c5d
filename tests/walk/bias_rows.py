"""Families with a bias on the scores: one row a model_type and part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import portpe
from portpe.config import Reading
from tests.walk.row import Case, Row
from tests.walk.site_checks import slopes

ONE = torch.ones(1, 2, dtype=torch.long)  # of two keys the second is biased by exactly the slope


def bloom_slopes(case: Case, heads: int) -> torch.Tensor:
    return case.modeling.build_alibi_tensor(ONE, heads, torch.float32)[:, 0, 1]


def falcon_slopes(case: Case, heads: int) -> torch.Tensor:
    """Divided by sqrt(head_dim), as the scores are."""
    head_dim = case.config.hidden_size // case.config.num_attention_heads
    return case.modeling.build_alibi_tensor(ONE, heads, torch.float32)[:, 0, 1].double() / head_dim**0.5


def mpt_slopes(case: Case, heads: int) -> torch.Tensor:
    """Called as the model calls it: bias_max is never passed on."""
    return -case.modeling.build_mpt_alibi_tensor(heads, 2)[:, 0, 0]


@dataclass(frozen=True)
class Theirs:
    """What transformers' module has and makes of positions 0, 1, ...: ``bias`` (heads, queries, keys), the first query
    at ``first``; ``weights`` by canonical name.
    """

    weights: dict[str, torch.Tensor]
    bias: torch.Tensor
    first: int = 0


def trained(module: Callable[[Case, bool], Theirs]) -> Callable[[Case], None]:
    """``module`` (case, is it a decoder) makes a bias. Its numbers are looked up, so ours are the same bits."""

    def check(case: Case) -> None:
        for _, reading in case.layers():
            with torch.no_grad():
                theirs = module(case, reading.part != "encoder")
            heads, queries, keys = theirs.bias.shape
            spec = reading.spec.model_copy(update={"embedding": None})
            weights = {name: tensor.detach().numpy() for name, tensor in theirs.weights.items()}
            ours = portpe.tabulate(spec, np.arange(keys), weights=weights)["bias"]
            assert len(ours) == heads
            assert np.array_equal(ours[:, theirs.first : theirs.first + queries], theirs.bias.double().numpy())
            assert theirs.bias.std() > 0.5

    return check


def bucket_table(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {"relative_attention_bias.weight": module.relative_attention_bias.weight.normal_()}


def t5_attention(name: str) -> Callable[[Case, bool], Theirs]:
    def module(case: Case, decoder: bool) -> Theirs:
        case.config.is_decoder = decoder
        attention = getattr(case.modeling, name)(case.config, has_relative_attention_bias=True, layer_idx=0)
        return Theirs(bucket_table(attention), attention.compute_bias(LENGTH, LENGTH)[0])

    return module


def longt5_local(case: Case, decoder: bool) -> Theirs:
    """A block's queries meet the keys of three blocks, of which theirs is the second."""
    attention = case.modeling.LongT5LocalAttention(case.config, has_relative_attention_bias=True)
    block = case.config.local_radius + 1
    return Theirs(bucket_table(attention), attention.compute_bias(block)[0, 0], first=block)


def mpnet_encoder(case: Case, decoder: bool) -> Theirs:
    case.config.num_hidden_layers = 1
    encoder = case.modeling.MPNetEncoder(case.config)
    return Theirs(bucket_table(encoder), encoder.compute_position_bias(torch.empty(1, LENGTH, 1))[0])


LENGTH = 300  # past the largest distance of a bucket
BUCKETS = {"40 buckets": {"relative_attention_num_buckets": 40, "relative_attention_max_distance": 90}}


def t5(model_type: str, name: str, *parts: str) -> tuple[Row, ...]:
    check = trained(t5_attention(f"{name}Attention"))
    return tuple(Row(model_type, check, BUCKETS, part=part) for part in parts or ("encoder", "decoder"))


def offset_table(bias: Callable[[Case, Reading], tuple[torch.Tensor, torch.Tensor]]) -> Callable[[Case], None]:
    """``bias`` (case, reading) gives a table (rows, heads) and the bias (heads, cells, cells) that the module makes."""

    def check(case: Case) -> None:
        tables = 0
        for _, reading in case.layers():
            if not reading.spec.bias:
                continue
            tables += 1
            with torch.no_grad():
                table, theirs = bias(case, reading)
            (encoding,) = reading.spec.bias
            cells = np.indices(encoding.position_ends).reshape(2, -1)
            positions = np.pad(cells, ((0, 0), (encoding.prefix_tokens, 0)))
            weights = {"relative_position_bias_table": table.detach().numpy()}
            ours = portpe.tabulate(reading.spec, positions, weights=weights)["bias"]
            assert np.array_equal(ours, theirs.double().numpy())
            assert theirs.std() > 0.5
        assert tables or case.label == "default"

    return check


def swin_bias(case: Case, reading: Reading) -> tuple[torch.Tensor, torch.Tensor]:
    side = case.config.window_size
    module = case.modeling.SwinRelativePositionBias(reading.spec.num_heads, (side, side))
    table = module.relative_position_bias_table.normal_()
    return table, module()[0]


def swin_self(name: str) -> Callable[[Case, Reading], tuple[torch.Tensor, torch.Tensor]]:
    """The classes that have the table in the attention itself: what it adds to scores of 0."""

    def bias(case: Case, reading: Reading) -> tuple[torch.Tensor, torch.Tensor]:
        side, spec = case.config.window_size, reading.spec
        module = getattr(case.modeling, name)(case.config, spec.hidden_size, spec.num_heads, side)
        table = module.relative_position_bias_table.normal_()
        rows = table[module.relative_position_index.view(-1)].view(side**2, side**2, -1)
        return table, rows.permute(2, 0, 1)

    return bias


def swinv2(name: str) -> Callable[[Case], None]:
    return lambda case: network_of_offsets(case, getattr(case.modeling, name))


def network_of_offsets(case: Case, attention: Any) -> None:
    """A network: in float64, but for transformers' float32 offsets, whose rounding it passes on. 2e-6 are 2 ulp of the
    largest number that it gives, 16.
    """
    side = case.config.window_size
    for _, reading in case.layers():
        spec = reading.spec
        (encoding,) = spec.bias
        extent = list(encoding.extent or (0, 0))
        module = attention(case.config, spec.hidden_size, spec.num_heads, (side, side), extent)
        network, count = module.continuous_position_bias_mlp.double(), side**2
        with torch.no_grad():
            rows = network(module.relative_coords_table.double()).view(-1, spec.num_heads)
            theirs = 16 * torch.sigmoid(rows[module.relative_position_index.view(-1)].view(count, count, -1))
        first, last = network[0], network[2]
        weights = {"grid_in.weight": first.weight, "grid_in.bias": first.bias, "grid_out.weight": last.weight}
        positions = np.indices((side, side)).reshape(2, -1)
        ours = portpe.tabulate(spec, positions, weights={k: v.detach().numpy() for k, v in weights.items()})["bias"]
        np.testing.assert_allclose(ours, theirs.permute(2, 0, 1).numpy(), rtol=0, atol=2e-6)
        assert theirs.std() > 0.01


def beit_bias(name: str) -> Callable[[Case, Reading], tuple[torch.Tensor, torch.Tensor]]:
    def bias(case: Case, reading: Reading) -> tuple[torch.Tensor, torch.Tensor]:
        encoding = reading.spec.bias[0]
        sides = (encoding.height, encoding.width)
        more = (sides,) if name.startswith("Data2Vec") else ()
        module = getattr(case.modeling, name)(case.config, *more)
        table = module.relative_position_bias_table.normal_()
        found = module(sides)
        return table, found[0] if found.ndim == 4 else found

    return bias


def levit_bias(case: Case, reading: Reading) -> tuple[torch.Tensor, torch.Tensor]:
    (encoding,) = reading.spec.bias
    module = case.modeling.LevitAttention(8, 4, reading.spec.num_heads, 2, encoding.height)
    table = module.attention_biases.normal_()
    return table.T, module.get_attention_biases("cpu")


NOT_SQUARE = (
    "tests/reference/test_transformers_divergences.py::test_beit_turns_the_table_of_a_picture_that_is_not_square"
)
WINDOWS = {"window 5": {"window_size": 5}}
TABLES = {
    "one a layer": {"use_relative_position_bias": True},
    "shared": {"use_shared_relative_position_bias": True, "image_size": 64},
}

BIASES = (
    Row("swin", offset_table(swin_bias), WINDOWS),
    Row("donut-swin", offset_table(swin_self("DonutSwinSelfAttention")), WINDOWS),
    Row("maskformer-swin", offset_table(swin_self("MaskFormerSwinSelfAttention")), WINDOWS),
    Row("clap_audio_model", offset_table(swin_self("ClapAudioSelfAttention")), WINDOWS),
    Row("swin2sr", swinv2("Swin2SRSelfAttention"), {**WINDOWS, "two stages": {"depths": [2, 3], "num_heads": [3, 6]}}),
    Row(
        "swinv2", swinv2("Swinv2SelfAttention"), {**WINDOWS, "trained on 6": {"pretrained_window_sizes": (6, 6, 6, 4)}}
    ),
    Row("beit", offset_table(beit_bias("BeitRelativePositionBias")), TABLES, wrong=NOT_SQUARE),
    Row(
        "data2vec-vision",
        offset_table(beit_bias("Data2VecVisionRelativePositionBias")),
        TABLES,
        wrong=NOT_SQUARE,
    ),
    Row("levit", offset_table(levit_bias), {"160 pixels": {"image_size": 160}}),
    *t5("t5", "T5"),
    *t5("mt5", "MT5"),
    *t5("umt5", "UMT5"),
    *t5("pop2piano", "Pop2Piano"),
    *t5("switch_transformers", "SwitchTransformers"),
    Row("longt5", trained(longt5_local), BUCKETS, part="encoder"),
    *t5("longt5", "LongT5", "decoder"),
    *t5("udop", "Udop", "decoder"),
    Row("pix2struct_text_model", trained(t5_attention("Pix2StructTextAttention")), BUCKETS),
    Row("mpnet", trained(mpnet_encoder), {"4 heads": {"num_attention_heads": 4}}),
    Row("bloom", slopes(bloom_slopes), {"12 heads": {"n_head": 12, "hidden_size": 96}}),
    Row(
        "falcon",
        slopes(falcon_slopes),
        {"12 heads": {"hidden_size": 480, "num_attention_heads": 12}},
        default={"alibi": True},
        wrong="tests/test_hf_slopes.py::test_transformers_falcon_rounds_the_bias_to_bfloat16",
    ),
    Row(
        "mpt",
        slopes(mpt_slopes),
        {"12 heads": {"n_heads": 12, "d_model": 480}},
        wrong="tests/reference/test_transformers_divergences.py::test_mpt_never_reads_its_alibi_bias_max",
    ),
)
