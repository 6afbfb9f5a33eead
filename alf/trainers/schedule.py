"""How much warming up, training and evaluating a run consists of."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gin

from alf.trainers.config_types import checked
from alf.trainers.counters import Totals
from alf.trainers.counts import Count, EnvironmentEpisodes, EnvironmentSteps, Seconds, TrainingSteps, count
from alf.utils.gin_utils import GinConfigError

if TYPE_CHECKING:
    from alf.trainers.config import TrainerConfig

_ACTING = (EnvironmentSteps.unit, EnvironmentEpisodes.unit)
IMPROVE_IS = ("total", "additional")


@gin.configurable(module="alf")
@dataclasses.dataclass(frozen=True)
class Schedule:
    """The phases of a run: heat-up, then training with an evaluation after each period, until enough is improved.

    Counts are `EnvironmentSteps`, `EnvironmentEpisodes`, `TrainingSteps` (iterations) and `Seconds`, or texts such as
    '300000 env_steps', '200 episodes', '50 training_steps', '90 seconds'.

    Attributes:
      heatup_steps: env_steps or episodes to collect before anything is learned; 0 for none. Only as much as is still
        missing in a resumed run.
      steps_between_evaluation_periods: an evaluation is due when the total of training passes a multiple of this; 0 for
        never, None for `TrainerConfig.eval_interval` with `TrainerConfig.evaluate`, and never without.
      evaluation_steps: env_steps or episodes of an evaluation, of whole episodes.
      improve_steps: training ends when it has come to this, or, of several counts, to the first one; None for
        `TrainerConfig.num_iterations` and `num_env_steps`.
      improve_is: "total": improve_steps count from the start of the run, resumed runs included; "additional": from the
        moment that `improve` is called.
      heatup_using_network_decisions: warm up by the policy instead of at random.
      max_episode_steps: an episode that is longer is not waited for, in heat-up and evaluation, which judges nothing then.
    """

    heatup_steps: Any = "0 env_steps"
    steps_between_evaluation_periods: Any = None
    evaluation_steps: Any = "0 episodes"
    improve_steps: Any = None
    improve_is: str = "total"
    heatup_using_network_decisions: bool = False
    max_episode_steps: int = 100_000

    def __post_init__(self) -> None:
        """Turns texts into counts.

        Raises:
          ValueError: a setting is of another kind, has no unit, or one that it does not take.
        """
        kinds = {field.name: str(field.type) for field in dataclasses.fields(self)}
        for name, value in checked("Schedule", vars(self), kinds).items():
            self._set(name, value)
        self._set("heatup_steps", _count(self.heatup_steps, "heatup_steps", _ACTING) or EnvironmentSteps(0))
        self._set(
            "steps_between_evaluation_periods",
            _count(self.steps_between_evaluation_periods, "steps_between_evaluation_periods"),
        )
        self._set(
            "evaluation_steps", _count(self.evaluation_steps, "evaluation_steps", _ACTING) or EnvironmentEpisodes(0)
        )
        several = isinstance(self.improve_steps, Sequence) and not isinstance(self.improve_steps, str)
        limits = self.improve_steps if several else [self.improve_steps]
        found = [_count(limit, "improve_steps") for limit in limits]
        self._set("improve_steps", tuple(limit for limit in found if limit is not None))
        if self.improve_is not in IMPROVE_IS:
            raise ValueError(f"Schedule.improve_is={self.improve_is!r} is not one of {', '.join(IMPROVE_IS)}.")
        if self.max_episode_steps < 1:
            raise ValueError(f"Schedule.max_episode_steps={self.max_episode_steps} must be at least 1.")
        if self.period is not None and not self.evaluation_steps.value:
            raise ValueError(
                f"Schedule.steps_between_evaluation_periods={self.period} asks for evaluations of no length: set "
                "Schedule.evaluation_steps, such as '10 episodes'."
            )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def period(self) -> Count | None:
        """The count between evaluations; None without them."""
        period: Count | None = self.steps_between_evaluation_periods
        return period if period is not None and period.value else None

    def targets(self, totals: Totals) -> tuple[Count, ...]:
        """The totals of training at which `improve`, called at `totals`, ends; any of them."""
        if self.improve_is == "total":
            return self.improve_steps
        return tuple(totals + limit for limit in self.improve_steps)

    def next_evaluation(self, totals: Totals) -> Count | None:
        """The total of training at which the next evaluation is due; None for never."""
        period = self.period
        if period is None:
            return None
        # Multiples of the period, so that a resumed run evaluates where the uninterrupted one does.
        return type(period)((int(totals.like(period).value / period.value) + 1) * period.value)

    def goal(self) -> str:
        """What ends the run, in words."""
        more = " more" if self.improve_is == "additional" else ""
        return " or ".join(f"{_number(limit)}{more} {_NAMES[type(limit)]}" for limit in self.improve_steps)


def schedule_of(config: TrainerConfig, own: Schedule | None = None) -> Schedule:
    """What is collected, learned and evaluated: a schedule, and by the other settings of `config` what it leaves open.

    Args:
      config: whose schedule, if it has one, `own` takes the place of.
      own: of a live run.
    """
    own = own or config.schedule or Schedule()
    open_parts: dict[str, Any] = {}
    if not own.improve_steps:
        limits = (TrainingSteps(config.num_iterations), EnvironmentSteps(config.num_env_steps))
        open_parts["improve_steps"] = [limit for limit in limits if limit.value]
    if config.evaluate and own.steps_between_evaluation_periods is None:
        open_parts["steps_between_evaluation_periods"] = TrainingSteps(config.eval_interval)
        if not own.evaluation_steps.value:
            open_parts["evaluation_steps"] = EnvironmentEpisodes(config.num_eval_episodes)
    return dataclasses.replace(own, **open_parts)


def check_reachable(ends: Sequence[Count], idle: str) -> None:
    """Raises GinConfigError when none of `ends` ever comes, since nothing acts: `idle` is the reason."""
    if ends and all(isinstance(end, (EnvironmentSteps, EnvironmentEpisodes)) for end in ends):
        raise GinConfigError(
            f"{idle} takes no action, so {ends[0]} are never reached: give training_steps or seconds "
            "(TrainerConfig.num_iterations, or Schedule.improve_steps)."
        )


def told_limit(limit: Count, config: TrainerConfig, own: Schedule | None = None) -> str:
    """That a limit is reached, in the words of what has set it; arguments as of `schedule_of`."""
    if (own or config.schedule or Schedule()).improve_steps:
        return f"improve_steps: {limit} are reached"
    name = "num_iterations" if isinstance(limit, TrainingSteps) else "num_env_steps"
    return f"{name}={limit.value} is reached"


def share_done(totals: Totals, ends: Sequence[Count], begins: Sequence[Count] | None = None) -> float | None:
    """How much is done, in [0, 1], by the nearest of several ends; None without one.

    Args:
      totals: of training.
      ends: totals at which it ends.
      begins: for each end, where it counts from; None for the start of the run.
    """
    starts = [0.0] * len(ends) if begins is None else [float(begin.value) for begin in begins]
    spans = [(float(totals.like(end).value) - b, float(end.value) - b) for end, b in zip(ends, starts, strict=True)]
    return max((min(1.0, done / whole) for done, whole in spans if whole), default=None)


_NAMES: dict[type[Count], str] = {
    EnvironmentSteps: "env steps",
    EnvironmentEpisodes: "episodes",
    TrainingSteps: "iterations",
    Seconds: "seconds",
}


def _number(limit: Count) -> str:
    return f"{limit.value:,g}" if isinstance(limit.value, float) else f"{limit.value:,}"


def _count(given: Any, name: str, allowed: Sequence[str] | None = None) -> Count | None:
    if given is None:
        return None
    return count(given, f"Schedule.{name}", *([allowed] if allowed else []))
