"""Trains ``tiny`` and its block drafter, and says how good they are.

    python -m training.train_tiny --corpus DIR --out DIR

writes ``tiny.safetensors``, ``block.safetensors`` and ``training_report.json`` into ``--out``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from training import acceptance_texts, corpora, drafter, evaluate, reasoning, target

from verify_attn.engine import tiny
from verify_attn.engine.block_model import BlockModel
from verify_attn.engine.drafters.block import BlockDrafter
from verify_attn.engine.model import Model

TEXTS = Path(__file__).parent.parent / "tests" / "engine" / "acceptance_texts"
BUDGET, GENERATED = 31, 256
LENGTHS = (2048, 16_384, 32_768)


def main() -> None:
    """Train, save, evaluate, report."""
    options = _options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.enable_cudnn_sdp(False)  # FlashAttention takes keys expanded over heads
    options.out.mkdir(parents=True, exist_ok=True)
    tokens, counts = corpora.stream(options.corpus, seed=0)
    stream = torch.from_numpy(tokens.astype("int32")).to(device)
    report: dict[str, object] = {
        "command": _command(options),
        "environment": {
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
            "torch": torch.__version__, "python": platform.python_version(),
        },
        "corpus": json.loads((options.corpus / "manifest.json").read_text()),
        "training_tokens": counts,
    }  # fmt: skip
    start = time.monotonic()

    target_file, block_file = (options.out / n for n in (tiny.TARGET_FILE, tiny.BLOCK_FILE))
    if options.target is None:
        target_log: list[dict[str, float]] = []
        trained = target.train(tiny.CONFIG, stream, options.minutes, options.tokens, target_log)
        _save(trained, target_file)
        report["target"] = {"minutes": options.minutes, "log": target_log}
        del trained
    else:
        _save(load_file(options.target), target_file)
        report["target"] = {"from": options.target.name}
    # From here on what the package will hold: rounded to bf16.
    weights = {n: w.to(device, torch.float32) for n, w in load_file(target_file).items()}
    block_log: list[dict[str, object]] = []
    block = drafter.train(
        tiny.CONFIG,
        tiny.DRAFTER,
        weights,
        stream,
        options.drafter_minutes,
        options.batch,
        block_log,
    )
    _save(block, block_file)
    report["drafter"] = {"minutes": options.drafter_minutes, "log": block_log}
    report["files"] = {file.name: _file(file) for file in (target_file, block_file)}
    report["training_s"] = round(time.monotonic() - start, 1)
    _write(report, options.out)

    torch.set_float32_matmul_precision("highest")
    model = Model(tiny.CONFIG, weights)
    block = {n: w.to(device, torch.float32) for n, w in load_file(block_file).items()}
    held_out = corpora.texts(options.corpus, held_out=True)
    held_out["reasoning"] = [
        "\n".join(reasoning.problem(seed + reasoning.HELD_OUT)) for seed in range(1000)
    ]
    lengths = LENGTHS if device.type == "cuda" else LENGTHS[:1]
    report["bits_per_byte_by_quarter_of_window"] = {
        str(length): {
            kind: evaluate.bits_per_byte(model, texts, length, options.bytes)
            for kind, texts in held_out.items()
        }
        for length in lengths
    }
    _write(report, options.out)
    speculator = BlockDrafter(BlockModel(tiny.DRAFTER, block))
    found: dict[str, object] = {}
    for temperature in (0.0, 1.0):
        for kind, texts in acceptance_texts.load(TEXTS).items():
            texts = texts[: options.texts]
            one = evaluate.acceptance(model, speculator, texts, GENERATED, BUDGET, temperature)
            found[f"{kind}, temperature {temperature:g}"] = one
            print(kind, temperature, one, flush=True)
    report["acceptance"] = {"budget": BUDGET, "tokens_a_text": GENERATED, **found}
    report["all_s"] = round(time.monotonic() - start, 1)
    _write(report, options.out)
    print(json.dumps(report["bits_per_byte_by_quarter_of_window"], indent=1))
    print(report["files"], report["training_s"], report["all_s"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--corpus", type=Path, required=True, help="what fetch.py filled")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=5.2, help="of the target's training")
    parser.add_argument("--drafter-minutes", type=float, default=2.8)
    parser.add_argument("--target", type=Path, help="target weights: train the drafter alone")
    parser.add_argument("--tokens", type=int, default=131_072, help="a step of the target")
    parser.add_argument("--batch", type=int, default=96, help="texts a step of the drafter")
    parser.add_argument("--bytes", type=int, default=200_000, help="of each kind, to evaluate on")
    parser.add_argument("--texts", type=int, default=8, help="of each kind, to go on with")
    return parser.parse_args()


def _command(options: argparse.Namespace) -> str:
    """What makes the same again; directories are whatever they are there."""
    numbers = (
        f"--{name.replace('_', '-')} {value}"
        for name, value in vars(options).items()
        if isinstance(value, int | float)
    )
    target = "" if options.target is None else f"--target {options.target.name} "
    return f"python -m training.train_tiny --corpus DIR --out DIR {target}{' '.join(numbers)}"


def _save(weights: target.Weights, path: Path) -> None:
    save_file({n: w.to("cpu", torch.bfloat16).contiguous() for n, w in weights.items()}, path)


def _file(path: Path) -> dict[str, object]:
    return {
        "bytes": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }


def _write(report: dict[str, object], out: Path) -> None:
    (out / "training_report.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
