"""Every row of the ledger of divergences is complete and names a test that exists."""

import re
import tomllib
from pathlib import Path

import pytest
from transformers import CONFIG_MAPPING

ROOT = Path(__file__).resolve().parent.parent
ROWS = tomllib.loads((ROOT / "tests" / "divergences.toml").read_text())["divergence"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["what"][:40])
def test_row(row):
    assert set(row) - {"model_types"} == {"runtime", "what", "why", "since", "test"}
    assert all(isinstance(value, str) and value.strip() for key, value in row.items() if key != "model_types")
    assert set(row.get("model_types", ())) <= (set(CONFIG_MAPPING) if row["runtime"] == "transformers" else set())
    file, *names = re.sub(r"\[.*\]$", "", row["test"]).split("::")
    source = (ROOT / file).read_text()
    for name in names:
        assert re.search(rf"^\s*(def|class) {re.escape(name)}\b", source, re.MULTILINE), row["test"]


def test_no_divergence_stands_twice():
    whats = [(row["runtime"], row["what"]) for row in ROWS]
    assert len(whats) == len(set(whats))
