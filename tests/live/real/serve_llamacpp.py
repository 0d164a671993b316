"""llama.cpp's own HTTP server from the xllamacpp wheel; runs inside that environment.

    python serve_llamacpp.py MODEL_GGUF PORT OPTIONS_JSON

Options: ``slots``, ``context`` (tokens a slot), ``speculation`` (null, "draft", "ngram"),
``draft`` (a GGUF file), ``n_max`` (draft tokens a step), ``synth_len`` (mean committed tokens a
step, pinned by llama.cpp whatever the draft says), ``ngram`` ([look-up length, draft length]).
"""

from __future__ import annotations

import json
import signal
import sys

import xllamacpp

ENDING = {signal.SIGTERM, signal.SIGINT}
KINDS = {"draft": "DRAFT_SIMPLE", "ngram": "NGRAM_SIMPLE"}


def parameters(model: str, port: int, options: dict) -> xllamacpp.CommonParams:
    """One thread, no GPU, metrics on."""
    p = xllamacpp.CommonParams()
    p.model.path = model
    p.model_alias = {"tiny"}
    p.hostnames = ["127.0.0.1"]
    p.port = port
    p.n_parallel = options["slots"]
    p.n_ctx = options["context"] * options["slots"]
    p.kv_unified = False
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
    p.endpoint_metrics = p.endpoint_slots = p.use_jinja = True
    p.ctx_shift = p.fit_params = False
    p.n_gpu_layers = 0
    if options["speculation"]:
        speculative = p.speculative
        kinds = type(speculative.types[0])
        name = f"COMMON_SPECULATIVE_TYPE_{KINDS[options['speculation']]}"
        speculative.types = [getattr(kinds, name)]
        speculative.draft.n_max = options["n_max"]
        speculative.draft.n_gpu_layers = 0
        if options["draft"]:
            speculative.draft.mparams.path = options["draft"]
        speculative.ngram_simple.size_n, speculative.ngram_simple.size_m = options["ngram"]
        if options["synth_len"] is not None:
            speculative.synth_len = options["synth_len"]
    return p


def main(model: str, port: str, options: str) -> None:
    """Serve until told to end."""
    # Blocked in every thread, so that none of the server's takes the signal that main waits for.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    server = xllamacpp.Server(parameters(model, int(port), json.loads(options)))
    print("listening on", server.listening_address, flush=True)
    signal.sigwait(ENDING)
    del server


if __name__ == "__main__":
    main(*sys.argv[1:])
