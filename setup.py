"""The build: dtopt's update kernel is compiled into the wheel where there is a compiler (see docs/kernel.md), and the
same commit gives the same bytes.

Everything else stands in pyproject.toml.
"""

import gzip
import os
import shutil
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).parent


def source_time() -> int:
    """When the commit was made, in seconds since 1970; in an unpacked sdist its files have that time."""
    if (HERE / ".git").exists() and shutil.which("git"):
        words = ["git", "log", "-1", "--format=%ct"]
        said = subprocess.run(words, cwd=HERE, capture_output=True, text=True, check=False).stdout
        if said.strip():
            return int(said)
    return int((HERE / "pyproject.toml").stat().st_mtime)


@cache  # the commands of one build ask for it one after the other
def prebuild(name: str) -> None:
    """Compile the kernel, for the TensorFlow that is installed, unless it was; without a compiler the build goes on.

    `dtopt-light` (tools/build.py) has none.
    """
    if name == "dtopt-light":
        return
    subprocess.run([sys.executable, "-m", "optim.native.prebuild"], cwd=HERE, check=False)


def rights(mode: int, is_folder: bool) -> int:
    """Those that a file has in every archive, whatever it had among the sources: all may read it."""
    return 0o755 if is_folder or mode & 0o100 else 0o644


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A file as it is in every archive of this commit: nobody's, of its time, with the same rights."""
    member.mtime = int(os.environ["SOURCE_DATE_EPOCH"])
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = rights(member.mode, member.isdir())
    return member


class SameSdist(sdist):
    """Archives that depend on the files alone."""

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):
        if format != "gztar":
            raise SystemExit(f"the sdist is made as gztar, not as {format}")
        path = f"{base_name}.tar.gz"
        when = int(os.environ["SOURCE_DATE_EPOCH"])
        with (
            open(path, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=when) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            for each in sorted(Path(base_dir).rglob("*")):
                archive.add(each, recursive=False, filter=anonymous)
        return path


class BuildWithKernel(build_py):
    """Also for `pip install -e .`, where the kernel stays among the sources."""

    def run(self) -> None:
        prebuild(self.distribution.get_name())
        self.data_files = self._get_data_files()  # looked up before there was a kernel
        super().run()


class ForMachine(Distribution):
    """Installed where libraries go (platlib), which auditwheel asks for, once the kernel is among the sources."""

    def has_ext_modules(self) -> bool:
        return any((HERE / "optim/native/prebuilt").glob("*.so"))


class PlatformWheel(bdist_wheel):
    """A wheel for this kind of machine, whatever the Python."""

    def finalize_options(self) -> None:
        prebuild(self.distribution.get_name())  # what it made decides the wheel's name
        super().finalize_options()

    def write_wheelfile(self, *arguments, **keywords) -> None:
        """What is packed next was copied with the rights of the sources."""
        super().write_wheelfile(*arguments, **keywords)
        for each in Path(self.bdist_dir).rglob("*"):
            each.chmod(rights(each.stat().st_mode, each.is_dir()))

    def get_tag(self) -> tuple[str, str, str]:
        tag = super().get_tag()
        return tag if self.root_is_pure else ("py3", "none", tag[2])


os.environ.setdefault("SOURCE_DATE_EPOCH", str(source_time()))
os.umask(0o022)  # rights are in the archives
setup(distclass=ForMachine, cmdclass={"build_py": BuildWithKernel, "bdist_wheel": PlatformWheel, "sdist": SameSdist})
