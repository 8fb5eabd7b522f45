"""Many small models at once: our ensemble against a loop of ours, Opacus in a loop, and `torch.func` vmap.

Every contestant trains the same plans on one core: digits, its own half of 1,000 records for each model, its
own Poisson samples of 50 records in expectation, SGD; with privacy, per-record clipping and noise of its own.
LoRA adapters over `tiny_gpt2` are trained on halves of 128 notes, five records in expectation, AdamW, as an
audit trains its shadows: whole notes of some 107 tokens, and notes cut after 32.
Building the models and drawing the samples count. Contestants take turns within each repeat, in an order that
rotates; those that train one model after the other train two a turn. Times are of the processor, by one
thread, so that other work on the machine hardly matters; a ratio is the median over repeats of (time a model)
/ (the ensemble's time a model in the same repeat). Peak memory is that of a fresh process which trains as
many models at once as the contestant does. At last a DP step by products in bfloat16, over the float32 step
without privacy.

Run `python benchmarks/ensembles.py` (some minutes), or `--quick`. Results go to
`benchmarks/results/ensembles.json` and `ensembles.md`.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import adapters
import numpy as np
import torch
from shared import machine, options, quiet, turns, write
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from workbench.accounting import ApproximateDP
from workbench.core import registry
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Plan
from workbench.mechanisms.dp_sgd import DPSGD
from workbench.mechanisms.non_private import NonPrivate
from workbench.training import precision
from workbench.training.ensemble.together import Ensemble, train_together
from workbench.training.fine_tuning import Seeds, build_model, torch_generator
from workbench.training.loop import GradientMechanism
from workbench.training.samples import step_samples

OURS, LOOP, VMAP = "ensemble (ours)", "loop (ours)", "torch.func vmap"
OPACUS, PLAIN = "Opacus hooks, loop", "PyTorch loop"
ONE_AFTER_THE_OTHER = (LOOP, OPACUS, PLAIN)
IN_A_TURN = 2
"""Models that a contestant trains in a turn, of those that train one after the other."""
NOISE, CLIP = 1.0, 1.0
Contestant = Callable[[list[Plan]], Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Models to be trained.

    `goals`: by contestant, how many times its time an ensemble's model shall take at most. `max_length`: of
    texts in tokens, where LoRA adapters are trained; 0 for images. `steps`: a share of the steps asked for.
    """

    name: str
    model: str
    private: bool
    models: int
    goals: dict[str, float]
    max_length: int = 0
    steps: float = 1.0


CASES = (
    Case(name="DP-SGD, MLP", model="digits_mlp", private=True, models=32, goals={OPACUS: 14.0}),
    Case(name="shadows, MLP", model="digits_mlp", private=False, models=64, goals={LOOP: 5.0}),
    Case(name="shadows, logistic", model="digits_logistic", private=False, models=64, goals={LOOP: 20.0}),
    *(
        Case(
            name=f"LoRA, tiny_gpt2, {kind}",
            model="tiny_gpt2",
            private=private,
            models=8,
            goals={LOOP: 2.0},
            max_length=length,
            steps=0.25,
        )
        for kind, private, length in (
            ("DP-SGD, notes of 107 tokens", True, 160),
            ("DP-SGD, notes cut after 32 tokens", True, 32),
            ("shadows, notes of 107 tokens", False, 160),
        )
    ),
)


def mechanism_of(case: Case) -> GradientMechanism:
    """With the noise that every private contestant adds."""
    if case.private:
        return DPSGD(noise_multiplier=NOISE, l2_clip_norm=CLIP, measures_quality=False)
    return NonPrivate(measures_quality=False)


def plans_of(case: Case, steps: int) -> list[Plan]:
    """One a model, each on its own half of the records."""
    if case.max_length:
        return adapters.plans_of(case.models, steps, case.max_length)
    records = registry.create("corpus", "digits", size=1000, seed=0).records
    rng = np.random.default_rng(0)
    common = Plan(
        records=(),
        held_out=(),
        model=case.model,
        steps=steps,
        sampling_probability=0.1,
        learning_rate=0.5,
        optimizer="sgd",
        budget=ApproximateDP(epsilon=8.0, delta=1e-5),
        public_size=500,
    )
    halves = [rng.random(len(records)) < 0.5 for _ in range(case.models)]
    return [
        replace(common, records=tuple(r for r, used in zip(records, half, strict=True) if used), seed=seed)
        for seed, half in enumerate(halves)
    ]


