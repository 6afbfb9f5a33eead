"""Asynchronous PPO solves CartPole, without gin and without a trainer."""

# ruff: noqa: I001  (alf comes first: it chooses the Keras that TF-Agents needs)
from alf.algorithms.ppo_algorithm import PPOAlgorithm
from alf.algorithms.ppo_loss import PPOLoss
from alf.drivers.async_off_policy_driver import AsyncOffPolicyDriver
from alf.environments import create_environment
import tensorflow as tf
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
from tf_agents.networks.value_network import ValueNetwork
from tf_agents.specs import tensor_spec

envs = [create_environment("CartPole-v1", num_parallel_environments=64, seed=i) for i in range(2)]
specs = tensor_spec.from_spec((envs[0].observation_spec(), envs[0].action_spec()))
actor = ActorDistributionNetwork(*specs, fc_layer_params=(64, 64), activation_fn=tf.nn.tanh)
critic = ValueNetwork(specs[0], fc_layer_params=(64, 64), activation_fn=tf.nn.tanh)
learning = {"optimizer": tf.keras.optimizers.legacy.Adam(2e-3), "reward_shaping_fn": lambda r: 0.05 * r}
algorithm = PPOAlgorithm(*specs, actor, critic, loss_class=PPOLoss, gradient_clipping=0.5, **learning)
driver = AsyncOffPolicyDriver(envs, algorithm, num_actor_queues=0, unroll_length=16, learn_queue_cap=2)
driver.start()
try:
    while driver.get_metrics()[2].result() < 475.0 and algorithm.iterations < 200:
        driver.run_async()
        algorithm.train(num_updates=4, mini_batch_length=1, mini_batch_size=512)
finally:
    driver.stop()
print(f"average return: {driver.get_metrics()[2].result():.1f}")
