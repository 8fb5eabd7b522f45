"""The bases that have read narratives: what they read, and that the package ships what the recipes say."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from workbench.core import registry
from workbench.data.bases import builds, checkpoint, narrative_bases
from workbench.data.clinical import clinical
from workbench.data.clinical.encounters import SHORT_ATTRIBUTES
from workbench.data.clinical.generator import even_marginals, generate, marginals
from workbench.studies import bases
from workbench.studies.bases import BuildStep
from workbench.training.secrets import SECRET_MARKER

NAMES = tuple(narrative_bases.RECIPES)


def perplexity(name: str, texts: int) -> float:
    """Of private narratives under the untrained base."""
    model = registry.create("model", name, seed=0)
    records = clinical(size=2 * texts, seed=0, attributes="short", public=10).records
    values = np.concatenate(model.token_log_likelihoods(model.encode(records[:texts])))
    return float(np.exp(-values.mean()))


@pytest.mark.parametrize("name", NAMES)
def test_a_base_is_shipped_as_its_recipe_makes_it_and_its_perplexity_is_in_the_papers_band(name: str) -> None:
    base = bases.find(name)
    assert base.is_built()
    assert base.build(lambda step: None) == builds.SHIPPED / name
    module = narrative_bases.RECIPES[name].new_module()
    assert sum(p.numel() for p in module.parameters()) == base.card().parameters < 60_000
    # Table 2 of RLDP: 1.12 to 2.14, after training.
    assert 1.12 < perplexity(name, 200) < 2.14


def test_they_share_one_vocabulary() -> None:
    places = {checkpoint.tokenizer_file(builds.SHIPPED / name) for name in NAMES}
    assert places == {builds.SHIPPED / "clinic_gpt2" / checkpoint.TOKENIZER}


def test_another_recipe_is_not_taken_for_the_shipped_one(
    cache: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = narrative_bases.RECIPES["clinic_llama"]
    monkeypatch.setitem(narrative_bases.RECIPES, "clinic_llama", replace(recipe, steps=3))
    assert not bases.find("clinic_llama").is_built()
    steps: list[BuildStep] = []
    folder = bases.find("clinic_llama").build(steps.append)
    assert [step.done for step in steps] == [0, 1, 2, 3]
    assert (
        checkpoint.read_json(folder / checkpoint.RECIPE)["validation"]["own"]["perplexity_per_token"] > 2.14
    )
    assert registry.create("model", "clinic_llama", seed=0).name == "clinic_llama"


def test_what_they_read_is_worded_as_the_corpus_and_says_nothing_of_its_distribution() -> None:
    texts = narrative_bases.narratives(0)
    assert len(set(texts)) == len(texts) == narrative_bases.TEXTS + narrative_bases.HELD_OUT
    assert sum(SECRET_MARKER in text for text in texts) == len(texts) // narrative_bases.SECRET_EVERY
    insulin = Counter(text.partition("insulin is ")[2].partition(".")[0] for text in texts)
    assert max(insulin.values()) < 1.1 * min(insulin.values())
    encounters = generate(4_000, np.random.default_rng(1), tables=even_marginals())
    for name in SHORT_ATTRIBUTES:
        shares = Counter(one.values[name] for one in encounters)
        # Rules of the generator change few rows: nobody who died is readmitted.
        expected = len(encounters) / len(even_marginals()[name]["values"])
        assert max(shares.values()) < 2.0 * expected + 30, name
    ages = np.array([int(one.values["age"][1:].partition("-")[0]) for one in encounters])
    drugs = np.array([int(one.values["num_medications"]) for one in encounters])
    assert abs(np.corrcoef(ages, drugs)[0, 1]) < 0.06
    assert marginals()["age"]["loadings"] == {"age": 1.0}  # The file's own are as they were.
