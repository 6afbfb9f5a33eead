"""Reading gin files, and writing down what a run has used of them."""

from __future__ import annotations

import contextlib
import copy
import difflib
import importlib.resources
import io
import os
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import gin

from alf.utils.files import write_atomically
from alf.utils.gin_types import wrong_bindings
from alf.utils.removed_names import what_instead
from alf.utils.tensorflow_names import NAMES, OPTIMIZERS
from alf.utils.value_kinds import parameters_of

_PACKAGE = Path(__file__).resolve().parents[1]
_REPOSITORY_EXAMPLES = _PACKAGE.parent / "examples"
# gin opens files under this mark by `_read_marked`, which resolves what they include.
_MARK = "alf-gin:"
# The files that are being read, each included by the one before.
_OPEN: list[Path] = []
_INCLUDE = re.compile(r"^(\s*include\s+)(['\"])(.+?)\2", re.MULTILINE)
_UNKNOWN = re.compile(r"No configurable matching(?: reference)? '@?([^'()]+)(?:\(\))?'")
_NO_VALUE = re.compile(r"malformed node or string.*Failed to parse token '([^']+)' (\(.*line \d+\))", re.DOTALL)
_BARE_TEXT = re.compile(r"[\w./:-]+")
_NO_MACRO = re.compile(r"No bindings specified for '([^']+)/gin\.macro'")
_IN_BINDING = re.compile(r"\(line \d+\)$")
_EXTERNAL = "alf.utils.external_configurables"
_CONFIGURABLE = re.compile(r'^@gin\.configurable(?:\((?:"(\w+)")?.*)?\n(?:@.*\n)*(?:class|def) (\w+)', re.MULTILINE)
# How much a name is like the one that was meant, where it could be right too.
_MISSPELT = 0.9
_NO_MODULE = re.compile(r"No module named '([^']+)'")
_NO_PARAMETER = re.compile(r"Configurable '([^']+)' doesn't (?:have a parameter named|include kwarg) '([^']+)'")


class GinConfigError(ValueError):
    """A gin file or binding that cannot be used."""


def example_directories() -> list[Path]:
    """Where shipped gin files are found by name, as far as the directories exist."""
    found = [_REPOSITORY_EXAMPLES]
    with contextlib.suppress(ModuleNotFoundError, TypeError):
        found.append(Path(str(importlib.resources.files("alf.examples"))))
    return [d for d in dict.fromkeys(found) if any(d.glob("*.gin"))]


def find_gin_file(name: str, beside: str | os.PathLike[str] | None = None) -> Path:
    """The file that `name` means.

    Args:
      name: a path, or the name of a shipped example with or without `.gin`.
      beside: directory of the including file, which is looked in first. A file of one's own may include the example whose
        name it has.

    Raises:
      GinConfigError: there is no such file; the message says where it was looked for, and names the nearest example.
    """
    directories = [*([Path(beside)] if beside else []), Path.cwd(), *example_directories()]
    found: list[Path] = []
    for directory in directories:
        for candidate in (directory / name, directory / f"{name}.gin"):
            # A name may be longer than the file system allows.
            with contextlib.suppress(OSError):
                if candidate.is_file():
                    found.append(candidate.resolve())
    if found:
        return next((path for path in found if path not in _OPEN), found[0])
    examples = sorted({p.name for d in example_directories() for p in d.glob("*.gin")})
    looked = ", ".join(str(d) for d in dict.fromkeys(directories))
    raise GinConfigError(f"No gin file {name!r} in {looked}.{_did_you_mean_or(name, examples, 'Shipped examples')}")


