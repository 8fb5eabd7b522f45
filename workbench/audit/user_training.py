"""Anybody's training code as a subject: `workbench audit --train path/to/file.py:function`.

The function is called as `function(records, seed)` and trains on exactly those records:

- `records`: a list of dicts with the keys `id` (str), `text` (str, empty for images), `label` (int or
  None) and `image` (list of floats or None).
- `seed`: an int, different in every run; the function seeds its own randomness with it.
- `device`: only with `--device`, and only by that name: what to train on, such as `"cuda"`.

It returns what the adversary is to see, in one of five forms:

1. a *scorer*, any callable: `scorer(records)` gives one finite number a record, higher = more likely to
   have been trained on;
2. an object with a method `losses(records)`, one finite number a record, lower = more likely;
3. a pair `(model, tokenizer)` of Hugging Face transformers, the model causal; scored by its loss, of a
   record's secret alone where all have one;
4. the path of a folder in which such a pair is saved, its weights as safetensors, and nothing else is by
   another call;
5. a `workbench.interfaces.Model`; scored by its loss.

The bench flips a fair coin for each candidate record, hands those with heads to the function, and asks
for the scores of all candidates; the function never sees the coins.
"""

from __future__ import annotations

import inspect
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from workbench.audit.local_sources import sources_sha256
from workbench.audit.neighbours import coins_of
from workbench.core.cost import cost_since
from workbench.core.errors import ArgumentError, InputError, unknown_name
from workbench.core.keys import JSON, plain
from workbench.core.local_files import complaint, import_file
from workbench.core.streams import stream_seed
from workbench.execution.engine import Job
from workbench.execution.tasks import StepProgress
from workbench.interfaces import Adjacency, BoolArray, FloatArray, GameTerms, Model, Record, Released, Trials
from workbench.training.devices import CPU
from workbench.training.endings import scored_log_likelihoods
from workbench.training.secrets import SECRET_MARKER
from workbench.training.setup import TrainingSetup, prepare

TrainingFunction: TypeAlias = Callable[[list[dict[str, Any]], int], Any]
Scorer: TypeAlias = Callable[[Sequence[Record]], FloatArray]


def game_of(adjacency: Adjacency) -> GameTerms:
    """The game of one run; several runs flip fresh coins and train independently."""
    return GameTerms(
        description=(
            f"The bench took candidate records, {coins_of(adjacency)}, and trained the user's function on "
            "those with heads; the adversary saw the scores that the trained model gives to all candidates."
        ),
        trials=Trials.ONE_RUN,
        prior=0.5,
        adjacency=adjacency,
        released=Released.SCORES,
    )


SOURCE = "source"
"""The input that holds a copy of the user's file, for workers on other machines."""

_BATCH = 16
_LONGEST = 1024
"""Most tokens of a record that the loss of a user's language model is taken over."""

_FORMS = (
    "a callable scorer, an object with a method losses(records), a pair (transformers model, tokenizer),"
    " the folder that the two are saved in, or a workbench Model"
)


