"""What every training reports: the total loss, its parts, and norms of gradients before they are clipped."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import gin
import numpy as np
import pytest
import tensorflow as tf

from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.algorithms.actor_critic_loss import ActorCriticLoss, valid_mask
from alf.algorithms.agent import Agent
from alf.algorithms.agent_parts import total_loss
from alf.algorithms.one_step_loss import OneStepTDLoss
from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss
from alf.data_structures import ActionTimeStep, Bootstrap, Experience, LossInfo, StepType
from alf.drivers.sync_off_policy_driver import SyncOffPolicyDriver
from alf.environments.suite_unittest import ActionType, PolicyUnittestEnv
from alf.utils.untracked import Untracked
from tests.algorithms.networks import feed_forward, specs_of
from tests.algorithms.off_policy import CONTINUOUS, make

CLIP = 0.01
Told = namedtuple("Told", ["mine"])


def sgd() -> Any:
    return tf.keras.optimizers.legacy.SGD(1.0)


def actor_critic(**kwargs: Any) -> ActorCriticAlgorithm:
    tf.keras.utils.set_random_seed(4)
    obs, act = specs_of(PolicyUnittestEnv(4, 5, seed=0))
    loss = ActorCriticLoss(act, gamma=0.9, td_loss_weight=0.3, entropy_regularization=0.2)
    return ActorCriticAlgorithm(obs, act, *feed_forward(obs, act), loss=loss, optimizer=sgd(), **kwargs)


def collected(algorithm: Any) -> Experience:
    """A batch [B', T, ...] with its bootstrap."""
    driver = SyncOffPolicyDriver(PolicyUnittestEnv(4, 5, seed=0), algorithm, 12, random_seed=0)
    driver.run()
    driver.stop()
    batch: Experience = algorithm.exp_replayer.replay_all()
    return batch


def moves(algorithm: Any, exp: Experience) -> dict[str, np.ndarray]:
    """How far one update moves each variable: with SGD of rate 1, by its gradient after clipping."""
    variables = [v for _, owned in algorithm.optimized_variables() for v in owned]
    before = [v.numpy() for v in variables]
    algorithm.train_from(exp)
    return {v.name: b - v.numpy() for v, b in zip(variables, before, strict=True)}


def reported(algorithm: Any) -> dict[str, float]:
    return {name: float(value) for name, value in algorithm.last_train_metrics.items()}


def norm(x: np.ndarray) -> float:
    return float(np.sqrt(np.square(x.astype(np.float64)).sum()))


@pytest.mark.parametrize("clip_by_global_norm", [True, False])
def test_norms_of_gradients_are_those_before_clipping(clip_by_global_norm: bool) -> None:
    plain = actor_critic()
    clipped = actor_critic(gradient_clipping=CLIP, clip_by_global_norm=clip_by_global_norm)
    for algorithm in (plain, clipped):
        algorithm.set_summary_settings(summarize_grads_and_vars=True)
    exp = collected(plain)
    gradients, cut = moves(plain, exp), moves(clipped, exp)
    norms = [norm(g) for g in gradients.values()]
    for algorithm, names in ((plain, gradients), (clipped, cut)):
        metrics = reported(algorithm)
        assert metrics["grad_norm"] == pytest.approx(np.sqrt(sum(n**2 for n in norms)), rel=1e-3)
        for name, own in zip(names, norms, strict=True):
            assert metrics[f"grad_norm/{name}"] == pytest.approx(own, rel=1e-2, abs=1e-5)
    # And clipped they were.
    limits = [norm(g) for g in cut.values()]
    together = np.sqrt(sum(n**2 for n in limits))
    assert reported(clipped)["grad_norm"] > 5 * CLIP
    assert together == pytest.approx(CLIP, rel=1e-2) if clip_by_global_norm else together > CLIP
    assert max(limits) <= CLIP * 1.01


def test_the_total_is_the_weighted_sum_of_its_reported_parts() -> None:
    algorithm = actor_critic()
    algorithm.train_from(collected(algorithm))
    metrics = reported(algorithm)
    assert abs(metrics["policy_gradient_loss"]) > 0.01
    assert metrics["td_loss"] > 0.01
    assert metrics["entropy"] > 0.1
    parts = metrics["policy_gradient_loss"] + 0.3 * metrics["td_loss"] - 0.2 * metrics["entropy"]
    assert metrics["loss"] == pytest.approx(parts, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", ["sac", "discrete_sac", "ddpg", "dqn"])
def test_algorithms_with_critics_report_the_parts_of_the_total(name: str) -> None:
    tf.keras.utils.set_random_seed(4)
    env = PolicyUnittestEnv(
        4, 5, action_type=ActionType.Continuous if name in CONTINUOUS else ActionType.Discrete, seed=0
    )
    # With alpha at 1 the loss of the temperature is 0, whatever its gradient.
    algorithm = make(name, *specs_of(env), **({"initial_log_alpha": 0.0} if "sac" in name else {}))
    driver = SyncOffPolicyDriver(env, algorithm, 20, exp_replayer="uniform", random_seed=0)
    driver.run()
    driver.stop()
    algorithm.train(1, 64, 2, whole_replay_buffer_training=False)
    metrics = reported(algorithm)
    assert metrics["td_loss"] > 0.0
    assert ("actor_loss" in metrics) == (name != "dqn")
    assert metrics["loss"] == pytest.approx(metrics["td_loss"] + metrics.get("actor_loss", 0.0), rel=1e-3)
    assert metrics["grad_norm"] > 0.0


def test_parts_of_an_agent_report_beside_each_other() -> None:
    rl = LossInfo(scalar_loss=tf.constant(1.0), extra={"entropy": tf.constant(1.0)})
    part = LossInfo(scalar_loss=tf.constant(2.0), extra={"icm/loss": tf.constant(2.0)})
    total = total_loss(rl, [part])
    assert float(total.scalar_loss) == 3.0
    assert sorted(total.extra) == ["entropy", "icm/loss"]
    with pytest.raises(ValueError, match=r"Two parts of an Agent report \['icm/loss'\]: give them different names"):
        total_loss(rl, [part, part])


@pytest.mark.parametrize("name", ["loss", "grad_norm"])
def test_a_loss_may_not_report_by_a_name_that_is_taken(name: str) -> None:
    algorithm = actor_critic()
    exp = collected(algorithm)
    calc_loss = algorithm.calc_loss

    def wrong(training_info: Any) -> LossInfo:
        info = calc_loss(training_info)
        return info._replace(extra={**info.extra, name: tf.constant(1.0)})

    algorithm.calc_loss = wrong  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=f"ActorCriticAlgorithm: LossInfo.extra has '{name}', which every training"):
        algorithm.train_from(exp)


class Reporting(OneStepTDLoss):
    """A critic's loss that reports `own` beside what it does by itself, or nothing."""

    def __init__(self, own: Any) -> None:
        super().__init__(0.9)
        self._own = Untracked(own)

    def __call__(self, *args: Any) -> LossInfo:
        info = super().__call__(*args)
        own = self._own.value
        return info._replace(extra={**info.extra, **own} if isinstance(own, dict) else own)


def of_critics(name: str, own: Any) -> tuple[Any, Experience]:
    """An algorithm whose critics' loss reports `own`, and what it collects."""
    kind = ActionType.Continuous if name in CONTINUOUS else ActionType.Discrete
    env = PolicyUnittestEnv(4, 5, action_type=kind, seed=0)
    algorithm = make(name, *specs_of(env), critic_loss=Reporting(own))
    driver = SyncOffPolicyDriver(env, algorithm, 6, random_seed=0)
    driver.run()
    driver.stop()
    return algorithm, algorithm.exp_replayer.replay_all()


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        *[("dqn", taken) for taken in ("epsilon", "target_update")],
        *[("ddpg", taken) for taken in ("actor_loss", "ou_stddev")],
        *[("sac", taken) for taken in ("actor_loss", "entropy", "alpha")],
    ],
)
def test_the_loss_of_a_critic_may_not_report_by_a_name_of_the_algorithm(name: str, taken: str) -> None:
    algorithm, exp = of_critics(name, {taken: tf.constant(7.0), "other": tf.constant(8.0)})
    said = rf"{algorithm.name}: the critic_loss reports '{taken}' in LossInfo.extra, which the algorithm reports itself"
    with pytest.raises(ValueError, match=said):
        algorithm.train_from(exp)