def parse_gin(gin_files: Sequence[str] = (), bindings: Sequence[str] = (), finalize: bool = True) -> None:
    """Parses gin files, then bindings, which win.

    Args:
      gin_files: each as `find_gin_file` takes it. A file's includes are looked for beside it first.
      bindings: single bindings such as `TrainerConfig.num_iterations=10`.
      finalize: check references and lock the configuration.

    Raises:
      GinConfigError: a file is missing, or a configurable or a parameter is unknown; the nearest name is given. With
        `finalize` also: a value is of another kind than the annotation of its parameter. Or the configuration is locked.
    """
    _register_reader()
    paths = [find_gin_file(f) for f in gin_files]
    if gin.config_is_locked():
        raise GinConfigError(
            "This process has a gin configuration already, which is locked: call gin.clear_config() before the next one."
        )
    for path in paths:
        with _readable_errors(str(path)):
            gin.parse_config_file(f"{_MARK}{path}")
    for binding in bindings:
        with _readable_errors(binding):
            gin.parse_config(binding)
    if finalize:
        with _readable_errors("the configuration"):
            gin.finalize()
        _check_names()
        _check_kinds()


def used_bindings() -> list[tuple[str, str, str]]:
    """Bindings whose values something has used so far in this process, sorted: scope, selector and parameter."""
    with gin.config._OPERATIVE_CONFIG_LOCK:
        called = [(*key, name) for key, parameters in gin.config._OPERATIVE_CONFIG.items() for name in parameters]
    used = {(_deciding_scope(*call), *call[1:]) for call in called}
    return sorted((source, selector, parameter) for source, selector, parameter in used if source is not None)


def count_as_used(bindings: Iterable[Sequence[str]]) -> None:
    """Counts bindings as used that another process with this configuration has used.

    Args:
      bindings: from `used_bindings` there; any that this process does not have are ignored.
    """
    with gin.config._OPERATIVE_CONFIG_LOCK:
        for scope, selector, parameter in bindings:
            bound_here = gin.config._CONFIG.get((scope, selector), {})
            if parameter in bound_here:
                used = gin.config._OPERATIVE_CONFIG.setdefault((scope, selector), {})
                used.setdefault(parameter, bound_here[parameter])


def unused_bindings() -> list[str]:
    """Bindings whose values nothing has used so far in this process, as `scope/Name.parameter`."""
    used = set(used_bindings())
    unused = []
    for (scope, selector), parameters in gin.config._CONFIG.items():
        for parameter in parameters:
            if (scope, selector, parameter) not in used:
                unused.append(binding_name(scope, selector, parameter))
    return sorted(unused)


def operative_config(comments: Sequence[str] = (), unused_count: bool = False) -> str:
    """The bindings used so far, with defaults; a gin file that gives the same run.

    Args:
      comments: lines before all others.
      unused_count: whether bindings that were not used follow as bindings, since another process may use them; else they
        follow as comments.
    """
    text = "".join(f"# {line}\n" for line in comments) + gin.operative_config_str()
    unused = set(unused_bindings())
    if unused:
        mark = "" if unused_count else "# "
        text += "\n# Bindings that were not used" + (" in this process:\n" if unused_count else ":\n")
        for (scope, selector), parameters in sorted(gin.config._CONFIG.items()):
            for parameter, value in sorted(parameters.items()):
                name = binding_name(scope, selector, parameter)
                if name in unused:
                    text += "".join(f"{mark}{line}\n" for line in f"{name} = {value!r}".splitlines())
    return text


def write_operative_config(path: str, comments: Sequence[str] = (), unused_count: bool = False) -> str:
    """Writes `operative_config` to `path`, whole or not at all, and returns it."""
    text = operative_config(comments, unused_count)
    write_atomically(path, text)
    return text


def bind(configurable: Any, parameter: str, value: Any) -> None:
    """Binds a parameter of a configurable function or class, over what gin files say, locked or not."""
    registered = gin.config._inverse_lookup(configurable)
    if registered is None:
        raise GinConfigError(f"{configurable!r} is not known to gin.")
    with gin.unlock_config():
        gin.bind_parameter(f"{registered.selector}.{parameter}", value)


def import_unlocked(module: str) -> ModuleType:
    """Imports a module that may register configurables, such as one that a setting names, when gin is locked already."""
    with gin.unlock_config():
        return importlib.import_module(module)


def named_callable(path: str) -> Callable[..., Any] | None:
    """What "package.module:name" names; None where `path` has no colon, or that is nothing to call."""
    module, _, name = path.partition(":")
    made = getattr(import_unlocked(module), name, None) if name else None
    return made if callable(made) else None


