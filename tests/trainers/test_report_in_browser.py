"""The report as a browser shows it; skipped where no Chromium is installed."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

from alf.trainers.report import html_page, write_report
from alf.trainers.report_svg import COLOURS, Series, line_chart
from tests.trainers.test_report import _run

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next((path for name in _BROWSERS if (path := shutil.which(name))), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(_BROWSERS)} is installed"),
]


def _picture(page, tmp_path, height=2400):
    """The page as the browser paints it, uint8 [height, width, 3]."""
    out = tmp_path / "page.png"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", "--disable-dev-shm-usage", "--no-first-run"]
    command = [str(BROWSER), *flags, f"--window-size=1200,{height}", f"--screenshot={out}", page.as_uri()]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    return np.asarray(Image.open(out).convert("RGB"))


def _where(picture, colour):
    """Rows and columns of the pixels of a colour."""
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return np.nonzero((np.abs(picture.astype(int) - wanted) <= 2).all(-1))


def test_a_curve_is_painted_where_its_numbers_are(tmp_path):
    """A step: half of the width at the lowest value, half at the highest one."""
    values = [0.0] * 20 + [10.0] * 20
    page = tmp_path / "chart.html"
    page.write_text(html_page("one chart", line_chart("steps", "x", [Series("a", list(range(40)), values)])))
    rows, columns = _where(_picture(page, tmp_path, 600), COLOURS[0])
    # The frame of the curve is 388 pixels wide and, less 4 % above and below, 159 high.
    assert np.ptp(columns) == pytest.approx(388, abs=4)
    assert np.ptp(rows) == pytest.approx(172 / 1.08, abs=4)
    left = columns < columns.min() + 0.45 * np.ptp(columns)
    right = columns > columns.min() + 0.55 * np.ptp(columns)
    assert rows[left].min() > rows[right].max() + 140, "low values are painted below high ones"


def test_a_report_is_painted_whole(tmp_path):
    root = tmp_path / "run"
    _run(root)
    write_report(str(root), facts=[("Ended", "it has")])
    picture = _picture(root / "report.html", tmp_path)
    plain = picture[-1, -1].astype(int)
    painted = (np.abs(picture.astype(int) - plain).sum(-1) > 30).any(1)
    # Text, seven charts and the footer, of which the lowest stands far down.
    assert np.flatnonzero(painted).max() > 800
    for colour, least in ((COLOURS[0], 1500), (COLOURS[1], 300)):
        assert len(_where(picture, colour)[0]) > least, f"curves and bars of {colour}"
