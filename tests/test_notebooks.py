"""Notebooks: the cells of the page about them run in a real kernel, with a display, and the stop button saves."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import threading
import time

import pytest

from tests.test_docs import ROOT, blocks

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

PAGE = ROOT / "docs" / "notebooks.md"
# The iteration that a display tells.
SHOWN = r"(?m)^iteration +(\d+)"


@contextlib.contextmanager
def _notebook(folder: pathlib.Path, *cells: str):
    """A client with a kernel that works in `folder`, and the cells."""
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = nbclient.NotebookClient(
        made, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(folder / "ipython")}
    with client.setup_kernel(env=env):
        yield client, made.cells


def _shown(cell, kind: str) -> list[str]:
    """What the outputs of a cell with data of that kind hold."""
    return [output["data"][kind] for output in cell.outputs if kind in output.get("data", {})]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_cells_of_the_page_run(tmp_path):
    cells = [block.code for block in blocks(PAGE) if block.language == "python"]
    with _notebook(tmp_path, *cells) as (client, made):
        for number, cell in enumerate(made):
            client.execute_cell(cell, number)
    training, longer, several, report, numbers, video, guess = made
    # One output, which was replaced as training went on.
    for cell, iterations in ((training, 60), (longer, 80), (guess, 20)):
        (text,) = _shown(cell, "text/plain")
        assert f"training until {iterations} iterations" in text
        assert re.findall(SHOWN, text) == [str(iterations)]
        (html,) = _shown(cell, "text/html")
        assert html.startswith("<pre")
        assert "<span style=" in html
    assert len(_shown(several, "text/html")) == 2
    assert "<iframe srcdoc=" in _shown(report, "text/html")[0]
    assert numbers.outputs[0]["text"].startswith("163840 ")
    assert "<video" in _shown(video, "text/html")[0]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_stop_button_saves_and_the_cell_goes_on_where_it_ended(tmp_path):
    make = """
from alf.trainers.making import make_trainer
trainer = make_trainer("async_ppo_cart_pole", "run", ["TrainerConfig.num_iterations=100000"])
"""
    with _notebook(tmp_path, make, "trainer.train()\nprint('saved')") as (client, (first, second)):
        ended = 1
        for _ in range(2):
            client.execute_cell(first, 0)
            stopping = threading.Thread(target=_stop_behind, args=(client, second, ended))
            stopping.start()
            client.execute_cell(second, 1)
            stopping.join()
            assert [output["text"] for output in second.outputs if output.get("name") == "stdout"] == ["saved\n"]
            status = json.loads((tmp_path / "run" / "training_status.json").read_text())
            assert status["run"]["status"] == "interrupted"
            before, ended = ended, max(c["iterations"] for c in status["behaviors"]["agent"]["checkpoints"])
            assert ended > before
            second.outputs = []


def _stop_behind(client, cell, iteration: int) -> None:
    """Presses the button once the display tells of a later iteration."""
    deadline = time.monotonic() + 120
    while not any(int(n) > iteration for text in _shown(cell, "text/plain") for n in re.findall(SHOWN, text)):
        assert time.monotonic() < deadline, cell.outputs
        time.sleep(0.1)
    _press_stop(client)


def _press_stop(client) -> None:
    os.killpg(client.km.provisioner.pgid, signal.SIGINT)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_stop_button_twice_ends_training_and_not_the_session(tmp_path):
    slow = """
import time
from alf.trainers.making import make_trainer
trainer = make_trainer("async_ppo_cart_pole", "run")
trainer.initialize()
trainer.algorithm.add_after_train_hook(lambda: (print("learned", flush=True), time.sleep(60)))
kept = "kept"
trainer.train()
"""
    again = """
trainer = make_trainer("async_ppo_cart_pole", "run", ["TrainerConfig.num_iterations=5"])
trainer.train()
print(kept, trainer.counters.iterations)
"""
    with _notebook(tmp_path, slow, again) as (client, (first, second)):
        stopping = threading.Thread(target=_stop_twice, args=(client, first))
        stopping.start()
        with pytest.raises(nbclient.exceptions.CellExecutionError, match="KeyboardInterrupt"):
            client.execute_cell(first, 0)
        stopping.join()
        status = json.loads((tmp_path / "run" / "training_status.json").read_text())
        assert (status["run"]["status"], status["run"]["why"]) == ("interrupted", "KeyboardInterrupt")
        client.execute_cell(second, 1)
    assert [output["text"] for output in second.outputs if output.get("name") == "stdout"] == ["kept 5\n"]


def _stop_twice(client, cell) -> None:
    for said in ("learned", "once more ends training at once"):
        deadline = time.monotonic() + 120
        while not any(said in output.get("text", "") for output in cell.outputs):
            assert time.monotonic() < deadline, cell.outputs
            time.sleep(0.1)
        _press_stop(client)
