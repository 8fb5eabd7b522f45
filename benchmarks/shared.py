"""What the benchmarks share: the machine in words, contestants that take turns, and pages from templates."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import logging
import os
import platform
import sys
import time
import types
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch
from torch import Tensor, nn

from workbench.accounting import GaussianDP
from workbench.accounting.gaussian import mu_of_epsilon
from workbench.audit.settings import DEFAULT_CLAIM
from workbench.core.keys import plain
from workbench.estimation.judge import judge
from workbench.interfaces import Claim, Verdict
from workbench.interfaces.evidence import Evidence, terms_from

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "transformers", "peft", "opacus")
FILTERS: dict[str, Callable[..., str]] = {
    "f": format,
    "percent": lambda share: "" if share is None else f"{100 * share:.0f} %",
    "versions": lambda found: ", ".join(f"{name} {version}" for name, version in found.items()),
}


def auditor_of(wheel: Path) -> Any:
    """The class of jax-privacy's auditing module, from its wheel."""
    source = zipfile.ZipFile(wheel).read("jax_privacy/auditing.py").decode()
    module = types.ModuleType("jax_privacy_auditing")
    sys.modules[module.__name__] = module
    exec(compile(source, "jax_privacy/auditing.py", "exec"), vars(module))
    return module.CanaryScoreAuditor  # type: ignore[attr-defined]


def machine(packages: tuple[str, ...] = PACKAGES) -> dict[str, Any]:
    """Processor, system and package versions, on which the times depend."""
    cpu = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        lines = [x for x in information.read_text().splitlines() if x.startswith("model name")]
        cpu = lines[0].partition(":")[2].strip() if lines else cpu
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads_used": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "load_average_at_start": os.getloadavg()[0],
    }


def timed(work: Callable[[], Any]) -> float:
    """Seconds that one call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def turns(names: list[Any], repeats: int) -> Iterator[tuple[int, Any]]:
    """Each repeat with each contestant, in an order that rotates."""
    for repeat in range(repeats):
        for i in range(len(names)):
            yield repeat, names[(i + repeat) % len(names)]


def options(doc: str | None, out: Path = RESULTS, threads: int = 1) -> argparse.ArgumentParser:
    """A parser with `--threads` and `--out`, described by the first line of a module's text."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--threads", type=int, default=threads, help="torch's threads")
    parser.add_argument(
        "--out", type=Path, default=out, help=f"{'file' if out.suffix else 'folder'} of the results"
    )
    return parser


def quiet(threads: int) -> None:
    """Silence libraries, and set torch's threads."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(threads)


def page(name: str, report: Mapping[str, Any], **names: Any) -> str:
    """The results as the template of this name shows them."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(FILTERS)
    return environment.get_template(f"{name}.md.j2").render(**report, **names)


def write(out: Path, name: str, report: Mapping[str, Any], **names: Any) -> None:
    """Write `name.json` and `name.md`, and print the latter."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n")
    text = page(name, report, **names)
    (out / f"{name}.md").write_text(text)
    print(text)


def judged_by_curve(game: Mapping[str, Any], epsilon: float, delta: float, *, seed: int) -> Verdict:
    """The verdict on a judged game's scores, at 95 %, of the same budget as a claim of mu."""
    evidence = Evidence(
        scores=np.array(game["scores"], dtype=np.float64),
        members=np.array(game["members"], dtype=bool),
        game=terms_from(plain(game["game"])),
        attack=game["attack"],
    )
    claim = Claim(
        guarantee=GaussianDP(mu=mu_of_epsilon(epsilon, delta)),
        about=DEFAULT_CLAIM.about,
        released=DEFAULT_CLAIM.released,
        source="the same budget in its own currency",
    )
    return judge(claim, evidence, confidence=0.95, generator=np.random.default_rng(seed))


class WithPositions(nn.Module):
    """Hands a GPT-2 explicit position ids, one row a record, as Opacus needs them."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.inner = module

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        """The inner module's output, with the positions given to it."""
        positions = torch.arange(input_ids.shape[1]).expand(len(input_ids), -1)
        return self.inner(input_ids=input_ids, attention_mask=attention_mask, position_ids=positions)


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters with `requires_grad`."""
    return [p for p in module.parameters() if p.requires_grad]
