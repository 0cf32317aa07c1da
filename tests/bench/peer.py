# SPDX-License-Identifier: Apache-2.0
"""Step time and memory beside PyTorch's FSDP2 or its tensor parallelism, run in turn on one machine.

    python tests/bench/peer.py --peer torch_peer.py [--mode fsdp2|tp] [--ranks 2 4] [--rounds 3]

torch_peer.py trains the same model with fully_shard or parallelize_module and prints one JSON line with "final": true
(median_step_ms, peak_rss_mib_max). Both: one thread a rank, a rank's whole share as one micro-batch. Text of the data set
does not matter; it is made up.
"""

import argparse
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = {"hidden": 512, "layers": 8, "heads": 8, "kv-heads": 4, "ffn": 1408, "vocab": 8192}
SEQ, BATCH = 256, 8
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def run(command):
    done = subprocess.run([str(part) for part in command], env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def orthant(folder, mode, ranks, dtype, steps):
    axis, data_ranks = ("dp", ranks) if mode == "fsdp2" else ("tp", 1)
    config = folder / "config.toml"
    model = "\n".join(f"{key.replace('-', '_')} = {value}" for key, value in MODEL.items() if key != "vocab")
    config.write_text(f"""
[model]
{model}
vocab = {MODEL["vocab"]}
[fsdp]
{'stage = 3' if mode == "fsdp2" else 'stage = 0'}
[train]
steps = {steps}
global_batch = {BATCH}
micro_batch = {BATCH // data_ranks}
seq_len = {SEQ}
precision = "{dtype}"
[data]
train = "{folder}/train.tokens"
[trace]
steps = 0
[run]
dir = "{folder}/runs"
""")
    output = run(["mpirun", "--oversubscribe", "--bind-to", "none", "-n", ranks, ROOT / "build/orthant", "train", config,
                  "--set", f"mesh.{axis}={ranks}"])
    folder = pathlib.Path(re.search(r"run folder (\S+)", output).group(1))
    steps = [json.loads(line)["step_ms"] for line in (folder / "metrics.jsonl").read_text().splitlines()][3:]
    memory = json.loads((folder / "summary.json").read_text())["memory"]
    return statistics.median(steps), max(rank["resident"] for rank in memory) / 2**20


def peer(arguments, ranks, dtype, steps):
    sizes = [part for key, value in MODEL.items() for part in (f"--{key}", value)]
    output = run([arguments.torchrun, "--nproc-per-node", ranks, arguments.peer, "--mode", arguments.mode, "--dtype", dtype, *sizes,
                  "--seq", SEQ, "--global-batch", BATCH, "--steps", steps])
    final = next(row for row in map(json.loads, filter(lambda line: line.startswith("{"), output.splitlines()))
                 if row.get("final"))
    return final["median_step_ms"], final["peak_rss_mib_max"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--torchrun", default=pathlib.Path(sys.executable).with_name("torchrun"), help="of this Python")
    parser.add_argument("--mode", choices=["fsdp2", "tp"], default="fsdp2")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        chance = random.Random(1)
        words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 8))) for _ in range(9000)]
        (folder / "text.txt").write_text("\n".join(" ".join(chance.choices(words, k=12)) for _ in range(20000)))
        run([ROOT / "build/orthant", "data", "prepare", folder / "text.txt", "--output", folder, "--vocab-size", MODEL["vocab"]])
        print("| ranks | type | Orthant ms | PyTorch ms | PyTorch / Orthant | Orthant MiB | PyTorch MiB |\n|---|---|---|---|---|---|---|")
        for ranks in arguments.ranks:
            for dtype in arguments.dtypes:
                ours, theirs = [], []
                for _ in range(arguments.rounds):
                    ours.append(orthant(folder, arguments.mode, ranks, dtype, arguments.steps))
                    theirs.append(peer(arguments, ranks, dtype, arguments.steps))
                a, b = (statistics.median(ms for ms, _ in runs) for runs in (ours, theirs))
                c, d = (max(mib for _, mib in runs) for runs in (ours, theirs))
                print(f"| {ranks} | {dtype} | {a:.0f} | {b:.0f} | {b / a:.2f} | {c:.0f} | {d:.0f} |", flush=True)


if __name__ == "__main__":
    main()
