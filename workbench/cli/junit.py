"""An audit's report as JUnit XML, for continuous integration.

One test case for each subject and attack, named `attack` in class `workbench.subject`, and one for the
verdict of the whole, named `verdict` in class `workbench`. That one alone fails or errs, so that one refuted
claim is one failure.

| verdict | of the whole | of an attack on an audited subject | of a reading | of the control |
|---|---|---|---|---|
| REFUTED | `failure` | `skipped` | passes: nobody claims the reading | passes: the attack works |
| NOT_REFUTED | passes, which is not "private" | passes | passes | `skipped`: no attack seen to work |
| UNDERPOWERED, INVALID, UNDECIDED | `error`: nothing could be judged | `skipped` | `skipped` | `skipped` |

A reading is a claim that is not under audit, such as a number of nats taken for an epsilon; what it came to
stands in the case's output. Its cases lie in class `workbench.subject.reading`. A case that is skipped has
its verdict as its type and its sentence as its message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from workbench.core.outputs import write_atomically
from workbench.interfaces import VerdictKind

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold, not even escaped."""


def junit_xml(report: Mapping[str, Any]) -> str:
    """The report record (see `workbench.audit.run`) as a JUnit document."""
    return junit_document("workbench audit", _cases(report))


def junit_document(name: str, given: Iterable[ElementTree.Element]) -> str:
    """`testcase` elements, as `junit_case` makes them, as a JUnit document of one suite with its counts."""
    suite = ElementTree.Element("testsuite", name=clean(name))
    counts = dict.fromkeys(("failure", "error", "skipped"), 0)
    cases = list(given)
    for case in cases:
        suite.append(case)
        for outcome in counts:
            counts[outcome] += len(case.findall(outcome))
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(counts["failure"]))
    suite.set("errors", str(counts["error"]))
    suite.set("skipped", str(counts["skipped"]))
    suite.set("time", f"{sum(float(case.get('time', 0.0)) for case in cases):.3f}")
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def write_junit(report: Mapping[str, Any], path: Path) -> None:
    """Write the report as JUnit XML, in one piece or not at all."""
    write_document(junit_xml(report), path)


def write_document(document: str, path: Path) -> None:
    """Write a JUnit document, in one piece or not at all; InputError where the place cannot be written."""
    write_atomically(path, '<?xml version="1.0" encoding="utf-8"?>\n' + document)


def junit_case(class_name: str, name: str, seconds: float) -> ElementTree.Element:
    """A test case that passes, until an outcome is added."""
    return ElementTree.Element(
        "testcase", classname=clean(class_name), name=clean(name), time=f"{seconds:.3f}"
    )


def clean(text: object) -> str:
    """The text without characters that XML cannot hold."""
    return _NOT_XML.sub("\ufffd", str(text))


def _cases(report: Mapping[str, Any]) -> Iterator[ElementTree.Element]:
    for subject in report["subjects"]:
        role = str(subject["role"])
        place = f"workbench.{subject['name']}"
        if role == "reading":
            place = f"{place}.reading"
        for attack in subject["attacks"]:
            seconds = float(attack.get("cost", {}).get("seconds", 0.0))
            case = junit_case(place, attack["attack"], seconds)
            _judge(case, attack["verdict"], role)
            yield case
    for key, name in (("replay", "forced replay"), ("run", "watched run")):
        if key in report:
            form = report[key]
            case = junit_case(f"workbench.{form['subject']}", name, float(form["cost"]["seconds"]))
            _judge(case, form["verdict"], "user")
            yield case
    for game in report.get("unplayed", ()):
        case = junit_case(f"workbench.{game['subject']}", game["attack"], float(game["seconds"]))
        message = clean(f"not played: {game['reason']}")
        ElementTree.SubElement(case, "skipped", type="NOT_PLAYED", message=message)
        yield case
    case = junit_case("workbench", "verdict", 0.0)
    _judge(case, report["verdict"], "whole")
    yield case


def _judge(case: ElementTree.Element, verdict: Mapping[str, Any], role: str) -> None:
    """Add the outcome of a case; one that passes keeps its sentence as output."""
    kind = VerdictKind(verdict["kind"])
    passing = {
        "whole": {VerdictKind.NOT_REFUTED},
        "control": {VerdictKind.REFUTED},
        "reading": {VerdictKind.REFUTED, VerdictKind.NOT_REFUTED},
    }
    outcome = None if kind in passing.get(role, {VerdictKind.NOT_REFUTED}) else "skipped"
    if role == "whole" and outcome is not None:
        outcome = "failure" if kind is VerdictKind.REFUTED else "error"
    sentence = clean(verdict["sentence"])
    if outcome is None:
        ElementTree.SubElement(case, "system-out").text = sentence
        return
    element = ElementTree.SubElement(case, outcome, type=str(kind), message=sentence)
    element.text = clean("\n".join(verdict.get("reasons") or ())) or None
