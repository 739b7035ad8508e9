"""Hooks of the prefix, set before the user's script begins: the interpreter imports this module when it starts.

The folder of this file is the first in PYTHONPATH of the prefix process, and of no other. The module takes itself and
that entry away again, so that the script finds what it would find without flowdist, and imports the `sitecustomize`
that it has hidden.
"""

import os
import sys


def _boot() -> None:
    folder = os.path.dirname(__file__)  # noqa: PTH120  # pathlib is not imported yet
    sys.path.remove(folder)
    sys.path_importer_cache.pop(folder, None)
    before = set(sys.modules)
    sys.path.insert(0, folder.rpartition("/flowdist/runtime/")[0])
    try:
        from flowdist.runtime.prefix.template import begin  # found on the path that was set above
    finally:
        del sys.path[0]
    for name in set(sys.modules) - before:
        del sys.modules[name]  # the script imports them itself, if at all
    begin()


try:
    _boot()
except BaseException:
    # The interpreter would go on, and run the script without hooks.
    sys.excepthook(*sys.exc_info())
    os._exit(1)
_hidden = sys.modules.pop("sitecustomize")  # `watch` removes it when the script begins; the import system needs it now
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401  # the user's own, if there is one
except ImportError as error:
    sys.modules["sitecustomize"] = _hidden
    if error.name != "sitecustomize":
        raise
