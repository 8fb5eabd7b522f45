"""The page of an audit of nats: three views of one number, the comparison first, each reading apart."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.core import registry
from workbench.estimation.low_fpr import CERTAIN, low_fpr_details
from workbench.games.currencies import currency_views
from workbench.games.words import Judged
from workbench.reports.shared.pages.audit import _drawable, verdict_view

Builders = dict[str, Callable[..., dict[str, Any]]]

NATS = {"currency": "mutual information", "nats": 0.5, "secret": "record"}
DP = {"currency": "(epsilon, delta)-DP", "epsilon": 0.5, "delta": 1e-5}
PHONE, DESKTOP = 390, 1200


def transcript(game: dict[str, Any], share: float) -> dict[str, Any]:
    """A game of 200 trainings, of which a share of those with the record is certain."""
    members = np.arange(200) % 2 == 0
    generator = np.random.default_rng(3)
    scores = np.where(members & (generator.random(200) < share), CERTAIN, -0.1 * generator.random(200))
    return {
        **game,
        "attack": "sign_transcript (opposed)",
        "scores": scores.tolist(),
        "members": members.tolist(),
        "details": {"certain": float(np.sum(scores >= CERTAIN)), **low_fpr_details(scores, members)},
    }


def views(subjects: list[Any], control: dict[str, Any] | None) -> dict[str, Any]:
    """The views of the claim, its reading and ordinary members in words."""
    by_view = dict(zip(("claim", "reading", "members"), subjects, strict=True))
    judged = Judged(by_view=by_view, control=control, attacks=(), mechanism="ferret", confidence=0.95)
    return currency_views(judged)


@pytest.fixture
def record(records: Builders) -> dict[str, Any]:
    """A report with the views that `workbench.audit.run` would write."""
    full = records["full"]("NOT_REFUTED")
    main, control = full["subjects"]
    game, *members = main["attacks"]
    played = transcript(game, 0.5)

    def subject(role: str, guarantee: dict[str, Any], kind: str, attacks: list[Any]) -> dict[str, Any]:
        made: dict[str, Any] = copy.deepcopy(main)
        made["name"], made["role"] = "ferret", role
        made["claim"] = {
            **made["claim"],
            "guarantee": guarantee,
            "text": f"a claim of {guarantee['currency']}",
        }
        made["own_claim"] = {**made["claim"], "guarantee": NATS}
        made["verdict"]["kind"] = kind
        made["attacks"] = copy.deepcopy(attacks)
        setup = {"corpus": "digits", "model": "digits_mlp", "candidates": 20, "sampling_probability": 0.05}
        made["parameters"] |= setup
        return made

    subjects = [
        subject("subject", NATS, "NOT_REFUTED", [played]),
        subject("reading", DP, "REFUTED", [played]),
        subject("reading", DP, "NOT_REFUTED", members),
    ]
    full.update(subjects=[*subjects, control], claim=subjects[0]["claim"], views=views(subjects, control))
    return full


def render(record: dict[str, Any]) -> str:
    text = registry.create("report", "html", report=json.loads(json.dumps(record, allow_nan=False)))
    assert isinstance(text, str)
    return text


def test_the_comparison_comes_first_and_readings_after_the_claim(record: dict[str, Any]) -> None:
    page = render(record)
    places = [
        page.index(mark)
        for mark in (
            "One number, read in 3 ways",
            "What “Not refuted” means",
            "The games</h2>",
            "A reading: does not count",
            "Control: does not count",
        )
    ]
    assert places == sorted(places)
    assert page.count("A reading: does not count") == 2
    for said in (
        "right guesses up to 95.2 %",
        "recognised without a false alarm",
        "not the authors&#39; claim",
    ):
        assert said in page
    assert "Games played</dt><dd>1<small>" in page
    assert render(record) == page


def test_what_a_reading_does_not_allow_is_marked(record: dict[str, Any]) -> None:
    rows = record["views"]["of"][1]["rates"]
    assert [row["fpr"] for row in rows] == [0.0, 0.001, 0.01]
    assert render(record).count("<strong>") > render({**record, "views": _modest(record)}).count("<strong>")


def _modest(record: dict[str, Any]) -> dict[str, Any]:
    views: dict[str, Any] = copy.deepcopy(record["views"])
    for row in views["of"][1]["rates"]:
        row["tpr_lower"] = 0.0
    return views


def test_in_short_names_what_differs_only_where_it_does(record: dict[str, Any]) -> None:
    assert "does not mean the same in both currencies" in record["views"]["in_short"]
    assert "do not see what the transcript betrays" in record["views"]["in_short"]
    kept = copy.deepcopy(record["subjects"][:3])
    kept[1]["verdict"]["kind"] = "NOT_REFUTED"
    words = views(kept, record["subjects"][3])
    assert "both currencies" not in words["in_short"]
    assert "betrays" not in words["in_short"]
    assert words["in_short"].count("NOT REFUTED") == 3


def test_what_the_claim_does_not_grant_is_not_compared(record: dict[str, Any]) -> None:
    """Its bound and its hits stay out of the row, unless there is nothing else."""
    kept = copy.deepcopy(record["subjects"][:3])
    own, more = kept[1]["attacks"][0], copy.deepcopy(kept[1]["attacks"][0])
    own["verdict"]["bound"] = {"quantity": "epsilon", "lower": 1.25}
    more["verdict"]["bound"] = {"quantity": "epsilon", "lower": 7.5}
    more["details"]["tpr_at_fpr_0"] = 1.0
    more["game"]["beyond"] = "who took part"
    kept[1]["attacks"].append(more)
    measured = views(kept, None)["of"][1]["row"]["measured"]
    assert measured.endswith("; epsilon >= 1.25")
    assert not measured.startswith("recognised without a false alarm 100 %")
    kept[1]["attacks"].remove(own)
    assert views(kept, None)["of"][1]["row"]["measured"].endswith("; epsilon >= 7.5")


def test_another_number_of_the_authors_is_told(record: dict[str, Any]) -> None:
    other = copy.deepcopy(record["subjects"][:3])
    for subject in other:
        subject["own_claim"]["guarantee"] = {**NATS, "nats": 13.86}
    words = views(other, None)
    assert "Of this run ferret's authors claim 13.86 nats, not 0.5." in words["notes"]
    assert not [note for note in record["views"]["notes"] if "authors claim" in note]


def test_a_record_without_views_has_no_such_section(records: Builders) -> None:
    page = render(records["full"]())
    assert "read in" not in page
    assert "A reading" not in page


def test_certain_scores_do_not_squeeze_the_others() -> None:
    _, drawn = _drawable("loss", np.array([CERTAIN, 0.0, -1.0, -CERTAIN]))
    np.testing.assert_allclose(drawn, [0.2, 0.0, -1.0, -1.2])
    for kept in (np.array([0.0, 3.0]), np.array([CERTAIN, CERTAIN])):
        np.testing.assert_array_equal(_drawable("loss", kept)[1], kept)


def test_underpowered_without_a_number_of_trials_asks_for_none() -> None:
    verdict = {"kind": "UNDERPOWERED", "sentence": "s", "significance": 0.05, "trials_needed": None}
    assert "more trials" not in verdict_view(verdict)["means_not"]
    assert "more trials" in verdict_view({**verdict, "trials_needed": 100})["means_not"]
    assert math.isfinite(float(verdict_view({**verdict, "trials_needed": 100})["trials_needed"]))


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_the_page_fits_and_fetches_nothing(
    chromium: Any, record: dict[str, Any], tmp_path: Path, width: int
) -> None:
    record["views"]["of"][0]["title"] = "a_title_that_does_not_end_" * 4
    record["views"]["of"][1]["rates"][0]["game"] = "<b>a_game_with_a_name_that_does_not_end_" * 3
    page = tmp_path / "report.html"
    page.write_text(render(record), encoding="utf-8")
    chromium.forget()
    chromium.show(page, width)
    assert chromium.requested() == [page.as_uri()]
    assert chromium.complaints() == []
    chromium.run("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    assert chromium.overflow() <= 0
    assert chromium.run("return document.querySelectorAll('.views b').length") == 0
    assert chromium.contrast()["ratio"] >= 4.5