def bound(configurable: Any, parameter: str) -> Any:
    """What gin binds a parameter of a configurable function or class to, macros resolved; None where it binds nothing."""
    return copy.deepcopy(gin.get_bindings(configurable, resolve_references=False).get(parameter))


def tell_drawn(configurable: Any, parameter: str, value: Any) -> None:
    """Has `operative_config` tell what was drawn or chosen, such as a seed, where a parameter was left at None."""
    selector = gin.config._inverse_lookup(configurable).selector
    for (_, used), parameters in gin.config._OPERATIVE_CONFIG.items():
        if used == selector and parameter in parameters and parameters[parameter] is None:
            parameters[parameter] = value


def nearest(name: str, known: Sequence[str], likeness: float = 0.6) -> str | None:
    """The known name that is most like `name`, if any is so much like it."""
    by_lower = {k.lower(): k for k in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=likeness)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """The end of a message: asks whether the nearest of the known names was meant; empty where none is near."""
    found = nearest(name, known)
    return f" Did you mean {found!r}?" if found else ""


def _check_names() -> None:
    """Raises GinConfigError for parameters that gin lets through since they are among `**kwargs`, and nothing takes."""
    for (scope, selector), parameters in gin.config._CONFIG.items():
        configurable = gin.config._REGISTRY.get(selector)
        if configurable is None or configurable.allowlist:
            continue
        known, others = parameters_of(configurable.wrapped)
        of_alf = str(configurable.wrapped.__module__).startswith("alf.")
        for parameter, value in parameters.items():
            # What alf passes on, such as to an environment, has names of its own: only a misspelling is surely wrong.
            wrong = not others or (of_alf and nearest(parameter, known, _MISSPELT))
            if parameter not in known and wrong:
                raise GinConfigError(
                    f"{binding_name(scope, selector, parameter)}={value!r}: there is no such parameter."
                    f"{_did_you_mean_or(parameter, known, 'It takes')}"
                )


def _check_kinds() -> None:
    """Raises GinConfigError for a value that would fail wherever it is used, which may be in the midst of training."""
    for scope, selector, parameter, value, told in wrong_bindings():
        raise GinConfigError(f"{binding_name(scope, selector, parameter)}={value!r} must be {told}.")


# ---- files ----


def _register_reader() -> None:
    # First, since gin's reader of package resources logs an error for every path that is not its own.
    if all(reader is not _read_marked for reader, _ in gin.config._FILE_READERS):
        gin.config._FILE_READERS.insert(0, (_read_marked, lambda path: path.startswith(_MARK)))


