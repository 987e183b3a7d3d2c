"""The tree keeps its shape: small functions, key names in one place, contracts written down.

Each limit is a ratchet. Where a file must pass it, it is listed here with the reason.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles

import pytest

ROOT = Path(__file__).resolve().parent.parent
CODE = ("producer", "worker", "shared", "scripts")
LIBRARY = ROOT / "shared" / "forebay_shared" / "library"

MEDIAN_LINES = 9
P90_LINES = 30
MAX_LINES = 60
MAX_ARGUMENTS = 7
FILE_LINES = 250

LONGER_FILES: dict[str, tuple[int, str]] = {}
"""Path → the lines it may have, and why it is not split."""

KEY_FILES = ("shared/forebay_shared/keys.py", "shared/forebay_shared/library/10_keys.lua")
"""The only places where a key is spelled: for Python and for the function library."""

KEY_HEADS = (
    "queue|ready|tags|starts|waiting|depth|sizes|request|result|output|idempotency|refused|inbox"
    "|bell|control|grant|worker|limits|usage"
)
KEY_TAILS = (
    "flows|clock|leases|suspects|delayed|deadlines|workers|models|settings|sweep|preempting"
    "|ledger|layout|never|dead"
)
KEY = re.compile(rf"\bfb:|(?:^|:)(?:{KEY_HEADS}):(?!\s|:)|:(?:{KEY_TAILS})$")

LUA_KEY = re.compile(r"""\bprefix\s*\.\.[^,)\n]*|["']fb:[^"'\n]*""")
"""Not the names alone: hash fields may be called as keys are."""

# Put together from halves, since this file is searched too.
FORBIDDEN = (
    "/wo" + "rk/",
    "issue " + "#",
    "py" + "pi.org",
    "python" + "hosted.org",
    "npm" + "js.org",
    "deb." + "debian.org",
    "proxy.go" + "lang.org",
)

HEADER = ("Guarantee:", "KEYS", "ARGV:", "Returns:")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def tracked() -> list[Path]:
    """Every file of the project: in git, or new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return sorted(path for path in paths if path.is_file())


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def is_python(path: Path) -> bool:
    """By its ending, or for a script by its first line."""
    if path.suffix:
        return path.suffix == ".py"
    return b"python" in path.read_bytes().split(b"\n", 1)[0]


def code() -> list[Path]:
    return [path for path in tracked() if name_of(path).split("/")[0] in CODE]


def parsed() -> Iterator[tuple[Path, ast.Module]]:
    for path in filter(is_python, code()):
        yield path, ast.parse(path.read_text(), str(path))


def functions() -> Iterator[tuple[str, Function]]:
    for path, tree in parsed():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                yield f"{name_of(path)}:{node.lineno} {node.name}", node


def lines_of(function: Function) -> int:
    """From `def` to the last line, docstring and blank lines included."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def test_functions_are_short(
    capsys: pytest.CaptureFixture[str], record_testsuite_property: Callable[[str, object], None]
) -> None:
    """Median, ninetieth percentile and longest function stay within the limits."""
    lengths = {where: lines_of(node) for where, node in functions()}
    if len(lengths) < 2:
        pytest.skip("no functions yet")
    middle, p90 = median(lengths.values()), quantiles(lengths.values(), n=10)[-1]
    record_testsuite_property("function_lines_median", middle)
    record_testsuite_property("function_lines_p90", p90)
    with capsys.disabled():
        print(f"\nfunctions: {len(lengths)}, median {middle:g} lines, p90 {p90:g}")
    assert {where: n for where, n in lengths.items() if n > MAX_LINES} == {}
    assert middle <= MEDIAN_LINES
    assert p90 <= P90_LINES


def test_constructors_take_few_arguments() -> None:
    """A constructor with more arguments hides a record."""
    crowded = {
        where: count
        for where, node in functions()
        if node.name == "__init__" and (count := arguments_of(node)) > MAX_ARGUMENTS
    }
    assert crowded == {}


