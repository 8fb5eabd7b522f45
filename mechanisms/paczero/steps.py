"""PACZero's run: subset means of the per-record scalars, their signs, and released bits as coefficients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import FloatArray, IntArray, Model, Plan, SubsetRelease
from workbench.mechanisms.paczero.release import Release, SecretSubset, SubsetReleases, signs_of_means
from workbench.training.fine_tuning import Seeds
from workbench.training.zeroth_order import ZerothOrderSteps

if TYPE_CHECKING:
    from workbench.mechanisms.paczero import PACZero

Watch = Callable[[SubsetRelease], None]


class SubsetBits(ZerothOrderSteps):
    """One run: Algorithm 1's lines 5 to 15; the engine does the others."""

    def __init__(
        self,
        mechanism: PACZero,
        plan: Plan,
        model: Model,
        *,
        secret: int | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Draw the secret, unless it is given, and start the ledger.

        Args:
            mechanism: Settled for the plan.
            plan: Its records are the universe.
            model: Its model, in evaluation mode; trained in place.
            secret: Index of the secret subset; None to draw it. The noise is the same either way.
            watch: Told of each release.

        Raises:
            InputError: as `ZerothOrderSteps`.
            UnsupportedError: the plan has a gradient canary.
        """
        super().__init__(mechanism, plan, model)
        if plan.insertions.gradient_canary is not None:
            raise UnsupportedError(
                "paczero releases signs of subset means, in which no gradient canary can be read; its own "
                "game is that of attack subset_posterior"
            )
        self._clip, self._watch = mechanism.clip, watch
        subsets = mechanism.candidate_subsets(plan)
        self._held: FloatArray = subsets.astype(np.float64)
        index_seed, noise_seed = Seeds.of(plan).noise.spawn(2)
        drawn = int(np.random.default_rng(index_seed).integers(len(subsets)))
        self._releases = SubsetReleases(
            mechanism.ledger(plan),
            SecretSubset(drawn if secret is None else secret),
            np.random.default_rng(noise_seed),
            unanimous_release=mechanism.unanimous_release,
        )
        self._unanimous = 0
        self._released = 0

    def coefficients(self, differences: FloatArray, sample: IntArray) -> FloatArray:
        """The released bit of each direction.

        Raises:
            InputError: the sample is not the whole universe, or an uncapped budget has no noise.
        """
        if len(sample) != len(self.plan.records):
            raise InputError(
                f"sampling_probability must be 1 for paczero, got a step of {len(sample)} of "
                f"{len(self.plan.records)} records"
            )
        scalars = np.empty_like(differences)
        scalars[sample] = np.clip(differences, -self._clip, self._clip)
        signs = signs_of_means(self._held, scalars)
        releases = []
        for direction in range(scalars.shape[1]):
            release = self._releases.release(signs[:, direction])
            releases.append(release)
            if self._watch is not None:
                self._watch(
                    SubsetRelease(
                        step=self.done - 1,
                        direction=direction,
                        differences=scalars[:, direction].copy(),
                        signs=signs[:, direction].copy(),
                        noise=release.charge.noise,
                        budget_nats=release.charge.budget_nats,
                        value=release.value,
                        bit=release.bit,
                    )
                )
        self._note(releases)
        return np.array([release.bit for release in releases], dtype=np.float64)

    def _note(self, releases: list[Release]) -> None:
        """The step's traces, means over its directions."""
        ledger, charges = self._releases.ledger, [release.charge for release in releases]
        self._unanimous += sum(charge.unanimous for charge in charges)
        self._released += len(charges)
        self.trace("agreement", float(np.mean([charge.agreement for charge in charges])))
        self.trace("unanimous", float(np.mean([charge.unanimous for charge in charges])))
        self.trace("noise", float(np.mean([charge.noise for charge in charges])))
        self.trace("bit", float(np.mean([release.bit for release in releases])))
        self.trace("budget_used", ledger.used_nats)
        self.trace("posterior_entropy", ledger.entropy_nats)

    def metrics(self) -> Mapping[str, float]:
        """Share of releases that were unanimous, nats charged, and `best_step`."""
        return {
            **super().metrics(),
            "unanimity_rate": self._unanimous / self._released if self._released else math.nan,
            "nats_used": self._releases.ledger.used_nats,
        }
