"""The import graph of the packages, read from the code, and the page `references/packages.md` about it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from reference_pages import GENERATED, row

import vidqa

PACKAGE = Path(vidqa.__file__).parent
PAGE = f"""# Packages of src/vidqa

{GENERATED}

A package imports only packages of lower layers, so there are no cycles. Code belongs in the lowest layer that has all
it needs. `tests/test_house_rules.py` lists the allowed imports of each package.
"""


def imports(module: ast.Module, *, for_types: bool = False) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import of a module, with `for_types` those too that only type checkers follow."""
    skipped = set() if for_types else set(map(id, _type_only(module)))
    for node in ast.walk(module):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{name.name}") for name in node.names)


def _type_only(module: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(module):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for inner in node.body:
                yield from ast.walk(inner)


def import_graph(folder: Path = PACKAGE) -> dict[str, set[str]]:
    """The imports of each package and module directly below `folder` from the others."""
    graph: dict[str, set[str]] = {path.stem: set() for path in folder.iterdir() if _is_node(path)}
    for path in folder.rglob("*.py"):
        importer = path.relative_to(folder).with_suffix("").parts[0]
        if importer in graph:
            names = (name.split(".") for _, name in imports(ast.parse(path.read_text(encoding="utf-8"))))
            graph[importer] |= {part for name in names if name[0] == folder.name for part in name[1:2]} & graph.keys()
    return {name: others - {name} for name, others in sorted(graph.items())}


def _is_node(path: Path) -> bool:
    return (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").is_file()


def layers(graph: dict[str, set[str]]) -> list[list[str]]:
    """The packages layer by layer: each imports only lower layers. Packages in a cycle are in none."""
    levels: list[list[str]] = []
    below: set[str] = set()
    while layer := [name for name, others in graph.items() if name not in below and others <= below]:
        levels.append(layer)
        below.update(layer)
    return levels


def page() -> str:
    """The graph as a table, layer by layer, and as a drawing of its transitive reduction."""
    graph = import_graph()
    lines = [PAGE, row("layer", "package", "content", "imports"), row(*["---"] * 4)]
    for number, layer in enumerate(layers(graph)):
        lines += [row(str(number), f"`{name}`", _purpose(name), ", ".join(sorted(graph[name]))) for name in layer]
    lines += ["", "```mermaid", "graph BT"]
    for name, others in graph.items():
        through = {far for other in others for far in _reached(graph, other)}
        lines += [f"  {name} --> {other}" for other in sorted(others - through)]
    return "\n".join([*lines, "```", ""])


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """All that `start` imports, also through others."""
    return graph[start] | {far for other in graph[start] for far in _reached(graph, other)}


def _purpose(name: str) -> str:
    """The first line of a package's or module's docstring."""
    package = PACKAGE / name / "__init__.py"
    file = package if package.is_file() else PACKAGE / f"{name}.py"
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n")[0]
