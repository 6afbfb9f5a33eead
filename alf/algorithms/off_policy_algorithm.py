"""Learning from recorded experience: one traced call an iteration."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

import gin
import tensorflow as tf
from absl import logging

from alf.algorithms import contracts, minibatch
from alf.algorithms.gradient_norms import gradient_norms
from alf.algorithms.learner_tape import LearnerTape
from alf.algorithms.learners import Learners, SharedTape, make_learners
from alf.algorithms.rl_algorithm import RLAlgorithm, training_info_from
from alf.data_structures import Experience, LossInfo, Nest, StepType
from alf.networks.calling import learning
from alf.replay.creating import create_replayer
from alf.replay.experience_replayer import ExperienceReplayer
from alf.replay.hindsight_replay import HindsightReplay
from alf.replay.memory_use import MemoryUse
from alf.replay.sampling import View
from alf.replay.uniform_replay import UniformReplay, sampling
from alf.utils import devices, nest_utils, rng
from alf.utils.common import check_sizes, is_stateless, zeros_from_spec
from alf.utils.tracing import Traced

_MOST_PLANS = 8  # more than the sizes that a run which learns from all there is alternates between
_TRACES_OFTEN = "%s traces its update anew for each number of steps: set clear_replay_buffer=True, or use samples."


@dataclasses.dataclass
class _Volatile:
    """What a learner holds beside its variables."""

    replayer: ExperienceReplayer | None = None
    # What the replayer was made for.
    replayer_key: tuple[Any, ...] = ()
    default_replayer: str = "one_time"
    burn_in_length: int = 0
    functions: dict[tuple[Any, ...], Traced] = dataclasses.field(default_factory=dict)
    hooks: list[Callable[[], None]] = dataclasses.field(default_factory=list)
    metrics: dict[str, tf.Tensor] = dataclasses.field(default_factory=dict)
    train_secs: float = 0.0
    learners: Learners | None = None


@gin.configurable(module="alf")
class OffPolicyAlgorithm(RLAlgorithm):
    """An algorithm that is trained on what a replayer hands out."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._iterations = devices.number_on_host("iterations")
        self._seed = devices.number_on_host("seed")
        # In an object of no kind that TensorFlow tracks: none of this belongs into checkpoints.
        self._volatile = _Volatile()

    @property
    def least_sample_length(self) -> int:
        """The shortest sequences of a memory that it can learn from, in steps, without the burn-in; by default 1."""
        return 1

    @property
    def learner(self) -> OffPolicyAlgorithm:
        """The algorithm that says how long these are: itself, or what learns inside of it."""
        return self

    @property
    def learns_from_recorded_values(self) -> bool:
        """Whether what it learns follows from values that were recorded as it acted."""
        return False

    @property
    def one_step_means_a_transition(self) -> bool:
        """Whether a `mini_batch_length` of 1 asks for its shortest sequences, where these are longer."""
        return False

    @property
    def exp_replayer(self) -> ExperienceReplayer | None:
        """The replayer that training takes from."""
        return self._volatile.replayer

    def memories(self) -> dict[str | None, UniformReplay]:
        """The memories that training samples from, by the names of behaviors; None stands for an agent that is alone."""
        return {None: self._volatile.replayer} if isinstance(self._volatile.replayer, UniformReplay) else {}

    def memory_uses(self, arguments: Mapping[str, Any]) -> dict[str | None, MemoryUse]:
        """What `train`, called with `arguments`, draws from each of `memories`.

        Raises:
          ValueError: it would draw samples of a size that is not given, or too short for the burn-in and the targets, or
            from a replayer that hands out everything.
        """
        size, length = arguments.get("mini_batch_size"), arguments.get("mini_batch_length")
        kept = not arguments.get("clear_replay_buffer", True)
        if arguments.get("whole_replay_buffer_training", True):
            return {name: MemoryUse(memory, None, length or 1, kept=kept) for name, memory in self.memories().items()}
        size, length = self._sample_sizes(size, length)
        if (replayer := self._volatile.replayer) is not None:
            sampling(replayer)
        return {name: MemoryUse(memory, size, length, kept=kept) for name, memory in self.memories().items()}

    def steps_of_an_update(self, arguments: Mapping[str, Any]) -> float:
        """How many steps of an environment an update of `train`, called with `arguments`, samples from what is kept.

        Raises:
          ValueError: the sizes are not given or too small, or behaviors differ in it.
        """
        sizes = arguments.get("mini_batch_size"), arguments.get("mini_batch_length")
        return self._sampled_steps(*self._sample_sizes(*sizes))

    def _sampled_steps(self, size: int, length: int) -> int:
        """The steps that are trained on of `size` sequences of `length`: not those of the burn-in or behind the last trained."""
        return size * max(length - max(self.rows_for_targets, 1) - self.burn_in_length, 1)

    def updates_made(self) -> int:
        """Gradient steps so far: those of the optimiser that has made the most, iterations where there is none."""
        return max((int(o.iterations) for o, _ in self.optimized_variables()), default=int(self._iterations))

    @property
    def reproducible(self) -> bool:
        """Whether what it learns follows from weights and seed, so that a resumed run can be the same."""
        return True

    @property
    def iterations(self) -> tf.Variable:
        """int64 []: how often `train` has run; it is the version that the weights are published under."""
        return self._iterations

    @property
    def last_train_metrics(self) -> dict[str, tf.Tensor]:
        """float32 [] by name: what the last `train` reports, means over its minibatches."""
        return self._volatile.metrics

    @property
    def train_secs(self) -> float:
        """Seconds spent on training so far, hooks included."""
        return self._volatile.train_secs

    @property
    def burn_in_length(self) -> int:
        """Steps at the beginning of each sampled sequence that only bring recurrent networks into their state.

        They have no loss, and no gradient goes back into them (burn-in of R2D2, Kapturowski et al. 2019).
        """
        return self._volatile.burn_in_length

    @burn_in_length.setter
    def burn_in_length(self, steps: int) -> None:
        self._volatile.burn_in_length = steps

    def set_learners(self, count: int) -> None:
        """Has so many devices of this machine share the training of every minibatch; see `Learners`.

        Raises:
          ValueError: there are fewer.
        """
        in_loss = self.runs_in_loss and is_stateless(self.learning_state_spec)
        self._volatile.learners = make_learners(count, self.name, in_loss)
        self._volatile.functions.clear()

    def set_seed(self, seed: int, again: bool = True) -> None:
        """Seeds the shuffling and every other random number of training; unless `again`, only where nobody has yet."""
        if again or not int(self._seed):
            self._seed.assign(seed % 2**31 or 2**32)  # whose int32 is 0: 0 itself is that of nobody

    def set_default_replayer(self, arguments: Mapping[str, Any]) -> None:
        """Chooses the replayer of drivers that are not told which, by how `train`, called with `arguments`, will train."""
        once = arguments.get("whole_replay_buffer_training", True) and arguments.get("clear_replay_buffer", True)
        self._volatile.default_replayer = "one_time" if once else "uniform"

    def set_exp_replayer(
        self,
        exp_replayer: str | None,
        num_envs: int,
        num_actors: int = 0,
        unroll_length: int = 0,
        learn_queue_cap: int = 0,
    ) -> None:
        """Makes the replayer called `exp_replayer` the one that observes and is trained from.

        One that samples, of an earlier call with the same name and number, stays with what it holds; its sequences never
        join what was observed before this call with what comes after it.

        Args:
          exp_replayer: its name; None for the default one.
          num_envs: single environments in total; the other sizes are the driver's, for replayers that need them.

        Raises:
          ValueError: there is none of this name, observations are not of the kind that it needs, or it brings its own.
        """
        del num_actors, unroll_length, learn_queue_cap
        held = self._volatile
        name = held.default_replayer if exp_replayer is None else exp_replayer
        key = (name, num_envs, self.use_rollout_state)
        if held.replayer is not None:
            if not held.replayer_key:
                raise ValueError(
                    f"{self.name} learns from what it is given and does not act: train it without a driver."
                )
            if key == held.replayer_key and isinstance(held.replayer, UniformReplay):
                held.replayer.end_streams()
                return
            self.exp_observers.remove(held.replayer.observe)
            held.functions.clear()
        replayer = create_replayer(name, lambda: self.experience_spec, num_envs)
        if isinstance(replayer, HindsightReplay):
            for part in (self, *self.submodules):
                if isinstance(part, OffPolicyAlgorithm) and part.learns_from_recorded_values:
                    contracts.refuse_other_goals(part)
            replayer.check_goals(self.time_step_spec, self.transform_timestep)
            replayer.set_reward_shaping(self.shape_reward)
        held.replayer, held.replayer_key = replayer, key
        self.add_experience_observer(held.replayer.observe)

    def add_after_train_hook(self, hook: Callable[[], None]) -> None:
        """Has `hook` called after each `train`; a driver publishes the new weights so."""
        self._volatile.hooks.append(hook)

    def remove_after_train_hook(self, hook: Callable[[], None]) -> None:
        """Takes back `add_after_train_hook`."""
        self._volatile.hooks.remove(hook)

    def train(
        self,
        num_updates: int = 1,
        mini_batch_size: int | None = None,
        mini_batch_length: int | None = None,
        whole_replay_buffer_training: bool = True,
        clear_replay_buffer: bool = True,
        update_counter_every_mini_batch: bool = False,
    ) -> int:
        """Trains on what the replayer hands out.

        Random samples are sequences of `mini_batch_length` steps, drawn anew for every update. The last step of each is
        only looked at, as what the step before has led to; the others are trained. A sequence of a single step is
        trained itself.

        Args:
          num_updates: passes over the data (whole_replay_buffer_training), else batches drawn.
          mini_batch_size: sequences in one gradient step; all by default. Every sequence is used once a pass; a last,
            smaller minibatch counts by its size.
          mini_batch_length: L, steps in a sequence, a divisor of T; T by default. Of samples any number.
          whole_replay_buffer_training: train on everything, else on random samples.
          clear_replay_buffer: forget the data afterwards (with whole_replay_buffer_training).
          update_counter_every_mini_batch: says how a trainer counts; training itself is the same.

        Returns:
          The number of steps trained on, each pass counted.

        Raises:
          ValueError: no replayer is set, it is empty or holds too little, or a size does not fit the data.
        """
        if (replayer := self._volatile.replayer) is None:
            raise ValueError("No replayer is set: let a driver do it, or call set_exp_replayer('one_time', num_envs).")
        check_sizes(num_updates=num_updates, mini_batch_size=mini_batch_size, mini_batch_length=mini_batch_length)
        if not whole_replay_buffer_training:
            sizes = self._sample_sizes(mini_batch_size, mini_batch_length)
            return self._train_on_samples(sampling(replayer), num_updates, *sizes)
        self._check_length(None)
        begin = time.monotonic()
        experience = replayer.replay_all()
        self._volatile.train_secs += time.monotonic() - begin
        steps = self.train_from(experience, num_updates, mini_batch_size, mini_batch_length)
        if clear_replay_buffer:
            replayer.clear()
        return steps

    def prepare(self, arguments: Mapping[str, Any]) -> None:
        """Traces what `train`, called with `arguments`, runs on samples: what a loss refuses is told before any is collected."""
        for use in self.memory_uses(arguments).values():
            if use.size is not None:
                self._on_samples(use.memory, use.size, use.length).prepare()

    def _train_on_samples(self, replayer: UniformReplay, num_updates: int, size: int, length: int) -> int:
        begin = time.monotonic()
        replayer.check(size, length)
        function = self._on_samples(replayer, size, length)
        self._volatile.metrics = function(replayer.view(length), tf.constant(num_updates))
        self._end_train(begin)
        return self._sampled_steps(size, length) * num_updates

    def _on_samples(self, replayer: UniformReplay, size: int, length: int) -> Traced:
        def train(view: View, updates: tf.Tensor) -> dict[str, tf.Tensor]:
            return self._train_sampled(replayer, view, updates, size, length)

        key = ("samples", size, length, self.burn_in_length)
        return self._function(key, train, replayer.view_spec, tf.TensorSpec([], tf.int32))

    def _sample_sizes(self, size: int | None, length: int | None) -> tuple[int, int]:
        """How many sequences a sample has and how many steps each; ValueError where it cannot be learned from."""
        if size is None or length is None:
            raise ValueError(
                f"Training on samples needs both sizes, got mini_batch_size={size} and mini_batch_length={length}: set them, "
                "or whole_replay_buffer_training=True."
            )
        if length == 1 and self.learner.one_step_means_a_transition:
            length = self.least_sample_length
        self._check_length(length)
        return size, length

    def _check_length(self, length: int | None) -> None:
        """Raises ValueError where samples of `length`, None for none, are too short or cannot begin with a burn-in."""
        burn_in, least = self.burn_in_length, self.least_sample_length
        if burn_in and (length is None or is_stateless(self.learning_state_spec)):
            raise ValueError(
                f"burn_in_length={burn_in} is for recurrent networks that learn from samples with a mini_batch_length: set it "
                "to 0."
            )
        least = burn_in + max(least, 2) if burn_in else least
        if length is not None and length < least:
            first = f", with burn_in_length={burn_in}," if burn_in else ""
            raise ValueError(
                f"{self.learner.name} learns from sequences of {least} steps or more{first} and mini_batch_length={length} is "
                f"shorter: set it to at least {least}."
            )

    def _function(self, key: tuple[Any, ...], train: Callable[..., Any], *signature: Any) -> Traced:
        """The traced `train`, made at the first use of `key`."""
        key = (*key, self._summarize_grads_and_vars, self._summarize_action_distributions)
        function = self._volatile.functions.get(key)
        if function is None:
            self.build_optimizers()
            self._forget_plans()
            function = self._volatile.functions[key] = Traced(train, *signature)
        return function

    def _forget_plans(self) -> None:
        """Keeps few of the functions for a number of steps, which is another whenever a memory has grown."""
        of_plans = [key for key in self._volatile.functions if isinstance(key[0], minibatch.Plan)]
        if len(of_plans) >= _MOST_PLANS:
            logging.log_first_n(logging.WARNING, _TRACES_OFTEN, 1, self.name)
            del self._volatile.functions[of_plans[0]]

    def _end_train(self, begin: float) -> None:
        for hook in self._volatile.hooks:
            hook()
        self._volatile.train_secs += time.monotonic() - begin

    def train_from(
        self,
        experience: Experience,
        num_updates: int = 1,
        mini_batch_size: int | None = None,
        mini_batch_length: int | None = None,
    ) -> int:
        """Trains on `experience` [B', T, ...] itself, steps as `observe` takes them; arguments and result as in `train`."""
        begin = time.monotonic()
        batch, length = minibatch.sizes(experience)
        plan = minibatch.plan(batch, length, num_updates, mini_batch_size, mini_batch_length)
        self._volatile.metrics = self._function((plan,), lambda exp: self._train(exp, plan))(experience)
        self._end_train(begin)
        return batch * length * num_updates

    # ---- the traced iteration ----

    def _train(self, experience: Experience, plan: minibatch.Plan) -> dict[str, tf.Tensor]:
        with rng.scope(self._next_iteration()):
            experience = self.preprocess_experience(experience)
            shuffle_seed, update_seed = rng.next_seed(), rng.next_seed()
        sequences, extended = minibatch.cut(experience, plan.length)
        names: list[str] = []

        def update(indices: tf.Tensor | None, step: tf.Tensor, weight: tf.Tensor | float) -> tf.Tensor:
            batch = minibatch.time_major(sequences) if indices is None else minibatch.take(sequences, indices)
            with rng.scope(tf.random.experimental.stateless_fold_in(update_seed, step)):
                metrics, _ = self._update(batch, extended, weight)
            return minibatch.vector(metrics, names)

        return minibatch.by_name(minibatch.run(update, plan, shuffle_seed), names)

    def _train_sampled(
        self, replayer: UniformReplay, view: View, updates: tf.Tensor, size: int, length: int
    ) -> dict[str, tf.Tensor]:
        """`updates` gradient steps, each on sequences of its own."""
        with rng.scope(self._next_iteration()):
            update_seed = rng.next_seed()
        names: list[str] = []

        def update(step: tf.Tensor) -> tf.Tensor:
            with rng.scope(tf.random.experimental.stateless_fold_in(update_seed, step)):
                sample = replayer.sample(view, size, length, rng.next_seed(), self._iterations)
                batch, extended = sample.experience, False
                if length > 1:
                    batch, extended = minibatch.with_last_row(batch, self.preprocess_experience)
                rows, state = self._burnt_in(minibatch.time_major(batch))
                metrics, loss_info = self._update(rows, extended, 1.0, sample.weights, state)
                replayer.learned(sample, loss_info.priority)
            return minibatch.vector(metrics, names)

        return minibatch.by_name(minibatch.mean_of_loop(updates, update), names)

    def _next_iteration(self) -> tf.Tensor:
        """Counts an iteration; the seed of its random numbers, int32 [2]."""
        self._iterations.assign_add(1)
        return tf.cast(tf.stack([self._seed, self._iterations]), tf.int32)

    def _update(
        self,
        exp: Experience,
        extended: bool,
        weight: tf.Tensor | float,
        sequence_weights: tf.Tensor | None = None,
        state: Nest = None,
    ) -> tuple[dict[str, tf.Tensor], LossInfo]:
        """One gradient step on [L, b, ...], whose last row is only looked at when `extended`; `state` is that before it."""
        valid = tf.cast(tf.not_equal(exp.step_type, StepType.LAST), tf.float32)
        # Where no step follows on the last row, losses that need one leave it out by themselves.
        if extended or (self.rows_for_targets and exp.step_type.shape[0] > 1):
            valid = tf.concat([valid[:-1], tf.zeros_like(valid[:1])], 0)
        rollout_info = nest_utils.params_to_distributions(exp.rollout_info, self.loss_info_spec(self.rollout_info_spec))
        tape, info = self._forward(exp, state, extended)
        training_info = training_info_from(exp, info, rollout_info)
        weights = {} if sequence_weights is None else {"sequence_weights": sequence_weights}
        loss_info, grads_and_vars = self.train_complete(tape, training_info, valid, weight, **weights)
        metrics = self._train_metrics(loss_info, grads_and_vars, valid)
        if self._summarize_action_distributions:
            found = nest_utils.find_field(info, "action_distribution")
            for i, leaf in enumerate(tf.nest.flatten(nest_utils.distributions_to_params(found))):
                metrics[f"action_distribution/{i}"] = tf.reduce_mean(leaf)
        return metrics, loss_info

    def _forward(self, exp: Experience, state: Nest, extended: bool) -> tuple[LearnerTape | SharedTape, Nest]:
        """What `_run_train_steps` gives in training, and the tape that saw it."""
        if (learners := self._volatile.learners) is not None:
            return learners.run(lambda e, s: self._run_train_steps(e, s, extended), exp, state)
        weights = [variables for _, variables in self.optimized_variables()]
        with LearnerTape([*itertools.chain(*weights)], persistent=len(weights) > 1) as tape, learning():
            return tape, self._run_train_steps(exp, state, extended)

    @property
    def learning_state_spec(self) -> Nest:
        """Specs of the recurrent state that `train_step` carries from row to row; by default that of `rollout`."""
        return self.train_state_spec

    def state_for_learning(self, state: Nest) -> Nest:
        """The state that `train_step` carries on, of the recorded one before the first row; by default the same, [b, ...]."""
        return state

    def loss_info_spec(self, rollout_info_spec: Nest) -> Nest:
        """Specs of the `rollout_info` that the loss gets, after `preprocess_experience`; by default as recorded."""
        return rollout_info_spec

    @property
    def rows_only_looked_at(self) -> int:
        """How many last rows of a sequence, where its last is not trained, a loss has no gradient in; by default none.

        Feed-forward learners compute none there.
        """
        return 0

    @property
    def runs_in_loss(self) -> bool:
        """Whether feed-forward networks run in the loss alone, and nothing that is trained in `train_step`; by default not."""
        return False

    @property
    def rows_for_targets(self) -> int:
        """How many last rows of a sequence do not count as steps that are trained on."""
        return self.rows_only_looked_at

    def _run_train_steps(self, exp: Experience, state: Nest = None, extended: bool = False) -> Nest:
        """`train_step` over [L, b, ...] from `state`, by default the recorded one; returns its infos [L, b, ...].

        Feed-forward algorithms take all steps at once, but for the rows that are only looked at where the last is (`extended`).
        """
        rows = exp._replace(bootstrap=(), state=())
        if is_stateless(self.learning_state_spec):
            looked_at = self.rows_only_looked_at if extended and not self.runs_in_loss else 0
            nothing = zeros_from_spec(self.learning_state_spec, 1)
            return minibatch.map_apart(lambda e: self.train_step(e, nothing).info, rows, looked_at)
        return minibatch.scan(self.train_step, rows, self._first_state(exp) if state is None else state)

    def _first_state(self, exp: Experience) -> Nest:
        """The state before the first row of [L, b, ...], as learning carries it on."""
        if self.need_full_rollout_state():
            return self.state_for_learning(tf.nest.map_structure(lambda s: s[0], exp.state))
        return self.state_for_learning(zeros_from_spec(self.train_state_spec, tf.shape(exp.step_type)[1]))

    def _burnt_in(self, exp: Experience) -> tuple[Experience, Nest]:
        """The rows of [L, b, ...] behind the burn-in, and the state before them; None where that is the recorded one."""
        steps = self.burn_in_length
        if not steps:
            return exp, None
        first, rest = (tf.nest.map_structure(f, exp) for f in (lambda x: x[:steps], lambda x: x[steps:]))
        return rest, minibatch.last_state(self.train_step, first._replace(state=()), self._first_state(exp))

    def _train_metrics(
        self, loss_info: LossInfo, grads_and_vars: list[tuple[tf.Tensor, tf.Variable]], valid: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        metrics = {"loss": loss_info.loss, **contracts.reported(self.name, loss_info, valid)}
        metrics["grad_norm"] = tf.linalg.global_norm([gradient for gradient, _ in grads_and_vars])
        if self._summarize_grads_and_vars:
            metrics.update(gradient_norms(grads_and_vars))
        return metrics
