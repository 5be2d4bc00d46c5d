"""The HTML report is one file, escapes what it is given, and shows what failed."""

from __future__ import annotations

import builtins
import re
from html.parser import HTMLParser

import pytest

from portpe.errors import SpecError
from portpe.report import html, plots
from portpe.report.html import to_html

VOID = {"meta", "br", "link", "path", "use", "img"}


class _Balance(HTMLParser):
    """Opened and not closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def _text(page: str) -> str:
    parser = _Balance()
    parser.feed(page)
    assert parser.open == []
    return re.sub(r"\s+", " ", " ".join(parser.text))


def test_failure_page(failing, manifest):
    text = _text(to_html(failing, manifest))
    assert "3 of 13 checks failed, in 2 configurations" in text
    assert "k_rotated in decode_131071, first at position 131071: error 3.0e-02, bound 2.0e-06" in text
    assert "tiny <model>, layer 3" in text
    assert "random (seed 7)" in text
    assert "onnx is not installed: pip install portpe[onnx] <& co>" in text
    assert "rotary, half pairs, 8 channels, schedule default, theta 500000" in text


def test_input_is_escaped(failing, manifest):
    page = to_html(failing, manifest)
    assert "<model>" not in page
    assert "&lt;model&gt;" in page


def test_page_needs_nothing_beside_it(failing, manifest):
    page = to_html(failing, manifest)
    linked = re.findall(r"""(?:src|href)\s*=\s*["']([^"'#][^"']*)""", page)
    assert linked == []
    assert "@import" not in page
    assert "<script" not in page


def test_plot_is_inline_and_deterministic(failing, manifest):
    page = to_html(failing, manifest)
    assert page.count("<svg") == 1
    assert page == to_html(failing, manifest)


def test_passing_page(passing, manifest):
    text = _text(to_html(passing, manifest))
    assert "all 8 checks passed" in text
    assert "First divergence" not in text


def _without(monkeypatch: pytest.MonkeyPatch, module, *names: str) -> None:
    """As if these distributions were not installed."""
    find = module.importlib.util.find_spec
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None if name in names else find(name))
    load = builtins.__import__

    def refuse(name, *arguments, **settings):
        if name.split(".")[0] in names:
            raise ImportError(name)
        return load(name, *arguments, **settings)

    monkeypatch.setattr(builtins, "__import__", refuse)


def test_without_matplotlib_the_page_has_no_plot(failing, manifest, monkeypatch):
    _without(monkeypatch, plots, "matplotlib")
    page = to_html(failing, manifest)
    assert "<svg" not in page
    assert "3 of 13 checks failed" in page


def test_without_jinja2_there_is_a_way_out(failing, manifest, monkeypatch):
    _without(monkeypatch, html, "jinja2")
    with pytest.raises(SpecError, match=r"needs jinja2; install portpe\[report\]"):
        to_html(failing, manifest)
