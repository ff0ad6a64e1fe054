"""Importing large packages for about half of what it costs otherwise."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import PathFinder
from itertools import accumulate
from pathlib import Path
from types import ModuleType

# Keras imports them where they are installed: for its scikit-learn wrappers, its picture galleries, and data frames as
# training data. No role uses these, and they are 40 % of the import. What a role itself needs of them comes later.
UNUSED_BY_ROLES = ("matplotlib", "pandas", "sklearn")


@contextmanager
def importing() -> Iterator[None]:
    """Import in the block without the garbage collector.

    Modules live to the end of the process, but a collector that runs meanwhile looks through all of them again and
    again: a quarter of the time that TensorFlow, Prefect or MLflow need. Afterwards it leaves them alone.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def preload(*modules: str) -> None:
    """Import modules in a thread, for later: for a process that waits for others meanwhile, in which cores are idle."""
    threading.Thread(target=_import_all, args=(modules,), name="preload", daemon=True).start()


def _import_all(modules: Sequence[str]) -> None:
    with importing():
        for name in modules:
            with suppress(ImportError):  # the code that needs it will say so
                importlib.import_module(name)


def import_own(name: str) -> ModuleType:
    """Import a user's module by its dotted name: the working folder first, then PYTHONPATH, then what is installed.

    Python itself does not look there: all processes are started with `-P`, or a `flows/` of the user's would be taken
    for ours. What the module imports later is found in the working folder if it is nowhere else.
    """
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)


def locate_own(name: str, folder: Path) -> str | None:
    """The file from which `import_own` would take the module of `package.module:function` in `folder`; runs none of it.

    `importlib.util.find_spec` would import the package to look into it.
    """
    parts = accumulate(name.partition(":")[0].split("."), "{}.{}".format)
    first = next(parts)
    others = (finder.find_spec(first, None) for finder in sys.meta_path)  # of packages that are installed editable
    spec = PathFinder.find_spec(first, [str(folder), *sys.path]) or next(filter(None, others), None)
    for part in parts:
        spec = PathFinder.find_spec(part, spec.submodule_search_locations or []) if spec else None
    return spec.origin if spec else None


def import_tensorflow() -> None:
    """Import TensorFlow and Keras for a role: to be called before the first of our modules that imports them."""
    if "tensorflow" in sys.modules:
        return
    absent = [name for name in UNUSED_BY_ROLES if name not in sys.modules]
    # `None` is how Python marks a module that cannot be imported; Keras then goes without.
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        with importing():
            importlib.import_module("tensorflow")
            importlib.import_module("keras")
    finally:
        for name in absent:
            del sys.modules[name]
