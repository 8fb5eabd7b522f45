"""One step of clipped gradients: ours, `torch.func.vmap`, Opacus, against the step without privacy.

Every contestant goes from the same batch to the same flat vector, the sum over records of
min(1, C / ||g_i||) g_i with C the median norm; the step without privacy goes to the gradient of the mean
loss. Noise and the optimizer's update are the same vector operations for all, and left out. The contestants
take turns within each repeat, in an order that rotates; a ratio is the median over repeats of
time / (time without privacy in the same repeat). Each contestant's vector is compared with that of one
backward pass a record.

Run `python benchmarks/dp_step.py` (a few minutes on one core) or, shorter, with `--quick`. Results go to
`benchmarks/results/dp_step.json` and `dp_step.md`.
"""

from __future__ import annotations

import copy
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from shared import WithPositions, machine, options, quiet, timed, trainable, turns, write
from torch import Tensor

from workbench.core import registry
from workbench.training.models import LanguageModel
from workbench.training.per_record import per_record_signals

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from oracles.one_at_a_time import one_at_a_time

OURS = "book-keeping (ours)"
Batch = Mapping[str, Tensor]
Step = Callable[[], Tensor]
"""Computes one clipped sum, flat."""


@dataclass(kw_only=True)
class Case:
    """A model with a batch of a given shape.

    Attributes:
        name: For the table.
        model: The bench's model.
        batch: Its batch.
        positions: True where Opacus needs explicit position ids.
        clip_norm: C.
        steps: Contestants by name.
        failures: Why a contestant does not run, by name.
    """

    name: str
    model: Any
    batch: Batch
    positions: bool
    clip_norm: float = 1.0
    steps: dict[str, Step] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def tiny_gpt2(records: int, tokens: int) -> tuple[Any, Batch]:
    """The shipped language model, and a batch of random tokens without padding."""
    model = registry.create("model", "tiny_gpt2", seed=0)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.module.config.vocab_size, (records, tokens), generator=generator)
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def with_lora(model: Any, rank: int) -> Any:
    """The language model with LoRA matrices on its attention and MLP maps."""
    import peft

    config = peft.LoraConfig(
        r=rank, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True, lora_dropout=0.0
    )
    module = peft.get_peft_model(model.module, config)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "lora_B" in name:  # zero at first, where half of the gradients vanish
                generator = torch.Generator().manual_seed(parameter.numel())
                parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
    return LanguageModel(module, model.tokenizer, model.max_length, model.name)


def digits_vit(records: int) -> tuple[Any, Batch]:
    """The vision transformer for 8 x 8 images."""
    model = registry.create("model", "digits_vit", seed=0)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(records, 64, generator=generator)
    return model, {"images": images, "labels": torch.arange(records) % 10}


def flat(tensors: list[Tensor]) -> Tensor:
    """The entries of all tensors in one vector."""
    return torch.cat([t.reshape(-1) for t in tensors])


def ours(case: Case, method: str) -> Step:
    """Clipped sum by `per_record_signals`."""

    def step() -> Tensor:
        signals = per_record_signals(case.model, case.batch, method=method)
        return signals.weighted_sum((case.clip_norm / signals.norms()).clamp(max=1.0))

    return step


def without_privacy(case: Case) -> Step:
    """Gradient of the mean loss."""
    parameters = trainable(case.model.module)

    def step() -> Tensor:
        return flat(list(torch.autograd.grad(case.model.losses(case.batch).mean(), parameters)))

    return step


def opacus_parts(case: Case, mode: str, positions: bool) -> tuple[Any, Any, Any]:
    """Opacus's wrapped module, its optimizer without noise, and our model around the wrapped module."""
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping

    module = copy.deepcopy(case.model.module).train()  # dropout is off; Opacus records in training mode
    if positions:
        module = WithPositions(module)
    options = {"noise_multiplier": 0.0, "max_grad_norm": case.clip_norm, "expected_batch_size": 1}
    sgd = torch.optim.SGD(trainable(module), lr=0.0)
    optimizer: Any
    if mode == "ghost":
        wrapped = GradSampleModuleFastGradientClipping(
            module, max_grad_norm=case.clip_norm, use_ghost_clipping=True, loss_reduction="sum", strict=False
        )
        optimizer = DPOptimizerFastGradientClipping(sgd, **options, loss_reduction="sum")
    else:
        wrapped = GradSampleModule(
            module, loss_reduction="sum", strict=False, force_functorch=mode == "functorch"
        )
        optimizer = DPOptimizer(sgd, **options, loss_reduction="sum")
    model = copy.copy(case.model)
    model.module = wrapped
    return wrapped, optimizer, model


