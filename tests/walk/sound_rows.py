"""Models of sound, of series and of words beside images, with positions in their embeddings or none: one row each."""

from __future__ import annotations

import numpy as np
import torch

import portpe
from tests.walk.absolute_rows import SHORT, fairseq, model, sound, tokens
from tests.walk.embedding_rows import gpt2_lookup
from tests.walk.rotary_check import assert_same_numbers, assert_same_rotation
from tests.walk.row import Case, Row
from tests.walk.site_checks import learned, no_encoding, sinusoids

PLACES = np.array([[0, 7, 39, 3, 22], [11, 3, 38, 2, 1]])


def spectrogram(case: Case, positions: torch.Tensor):
    """Both class tokens and all patches of a silent spectrogram, their own rows 0."""
    module = case.modeling.ASTEmbeddings(case.config).eval()
    for parameter in module.parameters():
        parameter.zero_()
    table = module.position_embeddings.normal_(generator=torch.Generator().manual_seed(2))
    rows = module(torch.zeros(1, case.config.max_length, case.config.num_mel_bins))
    return table[0], rows[0, positions]


def qwen3_asr(case: Case) -> torch.Tensor:
    config = case.config
    module = case.modeling.SinusoidsPositionEmbedding(config.max_position_embeddings, config.d_model)
    return module(config.max_position_embeddings)


def fun_asr(case: Case) -> torch.Tensor:
    width = case.config.num_mel_bins * case.config.num_stacked_frames
    module = case.modeling.FunAsrNanoPositionEmbedding(case.config.max_position_embeddings, width)
    return module(torch.zeros(1, 40, width))


def clvp(case: Case) -> None:
    """Its module gives angles; queries, keys and values are turned."""
    ((_, reading),) = case.layers()
    encoding = reading.spec.rotary
    angles = case.modeling.ClvpRotaryPositionalEmbedding(case.config)(torch.zeros(1, 40, 1))[0]
    places = torch.from_numpy(PLACES)
    assert_same_numbers(encoding, angles.cos()[places], angles.sin()[places], PLACES)

    def apply(q, k, *_):
        turned = case.modeling.apply_rotary_pos_emb(q, k, k, angles.cos(), angles.sin(), places)
        assert torch.equal(turned[1], turned[2])
        return turned[:2]

    assert_same_rotation(encoding, apply, None, None, PLACES)


def timesfm(case: Case) -> None:
    """Sinusoids where they are switched on."""
    if case.config.use_positional_embedding:
        sinusoids(lambda case: case.modeling.TimesFmPositionalEmbedding(case.config)(40)[0])(case)
    else:
        small = {"hidden_size": 24, "num_attention_heads": 3, "head_dim": 8, "num_hidden_layers": 1}
        no_encoding("TimesFmAttention", small)(case)


def patchtst(case: Case, positions: torch.Tensor):
    config = case.config
    patches = (config.context_length - config.patch_length) // config.patch_stride + 1
    module = case.modeling.PatchTSTPositionalEncoding(config, patches).eval()
    rows = module(torch.zeros(1, config.num_input_channels, patches, config.d_model))
    return module.position_enc, rows[0, 0, positions]


def autoformer(part: str):
    """The decoder begins ``label_length`` values before the context's end."""

    def table(case: Case) -> torch.Tensor:
        config = case.config
        rows = config.context_length + config.prediction_length
        module = case.modeling.AutoformerSinusoidalPositionalEmbedding(rows, config.d_model)
        with torch.no_grad():
            module.weight.copy_(module.create_weight())
        start = config.context_length - config.label_length if part == "decoder" else 0
        return module((1, rows - start), cache_length=start)

    return table


def episodes(case: Case, positions: torch.Tensor):
    """Its table is read at the time steps of an episode."""
    case.config.n_layer = 1
    module, seen = case.modeling.DecisionTransformerModel(case.config).eval(), []
    module.embed_timestep.register_forward_hook(lambda _, __, rows: seen.append(rows))
    steps = len(positions)
    sizes = (case.config.state_dim, case.config.act_dim, 1)
    states, actions, returns = (torch.zeros(1, steps, size) for size in sizes)
    module(states, actions, torch.zeros(1, steps, 1), returns, positions[None])
    return module.embed_timestep.weight, seen[0][0]


def reformer(case: Case, positions: torch.Tensor):
    """A row of the first table beside one of the second; or one table."""
    if not case.config.axial_pos_embds:
        module = case.modeling.PositionEmbeddings(case.config).eval()
        return module.embedding.weight, module(positions[None])[0]
    module = case.modeling.AxialPositionEmbeddings(case.config).eval()
    for weight in module.weights:
        weight.normal_()
    rows, columns = case.config.axial_pos_shape
    first, second = (weight.expand(rows, columns, -1) for weight in module.weights)
    return torch.cat([first, second], -1).flatten(0, 1), module(positions[None])[0]


def stretched(case: Case) -> None:
    """A table of rows resampled to the length of a text."""
    _, reading = next(case.layers())
    (rows, _), width = reading.spec.embedding.grid, reading.spec.embedding.width
    module = case.modeling.Sam3LiteTextTextPositionEmbedding(rows, width).double()
    with torch.no_grad():
        table = module.position_embedding.normal_(generator=torch.Generator().manual_seed(2))
        weights = {"position_embedding.weight": table[0, 0].numpy()}
        for length in (rows, 13, rows + 31):
            places = np.stack([np.arange(length), np.zeros(length, dtype=np.int64)])
            ours = portpe.tabulate(reading.spec, places, weights=weights)["embedding"]
            np.testing.assert_allclose(ours, module(length)[0].numpy(), rtol=0, atol=1e-12)


