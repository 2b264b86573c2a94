"""The rules that the code keeps, as tests: who may know whom, where heavy libraries live, how long things may be."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import import_graph
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from write_pages import generated

from vidqa.core.cli import SKILL_ROOT
from vidqa.core.files import annotations_in_folder
from vidqa.core.problem import REGISTRY, Code, Exit

SRC = SKILL_ROOT / "src"
MODULES = sorted((SRC / "vidqa").rglob("*.py"))
SCRIPTS = sorted((SKILL_ROOT / "scripts").glob("*.py"))
PROGRAMS = [*SCRIPTS, *sorted((SKILL_ROOT / "workflow").rglob("*.py"))]
ENGINE_ONLY = {"torch", "torchvision", "transformers", "accelerate", "peft", "safetensors", "vllm"}
LIGHT = {"vidqa.core.cli", "vidqa.core.run_folder", "vidqa.core.actions"}
HEAVY = {"pydantic", "pandas", "pyarrow", "av", "jinja2", "tokenizers", "docker", "numpy", "yaml", "huggingface_hub"}

# The packages that each imports. `references/packages.md` shows them as a graph.
MAY_KNOW = {
    "core": set(),
    "video": {"core"},
    "data": {"core", "video"},
    "families": {"core", "video", "data"},
    "spec": {"core", "data"},
    "planning": {"core", "video", "data", "families", "spec"},
    "evaluation": {"core", "video", "data", "spec"},
    "datatools": {"core", "video", "data", "families", "planning", "evaluation"},
    "jobs": {"core", "data", "families", "spec", "planning", "evaluation"},
    "preflight": {"core", "video", "data", "families", "spec", "planning", "evaluation", "jobs"},
    "serving": {"core", "video", "data", "families", "spec", "planning", "jobs"},
    "automl": {"core", "data", "spec", "evaluation", "jobs", "preflight"},
    "gaps": {"core", "video", "data", "spec", "evaluation", "datatools", "jobs", "preflight", "automl"},
    "benchmark": {"core", "video", "data", "spec", "evaluation", "jobs", "preflight"},
    "engine": {"core", "video", "data", "families", "spec", "planning", "evaluation", "serving", "gaps"},
}
# Inside the engine, from the parts of a model to what runs: a package imports earlier ones and its own floor.
ENGINE_ORDER = (
    ("model", "kernels"),
    ("families",),
    ("loading",),
    ("data",),
    ("export",),
    ("generators",),
    ("answering",),
    ("training",),
    ("actions", "rl", "quantize"),
)
ENGINE_ENTRY_POINTS = ("__main__", "train", "serve", "engine_thread", "prove")
BROAD_EXCEPTS = {
    "core/user_function_process.py main": "whatever a user's function raises becomes a problem with its line",
    "families/tokenizer.py _core": "the tokenizers library raises Exception itself for a file that it does not know",
    "core/cli.py run": "a bug in a script becomes a problem with a log file",
    "engine/__main__.py main": "the last place before torchrun",
    "engine/data/frames.py _decoded": "handed to whoever collects the frames, who would wait for ever without it",
    "video/pool.py run": "handed to whoever waits for the answer; the thread serves the others on",
    "engine/data/prefetch.py _work": "handed to the thread that trains, which raises it",
    "engine/progress.py _carried_out": "each tracker has exceptions of its own, and none may end a training",
}
PREFIXES = {
    "core": {"BUSY", "ENV", "INTERNAL", "INTERRUPTED", "JOB", "JOURNAL", "LOCK", "NOT", "REMOVAL", "SPEC", "USAGE"},
    "video": {"MEDIA", "VIDEO"},
    "data": {"DATA", "ENV", "HUB", "OUTPUT", "STORAGE", "USER"},
    "families": {"CHAT", "MODEL", "SAMPLE"},
    "spec": {"AUTOML", "SPEC"},
    "planning": {"QUANTIZE", "RESUME", "SAMPLE"},
    "evaluation": {"COMPARISON", "METRIC", "RESULTS", "REWARD"},
    "datatools": {"DATATOOLS"},
    "jobs": {"EXPORT", "JOB", "PLATFORM"},
    "preflight": {"BUDGET", "DATA", "ENV", "MODEL"},
    "serving": {"SERVE"},
    "automl": {"AUTOML", "STUDY"},
    "gaps": {"CURATION", "DEFT", "GAPS"},
    "benchmark": {"BENCHMARK"},
    "engine": {"ENGINE"},
}
BANNED_OPENERS = {"What", "Which", "Where", "How", "Of", "By", "As", "From", "For", "In", "On", "That"}
VAGUE = ("utils", "util", "helper", "manager", "misc", "common")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def shown(path: Path) -> str:
    return str(path.relative_to(SRC / "vidqa" if path.is_relative_to(SRC) else SKILL_ROOT))


def package_of(path: Path) -> str:
    """The first name below vidqa: a package, or a module that stands alone."""
    return path.relative_to(SRC / "vidqa").with_suffix("").parts[0]


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def test_only_the_engine_imports_torch_and_what_needs_it() -> None:
    outside = [path for path in [*MODULES, *PROGRAMS] if not path.is_relative_to(SRC / "vidqa" / "engine")]
    wrong = [
        f"{shown(path)}:{line} {name}"
        for path in outside
        for line, name in import_graph.imports(tree(path), for_types=True)
        if name.split(".")[0] in ENGINE_ONLY or name.startswith("vidqa.engine")
    ]
    assert wrong == []


def test_a_script_imports_nothing_heavy_when_it_starts() -> None:
    wrong = [
        f"{shown(path)}:{node.lineno}"
        for path in SCRIPTS
        for node in tree(path).body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
        if name and (name.split(".")[0] in HEAVY or (name.startswith("vidqa.") and name not in LIGHT))
    ]
    assert wrong == []


def test_packages_import_what_they_may_know() -> None:
    """Exactly: what no package uses any more is taken from the list, too."""
    assert import_graph.import_graph() == MAY_KNOW


def test_packages_are_in_no_cycle() -> None:
    assert {name for layer in import_graph.layers(MAY_KNOW) for name in layer} == set(MAY_KNOW)
    assert import_graph.layers({"a": {"b"}, "b": {"a"}, "c": set()}) == [["c"]]


def test_packages_of_the_engine_import_one_way() -> None:
    """A package of the engine imports those named before it in `ENGINE_ORDER`; the modules beside them, such as
    `distributed` and `problems`, import no package, except for the entry points, which may import all."""
    engine = SRC / "vidqa" / "engine"
    packages = [name for floor in ENGINE_ORDER for name in floor]
    rank = {name: number for number, floor in enumerate(ENGINE_ORDER) for name in floor}
    assert sorted(packages) == sorted(path.parent.name for path in engine.glob("*/__init__.py"))
    wrong = []
    for path in sorted(engine.rglob("*.py")):
        here = path.relative_to(engine).parts[0].removesuffix(".py")
        if here in ENGINE_ENTRY_POINTS:
            continue
        for line, name in import_graph.imports(tree(path), for_types=True):
            other = name.removeprefix("vidqa.engine.").split(".")[0]
            if name.startswith("vidqa.engine.") and other in rank and rank[other] > rank.get(here, -1):
                wrong.append(f"{shown(path)}:{line} {name}")
    assert wrong == []


def test_the_walk_of_a_training_step_is_true() -> None:
    """CONTRIBUTING names so many files in order; each but the first is imported by one before it."""
    text = (SKILL_ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("## A training step in ")[2].partition("\n## ")[0]
    walk = [SRC / "vidqa" / name for name in re.findall(r"^\| `(.+?\.py)` \|", section, re.MULTILINE)]
    assert 20 < len(walk) <= 30 and section.startswith(f"{len(walk)} files")
    imported: set[str] = set()
    for number, path in enumerate(walk):
        dotted = ".".join(path.relative_to(SRC).with_suffix("").parts)
        assert number == 0 or any(name == dotted or name.startswith(f"{dotted}.") for name in imported), dotted
        for place in (path, path.parent / "__init__.py", *_interfaces(path)):
            imported |= {name for _, name in import_graph.imports(tree(place), for_types=True)}


def _interfaces(path: Path) -> list[Path]:
    """The `__init__` of each package that a file imports: its names are those of modules inside."""
    names = {name.rpartition(".")[0] for _, name in import_graph.imports(tree(path), for_types=True)}
    places = (SRC.joinpath(*name.split("."), "__init__.py") for name in names if name.startswith("vidqa."))
    return [place for place in places if place.is_file()]


def test_packages_that_have_prefixes_exist() -> None:
    assert set(PREFIXES) - set(MAY_KNOW) == set()


def test_the_environment_is_read_in_one_module() -> None:
    def reads(node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            return node.attr in ("environ", "environb", "getenv", "putenv")
        return isinstance(node, ast.ImportFrom) and node.module == "os" and node.names[0].name in ("environ", "getenv")

    found = {shown(path) for path in [*MODULES, *PROGRAMS] for node in ast.walk(tree(path)) if reads(node)}
    assert found == {"core/environment.py"}


def test_what_is_removed_is_removed_by_one_function() -> None:
    """`core.files.remove` proves that its target lies in the folder that owns it."""
    ways = {"unlink", "rmtree", "rmdir", "removedirs"}

    def removes(node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute):
            return node.attr in ways or ast.unparse(node) == "os.remove"
        return isinstance(node, ast.ImportFrom) and any(name.name in ways for name in node.names)

    removing = {shown(path) for path in [*MODULES, *PROGRAMS] for node in ast.walk(tree(path)) if removes(node)}
    assert removing == {"core/files.py"}


def test_one_place_names_the_annotations_of_a_folder() -> None:
    """So that no program looks for them in another way; a name that no file can have is no folder's."""
    assert {shown(path) for path in MODULES if '"annotations.jsonl"' in path.read_text("utf-8")} == {"core/files.py"}
    assert annotations_in_folder("x" * 300) is None


