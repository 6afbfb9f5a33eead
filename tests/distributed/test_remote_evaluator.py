"""The worker for evaluations: one at a time, played again or skipped when it is lost, and nobody is ever held up."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import gin
import numpy as np
import pytest

from alf.distributed import keeper, member
from alf.distributed.environment_pool import EnvironmentPool
from alf.distributed.keeper import Asked
from alf.distributed.remote_evaluator import RemoteEvaluator
from tests.distributed.scripted import LossyEngine
from tests.distributed.scripted_evaluator import PLAYS, Play

pytestmark = pytest.mark.usefixtures("no_leaked_threads")

WORKER = "tests.distributed.scripted_evaluator:ScriptedEvaluator"
PATIENCE_SECS = 30.0
NUMBER = 4


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses and ends that tests need not sit through."""
    monkeypatch.setattr(member, "FIRST_PAUSE_SECS", 0.02)
    monkeypatch.setattr(keeper, "_BEAT_SECS", 0.02)
    monkeypatch.setattr(RemoteEvaluator, "_look_secs", 0.01)


class Stage:
    """An evaluator over a scripted worker."""

    def __init__(self, **kwargs: Any) -> None:
        self.play = PLAYS[0] = Play()
        self.engine = LossyEngine()
        self.evaluator = RemoteEvaluator(self.engine, NUMBER, WORKER, {"play": 0}, **kwargs)

    def ask(self, version: int, *what: Any) -> bool:
        return self.evaluator.ask(version, lambda: [np.full(3, float(version))], *what)

    def until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECS
        while not true():
            assert time.monotonic() < deadline, self.evaluator.facts()
            time.sleep(0.005)

    def running(self, life: int) -> None:
        self.until(lambda: (self.fact("state"), self.fact("life")) == ("running", life))

    def fact(self, name: str) -> Any:
        return self.evaluator.facts()[name]

    def close(self) -> None:
        self.play.let_go.set()
        self.evaluator.stop()
        self.engine.stop()


@pytest.fixture
def stage() -> Iterator[Callable[..., Stage]]:
    made: list[Stage] = []

    def make(**kwargs: Any) -> Stage:
        made.append(Stage(**kwargs))
        return made[-1]

    yield make
    for s in made:
        s.close()


def test_each_evaluation_is_of_its_version_and_answered_once(stage: Any) -> None:
    s = stage()
    s.evaluator.start()
    for i, version in enumerate((3, 3, 8)):
        assert s.ask(version, "episodes", 2)
        assert s.evaluator.take(wait=True) == (i, version, "episodes", 2)
        assert s.evaluator.take() is None
        assert not s.evaluator.busy
    assert s.play.asked == [(0, i, v, 3.0 * v, "episodes", 2) for i, v in enumerate((3, 3, 8))]
    s.until(lambda: s.fact("steps") == 30)
    facts = s.evaluator.facts()
    assert json.loads(json.dumps(facts)) == facts
    told = {"worker": "evaluator", "state": "running", "policy_version": 8, "evaluations": 3, "skipped_evaluations": 0}
    assert told.items() <= facts.items()


def test_an_answer_is_taken_before_the_next_is_asked_for(stage: Any) -> None:
    s = stage()
    s.evaluator.start()
    assert s.ask(1)
    s.until(lambda: s.fact("evaluations") == 1)
    assert not s.ask(2)
    assert s.evaluator.take() == (0, 1)
    assert s.ask(3)


def test_one_at_a_time_and_the_others_are_counted(stage: Any) -> None:
    s = stage()
    s.play.scripts = {None: "hangs"}
    s.evaluator.start()
    assert s.ask(1)

    def fail() -> list[np.ndarray]:
        raise AssertionError("weights of an evaluation that is left out are not copied")

    assert not s.evaluator.ask(2, fail)
    s.play.let_go.set()
    assert s.evaluator.take(wait=True) == (0, 1)
    assert s.evaluator.stats() == {"evaluator_restarts": 0.0, "skipped_evaluations": 1.0}
    assert s.ask(3)
    assert s.evaluator.take(wait=True) == (1, 3)


