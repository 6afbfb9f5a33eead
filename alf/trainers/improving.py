"""The phases of a run: heat-up, training, evaluation, and the schedule that strings them together."""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Iterator

from absl import logging

from alf.algorithms.off_policy_algorithm import OffPolicyAlgorithm
from alf.data_structures import ActionTimeStep, Nest
from alf.drivers.base import Driver
from alf.trainers import counts
from alf.trainers.config import TrainerConfig
from alf.trainers.counters import Counters, EpisodeCounter
from alf.trainers.counts import Acted, Amount, Count, EnvironmentEpisodes, EnvironmentSteps, Seconds, TrainingSteps
from alf.trainers.evaluation import Evaluation, Evaluator
from alf.trainers.evaluations import Evaluations
from alf.trainers.interrupts import Interrupted, StopSignals
from alf.trainers.phases import Phase, Phases
from alf.trainers.schedule import Schedule, check_reachable, schedule_of, share_done, told_limit
from alf.trainers.stopping import Standing, check_judged, first_reason


class Improver(abc.ABC):
    """What a trainer does, phase by phase, in one thread, the learner's; how it builds and saves is up to `Trainer`.

    No phase resets the environments of training: an episode that goes on when the phase changes goes on in the next one,
    and each of its steps, and its end, counts in the phase in which the learner gets them. Cutting it would throw away
    what is collected, favour short episodes, and stop environments that run ahead of the learner. Evaluation begins new
    episodes in environments of its own, and the first phase that acts begins new ones anyhow.
    """

    def __init__(self, config: TrainerConfig) -> None:
        """Creates it; nothing is built yet.

        Args:
          config: the settings.
        """
        self._config = config
        self._counters = Counters()
        self._signals = StopSignals()
        self._phases = Phases()
        self._schedule: Schedule | None = None
        # The totals of training at which `improve` ends, and evaluates next.
        self._targets: tuple[Count, ...] | None = None
        # Where those begin that count from a moment on; None where they are of the whole run.
        self._targets_from: tuple[Count, ...] | None = None
        self._evaluation_due: Count | None = None
        # The last evaluation was ended by a signal, without a result.
        self._evaluation_cut = False
        self._improving = False
        self._begun = self._ended = False
        self._position: tuple[ActionTimeStep | None, Nest] = (None, None)
        self._iterations_here = self._num_rows = 0
        self._episodes = EpisodeCounter()
        self._evaluations = Evaluations(self._make_evaluator, self._refresh_evaluator, config.best_by)
        self._marked_at = time.monotonic()

    # ---- what a trainer defines ----

    @property
    @abc.abstractmethod
    def algorithm(self) -> OffPolicyAlgorithm:
        """The algorithm that is trained."""

    @property
    @abc.abstractmethod
    def driver(self) -> Driver:
        """The driver that collects."""

    @abc.abstractmethod
    def initialize(self) -> None:
        """Builds what is not built yet."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends what was begun; nothing is held then."""

    @abc.abstractmethod
    def _start(self) -> None:
        """Begins to act, before anything else does."""

    @abc.abstractmethod
    def _train_iter(
        self, iter_num: int, policy_state: Nest, time_step: ActionTimeStep | None
    ) -> tuple[ActionTimeStep | None, Nest, int]:
        """Collects and learns once.

        Args:
          iter_num: iterations done before, resumed ones included.
          policy_state: what the last call returned; None at first.
          time_step: likewise.

        Returns:
          the time step and policy state to go on from, and the environment steps that the learner got.
        """

    def _collect(self, at_random: bool) -> int:
        """Collects once, as `_train_iter` does, without learning; returns the environment steps."""
        raise ValueError(f"{type(self).__name__} cannot act without training: it defines no _collect.")

    def _learn_only(self) -> None:
        """Learns once, as `_train_iter` does, where nothing acts."""
        raise ValueError(f"{type(self).__name__} cannot train without acting: it defines no _learn_only.")

    @abc.abstractmethod
    def _phase_changed(self) -> None:
        """Called whenever `phase` may be another than before."""

    @abc.abstractmethod
    def _after_iteration(self) -> None:
        """Reports, evaluates and saves what is due."""

    @abc.abstractmethod
    def _make_evaluator(self) -> Evaluator:
        """An evaluator with environments of its own."""

    @abc.abstractmethod
    def _refresh_evaluator(self, evaluator: Evaluator, step: int) -> None:
        """Called before each evaluation, with the global counter of the weights."""

    @abc.abstractmethod
    def _save_evaluated(self, best: bool) -> None:
        """Called when the present weights have been evaluated; `best`: they are the best so far."""

    @abc.abstractmethod
    def _save_to_be_judged(self) -> None:
        """Called when an evaluation of the present weights begins beside training."""

    @abc.abstractmethod
    def _judge(self, result: Evaluation) -> None:
        """Called when it has ended."""

    # ---- public ----

    @property
    def counters(self) -> Counters:
        """How far the run is, resumed parts included."""
        return self._counters

    @property
    def phase(self) -> Phase:
        """What the calling thread is at."""
        return self._phases.current

    @contextlib.contextmanager
    def phase_context(self, phase: Phase) -> Iterator[None]:
        """The calling thread counts as being in `phase` until the block ends; environments of training are told."""
        try:
            with self._phases.phase_context(phase):
                self._phase_changed()
                yield
        finally:
            self._phase_changed()

    @property
    def schedule(self) -> Schedule:
        """The schedule in force: the one set last, else that of the configuration."""
        return schedule_of(self._config, self._schedule)

    def set_schedule_params(self, schedule: Schedule) -> None:
        """Puts another schedule in force, also while `improve` is going on; an "additional" one counts from now."""
        self._schedule = schedule
        if self._targets is not None:
            self._plan()

    def get_current_episodes_count(self) -> int:
        """Episodes that have ended in the phase that the calling thread is in."""
        return int(self._counters[self.phase].of(EnvironmentEpisodes).value)

    @property
    def last_evaluation(self) -> Evaluation | None:
        """What the last evaluation came to, such as its `average_return`; None before one."""
        return self._evaluations.history.last

    def get_success_rate(self) -> float | None:
        """Share of successes in the last evaluation, in [0, 1]; None before one, NaN where no episode ended or nothing tells."""
        last = self.last_evaluation
        return None if last is None else last.success_rate

    def should_stop(self) -> bool:
        """Whether one of the stop conditions holds."""
        return self._stop_reason() is not None

    def should_train(self) -> bool:
        """Whether a behavior is due to learn: in TRAIN, with the heat-up done, no end reached and no signal received."""
        heatup = self.schedule.heatup_steps
        due = self.phase is Phase.TRAIN and self._counters.reached(heatup, Phase.HEATUP)
        return due and not self._signals.requested and self._reached() is None

    def improve(self) -> None:
        """Runs the schedule: heat-up, training, evaluations in between, until one of its ends or a stop condition.

        It ends at the first iteration that reaches an end, not at the end of a period; a signal ends it too.

        Raises:
          RunLockedError: another live run writes to the root_dir.
          ValueError: the algorithm takes no action, and the run ends by environment steps or episodes only.
          RuntimeError: the trainer is closed, and no end is reached.
        """
        self.initialize()
        self._improving = True
        try:
            self._plan()
            if self._reached() is None:
                self._heatup_what_is_missing()
            while self._reached() is None and self._iterate():
                pass
            self._take_beside(wait=not self._signals.requested)
        finally:
            self._improving = False

    def heatup(self, count: Amount) -> Acted:
        """Collects whole episodes before learning: at random, or by the policy if the schedule says so.

        Experience goes to the replayer and all observers; nothing is learned, and only totals of HEATUP grow. An
        asynchronous driver runs ahead: what it has collected at random, but not delivered yet, when the heat-up is over
        comes as experience of the phase that follows, whose totals count it.

        Args:
          count: environment steps or episodes, as '1000 env_steps'; 0 does nothing at all.

        Returns:
          what was collected; nothing for an algorithm that takes no action.
        """
        with self.phase_context(Phase.HEATUP):
            return self.act(count, wait_for_full_episodes=True)

    def act(self, count: Amount, wait_for_full_episodes: bool = False, *, until_episode_end: bool = False) -> Acted:
        """Collects without learning until the totals of the present phase have grown by at least `count`.

        Drivers collect whole segments, so it ends with the first one at which that holds. An algorithm that takes no
        action makes no step.

        Args:
          count: environment steps, episodes or seconds, as '1000 env_steps'.
          wait_for_full_episodes: go on until every environment has ended the episode that it is in then, but no further
            than `max_episode_steps` of the schedule.
          until_episode_end: return when an episode ends in any environment, even before `count`.

        Returns:
          what was collected; less than asked for after a signal.

        Raises:
          ValueError: `count` is none for acting, both ends are asked for, the phase is TEST, or the driver cannot do it.
          RunLockedError: another live run writes to the root_dir.
          RuntimeError: the trainer is closed.
        """
        if wait_for_full_episodes and until_episode_end:
            raise ValueError("act() ends at the first end of an episode or at the last: give one of the two arguments.")
        count = counts.count(count, "acting: count", ("env_steps", "episodes", "seconds"))
        if self.phase is Phase.TEST:
            raise ValueError("In TEST the environments of training stand still: call evaluate().")
        if not count.value:
            return Acted(0, 0)
        self._refuse_if_ended()
        self.initialize()
        if not self.algorithm.acts:
            return Acted(0, 0)
        self._begin()
        totals = self._counters[self.phase]
        target, before = totals + count, (totals.of(EnvironmentSteps), totals.of(EnvironmentEpisodes))
        with contextlib.suppress(Interrupted):
            while totals < target and not (until_episode_end and totals > before[1]):
                self._act_once()
            if wait_for_full_episodes:
                self._end_episodes()
        return Acted(*(int((totals.like(count) - count).value) for count in before))

    def train_and_act(self, count: Amount) -> None:
        """Collects and learns in turns until the totals of training have grown by at least `count`.

        Args:
          count: in any unit, as '100 training_steps'; 0 does nothing at all.

        Raises:
          ValueError: `count` is none, or the algorithm takes no action, and it is in environment steps or episodes.
          RunLockedError: another live run writes to the root_dir.
          RuntimeError: the trainer is closed.
        """
        count = counts.count(count, "training: count")
        if not count.value:
            return
        self.initialize()
        self._check_reachable(count)
        target = self._counters[Phase.TRAIN] + count
        while not self._counters.reached(target) and self._iterate():
            pass

    def evaluate(self, count: Amount) -> bool:
        """Plays whole episodes with the present weights in environments of its own; training is not touched.

        Args:
          count: episodes, as '10 episodes', or environment steps, to the end of an episode at or past them; 0 plays none.

        Returns:
          whether a stop condition holds.

        Raises:
          ValueError: `count` is none, or in another unit.
        """
        count = counts.count(count, "evaluating: count", ("episodes", "env_steps"))
        if count.value:
            self.initialize()
            self._take_beside(wait=True)
            with self.phase_context(Phase.TEST):
                self._evaluate(count)
        return self.should_stop()

    # ---- acting and learning ----

    def _refuse_if_ended(self) -> None:
        """Raises RuntimeError after `close`, with nothing held, so that another trainer can go on with the run."""
        if self._ended:
            self.close()
            raise RuntimeError(
                "This trainer is closed, and so are its environments: make another one of the same configuration, which "
                "goes on from the newest checkpoint."
            )

    def _begin(self) -> None:
        self._refuse_if_ended()
        if not self._begun:
            self._begun = True
            self._start()
        self._marked_at = time.monotonic()

    def _elapsed(self) -> Seconds:
        """The time since the last call, or since acting began."""
        before, self._marked_at = self._marked_at, time.monotonic()
        return Seconds(self._marked_at - before)

    def _iterate(self) -> bool:
        """Collects and learns once; returns whether it came to its end before a signal."""
        self._refuse_if_ended()  # also where a signal has ended it
        if self._signals.heard():
            return False
        self._begin()
        (time_step, policy_state), steps = self._position, 0
        try:
            if self.algorithm.acts and self._config.unroll_length:
                time_step, policy_state, steps = self._train_iter(self._counters.iterations, policy_state, time_step)
            else:
                self._learn_only()
        except Interrupted:
            return False
        self._position = (time_step, policy_state)
        self._count(steps)
        self._after_iteration()
        self._counters[Phase.TRAIN].add(self._elapsed())  # reports and checkpoints take time too
        return True

    def _count(self, steps: int) -> None:
        counters = self._counters
        self._iterations_here += 1
        counters[Phase.TRAIN].add(
            TrainingSteps(1), EnvironmentSteps(steps), EnvironmentEpisodes(self._episodes.take()), self._elapsed()
        )
        if self._config.update_counter_every_mini_batch:
            counters.global_steps = self.algorithm.updates_made()
        else:
            counters.global_counter.assign_add(1)

    def _heatup_what_is_missing(self) -> None:
        wanted = self.schedule.heatup_steps
        done = self._counters[Phase.HEATUP].like(wanted)
        if done < wanted:
            self.heatup(wanted - done)

    def _acts_at_random(self) -> bool:
        return self.phase is Phase.HEATUP and not self.schedule.heatup_using_network_decisions

    def _act_once(self) -> None:
        with self._signals.interruptible():
            steps = self._collect(self._acts_at_random())
        self._position = (None, None)
        self._add_collected(steps)

    def _add_collected(self, steps: int) -> None:
        """Counts steps that the learner got without learning from them."""
        self._counters[self.phase].add(
            EnvironmentSteps(steps), EnvironmentEpisodes(self._episodes.take()), self._elapsed()
        )

    def _end_episodes(self) -> None:
        """Acts until every environment has ended an episode."""
        totals, longest = self._counters[self.phase], self.schedule.max_episode_steps
        limit = totals + EnvironmentSteps(longest * self._num_rows)
        self._episodes.forget_rows()
        while self._episodes.rows() < self._num_rows:
            if totals >= limit:
                logging.warning(
                    "%s: in %d of %d environments the episode has not ended after %d more steps "
                    "(Schedule.max_episode_steps) and is not waited for.",
                    self.phase.name,
                    self._num_rows - self._episodes.rows(),
                    self._num_rows,
                    longest,
                )
                return
            self._act_once()

    # ---- ends ----

    def _plan(self) -> None:
        """Fixes the ends and the next evaluation by the schedule in force."""
        totals = self._counters[Phase.TRAIN]
        self._targets = self.schedule.targets(totals)
        additional = self.schedule.improve_is == "additional"
        self._targets_from = tuple(totals.like(end) for end in self._targets) if additional else None
        if not self._config.stop_conditions:
            self._check_reachable(*self._targets)
        evaluates = self.schedule.period is not None or self._evaluations.history.last is not None
        check_judged(self._config.stop_conditions, evaluates, bool(self._targets))
        self._evaluation_due = self.schedule.next_evaluation(totals)

    def _check_reachable(self, *ends: Count) -> None:
        """Raises GinConfigError when none of `ends` ever comes, since nothing acts."""
        if not (self.algorithm.acts and self._config.unroll_length):
            idle = "TrainerConfig.unroll_length=0" if self.algorithm.acts else type(self.algorithm).__name__
            check_reachable(ends, idle)

    def share_done(self) -> float | None:
        """How much of what `improve` is at is done, in [0, 1], by the nearest of its ends; None without one."""
        return share_done(self._counters[Phase.TRAIN], self._targets or (), self._targets_from)

    def _reached(self) -> str | None:
        """Which limit of the schedule is reached, or why else training may end."""
        targets = self.schedule.targets(self._counters[Phase.TRAIN]) if self._targets is None else self._targets
        for target in targets:
            if self._counters.reached(target):
                return told_limit(target, self._config, self._schedule)
        return self._stop_reason()

    def _stop_reason(self) -> str | None:
        conditions = self._config.stop_conditions
        if not conditions:
            return None
        return first_reason(conditions, Standing(self._evaluations.history.all, self._counters.seconds))

    # ---- evaluating ----

    def _evaluate_if_due(self) -> None:
        """Takes what has been evaluated beside training, and evaluates what `improve` has planned."""
        before = self._stop_reason()
        judged = self._take_beside()
        if not self._improving or self._evaluation_due is None:
            return
        if judged and before is None and self._stop_reason() is not None:
            return  # What ends the run stays the last evaluation: another one might take it back.
        reached = self._reached() is not None
        # With a schedule of its own, a run also evaluates what it ends with.
        last = reached and (self._schedule is not None or self._config.schedule is not None)
        if not last and not self._counters.reached(self._evaluation_due):
            return
        self._evaluation_due = self.schedule.next_evaluation(self._counters[Phase.TRAIN])
        if (self._config.evaluate_beside or self._config.evaluation_worker) and not reached:
            self._evaluate_beside()
        else:
            self.evaluate(self.schedule.evaluation_steps)

    def _evaluate(self, count: Count) -> None:
        self._marked_at = self._marked_at if self._improving else time.monotonic()
        longest, step = self.schedule.max_episode_steps, self._counters.global_steps
        result = self._evaluations.play(count, step, longest, lambda: self._signals.requested is not None)
        self._counters[Phase.TEST].add(self._elapsed())
        self._evaluation_cut = result is None
        if result is None:
            return
        best = self._record(result, beside=False)
        if result.episodes and self._improving:
            self._save_evaluated(best)

    def _evaluate_beside(self) -> None:
        schedule, step = self.schedule, self._counters.global_steps
        if self._evaluations.start_beside(schedule.evaluation_steps, step, schedule.max_episode_steps):
            self._save_to_be_judged()
        else:
            logging.warning(
                "The evaluation of step %d is left out: the one before is still running. Evaluate less, or less often.",
                step,
            )

    def _take_beside(self, wait: bool = False) -> bool:
        """Takes the result of an evaluation beside training, if there is one; returns whether there was."""
        result = self._evaluations.take_beside(wait, lambda: self._signals.requested is not None)
        if result is not None:
            self._record(result, beside=True)
            if result.episodes:
                self._judge(result)
        return result is not None

    def _record(self, result: Evaluation, beside: bool) -> bool:
        """Counts and reports an evaluation; returns whether it is the best so far."""
        self._counters[Phase.TEST].add(EnvironmentSteps(result.environment_steps), EnvironmentEpisodes(result.episodes))
        return self._evaluations.record(result, self._counters.iterations, beside)
