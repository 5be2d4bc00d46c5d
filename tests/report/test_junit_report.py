"""JUnit XML: one test case a check, readable by any XML parser."""

from __future__ import annotations

import dataclasses
from xml.etree import ElementTree

from portpe.parity import Unavailable
from portpe.report.junit import to_xml


def test_counts_and_messages(failing):
    root = ElementTree.fromstring(to_xml(failing))
    assert (root.tag, root.get("tests"), root.get("failures")) == ("testsuites", "13", "3")
    suites = {suite.get("name"): suite for suite in root}
    assert set(suites) == {"mlx module float32", "onnxruntime CPU all portable float32", "onnx-reference"}
    ort = suites["onnxruntime CPU all portable float32"]
    assert (ort.get("tests"), ort.get("failures"), len(ort)) == ("5", "3", 5)
    failed = {case.get("name"): case.find("failure").get("message") for case in ort if case.find("failure") is not None}
    assert set(failed) == {"decode_131071.output", "decode_131071.k_rotated", "prefill.scores"}
    assert "first at position 131071: error 3.0e-02, bound 2.0e-06" in failed["decode_131071.k_rotated"]


def test_missing_runtime_is_skipped_with_its_reason(failing):
    root = ElementTree.fromstring(to_xml(failing))
    skipped = root.find("testsuite[@name='onnx-reference']/testcase/skipped")
    assert skipped.get("message") == "onnx is not installed: pip install portpe[onnx] <& co>"


def test_control_characters_do_not_break_the_file(failing):
    odd = Unavailable("mlx", "bell \x07 and escape \x1b[31m")
    root = ElementTree.fromstring(to_xml(dataclasses.replace(failing, unavailable=(odd,))))
    assert root.find(".//skipped").get("message") == "bell ? and escape ?[31m"


def test_exception_is_an_error(failing):
    raised = dataclasses.replace(
        failing.checks[0], stage="exception", passed=False, max_abs=None, bound=None, problem="ValueError: no kernel"
    )
    root = ElementTree.fromstring(to_xml(dataclasses.replace(failing, checks=(raised, *failing.checks))))
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("14", "3", "1")
    assert root.find(".//error").get("message") == "exception in prefill: ValueError: no kernel"


def test_passing(passing):
    root = ElementTree.fromstring(to_xml(passing))
    assert (root.get("tests"), root.get("failures")) == ("8", "0")
    assert root.find(".//failure") is None
