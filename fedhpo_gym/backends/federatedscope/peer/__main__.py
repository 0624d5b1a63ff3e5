"""Start of the program: `python .../peer/__main__.py`, with requests on the standard input.

The interpreter does not have this package, whose root would import gymnasium. So the packages above
are made without their contents, and modules of the program have the same names in both.
"""

import sys
import types
from pathlib import Path


def main() -> None:
    """Answer requests until there are no more."""
    folder = Path(__file__).resolve().parent
    name = "fedhpo_gym.backends.federatedscope.peer"
    sys.path.pop(0)  # this folder, whose modules have longer names
    while name:
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
        name, folder = name.rpartition(".")[0], folder.parent
    from fedhpo_gym.backends.federatedscope.peer.loop import serve

    serve()


if __name__ == "__main__":
    main()
