"""The random streams of a run, all derived from one seed."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from alf.utils.devices import has_gpu

# Sets the seeds of streams that begin later apart from those that the first ones spawn.
_RESUMED = 0x5EED
# Sets those of workers apart from all that the learner's process spawns of the same seed.
_WORKER = 0xA11


class Seeds(NamedTuple):
    """Independent streams of one seed; `run` is that seed."""

    run: int
    init: np.random.SeedSequence
    environments: np.random.SeedSequence
    acting: np.random.SeedSequence
    learning: np.random.SeedSequence
    evaluation: np.random.SeedSequence


def spawn(random_seed: int | None) -> Seeds:
    """Splits a seed, or one drawn and logged, and seeds the generators of the process with its `init` stream.

    Initialisers of networks and some environments draw from the process's generators; nothing else of alf does. With a
    seed of the user's, GPUs sum in the same order each time, which they otherwise do not.
    """
    if random_seed is None:
        random_seed = int(np.random.SeedSequence().generate_state(1)[0])
        logging.info("random_seed is not set; this run uses %d.", random_seed)
    elif has_gpu():
        tf.config.experimental.enable_op_determinism()
    seeds = split(random_seed)
    seed_process(seeds)
    return seeds


def split(random_seed: int) -> Seeds:
    """The streams of a seed, of which nothing was spawned yet."""
    return _split(random_seed, np.random.SeedSequence(random_seed))


def of_worker(random_seed: int, number: int, life: int, iteration: int, collected: int = 0) -> Seeds:
    """The streams of a worker: those of no other one, of none of its other lives, and of nothing that the learner spawns.

    Args:
      random_seed: of the run.
      number: of the worker.
      life: how many workers of this number came before it since the run was started or resumed.
      iteration: at which the run was started or resumed.
      collected: what an interrupted heat-up had collected then.
    """
    later = (_RESUMED, collected) if collected else ()
    return _split(
        random_seed, np.random.SeedSequence(random_seed, spawn_key=(_WORKER, number, life, iteration, *later))
    )


def _split(random_seed: int, sequence: np.random.SeedSequence) -> Seeds:
    return Seeds(random_seed, *sequence.spawn(len(Seeds._fields) - 1))


def seed_process(seeds: Seeds) -> None:
    """Seeds the generators of this process with the `init` stream."""
    init = integer(seeds.init)
    random.seed(init)
    np.random.seed(init)
    tf.random.set_seed(init)


def at_iteration(seed: np.random.SeedSequence, iteration: int, collected: int = 0) -> np.random.SeedSequence:
    """The stream of `seed` for what begins at an iteration; `seed` itself where the run begins.

    Args:
      seed: of the whole run.
      iteration: how many there were.
      collected: steps that were collected before the first one, by a part of the run that was interrupted there.
    """
    if not iteration and not collected:
        return seed
    begin = (iteration,) if iteration else (0, collected)
    return np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, _RESUMED, *begin))


def reseed_process(seed: np.random.SeedSequence, iteration: int, collected: int = 0) -> None:
    """Seeds Python's and numpy's generators of the process, which some environments draw from; as `at_iteration`."""
    number = integer(at_iteration(seed, iteration, collected))
    random.seed(number)
    np.random.seed(number)


@contextlib.contextmanager
def apart(seed: np.random.SeedSequence, iteration: int = 0) -> Iterator[None]:
    """Inside, the process's generators draw by `reseed_process`; behind it they go on as if nobody had drawn from them."""
    pythons, numpys = random.getstate(), np.random.get_state()
    reseed_process(seed, iteration)
    try:
        yield
    finally:
        random.setstate(pythons)
        np.random.set_state(numpys)


def integer(seed: np.random.SeedSequence) -> int:
    """An integer in [0, 2**31) that stands for `seed`."""
    return int(seed.generate_state(1)[0] >> 1)
