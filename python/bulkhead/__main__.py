# SPDX-License-Identifier: BSD-3-Clause
"""`python -m bulkhead` says what this is and how it is used: an app is run by bulkheadd, not by Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Sequence

from .testing import HostFailed, find_bulkheadd

PACKAGE = Path(__file__).resolve().parent

HELP = """\
bulkhead - the Python side of Bulkhead, a host process for clusters with GPUs and RDMA

This package does nothing by itself: bulkheadd embeds Python, loads plugins, and runs the apps that a
manifest names. Elsewhere the package can be imported, for type checkers and tests.

run an app     bulkheadd -c node.ini, with this in node.ini (object = module:Class):
                   [python]
                   path = /the/folder/of/the/module
                   [plugin stream]
                   library = stream
                   [app search]
                   object = search:Search
               --check says what is wrong with a manifest, and starts nothing
ask it         bulkheadctl status
               bulkheadctl call search ENDPOINT '{{"argument": 1}}'
check types    MYPYPATH={path} mypy --strict search.py
test it        PYTHONPATH={path} python3 -m pytest
               with `from bulkhead.testing import host`; help(bulkhead.testing) has an example
read           help(bulkhead); docs/python-api.md, installed as PREFIX/share/doc/bulkhead/python-api.md

package        {package}
bulkheadd      {bulkheadd}

usage: python3 -m bulkhead [--help | --version]
"""


def version() -> str:
    """What the bulkheadd that belongs to this package says of itself, or that there is none."""
    try:
        program = find_bulkheadd()
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except HostFailed as error:
        return str(error)
    except (OSError, subprocess.SubprocessError) as error:
        return f"not usable: {error}"
    return f"{done.stdout.strip()}, {program}"


def main(arguments: Sequence[str]) -> int:
    """The exit status: 0, or 64 for arguments that there are not."""
    if list(arguments) == ["--version"]:
        print(version())
        return 0
    if list(arguments) not in ([], ["-h"], ["--help"]):
        print(f"bulkhead: {' '.join(arguments)}: no such arguments; accepted: --help, --version. An app is run by bulkheadd: "
              "bulkheadd -c node.ini", file=sys.stderr)  # fmt: skip
        return 64
    print(HELP.format(path=PACKAGE.parent, package=PACKAGE, bulkheadd=version()), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
