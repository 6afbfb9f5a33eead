"""What a search tries: settings of gin bindings, read from a file."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import json
import math
import random
import re
import sys
import tokenize
from collections.abc import Mapping, Sequence
from typing import Any

from alf.bin.command_line import UsageError

# A grid beyond this is a mistake rather than a plan.
MAX_SETTINGS = 10_000
MAX_RUNS = 100_000
_LARGEST = sys.float_info.max / 2

_KEYS = ("desc", "comment", "type", "num_samples", "seed", "repeats", "max_worker_num", "use_gpu", "gpus", "parameters")
_GIN_TEXT = tuple("@%([{'\"")
_NAME = re.compile(r"[\w./]+")

Setting = dict[str, str]


@dataclasses.dataclass(frozen=True)
class Search:
    """A plan of runs.

    Attributes:
      settings: each a value, in gin's syntax, for every binding that is searched.
      repeats: runs of each setting, with different seeds.
      workers: runs at a time.
      seed: of the random search, and of the runs.
      use_gpu: whether runs may see GPUs.
      gpus: numbers of the GPUs that runs are spread over; empty: each sees all.
    """

    settings: tuple[Setting, ...]
    repeats: int = 1
    workers: int = 1
    seed: int = 0
    use_gpu: bool = True
    gpus: tuple[int, ...] = ()


def read_search(path: str) -> Search:
    """Reads a plan.

    A `.json` file has "parameters", from binding names to lists of values, and optionally "type" ("grid" or "random"),
    "num_samples", "seed", "repeats", "max_worker_num", "use_gpu", "gpus", "desc" and "comment". For a random search a
    value may also be {"uniform": [low, high]}, {"log_uniform": [low, high]} or {"integer": [low, high]}. Text that
    begins with @, %, a bracket or a quote is gin's syntax, other text is quoted. Any other file is gin: a binding of a
    list of values a line, searched as a grid.

    Raises:
      UsageError: the file cannot be used.
    """
    try:
        with open(path, encoding="utf-8") as f:
            text = f.read()
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"--search_config={path} cannot be read: {e}") from e
    if not path.endswith(".json"):
        return Search(_grid(_gin_lists(path, text)))
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise UsageError(f"--search_config={path} is not JSON: {e}") from e
    if not isinstance(data, dict):
        raise UsageError(f"--search_config={path} must be a JSON object with 'parameters'.")
    return _from_json(path, data)


def _from_json(path: str, data: Mapping[str, Any]) -> Search:
    unknown = sorted(set(data) - set(_KEYS))
    if unknown:
        raise UsageError(f"--search_config={path} has {unknown[0]!r}, which is none of {', '.join(_KEYS)}.")
    parameters = data.get("parameters")
    if not isinstance(parameters, dict) or not parameters:
        raise UsageError(f"--search_config={path} needs 'parameters', from binding names to lists of values.")
    for name in parameters:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"--search_config={path} has {name!r}, which is no name of a binding, such as Adam.learning_rate."
            )
    kind, seed = data.get("type", "grid"), _whole(path, data, "seed", 0, 0)
    if kind == "grid":
        settings = _grid({name: _choices(path, name, value) for name, value in parameters.items()})
    elif kind == "random":
        settings = _sample(path, parameters, _whole(path, data, "num_samples", 10, 1), seed)
    else:
        raise UsageError(f"--search_config={path} has type {kind!r}, which is neither 'grid' nor 'random'.")
    gpus = data.get("gpus", [])
    if not isinstance(gpus, list) or not all(type(gpu) is int and gpu >= 0 for gpu in gpus):
        raise UsageError(f"--search_config={path} has gpus={gpus!r}: give a list of numbers, such as [0, 1].")
    use_gpu = data.get("use_gpu", True)
    if not isinstance(use_gpu, bool):
        raise UsageError(f"--search_config={path} has use_gpu={use_gpu!r}: give true or false.")
    return Search(
        settings,
        _whole(path, data, "repeats", 1, 1),
        _whole(path, data, "max_worker_num", 1, 1),
        seed,
        use_gpu,
        tuple(gpus),
    )


def _whole(path: str, data: Mapping[str, Any], name: str, default: int, least: int) -> int:
    value = data.get(name, default)
    if type(value) is not int or value < least:
        raise UsageError(f"--search_config={path} has {name}={value!r}: give a whole number of at least {least}.")
    return value


def _choices(path: str, name: str, value: Any) -> list[str]:
    """The values of a list, in gin's syntax."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            value = None
    if isinstance(value, Mapping):
        raise UsageError(
            f'--search_config={path}: {name} has a range, and a grid needs lists: add "type": "random" and "num_samples", '
            "or list the values."
        )
    if not isinstance(value, (list, tuple)) or not value:
        raise UsageError(f"--search_config={path}: {name} needs a list with at least one value.")
    return [gin_text(item) for item in value]


