"""Forwards of transformers' tiny models, with what each attention layer saw and gave."""

import numpy as np
import torch
import transformers

from tests.reference.transformers_model import Model

PADS = (0, 3, 1)
OFFSETS = (5, 0, 11)  # first positions: position_ids that are no arange of the slots


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


def whisper_states(model, ids, types):
    return model.model.decoder.embed_tokens(ids)


# What a block with an embedding site takes: token (and token type) embeddings before the position's.
EMBEDDED = {
    "whisper": whisper_states,
    "gpt2": gpt2_states,
    "opt": opt_states,
    "bert": bert_states,
    "roberta": bert_states,
    "albert": bert_states,
}
TYPED = ("bert", "roberta", "albert")  # their tokens have types
ENCODERS = (*TYPED, "eurobert", "modernbert", "roformer", "embedding_gemma2_text")


class Call:
    """One forward: its mask (B, past + S), positions (B, S), and by layer hidden states and transformers' output."""

    def __init__(self, mask, positions, layers):
        self.mask, self.positions, self.layers = mask, positions, layers


def forward(model, row: Model, chunks, offsets=OFFSETS):
    """transformers' calls, one a chunk, with its own cache."""
    family, record = model.config.model_type, Record(stack_of(model, row), row)
    rng = np.random.default_rng(7)
    total = sum(chunks)
    mask = torch.ones(len(PADS), total, dtype=torch.long)
    for batch, pads in enumerate(PADS if row.padded else ()):
        mask[batch, :pads] = 0
    ids = torch.from_numpy(rng.integers(3, 53, mask.shape)) * mask + model.config.pad_token_id * (1 - mask)
    types = torch.from_numpy(rng.integers(0, 2, mask.shape)) if family != "roberta" else torch.zeros_like(ids)
    positions = ((mask.cumsum(-1) - 1) + torch.tensor(offsets)[:, None] * row.takes_positions * row.padded) * mask
    cache = None if family in ENCODERS else transformers.DynamicCache(config=model.config)
    if family == "whisper":
        cache = transformers.EncoderDecoderCache(cache, transformers.DynamicCache(config=model.config))
    run_stack = stack_of(model, row) if row.part else model
    calls, done = [], 0
    for size in chunks:
        now = slice(done, done + size)
        done += size
        more = {"position_ids": positions[:, now]} if row.takes_positions else {}
        if family in TYPED:
            more["token_type_ids"] = types[:, now]
        elif family not in ENCODERS:
            more |= {"cache": cache, "use_cache": True}
        if family == "whisper":
            more["encoder_hidden_states"] = torch.from_numpy(rng.normal(size=(len(PADS), 13, 48)))
        with torch.no_grad():
            run_stack(input_ids=ids[:, now], attention_mask=mask[:, :done], **more)
            layers = record.take()
            if family in EMBEDDED:
                layers[0] = (EMBEDDED[family](model, ids[:, now], types[:, now]), layers[0][1])
        calls.append(Call(mask[:, :done], positions[:, now], layers))
    return calls


def stack_of(model, row: Model):
    """The half of an encoder-decoder that a row is about, or the model."""
    return getattr(model.model, row.part) if row.part else model


def encode_sound(model, row: Model):
    """Whisper's encoder, which has neither mask nor cache; its block begins after the convolutions."""
    encoder = stack_of(model, row)
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
    if row.part == "encoder":
        return encode_sound(model, row)
    return forward(model, row, (sum(chunks),) if model.config.model_type in ENCODERS else chunks, **more)
