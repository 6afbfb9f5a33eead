"""The grid search command: plans, runs as processes, resuming, failures, interrupts, tables."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alf.bin import grid_search, parent_death, search_report
from alf.bin.command_line import UsageError
from alf.bin.search_curves import curves_page, mean_curve, read_curve, read_table
from alf.bin.search_report import Result, csv_text, group, markdown, plot, read_result
from alf.bin.search_space import _KEYS, gin_text, read_search, run_name, run_seed
from alf.trainers.report_svg import Series
from alf.trainers.run_index import RunIndex
from tests.bin.running import ROOT, SMALL, run_here, start

pytestmark = pytest.mark.slow

_KINDS = ["uniform", "log_uniform", "integer"]
TINY = [f"--gin_param={b}" for b in (*SMALL, "TrainerConfig.num_iterations=1")]


def _write(path, data):
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(path)


def _config(tmp_path, **data):
    return _write(tmp_path / "search.json", data)


def test_what_runs_are_started_with(tmp_path, monkeypatch):
    command, given = grid_search.train_command, []
    monkeypatch.setattr(grid_search, "train_command", lambda *args: given.extend(command(*args)) or ["true"])
    config = _config(tmp_path, parameters={"A.x": [1]})
    _search(tmp_path / "s", config, "--use_cpu", "--intra_op_threads=3", "--inter_op_threads=5")
    assert {"--use_cpu", "--intra_op_threads=3", "--inter_op_threads=5"} <= set(given)


# ---- plans ----


def test_a_grid_is_the_product(tmp_path):
    search = read_search(
        _config(tmp_path, parameters={"A.x": [1, 2.5], "B.y": ["relu", "@Adam()"]}, repeats=3, desc="d")
    )
    assert search.settings == (
        {"A.x": "1", "B.y": "'relu'"},
        {"A.x": "1", "B.y": "@Adam()"},
        {"A.x": "2.5", "B.y": "'relu'"},
        {"A.x": "2.5", "B.y": "@Adam()"},
    )
    assert (search.repeats, search.workers) == (3, 1)


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "True"), (None, "None"), ("%m", "%m"), ("(1, 2)", "(1, 2)"), ([1, 2], "[1, 2]"), ("it's", '"it\'s"')],
)
def test_values_in_gins_syntax(value, text):
    assert gin_text(value) == text


def test_a_random_search_is_repeatable_and_within_its_limits(tmp_path):
    parameters = {
        "A.lr": {"log_uniform": [1e-5, 1e-1]},
        "A.u": {"uniform": [-1, 1]},
        "A.n": {"integer": [2, 5]},
        "A.c": ["a", "b"],
    }
    path = _config(tmp_path, type="random", num_samples=200, seed=1, parameters=parameters)
    settings = read_search(path).settings
    assert settings == read_search(path).settings
    rates = [float(s["A.lr"]) for s in settings]
    assert all(1e-5 <= r <= 1e-1 for r in rates)
    # As many below the geometric mean of the limits as above it.
    assert 60 < sum(r < 1e-3 for r in rates) < 140
    assert {s["A.n"] for s in settings} == {"2", "3", "4", "5"}
    assert {s["A.c"] for s in settings} == {"'a'", "'b'"}
    assert all(-1 <= float(s["A.u"]) <= 1 for s in settings)


def test_a_plan_in_gin(tmp_path):
    path = _write(tmp_path / "s.gin", "Adam.learning_rate = [1e-3, 1e-4]\na/B.c = [@relu, 'x', None]\n")
    settings = read_search(path).settings
    assert len(settings) == 6
    assert settings[0] == {"Adam.learning_rate": "0.001", "a/B.c": "@relu"}
    assert settings[-1] == {"Adam.learning_rate": "0.0001", "a/B.c": "None"}


def test_alfs_own_configurations_are_read(tmp_path):
    data = {
        "desc": "d",
        "use_gpu": False,
        "gpus": [0],
        "max_worker_num": 2,
        "repeats": 1,
        "parameters": {"A.x": "[1, 2]"},
    }
    search = read_search(_config(tmp_path, **data))
    assert (len(search.settings), search.workers, search.use_gpu, search.gpus) == (2, 2, False, (0,))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 5000, "is not JSON"),
        ("[]", "must be a JSON object"),
        ({}, "needs 'parameters'"),
        ({"parameters": {"A.x": []}}, "A.x needs a list with at least one value"),
        (
            {"parameters": {"A.x": {"uniform": [1, 2]}}},
            r"A.x has a range, and a grid needs lists: add .type.: .random.",
        ),
        ({"parameters": {"A.x": 3}}, "A.x needs a list"),
        ({"parameters": {"A.x": "open('x')"}}, "A.x needs a list"),
        ({"parameters": {"A.x=1\nB.y": [3]}}, "is no name of a binding"),
        ({"parameters": {"A.x": [1]}, "repeat": 2}, "has 'repeat', which is none of"),
        ({"parameters": {"A.x": [1]}, "repeats": 0}, "repeats=0: give a whole number of at least 1"),
        ({"parameters": {"A.x": [1]}, "type": "best"}, "neither 'grid' nor 'random'"),
        ({"parameters": {"A.x": [1]}, "gpus": ["a"]}, "give a list of numbers"),
        ({"parameters": {f"A.{c}": list(range(10)) for c in "abcde"}}, "use a random search"),
        ({"parameters": {"A.x": [1]}, "use_gpu": "false"}, "use_gpu='false': give true or false"),
        (
            {"type": "random", "parameters": {"A.x": {"integer": [0.5, 0.9]}}},
            "whole limits; got {'integer': \\[0.5, 0.9",
        ),
        ({"type": "random", "parameters": {"A.x": {"normal": [0, 1]}}}, "must be a list, or"),
        ({"type": "random", "parameters": {"A.x": {"uniform": [1, 0]}}}, "must be a list, or"),
        ({"type": "random", "parameters": {"A.x": {"log_uniform": [0, 1]}}}, "must be above 0"),
    ],
)
def test_a_plan_that_makes_no_sense(tmp_path, data, message):
    with pytest.raises(UsageError, match=message):
        read_search(_write(tmp_path / "s.json", data))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A.x = 3", "needs a list"),
        ("A.x = [1", "is not gin"),
        ("", "binds nothing"),
        ("import os", "may only have lines"),
    ],
)
def test_a_gin_plan_that_makes_no_sense(tmp_path, text, message):
    with pytest.raises(UsageError, match=message):
        read_search(_write(tmp_path / "s.gin", text + "\n"))


def test_names_and_seeds():
    name = run_name(3, {"Adam.learning_rate": "0.001", "B.net": "@a/b()"}, 1)
    assert name == "003-lr=0.001_n=ab-r1"
    assert os.sep not in run_name(0, {"A.x": "'" + "/.." * 99 + "'"}, 0)
    assert len({run_seed(0, r) for r in range(50)} | {run_seed(1, r) for r in range(50)}) == 100


# ---- results ----

_SETTINGS = ({"A.x": "1"}, {"A.x": "'<&|>'"})


def _results(*scores):
    return [Result(f"r{i}", i % 2, i // 2, _SETTINGS[i % 2], "finished", score) for i, score in enumerate(scores)]


def test_settings_are_ranked_by_their_mean():
    groups = group([*_results(1.0, 5.0, 3.0, 6.0), Result("f", 0, 2, _SETTINGS[0], "failed", 99.0)])
    assert [(g.number, g.mean, g.finished, g.runs) for g in groups] == [(1, 5.5, 2, 2), (0, 2.0, 2, 3)]


def test_tables_and_plot_can_be_read_back():
    results = [*_results(1.0, 5.0, 3.0), Result("w", 1, 1, _SETTINGS[1], "waiting")]
    rows = list(csv.DictReader(csv_text(results).splitlines()))
    assert [row["A.x"] for row in rows] == ["1", "'<&|>'", "1", "'<&|>'"]
    assert [row["score"] for row in rows] == ["1.0", "5.0", "3.0", ""]
    lines = markdown(results).splitlines()
    assert lines[2] == "| '<&\\|>' | 1/2 | 5.00 | 0.00 |"
    assert lines[3] == "| 1 | 2/2 | 2.00 | 1.00 |"
    picture = ElementTree.fromstring(plot(results, "a < b"))
    assert len(picture.findall("{http://www.w3.org/2000/svg}circle")) == 3
    for empty in ([], [results[-1]]):
        ElementTree.fromstring(plot(empty, "t"))
        csv_text(empty)
        markdown(empty)


def test_what_a_run_is_judged_by(tmp_path, trained):
    run = Result("r", 0, 0, {}, "finished")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "stats.jsonl").write_text('{"env_steps": 7, "Metrics/AverageReturn": 3.0, "Losses/x": 0.5}\n')
    assert read_result(str(tmp_path), run)[5:8] == (3.0, None, 7)
    assert read_result(str(tmp_path), run, "Losses/x").score == 0.5
    assert read_result(str(tmp_path), run, "Losses/y").score is None
    assert read_result(str(tmp_path / "none"), run).score is None


# ---- processes ----


def _search(root, config, *arguments):
    return run_here(
        grid_search.main,
        f"--root_dir={root}",
        "--gin_file=async_ppo_cart_pole",
        f"--search_config={config}",
        *TINY,
        *arguments,
    )


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (
            "I1123 00:01:02.3 7 a.py:1] Begun.\nE1123 00:01:03.4 7 line.py:99] No parameter 'rat'.\n  In file x:\n    a.rat=1\n",
            "No parameter 'rat'.",
        ),
        (
            "E1123 00:01:02.3 7 a.py:1] Before.\nI1123 00:01:03.4 7 a.py:1] Again.\nTraceback:\nKeyError: 3\n",
            "KeyError: 3",
        ),
        ("E0000 00:00:1.2 7 cuda_platform.cc:52] failed call\nKeyError: 3\n", "KeyError: 3"),
        ("W1123 00:01:02.3 7 a.py:1] Interrupted.\n", "Interrupted."),
        ("", "it said nothing"),
    ],
)
def test_the_last_word_of_a_run(output, told, tmp_path):
    path = tmp_path / "output.log"
    path.write_text(output)
    assert grid_search._last_word(str(path)) == told


def test_runs_failures_and_going_on(tmp_path, capsys, logged):
    config = _config(tmp_path, parameters={"Adam.learning_rate": [1e-3, "'fast'"]})
    root = tmp_path / "search"
    assert _search(root, config, "--workers=2") == 1
    out = capsys.readouterr().out
    assert "| 0.001 | 1/1 |" in out
    assert "| 'fast' | 0/1 | – | – |" in out
    failed = next(line for line in logged if "ended with exit code" in line)
    assert failed.startswith("001-lr=fast-r0 ended with exit code")
    rows = list(csv.DictReader((root / "results.csv").open()))
    assert [row["state"] for row in rows] == ["finished", "failed"]
    assert RunIndex.load(str(root / "000-lr=0.001-r0")).run["status"] == "finished"
    assert (root / "results.svg").is_file()
    page = (root / "results.html").read_text()
    assert "No run has a value of Metrics/AverageReturn yet." in page
    assert "<td>0</td><td>learning_rate=0.001</td><td>1/1</td>" in page
    assert "<td>1</td><td>learning_rate='fast'</td><td>0/1</td><td>–</td>" in page
    assert f"learning curves: {root / 'results.html'}" in out
    # The finished run is left out, the other one is tried again; more repeats are added.
    before = (root / "000-lr=0.001-r0" / "output.log").stat().st_size
    monkey = grid_search.train_command
    grid_search.train_command = lambda directory, run, search: ["true"]
    try:
        assert _search(root, config, "--repeats=2") == 0
    finally:
        grid_search.train_command = monkey
    assert (root / "000-lr=0.001-r0" / "output.log").stat().st_size == before
    assert any("2 settings, 4 runs, 1 of them finished already; 1 at a time." in line for line in logged)
    # Another search has no business here.
    assert _search(root, _config(tmp_path, parameters={"Adam.learning_rate": [1e-3]})) == 2
    assert "holds another search" in logged[-1]


def test_ctrl_c_ends_the_runs(tmp_path):
    config = _config(tmp_path, parameters={"Adam.learning_rate": [1e-3, 1e-4]})
    process = start(
        "alf.bin.grid_search",
        f"--root_dir={tmp_path}/search",
        "--gin_file=async_ppo_cart_pole",
        f"--search_config={config}",
        *TINY,
        "--gin_param=TrainerConfig.num_iterations=100000000",
    )
    deadline = time.monotonic() + 60
    log = tmp_path / "search" / "000-lr=0.001-r0" / "output.log"
    while time.monotonic() < deadline and not (log.exists() and "Training:" in log.read_text()):
        time.sleep(0.1)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert "Interrupted: the same command goes on." in output
    assert not [c for c in children if c.is_running() and c.status() != psutil.STATUS_ZOMBIE]
    rows = list(csv.DictReader((tmp_path / "search" / "results.csv").open()))
    assert [row["state"] for row in rows] == ["interrupted", "waiting"]
    assert RunIndex.load(str(log.parent)).latest() is not None


def test_a_search_killed_with_9_leaves_no_process_and_its_runs_save(tmp_path):
    config = _config(tmp_path, parameters={"Adam.learning_rate": [1e-3, 1e-4]})
    process = start(
        "alf.bin.grid_search",
        f"--root_dir={tmp_path}/search",
        "--gin_file=async_ppo_cart_pole",
        f"--search_config={config}",
        *TINY,
        "--gin_param=create_environment.vectorization='async'",
        "--gin_param=TrainerConfig.num_iterations=100000000",
    )
    log = tmp_path / "search" / "000-lr=0.001-r0" / "output.log"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (log.exists() and "Training:" in log.read_text()):
        time.sleep(0.1)
    children = psutil.Process(process.pid).children(recursive=True)
    # The run, and a process for each of its four environments.
    assert len(children) >= 5
    process.kill()
    psutil.wait_procs(children, timeout=40)
    assert not [c for c in children if c.is_running() and c.status() != psutil.STATUS_ZOMBIE]
    index = RunIndex.load(str(log.parent))
    assert (index.run["status"], index.run["why"]) == ("interrupted", "SIGHUP received")
    assert index.latest() is not None


def test_a_child_ends_with_its_parent_even_when_it_has_not_begun_yet():
    """A parent that ends at once, and one that lives: the child's last word tells which."""
    script = (
        "import importlib.util, os, sys, time\n"
        # By its path: the package would import TensorFlow, three times.
        f"spec = importlib.util.spec_from_file_location('parent_death', {parent_death.__file__!r})\n"
        "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)\n"
        "ask = module.ended_with_parent()\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    if sys.argv[1] == 'gone': time.sleep(0.5)\n"
        "    ask(); print('asked', flush=True); time.sleep(0.3); print('alive', flush=True); os._exit(0)\n"
        "if sys.argv[1] == 'stays': os.waitpid(pid, 0)\n"
        "if sys.argv[1] == 'ends': time.sleep(0.15)\n"
        "os._exit(0)\n"
    )
    said = {}
    for parent in ("stays", "ends", "gone"):
        command = [sys.executable, "-c", script, parent]
        said[parent] = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60).stdout.split()
    assert said["stays"] == ["asked", "alive"]
    assert "alive" not in said["ends"]
    assert said["gone"] == []


