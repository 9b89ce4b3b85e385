"""An asv environment over the Python that asv runs in: torch and the rest from there, the commit on top.

asv's own environments install every dependency anew and from the network; a GPU machine's torch would be
lost.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from asv.plugins.virtualenv import Virtualenv

HOST_PATH = "asv_host.pth"


class Overlay(Virtualenv):
    """Only for the version of Python that asv itself runs in."""

    tool_name = "overlay"
    matches_python_fallback = False

    def __init__(self, conf: Any, python: str, requirements: Any, tagged_env_vars: Any) -> None:
        super().__init__(conf, python, requirements, tagged_env_vars)
        self._executable = sys.executable

    @classmethod
    def matches(cls, python: str) -> bool:
        return python == sysconfig.get_python_version()

    def _setup(self) -> None:
        # Without its own setuptools: an old one would hide the host's, which builds the wheels.
        options = ["--quiet", "--no-download", "--no-setuptools", "--python", sys.executable]
        subprocess.run([sys.executable, "-m", "virtualenv", *options, self._path], check=True)
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        own = subprocess.run(
            [self.find_executable("python"), "-c", ask], check=True, capture_output=True, text=True
        ).stdout.strip()
        host = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
        Path(own, HOST_PATH).write_text("\n".join(dict.fromkeys(host)) + "\n", encoding="utf-8")

    def _build_project(self, repo: Any, commit_hash: str, build_dir: str) -> None:
        if _has_package(build_dir):
            super()._build_project(repo, commit_hash, build_dir)

    def _install_project(self, repo: Any, commit_hash: str, build_dir: str) -> None:
        # A commit older than the package goes without it: there everything is n/a, and nothing an error.
        if _has_package(build_dir):
            super()._install_project(repo, commit_hash, build_dir)


def _has_package(build_dir: str) -> bool:
    return Path(build_dir, "implementations", "__init__.py").is_file()
