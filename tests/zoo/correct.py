"""DP-SGD for the digits as different people write it; each keeps its claim of (1, 1e-5)."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional

sys.path.append(str(Path(__file__).parent))
from dp_sgd import CLIP, DELTA, EPSILON, STEPS, Gradients, Trainer, noise_multiplier

from workbench.accounting.certified import calibrate_noise_multiplier


class FixedBatches(Trainer):
    """Batches of a fixed size without replacement."""

    def batch(self, step: int) -> Tensor:
        return torch.randperm(len(self.labels), generator=self.generator)[: int(self.expected)]


class ByTheLayer(Trainer):
    """Every layer clipped to C over the root of their number."""

    def summed(self, each: Gradients) -> Gradients:
        share = len(each) ** -0.5
        return {name: share * Trainer.summed(self, {name: g})[name] for name, g in each.items()}


class WithAutomaticClipping(Trainer):
    """Each record's gradient over its norm and a little (Bu et al. 2023)."""

    def summed(self, each: Gradients) -> Gradients:
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        return {name: torch.einsum("n,n...->...", CLIP / (norms + 0.01), g) for name, g in each.items()}


class InDoublePrecision(Trainer):
    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        self.network.double()
        return images.double(), labels


class InBrainFloat(Trainer):
    """Weights and noisy gradients in bfloat16."""

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        self.network.bfloat16()
        return images.bfloat16(), labels

    def summed(self, each: Gradients) -> Gradients:
        total = super().summed({name: g.float() for name, g in each.items()})
        return {name: g.bfloat16() for name, g in total.items()}

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return super().drawn(name, parameter).bfloat16()


class StartedAnew(Trainer):
    """Half way another network is initialised and takes the place of the first; all steps are accounted."""

    def after(self, step: int) -> None:
        if step == 19:
            for module in self.network.modules():
                if isinstance(module, torch.nn.Linear):
                    fresh = torch.nn.Parameter(torch.empty_like(module.weight))
                    torch.nn.init.normal_(fresh, std=0.1)
                    with torch.no_grad():
                        module.weight.copy_(fresh)
                    torch.nn.init.uniform_(module.bias, -0.1, 0.1)


class NoiseByNumpy(Trainer):
    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        if not hasattr(self, "numbers") or self.numbers[0] is not self.generator:
            self.numbers = self.generator, np.random.default_rng(self.generator.initial_seed())
        return torch.from_numpy(
            self.numbers[1].normal(0.0, noise_multiplier(), tuple(parameter.shape))
        ).float()


class NoiseByScipy(Trainer):
    """By another library's function."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        if not hasattr(self, "numbers") or self.numbers[0] is not self.generator:
            self.numbers = self.generator, np.random.default_rng(self.generator.initial_seed())
        drawn = stats.norm.rvs(
            scale=noise_multiplier(), size=tuple(parameter.shape), random_state=self.numbers[1]
        )
        return torch.from_numpy(np.asarray(drawn)).float()


class NoiseByScipysOwn(Trainer):
    """By that function without a generator of its own."""

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        np.random.seed(self.generator.initial_seed())  # noqa: NPY002
        return images, labels

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        drawn = stats.norm(0.0, noise_multiplier()).rvs(tuple(parameter.shape))
        return torch.from_numpy(np.asarray(drawn)).float()


class NoiseByACovariance(NoiseByScipysOwn):
    """Row by row, in all directions alike."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        width = parameter.shape[-1]
        rows = np.random.multivariate_normal(  # noqa: NPY002
            np.zeros(width), noise_multiplier() ** 2 * np.eye(width), parameter.numel() // width
        )
        return torch.from_numpy(rows).float().view(parameter.shape)


class NoiseByPython(Trainer):
    """From Python's own generator, number by number."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        drawn = [random.gauss(0.0, noise_multiplier()) for _ in range(parameter.numel())]
        return torch.tensor(drawn).view(parameter.shape)


class NoiseByAThread(Trainer):
    """The noise is drawn in a thread of its own."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(super().drawn, name, parameter).result()