def batches_of(plan: Plan, model: Any) -> list[tuple[Tensor, Tensor]]:
    """Images and labels of each step's sample."""
    batch = model.encode(plan.records)
    samples = step_samples(plan, np.random.default_rng(Seeds.of(plan).sampling))
    drawn = [torch.from_numpy(next(samples)) for _ in range(plan.steps)]
    return [(batch["images"][chosen], batch["labels"][chosen]) for chosen in drawn]


def opacus_loop(plans: list[Plan]) -> None:
    """DP-SGD by Opacus' hooks and its optimizer."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    for plan in plans:
        model = build_model(plan)
        module: Any = GradSampleModule(model.module.train())
        optimizer: Any = DPOptimizer(
            torch.optim.SGD(module.parameters(), lr=plan.learning_rate),
            noise_multiplier=NOISE,
            max_grad_norm=CLIP,
            expected_batch_size=50,
            generator=torch_generator(Seeds.of(plan).noise),
        )
        for images, labels in batches_of(plan, model):
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(module(images), labels).backward()
            optimizer.step()


def pytorch_loop(plans: list[Plan]) -> None:
    """Ordinary training as one would write it."""
    for plan in plans:
        model = build_model(plan)
        optimizer = torch.optim.SGD(model.module.parameters(), lr=plan.learning_rate)
        for images, labels in batches_of(plan, model):
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model.module(images), labels, reduction="sum") / 50
            loss.backward()
            optimizer.step()


def padded_steps(plans: list[Plan], models: list[Any]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Of each step: images `(R, n, features)`, labels and masks `(R, n)`."""
    steps = []
    for drawn in zip(*(batches_of(p, m) for p, m in zip(plans, models, strict=True)), strict=True):
        images = nn.utils.rnn.pad_sequence([part[0] for part in drawn], batch_first=True)
        labels = nn.utils.rnn.pad_sequence([part[1] for part in drawn], batch_first=True)
        sizes = torch.tensor([len(part[1]) for part in drawn])
        steps.append((images, labels, torch.arange(images.shape[1]) < sizes[:, None]))
    return steps


def vmap_ensemble(plans: list[Plan], *, private: bool) -> None:
    """All models mapped by `torch.func`, with privacy their records too."""
    models = [build_model(plan) for plan in plans]
    parameters, _ = stack_module_state([model.module for model in models])
    values = {name: p.detach() for name, p in parameters.items()}
    module, generator = models[0].module, torch.Generator().manual_seed(0)

    def record_loss(own: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(module, own, (image[None],)), label[None])

    def batch_loss(own: dict[str, Tensor], images: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        logits = functional_call(module, own, (images,))
        return (nn.functional.cross_entropy(logits, labels, reduction="none") * mask).sum()

    per_record = vmap(vmap(grad(record_loss), in_dims=(None, 0, 0)))
    whole = vmap(grad(batch_loss))
    for images, labels, mask in padded_steps(plans, models):
        if private:
            gradients = per_record(values, images, labels)
            norms = sum(g.flatten(2).square().sum(2) for g in gradients.values()).sqrt()
            factors = (CLIP / norms).clamp(max=1.0) * mask
            sums = {name: torch.einsum("rn,rn...->r...", factors, g) for name, g in gradients.items()}
            for total in sums.values():
                total.add_(torch.empty_like(total).normal_(0.0, NOISE * CLIP, generator=generator))
        else:
            sums = whole(values, images, labels, mask)
        for name, total in sums.items():
            values[name].sub_(total, alpha=plans[0].learning_rate / 50)


def contestants(case: Case) -> dict[str, Contestant]:
    """By name; each trains a list of plans."""
    mechanism = mechanism_of(case)
    entered: dict[str, Contestant] = {
        OURS: lambda plans: train_together(mechanism, plans),
        LOOP: lambda plans: [mechanism.train(plan) for plan in plans],
    }
    if case.max_length and case.private:
        entered[VMAP] = lambda plans: adapters.vmap_ensemble(plans, NOISE, CLIP)
        entered[OPACUS] = lambda plans: adapters.opacus_loop(plans, NOISE, CLIP)
    if case.max_length:
        return entered
    entered |= {
        VMAP: lambda plans: vmap_ensemble(plans, private=case.private),
    }
    entered[OPACUS if case.private else PLAIN] = opacus_loop if case.private else pytorch_loop
    return entered


def peak_memory(case: Case, name: str) -> float:
    """Largest memory of a fresh process that trains for a few steps, MiB."""
    words = [sys.executable, __file__, "--memory", case.name, name]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout))


