"""Pictures: the Nature network in a bare loop of TensorFlow and inside our learner, and Pong from game to learner.

First plain TensorFlow and our actor-critic with V-trace train the same network on minibatches of 512 pictures 84x84x4,
side by side in turns of seconds. Then EnvPool's Pong is learned by V-trace in one pass over each batch, two threads of
64 games: steps/s that were learned from, beside what the processor time of its parts alone would allow, and beside
Sample Factory's APPO on the same games, whose own V-trace fails in this version.

    python -m benchmarks.pictures                  # ten minutes
    python -m benchmarks.pictures --only network
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any

from alf import _tf

from benchmarks import _machine, _peer_env

MINIBATCH, LENGTH, ACTIONS, GAMES = 512, 64, 6, 64
CONVOLUTIONS, HIDDEN = ((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512
LEARNING_RATE, CLIPPING = 3e-4, 0.5
# Updates in one call, of both.
_UPDATES = 4
_TURNS = 6
# Iterations before the clock starts.
_WARM_UP = 10
_TRAINING, _ACTING, _GAME = "alf's learner, training", "plain TensorFlow, forward, 64", "EnvPool's Pong, 64"
_HERE = pathlib.Path(__file__).resolve().parent

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
    f"create_environment.num_parallel_environments={GAMES}",
    "TrainerConfig.num_envs=2",
    "TrainerConfig.unroll_length=16",
    "TrainerConfig.mini_batch_size=32",
    "AsyncOffPolicyDriver.mode='async'",
)

# One pass over minibatches of 512, the same network; its games in one call of EnvPool, or in two processes.
_SAMPLE_FACTORY = {
    "use_rnn": False,
    "recurrence": 1,
    "encoder_conv_architecture": "convnet_atari",
    "encoder_conv_mlp_layers": [HIDDEN],
    "nonlinearity": "relu",
    "obs_scale": 255.0,
    "normalize_input": False,
    "num_epochs": 1,
    "gamma": 0.99,
    "batched_sampling": True,
    "worker_num_splits": 1,
    "num_envs_per_worker": 1,
    "policy_workers_per_policy": 1,
    "rollout": 16,
    "batch_size": MINIBATCH,
    "env_agents": GAMES,
}
_SAMPLE_FACTORY_WORKERS = (1, 2)


def plain(minibatch: int = MINIBATCH) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A forward pass, and `_UPDATES` updates, over pictures uint8 [minibatch, 84, 84, 4], as a few traced lines."""
    import tensorflow as tf

    layers = [tf.keras.layers.Conv2D(f, k, s, activation="relu") for f, k, s in CONVOLUTIONS]
    layers += [tf.keras.layers.Flatten(), tf.keras.layers.Dense(HIDDEN, activation="relu")]
    layers += [tf.keras.layers.Dense(ACTIONS + 1)]
    network = tf.keras.Sequential([tf.keras.layers.InputLayer((84, 84, 4)), *layers])
    optimizer = tf.keras.optimizers.legacy.Adam(LEARNING_RATE)
    pictures = tf.cast(tf.random.uniform([minibatch, 84, 84, 4], 0, 256, tf.int32), tf.uint8)
    actions = tf.random.uniform([minibatch], 0, ACTIONS, tf.int32)
    returns = tf.random.normal([minibatch])

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
    """Pictures/s of all in turns, and the processor time that each picture takes."""
    forward, train = plain()
    contenders = {
        "plain TensorFlow, forward": (forward, MINIBATCH),
        "plain TensorFlow, training": (train, _UPDATES * MINIBATCH),
        _TRAINING: (ours(), _UPDATES * MINIBATCH),
        _ACTING: (plain(GAMES)[0], GAMES),
        _GAME: (_game(), GAMES),
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(_TURNS):
        for name, (act, size) in contenders.items():
            act()
            with _machine.cpu_use() as used:
                rates[name].append(_machine.rate(act, size, seconds / _TURNS))
            times[name].append(used["processors_busy"] / rates[name][-1])
    return [
        {"what": name, "pictures/s": statistics.mean(found), "processor ms": 1e3 * statistics.mean(times[name])}
        for name, found in rates.items()
    ]


def _game() -> Callable[[], Any]:
    import envpool
    import numpy as np

    games = envpool.make_gymnasium("Pong-v5", num_envs=GAMES, num_threads=1)
    games.reset()
    actions = np.zeros(GAMES, np.int64)
    return lambda: games.step(actions)


def allowed(rows: list[dict[str, Any]]) -> float:
    """Steps/s if nothing but acting, the game and training took any of the processors' time."""
    times = [row["processor ms"] for row in rows if row["what"] in (_ACTING, _GAME, _TRAINING)]
    return len(os.sched_getaffinity(0)) / (1e-3 * sum(times))


def sample_factory(seconds: float) -> list[dict[str, Any]]:
    """Environment steps/s of the peer's APPO in both settings."""
    python = _peer_env.python()
    _peer_env.add(python, [f"envpool=={_machine.versions(['envpool'])['envpool']}"])
    found = []
    for workers in _SAMPLE_FACTORY_WORKERS:
        _machine.progress(f"Sample Factory, Pong, workers: {workers}")
        setting = json.dumps({**_SAMPLE_FACTORY, "num_workers": workers})
        script = str(_HERE / "_peer_sample_factory.py")
        command = [python, script, "--env=Pong-v5", f"--seconds={seconds}", f"--setting={setting}"]
        result = _machine.last_json(command, seconds + 120)
        name = f"Sample Factory APPO, workers: {workers}"
        found.append({"system": name, "steps/s": result["steps_per_s"], "mean return": result["mean_return"]})
    return found


def pong(steps: int, mixed: bool) -> dict[str, Any]:
    """Environment steps/s of the shipped example with the settings above, after its first iterations.

    `mixed` has products and convolutions made in bfloat16.
    """
    from alf.trainers.making import make_trainer

    marks: list[tuple[float, float, int]] = []
    limits = ["TrainerConfig.num_iterations=0", f"TrainerConfig.num_env_steps={steps}"]
    bindings = [*limits, *_SETTINGS, f"TrainerConfig.mixed_precision={mixed}"]
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer("async_ppo_pong", folder, bindings)
        trainer.initialize()
        metrics = trainer.driver.get_metrics()
        trainer.algorithm.add_after_train_hook(
            lambda: marks.append((time.perf_counter(), time.process_time(), int(metrics[1].result())))
        )
        trainer.train()
    wall, cpu, taken = (b - a for a, b in zip(marks[_WARM_UP], marks[-1], strict=True))
    returns = float(metrics[2].result())
    system = "alf, V-trace" + (", bfloat16" if mixed else "")
    return {"system": system, "steps/s": taken / wall, "mean return": returns, "processors busy": cpu / wall}


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
    from alf.utils import mixed_precision

    head = _machine.announce("pictures: the Nature network, and Pong by V-trace in one pass")
    rows = []
    if flags.only != "pong":
        for threads in (1, len(os.sched_getaffinity(0))):
            _machine.progress(f"network, {threads} thread(s)")
            command = [sys.executable, "-m", "benchmarks.pictures", "--threads", str(threads)]
            found = _machine.last_json([*command, "--seconds", str(flags.seconds)], 10 * flags.seconds + 120)
            rows += [{"threads": threads, **row} for row in found["rows"]]
        print(_machine.table(rows), flush=True)
    games: list[dict[str, Any]] = []
    if flags.only != "network":
        _machine.progress("Pong")
        ways = (False, True) if mixed_precision.supported() else (False,)
        games = [*(pong(flags.steps, mixed) for mixed in ways), *sample_factory(3 * flags.seconds)]
        print(_machine.table(games))
    if flags.only is None:
        most = allowed([row for row in rows if row["threads"] == 1])
        print(f"The parts of ours alone would allow {most:,.0f} steps/s: {games[0]['steps/s'] / most:.0%} are reached.")
        _machine.save("pictures", head, rows, pong=games, parts_allow=most)


if __name__ == "__main__":
    main()
