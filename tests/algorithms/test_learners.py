"""Several learners do what one does, on logical devices of the processor."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Sums in another order, after some ten updates.
TOLERANCE = 2e-5

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("learners") / "run"


@pytest.fixture(scope="module")
def found(run_dir: pathlib.Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.algorithms.learners_process", str(run_dir)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", ["whole", "ragged", "recurrent", "dqn", "ddpg"])
def test_updates_are_those_of_a_single_learner(case: str, found: dict[str, Any]) -> None:
    assert found[case]["moved"] > 1e-3
    assert found[case]["apart"] < TOLERANCE
    one, several = found[case]["metrics"]
    assert several == pytest.approx(one, rel=1e-3, abs=1e-4)


def test_a_run_goes_on_with_another_number_of_learners(found: dict[str, Any], run_dir: pathlib.Path) -> None:
    assert found["resumed"] == [[0, 2], [2, 3], [3, 4]]
    assert list(run_dir.rglob("saved_model.pb"))


def test_networks_that_run_in_the_loss_are_not_shared_and_that_is_told(found: dict[str, Any]) -> None:
    shared, told = found["in loss"]
    assert not shared
    assert (
        "DqnAlgorithm runs its networks in the loss, which one learner computes: 2 learners have nothing to share"
        in told
    )


def test_numbers_that_cannot_be_are_refused(found: dict[str, Any]) -> None:
    assert found["too few"] == (
        "A minibatch of 2 sequences cannot be shared by 3 learners: raise mini_batch_size, or lower TrainerConfig.num_learners."
    )
    assert found["too many"] == (
        "TrainerConfig.num_learners=4 needs as many devices, and TensorFlow finds 3 here (of kind CPU): set it to at most 3."
    )
