"""Commands run in this process, and small sources to run them on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from portpe.cli import run

# 6 heads on 2 key/value heads of 10 channels: no two sizes are equal.
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "num_hidden_layers": 3,
    "max_position_embeddings": 64,
    "rope_theta": 20000.0,
}
PHI3: dict[str, Any] = {
    "model_type": "phi3",
    "hidden_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 256,
    "original_max_position_embeddings": 64,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6},
}


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str


@pytest.fixture
def portpe(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run ``portpe ARGUMENTS``."""

    def command(*arguments: object) -> Outcome:
        capfd.readouterr()
        status = run([str(argument) for argument in arguments])
        return Outcome(status, *capfd.readouterr())

    return command


@pytest.fixture
def refused(portpe: Callable[..., Outcome]) -> Callable[..., str]:
    """Run a command that must be refused: status 2, one line on stderr. Returns that line."""

    def command(*arguments: object) -> str:
        done = portpe(*arguments)
        assert done.status == 2, done
        assert done.err.startswith("portpe: "), done
        assert done.err.count("\n") == 1, done
        assert done.err.endswith("\n"), done
        return done.err.strip()

    return command


@pytest.fixture
def llama() -> dict[str, Any]:
    return LLAMA


@pytest.fixture
def phi3() -> dict[str, Any]:
    return PHI3


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Write a config, a base with changes, as a config.json; returns its path."""

    def write(base: dict[str, Any] = LLAMA, name: str = "config.json", **changes: Any) -> Path:
        path = tmp_path / name
        data = {key: value for key, value in (base | changes).items() if value is not ...}
        path.write_text(json.dumps(data))
        return path

    return write


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small bundle in float32. Tests do not change it."""
    from portpe import export

    folder = tmp_path_factory.mktemp("bundle") / "tiny"
    export(LLAMA, folder, layer=1)
    return folder
