"""A parity report as JUnit XML: one test case a check, so that CI services show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from portpe.parity.outcome import EXCEPTION
from portpe.report.summary import Group, groups, number, sentence

if TYPE_CHECKING:
    from portpe.parity import Check, Report


def to_xml(report: Report) -> str:
    """One test suite a configuration; a runtime that is missing and was not asked for is a skipped one."""
    root = ElementTree.Element("testsuites", {"name": "portpe parity", **_counts(report.checks)})
    for group in groups(report):
        _suite(root, group)
    for one in report.unavailable:
        _missing(root, one.runtime, one.reason, asked_for=one.runtime in report.missing)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _missing(root: ElementTree.Element, runtime: str, reason: str, *, asked_for: bool) -> None:
    kind = "error" if asked_for else "skipped"
    counts = {"tests": "1", "failures": "0", "errors": str(int(asked_for)), "skipped": str(int(not asked_for))}
    suite = ElementTree.SubElement(root, "testsuite", {"name": runtime, **counts})
    case = ElementTree.SubElement(suite, "testcase", classname=runtime, name="available")
    ElementTree.SubElement(case, kind, message=_legal(reason))


def _suite(root: ElementTree.Element, group: Group) -> None:
    suite = ElementTree.SubElement(root, "testsuite", {"name": group.name, **_counts(group.checks)})
    for check in group.checks:
        _case(suite, group.name.replace(" ", "."), check)


def _counts(checks: Sequence[Check]) -> dict[str, str]:
    raised = sum(check.stage == EXCEPTION and not check.passed for check in checks)
    failed = sum(not check.passed for check in checks) - raised
    return {"tests": str(len(checks)), "failures": str(failed), "errors": str(raised)}


def _case(suite: ElementTree.Element, classname: str, check: Check) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=classname, name=_legal(f"{check.case}.{check.stage}"))
    if check.passed:
        return
    kind = "error" if check.stage == EXCEPTION else "failure"
    failure = ElementTree.SubElement(case, kind, type=check.stage, message=_legal(sentence(check)))
    failure.text = _legal(
        f"largest error {number(check.max_abs)} ({number(check.max_ulp)} units in the last place), "
        f"bound {number(check.bound)}, first position {check.first_position}"
    )


def _legal(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(c if c >= " " or c in "\t\n" else "?" for c in text)
