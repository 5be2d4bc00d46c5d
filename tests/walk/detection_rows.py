"""Encoders of detectors: their module of 2-D sinusoids, on grids that are not square."""

from __future__ import annotations

import numpy as np
import torch

import portpe
from tests.walk.row import Case, Row

GRIDS = ((5, 9), (13, 2))
# In float64, but for a base that transformers raises to powers in float32 first.
EXACT, IN_FLOAT32 = 1e-12, 2e-6


def _compare(case: Case, theirs, atol: float) -> None:
    """``theirs`` (rows, columns) gives (rows * columns, width)."""
    ((_, reading),) = case.layers()
    assert reading.spec.embedding_to == "query_key"
    for rows, columns in GRIDS:
        places = np.indices((rows, columns)).reshape(2, -1)
        ours = portpe.tabulate(reading.spec, places)["embedding"]
        np.testing.assert_allclose(ours, theirs(rows, columns).numpy(), rtol=0, atol=atol)


def sine(name: str):
    """DETR's class, called with a shape."""

    def check(case: Case) -> None:
        module = getattr(case.modeling, name)(case.config.hidden_size // 2, normalize=True)

        def theirs(rows: int, columns: int) -> torch.Tensor:
            shape = torch.Size((1, 3, rows, columns))
            return module(shape, torch.device("cpu"), torch.float64)[0].flatten(1).T

        _compare(case, theirs, EXACT)

    return check


def masked(name: str):
    """Called with pictures and the mask of what they hold."""

    def check(case: Case) -> None:
        config = case.config
        given = (config.d_model // 2,) if name.startswith("Table") else (config,)
        module = getattr(case.modeling, name)(*given, **({"normalize": True} if name.startswith("Table") else {}))

        def theirs(rows: int, columns: int) -> torch.Tensor:
            found = module(torch.zeros(1, 3, rows, columns), torch.ones(1, rows, columns))
            return found[0].flatten(1).T.double()

        _compare(case, theirs, IN_FLOAT32)

    return check


def hybrid(name: str):
    def check(case: Case) -> None:
        config = case.config
        width, base = config.encoder_hidden_dim, config.positional_encoding_temperature
        module = getattr(case.modeling, name)(embed_dim=width, temperature=base)
        _compare(case, lambda rows, columns: module(columns, rows, torch.device("cpu"), torch.float64)[0], EXACT)

    return check


def _row(model_type: str, check, configs) -> Row:
    return Row(model_type, check, configs, part="encoder")


_WIDE = {"wide": {"d_model": 320}}
_BASE = {"base": {"positional_encoding_temperature": 300}, "wide": {"encoder_hidden_dim": 320}}

DETECTION = (
    Row("sam3_detr_encoder", sine("Sam3SinePositionEmbedding"), {"wide": {"hidden_size": 320}}),
    Row("sam3_lite_text_detr_encoder", sine("Sam3LiteTextSinePositionEmbedding"), {"wide": {"hidden_size": 320}}),
    _row("detr", sine("DetrSinePositionEmbedding"), _WIDE),
    _row("conditional_detr", sine("ConditionalDetrSinePositionEmbedding"), _WIDE),
    _row("table-transformer", masked("TableTransformerSinePositionEmbedding"), _WIDE),
    _row(
        "dab-detr",
        masked("DabDetrSinePositionEmbedding"),
        {"base": {"temperature_height": 30, "temperature_width": 30}, "wide": {"hidden_size": 320}},
    ),
    *(
        _row(model_type, hybrid(f"{name}SinePositionEmbedding"), _BASE)
        for model_type, name in (
            ("rt_detr", "RTDetr"),
            ("rt_detr_v2", "RTDetrV2"),
            ("d_fine", "DFine"),
            ("deimv2", "Deimv2"),
            ("pp_doclayout_v2", "PPDocLayoutV2"),
            ("pp_doclayout_v3", "PPDocLayoutV3"),
            ("pp_doclayout_v4", "PPDocLayoutV4"),
        )
    ),
)
