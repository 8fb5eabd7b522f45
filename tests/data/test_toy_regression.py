"""The toy regression: what its docstring states of task and model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.interfaces import Corpus, Model, Record


def corpus(size: int = 4000, seed: int = 0, **more: float) -> Corpus:
    made: Corpus = registry.create("corpus", "toy_regression", size=size, seed=seed, **more)
    return made


def model(**more: int) -> Model:
    made: Model = registry.create("model", "toy_regression", seed=0, **more)
    return made


def rows(found: Corpus) -> np.ndarray:
    return np.array([record.image for record in found.records], dtype=np.float64)


def test_the_task_is_the_one_that_is_stated() -> None:
    """Least squares on 4,000 records: the residual's variance strays from 0.01 by 10 % once in 10^5 runs."""
    found = rows(corpus())
    features, targets = found[:, :-1], found[:, -1]
    line, *_ = np.linalg.lstsq(features, targets, rcond=None)
    assert np.linalg.norm(line) == pytest.approx(np.sqrt(10), abs=0.02)
    assert np.var(targets - features @ line) == pytest.approx(0.01, rel=0.1)
    assert np.cov(features.T) == pytest.approx(np.eye(10), abs=0.08)
    assert np.mean(targets**2) == pytest.approx(10.01, rel=0.1)


def test_each_seed_has_a_line_of_its_own_and_noise_can_be_left_out() -> None:
    lines = []
    for seed in range(3):
        found = rows(corpus(size=40, seed=seed, noise=0.0))
        line, residuals, *_ = np.linalg.lstsq(found[:, :-1], found[:, -1], rcond=None)
        assert residuals == pytest.approx(0.0, abs=1e-8)
        lines.append(line)
    assert abs(np.corrcoef(lines[0], lines[1])[0, 1]) < 0.999
    assert not np.allclose(lines[1], lines[2])


def test_the_models_loss_is_the_squared_error_of_each_record_alone() -> None:
    linear, records = model(), corpus(size=5).records
    assert [name for name, _ in linear.module.named_parameters()] == ["weight"]
    assert not linear.module.weight.any()
    with torch.no_grad():
        linear.module.weight.copy_(torch.arange(10.0))
    values = np.array([record.image for record in records])
    wanted = (values[:, :-1] @ np.arange(10.0) - values[:, -1]) ** 2
    batch = linear.encode(records)
    assert linear.losses(batch).tolist() == pytest.approx(wanted, rel=1e-4)
    alone = [linear.token_log_likelihoods(linear.encode([record]))[0] for record in records]
    assert np.concatenate(alone) == pytest.approx(-wanted, rel=1e-4)
    assert linear.losses(linear.encode([])).shape == (0,)


def test_mistakes_are_refused_in_a_line() -> None:
    with pytest.raises(InputError, match="record 'a' must have 11 values, features and target, has none"):
        model().encode([Record(id="a", text="words")])
    with pytest.raises(InputError, match="record 'a' must have 3 values, features and target, has 2"):
        model(features=2).encode([Record(id="a", image=(0.0, 1.0))])
    with pytest.raises(InputError, match="features must be an integer of at least 1, got 0"):
        corpus(features=0)
    with pytest.raises(InputError, match=r"features must be at most 10000, got 10001"):
        model(features=10_001)
    with pytest.raises(InputError, match=r"noise must be finite and >= 0, got -1"):
        corpus(noise=-1.0)
