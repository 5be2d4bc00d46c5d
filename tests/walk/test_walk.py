"""Every model_type of transformers is compared with transformers' own numbers, or named with the reason why not."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from portpe.config import families
from portpe.config.composites import COMPOSITES
from portpe.encodings import DefaultSchedule
from portpe.report import encodings
from tests.walk import coverage
from tests.walk.row import Case, Row, encodings_of
from tests.walk.walk import ROWS, covered, known_wrong, mapped, uncovered

transformers.utils.logging.set_verbosity_error()
torch.set_num_threads(1)

ROOT = Path(__file__).parents[2]
CASES = [(row, label) for row in ROWS for label in row.labels]


def _name(value):
    return f"{value.model_type}{'-' * bool(value.part)}{value.part or ''}" if isinstance(value, Row) else value


@pytest.mark.parametrize(("row", "label"), CASES, ids=_name)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_numbers(row, label):
    row.check(row.case(label))


@pytest.mark.parametrize("row", ROWS, ids=_name)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_config_varies_the_encodings(row):
    """A config that the reader takes for the default one would show nothing."""
    found = [[(n, encodings_of(one)) for n, one in row.case(label).layers()] for label in row.labels]
    assert len(found) > 1, "a row needs a config beside the default one"
    assert all(layers for layers in found), "no layer has attention"
    assert [one for one in found[1:] if one == found[0]] == []


def test_every_composite_has_a_row_for_each_part():
    rows = {(row.model_type, row.part) for row in ROWS}
    assert {(whole, name) for whole, parts in COMPOSITES.items() for name in parts} - rows == set()


def test_every_family_has_a_row():
    rows = {(row.model_type, row.part) for row in ROWS}
    without = {(family.model_type, family.part) for family in families.FAMILIES} - rows
    assert {name for name, _ in without} == {name for name, why in uncovered().model_types.items() if why == "to come"}


def test_every_family_is_compared_as_it_is_by_default():
    by_default = {row.model_type for row in ROWS if not row.default or row.because}
    assert set(covered()) - by_default == set()


def test_every_model_type_is_covered_or_named_with_a_reason(capsys):
    said = uncovered()
    assert set(mapped()) - set(covered()) - set(said.model_types) == set(), "neither a row nor a reason"
    assert set(covered()) & set(said.model_types) == set(), "covered: take it out of uncovered.toml"
    assert set(said.model_types) | set(covered()) <= set(mapped())
    assert set(said.model_types.values()) == set(said.reasons)
    with capsys.disabled():
        print(f"\n{coverage.counts()}")


def test_what_is_wrong_in_transformers_stands_in_the_ledger():
    rows = tomllib.loads((ROOT / "tests" / "divergences.toml").read_text(encoding="utf-8"))["divergence"]
    assert [wrong.test for wrong in known_wrong()] == [row["test"] for row in rows if row["runtime"] == "transformers"]
    assert {row.wrong for row in ROWS if row.wrong} <= {wrong.test for wrong in known_wrong()}
    assert {name for wrong in known_wrong() for name in wrong.model_types} <= set(covered())


@pytest.mark.parametrize(("file", "text"), [("coverage", coverage.markdown), ("encodings", encodings.document)])
def test_generated_documents_are_fresh(file, text):
    assert (ROOT / "docs" / f"{file}.md").read_text(encoding="utf-8") == text(), "stale: run `make docs`"


@pytest.mark.parametrize(
    "change",
    [{"schedule": DefaultSchedule(rope_theta=10001.0)}, {"pairing": "interleaved"}, {"sign": -1}, {"width": 126}],
    ids=lambda change: next(iter(change)),
)
def test_the_walk_sees_a_wrong_number(change, monkeypatch):
    row = next(row for row in ROWS if row.model_type == "llama")
    index, reading = next(row.case().layers())
    rotary = reading.spec.rotary.model_copy(update=change)
    wrong = replace(reading, spec=reading.spec.model_copy(update={"rotary": rotary}))
    monkeypatch.setattr(Case, "layers", lambda case: iter([(index, wrong)]))
    with pytest.raises(AssertionError):
        row.check(row.case())
