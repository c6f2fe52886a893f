"""`make_tuner`: a keras-tuner tuner for graphs that can be killed and resumed."""

import contextlib
import gc
import json
import os
from pathlib import Path

import keras
import numpy as np

from keras_bandgnn.checks import (
    as_path,
    boolean,
    instance,
    one_of,
    positive_int,
    seed_number,
)
from keras_bandgnn.data.files import FULL, FolderLock, atomic_write, write_json
from keras_bandgnn.data.reading import read_json, refuse_file
from keras_bandgnn.tuning.extra import keras_tuner
from keras_bandgnn.tuning.failures import Deaths, DiskError
from keras_bandgnn.tuning.hypermodel import GraphHyperModel
from keras_bandgnn.tuning.oracles import (
    FAILURE,
    BayesianOracle,
    HyperbandOracle,
    RandomOracle,
    SafeOracle,
    plain_values,
)

# What a search is of: the fixed facts of its hypermodel, kept in its folder.


NAME = "hypermodel.json"


def _facts(hypermodel) -> dict:
    # As the file gives them back, with lists for tuples, ranges and arrays.
    text = json.dumps(
        hypermodel.fixed(), default=lambda value: np.asarray(value).tolist()
    )
    return json.loads(text)


def keep(folder: Path, hypermodel) -> None:
    """Writes the facts of a new search; called by the chief alone."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / NAME, _facts(hypermodel))


def check(folder: Path, hypermodel) -> None:
    """Refuses the search of another hypermodel, whose trials mean something else.

    Raises:
        ValueError: If the folder holds such a search.
    """
    file = folder / NAME
    # Without a state nothing is taken over. Folders from before
    # there was this file have none.
    if not (folder / "oracle.json").is_file() or not file.is_file():
        return
    old, new = read_json(file), _facts(hypermodel)
    if not isinstance(old, dict):
        refuse_file(file, "to hold a JSON object", type(old).__name__)
    names = [k for k in {**old, **new} if old.get(k) != new.get(k)]
    if names:
        differ = ", ".join(f"{k}={new.get(k)!r}, there {old.get(k)!r}" for k in names)
        raise ValueError(
            f"Expected the search in {folder} to be of the same hypermodel. Received: "
            f"{differ}. Take another folder, or pass overwrite=True "
            "(--overwrite) to throw it away."
        )


TUNERS = ("random", "hyperband", "bayesian")
# More than any search has: failures never end it.
_NEVER = 1 << 30


class _Resumable:
    """What tuners of keras-tuner lack; see `SafeOracle`."""

    def _get_tuner_fname(self):
        return str(Path(self.project_dir) / "oracle.json")

    def save(self):
        """Saves the oracle; tuners have no state of their own."""
        if not self._is_worker():
            self.oracle.save()

    def reload(self):
        """Goes on with the oracle that was saved."""
        if not self._is_worker():
            self.oracle.reload()

    def _populate_initial_space(self):
        # The space is declared as a whole; keras-tuner would build models to find it.
        space = self.oracle.get_space()
        self.hypermodel.declare_hyperparameters(space)
        self.oracle.update_space(space)
        # The search is new, and no worker begins one.
        if not self._is_worker():
            keep(Path(self.project_dir), self.hypermodel)

    def _try_build(self, hp):
        policy = keras.config.dtype_policy()
        keras.backend.clear_session()
        keras.config.set_dtype_policy(policy)
        gc.collect()
        return self._build_hypermodel(hp)

    def _build_and_fit_model(self, trial, *args, **kwargs):
        # keras-tuner's own callbacks wait for every step, and save every epoch.
        own = [c for c in kwargs.pop("callbacks") if not _is_foreign(c)]
        goal = self.hypermodel.goal
        best = keras.callbacks.ModelCheckpoint(
            self._get_checkpoint_fname(trial.trial_id),
            monitor=goal.metric,
            mode=goal.direction,
            save_best_only=goal.objective != "accuracy-in-time",
            save_weights_only=True,
        )
        kwargs["callbacks"] = [*own, best]
        return super()._build_and_fit_model(trial, *args, **kwargs)

    def run_trial(self, trial, *args, **kwargs):
        """Runs a trial, unless it has ended its process too often; see `Deaths`."""
        trial.hyperparameters.values = plain_values(trial.hyperparameters.values)
        Deaths(self.get_trial_dir(trial.trial_id)).check()
        try:
            return super().run_trial(trial, *args, **kwargs)
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise DiskError(*error.args) from error

    def search(self, *args, **kwargs):
        """Runs the search, which no other process may do at the same time."""
        if self._is_worker():
            super().search(*args, **kwargs)
            return
        with FolderLock(Path(self.project_dir).resolve()):
            super().search(*args, **kwargs)

    def on_trial_end(self, trial):
        """Keeps the reason of a failure, which the service does not carry."""
        if trial.message is not None:
            folder = Path(self.get_trial_dir(trial.trial_id))
            with atomic_write(folder / FAILURE) as file:
                file.write(trial.message.encode())
        super().on_trial_end(trial)


def _is_foreign(callback) -> bool:
    return type(callback).__module__.startswith("keras_tuner.")


class _Tuner(_Resumable, keras_tuner.Tuner):
    """Random search and Bayesian optimisation, by the oracle."""


class _Hyperband(_Resumable, keras_tuner.Hyperband):
    """Trains on from the checkpoints of earlier rounds."""

    def __init__(self, oracle, hypermodel, **options):
        keras_tuner.Tuner.__init__(self, oracle, hypermodel, **options)


def make_tuner(
    hypermodel: GraphHyperModel,
    directory: str | os.PathLike,
    tuner: str = "random",
    max_trials: int = 40,
    overwrite: bool = False,
    seed: int = 0,
) -> "keras_tuner.Tuner":
    """Returns a tuner; `search(graphs, validation_data=...)` runs it.

    It is a tuner of keras-tuner, whose methods (`search`, `get_best_models`,
    `get_best_hyperparameters`, `results_summary`) it has. It resumes by itself: when
    the folder holds a search, `search` goes on with it, and a trial that was under way
    runs again. Failed trials never end a search. A folder belongs to one hypermodel:
    what is fixed there (`hypermodel.fixed()`) lies beside the state.

    Args:
        hypermodel: What is searched.
        directory: Folder for the state and the best weights of each trial.
        tuner: `"random"` (the paper), `"hyperband"` (`max_trials` is not used: it
            follows from the epochs) or `"bayesian"` (needs scikit-learn).
        max_trials: Trials.
        overwrite: Whether to throw away what is in the folder.
        seed: Of the draws.

    Raises:
        RuntimeError: From `search`, or for `overwrite`, if another process searches.
        ValueError: For Hyperband with an objective with time: it trains in rounds, each
            with a new clock. For a folder with the search of another hypermodel.

    Example:
    >>> import keras_bandgnn as kb
    >>> graphs = [
    ...     kb.Graph(3, [0], [1], node={"kind": [0, 1, i % 2]}, label=i % 2)
    ...     for i in range(8)
    ... ]
    >>> hypermodel = kb.tuning.GraphTransformerHyperModel(graphs, hidden_dim=8)
    >>> make_tuner(hypermodel, "search", max_trials=2).remaining_trials
    2
    """
    instance("hypermodel", hypermodel, GraphHyperModel, "a GraphHyperModel")
    one_of("tuner", tuner, TUNERS)
    path = as_path("directory", directory)
    boolean("overwrite", overwrite)
    positive_int("max_trials", max_trials)
    common = {
        "objective": hypermodel.objective,
        # 0 stands for a random seed there.
        "seed": seed_number("seed", seed) + 1,
        "max_consecutive_failed_trials": _NEVER,
    }
    if not overwrite:
        check(path, hypermodel)
    kind = _Tuner
    if tuner == "hyperband":
        if hypermodel.goal.timed:
            raise ValueError(
                "Expected objective='accuracy' with tuner='hyperband', which trains "
                f"in rounds. Received: objective={hypermodel.goal.objective!r}."
            )
        kind = _Hyperband
        epochs = hypermodel.goal.max_epochs
        oracle: SafeOracle = HyperbandOracle(max_epochs=epochs, **common)
    else:
        made = {"random": RandomOracle, "bayesian": BayesianOracle}[tuner]
        oracle = made(max_trials=positive_int("max_trials", max_trials), **common)
    # What another process is searching is not thrown away.
    lock = FolderLock(path.resolve()) if overwrite else contextlib.nullcontext()
    with lock:
        return kind(
            oracle,
            hypermodel,
            directory=str(path.parent),
            project_name=path.name,
            overwrite=overwrite,
        )
