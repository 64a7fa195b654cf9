"""Compiles the native kernels when the package is built or installed, where there is a compiler."""

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_BUILD = "worker/native/build.py"


class NativeKernels(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the libraries into the wheel. Without a compiler the wheel has none, and the worker computes with torch."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        build = runpy.run_path(str(root / _BUILD))
        try:
            libraries = build["build_all"]()
        except build["BuildError"] as error:
            self.app.display_warning(f"native kernels are left out: {error}")
            return
        if not libraries or version == "editable":
            return  # an editable install finds them where they are
        for library in libraries:
            build_data["force_include"][str(library)] = str(library.relative_to(root))
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
