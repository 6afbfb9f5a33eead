"""Random numbers of a run: those that environments draw from the process's own generators, and those of evaluations."""

from __future__ import annotations

import random

import gin
import numpy as np
import pytest

from alf.trainers import seeds
from alf.trainers.evaluations import Evaluations
from alf.trainers.off_policy_trainer import SyncOffPolicyTrainer
from alf.trainers.on_policy_trainer import OnPolicyTrainer
from tests.trainers.fixed_episodes import FixedEpisodes


class _Drawn(FixedEpisodes):
    """Draws a level of each episode: by numpy's and Python's generators of the process, and by its own, which is seeded."""

    levels: list[tuple[float, float, float]] = []

    def __init__(self):
        self.level = np.random.random(), random.random(), 0.0
        super().__init__(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.level = np.random.random(), random.random(), self.np_random.random()
        _Drawn.levels.append(self.level)
        return self._observe(), {}

    def _observe(self):
        return np.array(self.level[:2], np.float32)


@pytest.fixture(autouse=True)
def evaluated(monkeypatch):
    """Those that were drawn in evaluations, one list for each."""
    gin.bind_parameter("create_environment.env_name", _Drawn)
    gin.bind_parameter("create_environment.num_parallel_environments", 2)
    monkeypatch.setattr(_Drawn, "levels", [])
    play, found = Evaluations.play, []

    def played(self, *args):
        before, _Drawn.levels = _Drawn.levels, []
        try:
            return play(self, *args)
        finally:
            found.append(_Drawn.levels)
            _Drawn.levels = before

    monkeypatch.setattr(Evaluations, "play", played)
    return found


EVALUATED = {"evaluate": True, "eval_interval": 1, "num_eval_episodes": 4}


def test_the_generators_of_the_process_go_on_as_if_nothing_had_been_drawn():
    seed = np.random.SeedSequence(1)

    def draw():
        return random.random(), np.random.random()

    seeds.reseed_process(seed, 0)
    plain = [draw(), draw()]
    seeds.reseed_process(seed, 0)
    found = [draw()]
    inside = []
    for iteration in (1, 2, 1):
        with seeds.apart(seed, iteration):
            inside.append(draw())
    with pytest.raises(KeyError), seeds.apart(seed):
        raise KeyError
    found.append(draw())
    assert found == plain
    assert inside[0] == inside[2] != inside[1]
    assert not {*inside} & {*plain}


@pytest.mark.parametrize("trainer_class", [SyncOffPolicyTrainer, OnPolicyTrainer])
def test_evaluations_draw_nothing_of_what_training_draws(trainer_class, small_config, tmp_path, evaluated):
    def run(name, **settings):
        _Drawn.levels = []
        trainer = small_config(trainer_class, root_dir=str(tmp_path / name), **settings).create_trainer()
        trainer.train()
        return _Drawn.levels, [v.numpy() for v in trainer.algorithm.variables]

    plain, other = run("plain"), run("evaluated", **EVALUATED)
    assert len(evaluated) == 3
    assert other[0] == plain[0]
    for a, b in zip(plain[1], other[1], strict=True):
        np.testing.assert_array_equal(a, b)
    drawn = [level for levels in (plain[0], *evaluated) for level in levels]
    for of_one in zip(*drawn, strict=True):
        assert len({*of_one}) == len(drawn), "each evaluation has levels of its own"


@pytest.mark.parametrize("updates_counted", [False, True])
def test_a_resumed_run_draws_other_levels_in_training_and_evaluations(updates_counted, small_config, evaluated):
    """Not those that the first part began with, again and again."""
    parts = []
    for iterations in (1, 2, 3):
        settings = {"num_iterations": iterations, "update_counter_every_mini_batch": updates_counted, **EVALUATED}
        _Drawn.levels = []
        small_config(SyncOffPolicyTrainer, **settings).create_trainer().train()
        parts.append(_Drawn.levels)
    assert len(evaluated) == 3
    drawn = [level for levels in (*parts, *evaluated) for level in levels]
    for of_one in zip(*drawn, strict=True):
        assert len({*of_one}) == len(drawn)
