"""Only backends, the worker's hooks, the build of Horovod and the calls of other trainers know frameworks by name."""

import ast
import re
from pathlib import Path

import distdl_jupyter

ROOT = Path(distdl_jupyter.__file__).parent
#: They know frameworks because that is their subject.
MAY = ("backends/", "worker/watch/", "environment/", "compat/")
NAMES = re.compile(
    r"(?<![a-z0-9])(torch|pytorch|horovod|hvd|tensorflow|keras|deepspeed|lightning|transformers|accelerate|jax|jaxlib)"
    r"(?![a-z0-9])",
    re.IGNORECASE,
)
#: Modules that name one all the same, each with the reason.
EXCEPTIONS = {
    "advice/training.py": "a package that searches over settings has the name of a framework in its own",
    "cli/__init__.py": "'distdl install horovod' is a command of environment/",
    "clusters/azureml/checkup.py": "what the image holds that Azure ML builds",
    "clusters/azureml/job.py": "Azure ML's names of its images and of how it starts processes",
    "clusters/azureml/node/node_plan.py": "Azure ML's names of how it starts processes",
    "clusters/azureml/options.py": "what the image holds that Azure ML builds",
    "clusters/environment.py": "prefixes of variables that go along to other machines",
    "clusters/ssh/options.py": "the format of a hostfile",
    "core/collectives.py": "the files in which a call of a collective operation is found, and the remedies",
    "core/correctness.py": "the lines of users' code that are to be changed",
    "core/scaling.py": "what a backend is called whose gradients go otherwise, and the error that was measured for it",
    "core/options.py": "the help of the option that chooses a backend",
    "core/plan.py": "Azure ML's names of how it starts processes",
    "core/stacks.py": "the library whose frames are left out of the place where a collective operation was called",
    "form/arguments.py": "examples of a magic's help",
    "magic/extension.py": "IPython's name of what changes the text of a cell",
    "magic/lines.py": "examples of a magic's help",
    "magic/ranks_lines.py": "examples of a magic's help",
    "preflight/files.py": "calls of users' code that write files",
    "preflight/training.py": "calls of users' code that start processes",
    "preflight/reading.py": "names that users' code usually gives to modules",
    "registry.py": "the backend that is taken when none is chosen",
    "warm/modules.py": "variables that keep libraries from starting threads when they are loaded",
    "warm/preconditions.py": "prefixes of variables that libraries read when they are loaded",
    "worker/gpu_steps.py": "events of the GPU that the loaded library offers",
    "worker/identity.py": "variables of launchers that say which rank this is",
}


def words(path):
    """Yield what a module's code names: identifiers, imports and texts other than docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in prose:
                yield text
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.alias(name=text) | ast.arg(arg=text):
                yield text
            case ast.ImportFrom(module=str(text)) | ast.FunctionDef(name=text) | ast.ClassDef(name=text):
                yield text


def test_no_other_module_names_a_framework():
    found = {
        module
        for path in ROOT.rglob("*.py")
        if not (module := path.relative_to(ROOT).as_posix()).startswith(MAY) and any(map(NAMES.search, words(path)))
    }
    assert found - set(EXCEPTIONS) == set(), "a backend says it itself, or worker/watch/frameworks.py names it"
    assert set(EXCEPTIONS) - found == set(), "these name none any more: take them off the list"
