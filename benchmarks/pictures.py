"""Pictures: the Nature network in a bare loop of TensorFlow and inside our learner, and Pong from game to learner.

First plain TensorFlow and our actor-critic with V-trace train the same network on minibatches of 512 pictures 84x84x4,
side by side in turns of seconds. Then EnvPool's Pong is learned by V-trace in one pass over each batch: steps/s that
were learned from.

    python -m benchmarks.pictures                  # four minutes
    python -m benchmarks.pictures --only network
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
import json
import os
import sys
import tempfile
import time
from typing import Any

from alf import _tf

from benchmarks import _machine

MINIBATCH, LENGTH, ACTIONS = 512, 64, 6
CONVOLUTIONS, HIDDEN = ((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512
LEARNING_RATE, CLIPPING = 3e-4, 0.5
# Updates in one call, of both.
_UPDATES = 4
_TURNS = 6
# Iterations before the clock starts.
_WARM_UP = 10

_SETTINGS = (
    f"EncodingNetwork.conv_layer_params={CONVOLUTIONS}",
    f"EncodingNetwork.fc_layer_params=({HIDDEN},)",
    f"features/TensorSpec.shape=({HIDDEN},)",
    "Agent.rl_algorithm_cls=@ActorCriticAlgorithm",
    "ActorCriticAlgorithm.loss_class=@ActorCriticLoss",
    "ActorCriticLoss.use_vtrace=True",
    "ActorCriticLoss.gamma=0.99",
    "ActorCriticLoss.entropy_regularization=0.01",
    "ActorCriticLoss.td_loss_weight=0.5",
    "TrainerConfig.num_updates_per_train_step=1",
    "TrainerConfig.mini_batch_length=None",
    "create_environment.num_parallel_environments=64",
    "TrainerConfig.unroll_length=16",
    "TrainerConfig.mini_batch_size=32",
)


def plain() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A forward pass, and `_UPDATES` updates, over pictures uint8 [512, 84, 84, 4], as a few traced lines."""
    import tensorflow as tf

    layers = [tf.keras.layers.Conv2D(f, k, s, activation="relu") for f, k, s in CONVOLUTIONS]
    layers += [tf.keras.layers.Flatten(), tf.keras.layers.Dense(HIDDEN, activation="relu")]
    layers += [tf.keras.layers.Dense(ACTIONS + 1)]
    network = tf.keras.Sequential([tf.keras.layers.InputLayer((84, 84, 4)), *layers])
    optimizer = tf.keras.optimizers.legacy.Adam(LEARNING_RATE)
    pictures = tf.cast(tf.random.uniform([MINIBATCH, 84, 84, 4], 0, 256, tf.int32), tf.uint8)
    actions = tf.random.uniform([MINIBATCH], 0, ACTIONS, tf.int32)
    returns = tf.random.normal([MINIBATCH])

    def outputs() -> tf.Tensor:
        return network(tf.cast(pictures, tf.float32) / 255.0)

    def update() -> None:
        with tf.GradientTape() as tape:
            found = outputs()
            logits, value = found[:, :ACTIONS], found[:, ACTIONS]
            log_p = tf.nn.log_softmax(logits)
            policy = -tf.reduce_mean(tf.gather(log_p, actions, batch_dims=1) * tf.stop_gradient(returns - value))
            entropy = -tf.reduce_mean(tf.reduce_sum(tf.exp(log_p) * log_p, -1))
            loss = policy + 0.5 * tf.reduce_mean((returns - value) ** 2) - 0.01 * entropy
        gradients = tape.gradient(loss, network.trainable_variables)
        gradients, _ = tf.clip_by_global_norm(gradients, CLIPPING)
        optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))

    optimizer._create_all_weights(network.trainable_variables)

    def loop() -> tf.Tensor:
        def body(i: tf.Tensor) -> tuple[tf.Tensor]:
            update()
            return (i + 1,)

        return tf.while_loop(lambda i: i < _UPDATES, body, (0,), parallel_iterations=1)[0]

    forward = tf.function(lambda: tf.reduce_sum(outputs()), autograph=False)
    return forward, tf.function(loop, autograph=False)


