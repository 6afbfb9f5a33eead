"""From what was measured to settings, with reasons; no environment is touched here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from alf.environments.timing import Measurement

# What a step of a batch costs beside the environment: a forward pass of a small network and the way into the graph.
_CALL_SECS = 60e-6
_ROW_SECS = 0.5e-6
# Rather fewer rows than the last few percent of speed: fresher policies and shorter iterations.
_GOOD_ENOUGH = 0.8
_STEPS_PER_ITERATION = 2048
_SLOW_STEPS_PER_ITERATION = 512
_SLOW_RATE = 1000.0
_LENGTHS = (8, 128)
# Two threads that together are so much faster than one do not wait for each other.
_PARALLEL_GAIN = 1.4
_MAX_THREADS = 8
# Simplest first: where two are about as fast, the earlier one is taken.
_KINDS = ("auto", "vector_entry_point", "sync", "envpool", "async")
_CLEARLY_FASTER = 1.25


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known.

    Attributes:
      measurements: of each kind and batch size.
      processors: that this process may use.
      thread_gain: as `timing.thread_gain` gives it for single environments; None where it was not measured.
      step_bytes: of one step of one environment in a segment.
      gpus: that TensorFlow sees.
      mini_batch_length: L, of which T must be a multiple; None where T may be anything.
      asynchronous: whether environment threads collect beside the learner, or collecting and learning take turns.
      unroll_length: T of a learner from samples, where it stays: how many updates a step makes goes with it. None: it is chosen.
    """

    measurements: Sequence[Measurement]
    processors: int
    step_bytes: int
    thread_gain: float | None = None
    gpus: int = 0
    mini_batch_length: int | None = None
    asynchronous: bool = True
    unroll_length: int | None = None


@dataclasses.dataclass(frozen=True)
class Advice:
    """Settings, and why.

    Attributes:
      vectorization: of `create_environment`.
      batch_size: B.
      num_envs: N, environment threads.
      unroll_length: T.
      num_actor_queues: K.
      learn_queue_cap: Q.
      reasons: a sentence for each.
      asynchronous: as in `Facts`; where it is not, there are no threads and queues, and N and Q are 1.
    """

    vectorization: str
    batch_size: int
    num_envs: int
    unroll_length: int
    num_actor_queues: int
    learn_queue_cap: int
    reasons: tuple[str, ...]
    asynchronous: bool = True


def effective_rate(measurement: Measurement) -> float:
    """Steps/s of one thread, with the cost of acting by a small network."""
    b = measurement.batch_size
    return b / (measurement.secs + _CALL_SECS + _ROW_SECS * b)


def advise(facts: Facts) -> Advice:
    """The settings that suit the facts.

    Raises:
      ValueError: nothing could be measured.
    """
    usable = [m for m in facts.measurements if m.problem is None]
    if not usable:
        raise ValueError("No way to vectorise the environment could be measured.")
    chosen, reasons = _choose(usable)
    threads, actors = 1, 0
    if facts.asynchronous:
        threads, why = _threads(chosen, facts)
        actors = 1 if facts.gpus and threads > 1 else 0
        reasons += [
            why,
            "num_actor_queues = 1: one thread acts for all on the GPU, in larger batches."
            if actors
            else "num_actor_queues = 0: acting inside the environment threads spares the way through queues.",
        ]
    wanted = _SLOW_STEPS_PER_ITERATION if chosen.rate < _SLOW_RATE else _STEPS_PER_ITERATION
    length = facts.unroll_length or unroll_length(wanted / (threads * chosen.batch_size), facts.mini_batch_length)
    steps = threads * length * chosen.batch_size
    queued = f" and learn_queue_cap = {threads}" if facts.asynchronous else ""
    if facts.unroll_length:
        reasons.append(
            f"unroll_length = {length}, as it was{queued}: an iteration collects {steps} steps and makes "
            "num_updates_per_train_step updates from samples; set these, and ReplayBuffer.max_length, which is of one "
            "environment, to what goes with it."
        )
    else:
        whose = ", a segment of each thread" if facts.asynchronous else ""
        reasons.append(f"unroll_length = {length}{queued}: an iteration learns from {steps} steps{whose}.")
    return Advice(chosen.kind, chosen.batch_size, threads, length, actors, threads, tuple(reasons), facts.asynchronous)