class _NamedText(io.StringIO):
    """Text whose errors gin can place."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name


@contextlib.contextmanager
def _read_marked(marked: str) -> Iterator[_NamedText]:
    path = Path(marked.removeprefix(_MARK))

    def resolve(match: re.Match[str]) -> str:
        return f"{match[1]}{_MARK + str(find_gin_file(match[3], path.parent))!r}"

    if path in _OPEN:
        ring = " -> ".join(p.name for p in [*_OPEN[_OPEN.index(path) :], path])
        raise GinConfigError(f"{path} includes itself ({ring}): remove one of these includes.")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise GinConfigError(f"The gin file {path} cannot be read: {e}.") from e
    _OPEN.append(path)
    try:
        yield _NamedText(_INCLUDE.sub(resolve, text), str(path))
    finally:
        _OPEN.pop()


# ---- names ----


def _deciding_scope(scope: str, selector: str, parameter: str) -> str | None:
    """The scope of the binding that a call in `scope` took `parameter` from; None when there is none."""
    parts = scope.split("/") if scope else []
    for i in range(len(parts), -1, -1):
        partial = "/".join(parts[:i])
        if parameter in gin.config._CONFIG.get((partial, selector), {}):
            return partial
    return None


def binding_name(scope: str, selector: str, parameter: str) -> str:
    """How a gin file names a parameter, `scope/Name.parameter`; a macro is its own name."""
    if selector == "gin.macro":
        return scope
    short = gin.config._REGISTRY.minimal_selector(selector)
    return f"{scope}/{short}.{parameter}" if scope else f"{short}.{parameter}"


def _did_you_mean_or(name: str, known: Sequence[str], what: str) -> str:
    return did_you_mean(name, known) or (f" {what}: {', '.join(known)}." if known else "")


def _parameters(configurable: Any) -> list[str]:
    return sorted(configurable.allowlist) if configurable.allowlist else parameters_of(configurable.wrapped)[0]


def _configurables_of_alf() -> dict[str, str]:
    """Module by name and by module.name, of what gin knows once it is imported; from the sources, since importing costs."""
    modules: dict[str, str] = {}
    several: set[str] = set()
    for path in sorted(_PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(_PACKAGE.parent).with_suffix("").parts)
        for match in _CONFIGURABLE.finditer(path.read_text(encoding="utf-8")):
            name = match[1] or match[2]
            several |= {name} & modules.keys()
            modules |= {name: module, f"{path.stem}.{name}": module}
    external = {f"{module}.{name}" for module, names in NAMES.items() for name in names}
    external |= {f"tf.keras.optimizers.{name}" for name in OPTIMIZERS}
    short = {name.split(".", i)[-1] for name in external for i in range(name.count(".") + 1)}
    return dict.fromkeys(short, _EXTERNAL) | {name: module for name, module in modules.items() if name not in several}


def _hint(message: str) -> str:
    registry = gin.config._REGISTRY
    if match := _NO_MODULE.search(message):
        return f" {what_instead(match[1]) or ''}".rstrip()
    if match := _NO_PARAMETER.search(message):
        if instead := what_instead(f"{match[1]}.{match[2]}"):
            return f" {instead}"
        try:
            configurable = registry.get_match(match[1])
        except KeyError:
            return ""
        return _did_you_mean_or(match[2], _parameters(configurable), "It takes")
    if match := _UNKNOWN.search(message):
        name = match[1].rpartition("/")[2]
        if instead := what_instead(name):
            return f" {instead}"
        short = {".".join(s.split(".")[-(name.count(".") + 1) :]) for s, _ in registry.items()}
        modules = _configurables_of_alf()
        if module := modules.get(name.removeprefix("alf.")):
            return f" It is in {module}: put `import {module}` in the gin file."
        found = nearest(name, sorted({*short, *modules}))
        hint = f" Did you mean {found!r}?" if found else ""
        if found and found not in short:
            return f"{hint} It is in {modules[found]}: put `import {modules[found]}` in the gin file."
        return (
            hint + " A name of your own is known once its module is imported: put `import your_module` in the gin file."
        )
    return ""


def _with_hint(message: str, source: str) -> str:
    """The message with what to do about it, before gin's lines on where it happened; in other words where gin's say little."""
    if match := _NO_VALUE.search(message):
        word, where = match.groups()
        # gin tells the first word of CartPole-v1 only.
        value = source.partition("=")[2].strip()
        word = value if value.startswith(word) and _BARE_TEXT.fullmatch(value) else word
        return (
            f"{word} is no value, in {source} {where}: text needs quotes ('{word}', and on a command line others around all "
            "of it), a function or a class is @NAME, truth values are True and False, nothing is None."
        )
    if match := _NO_MACRO.search(message):
        return f"%{match[1]} is used and never bound: write `{match[1]} = ...` in a gin file or a --gin_param."
    if _IN_BINDING.search(message):
        return f"{source} cannot be read as a binding, NAME.PARAMETER = VALUE: {message}"
    hint = _hint(message)
    first, newline, where = message.partition("\n")
    return f"{first.rstrip('.')}.{hint}{newline}{where}" if hint else message


@contextlib.contextmanager
def _readable_errors(source: str) -> Iterator[None]:
    try:
        yield
    except GinConfigError:
        raise
    except tokenize.TokenError as e:
        raise GinConfigError(f"A bracket or a string in {source} is opened and never closed: {e.args[0]}.") from e
    except (ValueError, LookupError, SyntaxError, RuntimeError, ImportError, OSError, AttributeError, TypeError) as e:
        message = str(e.args[0]) if isinstance(e, KeyError) and e.args else str(e)
        raise GinConfigError(_with_hint(message.strip() or f"{type(e).__name__} in {source}", source)) from e
