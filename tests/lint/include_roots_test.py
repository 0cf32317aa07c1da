# SPDX-License-Identifier: Apache-2.0
"""An include that a folder does not declare does not compile; one that it declares does.

Usage: include_roots_test.py COMPILER INCLUDE_DIRS_OF_PIPELINE (separated by ;)
"""

import subprocess
import sys
import tempfile


def compiles(compiler, include_dirs, header):
    with tempfile.NamedTemporaryFile("w", suffix=".cpp") as source:
        source.write(f"#include <{header}>\n")
        source.flush()
        flags = [f"-I{path}" for path in include_dirs if path]
        result = subprocess.run([compiler, "-std=c++20", "-fsyntax-only", *flags, source.name], capture_output=True, text=True)
    return result.returncode == 0, result.stderr


def main():
    compiler, include_dirs = sys.argv[1], sys.argv[2].split(";")
    legal, message = compiles(compiler, include_dirs, "orthant/core/stream/scheduler.hpp")
    assert legal, f"pipeline declares core/stream, yet its include fails:\n{message}"
    for header in ["orthant/fsdp/engine.hpp", "orthant/tp/sharded_factory.hpp", "orthant/launch/run_config.hpp"]:
        legal, message = compiles(compiler, include_dirs, header)
        assert not legal, f"pipeline could include <{header}>"
        assert "No such file" in message, message
    print("pipeline sees core/stream and sees neither fsdp, tp nor launch")


if __name__ == "__main__":
    main()
