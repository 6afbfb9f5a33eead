"""Self-play: a behavior learns against older versions of itself, each of which has a rating."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import gin
import numpy as np
import tensorflow as tf
from absl import logging

from alf.algorithms.behaviors import Behaviors
from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.data_structures import Experience
from alf.metrics.user_stats import Aggregation
from alf.trainers.config_types import checked
from alf.trainers.counts import Count, TrainingSteps, count
from alf.trainers.matches import Matches, expected_score
from alf.utils import rng
from alf.utils.common import as_array, zeros_from_spec

if TYPE_CHECKING:
    from alf.metrics.reporter import StatsReporter

# Stands for the learner's present weights among the numbers of versions.
PRESENT = -1
_UNITS = ("training_steps", "env_steps")


@gin.configurable(module="alf")
@dataclasses.dataclass(frozen=True)
class SelfPlay:
    """How a behavior that does not learn, the opponent, gets the weights that another one, the learner, once had.

    Attributes:
      learner: the behavior that learns.
      opponent: one of the same algorithm and specs that does not (`Behavior.trained = False`).
      every: after so much another version takes its turn, "20 training_steps" or "10000 env_steps". Training steps are
        iterations; with `@on_policy_trainer` they are its updates, of which an iteration may have several.
      snapshot_every: after so much the learner's weights become a version, in the same units.
      window: so many of the newest versions are kept, in memory and in checkpoints, and played against, each as often.
      latest_ratio: the chance of a turn against the learner's present weights, as they change, instead of a version.
      initial_elo: rating of the first version.
      k_factor: K, the most points that a match moves a rating by.
    """

    learner: str = ""
    opponent: str = ""
    every: Count | str = "20 training_steps"
    snapshot_every: Count | str = "100 training_steps"
    window: int = 10
    latest_ratio: float = 0.5
    initial_elo: float = 1200.0
    k_factor: float = 16.0

    def __post_init__(self) -> None:
        """Checks the values; ValueError names the one that is wrong."""
        kinds = {field.name: str(field.type) for field in dataclasses.fields(self)}
        for name, value in checked("SelfPlay", vars(self), kinds).items():
            object.__setattr__(self, name, value)
        for name in ("every", "snapshot_every"):
            if count(getattr(self, name), f"SelfPlay.{name}", _UNITS).value < 1:
                raise ValueError(f"SelfPlay.{name}={getattr(self, name)!r} must be at least 1.")
        if self.window < 1:
            raise ValueError(f"SelfPlay.window={self.window} must be at least 1.")
        if not 0.0 <= self.latest_ratio <= 1.0:
            raise ValueError(f"SelfPlay.latest_ratio={self.latest_ratio} must be in [0, 1].")
        if not math.isfinite(self.initial_elo):
            raise ValueError(f"SelfPlay.initial_elo={self.initial_elo} must be finite.")
        if not 0.0 <= self.k_factor < math.inf:
            raise ValueError(f"SelfPlay.k_factor={self.k_factor} must be 0 or more and finite.")


class Versions(tf.Module):
    """The state of self-play, all of it in checkpoints: versions, their ratings, and whose turn it is.

    It follows the learner's experience and, after each iteration, sets the opponent's variables before actors get the
    new weights, so that what an actor knows as version n of the weights is one opponent in all its steps. A match counts
    for the ratings if the opponent did not change in it, and was not the learner itself: the two rating points move as
    Elo has it, R += K (score - expected score). Matches begun by the very first weights, as in a heat-up, do not count.
    """

    def __init__(self, settings: SelfPlay, algorithm: OffPolicyAlgorithm, seed: int) -> None:
        """Creates the state of a new run; `begin` comes once weights are restored.

        Args:
          settings: who plays, and when.
          algorithm: whose variables exist.
          seed: of the choice of opponents.

        Raises:
          ValueError: there are no such behaviors, both or none of them learn, or they are of different algorithms.
        """
        super().__init__(name="SelfPlay")
        self._held = _Held(settings, algorithm)
        pairs = self._held.pairs
        self._kept = [_variable(np.zeros([settings.window, *v.shape]), v.dtype) for _, v in pairs]
        self._elo = _variable(np.full(settings.window, settings.initial_elo), tf.float64)
        self._present_elo = _variable(settings.initial_elo, tf.float64)
        self._seed = _variable(seed % 2**63)
        self._made, self._turns, self._matches = _variable(0), _variable(0), _variable(0)
        self._opponent = _variable(PRESENT)
        # The version of all weights since which this opponent plays.
        self._since = _variable(1)
        # Iterations and environment steps at the last look.
        self._iterations, self._env_steps, self._env_steps_before = _variable(0), _variable(0), _variable(0)

    # ---- telling ----

    @property
    def opponent(self) -> int:
        """The number of the version that plays now; PRESENT for the learner's own weights."""
        return int(self._opponent)

    @property
    def elo(self) -> float:
        """The rating of the learner."""
        return float(self._present_elo)

    @property
    def matches(self) -> int:
        """How many matches have moved the ratings."""
        return int(self._matches)

    @property
    def ratings(self) -> dict[int, float]:
        """The rating of each version in the window, by its number."""
        made = int(self._made)
        return {n: float(self._elo[n % self._window]) for n in range(max(0, made - self._window), made)}

    def report(self, reporter: StatsReporter) -> None:
        """Adds `SelfPlay/...` to the next summary: `Elo`, `OpponentElo`, `Opponent`, `Versions`, `Matches`, `Score`."""
        opponent = self.opponent
        now = {
            "Elo": self.elo,
            "OpponentElo": self.elo if opponent == PRESENT else self.ratings[opponent],
            "Opponent": opponent,
            "Versions": int(self._made),
            "Matches": self.matches,
        }
        for name, value in now.items():
            reporter.add(f"SelfPlay/{name}", value, Aggregation.MOST_RECENT)
        for score in self._held.scores:
            reporter.add("SelfPlay/Score", score, Aggregation.AVERAGE)
        self._held.scores.clear()

    # ---- playing ----

    def begin(self, given: Collection[str] = ()) -> None:
        """Follows the algorithm from now on; a new run begins with a first version, which the opponent plays.

        Args:
          given: names of the behaviors that were given weights by name; the opponent's own are the first version where it
            is one of them, else the learner's.
        """
        algorithm = self._held.algorithm
        if not int(self._made):
            self._keep(of_opponent=self._held.settings.opponent in given)
            self._play(0)
        algorithm.add_experience_observer(self._observe)
        algorithm.add_after_train_hook(self._after_train)

    @property
    def _window(self) -> int:
        return self._held.settings.window

    def _observe(self, exp: Experience) -> None:
        self._env_steps.assign_add(int(np.prod(exp.step_type.shape)))
        for match in self._held.matches.take(exp):
            if match.version >= int(self._since) and self.opponent != PRESENT:
                self._rate(match.score)

    def _rate(self, score: float) -> None:
        slot = self.opponent % self._window
        other = float(self._elo[slot])
        points = self._held.settings.k_factor * (score - expected_score(self.elo, other))
        self._present_elo.assign_add(as_array(points, np.float64))
        self._elo.scatter_nd_update([[slot]], [other - points])
        self._matches.assign_add(1)
        self._held.scores.append(score)

    def _after_train(self) -> None:
        iterations = int(self._held.algorithm.iterations)
        if self._is_due(self._held.settings.snapshot_every, iterations):
            self._keep()
        if self._is_due(self._held.settings.every, iterations) or self._has_left():
            self._take_turns(iterations)
        elif self.opponent == PRESENT:
            self._copy_present()
        self._iterations.assign(as_array(iterations, np.int64))
        self._env_steps_before.assign(self._env_steps)

    def _is_due(self, every: Count | str, iterations: int) -> bool:
        """Whether a multiple of `every` was passed since the last look."""
        each = count(every, "every")
        now, before = (self._env_steps, self._env_steps_before)
        if isinstance(each, TrainingSteps):
            now, before = iterations, self._iterations
        return int(now) // int(each.value) > int(before) // int(each.value)

    def _has_left(self) -> bool:
        """Whether the opponent is a version that the window holds no more."""
        return self.opponent != PRESENT and self.opponent < int(self._made) - self._window

    def _take_turns(self, iterations: int) -> None:
        settings, made = self._held.settings, int(self._made)
        draw = np.random.default_rng([int(self._seed), int(self._turns)])
        self._turns.assign_add(1)
        chosen = PRESENT
        if draw.random() >= settings.latest_ratio:
            chosen = int(draw.integers(max(0, made - self._window), made))
        if chosen != self.opponent:
            self._since.assign(as_array(iterations, np.int64))
        self._play(chosen)
        rating = self.elo if chosen == PRESENT else self.ratings[chosen]
        who = "its present weights" if chosen == PRESENT else f"version {chosen}"
        logging.log_every_n_seconds(
            logging.INFO, "Self-play: %s (%.0f) against %s (%.0f).", 10, settings.learner, self.elo, who, rating
        )

    # ---- weights ----

    def _play(self, number: int) -> None:
        """Gives the opponent the weights of a version."""
        self._opponent.assign(as_array(number, np.int64))
        if number == PRESENT:
            self._copy_present()
            return
        for (_, theirs), kept in zip(self._held.pairs, self._kept, strict=True):
            theirs.assign(kept[number % self._window])

    def _copy_present(self) -> None:
        for mine, theirs in self._held.pairs:
            theirs.assign(mine)

    def _keep(self, of_opponent: bool = False) -> None:
        """Makes the learner's weights, or the opponent's, a version, in the place of the oldest where the window is full."""
        slot = int(self._made) % self._window
        for (mine, theirs), kept in zip(self._held.pairs, self._kept, strict=True):
            kept.scatter_nd_update([[slot]], (theirs if of_opponent else mine)[tf.newaxis])
        self._elo.scatter_nd_update([[slot]], [self.elo])
        self._made.assign_add(1)