@pytest.mark.parametrize("name", ["dqn", "sac"])
@pytest.mark.parametrize("own", [(), None, Told(tf.constant(7.0))])
def test_the_loss_of_a_critic_may_report_nothing_or_a_namedtuple(name: str, own: Any) -> None:
    algorithm, exp = of_critics(name, own)
    algorithm.train_from(exp)
    metrics = reported(algorithm)
    assert metrics.get("mine") == (7.0 if isinstance(own, Told) else None)
    assert {"target_update", "epsilon" if name == "dqn" else "alpha"} <= set(metrics)


@pytest.mark.parametrize("name", ["actor_critic", "dqn"])
def test_of_data_without_a_bootstrap_the_last_row_is_only_looked_at(name: str) -> None:
    """What its action has led to is not known; the mean is over the other rows, as with it as the bootstrap."""

    def make_one() -> Any:
        if name == "actor_critic":
            return actor_critic()
        tf.keras.utils.set_random_seed(0)
        return make("dqn", *specs_of(PolicyUnittestEnv(4, 5, seed=0)), optimizer=sgd())

    whole = collected(make_one())
    # Episodes end at the row behind: a row that is LAST is left out anyway.
    row = tf.nest.map_structure(lambda x: x[:, 3], whole._replace(bootstrap=()))
    first = tf.nest.map_structure(lambda x: x[:, :3], whole._replace(bootstrap=()))
    assert not np.any(row.step_type == StepType.LAST)
    time_step = ActionTimeStep(*row[: len(ActionTimeStep._fields)])
    parts = {
        "bootstrap": first._replace(bootstrap=Bootstrap(time_step, ())),
        "none": tf.nest.map_structure(lambda x: x[:, :4], whole._replace(bootstrap=())),
    }
    found = {}
    for part, exp in parts.items():
        algorithm = make_one()
        algorithm.set_exp_replayer("one_time", 4)
        algorithm.train_from(exp)
        found[part] = reported(algorithm)
    assert {"loss", "grad_norm"} <= set(found["none"])
    for metric, value in found["bootstrap"].items():
        assert found["none"][metric] == pytest.approx(value, rel=1e-4), metric