def gin_text(value: Any) -> str:
    """A JSON value in gin's syntax; see `read_search`."""
    if isinstance(value, str) and value.startswith(_GIN_TEXT):
        if not value.isprintable():
            raise UsageError(f"A value of a search must be one line of printable text; got {value!r}.")
        return value
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"A value of a search must be finite; got {value}.")
    return repr(value)


def _grid(choices: Mapping[str, Sequence[str]]) -> tuple[Setting, ...]:
    count = math.prod(len(values) for values in choices.values())
    if count > MAX_SETTINGS:
        raise UsageError(f"The grid has {count:,} settings, more than {MAX_SETTINGS:,}: use a random search.")
    return tuple(dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values()))


def _sample(path: str, parameters: Mapping[str, Any], count: int, seed: int) -> tuple[Setting, ...]:
    if count > MAX_SETTINGS:
        raise UsageError(f"--search_config={path} has num_samples={count}, more than {MAX_SETTINGS:,}.")
    rng = random.Random(seed)
    return tuple({name: _draw(path, name, value, rng) for name, value in parameters.items()} for _ in range(count))


def _draw(path: str, name: str, value: Any, rng: random.Random) -> str:
    if not isinstance(value, dict):
        return rng.choice(_choices(path, name, value))
    kind, limits = next(iter(value.items()), ("", []))
    low, high = limits if isinstance(limits, list) and len(limits) == 2 else (None, None)
    numbers = type(low) in (int, float) and type(high) in (int, float) and -_LARGEST <= low <= high <= _LARGEST
    if len(value) != 1 or kind not in ("uniform", "log_uniform", "integer") or not numbers:
        raise UsageError(
            f"--search_config={path}: {name} must be a list, or {{'uniform': [low, high]}}, 'log_uniform' or 'integer'; got "
            f"{value!r}."
        )
    if kind == "integer":
        if low != int(low) or high != int(high):
            raise UsageError(
                f"--search_config={path}: {name} is drawn as an integer between whole limits; got {value!r}."
            )
        return repr(rng.randint(int(low), int(high)))
    if kind == "uniform":
        return repr(rng.uniform(low, high))
    if low <= 0:
        raise UsageError(f"--search_config={path}: {name} is drawn log_uniform, so that {low} must be above 0.")
    return repr(math.exp(rng.uniform(math.log(low), math.log(high))))


# ---- gin ----


class _Text(str):
    """A reference or macro, as it stands in the file; printed without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _gin_lists(path: str, text: str) -> dict[str, list[str]]:
    from gin import config_parser

    class Delegate(config_parser.ParserDelegate):
        def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Any:
            return _Text(f"@{scoped_configurable_name}{'()' if evaluate else ''}")

        def macro(self, macro_name: str) -> Any:
            return _Text(f"%{macro_name}")

    found: dict[str, list[str]] = {}
    try:
        for statement in config_parser.ConfigParser(text, Delegate()):
            if not isinstance(statement, config_parser.BindingStatement):
                raise UsageError(
                    f"--search_config={path} may only have lines such as Adam.learning_rate = [1e-3, 1e-4]."
                )
            scope = f"{statement.scope}/" if statement.scope else ""
            member = f".{statement.arg_name}" if statement.arg_name else ""
            name = f"{scope}{statement.selector}{member}"
            if not isinstance(statement.value, (list, tuple)) or not statement.value:
                raise UsageError(f"--search_config={path}: {name} needs a list with at least one value.")
            found[name] = [repr(item) for item in statement.value]
    except (SyntaxError, ValueError, tokenize.TokenError) as e:
        if isinstance(e, UsageError):
            raise
        raise UsageError(f"--search_config={path} is not gin: {e}") from e
    if not found:
        raise UsageError(
            f"--search_config={path} binds nothing: write lines such as Adam.learning_rate = [1e-3, 1e-4]."
        )
    return found


# ---- names ----


def run_name(index: int, setting: Setting, repeat: int) -> str:
    """A directory name that says which run it is: its number, initials of the bindings with values, and the repeat."""
    parts = []
    for name, value in setting.items():
        initials = "".join(word[0] for word in re.split(r"_+", name.rpartition(".")[2]) if word)
        parts.append(f"{initials}={re.sub(r'[^A-Za-z0-9.+-]+', '', value)[:16]}")
    return f"{index:03d}-{'_'.join(parts)[:60]}-r{repeat}"


def run_seed(seed: int, repeat: int) -> int:
    """The seed of the runs of a repeat, the same for every setting."""
    return random.Random(f"{seed} {repeat}").randrange(2**31)