def _choose(usable: Sequence[Measurement]) -> tuple[Measurement, list[str]]:
    """The measurement whose kind and size to take."""
    best: Measurement | None = None
    for kind in _KINDS:
        same = [m for m in usable if m.kind == kind]
        top = max(same, key=effective_rate, default=None)
        if top is not None and (best is None or effective_rate(top) > _CLEARLY_FASTER * effective_rate(best)):
            best = top
    assert best is not None, "measurements are of known kinds"
    same = [m for m in usable if m.kind == best.kind]
    enough = [m for m in same if effective_rate(m) >= _GOOD_ENOUGH * effective_rate(best)]
    chosen = min(enough, key=lambda m: m.batch_size)
    others = {m.kind: max(x.rate for x in usable if x.kind == m.kind) for m in usable if m.kind != chosen.kind}
    told = ", ".join(f"{kind!r} {rate:,.0f}" for kind, rate in others.items()) or "nothing else was possible"
    return chosen, [
        f"vectorization = {chosen.kind!r}: {chosen.rate:,.0f} steps/s in one thread (at best: {told}).",
        f"num_parallel_environments = {chosen.batch_size}: {effective_rate(chosen):,.0f} steps/s with a small network, at "
        f"least {_GOOD_ENOUGH:.0%} of what more rows give.",
    ]


def _threads(chosen: Measurement, facts: Facts) -> tuple[int, str]:
    free = max(1, min(_MAX_THREADS, facts.processors - 1))
    on = f"{facts.processors} processor{'s' if facts.processors > 1 else ''}"
    if chosen.kind in ("vector_entry_point", "envpool"):
        return (
            free,
            f"num_envs = {free}: the environment is computed in large calls, and the learner needs one of {on}.",
        )
    if chosen.kind == "async":
        return 2, "num_envs = 2: while the processes of one batch step, the other one is acted for."
    if facts.thread_gain is not None and facts.thread_gain >= _PARALLEL_GAIN:
        count = max(2, free)
        return count, (
            f"num_envs = {count}: two threads were {facts.thread_gain:.1f} times as fast as one, so steps leave Python free."
        )
    gain = "" if facts.thread_gain is None else f" (two threads were {facts.thread_gain:.1f} times as fast as one)"
    return 2, f"num_envs = 2: steps hold Python's lock{gain}, so more threads gain nothing."


def unroll_length(wanted: float, multiple_of: int | None) -> int:
    """T: the power of two below `wanted`, within limits; or the multiple of L there."""
    low, high = _LENGTHS
    length = 2 ** math.floor(math.log2(min(high, max(low, wanted))))
    if not multiple_of:
        return length
    return max(multiple_of, length // multiple_of * multiple_of)


def memory_bytes(advice: Advice, step_bytes: int) -> dict[str, int]:
    """Estimates by what they are for: segments being made, waiting, and in the learner with its shuffled copy."""
    segment = advice.unroll_length * advice.batch_size * step_bytes
    if not advice.asynchronous:
        return {"one segment": segment, "learner's batch and its shuffled copy": 2 * segment}
    return {
        "one segment": segment,
        "segments being made": advice.num_envs * segment,
        "learn and log queues": (advice.num_envs + 2 * advice.learn_queue_cap) * segment,
        "learner's batch and its shuffled copy": 2 * advice.learn_queue_cap * segment,
    }


def gin_text(advice: Advice, title: str, environment: str | None, chooses_trainer: bool) -> str:
    """A gin file with the settings.

    Args:
      advice: the settings.
      title: its first line.
      environment: bound as `env_name`, in gin's syntax; None leaves it as it is.
      chooses_trainer: whether it binds the asynchronous trainer, since no other file binds one.
    """
    lines = [f"# {title}", *(f"# {reason}" for reason in advice.reasons), ""]
    if advice.asynchronous:
        lines += ["import alf.drivers.async_off_policy_driver", "import alf.trainers.off_policy_trainer", ""]
    settings: dict[str, Any] = {"create_environment.env_name": environment} if environment else {}
    settings["create_environment.num_parallel_environments"] = advice.batch_size
    settings["create_environment.vectorization"] = repr(advice.vectorization)
    settings["TrainerConfig.unroll_length"] = advice.unroll_length
    if advice.asynchronous:
        if chooses_trainer:
            settings["TrainerConfig.trainer"] = "@async_off_policy_trainer"
        settings["TrainerConfig.num_envs"] = advice.num_envs
        settings["AsyncOffPolicyDriver.num_actor_queues"] = advice.num_actor_queues
        settings["AsyncOffPolicyDriver.learn_queue_cap"] = advice.learn_queue_cap
        if advice.num_actor_queues:
            settings["AsyncOffPolicyDriver.actor_queue_cap"] = 1
    return "\n".join([*lines, *(f"{name} = {value}" for name, value in settings.items())]) + "\n"