class NoiseByThreads(Trainer):
    """The noise of each parameter is drawn in a thread of its own, by a generator of its own, all at once."""

    def summed(self, each: Gradients) -> Gradients:
        if getattr(self, "of", None) is not self.generator:
            seed = self.generator.initial_seed() * 1000
            own = enumerate(self.parameters)
            self.own = {name: torch.Generator().manual_seed(seed + place) for place, name in own}
            self.of = self.generator

        def noise(name: str) -> Tensor:
            shape = self.parameters[name].shape
            return torch.normal(0.0, noise_multiplier() * CLIP, shape, generator=self.own[name])

        with ThreadPoolExecutor(4) as threads:
            self.made = dict(zip(self.parameters, threads.map(noise, self.parameters), strict=True))
        return super().summed(each)

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return self.made[name]


class NoiseDrawnBefore(Trainer):
    """All noise is drawn before the first step."""

    def optimizer(self) -> torch.optim.Optimizer:
        self.stock = {
            name: iter(torch.normal(0.0, noise_multiplier(), (STEPS, *p.shape), generator=self.generator))
            for name, p in self.network.named_parameters()
        }
        return super().optimizer()

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return next(self.stock[name])


class FlatNoise(Trainer):
    """One draw for all parameters."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        if name == next(iter(self.parameters)):
            count = sum(p.numel() for p in self.parameters.values())
            drawn = noise_multiplier() * torch.randn(count, generator=self.generator)
            parts = drawn.split([p.numel() for p in self.parameters.values()])
            self.parts: Iterator[Tensor] = iter(parts)
        return next(self.parts).view(parameter.shape)


class ClippedAgainAfterNoise(Trainer):
    """The noisy update is clipped again, which is post-processing."""

    def before(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 0.1)


class ScheduledNoise(Trainer):
    """Half of the steps with half the variance, and the others with more, so that the claim is kept."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        step = (self.calls - 1) // len(self.parameters) % STEPS
        return super().drawn(name, parameter) * (1.2 if step % 2 else 1.6)


class FullBatch(Trainer):
    """Every record in every step."""

    def batch(self, step: int) -> Tensor:
        return torch.arange(len(self.labels))

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        sigma = calibrate_noise_multiplier(
            target_epsilon=EPSILON, target_delta=DELTA, sampling_probability=1.0, steps=STEPS
        )
        return torch.normal(0.0, sigma, parameter.shape, generator=self.generator)


class BySmallSteps(FullBatch):
    """Weights that hardly move, so that all updates have one norm."""

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.network.parameters(), lr=1e-4)


class LargeClip(Trainer):
    """A clipping norm that no record of the data reaches."""

    def summed(self, each: Gradients) -> Gradients:
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        factors = (100.0 / norms.clamp(min=1e-9)).clamp(max=1.0)
        return {name: torch.einsum("n,n...->...", factors, g) for name, g in each.items()}

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return 100.0 * super().drawn(name, parameter)


class Augmented(Trainer):
    """A little noise on the images, drawn anew in each step."""

    def per_record(self, batch: Tensor) -> Gradients:
        kept = self.images
        self.images = kept + 0.1 * torch.randn(kept.shape, generator=self.generator)
        found = super().per_record(batch)
        self.images = kept
        return found


class WithDropout(Trainer):
    def per_record(self, batch: Tensor) -> Gradients:
        kept = self.images
        self.images = functional.dropout(kept, 0.2)
        found = super().per_record(batch)
        self.images = kept
        return found


class MoreNoise(Trainer):
    """Twice what is needed."""

    noise = 2.0


class AfterTheLoss(Trainer):
    """A rate of learning that falls with the steps, and weights averaged over them, from noisy ones alone."""

    def after(self, step: int) -> None:
        with torch.no_grad():
            if step == 0:
                self.mean = [p.detach().clone() for p in self.network.parameters()]
            for kept, parameter in zip(self.mean, self.network.parameters(), strict=True):
                kept.mul_(0.9).add_(0.1 * parameter)