def test_what_was_asked_before_the_worker_is_there_is_played_then(stage: Any) -> None:
    s = stage()
    assert s.ask(1)
    s.evaluator.start()
    assert s.evaluator.take(wait=True) == (0, 1)


def test_a_killed_worker_comes_back_and_is_asked_again_for_the_same(stage: Any) -> None:
    s = stage()
    s.play.scripts = {0: "hangs"}
    s.evaluator.start()
    assert s.ask(5, "what")
    s.until(lambda: len(s.play.asked) == 1)
    s.engine.kill(s.engine.newest(NUMBER))
    assert s.evaluator.take(wait=True) == (0, 5, "what")
    assert s.play.asked == [(0, 0, 5, 15.0, "what"), (1, 0, 5, 15.0, "what")]
    assert s.play.weights[0] is s.play.weights[1], "the weights are stored once"
    assert (s.fact("restarts"), s.fact("lost_requests"), s.fact("skipped_evaluations")) == (1, 1, 0)


def test_a_loss_counts_as_one_attempt(stage: Any) -> None:
    """Both the evaluation and the next sign of life hear of it."""
    s = stage(max_attempts=2)
    s.play.scripts = {0: "hangs"}
    s.evaluator.start()
    assert s.ask(5)
    s.until(lambda: len(s.play.asked) == 1)
    s.engine.kill(s.engine.newest(NUMBER))
    assert s.evaluator.take(wait=True) == (0, 5)
    assert (s.fact("restarts"), s.fact("lost_requests"), s.fact("skipped_evaluations")) == (1, 1, 0)


def test_a_worker_that_is_lost_between_evaluations_costs_none(stage: Any) -> None:
    s = stage()
    s.evaluator.start()
    s.running(0)
    s.engine.kill(s.engine.newest(NUMBER))
    s.running(1)
    assert s.ask(1)
    assert s.evaluator.take(wait=True) == (0, 1)
    assert (s.fact("restarts"), s.fact("lost_requests")) == (1, 0)


