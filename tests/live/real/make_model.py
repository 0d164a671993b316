"""Write a tiny Llama with a planted order of tokens; runs inside a server's own environment.

    python make_model.py SPEC_JSON OUT_DIR

Writes ``model.gguf`` (needs ``gguf``) or a Hugging Face folder (needs ``safetensors``), and
``truth.json``: the ids' texts and each token's successor.  No torch, nothing downloaded.

Weights are random, but for two things that are planted:

- The output row of a token's successor is that token's embedding, so a greedy answer follows the
  successors, by a margin that no rounding bridges.  They run in cycles of ``cycle`` printable
  tokens.  Every other token has a printable one's embedding and so joins a cycle.  A model that
  ``knows`` less than the whole is a draft that is always right, then always wrong.
- Dimension 0 is 1 in every embedding and nothing writes to it.  The output rows of tokens that
  are no printable text are -30 there: not even a sampled answer stops by itself.

``tied``: nothing planted, the output rows are the embeddings, so a greedy answer repeats its
last token: after the chat template that is <|assistant|>, whose text is empty.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
from bpe import BOS, CHAT_TEMPLATE, EOS, PAD, SPECIAL, Vocabulary  # beside this file

SIZE, WIDTH, INNER, LAYERS, HEADS, KV_HEADS, HEAD = 512, 128, 256, 2, 4, 2, 32
SHARPNESS = 8.0  # logit of the successor; the best of the others comes to about a third of it
ROPE_BASE, EPSILON = 10000.0, 1e-5

Weights = dict[str, np.ndarray]


def cycles(rng: np.random.Generator, printable: list[int], length: int) -> list[list[int]]:
    """The printable tokens in random order, cut into cycles; what is left joins the last."""
    order = [int(t) for t in rng.permutation(printable)]
    count = max(1, len(order) // length) if length else 1
    bounds = [i * length for i in range(count)] + [len(order)]
    return [order[a:b] for a, b in pairwise(bounds)]


def successors(cycle: list[int], knows: float) -> dict[int, int]:
    """The next token of the cycle; past the known share of it, wrongly, the one after that."""
    known = round(knows * len(cycle))
    steps = [1] * known + [2] * (len(cycle) - known)
    return {t: cycle[(i + steps[i]) % len(cycle)] for i, t in enumerate(cycle)}


def weights(spec: dict, vocabulary: Vocabulary) -> tuple[Weights, list[int]]:
    """Weights by their Hugging Face names, and each token's successor ([] where tied)."""
    rng = np.random.default_rng(spec["seed"])
    embedding = rng.standard_normal((SIZE, WIDTH))
    found: Weights = {"model.norm.weight": np.ones(WIDTH)}
    for layer in range(LAYERS):
        for name, shape in _layer_shapes().items():
            matrix = rng.standard_normal(shape) * 0.02 if len(shape) == 2 else np.ones(shape)
            if name in ("self_attn.o_proj", "mlp.down_proj"):
                matrix[0] = 0
            found[f"model.layers.{layer}.{name}.weight"] = matrix
    if spec["tied"]:
        return found | {"model.embed_tokens.weight": embedding}, []
    printable = vocabulary.printable()
    following: dict[int, int] = {}
    for cycle in cycles(rng, printable, spec["cycle"]):
        following |= successors(cycle, spec["knows"])
    embedding[:, 0] = 1
    output = np.zeros((SIZE, WIDTH))
    output[:, 0] = -30
    output[printable, 0] = 0
    chain = []
    for token in range(SIZE):
        alike = token if token in following else printable[token % len(printable)]
        embedding[token] = embedding[alike]
        chain.append(following[alike])
    for token, successor in following.items():
        output[successor] += embedding[token] * SHARPNESS / WIDTH
    return found | {"model.embed_tokens.weight": embedding, "lm_head.weight": output}, chain


def _layer_shapes() -> dict[str, tuple[int, ...]]:
    return {
        "input_layernorm": (WIDTH,),
        "self_attn.q_proj": (HEADS * HEAD, WIDTH),
        "self_attn.k_proj": (KV_HEADS * HEAD, WIDTH),
        "self_attn.v_proj": (KV_HEADS * HEAD, WIDTH),
        "self_attn.o_proj": (WIDTH, HEADS * HEAD),
        "post_attention_layernorm": (WIDTH,),
        "mlp.gate_proj": (INNER, WIDTH),
        "mlp.up_proj": (INNER, WIDTH),
        "mlp.down_proj": (WIDTH, INNER),
    }


