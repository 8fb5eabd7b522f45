"""What models with a task around a registered language model share: finding the base, and its files."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError, unknown_name
from workbench.data.shared.parts import checked_count

if TYPE_CHECKING:
    from workbench.training.models import LanguageModel

STANDS_ON = ("base", "base_path")
"""Which parameters of such a model name its base and the folder in its place."""


def _base_parameters(base: str, path: str | None) -> dict[str, Any]:
    """What the base takes besides seed and length.

    Raises:
        InputError: there is no such model, it has a task itself, or it takes no path.
    """
    known = registry.entries("model")
    plain = [name for name, entry in known.items() if not hasattr(entry.factory, "stands_on")]
    if base not in plain:
        raise unknown_name("base", base, plain)
    own = inspect.signature(known[base].factory).parameters.get("path")
    if path is None:
        if own is not None and own.default is inspect.Parameter.empty:
            raise InputError(f"base_path must be given for base {base!r}")
        return {}
    if own is None:
        raise InputError(
            f"base_path must not be given for base {base!r}, which reads no folder, got {path!r}"
        )
    return {"path": path}


def language_base(
    base: str, *, seed: int, max_length: int, base_path: str | None, purpose: str
) -> LanguageModel:
    """The registered language model that a task is put around.

    Args:
        base: Its name.
        seed: Its seed.
        max_length: Its longest text, in tokens, at least 2.
        base_path: Its own parameter `path`.
        purpose: What it is for, in the error.

    Raises:
        InputError: a parameter is unusable, or the base cannot be had.
        UnsupportedError: the base is no language model.
    """
    from workbench.training.models import LanguageModel

    given = _base_parameters(base, base_path)
    checked_count("max_length", max_length, minimum=2)
    refused = UnsupportedError(f"base must be a language model for {purpose}, got {base!r}")
    if "max_length" not in inspect.signature(registry.entries("model")[base].factory).parameters:
        raise refused
    found = registry.create("model", base, seed=seed, max_length=max_length, **given)
    if not isinstance(found, LanguageModel):
        raise refused
    return found


def base_fingerprint(*, base: str, base_path: str | None = None, **_: object) -> str:
    """Hash of the base's files, with its name."""
    given = _base_parameters(base, base_path)
    fingerprint = getattr(registry.entries("model")[base].factory, "fingerprint", None)
    return f"{base} {'' if fingerprint is None else fingerprint(**given)}"