def opacus(case: Case, mode: str, positions: bool) -> Step:
    """Clipped sum by Opacus: `hooks`, `functorch` (its general fall-back everywhere) or `ghost`."""
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    wrapped, optimizer, model = opacus_parts(case, mode, positions)
    parameters: list[Any] = list(trainable(wrapped))  # Opacus hangs attributes on them

    def per_sample() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        model.losses(case.batch).sum().backward()
        optimizer.clip_and_accumulate()
        total = flat([p.summed_grad for p in parameters])
        for p in parameters:
            p.summed_grad, p.grad_sample = None, None
        return total

    def ghost() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        losses = model.losses(case.batch)
        DPTensorFastGradientClipping(wrapped, optimizer, losses, loss_reduction="sum").backward()
        return flat([p.grad for p in parameters])

    return ghost if mode == "ghost" else per_sample


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Euclidean distance over the norm of what is expected."""
    return float((found - expected).norm() / expected.norm())


def contestants(case: Case) -> dict[str, Callable[[], Step]]:
    """Makers of the steps, by name."""
    makers: dict[str, Callable[[], Step]] = {
        OURS: lambda: ours(case, "book_keeping"),
        "vmap (ours)": lambda: ours(case, "vmap"),
    }
    for mode in ("hooks", "functorch", "ghost"):
        makers[f"Opacus {mode}"] = lambda mode=mode: opacus(case, mode, False)  # type: ignore[misc]
        if case.positions:
            makers[f"Opacus {mode}, explicit positions"] = lambda mode=mode: opacus(  # type: ignore[misc]
                case, mode, True
            )
    return makers


def prepare(case: Case) -> dict[str, float]:
    """Build and try every contestant; keep those that run. Returns their relative errors."""
    twin = one_at_a_time(case.model, case.batch)
    case.clip_norm = float(twin.norms().median())
    expected = twin.weighted_sum((case.clip_norm / twin.norms()).clamp(max=1.0))
    case.steps["without privacy"] = without_privacy(case)
    errors = {}
    for name, make in contestants(case).items():
        try:
            step = make()
            step()  # a second call must work as the first one did
            errors[name] = relative_error(step(), expected)
            case.steps[name] = step
        except Exception as error:  # a peer's failure is a result
            case.failures[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
    return errors


def result(case: Case, repeats: int) -> dict[str, Any]:
    """The times and errors of one case, as they are written to the results."""
    errors = prepare(case)
    seconds: dict[str, list[float]] = {name: [] for name in case.steps}
    for _, name in turns(list(case.steps), repeats):
        seconds[name].append(timed(case.steps[name]))
    plain = seconds["without privacy"]
    steps = {}
    for name, times in seconds.items():
        ratios = sorted(t / p for t, p in zip(times, plain, strict=True))
        steps[name] = {
            "median_seconds": statistics.median(times),
            "ratio_to_without_privacy": statistics.median(ratios),
            "ratio_quartiles": [ratios[len(ratios) // 4], ratios[(3 * len(ratios)) // 4]],
            "ours_over_this": statistics.median(o / t for o, t in zip(seconds[OURS], times, strict=True)),
            "relative_error": errors.get(name),
        }
    shape = list(next(iter(case.batch.values())).shape)
    return {
        "case": case.name,
        "batch_shape": shape,
        "parameters": sum(p.numel() for p in case.model.module.parameters()),
        "trainable_parameters": sum(p.numel() for p in trainable(case.model.module)),
        "repeats": repeats,
        "steps": steps,
        "failures": case.failures,
    }


def cases(quick: bool) -> list[Case]:
    """The tiny GPT-2 in full, with LoRA, and the vision transformer."""
    records = 8 if quick else 32
    model, batch = tiny_gpt2(records, 100)
    adapted = with_lora(tiny_gpt2(records, 100)[0], rank=4)
    vision, images = digits_vit(16 if quick else 128)
    return [
        Case(name="tiny GPT-2, all parameters", model=model, batch=batch, positions=True),
        Case(name="tiny GPT-2, LoRA of rank 4", model=adapted, batch=batch, positions=True),
        Case(name="digits ViT, all parameters", model=vision, batch=images, positions=False),
    ]


def main() -> None:
    """Run the benchmark from the command line and write its results."""
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="small batches, few repeats")
    parser.add_argument("--repeats", type=int, default=None, help="repeats a case (default 15, quick 3)")
    given = parser.parse_args()
    quiet(given.threads)
    repeats = given.repeats or (3 if given.quick else 15)
    report = {"machine": machine(), "cases": [result(case, repeats) for case in cases(given.quick)]}
    write(given.out, "dp_step", report)


if __name__ == "__main__":
    main()