def write_hf(out: Path, spec: dict, vocabulary: Vocabulary, found: Weights) -> None:
    """A Hugging Face folder, float32."""
    from safetensors.numpy import save_file

    ids = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": SIZE,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": spec["context"],
        "rms_norm_eps": EPSILON,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_BASE},
        "tie_word_embeddings": spec["tied"],
        "dtype": "float32",
        **ids,
    }
    added = [
        {"id": i, "content": text, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for i, text in enumerate(SPECIAL)
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    ids_of = {token: i for i, token in enumerate(vocabulary.tokens)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": level | {"use_regex": True},
        "decoder": level | {"use_regex": True},
        "model": {"type": "BPE", "vocab": ids_of, "merges": vocabulary.merges},
    }
    names = {"pad_token": SPECIAL[PAD], "bos_token": SPECIAL[BOS], "eos_token": SPECIAL[EOS]}
    files = {
        "config.json": config,
        "generation_config.json": ids,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": spec["context"],
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
            **names,
        },
    }
    for name, content in files.items():
        (out / name).write_text(json.dumps(content), encoding="utf-8")
    float32 = {name: np.ascontiguousarray(w, np.float32) for name, w in found.items()}
    save_file(float32, out / "model.safetensors", metadata={"format": "pt"})


def write_gguf(out: Path, spec: dict, vocabulary: Vocabulary, found: Weights) -> None:
    """The same model for llama.cpp, float32."""
    import gguf

    file = gguf.GGUFWriter(out / "model.gguf", "llama")
    file.add_name("tiny")
    file.add_file_type(gguf.LlamaFileType.ALL_F32)
    file.add_context_length(spec["context"])
    file.add_embedding_length(WIDTH)
    file.add_block_count(LAYERS)
    file.add_feed_forward_length(INNER)
    file.add_head_count(HEADS)
    file.add_head_count_kv(KV_HEADS)
    file.add_key_length(HEAD)
    file.add_value_length(HEAD)
    file.add_rope_dimension_count(HEAD)
    file.add_rope_freq_base(ROPE_BASE)
    file.add_layer_norm_rms_eps(EPSILON)
    file.add_vocab_size(SIZE)
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list(vocabulary.tokens)
    kinds = [gguf.TokenType.CONTROL] * len(SPECIAL)
    file.add_token_types(kinds + [gguf.TokenType.NORMAL] * (SIZE - len(SPECIAL)))
    file.add_token_merges([f"{a} {b}" for a, b in vocabulary.merges])
    file.add_bos_token_id(BOS)
    file.add_eos_token_id(EOS)
    file.add_pad_token_id(PAD)
    file.add_add_bos_token(False)
    file.add_chat_template(CHAT_TEMPLATE)
    for name, matrix in found.items():
        file.add_tensor(*_gguf_tensor(name, matrix))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_tensor(name: str, matrix: np.ndarray) -> tuple[str, np.ndarray]:
    stem = name.removesuffix(".weight")
    block = ""
    if stem.startswith("model.layers."):
        _, _, layer, stem = stem.split(".", 3)
        block = f"blk.{layer}."
    if stem.endswith(("q_proj", "k_proj")):
        # The two rotary halves of a head lie apart in Hugging Face's rows, and are neighbours here.
        rows = matrix.reshape(-1, 2, HEAD // 2, WIDTH).swapaxes(1, 2)
        matrix = rows.reshape(matrix.shape)
    return f"{block}{GGUF_NAMES[stem]}.weight", np.ascontiguousarray(matrix, np.float32)


def main(spec_json: str, out: Path) -> None:
    """Write the model and its truth; the directory must exist."""
    spec = json.loads(spec_json)
    vocabulary = Vocabulary(SIZE)
    found, chain = weights(spec, vocabulary)
    write = {"gguf": write_gguf, "hf": write_hf}[spec["form"]]
    write(out, spec, vocabulary, found)
    truth = {"texts": [vocabulary.text(t) for t in range(SIZE)], "successors": chain}
    (out / "truth.json").write_text(json.dumps(truth), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
