"""The wheel's build: dtopt's update kernel is compiled into it where there is a compiler (see docs/kernel.md).

Everything else stands in pyproject.toml.
"""

import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent


def prebuild() -> None:
    """Compile the kernel, for the TensorFlow that is installed, unless it was; without a compiler the build goes on."""
    subprocess.run([sys.executable, "-m", "optim.native.prebuild"], cwd=HERE, check=False)


class BuildWithKernel(build_py):
    """Also for `pip install -e .`, where the kernel stays among the sources."""

    def run(self) -> None:
        prebuild()
        self.data_files = self._get_data_files()  # looked up before there was a kernel
        super().run()


class PlatformWheel(bdist_wheel):
    """A wheel for this kind of machine, whatever the Python."""

    def finalize_options(self) -> None:
        super().finalize_options()
        prebuild()  # what it made decides the wheel's name
        self.root_is_pure = not any((HERE / "optim/native/prebuilt").glob("*.so"))

    def get_tag(self) -> tuple[str, str, str]:
        tag = super().get_tag()
        return tag if self.root_is_pure else ("py3", "none", tag[2])


setup(cmdclass={"build_py": BuildWithKernel, "bdist_wheel": PlatformWheel})
