"""What was wrong in ALF's TensorFlow code: by which tests each is seen to be gone, and those that have no other place."""

from __future__ import annotations

import ast
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms.agent import Agent
from alf.data_structures import ActionTimeStep, StepType
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.suite_unittest import ActionType, PolicyUnittestEnv
from tests.algorithms.networks import ppo, specs_of
from tests.algorithms.off_policy import make
from tests.learning.test_agent_learns import AGENTS

TESTS = pathlib.Path(__file__).resolve().parents[1]
GONE = {
    "how old the weights were that acted is neither measured nor bounded": (
        "drivers/test_lag.py::test_mean_maximum_and_histogram_are_those_of_all_lags",
        "drivers/test_segments.py::test_max_policy_lag_drops_and_counts_and_zero_does_not_dead_lock",
    ),
    "a forward pass mixes the weights of two versions": (
        "drivers/test_lifecycle.py::test_a_snapshot_never_changes",
        "drivers/test_segments.py::test_async_driver_delivers_every_step_once_in_order",
    ),
    "threads that act update normalisers and noise without locks": (
        "algorithms/test_old_bugs.py::test_acting_changes_nothing_of_an_algorithm",
        "algorithms/test_agent.py::test_the_curiosity_module_is_not_run_in_acting",
    ),
    "cyclic replay fails where the learn queue holds two segments of a stream": (
        "replay/test_replayer.py::test_cycle_one_time_trains_every_transition_once_for_any_queue_length",
    ),
    "the loss is scaled by the share of environments in a batch": (
        "algorithms/test_old_bugs.py::test_a_batch_of_more_segments_is_no_larger_step",
    ),
    "observing and replaying must alternate": ("replay/test_replayer.py::test_only_the_last_batch_is_kept",),
    "an environment that truncates by itself is treated as terminal": (
        "environments/test_environment_adapters.py::test_one_environment_gives_the_same_segments",
        "environments/test_environment_adapters.py::test_all_autoreset_modes_give_the_same_segments",
    ),
    "a lost life is no end": ("environments/test_episodic_life.py::test_values_do_not_look_past_a_lost_life",),
    "a queue error hides the original one": ("drivers/test_faults.py::test_first_error_ends_the_run_with_itself",),
    "a dead environment or worker ends the run": (
        "environments/test_crash_isolation.py::test_a_worker_killed_from_outside",
    ),
    "no checkpoint after a crash": ("trainers/test_trainers.py::test_a_failure_saves_what_was_learned_and_propagates",),
    "replay memory is lost with the process": ("replay/test_replay_files.py::test_what_is_saved_comes_back",),
    "a restore is not checked": ("trainers/test_trainers.py::test_checkpoint_of_other_networks_is_refused",),
    "checkpoints are by iterations only": ("trainers/test_saving.py::test_by_seconds",),
    "a fixed seed needs eager mode": ("trainers/test_trainers.py::test_one_seed_gives_one_run",),
    "runs with adjacent seeds have the same environments": (
        "environments/test_create_environment.py::test_seeds_do_not_collide",
    ),
    "the written configuration cannot be read again": (
        "utils/test_gin_utils.py::test_operative_config_reloads_to_the_same",
    ),
    "a misspelt setting reads as None": ("trainers/test_config.py::test_unknown_attributes_name_the_nearest",),
    "SARSA ignores gamma": (
        "algorithms/test_off_policy_losses.py::test_gamma_multiplies_the_discount_of_every_algorithm",
    ),
    "the goal generator's loss counts twice": (
        "algorithms/test_agent.py::test_the_goal_generators_loss_is_counted_once",
    ),
    "the goal generator sees another observation in acting than in learning": (
        "algorithms/test_agent.py::test_the_goal_generator_sees_the_same_observation_wherever_it_is_asked",
    ),
    "a histogram's upper bound is its minimum": ("metrics/test_user_stats.py::test_a_histogram_of_counts",),
    "DIAYN without an encoder crashes": (
        "algorithms/test_curiosity.py::test_diayn_loss_and_gradients_with_and_without_encoder",
    ),
    "the entropy target tests a tensor by `if`": (
        "algorithms/test_entropy_target_algorithm.py"
        "::test_loss_is_the_weighted_entropy_of_valid_rows_and_traces_without_a_tensor_if",
    ),
    "rows that do not count are in the denominator of the mean": (
        "algorithms/test_actor_critic_loss.py::test_masked_means",
        "replay/test_training_on_samples.py::test_loss_and_gradients_are_those_of_a_plain_loop",
    ),
    "one coin decides for a whole batch": (
        "algorithms/test_exploration.py::test_epsilon_greedy_tosses_a_coin_for_each_row",
        "utils/test_dist_utils.py::test_epsilon_is_one_coin_a_row",
    ),
    "one noise shakes a whole batch": (
        "algorithms/test_exploration.py::test_ou_noise_is_a_process_of_its_own_in_every_row",
    ),
    "the actor's loss of discrete SAC is divided by the number of actions": (
        "algorithms/test_off_policy_losses.py::test_discrete_sac_loss_and_gradients",
    ),
    "several elements of a queue of one leaf cannot be taken at once": (
        "drivers/test_queues.py::test_a_nest_of_one_leaf_can_be_taken_many_at_once",
    ),
    "Adam is ambiguous in gin files": (
        "utils/test_gin_utils.py::test_adam_is_the_optimizer_that_traced_loops_run_fastest",
    ),
}


