"""The rule for keys that nobody understood: what may change numbers is an error, the rest is listed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from typing import Any

from portpe.config.section import Section, shown
from portpe.errors import SpecError

# An unlisted key at the top of a config that matches one of these may change attention's numbers.
_SUSPICIOUS = re.compile(
    "rope|rotary|theta|alibi|posit|attn|attention|window|scal|softcap|sink|norm|head|layer_types|clip", re.IGNORECASE
)

# Matches that are the same for every family and bear on training, dispatch, experts or logits, not on attention's
# numbers.
_HARMLESS = frozenset(
    {
        "attention_dropout",
        "attention_probs_dropout_prob",
        "attn_pdrop",
        "attn_dropout",
        "output_attentions",
        "attn_implementation",
        "_attn_implementation",
        "_attn_implementation_internal",
        "_attn_implementation_autoset",
        "attention_softmax_in_fp32",
        "scale_attention_softmax_in_fp32",
        "_flash_attn_2_enabled",
        "use_flash_attention",
        "add_cross_attention",
        "cross_attention_hidden_size",
        "logit_scale",
        "initializer_scale",
        "final_logit_softcapping",
        "lm_head_bias",
        "logits_scaling",
        "norm_topk_prob",
        "moe_norm_min",
        "mlp_layer_types",
        "moe_routed_scaling_factor",
        "moe_router_logit_softcapping",
        "moe_router_scaling_factor",
        "route_scale",
        "routed_scaling_factor",
        "router_scaling_factor",
    }
)
# transformers writes the keys of a whole config into each of its parts.
OF_A_WHOLE_CONFIG = frozenset(
    {
        "architectures",
        "output_hidden_states",
        "output_attentions",
        "return_dict",
        "dtype",
        "torch_dtype",
        "chunk_size_feed_forward",
        "is_encoder_decoder",
        "id2label",
        "label2id",
        "problem_type",
        "model_type",
        "_name_or_path",
        "transformers_version",
    }
)
NEAR = 0.83  # difflib's ratio: one letter in six; no published or default config has such a pair
_HARMLESS_WHEN: dict[str, tuple[Any, ...]] = {"pruned_heads": ({},)}


class UnknownKeys:
    """Applies the rule to the sections of one config, with the keys that a user lets pass.

    ``ignored`` collects, in order and dotted, the keys that had no influence.
    """

    def __init__(self, ignore_keys: Iterable[str] = ()) -> None:
        self._ignore = tuple(ignore_keys)
        self._used: set[str] = set()
        self.ignored: list[str] = []

    def lets_pass(self, section: Section, key: str) -> bool:
        """Whether the user said to ignore the key, by its name or its path."""
        for name in (section.name(key), key):
            if name in self._ignore:
                self._used.add(name)
                self._list(section, key)
                return True
        return False

    def refuse_unread(self, section: Section, *, harmless: Collection[str] = (), hint: str = "") -> None:
        """A section where every key counts: each one that was not read is an error."""
        for key in section.unread():
            if key in harmless or self.lets_pass(section, key):
                continue
            way_out = hint or f"mend its name, or ignore it with --ignore-key {section.name(key)}"
            raise SpecError(
                f"{section.name(key)} is not a key that portpe knows, got {shown(section.data[key])}; {way_out}"
            )

    def refuse_misspelt(
        self, section: Section, harmless: Collection[str], among: Collection[str] | None = None
    ) -> None:
        """A key that nobody read, and nearly the name of one that was looked for and is absent: a slip of the pen.

        ``among``: the names to compare with, where reading broke off and other keys were not looked for yet; None: all
        that were read.
        """
        for inner in section.opened:
            self.refuse_misspelt(inner, harmless, among)
        names = section.seen if among is None else among
        absent = [name for name in names if section.data.get(name) is None]
        for key in section.unread():
            known = key in harmless or key in _HARMLESS
            alike = [] if known else [name for name in absent if _may_be_meant(str(key), name)]
            near = difflib.get_close_matches(str(key), alike, n=1, cutoff=NEAR)
            if near and not self.lets_pass(section, key):
                raise SpecError(
                    f"{section.name(key)} is not a key that portpe knows for this model_type, and {near[0]} is absent, "
                    f"got {shown(section.data[key])}; mend its name, or ignore it with --ignore-key {section.name(key)}"
                )

    def refuse_suspicious(self, section: Section, harmless: Collection[str], off: Collection[str] = ()) -> None:
        """The top of a config: an unread key whose name may bear on attention is an error, others are listed.

        ``off`` are switches of things that the layer does not have: they may be false.
        """
        self.refuse_misspelt(section, harmless)
        for key in section.unread():
            value = section.data[key]
            known = key in harmless or key in _HARMLESS or value in _HARMLESS_WHEN.get(key, ())
            known = known or (value is False and key in off)
            if not known and _SUSPICIOUS.search(str(key)) and not self.lets_pass(section, key):
                raise SpecError(
                    f"{section.name(key)} is not a key that portpe knows for this model_type and may change numbers, "
                    f"got {shown(value)}; mend its name, or ignore it with --ignore-key {section.name(key)}"
                )
            self._list(section, key)

    def refuse_unused(self) -> None:
        """An --ignore-key that names no unknown key is a slip of the pen."""
        for name in self._ignore:
            if name not in self._used and name not in self.ignored:
                raise SpecError(
                    f"ignore_keys must name keys of the config that portpe does not know, got {name!r}; drop it"
                )

    def _list(self, section: Section, key: str) -> None:
        name = section.name(key)
        if name not in self.ignored:
            self.ignored.append(name)


def _may_be_meant(key: str, name: str) -> bool:
    """Whether a slip of the pen leads from the name to the key: not a whole word more, nor one in place of another
    (v_head_dim for head_dim, kv_lora_rank for q_lora_rank).
    """
    longer, shorter = sorted((key, name), key=len, reverse=True)
    by_a_word = longer.endswith(f"_{shorter}") or longer.startswith(f"{shorter}_")
    words, others = key.split("_"), name.split("_")
    alike = [difflib.SequenceMatcher(None, *pair).ratio() for pair in zip(words, others, strict=False)]
    same_words = len(words) != len(others) or min(alike) > 0.5
    return len(longer) - len(shorter) <= 2 and not by_a_word and same_words
