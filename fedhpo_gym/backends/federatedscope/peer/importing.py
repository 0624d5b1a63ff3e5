"""Making FederatedScope importable on newer Pythons than it was written for."""

from __future__ import annotations

import importlib
import importlib.util
import platform
import sys
import types
from typing import Any


def stand_in(name: str, **attributes: Any) -> None:
    """Put a module where FederatedScope imports one that these courses never use."""
    if name in sys.modules or _exists(name):
        return
    module = types.ModuleType(name)
    module.__dict__.update(attributes)
    sys.modules[name] = module


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def prepare() -> dict[str, str]:
    """Import what courses need, and return the versions.

    Raises:
        ImportError: a package is missing.
    """
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    stand_in("torchvision", datasets=types.ModuleType("torchvision.datasets"))
    sparse = importlib.import_module("scipy.sparse")
    stand_in("scipy.sparse.csc", csc_matrix=sparse.csc_matrix)
    config = importlib.import_module("federatedscope.core.configs.config").global_cfg
    importlib.import_module("federatedscope.core.auxiliaries.worker_builder")
    importlib.import_module("federatedscope.core.fed_runner")
    return {
        "federatedscope": importlib.import_module("federatedscope").__version__,
        "layout": "current" if hasattr(config, "train") else "v0.1",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": importlib.import_module("numpy").__version__,
    }
