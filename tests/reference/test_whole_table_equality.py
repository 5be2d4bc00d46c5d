"""The reference block in float64 against towers whose tables are added whole: video, bands of sound, words in pictures.

What the positions were added to is what the embeddings give with tables of zeros.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers

import portpe
from portpe.checkpoint import load_layer
from portpe.reference import Attention
from tests.reference.transformers_model import widen

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

SIZES = {"hidden_size": 48, "num_attention_heads": 6, "num_hidden_layers": 2, "intermediate_size": 20}


@dataclass(frozen=True)
class Whole:
    """A tiny model. ``shape``: of the one input ``name``; ``grid`` and ``plain``: its patches, and the tokens before
    them, where positions are rows and columns; else they are counted. ``layers``: those whose tokens are the inputs'.
    """

    cls: str
    config: dict[str, Any]
    shape: tuple[int, ...]
    name: str = "pixel_values"
    grid: tuple[int, int] | None = None
    plain: int = 0
    query: str = "q_proj"
    output: str = "o_proj"
    embeddings: str = "embeddings"
    layers: tuple[int, ...] = (0, 1)

    def positions(self, tokens: int) -> torch.Tensor:
        if self.grid is None:
            return torch.arange(tokens).expand(self.shape[0], -1)
        cells = torch.cartesian_prod(*(torch.arange(n) for n in self.grid)).T
        return torch.nn.functional.pad(cells, (self.plain, 0))[:, None].expand(-1, self.shape[0], -1)


_VIDEO = {"image_size": 12, "num_frames": 4, "tubelet_size": [2, 4, 6]}
_BANDS = {"num_mel_bins": 16, "max_length": 20, "patch_size": 6, "frequency_stride": 3, "time_stride": 4}
WHOLE = {
    "vivit": Whole("VivitModel", {**SIZES, **_VIDEO}, (2, 4, 3, 12, 12)),
    "audio-spectrogram-transformer": Whole("ASTModel", {**SIZES, **_BANDS}, (2, 20, 16), "input_values"),
    "eomt": Whole(
        "EomtForUniversalSegmentation",
        {**SIZES, "image_size": 20, "patch_size": 4, "num_blocks": 1, "num_queries": 3, "num_register_tokens": 2},
        (2, 3, 20, 20),
        grid=(5, 5),
        plain=3,
        output="out_proj",
        layers=(0,),
    ),
    "mgp-str": Whole(
        "MgpstrModel",
        {**SIZES, "image_size": [8, 20], "patch_size": 4, "mlp_ratio": 1.0},
        (2, 3, 8, 20),
        grid=(2, 5),
        plain=1,
        query="qkv",
        output="attn.proj",
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_families(name, tmp_path):
    row = WHOLE[name]
    cls = getattr(transformers, row.cls)
    model = cls._from_config(cls.config_class(**row.config)).eval()
    widen(model, 3, 2.9)
    tables = [p for n, p in model.named_parameters() if "position_embeddings" in n or "pos_embed" in n]
    with torch.no_grad():
        for table in tables:
            table.normal_(generator=torch.Generator().manual_seed(5))
    model.save_pretrained(tmp_path)
    model = model.double()
    inputs, outputs, sums = [], [], []
    for at, module in model.named_modules():
        if at.endswith(row.query):
            module.register_forward_pre_hook(lambda _, given: inputs.append(given[0].detach()))
        if at.endswith(row.output):
            module.register_forward_hook(lambda _, __, found: outputs.append(found.detach()))
        if at.endswith(row.embeddings) and "patch" not in at and "position" not in at:
            module.register_forward_hook(lambda _, __, found: sums.append(found.detach()))
    given = {row.name: torch.randn(row.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)}
    with torch.no_grad():
        model(**given)
        layers = list(zip(inputs, outputs, strict=True))
        kept = [table.clone() for table in tables]
        for table in tables:
            table.zero_()
        model(**given)
        for table, values in zip(tables, kept, strict=True):
            table.copy_(values)
    total, plain = sums
    for layer in row.layers:
        hidden, output = layers[layer]
        spec = portpe.load_spec(tmp_path, layer=layer)
        weights = load_layer(tmp_path, spec, model_type=model.config.model_type, layer=layer)
        block = Attention(spec, dtype=torch.float64).load(weights)
        assert (spec.embedding is None) == (layer > 0)
        first = layer == 0
        stages = block.stages(plain if first else hidden, row.positions(plain.shape[1]) if first else None)
        if first:
            assert (stages["embedded"] - total).abs().max() <= 1e-12 * total.abs().max()
            assert (total - plain).abs().max() > 0.5, "the table adds too little to be seen"
        assert (stages["output"] - output).abs().max() <= 1e-11 * output.abs().max()
        assert stages["scores"].std() > 1.5, "the weights are too narrow to show a fault"
