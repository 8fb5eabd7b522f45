"""The page of an audit: complete, ordered, deterministic, and harmless whatever the record holds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import workbench
from workbench.accounting import (
    ApproximateDP,
    GaussianDP,
    MutualInformation,
    NoGuarantee,
    RenyiDP,
    binary_kl_nats,
)
from workbench.audit.run import claim_form, judged_subject
from workbench.core import registry
from workbench.core.errors import InputError
from workbench.interfaces import (
    Adjacency,
    Claim,
    Evidence,
    GameTerms,
    Guarantee,
    Released,
    Secret,
    Trials,
)
from workbench.reports.shared.pages.currencies import allowed_by
from workbench.reports.shared.pages.plots import bounds_plot, histogram_plot, roc_plot, training_plot

Builders = dict[str, Callable[..., dict[str, Any]]]

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """The page's elements in order, its text, and a complaint for each tag that does not match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.sections: list[str] = []
        self.complaints: list[str] = []
        self.feed(text)
        self.close()
        self.text = re.sub(r"[ \n]+", " ", " ".join(self.words))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "h2":
            self.sections.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.complaints.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)
        if "h2" in self.open:
            self.sections[-1] += data


def render(record: dict[str, Any]) -> str:
    """The page, by way of the registry, of the record as it comes back from its file."""
    page = registry.create("report", "html", report=json.loads(json.dumps(record, allow_nan=False)))
    assert isinstance(page, str)
    return page


def parsed(record: dict[str, Any]) -> Page:
    page = Page(render(record))
    assert page.complaints == []
    assert page.open == []
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert not {"script", "iframe", "object", "embed", "img"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "xlink:href", "action", "data"):
            assert name not in attributes or attributes[name] == "data:,"
    return page


WORDS = {
    "REFUTED": "Refuted",
    "NOT_REFUTED": "Not refuted",
    "UNDERPOWERED": "Underpowered",
    "INVALID": "Invalid",
}