# ---- learning curves ----


def _learned(root, run, *rows):
    folder = root / run.name / "train"
    folder.mkdir(parents=True)
    lines = ["env_steps,Metrics/AverageReturn,Own/x", *(",".join(map(str, row)) for row in rows)]
    (folder / "stats.csv").write_text("\n".join(lines) + "\n")


def test_curves_of_a_search(tmp_path):
    results = [*_results(1.0, 5.0, 3.0), Result("none", 1, 1, _SETTINGS[1], "waiting")]
    _learned(tmp_path, results[0], (0, 1.0, 7), (100, 3.0, 7), (200, "", 7))
    _learned(tmp_path, results[1], (0, "nan", 7), (50, 5.0, 7))
    _learned(tmp_path, results[2], (0, 2.0, 7), (50, 4.0, 7), (100, 8.0, 7))
    page = ElementTree.fromstring(curves_page(str(tmp_path), results, "a < b").removeprefix("<!DOCTYPE html>\n"))
    svgs = {svg.get("aria-label"): svg for svg in page.iter("{http://www.w3.org/2000/svg}svg")}
    assert list(svgs) == ["AverageReturn", "1: x='<&|>'", "0: x=1"]
    lines = {name: len(list(svg.iter("{http://www.w3.org/2000/svg}polyline"))) for name, svg in svgs.items()}
    assert list(lines.values()) == [2, 1, 2]
    table = read_table(str(tmp_path / results[0].name))
    curve = read_curve(table, "env_steps")
    assert (curve.x, curve.y) == ((0, 100), (1.0, 3.0))
    own = read_table(str(tmp_path / results[0].name), "Own/x")
    assert read_curve(own, "env_steps", "Own/x").y == (7, 7, 7)
    assert read_curve(read_table(str(tmp_path / "none")), "env_steps") is None
    assert "No run has a value of Metrics/AverageReturn yet." in curves_page(str(tmp_path), results[3:], "t")


