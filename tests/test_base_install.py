"""The base installation: scores, accountants and claims without torch, and a line where an extra is missing.

The packages of the extras are hidden from a process of its own; that the base requires none of them is read
from the package's metadata.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HIDDEN = (
    *("torch", "transformers", "peft", "tokenizers", "safetensors", "sklearn", "statsmodels"),
    *("stable_baselines3", "gymnasium", "nltk", "sacrebleu"),
)
PROGRAM = f"""
import importlib.util, sys
find_spec = importlib.util.find_spec
class Hide:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition('.')[0] in {HIDDEN!r}:
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)
sys.meta_path.insert(0, Hide)
importlib.util.find_spec = lambda name, package=None: None if name in {HIDDEN!r} else find_spec(name, package)
"""
COMMAND = f"{PROGRAM}\nfrom workbench.cli.entry import main\nsys.exit(main())"
CLAIM = "epsilon=1,delta=1e-5,adjacency=add-remove"
ASK = "accountants ask dp_accounting_pld certified --noise-multiplier 1 --steps 10 --delta 1e-5"


def without_extras(words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command, in a process that has the base's packages alone."""
    command = [sys.executable, "-c", COMMAND, *words.split()]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_base_requires_no_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    base = {requirement.partition(">")[0] for requirement in project["dependencies"]}
    assert not base & {*HIDDEN, "scikit-learn", "stable-baselines3"}
    extras = project["optional-dependencies"]
    assert {"train", "report", "studies"} <= set(extras)
    assert "studies" in extras["test"][0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (f"audit --scores scores.csv --claim {CLAIM} --out audit", 1, "REFUTED: at 95 % confidence"),
        (ASK, 0, "within"),
        ("claims paczero-eq-6", 0, "1 PROVEN"),
        ("list claims", 0, "paczero-eq-6"),
        ("list attacks", 0, "dirac_canary"),
        ("list mechanisms", 0, "needs torch"),
        (f"plan --claim {CLAIM}", 0, "trials"),
    ],
)
def test_what_the_base_does(words: str, code: int, says: str, tmp_path: Path) -> None:
    rows = "".join(f"{number % 2 + number / 1e6},{number % 2}\n" for number in range(1000))
    (tmp_path / "scores.csv").write_text(f"score,member\n{rows}", encoding="utf-8")
    words = words.replace(f"--claim {CLAIM} --out", f"--claim {CLAIM} --prior 0.5 --out")
    done = without_extras(words, tmp_path)
    assert done.returncode == code, done.stderr
    assert says in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("audit", "mechanism 'dp_sgd' needs torch"),
        ("run dp_weights --dry-run", "this needs torch"),
        ("report dp_weights", "workbench.report needs torch"),
        ("models build", "building a base model needs torch"),
    ],
)
def test_what_needs_an_extra_says_so_in_one_line(words: str, wanted: str, tmp_path: Path) -> None:
    done = without_extras(words, tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert wanted in line
    assert line.endswith("which is not installed: pip install 'lm-privacy-workbench[train]'")


@pytest.mark.slow
def test_a_claim_whose_check_trains_is_not_checked(tmp_path: Path) -> None:
    done = without_extras("claims rldp-lemma-7.14-attacked --quiet", tmp_path)
    assert done.returncode == 2
    assert "1 not checked: claim check 'rldp_trajectory_attacked' needs torch" in " ".join(
        done.stdout.split()
    )


CALLS = """
import workbench
for call in (
    lambda: workbench.audit(),
    lambda: workbench.audit_training("trainer.py:train"),
    lambda: workbench.replay("trainer.py:train"),
    lambda: workbench.audit_checkpoint("model", members="in.txt", nonmembers="out.txt"),
    lambda: workbench.run("dp_weights", dry_run=True),
    lambda: workbench.report("dp_weights"),
    lambda: workbench.watch(),
    lambda: workbench.WatchCallback,
):
    try:
        call()
    except workbench.InputError as error:
        print(error)
print(workbench.plan(trials=[50]).exit_code)
"""


@pytest.mark.slow
def test_python_says_the_same_line(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text("def train(records, seed): ...\n", encoding="utf-8")
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "model/model.safetensors").touch()
    for name in ("in", "out"):
        (tmp_path / f"{name}.txt").write_text("\n".join(f"{name} {i}" for i in range(20)), encoding="utf-8")
    command = [sys.executable, "-c", PROGRAM + CALLS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *lines, planned = done.stdout.splitlines()
    assert planned == "0"
    assert len(lines) == 8
    assert all(
        line.endswith("which is not installed: pip install 'lm-privacy-workbench[train]'") for line in lines
    )
