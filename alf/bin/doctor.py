"""Examines an environment and this machine, and recommends settings.

    python -m alf.bin.doctor --gin_file=async_ppo_cart_pole.gin
    python -m alf.bin.doctor --env_name=my_package.my_module:MyEnv --output=settings.gin

Checks spaces, values, seeds and the ends of episodes with random actions; measures steps, single and vectorised in each
way; estimates memory; and recommends vectorisation, batch size, segment length and threads, with reasons. --output
writes them as a gin file, to be given to alf.bin.train after that of the algorithm. Exit code 1: a check has failed;
2: the command line or the configuration is wrong.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from absl import flags, logging

from alf.bin import command_line, output_flag
from alf.bin.doctor_advice import Advice, Facts, advise, gin_text, memory_bytes

_ENV_NAME = flags.DEFINE_string("env_name", None, "The environment, instead of a gin file: an id, or module:callable.")
_STEPS = flags.DEFINE_integer("check_steps", 500, "Steps with random actions in each check.")
_SECONDS = flags.DEFINE_float("seconds_per_measurement", 0.3, "How long each measurement takes.")
flags.adopt_module_key_flags(command_line)
flags.adopt_module_key_flags(output_flag)

_FAILED = 1
# More processes than this tell nothing new, and take long to start.
_MAX_PROCESSES = 8
_SIZES = {"vector_entry_point": (16, 64, 128, 256), "envpool": (16, 64, 128, 256), "sync": (8, 16, 32)}
# B of `create_environment` where nothing is bound.
_ROWS = 30
_BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Subject(NamedTuple):
    """What is examined: its name for people, its name in gin where one is to be bound, what makes it, and B where bound."""

    name: str
    gin_name: str | None
    loader: Any
    batch_size: int | None


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""

    def body() -> int:
        command_line.no_arguments(argv)
        if bool(_ENV_NAME.value) == bool(command_line.GIN_FILE.value):
            raise command_line.UsageError(
                "Give the environment either by --gin_file=FILE.gin or by --env_name=ID, such as --env_name=CartPole-v1."
            )
        command_line.has_suffix(output_flag.OUTPUT, ".gin")
        command_line.at_least(_STEPS, 1)
        command_line.at_least(_SECONDS, 0)
        command_line.finite(_SECONDS)
        command_line.set_up()
        return examine(_subject())

    return command_line.run(body)


def _subject() -> Subject:
    """What the flags name."""
    import gin

    from alf.environments import suite_gym
    from alf.environments.utils import create_environment, environment_loader
    from alf.utils.gin_utils import parse_gin

    parse_gin(command_line.GIN_FILE.value, command_line.bindings())
    with command_line.told_as_usage():
        bound = gin.get_bindings(create_environment)
        name = _ENV_NAME.value or bound.get("env_name", "CartPole-v1")
        try:
            loader = environment_loader(bound.get("env_load_fn", suite_gym.load), name)
        except RuntimeError as e:
            if not isinstance(e.__cause__, SystemExit):
                raise
            raise command_line.UsageError(str(e)) from e
    batch_size = bound.get("num_parallel_environments")
    return Subject(str(getattr(name, "__name__", name)), repr(name) if _ENV_NAME.value else None, loader, batch_size)


def examine(subject: Subject) -> int:
    """Checks, measures and advises; prints what it finds and returns the exit code."""
    from alf.environments.batch_checker import FAIL
    from alf.environments.checker import check_environment

    print(f"Environment {subject.name}")
    findings = check_environment(subject.loader, _STEPS.value)
    for finding in findings:
        print(f"  {finding.level:<4} {finding.check}: {finding.text}")
    failed = [finding for finding in findings if finding.level == FAIL]
    if failed:
        logging.error("%d of %d checks failed; nothing was measured.", len(failed), len(findings))
        return _FAILED
    facts = measure_all(subject)
    _print_threads(facts)
    try:
        advice = advise(facts)
    except ValueError as e:
        logging.error("%s", e)
        return _FAILED
    _print_advice(advice, facts.step_bytes)
    if output_flag.OUTPUT.value:
        title = f"Settings for {subject.name} on {facts.processors} processors, by alf.bin.doctor."
        output_flag.write_text(output_flag.OUTPUT.value, gin_text(advice, title, subject.gin_name, _trainer() is None))
        print(f"Written: {output_flag.OUTPUT.value}; give it to alf.bin.train as the last --gin_file.")
    return 0


def measure_all(subject: Subject) -> Facts:
    """Times each way to vectorise the environment, and prints the results."""
    import gymnasium
    import tensorflow as tf

    from alf.environments.checker import rows_of
    from alf.environments.gymnasium_environment import close_quietly
    from alf.environments.timing import thread_gain

    processors = len(os.sched_getaffinity(0))
    made = subject.loader.make_one(0)
    single = isinstance(made, gymnasium.Env)
    # A batch may have as many as it likes, whatever it is asked for.
    rows = 1 if single else rows_of(made)
    close_quietly(made)
    if single:
        sizes = {**_SIZES, "async": (min(_MAX_PROCESSES, 2 * processors),)}
        _measure(subject, "single", 1)
    else:
        sizes = {"auto": (subject.batch_size or (rows if rows > 1 else _ROWS),)}
    measurements = []
    for kind, batch_sizes in sizes.items():
        for batch_size in batch_sizes:
            measurements.append(_measure(subject, kind, batch_size))
            if measurements[-1].problem:
                break
    gain = thread_gain(lambda: subject.loader(1, 0, "single"), _SECONDS.value) if single else None
    return Facts(
        measurements,
        processors,
        _step_bytes(subject, rows),
        gain,
        len(tf.config.get_visible_devices("GPU")),
        _bound("mini_batch_length"),
        asynchronous="async" in (_trainer() or "async"),
        unroll_length=_unroll_length() if _bound("whole_replay_buffer_training") is False else None,
    )


def _measure(subject: Subject, kind: str, batch_size: int) -> Any:
    from alf.environments.timing import measure

    with warnings.catch_warnings():
        # Simulators warn about themselves when they are made, here dozens of times.
        warnings.simplefilter("ignore")
        found = measure(subject.loader, kind, batch_size, _SECONDS.value)
    if found.problem:
        print(f"  {kind:<20} not possible: {found.problem}")
    else:
        print(f"  {kind:<20} batch {batch_size:>4}: {1e6 * found.secs:>10,.1f} µs a step, {found.rate:>12,.0f} steps/s")
    return found


def _step_bytes(subject: Subject, rows: int) -> int:
    """Of one step of one environment in a segment: what it gives and takes, and what a policy usually adds."""
    import numpy as np
    import tensorflow as tf

    from alf.environments.gymnasium_environment import close_quietly

    env = subject.loader(rows, 0, None)
    try:
        observation, action = (tf.nest.flatten(spec) for spec in (env.observation_spec(), env.action_spec()))
    finally:
        close_quietly(env)
    seen = sum(np.dtype(s.dtype).itemsize * int(np.prod(s.shape)) for s in observation)
    taken = sum(np.dtype(s.dtype).itemsize * int(np.prod(s.shape)) for s in action)
    # Parameters of the distribution: a logit for each choice, or mean and deviation.
    policy = sum(
        4 * int(np.max(s.maximum) - np.min(s.minimum) + 1) if _is_choice(s) else 8 * int(np.prod(s.shape))
        for s in action
    )
    # step_type, reward, discount, env_id, version and value, each of four bytes or eight.
    return seen + 2 * taken + policy + 32


def _is_choice(spec: Any) -> bool:
    import numpy as np

    return np.issubdtype(spec.dtype, np.integer)


def _print_threads(facts: Facts) -> None:
    import tensorflow as tf

    from alf.utils import mixed_precision

    threading = tf.config.threading
    intra, inter = threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads()
    print(f"Threads: {facts.processors} processors; TensorFlow intra_op {intra}, inter_op {inter}; {facts.gpus} GPUs")
    if mixed_precision.supported():
        print(
            "  It multiplies faster in bfloat16, and less exactly: for wide networks try TrainerConfig.mixed_precision = True."
        )
    for name in _BLAS_THREADS:
        value = os.environ.get(name)
        if value not in (None, "1"):
            print(f"  warn {name}={value}: one BLAS thread a caller is faster beside environment threads; unset it.")
    if inter and inter < facts.processors + 1:
        print(
            f"  warn inter_op {inter}: the learner may wait for the environments' threads; leave --inter_op_threads out."
        )


def _print_advice(advice: Advice, step_bytes: int) -> None:
    print("Recommended")
    for reason in advice.reasons:
        print(f"  {reason}")
    print(f"Memory ({step_bytes:,} bytes a step of one environment, estimated)")
    for what, size in memory_bytes(advice, step_bytes).items():
        print(f"  {what:<40} {size / 1e6:>12,.2f} MB")


def _bound(name: str) -> Any:
    """What gin binds a setting of the trainer to; None where it binds nothing."""
    from alf.trainers.config import TrainerConfig
    from alf.utils.gin_utils import bound

    with command_line.told_as_usage():
        return bound(TrainerConfig, name)


def _unroll_length() -> int:
    from alf.trainers.config import TrainerConfig

    given = _bound("unroll_length")
    return inspect.signature(TrainerConfig).parameters["unroll_length"].default if given is None else given


def _trainer() -> str | None:
    """Name of the trainer that gin binds, in small letters."""
    trainer = _bound("trainer")
    return None if trainer is None else str(getattr(trainer, "__name__", trainer)).lower()


if __name__ == "__main__":
    command_line.start(main)
