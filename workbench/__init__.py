"""The LM privacy workbench: audit a claimed privacy guarantee of a language model.

The functions here and `workbench.accounting` are the public Python API, which the command line calls too.
Each takes plain values, refuses what it cannot use in one line (`InputError`), and returns a small object
with `verdict`, `sentence`, `bounds`, `to_frame()` and `save("page.html")`, which shows itself in a notebook.

Importing this package imports no deep-learning framework; a function's module is imported on first use.

>>> import workbench
>>> found = workbench.certified(noise_multiplier=1.0, sampling_probability=0.01, steps=1000, delta=1e-5)
>>> f"{found.bounds.lower:.3f} {found.bounds.upper:.3f}"
'1.828 1.829'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from workbench.core.version import __version__ as __version__

if TYPE_CHECKING:
    from workbench.audit.api.certified import certified as certified
    from workbench.audit.api.checkpoint import audit_checkpoint as audit_checkpoint
    from workbench.audit.api.checkpoint import audit_run as audit_run
    from workbench.audit.api.mechanisms import audit as audit
    from workbench.audit.api.plan import plan as plan
    from workbench.audit.api.scores import audit_scores as audit_scores
    from workbench.audit.api.training import audit_training as audit_training
    from workbench.audit.api.training import replay as replay
    from workbench.audit.watched.callback import WatchCallback as WatchCallback
    from workbench.audit.watched.record import ClaimExceededWarning as ClaimExceededWarning
    from workbench.audit.watched.record import watch as watch
    from workbench.checks.api.accountant import check_accountant as check_accountant
    from workbench.checks.api.claims import claims as claims
    from workbench.core.errors import InputError as InputError
    from workbench.core.errors import UnsupportedError as UnsupportedError
    from workbench.studies.reporting import report as report
    from workbench.studies.running import run as run

_ON_DEMAND = {
    "audit_scores": "workbench.audit.api.scores",
    "audit_training": "workbench.audit.api.training",
    "audit_checkpoint": "workbench.audit.api.checkpoint",
    "audit_run": "workbench.audit.api.checkpoint",
    "replay": "workbench.audit.api.training",
    "plan": "workbench.audit.api.plan",
    "certified": "workbench.audit.api.certified",
    "check_accountant": "workbench.checks.api.accountant",
    "claims": "workbench.checks.api.claims",
    "run": "workbench.studies.running",
    "report": "workbench.studies.reporting",
    "watch": "workbench.audit.watched.record",
    "ClaimExceededWarning": "workbench.audit.watched.record",
    "WatchCallback": "workbench.audit.watched.callback",
    "InputError": "workbench.core.errors",
    "UnsupportedError": "workbench.core.errors",
}
"""Names of the public Python API, and the modules that hold them; `audit` is a package that can be called."""


def __getattr__(name: str) -> Any:
    """A name of the API, its module imported now."""
    if name == "audit":
        return import_module("workbench.audit")
    if name not in _ON_DEMAND:
        raise AttributeError(f"module 'workbench' has no attribute {name!r}")
    try:
        return getattr(import_module(_ON_DEMAND[name]), name)
    except ModuleNotFoundError as error:
        from workbench.core.errors import missing_extra

        if (missing := missing_extra(error, f"workbench.{name}")) is None:
            raise
        raise missing from error


def __dir__() -> list[str]:
    """The names of the API too, before they are imported."""
    return sorted({*globals(), *_ON_DEMAND, "audit"})
