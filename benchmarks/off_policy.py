"""Off-policy learners beside Stable-Baselines3 in one run: updates/s at one update an environment step.

Same networks (256x256), same minibatch (256), same learning rate but for the actors of our DDPG and TD3 (half of it), same
number of environment steps, same machine, one after the other; everybody runs in several settings and is quoted in the
fastest. The return is the mean of the last 20 episodes. Processor milliseconds an update change less with the load of the
machine than updates/s do.

    python -m benchmarks.off_policy                # all of it, about 20 minutes
    python -m benchmarks.off_policy --only sac
    python -m benchmarks.off_policy --quick        # short runs of one setting each: only a check of the script
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

from benchmarks import _machine, _peer_env

Setting = dict[str, Any]

_PEER = str(pathlib.Path(__file__).resolve().parent / "_peer_sb3_off_policy.py")
_CRITIC = "critic/ddpg.critic_network.CriticNetwork.joint_fc_layer_params=(256, 256)"
_ACTOR = "actor/ddpg.actor_network.ActorNetwork.fc_layer_params=(256, 256)"
_SIZES = ["TrainerConfig.mini_batch_size=256", "TrainerConfig.mini_batch_length=2", "TrainerConfig.random_seed=0"]
# The example that each algorithm ships with, and what makes its networks those of the comparison.
_OURS: dict[str, tuple[str, list[str]]] = {
    "sac": (
        "sac_pendulum",
        [_CRITIC, "actor/ActorDistributionNetwork.fc_layer_params=(256, 256)"]
        + ["actor/Adam.learning_rate=1e-3", "critic/Adam.learning_rate=1e-3"],
    ),
    "td3": ("td3_pendulum", [_CRITIC, _ACTOR]),
    "ddpg": ("ddpg_pendulum", [_CRITIC, _ACTOR]),
    "dqn": (
        "dqn_cart_pole",
        ["QNetwork.fc_layer_params=(256, 256)", "OneStepTDLoss.n_step=1"]
        + ["create_environment.num_parallel_environments=1", "ReplayBuffer.max_length=100000"],
    ),
}
# Environment steps between two calls of the learner, which then does as many updates; an episode of Pendulum has 200.
_TURNS = (8, 64, 200)

_COMMON: Setting = {
    "batch_size": 256,
    "learning_rate": 1e-3,
    "learning_starts": 1000,
    "buffer_size": 100_000,
    "policy_kwargs": {"net_arch": [256, 256]},
}
_PEERS: dict[str, Setting] = {
    "sac": {"algorithm": "SAC", "env": "Pendulum-v1"},
    "td3": {"algorithm": "TD3", "env": "Pendulum-v1", "noise": 0.1},
    "ddpg": {"algorithm": "DDPG", "env": "Pendulum-v1", "noise": 0.1},
    "dqn": {"algorithm": "DQN", "env": "CartPole-v1", "target_update_interval": 1, "tau": 0.01}
    | {"exploration_fraction": 0.5, "exploration_final_eps": 0.04},
}
_PEER_WAYS: list[Setting] = [
    {"threads": 2, "train_freq": 1, "gradient_steps": 1},
    {"threads": 1, "train_freq": 1, "gradient_steps": 1},
    {"threads": 2, "train_freq": 64, "gradient_steps": 64},
    {"threads": 2, "train_freq": 200, "gradient_steps": 200},
]


def _attempt(command: list[str], steps: int, setting: Any) -> dict[str, Any]:
    """One run; a failed one is reported, not hidden."""
    _machine.progress(f"  {json.dumps(setting)}")
    try:
        result = _machine.last_json([*command, "--steps", str(steps)], timeout=60 + steps / 5)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        _machine.progress(f"  failed: {error}")
        result = {"updates_per_s": 0.0, "cpu_ms": None, "mean_return": None, "failed": _machine.told(error)}
    return {"setting": setting, **result}


def _best(system: str, algorithm: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    best = max(runs, key=lambda run: run["updates_per_s"])
    shown = {key: best.get(key) for key in ("updates_per_s", "cpu_ms", "processors_busy", "mean_return")}
    return {"algorithm": algorithm, "system": system, **shown, "setting": best["setting"], "runs": runs}


def ours(algorithm: str, steps: int, most: int, mixed: bool = False) -> dict[str, Any]:
    """Our trainer on the shipped example, in its settings; `mixed` has products made in bfloat16."""
    example, params = _OURS[algorithm]
    runs = []
    for turn in _TURNS[:most]:
        turns = [f"TrainerConfig.unroll_length={turn}", f"TrainerConfig.num_updates_per_train_step={turn}"]
        bindings = [*_SIZES, *params, *turns, f"TrainerConfig.mixed_precision={mixed}"]
        command = [sys.executable, "-m", "benchmarks._off_policy_run", "--example", example]
        runs.append(_attempt([*command, "--params", json.dumps(bindings)], steps, turns))
    return _best("alf, bfloat16" if mixed else "alf", algorithm, runs)


def peer(python: str, algorithm: str, steps: int, most: int) -> dict[str, Any]:
    """Stable-Baselines3 in its settings."""
    runs = []
    for way in _PEER_WAYS[:most]:
        setting = {**_COMMON, **_PEERS[algorithm], **way}
        runs.append(_attempt([python, _PEER, "--setting", json.dumps(setting)], steps, way))
    return _best("Stable-Baselines3", algorithm, runs)


def our_replay(pictures: bool, rows: int, batch: int, seconds: float) -> dict[str, float]:
    """Steps stored, in segments of 64, and samples of `batch` transitions drawn in one traced loop, each per second."""
    from alf.data_structures import Experience, StepType
    from alf.replay.uniform_replay import UniformReplay
    import tensorflow as tf

    shape = [84, 84, 4] if pictures else [3]
    dtype = tf.uint8 if pictures else tf.float32
    steps = Experience(
        step_type=tf.fill([1, 64, rows], StepType.MID),
        reward=tf.ones([1, 64, rows]),
        discount=tf.ones([1, 64, rows]),
        observation=tf.ones([1, 64, rows, *shape], dtype),
        prev_action=tf.ones([1, 64, rows, 1]),
        env_id=tf.broadcast_to(tf.range(rows), [1, 64, rows]),
        action=tf.ones([1, 64, rows, 1]),
    )
    spec = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape[3:], x.dtype), steps)
    replay = UniformReplay(spec, rows)

    @tf.function(autograph=False)
    def draw(view: Any, times: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            leaves = tf.nest.flatten(replay.sample(view, batch, 2, tf.stack([i, i])).experience)
            # Something of every leaf, or it would not be read.
            return i + 1, total + tf.add_n([tf.cast(tf.reshape(x, [-1])[-1], tf.float32) for x in leaves])

        return tf.while_loop(lambda i, _: i < times, body, (0, 0.0), parallel_iterations=1)[1]

    stored = _machine.rate(lambda: replay.observe(steps), 64 * rows, seconds)
    view = replay.view(2)
    return {"stored": stored, "sampled": _machine.rate(lambda: draw(view, tf.constant(50)), 50, seconds)}


def arithmetic(seconds: float) -> dict[str, float]:
    """What the processors allow: GFLOP/s of a thread that multiplies 256x256 matrices, and the SAC updates of all of them.

    By numpy's library or TensorFlow's, of which the one or the other knows a processor better.

    An update multiplies the minibatch with the square layers 16 times: the actor forward at two rows and backward at one
    (4), two critics forward and backward (6), two targets forward (2), two critics forward, and backward to the action (4).
    """
    # First, since it says that a thread multiplies alone.
    from alf import _tf as _tf
    import numpy as np
    import tensorflow as tf

    a, out = np.random.default_rng(0).random((256, 256), np.float32), np.empty((256, 256), np.float32)
    x = tf.constant(a)
    product = 2 * 256**3
    flops = product * max(
        _per_processor_second(multiply, seconds)
        for multiply in (lambda: np.dot(a, a, out=out), lambda: tf.matmul(x, x))
    )
    processors = len(os.sched_getaffinity(0))
    return {"gflops_of_a_thread": flops / 1e9, "updates_per_s": processors * flops / (16 * product)}


def _per_processor_second(call: Callable[[], Any], seconds: float) -> float:
    """How often `call` is done in a second of processor time."""
    times, begun = 0, time.process_time()
    while time.process_time() - begun < seconds:
        call()
        times += 1
    return times / (time.process_time() - begun)


def replay_rows(python: str, seconds: float) -> list[dict[str, Any]]:
    """How fast steps are stored and samples are drawn, beside the peer."""
    rows = []
    for pictures, batch in ((False, 256), (True, 32)):
        size = {"pictures": pictures, "rows": 8, "batch": batch, "seconds": seconds}
        setting = json.dumps(size)
        what = f"{batch} transitions of " + ("84x84x4 pictures" if pictures else "3 numbers")
        theirs = _machine.last_json([python, _PEER, "--setting", setting], timeout=300)
        for system, rates in (("alf", our_replay(**size)), ("Stable-Baselines3", theirs)):
            rows.append(
                {"sample": what, "system": system, "steps stored/s": rates["stored"], "samples/s": rates["sampled"]}
            )
    return rows


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a check of the script, not a measurement")
    parser.add_argument("--only", choices=[*_OURS, "replay"], help="this algorithm, or the replay memory, alone")
    parser.add_argument("--steps", type=int, default=10_000, help="environment steps of a run")
    parser.add_argument("--peers_python", help="use this interpreter for the peers instead of making an environment")
    flags = parser.parse_args()
    from alf.utils import mixed_precision

    steps, most, seconds = (2000, 1, 0.5) if flags.quick else (flags.steps, 99, 3.0)
    head = _machine.announce("off-policy learners: 256x256, minibatch 256, one update an environment step")
    python = _peer_env.python(flags.peers_python)
    head["peer_versions"] = _peer_env.versions(python)
    limit = head["arithmetic"] = arithmetic(seconds)
    print(
        f"arithmetic: {limit['gflops_of_a_thread']:.0f} GFLOP/s a thread, {limit['updates_per_s']:.0f} SAC updates/s at most"
    )
    rows: list[dict[str, Any]] = []
    for algorithm in (a for a in _OURS if flags.only in (None, a)):
        _machine.progress(algorithm)
        rows.append(ours(algorithm, steps, most))
        if mixed_precision.supported():
            rows.append(ours(algorithm, steps, most, mixed=True))
        rows.append(peer(python, algorithm, steps, most))
    memory = replay_rows(python, seconds) if flags.only in (None, "replay") else []
    if memory:
        print(_machine.table(memory) + "\n")
    shown = [{k: v for k, v in row.items() if k not in ("runs", "setting")} for row in rows] or memory
    name = "off_policy" + (f"_{flags.only}" if flags.only else "") + ("_quick" if flags.quick else "")
    _machine.save(name, head, shown, steps=steps, runs=rows, replay=memory)


if __name__ == "__main__":
    main()