def test_the_mean_of_curves_is_where_all_have_values():
    one, other = Series("a", [0, 10], [0.0, 10.0]), Series("b", [5, 10, 20], [1.0, 1.0, 3.0])
    mean = mean_curve("m", [one, other])
    assert (mean.name, mean.x[0], mean.x[-1]) == ("m", 5, 10)
    for x, y, spread in zip(mean.x, mean.y, mean.spread, strict=True):
        assert y == pytest.approx((x + 1.0) / 2)
        assert spread == pytest.approx((x - 1.0) / 2)
    assert mean_curve("m", [one]) == one._replace(name="m")
    assert mean_curve("m", [one, Series("c", [11], [0.0])]) is None
    assert mean_curve("m", []) is None


def test_more_runs_than_anyone_means(tmp_path, logged):
    config = _config(tmp_path, parameters={"A.x": [1, 2]})
    assert _search(tmp_path / "s", config, "--repeats=1000000000") == 2
    assert "2 settings with 1,000,000,000 repeats are more than 100,000 runs" in logged[-1]
    assert not (tmp_path / "s").exists()


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["@a", "[1]", "A.x"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KINDS) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(
    st.fixed_dictionaries({}, optional={name: _JSON for name in _KEYS if name not in ("type", "parameters")}),
    st.sampled_from(["grid", "random"]),
    st.dictionaries(
        st.sampled_from(["A.x", "B.y", "a/C.z"]), _JSON | st.lists(_JSON, min_size=1, max_size=3), max_size=3
    ),
)
def test_any_plan_is_one_or_is_told(tmp_path_factory, data, kind, parameters):
    path = tmp_path_factory.mktemp("plan") / "s.json"
    path.write_text(json.dumps({**data, "type": kind, "parameters": parameters}))
    try:
        search = read_search(str(path))
    except UsageError as e:
        said = str(e)
    else:
        said = ""
        assert 0 < len(search.settings) <= 10_000
        assert all(value.isprintable() for setting in search.settings for value in setting.values())
    assert said == "" or len(said) > 10