def arguments_of(function: Function) -> int:
    """All but self."""
    given = function.args
    return len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs) - 1


def test_files_are_short() -> None:
    """Files stay readable in one go; an exception that is no longer needed goes."""
    lengths = {name_of(path): path.read_bytes().count(b"\n") for path in code()}
    allowed = {name: limit for name, (limit, _) in LONGER_FILES.items()}
    assert {n: got for n, got in lengths.items() if got > allowed.get(n, FILE_LINES)} == {}
    assert {name for name in allowed if lengths.get(name, 0) <= FILE_LINES} == set()


def test_keys_are_spelled_in_one_place() -> None:
    """Other modules call keys.py; a key joined at use escapes the ACL and the cluster tag."""
    found = [where for path, tree in parsed() for where in key_literals(path, tree)]
    assert found == []


def key_literals(path: Path, tree: ast.Module) -> Iterator[str]:
    if name_of(path) in KEY_FILES:
        return
    docstrings = set(docstrings_of(tree))
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    for node in strings:
        if node not in docstrings and isinstance(node.value, str) and KEY.search(node.value):
            yield f"{name_of(path)}:{node.lineno} {node.value!r}"


def docstrings_of(tree: ast.Module) -> Iterator[ast.AST]:
    """Strings that stand as statements, also below an attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


@pytest.mark.parametrize(
    "source",
    [
        "'fb:pools'",
        "f'fb:{{{pool}}}:bell'",
        "f'queue:{name}'",
        "f'request:{i}'",
        "base + ':leases'",
    ],
)
def test_the_search_finds_keys(source: str) -> None:
    """The pattern finds what it is for, also in the constant parts of an f-string."""
    assert list(key_literals(ROOT / "any.py", ast.parse(source + ".encode()")))


@pytest.mark.parametrize("source", ["'request: gone'", "'leases'", "'http://worker:80/'", "1"])
def test_the_search_spares_other_strings(source: str) -> None:
    """Words that are no keys are free to use."""
    assert list(key_literals(ROOT / "any.py", ast.parse(f"f({source})"))) == []


def test_the_library_spells_keys_in_one_place() -> None:
    """Lua's key section alone joins the pool's prefix and a name."""
    found = [
        f"{name_of(path)} {joined}"
        for path in sorted(LIBRARY.glob("*.lua"))
        if name_of(path) not in KEY_FILES
        for joined in LUA_KEY.findall(without_comments(path.read_text()))
    ]
    assert found == []


def without_comments(lua: str) -> str:
    return re.sub(r"--[^\n]*", "", lua)


def test_every_function_of_the_library_states_its_contract() -> None:
    """Above each registered function: name, guarantee, keys, arguments, returns."""
    bare = [
        f"{name_of(path)}:{number} lacks {missing}"
        for path in sorted(LIBRARY.glob("*.lua"))
        for number, header in registrations(path.read_text())
        if (missing := [word for word in ("name(", *HEADER) if not states(header, word)])
    ]
    assert bare == []


def registrations(lua: str) -> Iterator[tuple[int, list[str]]]:
    """Line number of each registered function, and the comment lines directly above it."""
    lines = lua.splitlines()
    for callback in re.findall(r"register_function\{[^}]*callback = (\w+)", lua):
        begin = f"local function {callback}("
        at = start = next(n for n, line in enumerate(lines) if line.startswith(begin))
        while start and lines[start - 1].startswith("--"):
            start -= 1
        yield at + 1, lines[start:at]


def states(header: list[str], word: str) -> bool:
    if word == "name(":
        return any(re.match(r"-- \w+\(", line) for line in header)
    return any(line.startswith(f"-- {word}") for line in header)


def test_the_project_speaks_of_itself_alone() -> None:
    """No place on somebody's machine, no tracker's numbers, no registry's host."""
    found = [
        f"{name_of(path)}: {word}"
        for path in tracked()
        for word in FORBIDDEN
        if word.encode() in path.read_bytes()
    ]
    assert found == []