def as_dicts(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The records as the user's code gets them; fresh objects on every call."""
    return [
        {
            "id": record.id,
            "text": record.text,
            "label": record.label,
            "image": None if record.image is None else list(record.image),
        }
        for record in records
    ]


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What a training function returned.

    Attributes:
        score: One number a record, higher = member.
        model: The model that is scored by its loss, if that is what was returned.
    """

    score: Scorer
    model: Model | None = None

    def ask(self, records: Sequence[Record]) -> None:
        """Let the user's modules see the records as scoring does; a model as a whole, without shortcuts."""
        if self.model is None:
            self.score(records)
        else:
            self.model.losses(self.model.encode(records))


@dataclass(frozen=True)
class UserTraining:
    """A user's training function, loaded.

    `spec`: `path/to/file.py:function`. `device`: given to the function, unless it is the CPU.
    `source_sha256`: hash of the file and of the local files that it imports, so that a stored result is not
    taken for that of edited code. Raises `InputError`: see `load_training_function`; or the function takes
    no device.
    """

    spec: str
    device: str = CPU
    function: Callable[..., Any] = field(init=False, repr=False, compare=False)
    source_sha256: str = field(init=False)

    def __post_init__(self) -> None:
        path, _ = _split(self.spec)
        function: Callable[..., Any] = load_training_function(self.spec)
        if self.device != CPU:
            if not _takes(function, "device"):
                raise ArgumentError(
                    "device",
                    f"{self.device} goes with a training function that has a parameter of that name, and "
                    f"{self.spec} has none",
                )
            function = partial(function, device=self.device)
        object.__setattr__(self, "function", function)
        object.__setattr__(self, "source_sha256", sources_sha256(path))

    def copied_to(self, folder: Path) -> Path:
        """The folder, with a copy of the user's file in it; files that it imports are not copied."""
        shutil.copy(_split(self.spec)[0], folder)
        return folder

    def job(
        self, kind: str, payload: Any, *, inputs: Mapping[str, Path], content: str, form: int | None = None
    ) -> Job:
        """A job that trains by this function, kept under the file's hash.

        `kind`: of the game. `content`: digest of the records. `form`: of what is kept of it, where that has
        changed since it was first kept.
        """
        identity: dict[str, JSON] = {
            "kind": kind,
            **({} if form is None else {"form": form}),
            "source": self.source_sha256,
            "job": plain(payload),
            "content": content,
        }
        return Job(identity=identity, payload=payload, inputs=inputs, label=self.spec, content=content)

    def scores(self, candidates: Sequence[Record], included: BoolArray, seed: int) -> FloatArray:
        """Train once on the included candidates and score all of them.

        `included`: the coins, shape `(n,)`. `seed`: passed to the function. Returns one finite score a
        candidate, higher = member, shape `(n,)`. Raises `InputError`: the function fails, or returns
        something that cannot be scored.
        """
        members = [record for record, inside in zip(candidates, included, strict=True) if inside]
        return self.trained(as_dicts(members), seed, candidates)

    def trained(self, records: list[dict[str, Any]], seed: int, candidates: Sequence[Record]) -> FloatArray:
        """Train on these records, and score the candidates; see `scores`."""
        return self.asking(records, seed, candidates)()

    def asking(
        self,
        records: list[dict[str, Any]],
        seed: int,
        candidates: Sequence[Record],
        *,
        most_of_model: int | None = None,
    ) -> Callable[[], FloatArray]:
        """Train on these records; returns what scores the candidates once it is called.

        `most_of_model`: only so many of them where a model is returned, whose scores are not the user's code.
        """
        fitted = self.fitted(records, seed)
        asked = candidates if fitted.model is None else candidates[:most_of_model]

        def score() -> FloatArray:
            """One finite score a candidate."""
            values = self.answers(fitted, asked)
            if not np.isfinite(values).all():
                place = int(np.argmin(np.isfinite(values)))
                raise InputError(
                    f"{self.spec}: score of record {asked[place].id!r} must be finite, got {values[place]}"
                )
            return values

        return score

    def answers(self, fitted: Fitted, candidates: Sequence[Record]) -> FloatArray:
        """One score a candidate, finite or not; `InputError` for another shape."""
        values = fitted.score(candidates)
        if values.shape != (len(candidates),):
            wanted = f"one score a record, shape ({len(candidates)},)"
            raise InputError(f"{self.spec} must give {wanted}, got shape {values.shape}")
        return values

    def fitted(self, records: list[dict[str, Any]], seed: int) -> Fitted:
        """Train on these records; returns what scores other records, unchecked.

        Raises `InputError`: the function fails, or returns something that cannot be scored.
        """
        try:
            result = self._guarded(lambda: self.function(records, int(seed)))
        except InputError as error:
            if type(error) is not InputError or "None" not in str(error) or not (said := _absent(records)):
                raise
            raise InputError(f"{error}{said}") from error
        if isinstance(result, str | Path):
            result = self._saved_pair(Path(result))
        if isinstance(result, tuple) and len(result) == 2:
            result = self._guarded(lambda: _language_model(*result))
        scorer = self._scorer(result)

        def score(others: Sequence[Record]) -> FloatArray:
            """The user's scores, guarded."""
            values: FloatArray = self._guarded(lambda: scorer(others))
            return values

        return Fitted(score=score, model=result if isinstance(result, Model) else None)

    def _saved_pair(self, folder: Path) -> tuple[Any, Any]:
        """Model and tokenizer that the function saved to a folder, from its safetensors alone."""
        from workbench.audit.checkpoint import Checkpoint

        if not folder.is_dir():
            raise InputError(f"{self.spec} returned {str(folder)!r}, which is no folder; return {_FORMS}")
        model = Checkpoint.of_folder(f"{self.spec}: returned folder", folder, self.device).model
        return model.module, model.tokenizer

    def _scorer(self, result: Any) -> Scorer:
        """What the function returned, as a function from records to scores."""
        torch = sys.modules.get("torch")
        if isinstance(result, Model):
            return lambda records: _model_scores(result, records)
        if callable(getattr(result, "losses", None)):
            return lambda records: -_vector(result.losses(as_dicts(records)))
        if torch is not None and isinstance(result, torch.nn.Module):
            raise InputError(
                f"{self.spec} returned a bare {type(result).__name__}, which does not say how a"
                f" record becomes its input; return {_FORMS}"
            )
        if callable(result):
            return lambda records: _vector(result(as_dicts(records)))
        raise InputError(f"{self.spec} returned {type(result).__name__}; return {_FORMS}")

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Run the user's code; what it raises becomes one line that names the place in their file."""
        try:
            with redirect_stdout(sys.stderr):  # The output stream may hold a report, and nothing else.
                return call()
        except InputError:
            raise
        except KeyboardInterrupt as error:
            # A worker hears no Ctrl-C: it is the code's own.
            if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
                raise complaint(_split(self.spec)[0], error) from error
            raise
        except BaseException as error:
            raise complaint(_split(self.spec)[0], error) from error


def _absent(records: Sequence[Mapping[str, Any]]) -> str:
    """What no record has, in words to follow an error: another kind of records may have been meant."""
    names = [name for name in ("image", "label") if all(record[name] is None for record in records)]
    if not names or not records:
        return ""
    return (
        f" (these records have no {' and no '.join(names)}: their corpus decides it; corpus digits has both)"
    )


def load_training_function(spec: str) -> TrainingFunction:
    """Import the user's file and return the function named after the colon of `path/to/file.py:function`.

    Raises `InputError`: the spec is malformed, the file is missing or fails, or holds no such function.
    """
    path, name = _split(spec)
    if not path.is_file():
        problem = "is not a file" if path.exists() else "does not exist"
        raise ArgumentError("function", f": file {str(path)!r} {problem}")
    module = import_file(path)
    functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    if name not in functions:
        own = [key for key in functions if getattr(vars(module)[key], "__module__", "") == module.__name__]
        functions = own or functions
        if not functions:
            raise ArgumentError("function", f": {path} defines no function, so not {name!r}")
        raise ArgumentError("function", f": {path}: {unknown_name('function', name, functions)}")
    function: TrainingFunction = getattr(module, name)
    return function


def _takes(function: TrainingFunction, name: str) -> bool:
    """Whether a function can be called with an argument of this name."""
    parameters = inspect.signature(function).parameters
    if name in parameters:
        return parameters[name].kind is not inspect.Parameter.POSITIONAL_ONLY
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())


