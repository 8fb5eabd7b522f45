"""The LM privacy workbench: audit a claimed privacy guarantee of a language model.

Importing this package imports no deep-learning framework.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from workbench.core.version import __version__ as __version__

if TYPE_CHECKING:
    from workbench.audit.watched.callback import WatchCallback as WatchCallback
    from workbench.audit.watched.record import ClaimExceededWarning as ClaimExceededWarning
    from workbench.audit.watched.record import watch as watch

_ON_DEMAND = {
    "watch": "workbench.audit.watched.record",
    "ClaimExceededWarning": "workbench.audit.watched.record",
    "WatchCallback": "workbench.audit.watched.callback",
}
"""Names of the public Python API, and the modules that hold them."""


def __getattr__(name: str) -> Any:
    """A name of the API, its module imported now."""
    if name not in _ON_DEMAND:
        raise AttributeError(f"module 'workbench' has no attribute {name!r}")
    return getattr(import_module(_ON_DEMAND[name]), name)