class _Held:
    """What is no state, kept from TensorFlow's tracking."""

    def __init__(self, settings: SelfPlay, algorithm: OffPolicyAlgorithm) -> None:
        self.settings = settings
        self.algorithm = algorithm
        self.pairs = _pairs(settings, algorithm)
        self.matches = Matches(settings.learner, settings.opponent)
        self.scores: list[float] = []


def _pairs(settings: SelfPlay, algorithm: OffPolicyAlgorithm) -> list[tuple[tf.Variable, tf.Variable]]:
    """The learner's variables that acting reads, each with the opponent's of the same place."""
    if not isinstance(algorithm, Behaviors):
        raise ValueError("TrainerConfig.self_play is for TrainerConfig.algorithm_ctor = @Behaviors.")
    by_name = algorithm.by_name
    for role, learns in (("learner", True), ("opponent", False)):
        name = getattr(settings, role)
        if name not in by_name:
            raise ValueError(f"SelfPlay.{role}={name!r} is no behavior: there are {', '.join(map(repr, by_name))}.")
        if (name in algorithm.trained) is not learns:
            raise ValueError(f"SelfPlay.{role}={name!r}: {name}/Behavior.trained must be {learns}.")
    mine, theirs = (_by_place(by_name[name]) for name in (settings.learner, settings.opponent))
    read = _read_by(by_name[settings.opponent])
    pairs = []
    for place, variable in theirs.items():
        if variable.ref() not in read:
            continue
        other = mine.get(place)
        if other is None or other.shape != variable.shape or other.dtype != variable.dtype:
            raise ValueError(
                f"SelfPlay: {settings.opponent!r} is another algorithm than {settings.learner!r}, which has no {place} of "
                f"shape {variable.shape.as_list()}: give both the same algorithm and spaces."
            )
        pairs.append((other, variable))
    return pairs