def _split(spec: str) -> tuple[Path, str]:
    """Path and function name of a spec."""
    path, colon, name = spec.rpartition(":")
    if not colon or not path or not name.isidentifier():
        raise ArgumentError("function", f"must be path/to/file.py:function, got {spec!r}")
    return Path(path), name


def _vector(values: Any) -> FloatArray:
    """Numbers of the user's code (list, array or tensor) as a float64 array."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)


def _language_model(model: Any, tokenizer: Any) -> Model:
    """The bench's wrapper around a causal language model of transformers; texts are cut to its positions."""
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    if not isinstance(model, PreTrainedModel) or not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise InputError(
            f"the training function returned a pair of {type(model).__name__} and "
            f"{type(tokenizer).__name__}; a pair must be a transformers model and its tokenizer"
        )
    from workbench.training.models import LanguageModel

    positions = getattr(model.config, "max_position_embeddings", None) or _LONGEST
    max_length = int(min(tokenizer.model_max_length, positions, _LONGEST))
    wrapped: Model = LanguageModel(model, tokenizer, max_length, "user")
    return wrapped


@dataclass(frozen=True)
class _Predictor:
    """A model that predicts the tokens of records, batch by batch."""

    model: Model

    def token_log_likelihoods(self, records: Sequence[Record]) -> list[FloatArray]:
        batches = (records[start : start + _BATCH] for start in range(0, len(records), _BATCH))
        return [
            row for batch in batches for row in self.model.token_log_likelihoods(self.model.encode(batch))
        ]


def _model_scores(model: Model, records: Sequence[Record]) -> FloatArray:
    """Minus the per-record loss, in evaluation mode, batch by batch.

    Where all records end with a secret, and the model reads them to their end, it is the loss of the secret's
    tokens alone: the rest says little of one record.
    """
    import torch

    model.module.eval()
    if model.kind == "language" and all(SECRET_MARKER in record.text for record in records):
        try:
            secrets = scored_log_likelihoods(_Predictor(model), records, SECRET_MARKER)
        except InputError:  # A secret that the model does not read, or does not give a finite loss.
            pass
        else:
            return np.array([tokens.mean() for tokens in secrets])
    parts = []
    with torch.no_grad():
        for start in range(0, len(records), _BATCH):
            parts.append(_vector(model.losses(model.encode(records[start : start + _BATCH]))))
    return -np.concatenate(parts)


@dataclass(frozen=True, kw_only=True)
class UserJob:
    """Payload: let a user's function train on the included candidates, and score all of them."""

    setup: TrainingSetup
    spec: str
    included: tuple[bool, ...]
    run: int


def train_user(
    job: UserJob, inputs: Mapping[str, Path], scratch: Path, progress: StepProgress
) -> dict[str, Any]:
    """Run a user's training function once; on another machine that of the file's copy in `inputs[SOURCE]`.

    Returns `scores` of all candidates, and `cost`. Raises `InputError`: the function fails or breaks its
    contract.
    """
    started = time.perf_counter()
    candidates, _ = prepare(job.setup)
    seed = stream_seed(job.setup.seed, "training", job.run)
    spec = job.spec
    if SOURCE in inputs:
        path, function = _split(spec)
        spec = f"{inputs[SOURCE] / path.name}:{function}"
    scores = UserTraining(spec, job.setup.device).scores(candidates, np.array(job.included, dtype=bool), seed)
    return {"scores": scores, "cost": cost_since(started)}
