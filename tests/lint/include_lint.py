# SPDX-License-Identifier: Apache-2.0
"""Checks the layers that the include roots cannot (a dependency's dependency is visible too): which folder includes which.

Usage: include_lint.py ROOT     prints each offending line; exit code 1 if there is any.
"""

import pathlib
import re
import sys

STRATEGIES = ["dp", "fsdp", "tp", "pipeline"]  # siblings: none sees another
MAY_INCLUDE = {"core": {"core"}, "mesh": {"core", "mesh"},
               **{s: {"core", "mesh", s} for s in STRATEGIES},
               "launch": {"core", "mesh", "launch", *STRATEGIES}}
CORE_LOW_TO_HIGH = ["base", "memory", "trace", "config", "stream", "comm", "cuda", "shard", "data", "ckpt", "model", "optim", "train", "step"]
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^">]+)[">]')


def faults(path, root):
    parts = path.relative_to(root).parts
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target = match.group(1).split("/")
        where = f"{path.relative_to(root)}:{number}: {line.strip()}"
        if target[0] == "..":
            yield f"{where}: write includes from the root: <orthant/...>"
        if target[0] == "torch" and target[1] == "torch.h":
            yield f"{where}: 20 s of compile time: take narrow ATen headers"
        if target[0] != "orthant":
            continue
        if target[1] not in MAY_INCLUDE[parts[0]]:
            yield f"{where}: {parts[0]} may include {sorted(MAY_INCLUDE[parts[0]])}"
        elif parts[0] == target[1] == "core" and \
                CORE_LOW_TO_HIGH.index(target[2]) > CORE_LOW_TO_HIGH.index(parts[1]):
            yield f"{where}: core/{parts[1]} may include only lower folders of {CORE_LOW_TO_HIGH}"


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    files = [p for folder in MAY_INCLUDE for p in sorted((root / folder).rglob("*"))
             if p.suffix in {".hpp", ".cpp", ".cu", ".cuh"}]
    found = [fault for path in files for fault in faults(path, root)]
    print("\n".join(found) or f"{len(files)} files: every include respects the layers")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main())
