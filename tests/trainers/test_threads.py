"""How many threads TensorFlow's pool has for each kind of trainer; in processes of their own, where it has not started."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import os
os.sched_getaffinity = lambda _: set(range({processors}))
{before}
from alf import _tf
import alf.trainers.off_policy_trainer, alf.trainers.on_policy_trainer
from alf.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf.trainers.config import TrainerConfig
TrainerConfig(root_dir={root_dir!r}, algorithm_ctor=ActorCriticAlgorithm, trainer=alf.trainers.{trainer}).create_trainer()
print(_tf.tf.config.threading.get_inter_op_parallelism_threads())
"""
_SET = "\nimport tensorflow as tf\ntf.config.threading.set_inter_op_parallelism_threads(5)"
_SET_BY_THE_PROGRAM = f"os.environ['TF_USE_LEGACY_KERAS'] = '1'{_SET}"


@pytest.mark.parametrize(
    ("trainer", "processors", "before", "threads"),
    [
        ("off_policy_trainer.AsyncOffPolicyTrainer", 2, "", 4),
        ("off_policy_trainer.SyncOffPolicyTrainer", 16, "", 16),
        ("on_policy_trainer.OnPolicyTrainer", 2, "", 2),
        ("off_policy_trainer.SyncOffPolicyTrainer", 2, "from alf import _tf; _tf.configure_threads(inter_op=3)", 3),
        ("off_policy_trainer.SyncOffPolicyTrainer", 2, "from alf import _tf; _tf.tf.constant(0)", 4),
        ("off_policy_trainer.SyncOffPolicyTrainer", 2, f"import alf{_SET}", 5),
        ("on_policy_trainer.OnPolicyTrainer", 2, _SET_BY_THE_PROGRAM, 5),
    ],
)
def test_threads_of_the_pool(trainer: str, processors: int, before: str, threads: int, tmp_path) -> None:
    script = _SCRIPT.format(trainer=trainer, processors=processors, before=before, root_dir=str(tmp_path))
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [str(threads)]