def test_an_answer_that_gets_lost_is_asked_for_again(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    s = stage()
    s.engine.forgets, s.engine.methods = 1.0, ("evaluate",)
    result = s.engine.result

    def forgetting_once(call: Any) -> Any:
        try:
            return result(call)
        finally:
            s.engine.forgets = 1.0 - s.engine.forgotten

    monkeypatch.setattr(s.engine, "result", forgetting_once)
    s.evaluator.start()
    assert s.ask(2)
    assert s.evaluator.take(wait=True) == (0, 2)
    assert [asked[:2] for asked in s.play.asked] == [(0, 0), (0, 0)], "it still gives signs of life"
    assert s.fact("restarts") == 0
    s.until(lambda: s.fact("steps") == 10)


def test_a_lost_answer_is_looked_into_at_once_and_not_for_ever(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_BEAT_SECS", 3600.0)
    s = stage(max_attempts=3, wait_timeout_secs=PATIENCE_SECS, heartbeat_timeout_secs=1e6)
    s.engine.forgets, s.engine.methods = 1.0, ("evaluate",)
    s.evaluator.start()
    assert s.ask(2)
    assert s.evaluator.take(wait=True) is None
    assert [asked[:2] for asked in s.play.asked] == [(0, 0)] * 3
    assert (s.fact("restarts"), s.fact("lost_requests"), s.fact("skipped_evaluations")) == (0, 3, 1)


def test_an_answer_to_what_is_not_waited_for_any_more_is_none_of_the_next(stage: Any) -> None:
    s = stage()
    assert s.ask(1)
    s.evaluator._answered(Asked(s.evaluator._member, "evaluate", -1), "of another")
    assert s.evaluator.take() is None
    assert s.evaluator.busy


@pytest.mark.parametrize("script", ["fails", "cannot begin"])
def test_a_worker_that_always_fails_is_given_up_for_one_evaluation_only(
    stage: Any, script: str, logged: list[str]
) -> None:
    s = stage(max_attempts=2)
    s.play.scripts = {None: script}
    s.evaluator.start()
    assert s.ask(1)
    assert s.evaluator.take(wait=True) is None
    assert s.fact("skipped_evaluations") == 1
    assert s.fact("lost_requests") == (2 if script == "fails" else 0), "of those that were asked for"
    assert any("evaluation of version 1 is skipped: its worker was lost 2 times" in line for line in logged)
    assert any("Boom" in line and "scripted_evaluator.py" in line for line in logged), "with its traceback"
    s.play.scripts = {}
    assert s.ask(2)
    assert s.evaluator.take(wait=True) == (1, 2)


def test_who_waits_does_so_within_a_limit_and_the_worker_is_replaced(stage: Any, logged: list[str]) -> None:
    s = stage(wait_timeout_secs=0.2)
    s.play.scripts = {0: "hangs"}
    s.evaluator.start()
    s.running(0)
    assert s.ask(1)
    assert s.evaluator.take(wait=True) is None
    assert any("it was waited for 0.2 s (RemoteEvaluator.wait_timeout_secs)" in line for line in logged)
    s.until(lambda: s.fact("life") == 1)
    s.running(1)
    s.evaluator._wait_timeout_secs = PATIENCE_SECS
    assert s.ask(2)
    assert s.evaluator.take(wait=True) == (1, 2)
    assert s.fact("skipped_evaluations") == 1


def test_the_end_of_a_worker_that_is_not_waited_for_costs_the_next_evaluation_nothing(stage: Any) -> None:
    s = stage(max_attempts=1, wait_timeout_secs=0.05)
    s.play.scripts = {0: "hangs"}
    s.evaluator.start()
    assert s.ask(1)
    s.until(lambda: len(s.play.asked) == 1)
    with s.evaluator._changed:  # so that the keeper hears of both at once
        assert s.evaluator.take(wait=True) is None
        s.evaluator._wait_timeout_secs = PATIENCE_SECS
        assert s.ask(2)
    assert s.evaluator.take(wait=True) == (1, 2)
    assert [asked[:2] for asked in s.play.asked] == [(0, 0), (1, 1)], "it is played by the next worker"
    assert s.fact("skipped_evaluations") == 1


def test_a_worker_that_begins_late_is_not_replaced_for_who_waits(stage: Any) -> None:
    s = stage(wait_timeout_secs=0.05)
    s.play.scripts = {0: "begins late"}
    s.evaluator.start()
    s.until(lambda: s.fact("state") == "starting")
    assert s.ask(1)
    assert s.evaluator.take(wait=True) is None
    s.evaluator._wait_timeout_secs = PATIENCE_SECS
    s.play.let_go.set()
    assert s.ask(2)
    assert s.evaluator.take(wait=True) == (1, 2)
    assert [asked[:2] for asked in s.play.asked] == [(0, 1)]


def test_who_gives_up_leaves_it_running(stage: Any) -> None:
    s = stage()
    s.play.scripts = {0: "hangs"}
    s.evaluator.start()
    assert s.ask(1)
    assert s.evaluator.take(wait=True, give_up=lambda: True) is None
    assert s.evaluator.busy
    s.play.let_go.set()
    assert s.evaluator.take(wait=True) == (0, 1)


def test_a_worker_that_makes_no_step_is_replaced(stage: Any) -> None:
    s = stage(stall_timeout_secs=0.3)
    s.play.scripts = {0: "stands still"}
    s.evaluator.start()
    assert s.ask(1)
    assert s.evaluator.take(wait=True) == (0, 1)
    assert "has made no step of its environment" in s.fact("last_error")


def test_a_worker_that_steps_slowly_is_given_time(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    s = stage(stall_timeout_secs=10.0)
    evaluator, lost = s.evaluator, []
    monkeypatch.setattr(evaluator, "_lose", lambda member, why: lost.append(why))
    monkeypatch.setattr(evaluator, "_call", lambda *args, **kwargs: None)
    evaluator._member.begin(object(), 0.0)
    evaluator._member.up({}, 0.0)
    assert s.ask(1)
    evaluator._ask(evaluator._member)
    for now in (0.0, 9.0, 18.0, 27.0):
        evaluator._member.heard({"steps": int(now), "timings": {}}, now)
        evaluator._look_around(now)
    evaluator._look_around(37.0)
    assert lost == []
    evaluator._look_around(38.0)
    assert lost == ["it has made no step of its environment for 11 s (RemoteEvaluator.stall_timeout_secs)"]


def test_an_engine_that_breaks_ends_evaluations_and_nothing_else(
    stage: Any, logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    s = stage()
    s.play.scripts = {None: "hangs"}
    s.evaluator.start()
    s.running(0)
    assert s.ask(1)

    def broken(*args: Any) -> Any:
        raise OSError("the cluster is gone")

    monkeypatch.setattr(s.engine, "wait", broken)
    assert s.evaluator.take(wait=True) is None
    assert not s.ask(2)
    assert s.fact("skipped_evaluations") == 2
    assert any("There are no evaluations any more: OSError: the cluster is gone" in line for line in logged)


def test_what_breaks_after_the_end_is_not_told(stage: Any, logged: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    s = stage()
    s.evaluator.start()
    s.running(0)

    def broken(*args: Any) -> Any:
        s.evaluator._marks.signal_finished("the run is over")
        raise OSError("the cluster is gone")

    monkeypatch.setattr(s.engine, "wait", broken)
    s.until(lambda: not s.evaluator._thread.is_alive())
    assert not any("no evaluations any more" in line for line in logged)


def test_a_worker_is_asked_to_end_and_not_waited_for_without_limit(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_END_SECS", 0.05)
    s = stage()
    s.play.scripts = {None: "does not end"}
    s.evaluator.start()
    s.running(0)
    s.evaluator.stop()
    s.until(lambda: s.fact("state") == "stopped")
    assert s.engine.sent[f"worker {NUMBER} (life 0)", "end"] == 1


@pytest.mark.parametrize("script", ["", "hangs", "cannot begin", "never started"])
def test_it_stops_in_every_state(stage: Any, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_END_SECS", 0.3)
    s = stage()
    s.play.scripts = {None: script}
    if script != "never started":
        s.evaluator.start()
        s.ask(1)
        s.until(lambda: s.fact("life") >= (1 if script == "cannot begin" else 0))
    s.evaluator.stop()
    s.evaluator.stop()
    assert s.evaluator._thread is None or not s.evaluator._thread.is_alive()
    assert not s.ask(2)
    assert s.evaluator.take(wait=True) in (None, (0, 1)), "nobody waits for what has ended"
    assert not s.evaluator.busy


def test_what_is_asked_for_while_it_ends_is_skipped(stage: Any) -> None:
    s = stage()
    s.evaluator.start()

    def ended() -> list[np.ndarray]:
        s.evaluator.stop()
        return [np.zeros(1)]

    assert not s.evaluator.ask(1, ended)
    assert not s.evaluator.busy, "nobody answers any more"
    assert s.fact("skipped_evaluations") == 1


def test_a_pool_of_environments_tells_of_its_evaluator_and_ends_it() -> None:
    PLAYS[0] = Play()
    settings = {"num_envs": 1, "batch_size": 1}
    pool = EnvironmentPool(LossyEngine(), 1, 1, "tests.distributed.environment_makers:counting", settings)
    pool.start()
    evaluator = pool.start_evaluator(lambda engine: RemoteEvaluator(engine, NUMBER, WORKER, {"play": 0}))
    assert evaluator.ask(1, lambda: [np.zeros(1)])
    assert evaluator.take(wait=True) == (0, 1)
    assert pool.stats()["skipped_evaluations"] == 0.0
    assert [row["worker"] for row in pool.facts()] == [0, "evaluator"]
    pool.stop()
    assert not evaluator.ask(2, lambda: [np.zeros(1)])
    assert {row["state"] for row in pool.facts()} == {"stopped"}


@pytest.mark.parametrize(
    "name",
    ["max_attempts", "wait_timeout_secs", "stall_timeout_secs", "heartbeat_timeout_secs", "start_timeout_secs"],
)
def test_limits_are_positive(name: str) -> None:
    gin.bind_parameter(f"RemoteEvaluator.{name}", 0)
    with pytest.raises(ValueError, match=rf"RemoteEvaluator.{name} must be positive( and whole)?, got 0"):
        RemoteEvaluator(LossyEngine(), 0, WORKER, {})
