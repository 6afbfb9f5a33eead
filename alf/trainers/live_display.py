"""Where a picture that changes is shown: above the lines of a terminal, or below the cell of a notebook."""

from __future__ import annotations

import io
import sys
from typing import Any, Protocol

from absl import logging

# A notebook does not say how wide it is.
_NOTEBOOK_COLUMNS = 100
_HTML = '<pre style="line-height: normal; white-space: pre-wrap">{code}</pre>'


class LiveDisplay(Protocol):
    """A place for one picture, any object that rich renders."""

    def show(self, picture: Any) -> None:
        """Shows it in the place of the one before; raises OSError where the place is gone."""

    def close(self) -> None:
        """Leaves the last one there; may raise OSError, and is closed all the same."""


def wanted() -> bool:
    """Whether somebody watches: standard error is a terminal, or the process belongs to a notebook."""
    return sys.stderr.isatty() or _in_notebook()


def open_display() -> LiveDisplay:
    """The display of this process, which is empty at first."""
    if _in_notebook():
        return _Notebook()
    return _Terminal()


def _in_notebook() -> bool:
    if "ipykernel.zmqshell" not in sys.modules:
        return False
    from ipykernel.zmqshell import ZMQInteractiveShell
    from IPython.core.getipython import get_ipython

    return isinstance(get_ipython(), ZMQInteractiveShell)


class _Terminal:
    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(stderr=True), auto_refresh=False, vertical_overflow="crop")
        self._live.start()
        # absl keeps the stream it found at import; its lines must go above the display, not into it.
        logging.get_absl_handler().python_handler.setStream(sys.stderr)

    def show(self, picture: Any) -> None:
        self._live.update(picture, refresh=True)

    def close(self) -> None:
        try:
            self._live.stop()
        finally:
            logging.get_absl_handler().python_handler.setStream(sys.stderr)


class _Notebook:
    """An output of the cell, which IPython replaces by its id; needs no widgets."""

    def __init__(self) -> None:
        self._output: Any = None

    def show(self, picture: Any) -> None:
        from IPython.display import display
        from rich.console import Console

        console = Console(record=True, file=io.StringIO(), width=_NOTEBOOK_COLUMNS, force_jupyter=False)
        console.print(picture)
        html = console.export_html(code_format=_HTML, inline_styles=True, clear=False)
        data = {"text/html": html, "text/plain": console.export_text()}
        if self._output is None:
            self._output = display(data, raw=True, display_id=True)
        else:
            self._output.update(data, raw=True)

    def close(self) -> None:
        self._output = None