def test_gpus_and_seeds_reach_the_runs(tmp_path, monkeypatch, logged):
    started = []

    class Process:
        def __init__(self, command, env, **kwargs):
            started.append((command, env.get("CUDA_VISIBLE_DEVICES")))
            self.pid, self.returncode = 1, 0

        def poll(self):
            return 0

    monkeypatch.setattr(grid_search.subprocess, "Popen", Process)
    config = _config(tmp_path, parameters={"A.x": [1, 2]}, gpus=[4, 6], max_worker_num=2, repeats=2, use_gpu=True)
    assert _search(tmp_path / "s", config) == 0
    assert [gpu for _, gpu in started] == ["4", "6", "4", "6"]
    seeds = [next(a for a in command if "random_seed" in a) for command, _ in started]
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]
    assert "--gin_param=A.x=2" in started[1][0]
    assert not any("--use_cpu" in command for command, _ in started)


@pytest.mark.parametrize("where", ["search", "binding"])
def test_a_seed_cannot_be_searched(tmp_path, logged, where):
    """Each run has one of its own, which would win: the settings would be the same run over and over."""
    name = "TrainerConfig.random_seed"
    config = _config(tmp_path, parameters={name: [1, 2]} if where == "search" else {"A.x": [1]})
    more = [] if where == "search" else [f"--gin_param=alf.trainers.config.{name} = 7"]
    assert (
        run_here(
            grid_search.main, f"--root_dir={tmp_path}/s", *more, "--gin_file=ppo_cart_pole", f"--search_config={config}"
        )
        == 2
    )
    assert any(f"{name} cannot be set here" in line for line in logged)


def test_mistakes_are_told_in_a_sentence(tmp_path, logged):
    config = _config(tmp_path, parameters={"A.x": [1]})
    root = f"--root_dir={tmp_path}/s"
    example = "--gin_file=ppo_cart_pole"
    for wrong in (
        (example, f"--search_config={config}"),
        (root, example),
        (root, f"--search_config={config}"),
        (root, example, f"--search_config={tmp_path}/none.json"),
        (root, example, f"--search_config={config}", "--workers=0"),
        (root, "--gin_file=ppo_cartpole", f"--search_config={config}"),
    ):
        assert run_here(grid_search.main, *wrong) == 2, wrong
    text = "\n".join(logged)
    for expected in (
        "--root_dir is missing",
        "--search_config is missing",
        "--gin_file is missing",
        "none.json cannot be read",
        "--workers=0 must be at least 1",
        "Did you mean 'ppo_cart_pole.gin'",
    ):
        assert expected in text
    assert search_report.METRIC == "Metrics/AverageReturn"