def _by_place(algorithm: OffPolicyAlgorithm) -> dict[str, tf.Variable]:
    """The variables of an algorithm by the names of the attributes that lead to them."""
    found: dict[str, tf.Variable] = {}
    seen: set[int] = set()
    open_places: list[tuple[str, Any]] = [("", algorithm)]
    while open_places:
        place, thing = open_places.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, tf.Variable):
            found[place] = thing
        else:
            open_places += [(f"{place}/{n}", child) for n, child in tf.train.TrackableView.children(thing).items()]
    return found


def _read_by(algorithm: OffPolicyAlgorithm) -> set[Any]:
    """References to the variables that acting reads, in training or in play."""

    @tf.function(autograph=False)
    def predict() -> Any:
        time_step = algorithm.transform_timestep(zeros_from_spec(algorithm.time_step_spec, 1))
        with rng.scope(tf.zeros([2], tf.int32)):
            return algorithm.predict(time_step, zeros_from_spec(algorithm.predict_state_spec, 1), 0.0).action

    played = predict.get_concrete_function().graph.variables
    return {v.ref() for v in [*algorithm.acting_variables(), *played]}


def _variable(value: Any, dtype: tf.DType = tf.int64) -> tf.Variable:
    return tf.Variable(value, dtype=dtype, trainable=False)
