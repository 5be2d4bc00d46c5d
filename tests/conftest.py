"""What every test stands on: one thread, no network, and small layers of every encoding kind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

# Before any framework starts: one thread, so that sums have one order; and no look-up of a model anywhere.
os.environ.setdefault("OMP_NUM_THREADS", "1")
for offline in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
    os.environ.setdefault(offline, "1")

from portpe.bundle import Bundle  # noqa: E402 - numpy too reads the environment when it starts
from portpe.spec import AttentionSpec  # noqa: E402
from tests.kinds import KINDS, make_spec  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Torch too runs on one thread, where it is installed."""
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


@pytest.fixture(scope="session")
def spec_of() -> Callable[..., AttentionSpec]:
    """``make_spec``, for tests that name the kind themselves."""
    return make_spec


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    """The name of every kind in turn."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def bundle_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Bundle]:
    """A bundle of a kind in given types, exported once a session; not to be changed in place."""
    from portpe.exporting import export

    made: dict[tuple[str, tuple[str, ...]], Path] = {}

    def get(name: str, dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")) -> Bundle:
        if (name, dtypes) not in made:
            folder = tmp_path_factory.mktemp("bundle") / name
            export(make_spec(name), folder, dtypes=dtypes)
            made[name, dtypes] = folder
        return Bundle.open(made[name, dtypes])

    return get


@pytest.fixture
def copy_of(bundle_of: Callable[..., Bundle], tmp_path: Path) -> Callable[..., Path]:
    """A copy of a kind's bundle that a test may change."""
    import shutil

    def get(name: str, dtypes: tuple[str, ...] = ("float32",)) -> Path:
        folder = tmp_path / name
        shutil.copytree(bundle_of(name, dtypes).path, folder)
        return folder

    return get
