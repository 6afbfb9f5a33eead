"""The random streams of a run, all derived from one seed."""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging


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

    Initialisers of networks and some environments draw from the process's generators; nothing else of alf does.
    """
    if random_seed is None:
        random_seed = int(np.random.SeedSequence().generate_state(1)[0])
        logging.info("random_seed is not set; this run uses %d.", random_seed)
    seeds = Seeds(random_seed, *np.random.SeedSequence(random_seed).spawn(len(Seeds._fields) - 1))
    init = integer(seeds.init)
    random.seed(init)
    np.random.seed(init)
    tf.random.set_seed(init)
    return seeds


def integer(seed: np.random.SeedSequence) -> int:
    """An integer in [0, 2**31) that stands for `seed`."""
    return int(seed.generate_state(1)[0] >> 1)
