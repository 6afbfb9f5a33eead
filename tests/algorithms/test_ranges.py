"""Numbers out of their ranges, and what is no optimiser, are told where they are given."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from alf.algorithms.actor_critic_loss import ActorCriticLoss
from alf.algorithms.diayn_algorithm import DIAYNAlgorithm
from alf.algorithms.exploration import EpsilonGreedy, LinearSchedule
from alf.algorithms.goal_generator import RandomCategoricalGoalGenerator
from alf.algorithms.icm_algorithm import ICMAlgorithm
from alf.algorithms.normalization import ObservationNormalizer, RewardNormalizer
from alf.algorithms.one_step_loss import OneStepTDLoss
from alf.algorithms.ppo_loss import PPOLoss
from alf.drivers.policy_driver import PolicyDriver
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.suite_unittest import PolicyUnittestEnv
from alf.utils.common import check_range, check_sizes
from alf.utils.normalizers import AdaptiveNormalizer, ScalarAdaptiveNormalizer
from tests.algorithms.networks import ppo, specs_of
from tests.algorithms.off_policy import make
from tests.algorithms.test_network_kinds import BOX, CHOICE, OBS

SHARE = " must be in [0, 1]."


def _decaying(begins: float, steps: int) -> Any:
    return tf.keras.optimizers.legacy.Adam(tf.keras.optimizers.schedules.PolynomialDecay(begins, steps, 0.0))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: ActorCriticLoss(BOX, gamma=1.5), "gamma=1.5" + SHARE),
        (lambda: ActorCriticLoss(BOX, td_lambda=-0.1), "td_lambda=-0.1" + SHARE),
        (lambda: PPOLoss(BOX, gamma=float("nan")), "gamma=nan" + SHARE),
        (lambda: PPOLoss(BOX, td_lambda=2), "td_lambda=2" + SHARE),
        (lambda: PPOLoss(BOX, advantage_clip=-1.0), "advantage_clip=-1.0 must be at least 0."),
        (lambda: PPOLoss(BOX, log_prob_clipping=-1.0), "log_prob_clipping=-1.0 must be at least 0."),
        (lambda: OneStepTDLoss(gamma=-0.5), "gamma=-0.5" + SHARE),
        (lambda: RewardNormalizer(gamma=99), "gamma=99" + SHARE),
        (
            lambda: RewardNormalizer(normalizer_cls=ScalarAdaptiveNormalizer),
            "RewardNormalizer: normalizer_cls=ScalarAdaptiveNormalizer takes no spec: give",
        ),
        (lambda: ObservationNormalizer({"a": OBS}, fields=[]), "ObservationNormalizer: fields=[] names nothing"),
        (lambda: RandomCategoricalGoalGenerator(OBS, 0), "num_of_goals=0 must be a whole number of at least 1."),
        (lambda: DIAYNAlgorithm(0, OBS), "num_of_skills=0 must be a whole number of at least 1."),
        (lambda: ICMAlgorithm(BOX, OBS, hidden_size=0), "hidden_size=0 must be a whole number of at least 1."),
        (lambda: EpsilonGreedy(1.5), "EpsilonGreedy: epsilon must be at least 0 and at most 1, also at"),
        (lambda: make("c51", OBS, CHOICE, gamma=1.1), "gamma=1.1" + SHARE),
        (lambda: make("dqn", OBS, CHOICE, epsilon_greedy=-0.1), "EpsilonGreedy: epsilon must be at least 0"),
        (lambda: make("dqn", OBS, CHOICE, target_update_tau=0.0), "A target update needs 0 < tau <= 1 and period >= 1"),
        (lambda: make("sac", OBS, BOX, target_update_period=0), "A target update needs 0 < tau <= 1 and period >= 1"),
        (lambda: make("sac", OBS, BOX, dqda_clipping=-1.0), "dqda_clipping=-1.0 must be at least 0."),
        (
            lambda: make("discrete_sac", OBS, CHOICE, dqda_clipping=0.1),
            "SacAlgorithm.dqda_clipping=0.1 bounds the slope of values over a continuous action, and",
        ),
        (lambda: make("td3", OBS, BOX, dqda_clipping=-1.0), "dqda_clipping=-1.0 must be at least 0."),
        (lambda: make("dqn", OBS, CHOICE, lr=-1e-3), "learning_rate=-0.001"),
        (lambda: make("dqn", OBS, CHOICE, optimizer=tf.keras.optimizers.Adam(-0.5)), "learning_rate=-0.5"),
        (
            lambda: make("dqn", OBS, CHOICE, optimizer=_decaying(-1e-3, 9)),
            "DqnAlgorithm: PolynomialDecay begins with a learning",
        ),
        (
            lambda: make("dqn", OBS, CHOICE, optimizer=_decaying(1e-3, 0)),
            "DqnAlgorithm: PolynomialDecay begins with a learning",
        ),
        (
            lambda: make("dqn", OBS, CHOICE, optimizer="adam"),
            "DqnAlgorithm: optimizer='adam' is no optimiser: make one",
        ),
    ],
)
def test_what_is_out_of_range_is_told_where_it_is_given(build: Any, said: str) -> None:
    with pytest.raises(ValueError) as told:
        build()
    assert str(told.value).startswith(said)


def test_what_is_in_range_or_shows_only_in_use_is_let_through() -> None:
    class Schedule(tf.keras.optimizers.schedules.LearningRateSchedule):
        """One that does not tell of what it is made."""

        def __call__(self, step: Any) -> Any:
            return -1.0

    for gamma in (0, 1.0, tf.constant(2.0), tf.Variable(2.0)):
        assert ActorCriticLoss(BOX, gamma=gamma, td_lambda=gamma).gamma is gamma
    for rate in (0.0, Schedule(), lambda: 0.1, tf.Variable(0.1)):
        make("dqn", OBS, CHOICE, optimizer=tf.keras.optimizers.legacy.Adam(rate))
    RewardNormalizer(normalizer_cls=lambda spec: AdaptiveNormalizer(spec, speed=2.0))
    check_range(0.0, a=None, b=LinearSchedule(-1.0, -1.0, 2), c=0)
    check_sizes(a=None, b=1)


@pytest.mark.parametrize("bad", [0, -1, 1.5, "x"])
@pytest.mark.parametrize("samples", [False, True])
@pytest.mark.parametrize("name", ["num_updates", "mini_batch_size", "mini_batch_length"])
def test_sizes_of_training_are_whole_and_positive(name: str, samples: bool, bad: Any) -> None:
    env = PolicyUnittestEnv(4, 5, seed=0)
    algorithm = ppo(env) if not samples else make("dqn", *specs_of(env))
    driver = SyncOffPolicyDriver(env, algorithm, unroll_length=8, exp_replayer="uniform" if samples else "one_time")
    driver.run()
    sizes = {"num_updates": 1, "mini_batch_size": 2, "mini_batch_length": 2, name: bad}
    with pytest.raises(ValueError, match=rf"^{name}={bad!r} must be a whole number of at least 1\."):
        algorithm.train(**sizes, whole_replay_buffer_training=not samples)
    if samples and name != "num_updates":
        sizes = {
            "sample_batch_size": 2,
            "mini_batch_length": 2,
            name.replace("mini_batch_size", "sample_batch_size"): bad,
        }
        with pytest.raises(ValueError, match=rf"=-?{bad!r} must be a whole number of at least 1\."):
            algorithm.exp_replayer.replay(**sizes)


@pytest.mark.parametrize(("kind", "least"), [(SyncOffPolicyDriver, 1), (PolicyDriver, 0)])
def test_drivers_do_not_run_backwards(kind: Any, least: int) -> None:
    env = PolicyUnittestEnv(4, 5, seed=0)
    driver = kind(env, ppo(env))
    with pytest.raises(ValueError, match=rf"^max_num_steps={least - 1} must be at least {least}\."):
        driver.run(least - 1)
    with pytest.raises(ValueError, match=r"^random_seed=-1 must be at least 0\."):
        kind(env, ppo(env), random_seed=-1)
