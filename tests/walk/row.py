"""The walk over transformers' CONFIG_MAPPING: what a row is. To add a family, add a ``Row`` to a ``*_rows.py`` file.

    Row("mistral", rotary("MistralRotaryEmbedding"), {"yarn": {"rope_parameters": {...}}})

A row says for one model_type (and part, where a model has several stacks) what is compared and under which configs:

* ``check``: called with a ``Case``, asserts that transformers' own module and ours give the same numbers; ``rotary`` in
  ``rotary_check.py``, ``learned``, ``sinusoids`` and ``slopes`` in ``site_checks.py``, or a function of your own.
* ``configs``: keywords of the config class by label. The default config is always compared besides, and each of
  ``configs`` must change some layer's encodings. ``default``: keywords of all of them; ``because`` says why the
  class's own default is not compared (it has no layer with attention, say).
* ``wrong``: the test, as ``tests/divergences.toml`` names it, that shows where transformers contradicts its config.

A row file's tuple is entered in ``ROWS`` of ``walk.py``. Take the family out of ``uncovered.toml`` and run
``make docs``, which renews docs/coverage.md. Several rows of one model_type (parts, or several modules) are one family
there.

A check gets from its ``Case``: ``config`` (transformers' object, its own copy), ``modeling`` (the module of the model's
classes) and ``layers()``: (number, Reading) of the layers that differ in their encodings, read at precision hf. Layers
without attention are left out.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from portpe.config import Reading, read_layers


@dataclass(frozen=True)
class Row:
    model_type: str
    check: Callable[[Case], None]
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    default: Mapping[str, Any] = field(default_factory=dict)
    because: str | None = None
    part: str | None = None
    wrong: str | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        return ("default", *self.configs)

    def case(self, label: str = "default") -> Case:
        from transformers import CONFIG_MAPPING

        changes = {} if label == "default" else self.configs[label]
        return Case(self, label, CONFIG_MAPPING[self.model_type](**copy.deepcopy({**self.default, **changes})))


@dataclass(frozen=True)
class Case:
    row: Row
    label: str
    config: Any

    @property
    def modeling(self) -> ModuleType:
        package, name = type(self.config).__module__.rsplit(".", 1)
        return importlib.import_module(f"{package}.{name.replace('configuration', 'modeling')}")

    @staticmethod
    def module(family: str) -> ModuleType:
        """The modeling module of another family."""
        return importlib.import_module(f"transformers.models.{family}.modeling_{family}")

    def readings(self) -> list[Reading]:
        """Every layer that has attention."""
        return read_layers(self.config.to_dict() | {"model_type": self.row.model_type}, self.row.part)

    def layers(self) -> Iterator[tuple[int, Reading]]:
        """One layer of each kind, in order."""
        seen: list[dict[str, Any]] = []
        for one in self.readings():
            reading = replace(one, spec=one.spec.with_precision("hf"))
            if (encodings := encodings_of(reading)) not in seen:
                seen.append(encodings)
                yield reading.layer, reading


def encodings_of(reading: Reading) -> dict[str, Any]:
    """What the sites of a layer hold, and the number of heads, on which biases depend."""
    spec = reading.spec.to_dict()
    return {name: spec[name] for name in ("embedding", "rotary", "bias", "query_scale", "num_heads") if name in spec}