@pytest.mark.parametrize("kind", WORDS)
def test_the_verdict_leads_in_words_with_its_fixed_explanation(records: Builders, kind: str) -> None:
    record = records["full"](kind)
    page = parsed(record)
    headings = [tag for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert headings[0] == "h1"
    assert headings.count("h1") == 1
    body = page.text.split("Privacy audit", 1)[1]
    assert body.index(WORDS[kind]) < body.index(record["verdict"]["sentence"]) < body.index("It does not say")
    assert ("error probability of 5\u202f%" in body) or ("at most 5\u202f%" in body) or kind == "INVALID"


def test_not_refuted_is_never_called_private(records: Builders) -> None:
    text = parsed(records["full"]("NOT_REFUTED")).text.lower()
    assert "does not show that the claim is true" in text
    assert "can never prove one" in text
    for phrase in ("is private", "are private", "is safe.", "verified", "passed", "certified", "proves"):
        assert phrase not in text


def test_underpowered_says_how_many_trials(records: Builders) -> None:
    assert "about 17\u202f890 trials" in parsed(records["full"]("UNDERPOWERED")).text


def test_the_contents_come_in_the_order_of_the_demand(records: Builders) -> None:
    page = parsed(records["full"]())
    assert page.sections == [
        "What “Not refuted” means",
        "The claim",
        "The games",
        "What the data show",
        "Metrics",
        "ROC against what the claim allows",
        "Scores",
        "Training",
        "Control: non_private Refuted",
        "Run it again",
    ]
    text = page.text
    assert text.index("Control: does not count") > text.index("Perplexity per token")
    assert "Versions" in text
    assert "Hardware and cost" in text
    assert "workbench audit --out audit" in text
    for detail in (
        "98.33\u202f%",  # confidence of a bound
        "δ",
        "any (epsilon, delta)",  # its family
        "Assumes: labels are independent fair coins",
        "95\u202f%: 0.532 to 0.692",  # a metric's interval
        "mu-GDP with mu = 0.268",
        "mutual information of at most 0.1109",
        "148.2",  # perplexity before
        "2.13.0",  # a version
        "seed, attack",
        "attack_parameters.lira.shadows",
        "2 min 31 s",
        "Its own claim: no guarantee",
        "one release of a longer run",
    ):
        assert detail in text, detail


def test_equal_records_give_equal_bytes(records: Builders) -> None:
    first, second = render(records["full"]()), render(records["full"]())
    assert first == second
    assert first != render(records["full"]("REFUTED"))


def test_scores_alone_have_no_training_and_no_control(records: Builders) -> None:
    page = parsed(records["scores"]())
    assert "scores from a file" in page.text
    assert "Training" not in page.text
    assert "control" not in page.text.lower()


def test_ten_thousand_scores_make_a_small_page(records: Builders) -> None:
    page = render(records["scores"](n=10_000, shift=1.0))
    assert len(page.encode()) < 150_000
    assert "10\u202f000" in page


def test_bounds_that_are_not_finite_are_shown(records: Builders) -> None:
    record = records["full"]("REFUTED")
    for bound in record["subjects"][0]["attacks"][0]["verdict"]["bounds"]:
        bound.update(lower="inf", estimate="nan")
    record["subjects"][0]["attacks"][1]["verdict"]["bounds"][0].update(lower="-inf", estimate="inf")
    text = parsed(record).text
    assert "ε ≥ ∞" in text
    assert "ε ≥ −∞" in text
    assert "n/a" in text
    assert "NaN" not in render(record)


def test_a_verdict_without_bounds_or_metrics_still_reads(records: Builders) -> None:
    record = records["scores"]("UNDERPOWERED")
    for verdict in (record["subjects"][0]["attacks"][0]["verdict"], record["verdict"]):
        verdict.update(bound=None, bounds=[], intervals=[])
    text = parsed(record).text
    assert "no bound" in text
    assert "No estimator gave a bound." in text


@pytest.mark.parametrize(("scores", "members"), [([0.25] * 30, [True] * 30), ([0.5] * 4, [True, False] * 2)])
def test_degenerate_scores_are_drawn(records: Builders, scores: list[float], members: list[bool]) -> None:
    record = records["scores"]("INVALID")
    record["subjects"][0]["attacks"][0].update(scores=scores, members=members)
    assert "Score (higher: more likely a member)" in parsed(record).text


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style></title><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "a\x00b\x1b[31m\x85",
    "\ud800 lone",
    "x" * 5000,
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_strings_stay_text(records: Builders, text: str) -> None:
    def poisoned(form: Any) -> Any:
        """Every free text of the record replaced, and every free key added to."""
        if isinstance(form, dict):
            fixed = ("kind", "currency", "trials", "schema", "secret", "role", "quantity")
            changed = {
                key: value if key in fixed and isinstance(value, str) else poisoned(value)
                for key, value in form.items()
            }
            return changed
        if isinstance(form, list):
            return [poisoned(item) for item in form]
        return text if isinstance(form, str) and form not in ("inf", "-inf", "nan") else form

    record = poisoned(records["full"]())
    for subject in record["subjects"]:
        subject["metrics"][text] = 1.0
        subject["parameters"][text] = text
        for attack in subject["attacks"]:
            attack["details"][text] = 1.0
            attack["seeds"][text] = 3
            attack["cost"][text] = 3.0
    record["versions"][text] = text
    record["hardware"][text] = text
    page = parsed(record)
    if text.isprintable() and len(text) < 100:
        assert text in page.text
    rendered = render(record)
    rendered.encode("utf-8")
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", rendered)


def test_an_unusable_record_is_one_line(records: Builders) -> None:
    record = records["full"]()
    with pytest.raises(InputError, match="report schema must be 1, got 2"):
        render({**record, "schema": 2})
    del record["verdict"]
    with pytest.raises(InputError, match="report lacks the field 'verdict'"):
        render(record)


@pytest.mark.parametrize(
    ("guarantee", "about", "trials"),
    [
        (ApproximateDP(epsilon=0.0, delta=0.0), Adjacency.ADD_REMOVE, Trials.ONE_RUN),
        (ApproximateDP(epsilon=900.0, delta=1e-9), Adjacency.REPLACE_ONE, Trials.ONE_RUN),
        (GaussianDP(mu=1.0), Adjacency.ADD_REMOVE, Trials.INDEPENDENT),
        (RenyiDP(alpha=8.0, epsilon=0.5), Adjacency.ZERO_OUT, Trials.INDEPENDENT),
        (MutualInformation(nats=0.25, secret=Secret.RECORD), Secret.RECORD, Trials.INDEPENDENT),
    ],
)
def test_what_the_judge_says_is_rendered_in_every_currency(
    records: Builders, guarantee: Guarantee, about: Adjacency | Secret, trials: Trials
) -> None:
    """The record is the runner's own here, so that a change of its shape breaks this test."""
    generator = np.random.default_rng(3)
    members = generator.random(120) < 0.5
    evidence = Evidence(
        scores=generator.normal(size=120) + members,
        members=members,
        game=GameTerms(description="coins", trials=trials, released=Released.SCORES),
        attack="loss",
    )
    claim = Claim(guarantee=guarantee, about=about, released=Released.SCORES, source="the user")
    subject = judged_subject("somebody's", "scores", claim, [evidence], confidence=0.95, seed=0)
    record = {**records["scores"](), "subjects": [subject], "claim": claim_form(claim)}
    record["verdict"] = subject["verdict"]
    text = parsed(record).text
    assert guarantee.describe() in text
    assert subject["verdict"]["sentence"] in text
    assert ("D(α = 8) ≥ " in text) == isinstance(guarantee, RenyiDP)


@pytest.mark.parametrize(
    "claim",
    [
        ApproximateDP(epsilon=1.0, delta=1e-5),
        GaussianDP(mu=0.7),
        RenyiDP(alpha=4.0, epsilon=0.3),
        MutualInformation(nats=0.1, secret=Secret.RECORD),
    ],
)
def test_references_agree_with_the_claim_where_they_say_so(claim: Guarantee) -> None:
    first, *others = allowed_by(claim)
    assert first.guarantee == claim
    assert others
    for other in others:
        if "highest success" in other.agreement:
            assert math.isclose(other.success, first.success, abs_tol=1e-9)
        fpr = np.linspace(0.0, 1.0, 33)
        assert np.all(np.diff(other.max_tpr(fpr)) >= -1e-12)
    if isinstance(claim, GaussianDP):
        dp = next(other for other in others if other.key == "dp")
        fpr = np.linspace(0.0, 1.0, 33)
        assert np.all(claim.max_tpr(fpr) <= dp.max_tpr(fpr) + 1e-9)


def test_the_information_reference_is_paczeros(records: Builders) -> None:
    """PACZero, section 2: 0.33 nats and epsilon = 2 allow the same success."""
    information = allowed_by(ApproximateDP(epsilon=2.0, delta=0.0))[-1].guarantee
    assert isinstance(information, MutualInformation)
    assert information.nats == pytest.approx(binary_kl_nats(1 / (1 + math.exp(-2.0)), 0.5), abs=1e-12)
    assert information.nats == pytest.approx(0.33, abs=0.005)
    assert len(allowed_by(NoGuarantee())) == 1


def test_the_roc_caption_reads_the_curve() -> None:
    scores = np.array([3.0, 2.0, 1.0, 0.0] + [-1.0] * 6 + [2.5] + [-2.0] * 9)
    members = np.array([True] * 10 + [False] * 10)
    plot = roc_plot("r", "loss", scores, members, allowed_by(ApproximateDP(epsilon=1.0, delta=0.0)))
    assert plot is not None
    # One of ten non-members scores 2.5, above all members but the one of 3.0; the next threshold takes four.
    assert "at FPR 10\u202f% measured TPR 100\u202f%, allowed 27.2\u202f%" in plot.caption
    assert "FPR 1\u202f%" not in plot.caption


def test_plots_refuse_what_they_cannot_draw() -> None:
    allowed = allowed_by(ApproximateDP(epsilon=1.0, delta=0.0))
    with pytest.raises(InputError, match="scores must be finite"):
        roc_plot("r", "loss", np.array([1.0, math.nan]), np.array([True, False]), allowed)
    with pytest.raises(InputError, match="members must have the shape"):
        histogram_plot("h", "loss", np.zeros(3), np.zeros(2, dtype=bool))
    assert training_plot("t", "dp_sgd", np.array([math.nan, math.nan])) is None
    assert training_plot("t", "dp_sgd", np.array([2.0])) is not None
    assert bounds_plot("b", [], 1.0) is None


def test_scores_whose_range_no_float_holds_are_drawn_divided(tmp_path: Path) -> None:
    members = np.arange(200) % 2 == 0
    page = tmp_path / "page.html"
    workbench.audit_scores(np.where(members, 1e308, -1e308), members).save(str(page))
    assert "scores divided by 1.26765e+30" in page.read_text(encoding="utf-8")