def vilt_patches(case: Case) -> None:
    """One picture a size, of the table's own and of others."""
    _, reading = next(case.layers())
    encoding, patch = reading.spec.embedding, case.config.patch_size
    case.config.vocab_size = 3
    module = case.modeling.ViltEmbeddings(case.config).eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name != "position_embeddings":
                parameter.zero_()
        module.position_embeddings.normal_(generator=torch.Generator().manual_seed(2))
        weights = {"position_embedding.weight": module.position_embeddings[0].numpy()}
        for rows, columns in (encoding.grid, (5, 9), (3, 2)):
            pixels = torch.zeros(1, 3, rows * patch, columns * patch)
            theirs, _, (cells, _) = module.visual_embed(pixels, pixels[:, 0] + 1, max_image_length=-1)
            places = np.pad(cells[0].T.numpy(), ((0, 0), (1, 0)))  # patches come in an order drawn by chance
            ours = portpe.tabulate(reading.spec, places, weights=weights)["embedding"]
            # Between rows of up to 4 in float32: a weight is off by 2 ** -23 times a coordinate of the table.
            np.testing.assert_allclose(ours, theirs[0].numpy(), rtol=0, atol=2.0**-21 * max(encoding.grid))


def flava(case: Case) -> None:
    """Both modalities in one sequence, without positions: what comes out moves with what goes in."""
    ((_, reading),) = case.layers()
    assert (reading.spec.embedding, reading.spec.rotary, reading.spec.bias) == (None, None, ())
    small = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 1, "intermediate_size": 8}
    module = case.modeling.FlavaMultimodalModel(type(case.config)(**small)).double().eval()
    generator = torch.Generator().manual_seed(5)
    states, order = torch.randn(1, 6, 24, generator=generator, dtype=torch.float64), torch.tensor([3, 0, 4, 2, 5, 1])
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.4, generator=generator)
        first, second = (module(x).last_hidden_state[:, 1:] for x in (states, states[:, order]))
    assert first.std(1).mean() > 0.1
    assert torch.allclose(first[:, order], second, rtol=0, atol=1e-9)


_SERIES = {"prediction_length": 9, "context_length": 11}
_ZAMBA = {
    "hidden_size": 12,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "num_hidden_layers": 4,
    "mamba_dt_rank": 2,
}

SOUNDS = (
    Row("gpt-sw3", learned(gpt2_lookup), {"short": {"n_positions": 40}}),
    Row("audio-spectrogram-transformer", learned(spectrogram), {"shorter": {"max_length": 128, "time_stride": 12}}),
    Row("qwen3_asr_encoder", sinusoids(qwen3_asr), {"longer": {"max_position_embeddings": 40}}),
    Row("fun_asr_nano_encoder", sinusoids(fun_asr), {"narrow": {"num_stacked_frames": 5}}),
    Row(
        "moss_transcribe_diarize_audio",
        learned(sound("MossTranscribeDiarizeAudioModel", num_hidden_layers=1)),
        {"short": {"max_source_positions": 60}},
    ),
    Row("clvp_encoder", clvp, {"heads": {"num_attention_heads": 4}}),
    Row("clvp_decoder", learned(model("ClvpDecoder", "position_embeds_layer", num_hidden_layers=1)), SHORT),
    Row("timesfm", timesfm, {"added": {"use_positional_embedding": True, "max_timescale": 500}}),
    Row("patchtst", learned(patchtst), {"class token": {"use_cls_token": True, "patch_length": 4, "patch_stride": 2}}),
    *(
        Row(
            "autoformer",
            sinusoids(autoformer(part)),
            {"longer": {"context_length": 17}},
            _SERIES,
            because="its config has no lengths by default",
            part=part,
        )
        for part in ("encoder", "decoder")
    ),
    Row("decision_transformer", learned(episodes), {"short": {"max_ep_len": 40}}),
    Row(
        "kosmos_2_text_model",
        sinusoids(fairseq("Kosmos2TextSinusoidalPositionalEmbedding", "embed_dim")),
        {"padding": {"pad_token_id": 3}},
    ),
    Row(
        "kosmos_2_5_text_model",
        sinusoids(fairseq("Kosmos2_5TextSinusoidalPositionalEmbedding", "embed_dim")),
        {"padding": {"pad_token_id": 3}},
    ),
    Row(
        "reformer",
        learned(reformer),
        {
            "narrow": {"axial_pos_shape": [4, 7], "axial_pos_embds_dim": [100, 156]},
            "one table": {"axial_pos_embds": False, "max_position_embeddings": 40},
        },
    ),
    Row(
        "videoprism_text_model",
        sinusoids(lambda case: case.modeling.create_sinusoidal_positions(40, case.config.hidden_size)),
        {"narrow": {"hidden_size": 384}},
    ),
    Row(
        "sam3_lite_text_text_model",
        stretched,
        SHORT,
        {"use_repmixer_blocks": False},
        because="its first layer is a convolution by default, and attention behind it adds no positions",
    ),
    Row("vilt", learned(tokens("TextEmbeddings")), {"short": {"max_position_embeddings": 30}}, part="text"),
    Row("vilt", vilt_patches, {"larger": {"image_size": 480}}, part="vision"),
    Row("flava_multimodal_model", flava, {"heads": {"num_attention_heads": 6}}),
    Row(
        "zamba",
        no_encoding("ZambaAttention", _ZAMBA, layer_idx=0),
        {"heads": {"num_attention_heads": 8, "num_key_value_heads": 8}},
    ),
)
