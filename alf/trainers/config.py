"""What a training run consists of."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import gin
from absl import logging

from alf.trainers.behavior_targets import numbers_of
from alf.trainers.config_types import checked
from alf.trainers.schedule import Schedule, schedule_of
from alf.utils.gin_utils import did_you_mean

if TYPE_CHECKING:
    from alf.trainers.self_play import SelfPlay
    from alf.trainers.stopping import StopCondition


@gin.configurable(module="alf")
class TrainerConfig:
    """The settings of a trainer, bound in gin files. Attributes are the arguments; any other name is an error."""

    def __init__(
        self,
        root_dir: str,
        trainer: Callable[[TrainerConfig], Any] | None = None,
        algorithm_ctor: Callable[..., Any] | None = None,
        random_seed: int | None = None,
        num_iterations: int = 1000,
        num_env_steps: int = 0,
        unroll_length: int = 8,
        use_rollout_state: bool = False,
        use_tf_functions: bool = True,
        checkpoint_interval: int = 1000,
        checkpoint_max_to_keep: int | None = 20,
        evaluate: bool = False,
        eval_interval: int = 10,
        epsilon_greedy: float = 0.1,
        num_eval_episodes: int = 10,
        summary_interval: int = 50,
        update_counter_every_mini_batch: bool = False,
        summaries_flush_secs: int = 1,
        summary_max_queue: int = 10,
        debug_summaries: bool = False,
        summarize_grads_and_vars: bool = False,
        summarize_action_distributions: bool = False,
        num_steps_per_iter: int = 10000,
        initial_collect_steps: int = 0,
        num_updates_per_train_step: int = 4,
        mini_batch_length: int | None = None,
        mini_batch_size: int | None = None,
        whole_replay_buffer_training: bool = True,
        clear_replay_buffer: bool = True,
        num_envs: int = 1,
        *,
        strict: bool = False,
        schedule: Schedule | None = None,
        stop_conditions: Sequence[StopCondition] = (),
        reward_success_threshold: float | Mapping[str, float] | None = None,
        evaluate_beside: bool = False,
        evaluation_worker: bool = False,
        checkpoint_save_secs: float | None = None,
        checkpoint_env_steps: int = 0,
        checkpoint_at_evaluation: bool = False,
        checkpoint_milestones: int = 0,
        initialize_from: str | None = None,
        exact_resume: bool = False,
        checkpoint_replay: bool = False,
        checkpoint_replay_max_to_keep: int | None = 1,
        samples_per_insert: float | None = None,
        burn_in_length: int = 0,
        export_saved_model: bool = True,
        export_onnx: bool = False,
        self_play: SelfPlay | None = None,
        best_by: str | None = None,
        num_workers: int = 0,
        ray_address: str | None = None,
        central_inference: bool = False,
        load_memory_from_file_path: str | None = None,
        num_learners: int = 1,
        mixed_precision: bool = False,
    ) -> None:
        """Creates the settings.

        Args:
          root_dir: directory of everything the run writes.
          trainer: a trainer class, such as `@async_off_policy_trainer`; called with this object.
          algorithm_ctor: makes the algorithm, called as `(observation_spec, action_spec, debug_summaries=...)`.
          random_seed: of which every random stream of the run is derived; None draws one and logs it.
          num_iterations: total of iterations after which training ends, resumed runs included; 0 sets no such limit.
          num_env_steps: environment steps that the learner has got after which training ends; 0 sets no such limit.
            The first limit that is reached ends training, by at most one iteration too late.
          unroll_length: T, steps in a segment (on-policy: steps between two updates). 0 collects nothing: training is on the
            dataset of `load_memory_from_file_path` alone.
          use_rollout_state: start recurrent training from the recorded states.
          use_tf_functions: False runs everything eagerly, to debug.
          checkpoint_interval: iterations between checkpoints; 0 writes none by iterations. One is written at the end in
            any case.
          checkpoint_max_to_keep: older checkpoints are deleted, but for the best and milestones; None or 0 keeps all.
          evaluate: play `num_eval_episodes` in an environment of its own every `eval_interval` iterations.
          eval_interval: see above.
          epsilon_greedy: chance of a sampled instead of the most likely action in evaluation: one at random for DQN and C51; no
            effect for DDPG, TD3 and SARSA.
          num_eval_episodes: see above.
          summary_interval: iterations between two summaries (which are at least some seconds apart).
          update_counter_every_mini_batch: count minibatches, not iterations, in the global counter.
          summaries_flush_secs: a summary is handed to the operating system at the latest so many seconds after the one
            before; a run that ends, however it ends short of `kill -9`, writes all of them.
          summary_max_queue: and when so many are held back.
          debug_summaries: report more about the inside of the losses.
          summarize_grads_and_vars: report norms of gradients and variables.
          summarize_action_distributions: report the parameters of the action distributions.
          num_steps_per_iter: environment steps in an iteration of the on-policy trainer.
          initial_collect_steps: environment steps to collect before the first update of a run; a resumed one counts what
            its replay memory holds. Without such a memory the first update learns from the last batch of them only.
          num_updates_per_train_step: passes over the data, or sampled batches, in an iteration.
          mini_batch_length: L, steps in a training sequence. Of whole batches a divisor of T, None for T. Of samples any
            number: the last step is only looked at, so 2 trains one transition and n + 1 is for n-step returns.
          mini_batch_size: sequences in one gradient step; None for all.
          whole_replay_buffer_training: train on all that the replayer has, else on samples.
          clear_replay_buffer: forget it afterwards; samples are never forgotten so.
          num_envs: N, environment threads of the asynchronous driver, each with a batched environment of
            `create_environment.num_parallel_environments`.
          strict: make bindings that the first iteration has not used an error instead of a warning.
          schedule: heat-up, training and evaluations in units of one's choice. What it gives takes the place of
            `num_iterations` and `num_env_steps`, or of `evaluate`, `eval_interval` and `num_eval_episodes`.
          stop_conditions: such as `@SuccessRate()`, `@MeanReturn()`, `@Plateau()`, `@alf.TimeLimit()`; training ends when one
            of them holds. All but the last one judge by evaluations.
          reward_success_threshold: an evaluation episode with at least this return, as the environment gives rewards, is
            a success; with None only those that the environment calls one. With several agents also a dict of returns
            by the names of behaviors: each of these has a success rate of its own, of the episodes of its agents, and that
            of the evaluation is the lowest of them.
          evaluate_beside: evaluate in a thread of its own, by the weights of the moment when it begins, while training
            goes on. One that is due while another one is running is left out.
          evaluation_worker: the same, but with `num_workers` one more worker plays the evaluations, in a process of its own.
            If it is lost they are played again or left out, and training goes on.
          checkpoint_save_secs: also save when so many seconds have passed since the last checkpoint; 0 for never; None for
            600, but never with `exact_resume`, where nothing may follow the clock.
          checkpoint_env_steps: also save each time the environment steps pass a multiple of this; 0 for never.
          checkpoint_at_evaluation: save at every evaluation, not only when its return is the best so far.
          checkpoint_milestones: every k-th checkpoint is kept for ever; 0 for none.
          initialize_from: a run or a checkpoint whose weights a new run begins with (`RUN:best` for its best one);
            optimisers and counters are new, the source is only read. With behaviors also for one of them, `chaser=RUN`, or
            several, `chaser=RUN,runner=RUN`: the weights of the behavior of that name, or of a single agent; `red@RUN` is
            another behavior, `blue=red@RUN`. Without effect on a run that is resumed.
          exact_resume: make a resumed run bit-identical to one that was never interrupted: at every periodic checkpoint
            all episodes are cut, as truncated, and the environments made anew with seeds of `random_seed` and the
            iteration. Costs that much time, and for asynchronous drivers about a second, a checkpoint. Needs
            `random_seed`, periodic checkpoints (`checkpoint_interval` or `checkpoint_env_steps`), and the mode "lockstep"
            or "sync" where collecting is asynchronous. A run that was interrupted between two periodic checkpoints goes on
            from the first one. With replay of samples it needs `checkpoint_replay`.
          checkpoint_replay: write what the replay memory holds with every checkpoint, for a resumed run to go on with; in
            files of some 32 MB, which takes seconds a gigabyte. Without it a resumed run collects as a new one does
            before it learns.
          checkpoint_replay_max_to_keep: only the newest checkpoints keep theirs; None or 0 for all.
          samples_per_insert: how often each collected step is to be sampled on average: an iteration makes as many updates
            as keep to this, and collects until one is due. Takes the place of `num_updates_per_train_step`, for training
            on samples.
          burn_in_length: steps at the beginning of each sampled sequence, of the `mini_batch_length`, that only bring
            recurrent networks into their state and are not trained on.
          export_saved_model: write with every checkpoint a TensorFlow SavedModel of the policy, which runs without alf.
          export_onnx: write an ONNX model beside it, which needs the extra `onnx` and takes seconds a checkpoint.
          self_play: such as `@SelfPlay()`: a behavior that does not learn plays by older versions of one that does.
          best_by: the name of the behavior whose mean return in evaluation makes a checkpoint the best one. None: with
            `self_play` the learner's rating does, known at every checkpoint; otherwise the return of the environment as a
            whole.
          num_workers: processes that collect for `@async_off_policy_trainer`, each with `num_envs` environment threads, on
            the machines of a Ray cluster; 0 collects in this process. Needs the extra `distributed`.
          ray_address: of that cluster: "auto" for the one that this machine belongs to, or "HOST:PORT" of its head. None or
            "local": this machine alone, with nothing to set up.
          central_inference: workers only step environments, of which they have `num_envs` each; as many environment threads
            of this process act in them as there are environments. For policies that are large, or want a GPU.
          load_memory_from_file_path: a dataset of recorded episodes that the replay memory begins with, unless a resumed run
            has the one of its checkpoint.
          num_learners: GPUs of this machine that share the training of every minibatch, with the result of a single one; where
            there are none, TensorFlow's logical CPUs.
          mixed_precision: make matrix products and convolutions in bfloat16, which processors with `avx512_bf16` or
            `amx_bf16` do faster, with results of three digits only: compare returns. Weights, losses, optimisers and
            exported models stay in float32. Without effect, but for a warning, on other processors. On GPUs it allows
            TensorFloat-32.

        Raises:
          ValueError: a number is out of its range.
        """
        given = checked("TrainerConfig", dict(locals()), _ANNOTATIONS)
        for name in _FIELDS:
            object.__setattr__(self, name, given[name])
        self._check()

    def create_trainer(self) -> Any:
        """The trainer of this configuration.

        Raises:
          ValueError: no trainer is set.
        """
        if not callable(self.trainer):
            state = "is not set" if self.trainer is None else f"is {self.trainer!r}"
            raise ValueError(
                f"TrainerConfig.trainer {state}: bind it to @on_policy_trainer, @sync_off_policy_trainer or "
                "@async_off_policy_trainer."
            )
        if self.evaluate and self.schedule is None and 0 < self.num_iterations < self.eval_interval:
            logging.warning(
                "TrainerConfig.evaluate=True evaluates every eval_interval=%d iterations, and num_iterations=%d end before: "
                "nothing is evaluated. Lower eval_interval.",
                self.eval_interval,
                self.num_iterations,
            )
        return self.trainer(self)

    def __getattr__(self, name: str) -> Any:
        self._unknown(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _FIELDS:
            self._unknown(name)
        object.__setattr__(self, name, value)

    def _unknown(self, name: str) -> NoReturn:
        raise AttributeError(f"TrainerConfig has no {name!r}.{did_you_mean(name, _FIELDS)}")

    def _check(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:  # nan too
                raise ValueError(f"TrainerConfig.{name}={value} must be at least {least}.")
        if self.mini_batch_size is not None and self.mini_batch_size < self.num_learners:
            raise ValueError(
                f"TrainerConfig.mini_batch_size={self.mini_batch_size} cannot be shared by num_learners={self.num_learners}: "
                "raise the first, or lower the second."
            )
        if self.reward_success_threshold is not None:
            numbers_of("TrainerConfig.reward_success_threshold", self.reward_success_threshold)
        self._check_schedule()
        if self.exact_resume:
            self._check_exact_resume()
        if not self.unroll_length:
            self._check_offline()
        rate = self.samples_per_insert
        if rate is not None and (not 0 < rate < math.inf or self.whole_replay_buffer_training):
            raise ValueError(
                f"TrainerConfig.samples_per_insert={rate} must be above 0 and finite, and is for "
                "whole_replay_buffer_training=False."
            )
        if self.burn_in_length and self.whole_replay_buffer_training:
            raise ValueError(
                f"TrainerConfig.burn_in_length={self.burn_in_length} is for whole_replay_buffer_training=False."
            )
        _check_self_play(self.self_play)
        if not 0.0 <= self.epsilon_greedy <= 1.0:
            raise ValueError(f"TrainerConfig.epsilon_greedy={self.epsilon_greedy} must be in [0, 1].")

    def _check_exact_resume(self) -> None:
        if self.random_seed is None:
            raise ValueError(
                "TrainerConfig.exact_resume needs random_seed, of which a resumed run makes the same numbers."
            )
        if self.num_workers:
            raise ValueError(
                f"TrainerConfig.num_workers={self.num_workers} cannot go with exact_resume: what arrives depends on "
                "which workers are lost. Set num_workers=0, or exact_resume=False."
            )
        if self.checkpoint_save_secs:
            raise ValueError(
                f"TrainerConfig.checkpoint_save_secs={self.checkpoint_save_secs} follows the clock, so no run could be "
                "repeated with exact_resume: use checkpoint_interval or checkpoint_env_steps."
            )
        if not (self.checkpoint_interval or self.checkpoint_env_steps):
            raise ValueError(
                "TrainerConfig.exact_resume goes on from periodic checkpoints, and checkpoint_interval=0 writes none: set it, or "
                "checkpoint_env_steps, above 0."
            )
        samples = not (self.whole_replay_buffer_training and self.clear_replay_buffer)
        if samples and not self.checkpoint_replay:
            raise ValueError(
                "TrainerConfig.exact_resume with a replay memory needs checkpoint_replay=True: a resumed run goes on with it."
            )

    def _check_offline(self) -> None:
        if self.load_memory_from_file_path is None or self.whole_replay_buffer_training:
            raise ValueError(
                "TrainerConfig.unroll_length=0 collects nothing, and is for learning from samples of a dataset: set "
                "load_memory_from_file_path, and whole_replay_buffer_training=False; or unroll_length of at least 1."
            )
        if self.samples_per_insert is not None:
            raise ValueError(
                f"TrainerConfig.samples_per_insert={self.samples_per_insert} counts what is collected, and unroll_length=0 "
                "collects nothing: set num_updates_per_train_step."
            )

    def _check_schedule(self) -> None:
        schedule, conditions = self.schedule, self.stop_conditions
        if not isinstance(schedule, Schedule | None):
            raise ValueError(f"TrainerConfig.schedule={schedule!r} must be a schedule: write @Schedule().")
        if not isinstance(conditions, Sequence) or not all(map(_is_condition, conditions)):
            raise ValueError(
                f"TrainerConfig.stop_conditions={conditions!r} must be a list of conditions, such as [@alf.TimeLimit()]."
            )
        completed = schedule_of(self)
        if not completed.improve_steps and not conditions:
            raise ValueError(
                "TrainerConfig: num_iterations and num_env_steps are both 0, so training would never end; set one, "
                "Schedule.improve_steps or stop_conditions."
            )
        for name in ("evaluate_beside", "evaluation_worker"):
            if getattr(self, name) and completed.period is None:
                raise ValueError(
                    f"TrainerConfig.{name}=True has nothing to evaluate: set evaluate=True, or a schedule with "
                    "steps_between_evaluation_periods."
                )


def _check_self_play(value: Any) -> None:
    if value is None:
        return
    # All algorithms come with it, which settings of runs without it do not need.
    from alf.trainers.self_play import SelfPlay

    if not isinstance(value, SelfPlay):
        raise ValueError(f"TrainerConfig.self_play={value!r} must be settings: write @SelfPlay().")


def _is_condition(value: Any) -> bool:
    """Whether it can be asked: not a class, which gin gives for a name without parentheses, in a scope as a function."""
    return callable(value) and not inspect.isclass(inspect.unwrap(value))


_ANNOTATIONS = {
    p.name: p.annotation for p in inspect.signature(TrainerConfig.__init__).parameters.values() if p.name != "self"
}
_FIELDS = list(_ANNOTATIONS)
_LEAST = {
    "random_seed": 0,
    "num_iterations": 0,
    "num_env_steps": 0,
    "unroll_length": 0,
    "checkpoint_interval": 0,
    "checkpoint_max_to_keep": 0,
    "checkpoint_save_secs": 0,
    "checkpoint_env_steps": 0,
    "checkpoint_milestones": 0,
    "checkpoint_replay_max_to_keep": 0,
    "eval_interval": 1,
    "num_eval_episodes": 1,
    "summary_interval": 1,
    "summaries_flush_secs": 0,
    "summary_max_queue": 1,
    "num_steps_per_iter": 1,
    "initial_collect_steps": 0,
    "num_updates_per_train_step": 1,
    "mini_batch_length": 1,
    "mini_batch_size": 1,
    "num_envs": 1,
    "burn_in_length": 0,
    "num_workers": 0,
    "num_learners": 1,
}
