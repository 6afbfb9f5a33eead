"""The rules of the house, read from the sources: rooms, sizes, docstrings, coverage."""

from __future__ import annotations

import ast
import functools
import pathlib
import re
import runpy
import tomllib
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).resolve().parent.parent
ALF = ROOT / "alf"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# From the top floor down; a room may import only rooms on floors below its own, and itself.
FLOORS = [
    {"bin"},
    {"trainers"},
    {"distributed"},
    {"drivers"},
    {"algorithms"},
    {"replay"},
    {"networks"},
    {"environments"},
    {"metrics"},
    {"export"},
    {"utils", "data_structures", "_tf", ""},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80

Function = ast.FunctionDef | ast.AsyncFunctionDef


def project_files() -> list[pathlib.Path]:
    """Every text file of the project that a person wrote."""
    top = [p for p in ROOT.iterdir() if p.is_file()]
    below = [p for d in ("alf", "benchmarks", "docs", "examples", "tests", ".ci") for p in (ROOT / d).rglob("*")]
    kept = {".py", ".gin", ".md", ".toml", ".lock", ".yml", ".json", ""}

    def written(path: pathlib.Path) -> bool:
        inside = path.relative_to(ROOT).parts
        hidden = any(part.startswith(".") and part != ".ci" for part in inside[:-1]) or "__pycache__" in inside
        return path.is_file() and path.suffix in kept and not hidden

    return sorted(p for p in top + below if written(p))


def sources() -> list[pathlib.Path]:
    return sorted(ALF.rglob("*.py"))


@functools.cache
def tree(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def module_name(path: pathlib.Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imports(path: pathlib.Path, everywhere: bool = True) -> Iterator[tuple[int, str]]:
    """(line, full name) of each alf module or member that a file imports; those inside functions if `everywhere`."""
    nodes = ast.walk(tree(path)) if everywhere else _at_import_time(tree(path))
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import: write the full name"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "alf")


def _at_import_time(node: ast.AST) -> Iterator[ast.AST]:
    """The statements that run when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _at_import_time(child)


def test_every_room_has_a_floor() -> None:
    rooms = {p.name for p in ALF.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert rooms <= set(FLOOR), f"rooms without a floor: {rooms - set(FLOOR)}: add them to FLOORS"


def test_imports_run_downwards() -> None:
    wrong = []
    for path in sources():
        room = room_of(module_name(path))
        for line, name in imports(path):
            target = room_of(name)
            target = target if target in FLOOR else ""
            if target != room and room != "" and FLOOR[target] <= FLOOR[room] and target not in FLOORS[-1]:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {room} imports {target}")
    assert not wrong, "imports that run upwards:\n" + "\n".join(wrong)


def test_nothing_imports_bin() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources()
        for line, name in imports(path)
        if room_of(name) == "bin" and room_of(module_name(path)) != "bin"
    ]
    assert not wrong, f"these import alf.bin: {wrong}"


def test_the_ground_floor_stands_on_its_own() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sources()
        if room_of(module_name(path)) in FLOORS[-1]
        for line, name in imports(path)
        if room_of(name) in FLOOR and room_of(name) not in FLOORS[-1]
    ]
    assert not wrong, "the ground floor imports a room above it:\n" + "\n".join(wrong)


def test_no_import_cycles() -> None:
    modules = {module_name(path): path for path in sources()}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        targets = {n if n in modules else n.rpartition(".")[0] for _, n in imports(path, everywhere=False)}
        graph[module] = {t for t in targets if t in modules and t != module and not module.startswith(t + ".")}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, "import cycle: " + " -> ".join([*trail[trail.index(module) :], module])
        if module not in done:
            for target in sorted(graph[module]):
                visit(target, (*trail, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_files_are_short() -> None:
    lengths = {p.relative_to(ROOT): p.read_text().count("\n") for p in project_files() if p.suffix == ".py"}
    long = {str(p): n for p, n in lengths.items() if n > MAX_FILE_LINES}
    assert not long, f"files over {MAX_FILE_LINES} lines: {long}"


def functions(path: pathlib.Path) -> Iterator[Function]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, Function))


def length(f: Function) -> int:
    """Lines of a function without its docstring."""
    assert f.end_lineno is not None
    first = f.body[0]
    documented = isinstance(first, ast.Expr) and ast.get_docstring(f) is not None
    doc_lines = first.end_lineno - first.lineno + 1 if documented and first.end_lineno is not None else 0
    return f.end_lineno - f.lineno + 1 - doc_lines


def test_functions_are_short() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{f.lineno} {f.name}: {length(f)} lines"
        for path in sources()
        for f in functions(path)
        if length(f) > MAX_FUNCTION_LINES
    ]
    assert not long, f"functions over {MAX_FUNCTION_LINES} lines, docstrings left out:\n" + "\n".join(long)


@functools.cache
def classes() -> dict[str, list[ast.ClassDef]]:
    found: dict[str, list[ast.ClassDef]] = {}
    for path in sources():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def _inherits_docstring(owner: ast.ClassDef, method: str) -> bool:
    """Whether a base class of alf documents the method that `owner` overrides."""
    for base in owner.bases:
        for definition in classes().get(ast.unparse(base).rpartition(".")[2], []):
            same = [n for n in definition.body if isinstance(n, Function) and n.name == method]
            if any(ast.get_docstring(n) for n in same) or _inherits_docstring(definition, method):
                return True
    return False


def _undocumented(node: ast.AST, trail: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (Function, ast.ClassDef)) and not child.name.startswith("_"):
            name = f"{trail}.{child.name}"
            setter = any(".setter" in ast.unparse(d) for d in child.decorator_list)
            inherited = isinstance(node, ast.ClassDef) and _inherits_docstring(node, child.name)
            if ast.get_docstring(child) is None and not (setter or inherited):
                yield name
            if isinstance(child, ast.ClassDef):
                yield from _undocumented(child, name)


def test_everything_public_has_a_docstring() -> None:
    missing = [name for path in sources() for name in _undocumented(tree(path), module_name(path))]
    assert not missing, "public names without a docstring:\n" + "\n".join(missing)


def test_everything_is_annotated() -> None:
    missing = []
    for path in sources():
        for f in functions(path):
            arguments = [*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs]
            bare = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls", "_cls")]
            if bare or f.returns is None:
                missing.append(f"{path.relative_to(ROOT)}:{f.lineno} {f.name} {bare}")
    assert not missing, "functions without full annotations:\n" + "\n".join(missing)


def test_library_code_neither_prints_nor_exits() -> None:
    forbidden = {"print", "exit", "quit", "sys.exit", "os._exit", "os.abort"}
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node.func)}"
        for path in sources()
        if room_of(module_name(path)) != "bin"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in forbidden
    ]
    assert not wrong, "library code that prints or exits:\n" + "\n".join(wrong)


# Objects that are not of alf, or that a user gives; so what they have is asked.
_FOREIGN = {
    ("alf/algorithms/algorithm.py", "apply_gradients"),
    ("alf/drivers/base.py", "batched"),
    ("alf/environments/agents_env.py", "metadata"),
    ("alf/environments/agents_env.py", "possible_agents"),
    ("alf/environments/agents_env.py", "render_mode"),
    ("alf/environments/checker.py", "batch_size"),
    ("alf/environments/vectorization.py", "close"),
    ("alf/trainers/run_index.py", "size"),
    ("alf/utils/common.py", "env"),
}


def _own_names() -> set[str]:
    """Every method, property and attribute that a class of alf defines."""
    names = set()
    for definition in (d for same in classes().values() for d in same):
        for node in ast.walk(definition):
            if isinstance(node, Function):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
    return names


def test_optional_parts_are_arguments_and_not_attributes_to_look_for() -> None:
    own, wrong = _own_names(), []
    for path in sources():
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("hasattr", "getattr"):
                continue
            asked = node.func.id == "hasattr" or len(node.args) == 3  # type: ignore[attr-defined]
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else None
            file = str(path.relative_to(ROOT))
            if asked and name in own and (file, name) not in _FOREIGN:
                wrong.append(f"{file}:{node.lineno}: {name}")
    assert not wrong, (
        "alf looks whether its own objects have these; make them arguments, or give all of them one:\n"
        + "\n".join(wrong)
    )


def test_keras_and_gin_are_taken_from_the_right_place() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Import)
        and any(alias.name.split(".")[0] in ("keras", "tf_keras") or alias.name == "gin.tf" for alias in node.names)
    ]
    assert not wrong, f"use tf.keras and `import gin` only: {wrong}"


# What can run code that a file holds, or makes objects of any class from it.
_UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "runpy"}
_UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}
# Pickles an exception in memory, to learn whether the pipe to its own parent process will take it; reads no file.
_PICKLES_IN_MEMORY = {"environments/process_environment.py"}


def _unsafe(path: pathlib.Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (name for name in names if name.split(".")[0] in _UNSAFE_MODULES)
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in _UNSAFE_CALLS or called.endswith((".load_model", ".unsafe_load", ".read_pickle")):
                yield called
            allowed = [k for k in node.keywords if k.arg in ("allow_pickle", "compile", "safe_mode")]
            yield from (f"{called}({ast.unparse(k)})" for k in allowed if ast.unparse(k.value) != "False")


def test_nothing_that_is_loaded_can_run_code() -> None:
    wrong = {str(path.relative_to(ALF)): list(_unsafe(path)) for path in sources()}
    wrong = {file: found for file, found in wrong.items() if found}
    for file in _PICKLES_IN_MEMORY:
        assert wrong.pop(file, None) == ["pickle"], f"{file} pickles no longer: take it out of the list"
    assert not wrong, f"these could run what a file says: {wrong}"


def test_what_can_run_code_is_found(tmp_path: pathlib.Path) -> None:
    lines = [
        "import pickle",
        "from yaml import load",
        "x = eval('1')",
        "np.load(p, allow_pickle=True)",
        "re.compile(p)",
    ]
    path = tmp_path / "unsafe.py"
    path.write_text("\n".join([*lines, "np.load(p, allow_pickle=False)", "f(compile=True)"]))
    assert sorted(_unsafe(path)) == ["eval", "f(compile=True)", "np.load(allow_pickle=True)", "pickle", "yaml"]


def test_no_file_names_a_place_on_some_machine() -> None:
    place = re.compile(r"(?<![\w.*])/(?:home|root|Users|work|opt|mnt|data)/\w|(?<![\w.*])/tmp/\w|file://|\.\./shared")
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in project_files()
        if path != pathlib.Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if place.search(line)
    ]
    assert not wrong, "paths of some machine:\n" + "\n".join(wrong)


def test_no_debris() -> None:
    debris = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in project_files()
        if path != pathlib.Path(__file__) and path.name != "LICENSE"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if debris.search(line)
    ]
    assert not wrong, f"finish these or open an issue: {wrong}"


def test_the_package_lists_every_room() -> None:
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    present = {module_name(p) for p in ALF.rglob("__init__.py")} | {"alf.examples"}
    assert listed == present, f"packages of pyproject.toml and folders differ: {sorted(listed ^ present)}"


def test_versions_are_bounded_as_the_build_notes_say() -> None:
    asked = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"], *_extras()]
    told = re.findall(r"^\| `([\w-]+[<>=~][^`]*)`", (ROOT / "BUILD.md").read_text(), re.MULTILINE)
    assert len(told) > 8
    for bound in map(Requirement, told):
        found = [r.specifier for r in map(Requirement, asked) if r.name == bound.name]
        assert found, f"pyproject.toml asks for no {bound.name}; BUILD.md bounds it"
        assert all(set(bound.specifier) <= set(specifier) for specifier in found), f"BUILD.md: {bound}; asked: {found}"


def test_the_onnx_packages_move_no_version_of_what_training_runs_on() -> None:
    onnx = {r.name: {s.operator for s in r.specifier} for r in map(Requirement, _extras("onnx"))}
    assert onnx == {"tf2onnx": {"=="}, "onnx": {"=="}, "onnxruntime": {">=", "<"}}
    numpy, *_ = (r for r in map(Requirement, PROJECT["project"]["dependencies"]) if r.name == "numpy")
    assert "<" in {s.operator for s in numpy.specifier}
    alone, beside = (_locked(f"requirements{kind}.lock") for kind in ("", "-dev"))
    assert onnx.keys() <= beside.keys() - alone.keys()
    moved = {
        name for name in ("tensorflow", "tf-keras", "numpy", "protobuf", "ml-dtypes") if alone[name] != beside[name]
    }
    assert not moved, f"with the ONNX packages pip chose other versions of {moved}"


def test_locks_are_resolved_from_what_is_asked_of_them_now() -> None:
    asked = runpy.run_path(str(ROOT / ".ci" / "locks.py"))["LOCKS"]
    assert asked.keys() == {path.name for path in ROOT.glob("*.lock")}
    for name, wanted in asked.items():
        header = (ROOT / name).read_text().partition("\n")[0]
        assert header == f"# Resolved by `make locks` for Python 3.11 on Linux: {' '.join(wanted)}"


def _extras(*names: str) -> list[str]:
    extras = PROJECT["project"]["optional-dependencies"]
    return [requirement for name in names or extras for requirement in extras[name]]


def _locked(file: str) -> dict[str, str]:
    lines = [line for line in (ROOT / file).read_text().splitlines() if line and not line.startswith("#")]
    return {name.lower().replace("_", "-"): version for name, version in (line.split("==") for line in lines)}


def test_every_room_has_tests() -> None:
    def has_code(room: pathlib.Path) -> bool:
        return any(p.name != "__init__.py" for p in room.rglob("*.py"))

    rooms = [p for p in ALF.iterdir() if p.is_dir() and has_code(p)]
    missing = [room.name for room in rooms if not list((ROOT / "tests" / room.name).glob("test_*.py"))]
    assert not missing, f"rooms without tests: {missing}"


COVERAGE = ROOT / "docs" / "coverage.md"
_ID = re.compile(r"[DESCAMPL]\d{2,3}[bc]?(?:[–-][DESCAMPL]?\d{2,3})?")
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?(?:::(\w+))?`")


def coverage_rows() -> list[list[str]]:
    rows = [line for line in COVERAGE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return [row for row in cells if row[0] != "id" and not set(row[0]) <= set("-: ")]


def test_coverage_ids_are_well_formed_and_unique() -> None:
    ids = [row[0] for row in coverage_rows()]
    odd = [name for name in ids if not _ID.fullmatch(name)]
    assert not odd, f"odd ids in docs/coverage.md: {odd}"
    assert len(ids) == len(set(ids)), "an id stands twice in docs/coverage.md"


def test_coverage_rows_name_tests_or_say_not_yet() -> None:
    empty = [row[0] for row in coverage_rows() if len(row) != 3 or not (_TEST.search(row[2]) or "not yet" in row[2])]
    assert not empty, f"rows of docs/coverage.md with neither a test nor 'not yet': {empty}"


@pytest.mark.parametrize("row", coverage_rows(), ids=lambda row: row[0])
def test_coverage_names_tests_that_exist(row: list[str]) -> None:
    for file, *names in _TEST.findall(row[-1]):
        path = ROOT / file
        assert path.exists(), f"{row[0]} names {file}, which does not exist"
        defined = {n.name for n in ast.walk(tree(path)) if isinstance(n, (Function, ast.ClassDef))}
        unknown = [name for name in names if name and name not in defined]
        assert not unknown, f"{row[0]} names {file}::{unknown}, which does not exist"


def test_what_ci_leaves_out_exists_and_is_a_part_of_its_test() -> None:
    lines = [line for line in (ROOT / "tests" / "thorough.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines == sorted(set(lines)), "tests/thorough.txt is in order, each case once"
    for line in lines:
        file, _, case = line.partition("::")
        defined = {n.name for n in ast.walk(tree(ROOT / "tests" / file)) if isinstance(n, Function)}
        assert case.partition("[")[0] in defined, f"tests/thorough.txt names {line}, which does not exist"
