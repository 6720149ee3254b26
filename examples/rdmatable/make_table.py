# SPDX-License-Identifier: BSD-3-Clause
"""make_table - how often each letter occurs in each line of texts, as a file of float32 rows.

Usage: make_table.py FILE-OR-DIRECTORY… OUTPUT    prints what each row is of, as "FILE:LINE TEXT"
"""

import array
import os
import string
import sys

COLUMNS = len(string.ascii_lowercase)


def files(paths):
    for path in paths:
        if os.path.isdir(path):
            for folder, folders, names in os.walk(path):
                folders.sort()
                yield from (os.path.join(folder, name) for name in sorted(names))
        else:
            yield path


def main() -> int:
    *paths, output = sys.argv[1:]
    seen = set()
    with open(output, "wb") as table:
        for path in files(paths):
            if os.path.realpath(path) in seen:
                continue
            seen.add(os.path.realpath(path))
            with open(path, encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(file, 1):
                    letters = line.lower()
                    counts = [letters.count(letter) for letter in string.ascii_lowercase]
                    length = sum(n * n for n in counts) ** 0.5
                    if length:
                        array.array("f", (n / length for n in counts)).tofile(table)
                        print(f"{path}:{number} {line.strip()}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main())
