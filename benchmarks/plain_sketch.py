"""What the machine allows: PPO on CartPole-v1 in a few plain functions of TensorFlow, without `alf`, beside `alf`.

Two threads act in a `tf.while_loop`, whose environment step is one `tf.numpy_function`; they hand segments through a
Python queue to a learner that is one traced function. No metrics, no checks, no versions, no logs, no checkpoints:
whatever `alf` does more slowly than this is what its service costs; what both do slowly is TensorFlow's arithmetic.

    python -m benchmarks.plain_sketch
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import sys
import threading
import time
from typing import Any

# As alf does, which the parent process imports later on.
os.environ["TF_USE_LEGACY_KERAS"] = "1"

import gymnasium
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from benchmarks import _machine

GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2
Arrays = tuple[tf.Tensor, ...]


def _layers(*sizes: int) -> list[tf.Variable]:
    variables = []
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        scale = 0.01 if i == len(sizes) - 2 else fan_in**-0.5
        variables += [tf.Variable(scale * tf.random.normal([fan_in, fan_out])), tf.Variable(tf.zeros(fan_out))]
    return variables


def _mlp(weights: list[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    for i in range(0, 4, 2):
        x = tf.tanh(tf.nn.bias_add(x @ weights[i], weights[i + 1]))
    return tf.nn.bias_add(x @ weights[4], weights[5])


class Sketch:
    """Networks, optimiser state, and the two traced functions."""

    def __init__(self, threads: int, batch: int, length: int, minibatch: int, epochs: int) -> None:
        self.batch, self.length, self.minibatch, self.epochs = batch, length, minibatch, epochs
        self.variables = _layers(4, 64, 64, 2) + _layers(4, 64, 64, 1)
        self.moments = [[tf.Variable(tf.zeros_like(v)) for v in self.variables] for _ in range(2)]
        self.envs = [gymnasium.make_vec("CartPole-v1", num_envs=batch) for _ in range(threads)]
        self.first = [env.reset(seed=i)[0] for i, env in enumerate(self.envs)]
        self.returns: list[float] = []
        self._running = [np.zeros(batch) for _ in range(threads)]
        self.act = tf.function(self._act, autograph=False)
        self.train = tf.function(self._train, autograph=False)

    def _step(self, thread: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        observation, reward, terminated, truncated, _ = self.envs[thread].step(action)
        done = terminated | truncated
        running = self._running[thread]
        running += reward
        if done.any():
            self.returns.extend(running[done])
            running[done] = 0.0
        return observation, reward.astype(np.float32), done.astype(np.float32)

    def _act(self, thread: tf.Tensor, observation: tf.Tensor, seed: tf.Tensor, weights: list[tf.Tensor]) -> Arrays:
        shapes = ([self.batch, 4], [self.batch], [self.batch])
        dtypes = (tf.float32, tf.int64, tf.float32, tf.float32, tf.float32)
        arrays = tuple(tf.TensorArray(dtype, self.length) for dtype in dtypes)

        def body(t: tf.Tensor, observation: tf.Tensor, arrays: Any) -> Any:
            logits = _mlp(weights[:6], observation)
            uniform = tf.random.stateless_uniform([self.batch, 2], seed + tf.stack([0, t]), 1e-9, 1.0)
            action = tf.argmax(logits - tf.math.log(-tf.math.log(uniform)), -1)
            log_prob = tf.gather(tf.nn.log_softmax(logits), action, batch_dims=1)
            out = tf.numpy_function(self._step, [thread, action], (tf.float32, tf.float32, tf.float32))
            following, reward, done = (tf.ensure_shape(x, s) for x, s in zip(out, shapes, strict=True))
            row = (observation, action, log_prob, reward, done)
            return t + 1, following, tuple(a.write(t, x) for a, x in zip(arrays, row, strict=True))

        init = (tf.constant(0), observation, arrays)
        _, last, arrays = tf.while_loop(lambda t, *_: t < self.length, body, init, parallel_iterations=1)
        return (*(a.stack() for a in arrays), last)

    def _train(self, *segment: tf.Tensor) -> tf.Tensor:
        obs, action, log_prob, reward, done, last = segment
        value = _mlp(self.variables[6:], tf.concat([obs, last[tf.newaxis]], 0))[..., 0]
        discount = GAMMA * (1.0 - done)
        delta = reward / 20.0 + discount * value[1:] - value[:-1]
        scan = lambda acc, x: x[0] + LAMBDA * x[1] * acc  # noqa: E731
        advantage = tf.scan(scan, (delta, discount), tf.zeros_like(last[:, 0]), reverse=True)
        data = (obs, action, log_prob, advantage, advantage + value[:-1])
        data = [tf.reshape(x, [-1, *x.shape[2:]]) for x in data]
        rows = self.batch * self.length
        per_epoch = rows // self.minibatch
        order = tf.concat([tf.random.shuffle(tf.range(rows)) for _ in range(self.epochs)], 0)

        def body(i: tf.Tensor, total: tf.Tensor) -> Any:
            pick = order[i * self.minibatch : (i + 1) * self.minibatch]
            return i + 1, total + self._update(*(tf.gather(x, tf.ensure_shape(pick, [self.minibatch])) for x in data))

        count = per_epoch * self.epochs
        return tf.while_loop(lambda i, _: i < count, body, (0, 0.0), parallel_iterations=1)[1]

    def _update(self, obs: tf.Tensor, action: tf.Tensor, old: tf.Tensor, adv: tf.Tensor, ret: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            log_probs = tf.nn.log_softmax(_mlp(self.variables[:6], obs))
            ratio = tf.exp(tf.gather(log_probs, action, batch_dims=1) - old)
            gain = tf.minimum(ratio * adv, tf.clip_by_value(ratio, 1.0 - CLIP, 1.0 + CLIP) * adv)
            error = tf.square(_mlp(self.variables[6:], obs)[:, 0] - ret)
            loss = tf.reduce_mean(0.5 * error - gain)
        grads, _ = tf.clip_by_global_norm(tape.gradient(loss, self.variables), 0.5)
        for var, m, v, grad in zip(self.variables, *self.moments, grads, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=var.handle, m=m.handle, v=v.handle, grad=grad, lr=1e-3, epsilon=1e-5,
                beta1=0.9, beta2=0.999, beta1_power=0.0, beta2_power=0.0,
            )  # fmt: skip
        return loss


def _act_for_ever(sketch: Sketch, thread: int, segments: queue.Queue[Arrays], stop: threading.Event) -> None:
    observation, round_ = tf.constant(sketch.first[thread]), 0
    while not stop.is_set():
        weights = [tf.identity(v) for v in sketch.variables]
        with context.function_executor_type("SINGLE_THREADED_EXECUTOR"):
            segment = sketch.act(tf.constant(thread), observation, tf.constant([thread, 1000 * round_]), weights)
        observation, round_ = segment[-1], round_ + 1
        while not stop.is_set():
            try:
                segments.put(segment, timeout=0.2)
                break
            except queue.Full:
                continue


def run(threads: int, executor: str, seconds: float, **sizes: int) -> dict[str, Any]:
    """Steps/s learned from over `seconds`, processors busy, and the mean return of the last 100 episodes."""
    sketch = Sketch(threads, **sizes)
    segments: queue.Queue[Arrays] = queue.Queue(1)
    stop = threading.Event()
    workers = [threading.Thread(target=_act_for_ever, args=(sketch, i, segments, stop)) for i in range(threads)]
    for worker in workers:
        worker.start()

    def learn() -> None:
        segment = segments.get(timeout=60.0)
        with context.function_executor_type(executor):
            float(sketch.train(*segment))

    try:
        for _ in range(4):
            learn()
        iterations, begun = 0, time.perf_counter()
        with _machine.cpu_use() as used:
            while time.perf_counter() - begun < seconds:
                learn()
                iterations += 1
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    return {
        "steps_per_s": iterations * sketch.batch * sketch.length / used["wall_s"],
        "processors_busy": used["processors_busy"],
        "mean_return": float(np.mean(sketch.returns[-100:])),
    }


_SETTINGS: list[dict[str, Any]] = [
    {"threads": threads, "batch": batch, "length": 64, "minibatch": minibatch, "executor": executor}
    for threads, batch, minibatch in ((1, 512, 2048), (1, 256, 2048), (1, 256, 1024), (2, 256, 1024), (2, 128, 1024))
    for executor in ("SINGLE_THREADED_EXECUTOR", "")
]


def _best(epochs: int, seconds: float) -> dict[str, Any]:
    runs = []
    for setting in _SETTINGS:
        setting = {**setting, "epochs": epochs}
        _machine.progress(json.dumps(setting))
        command = [sys.executable, "-m", "benchmarks.plain_sketch", "--setting", json.dumps(setting)]
        runs.append({**_machine.last_json([*command, "--seconds", str(seconds)], seconds + 120), "setting": setting})
    return {**max(runs, key=lambda r: r["steps_per_s"]), "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--setting", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.setting:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(4)
        print(json.dumps(run(**json.loads(flags.setting), seconds=flags.seconds)))
        return
    # Not above: in the processes that measure the sketch, alf's thread settings would be in force.
    from benchmarks import peers_cart_pole

    head = _machine.announce("CartPole-v1: a plain sketch in TensorFlow, and alf, in one run")
    rows = []
    for epochs in (4, 1):
        name = f"{epochs} epoch{'s' if epochs > 1 else ''}"
        rows.append({"system": f"plain sketch, {name}", **_best(epochs, flags.seconds)})
        params = [f"TrainerConfig.num_updates_per_train_step={epochs}"]
        rows.append(peers_cart_pole.ours_speed(f"alf, {name}", params, flags.seconds))
    shown = [{k: r.get(k) for k in ("system", "steps_per_s", "mean_return")} for r in rows]
    _machine.save("plain_sketch", head, shown, runs=rows)


if __name__ == "__main__":
    main()