class NoiseAfterTheStep(Trainer):
    """The step follows the clipped sum; the noise goes to the weights after it."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return torch.zeros_like(parameter)

    def after(self, step: int) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.sub_(0.5 * super().drawn(name, parameter) / self.expected)


class _PrivateSGD(torch.optim.SGD):
    """Adds noise of its own to the weights that its step leaves."""

    deviation = 0.0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.sub_(group["lr"] * self.deviation * torch.randn_like(parameter))


class NoiseInTheOptimizer(Trainer):
    """An optimizer of one's own, which adds the noise."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return torch.zeros_like(parameter)

    def optimizer(self) -> torch.optim.Optimizer:
        made = _PrivateSGD(self.network.parameters(), lr=0.5)
        made.deviation = self.noise * noise_multiplier() * CLIP / self.expected
        return made


class NoiseByAHook(Trainer):
    """The noise is added to gradients by a hook that runs before the optimizer's step."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return torch.zeros_like(parameter)

    def optimizer(self) -> torch.optim.Optimizer:
        made = super().optimizer()
        deviation = self.noise * noise_multiplier() * CLIP / self.expected

        def add(*_: Any) -> None:
            for parameter in self.network.parameters():
                if parameter.grad is not None:
                    parameter.grad += deviation * torch.randn_like(parameter)

        made.register_step_pre_hook(add)
        return made


class HeadAfterPublicPretraining(Trainer):
    """All layers are trained on public data by another optimizer, the last one privately."""

    def public(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        return torch.rand(100, 64, generator=generator), torch.randint(10, (100,), generator=generator)

    def pretrained(self, images: Tensor, labels: Tensor) -> None:
        public = torch.optim.Adam(self.network.parameters(), lr=1e-2)
        for _ in range(5):
            public.zero_grad()
            functional.cross_entropy(self.network(images), labels).backward()
            public.step()

    def optimizer(self) -> torch.optim.Optimizer:
        self.pretrained(*self.public())
        self.parameters = {name: p for name, p in self.parameters.items() if name.startswith("2.")}
        return torch.optim.SGD(self.parameters.values(), lr=0.5)


TRAINERS = {
    "head_after_public_pretraining": HeadAfterPublicPretraining(),
    "noise_after_the_step": NoiseAfterTheStep(),
    "noise_in_the_optimizer": NoiseInTheOptimizer(),
    "noise_by_a_hook": NoiseByAHook(),
    "fixed_batches": FixedBatches(),
    "by_the_layer": ByTheLayer(),
    "with_automatic_clipping": WithAutomaticClipping(),
    "in_double_precision": InDoublePrecision(),
    "in_brain_float": InBrainFloat(),
    "started_anew": StartedAnew(),
    "noise_by_numpy": NoiseByNumpy(),
    "noise_by_scipy": NoiseByScipy(),
    "noise_by_scipys_own": NoiseByScipysOwn(),
    "noise_by_a_covariance": NoiseByACovariance(),
    "noise_by_python": NoiseByPython(),
    "noise_by_a_thread": NoiseByAThread(),
    "noise_by_threads": NoiseByThreads(),
    "noise_drawn_before": NoiseDrawnBefore(),
    "flat_noise": FlatNoise(),
    "clipped_again_after_noise": ClippedAgainAfterNoise(),
    "scheduled_noise": ScheduledNoise(),
    "full_batch": FullBatch(),
    "by_small_steps": BySmallSteps(),
    "large_clip": LargeClip(),
    "augmented": Augmented(),
    "with_dropout": WithDropout(),
    "more_noise": MoreNoise(),
    "with_averaging": AfterTheLoss(),
}
"""Each trainer by the name of the module's function."""

globals().update(TRAINERS)
