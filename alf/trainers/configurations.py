"""Which of the gin configurations that a process has one after the other a trainer is of."""

from __future__ import annotations

import gin


class Configuration:
    """The gin configuration that is in force when this object is made."""

    _newest = 0

    def __init__(self) -> None:
        """Remembers which one it is."""
        self._number = Configuration._newest

    @classmethod
    def begin(cls) -> None:
        """Empties the configuration: what is built from now on is of another one."""
        gin.clear_config()
        cls._newest += 1

    def check(self, root_dir: str) -> None:
        """Raises RuntimeError where another configuration has taken the place of this one, that of the run in `root_dir`."""
        if self._number != Configuration._newest:
            raise RuntimeError(
                f"The trainer of {root_dir} would be built by the settings of one that make_trainer has made since: train "
                "and close a trainer before you make the next."
            )