def test_the_tests_that_are_named_exist() -> None:
    missing = []
    for named in (test for tests in GONE.values() for test in tests):
        file, name = named.split("::")
        tree = ast.parse((TESTS / file).read_text())
        if name not in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}:
            missing.append(named)
    assert not missing


def _algorithm(name: str) -> Any:
    kind = ActionType.Continuous if name == "ddpg" else ActionType.Discrete
    specs = specs_of(PolicyUnittestEnv(2, 5, action_type=kind, seed=0))
    if name == "ddpg":
        return make(name, *specs)
    return Agent(*specs, **AGENTS[name][1](*specs), optimizer=tf.keras.optimizers.legacy.Adam(1e-2))


@pytest.mark.parametrize("name", ["ppo_icm", "ppo_rnd", "ppo_diayn", "ac_icm", "ppo_entropy_target", "ddpg"])
def test_acting_changes_nothing_of_an_algorithm(name: str) -> None:
    """So threads can act at the same time; what acting remembers is part of the state that each of them carries."""
    algorithm = _algorithm(name)
    algorithm.acting_variables()
    before = [v.numpy() for v in algorithm.variables]
    state = tf.nest.map_structure(lambda s: tf.zeros([2, *s.shape]), algorithm.train_state_spec)
    for i in range(3):
        time_step = ActionTimeStep(
            tf.fill([2], int(StepType.MID)),
            tf.ones([2]),
            tf.ones([2]),
            tf.constant([[0.0], [1.0]]),
            tf.zeros([2, 1], algorithm.action_spec.dtype),
            tf.range(2),
        )
        state = algorithm.act(time_step, state, tf.constant([i, 1])).state
    for old, variable in zip(before, algorithm.variables, strict=True):
        np.testing.assert_array_equal(old, variable.numpy())


def test_a_batch_of_more_segments_is_no_larger_step() -> None:
    """Twice the same data, in a queue of two segments, moves the weights as once does: the loss is a mean."""
    weights = []
    for copies in (1, 2):
        tf.keras.utils.set_random_seed(0)
        env = PolicyUnittestEnv(4, 5, seed=1)
        algorithm = ppo(env, normalize_advantages=False)
        algorithm._optimizers = [tf.keras.optimizers.legacy.SGD(0.1)]
        seen: list[Any] = []
        algorithm.add_experience_observer(seen.append)
        driver = SyncOffPolicyDriver(env, algorithm, 8, "one_time", random_seed=2)
        driver.run()
        replayer: Any = algorithm.exp_replayer
        replayer.observe(tf.nest.map_structure(lambda x, n=copies: tf.concat([x] * n, 0), seen[0]))
        algorithm.train()
        driver.stop()
        weights.append([v.numpy() for v in algorithm.trainable_variables])
    for once, twice in zip(*weights, strict=True):
        np.testing.assert_allclose(once, twice, rtol=1e-4, atol=1e-6)