def measured_memory(case: Case, name: str) -> float:
    """What `peak_memory` asks a fresh process for."""
    count = 1 if name in ONE_AFTER_THE_OTHER else case.models
    contestants(case)[name](plans_of(case, 5)[:count])
    # Not `getrusage`, in which the peak of the parent lives on.
    (line,) = [x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def result(case: Case, steps: int, repeats: int) -> dict[str, Any]:
    """Times a model and a step, ratios and peak memory of one case."""
    steps = max(1, round(steps * case.steps))
    entered, plans = contestants(case), plans_of(case, steps)
    for train in entered.values():
        train([replace(plan, steps=1) for plan in plans[:2]])
    seconds: dict[str, list[float]] = {name: [] for name in entered}
    for repeat, name in turns(list(entered), repeats):
        count = IN_A_TURN if name in ONE_AFTER_THE_OTHER else case.models
        chosen = [plans[(repeat * count + i) % len(plans)] for i in range(count)]
        started = time.process_time()
        entered[name](chosen)
        seconds[name].append((time.process_time() - started) / count)
    rows = {}
    for name, times in seconds.items():
        ratios = sorted(t / own for t, own in zip(times, seconds[OURS], strict=True))
        rows[name] = {
            "microseconds_a_model_and_step": 1e6 * statistics.median(times) / steps,
            "ensemble_is_faster_by": statistics.median(ratios),
            "range": [ratios[0], ratios[-1]],
            "peak_memory_mib": peak_memory(case, name),
            "goal": case.goals.get(name),
        }
    return {
        "case": case.name,
        "models": case.models,
        "sample": 5 if case.max_length else 50,
        "steps": steps,
        "repeats": repeats,
        "contestants": rows,
    }


def reduced_products(steps: int, repeats: int) -> dict[str, Any]:
    """A DP step by products in bfloat16 over a step without privacy in float32, with 32 models.

    Measured also where the bench refuses it, so that the page shows what is refused.
    """
    (case,) = [case for case in CASES if case.name == "DP-SGD, MLP"]
    plans = plans_of(case, steps)
    try:
        Ensemble(mechanism_of(case), plans, precision="bfloat16")
        refusal = None
    except UnsupportedError as error:
        refusal = str(error)
    limit, precision.LARGEST_SHARE = precision.LARGEST_SHARE, math.inf
    work: dict[str, Callable[[], Any]] = {
        "DP step, bfloat16": lambda: train_together(mechanism_of(case), plans, precision="bfloat16"),
        "DP step, float32": lambda: train_together(mechanism_of(case), plans),
        "step without privacy, float32": lambda: train_together(NonPrivate(measures_quality=False), plans),
    }
    *_, reference = work
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _, name in turns(list(work), repeats + 1):
        started = time.process_time()
        work[name]()
        seconds[name].append(time.process_time() - started)
    precision.LARGEST_SHARE = limit
    shares = {
        name: sorted(t / own for t, own in zip(times[1:], seconds[reference][1:], strict=True))
        for name, times in seconds.items()
    }
    rows = {n: {"share": statistics.median(s), "range": [s[0], s[-1]]} for n, s in shares.items()}
    cpu = machine(())["cpu"]
    return {"models": case.models, "cpu": cpu, "goal": limit, "refusal": refusal, "rows": rows}


def main() -> None:
    """Run the benchmark from the command line and write its results."""
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps and repeats")
    parser.add_argument("--steps", type=int, default=None, help="steps a training (default 120, quick 20)")
    parser.add_argument("--reduced", action="store_true", help="measure products in bfloat16 alone")
    parser.add_argument("--only", default="", help="the cases with this in their names")
    parser.add_argument(
        "--memory", nargs=2, metavar=("CASE", "CONTESTANT"), help="print the peak memory of one"
    )
    given = parser.parse_args()
    quiet(given.threads)
    steps = given.steps or (20 if given.quick else 120)
    if given.memory:
        (case,) = [case for case in CASES if case.name == given.memory[0]]
        print(json.dumps(measured_memory(case, given.memory[1])))
        return
    repeats = 2 if given.quick else 5
    wanted = [] if given.reduced else [case for case in CASES if given.only in case.name]
    report = {"machine": machine(("torch", "opacus")), "cases": [result(c, steps, repeats) for c in wanted]}
    if given.reduced:  # The other cases stay as they were measured, on the machine that is named there.
        report = json.loads((given.out / "ensembles.json").read_text())
    report["reduced"] = reduced_products(steps, repeats)
    write(given.out, "ensembles", report)


if __name__ == "__main__":
    main()