def ours() -> Callable[[], Any]:
    """`_UPDATES` updates of our actor-critic over sequences of 64 steps, as the trainer's iteration has them."""
    from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
    from alf.algorithms.actor_critic_loss import ActorCriticLoss
    from alf.algorithms.agent import Agent
    from alf.data_structures import StepType
    from alf.utils.common import image_scale_transformer
    import tensorflow as tf
    from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
    from tf_agents.networks.encoding_network import EncodingNetwork
    from tf_agents.networks.value_network import ValueNetwork
    from tf_agents.specs import tensor_spec

    pictures = tf.TensorSpec([84, 84, 4], tf.uint8)
    action = tensor_spec.BoundedTensorSpec([], tf.int32, 0, ACTIONS - 1)
    features = tf.TensorSpec([HIDDEN], tf.float32)

    def actor_critic(**specs: Any) -> ActorCriticAlgorithm:
        return ActorCriticAlgorithm(
            **specs,
            actor_network=ActorDistributionNetwork(features, action, fc_layer_params=()),
            value_network=ValueNetwork(features, fc_layer_params=()),
            loss_class=lambda **kwargs: ActorCriticLoss(**kwargs, use_vtrace=True, entropy_regularization=0.01),
        )

    agent = Agent(
        pictures,
        action,
        actor_critic,
        encoding_network=EncodingNetwork(
            tf.TensorSpec([84, 84, 4], tf.float32),
            conv_layer_params=CONVOLUTIONS,
            fc_layer_params=(HIDDEN,),
            activation_fn=tf.nn.relu,
        ),
        observation_transformer=image_scale_transformer,
        optimizer=tf.keras.optimizers.legacy.Adam(LEARNING_RATE),
        gradient_clipping=CLIPPING,
        clip_by_global_norm=True,
    )
    sequences = MINIBATCH // LENGTH
    shape = [_UPDATES * sequences, LENGTH]
    experience = tf.nest.map_structure(
        lambda spec: tf.cast(tf.random.uniform([*shape, *spec.shape], 0, 2, tf.int32), spec.dtype),
        agent.experience_spec._replace(bootstrap=()),
    )._replace(step_type=tf.fill(shape, StepType.MID))
    return lambda: agent.train_from(experience, mini_batch_size=sequences, mini_batch_length=None)


def network(seconds: float) -> list[dict[str, Any]]:
    """Pictures/s forward and trained on, of both, in turns."""
    forward, train = plain()
    contenders = {
        "plain TensorFlow, forward": (forward, MINIBATCH),
        "plain TensorFlow, training": (train, _UPDATES * MINIBATCH),
        "alf's learner, training": (ours(), _UPDATES * MINIBATCH),
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(_TURNS):
        for name, (act, size) in contenders.items():
            rates[name].append(_machine.rate(act, size, seconds / _TURNS))
    return [{"what": name, "pictures/s": sum(found) / len(found)} for name, found in rates.items()]


def pong(steps: int) -> dict[str, Any]:
    """Environment steps/s of the shipped example with the settings above, after its first iterations."""
    import alf.algorithms.actor_critic_algorithm
    import alf.algorithms.actor_critic_loss
    from alf.trainers.config import TrainerConfig
    from alf.utils import gin_utils
    import alf.utils.external_configurables  # noqa: F401

    marks: list[tuple[float, float, int]] = []
    limits = ["TrainerConfig.num_iterations=0", f"TrainerConfig.num_env_steps={steps}"]
    gin_utils.parse_gin(["async_ppo_pong"], [*limits, *_SETTINGS])
    with tempfile.TemporaryDirectory() as folder:
        trainer = TrainerConfig(root_dir=folder).create_trainer()
        trainer.initialize()
        metrics = trainer.driver.get_metrics()
        trainer.algorithm.add_after_train_hook(
            lambda: marks.append((time.perf_counter(), time.process_time(), int(metrics[1].result())))
        )
        trainer.train()
    wall, cpu, taken = (b - a for a, b in zip(marks[_WARM_UP], marks[-1], strict=True))
    return {"steps/s": taken / wall, "processors busy": cpu / wall, "mean return": float(metrics[2].result())}


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("network", "pong"), help="this part alone")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement of the network")
    parser.add_argument("--steps", type=int, default=200_000, help="of Pong")
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.threads:
        _tf.configure_threads(intra_op=flags.threads)
        print(json.dumps({"rows": network(flags.seconds)}))
        return
    head = _machine.announce("pictures: the Nature network, and Pong by V-trace in one pass")
    rows = []
    if flags.only != "pong":
        for threads in (1, len(os.sched_getaffinity(0))):
            _machine.progress(f"network, {threads} thread(s)")
            command = [sys.executable, "-m", "benchmarks.pictures", "--threads", str(threads)]
            found = _machine.last_json([*command, "--seconds", str(flags.seconds)], 10 * flags.seconds + 120)
            rows += [{"threads": threads, **row} for row in found["rows"]]
        print(_machine.table(rows), flush=True)
    more = {}
    if flags.only != "network":
        _machine.progress("Pong")
        more["pong"] = pong(flags.steps)
        print(_machine.table([more["pong"]]))
    if flags.only is None:
        _machine.save("pictures", head, rows, **more)


if __name__ == "__main__":
    main()