def test_ppo_invents_no_advantage_for_the_last_row_of_data_without_a_bootstrap() -> None:
    env = PolicyUnittestEnv(4, 5, seed=0)
    obs, act = specs_of(env)
    algorithm = PPOAlgorithm(obs, act, *feed_forward(obs, act), loss_class=PPOLoss, optimizer=sgd())
    prepared = algorithm.preprocess_experience(collected(algorithm)._replace(bootstrap=()))
    assert np.all(prepared.step_type[:, -1] == StepType.LAST)
    assert np.all(valid_mask(tf.transpose(prepared.step_type), last_row=True).numpy()[-1] == 0.0)


def test_the_norm_of_the_whole_holds_for_optimisers_inside_without_their_own() -> None:
    """An agent's clipping is that of its parts; one that a part has of its own comes first."""
    for of_agent, of_part, expected in [(CLIP, None, CLIP), (None, CLIP, CLIP), (10.0, CLIP, CLIP)]:
        obs, act = specs_of(PolicyUnittestEnv(4, 5, seed=0))
        clip = {"gradient_clipping": of_part, "clip_by_global_norm": of_part is not None}
        agent = Agent(
            obs,
            act,
            rl_algorithm_cls=lambda clip=clip, **kwargs: actor_critic(**clip),
            gradient_clipping=of_agent,
            clip_by_global_norm=of_agent is not None,
        )
        step = moves(agent, collected(agent))
        assert norm(np.concatenate([m.ravel() for m in step.values()])) == pytest.approx(expected, rel=1e-3)


def test_clipping_that_clips_nothing_is_refused() -> None:
    obs, act = specs_of(PolicyUnittestEnv(4, 5, seed=0))

    def part(**kwargs: Any) -> ActorCriticAlgorithm:
        return ActorCriticAlgorithm(obs, act, *feed_forward(obs, act), gradient_clipping=CLIP)

    agent = Agent(obs, act, rl_algorithm_cls=part, optimizer=sgd())
    with pytest.raises(
        ValueError, match=r"ActorCriticAlgorithm.gradient_clipping=0.01 clips nothing, .*AgentAlgorithm"
    ):
        agent.build_optimizers()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"gradient_clipping": 0.0}, "gradient_clipping must be above 0, got 0.0: leave it out to clip nothing"),
        ({"gradient_clipping": -0.5}, "gradient_clipping must be above 0, got -0.5"),
        ({"clip_by_global_norm": True}, "clip_by_global_norm clips nothing without gradient_clipping"),
        ({"optimizer": tf.keras.optimizers.legacy.SGD}, r"optimizer is SGD and not one of it: write @SGD\(\) with"),
        ({"optimizer": [sgd(), sgd()]}, "2 optimisers for 0 trainable_module_sets; give one each"),
    ],
)
def test_arguments_of_optimisation_without_effect_are_refused(arguments: dict[str, Any], said: str) -> None:
    obs, act = specs_of(PolicyUnittestEnv(4, 5, seed=0))
    with pytest.raises(ValueError, match=said):
        ActorCriticAlgorithm(obs, act, *feed_forward(obs, act), **arguments)


def test_a_binding_of_the_losses_debug_summaries_counts() -> None:
    gin.parse_config("ActorCriticLoss.debug_summaries = True")
    obs, act = specs_of(PolicyUnittestEnv(4, 5, seed=0))
    algorithm = ActorCriticAlgorithm(obs, act, *feed_forward(obs, act), optimizer=sgd())
    algorithm.train_from(collected(algorithm))
    assert {"returns", "advantages"} <= set(reported(algorithm))
