"""An algorithm of your own, in one file: REINFORCE with a learned baseline, trained on CartPole.

Run it with `python own_algorithm.py`, or train it by a gin file that has `import own_algorithm` in it.
"""

# ruff: noqa: I001  (alf comes first: it chooses the Keras that TF-Agents needs)
from alf.algorithms.on_policy_algorithm import OnPolicyAlgorithm
from alf.data_structures import LossInfo, PolicyStep, StepType, namedtuple
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.environments import create_environment
from alf.utils import dist_utils, value_ops
import gin
import tensorflow as tf
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
from tf_agents.networks.value_network import ValueNetwork
from tf_agents.specs import tensor_spec

# What acting records of each step, and what the loss sees of it: any nest of tensors and distributions.
ReinforceInfo = namedtuple("ReinforceInfo", ["action_distribution", "baseline"])


@gin.configurable
class ReinforceAlgorithm(OnPolicyAlgorithm):
    """Raises the probability of actions whose discounted return is above what was expected."""

    def __init__(self, observation_spec, action_spec, gamma=0.99, hidden=(64, 64), **kwargs):
        super().__init__(observation_spec, action_spec, **kwargs)
        self._gamma = gamma
        # Everything with variables is an attribute: so it is trained, published to the actors, and saved.
        self._actor = ActorDistributionNetwork(observation_spec, action_spec, fc_layer_params=hidden)
        self._baseline = ValueNetwork(observation_spec, fc_layer_params=hidden)
        self._actor.create_variables()
        self._baseline.create_variables()

    def rollout(self, time_step, state, mode):
        """Acts on a batch of time steps [B, ...], and tells what to record."""
        distribution, _ = self._actor(time_step.observation, step_type=time_step.step_type, network_state=())
        baseline, _ = self._baseline(time_step.observation, step_type=time_step.step_type, network_state=())
        action = dist_utils.sample_action_distribution(distribution)
        return PolicyStep(action, (), ReinforceInfo(distribution, baseline))

    def predict(self, inputs, state=None, epsilon_greedy=0.0):
        """Acts in evaluation: the most likely action, but for a share of `epsilon_greedy`."""
        step = self.rollout(inputs, state, mode=None)
        action = dist_utils.epsilon_greedy_sample(step.info.action_distribution, epsilon_greedy)
        return PolicyStep(action, (), ())

    # `train_step`, which runs before the loss, re-runs `rollout` under the present weights: see OnPolicyAlgorithm.

    def calc_loss(self, training_info):
        """The loss of each step of a segment [T, B, ...]; those of LAST steps are left out of the mean."""
        distribution, baseline = training_info.info
        returns = value_ops.discounted_return(
            training_info.reward, baseline, training_info.step_type, self._gamma * training_info.discount
        )
        # The last step has no return of its own: it is only what the others bootstrap from.
        returns = tf.concat([returns, tf.stop_gradient(baseline[-1:])], 0)
        surprise = returns - baseline
        log_prob, entropy, _ = dist_utils.compute_log_probability_and_entropy(distribution, training_info.action, 2)
        policy_loss = -log_prob * tf.stop_gradient(surprise) - 0.01 * entropy
        acted = tf.cast(training_info.step_type != StepType.LAST, tf.float32)
        acted *= tf.concat([tf.ones_like(acted[:-1]), tf.zeros_like(acted[-1:])], 0)
        loss = acted * (policy_loss + 0.5 * tf.square(surprise))
        return LossInfo(loss=loss, extra={"policy_loss": policy_loss, "entropy": entropy})


def train(goal=475.0, max_updates=1500, seed=0):
    """Trains on CartPole in two environment threads; returns the mean return of the last episodes."""
    tf.random.set_seed(seed)
    envs = [
        create_environment(
            "CartPole-v1", num_parallel_environments=16, seed=2 * seed + i, vectorization="vector_entry_point"
        )
        for i in range(2)
    ]
    specs = tensor_spec.from_spec((envs[0].observation_spec(), envs[0].action_spec()))
    algorithm = ReinforceAlgorithm(
        *specs,
        optimizer=tf.keras.optimizers.legacy.Adam(2e-3),
        reward_shaping_fn=lambda r: 0.05 * r,
        gradient_clipping=0.5,
        clip_by_global_norm=True,
    )
    # In turns, for nothing in this loss corrects for actions of older weights.
    driver = AsyncOffPolicyDriver(envs, algorithm, num_actor_queues=0, unroll_length=32, mode="sync", random_seed=seed)
    average_return = driver.get_metrics()[2]
    driver.start()
    try:
        while average_return.result() < goal and algorithm.iterations < max_updates:
            driver.run_async()
            algorithm.train()
    finally:
        driver.stop()
    return float(average_return.result())


if __name__ == "__main__":
    print(f"average return: {train():.1f}")