def test_broad_excepts_are_the_known_ones() -> None:
    found = set()
    for path in [*MODULES, *PROGRAMS]:
        for function in functions(path):
            for node in ast.walk(function):
                if isinstance(node, ast.ExceptHandler) and _is_broad(node.type):
                    found.add(f"{shown(path)} {function.name}")
        for node in tree(path).body:
            if isinstance(node, ast.Try):
                assert not any(_is_broad(handler.type) for handler in node.handlers), shown(path)
    assert found == set(BROAD_EXCEPTS)


def _is_broad(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    each = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(isinstance(name, ast.Name) and name.id in ("Exception", "BaseException") for name in each)


def test_files_and_functions_stay_short() -> None:
    long = [f"{shown(path)}: {lines} lines" for path in MODULES if (lines := _lines(path)) > 420]
    long += [f"{shown(path)}: {lines} lines" for path in PROGRAMS if (lines := _lines(path)) > 160]
    for path in [*MODULES, *PROGRAMS]:
        for function in functions(path):
            length = (function.end_lineno or function.lineno) - function.lineno + 1
            if length > 60:
                long.append(f"{shown(path)} {function.name}: {length} lines")
    assert long == []


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_every_file_says_what_it_is_for() -> None:
    assert [shown(path) for path in [*MODULES, *PROGRAMS] if not ast.get_docstring(tree(path))] == []


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    openers: list[str] = []
    for path in [*MODULES, *PROGRAMS]:
        docstrings = (ast.get_docstring(node) for node in ast.walk(tree(path)) if isinstance(node, documented))
        openers += [f"{shown(path)}: {text[:60]}" for text in docstrings if text and text.split()[0] in BANNED_OPENERS]
    assert openers == []


def test_names_of_modules_say_something() -> None:
    parts = {part for path in [*MODULES, *PROGRAMS] for part in path.relative_to(SKILL_ROOT).with_suffix("").parts}
    assert [part for part in parts if any(word in VAGUE for word in part.strip("_").split("_"))] == []


# Names that say nothing of what they hold. The packages that still have some, and how many, are in banned_names.json:
# a count may only fall, and a package that reaches 0 leaves the file.
BANNED_NAMES = {
    *("each", "found", "made", "given", "taken", "told", "said"),
    *("asked", "wanted", "seen", "known", "kept", "of", "way"),
}
BANNED_MODULES = {
    *("adding", "after", "ahead", "asking", "beginning", "brief", "carrying_out", "collection", "cut_off"),
    *("deciding", "doors", "ending", "feed", "finding", "findings", "kept", "lifeline", "likely", "looks"),
    *("measuring", "moves", "place", "places", "proposing", "quarantine", "readback", "recomputing"),
    *("replies", "shapes", "silence", "stand_in", "stored", "thinking", "together", "transcript", "turn"),
}
BANNED_PHRASES = re.compile(
    r"(cannot|is not to|not to) be had|answered by writing|always giving the most common|what guessing would score"
    r"|too plain to tell|be one but for|is reached without it|who works on it|it is no job of|never guesses",
    re.IGNORECASE,
)
STILL_BANNED = Path(__file__).with_name("banned_names.json")


def banned_places() -> Counter[str]:
    """How many banned names a package, a script or a page has; pages have phrases."""
    counts: Counter[str] = Counter()
    for path in [*MODULES, *PROGRAMS]:
        owner = package_of(path) if path.is_relative_to(SRC) else shown(path)
        text = path.read_text(encoding="utf-8")
        counts[owner] += len(BANNED_PHRASES.findall(text)) + (path.is_relative_to(SRC) and path.stem in BANNED_MODULES)
        for node in ast.walk(tree(path)):
            named = getattr(node, "id", None) or getattr(node, "arg", None) or getattr(node, "name", None)
            counts[owner] += not isinstance(node, ast.keyword) and str(named).strip("_").lower() in BANNED_NAMES
    for page in SKILL_ROOT.glob("[!.]*/**/*.md"):
        counts[str(page.relative_to(SKILL_ROOT))] += len(BANNED_PHRASES.findall(page.read_text(encoding="utf-8")))
    for page in SKILL_ROOT.glob("*.md"):
        counts[page.name] += len(BANNED_PHRASES.findall(page.read_text(encoding="utf-8")))
    return +counts


def test_banned_names() -> None:
    """`PYTHONPATH=tests/generate python tests/test_house_rules.py` writes the counts of today."""
    allowed = json.loads(STILL_BANNED.read_text(encoding="utf-8"))
    more = {owner: count for owner, count in banned_places().items() if count > allowed.get(owner, 0)}
    assert more == {}, f"allowed: { {owner: allowed.get(owner, 0) for owner in more} }"


def declared_codes() -> dict[Path, dict[str, str]]:
    """The codes of every module that declares some: the Python name and the code's own name."""
    found: dict[Path, dict[str, str]] = defaultdict(dict)
    for path in MODULES:
        for node in tree(path).body:
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                continue
            if isinstance(node.value.func, ast.Name) and node.value.func.id == Code.__name__:
                (target,), name = node.targets, ast.literal_eval(node.value.args[0])
                assert isinstance(target, ast.Name)
                found[path][target.id] = name
    return found


def test_codes_are_declared_in_problems_modules_and_named_for_their_package() -> None:
    foundation = {
        f"core/{name}.py" for name in ("_optional", "actions/__init__", "cli", "files", "journal", "locks", "problem")
    }
    wrong = []
    for path, codes in declared_codes().items():
        if not path.name.endswith("problems.py") and shown(path) not in foundation:
            wrong.append(f"{shown(path)} declares codes and is no problems.py")
        wrong += [
            f"{shown(path)} {name}"
            for name in codes.values()
            if name.split("_")[0] not in PREFIXES.get(package_of(path), set())
        ]
    assert wrong == []


def test_every_code_is_used() -> None:
    """Imported by its name from where it is declared, or taken from that module as an attribute."""
    used: set[tuple[str, str]] = set()
    for path in MODULES:
        modules: dict[str, str] = {}
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in node.names:
                    used.add((node.module, name.name))
                    modules[name.asname or name.name] = f"{node.module}.{name.name}"
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                used.add((modules[node.value.id], node.attr))
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                used.add((".".join(path.relative_to(SRC).with_suffix("").parts), node.id))
    scripts = "\n".join(path.read_text(encoding="utf-8") for path in PROGRAMS)
    unused = [
        f"{shown(path)} {name}"
        for path, codes in declared_codes().items()
        for name in codes
        if (".".join(path.relative_to(SRC).with_suffix("").parts), name) not in used and name not in scripts
    ]
    assert unused == []


def test_codes_have_texts_and_the_page_lists_them_all() -> None:
    generated()  # imports the problems of every package
    page = (SKILL_ROOT / "references" / "troubleshooting_codes.md").read_text(encoding="utf-8")
    declared = {name for codes in declared_codes().values() for name in codes.values()}
    assert declared == set(REGISTRY)
    assert [name for name in declared if f"| `{name}` |" not in page] == []
    for code in REGISTRY.values():
        assert code.meaning.endswith(".") and len(code.remedy) > 5, code.name
        assert code.exit_code in list(Exit) and code.exit_code != Exit.OK, code.name


@pytest.mark.parametrize("path", sorted((SKILL_ROOT / "schemas").glob("*.schema.json")), ids=lambda path: path.name)
def test_schemas_are_strict(path: Path) -> None:
    """No table takes keys it does not name, unless it says of what kind its values are."""
    schema = json.loads(path.read_text(encoding="utf-8"))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"

    def loose(node: object, where: str) -> Iterator[str]:
        if isinstance(node, dict):
            if (node.get("type") == "object" or "properties" in node) and "properties" not in where.split("/")[-1:]:
                more = node.get("additionalProperties", True)
                if more is not False and not (isinstance(more, dict) and "properties" not in node):
                    yield where
            for name, inner in node.items():
                yield from loose(inner, f"{where}/{name}")
        elif isinstance(node, list):
            for place, inner in enumerate(node):
                yield from loose(inner, f"{where}/{place}")

    assert list(loose(schema, "")) == []


def test_the_lock_holds_what_the_project_asks_for() -> None:
    project = tomllib.loads((SKILL_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    text = (SKILL_ROOT / "requirements.lock").read_text(encoding="utf-8")
    locked: dict[str, list[str]] = defaultdict(list)
    for line in text.splitlines():
        name, _, version = line.partition(";")[0].strip().partition("==")
        assert version, f"not pinned: {line}"
        locked[canonicalize_name(name.split("[")[0])].append(version)
    wrong = []
    for requirement in map(Requirement, asked):
        versions = locked[canonicalize_name(requirement.name)]
        if not versions or not all(requirement.specifier.contains(version) for version in versions):
            wrong.append(f"{requirement}: {versions}")
    assert wrong == [] and "://" not in text


if __name__ == "__main__":
    STILL_BANNED.write_text(json.dumps(dict(sorted(banned_places().items())), indent=2) + "\n", encoding="utf-8")
