"""A parity report as JUnit XML: one test case a check, so that CI services show it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

from portpe.report.summary import Group, groups, number, sentence

if TYPE_CHECKING:
    from portpe.parity import Check, Report


def to_xml(report: Report) -> str:
    """One test suite a configuration; a runtime that is missing and was not asked for is a skipped one."""
    failed = sum(not check.passed for check in report.checks)
    root = ElementTree.Element("testsuites", name="portpe parity", tests=str(len(report.checks)), failures=str(failed))
    for group in groups(report):
        _suite(root, group)
    for one in report.unavailable:
        suite = ElementTree.SubElement(root, "testsuite", name=one.runtime, tests="1", failures="0", skipped="1")
        case = ElementTree.SubElement(suite, "testcase", classname=one.runtime, name="available")
        ElementTree.SubElement(case, "skipped", message=_legal(one.reason))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(root: ElementTree.Element, group: Group) -> None:
    suite = ElementTree.SubElement(
        root, "testsuite", name=group.name, tests=str(len(group.checks)), failures=str(len(group.failed))
    )
    for check in group.checks:
        _case(suite, group.name.replace(" ", "."), check)


def _case(suite: ElementTree.Element, classname: str, check: Check) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=classname, name=_legal(f"{check.case}.{check.stage}"))
    if check.passed:
        return
    failure = ElementTree.SubElement(case, "failure", type="difference", message=_legal(sentence(check)))
    failure.text = _legal(
        f"largest error {number(check.max_abs)} ({number(check.max_ulp)} units in the last place), "
        f"bound {number(check.bound)}, first position {check.first_position}"
    )


def _legal(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(c if c >= " " or c in "\t\n" else "?" for c in text)
