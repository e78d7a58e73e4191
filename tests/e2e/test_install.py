# SPDX-License-Identifier: Apache-2.0
"""make install and make uninstall, from the build folder of the tests (tests/run), into a folder of their own: all that is promised is there, a program can be
built with it, and nothing is left in the end."""
import os
import shlex
import subprocess

import pytest
from command import ROOT, WEIR

PROGRAM = """#include <stdio.h>
#include <weir/weir.h>
int main(void) { return puts(weir_version()) < 0; }
"""


def make(target, stage):
    words = ["make", "-s", target, f"BUILD={WEIR.parent}", "PREFIX=/opt/weir", f"DESTDIR={stage}"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    if WEIR.parent.name != "build-check":
        pytest.skip("an installation changes the settings of the build folder: only from build-check, the tests' own")
    stage = tmp_path_factory.mktemp("stage")
    said = make("install", stage)
    here = stage / "opt" / "weir"
    version = subprocess.run([here / "bin" / "weir", "version"], capture_output=True, text=True, check=True).stdout.split()[1].strip(",")
    documents = {f"share/doc/weir/{path.name}" for path in (ROOT / "docs").iterdir()}
    expected = {"bin/weir", "include/weir/errors.def", "include/weir/weir.h", "lib/libweir.a", "lib/pkgconfig/weir.pc", *documents,
                *(f"lib/libweir.so{end}" for end in ("", f".{version.split('.')[0]}", f".{version}"))}
    assert files(here) == expected and files(stage) == {f"opt/weir/{name}" for name in expected}
    assert all((here / name).exists() for name in said.strip().split(": ")[1].split(", ")), said
    yield here, version
    assert "removed" in make("uninstall", stage)
    assert files(stage) == set()


def flags(here, *which):
    """What pkg-config says to whoever compiles there."""
    env = {**os.environ, "PKG_CONFIG_PATH": str(here / "lib" / "pkgconfig"), "PKG_CONFIG_SYSROOT_DIR": str(here.parents[1])}
    return shlex.split(subprocess.run(["pkg-config", *which, "weir"], env=env, capture_output=True, text=True, check=True).stdout)


def test_help_names_the_documents(installed):
    here, _ = installed
    text = subprocess.run([here / "bin" / "weir", "help", "bench"], capture_output=True, text=True, check=True).stdout
    assert "JSON.md" in text and "share/doc/weir" in text and "docs/JSON.md" not in text


def test_folders_alone_are_for_the_compiler(installed):
    """No define of a library that weir is made with."""
    here, _ = installed
    given = flags(here, "--cflags")
    assert given[0] == f"-I{here}/include" and all(flag.startswith("-I") for flag in given), given


@pytest.mark.parametrize("static", (False, True))
def test_a_program(installed, static, tmp_path):
    here, version = installed
    (tmp_path / "program.c").write_text(PROGRAM)
    how = ["-static"] if static else []
    libraries = flags(here, *(["--static"] if static else []), "--libs")
    subprocess.run(["cc", *how, "-Wall", "-Werror", *flags(here, "--cflags"), "program.c", "-o", "program", *libraries], cwd=tmp_path, check=True)
    run = subprocess.run([tmp_path / "program"], env={"LD_LIBRARY_PATH": "" if static else str(here / "lib")}, capture_output=True, text=True, check=True)
    assert run.stdout == f"{version}\n"
