"""A server that collapses with context, to try `verify-attn sweep` on without a GPU.

    python examples/collapsing_server.py         # prints the sweep to run in another terminal

It is the scripted server of this repository's tests, with the step times of an attention that
does not split the KV: 32 ms plus 7.6 microseconds for every token of context, as the deployment in
examples/floors had (about 1.4 s a step at 185k tokens).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.live.truth import Decode, Prefill, Scenario, Tokenizer, TruthServer

SCENARIO = Scenario(
    engine="sglang",
    model="kimi-k2.6-stand-in",
    tokenizer=Tokenizer(inflation=1.39, context_limit=200_000),
    prefill=Prefill(per_token_s=3e-5, per_token2_s=6e-10),
    decode=Decode(
        step_s=0.032, per_context_token_s=7.6e-6, jitter=0.03, drafts=7, pattern=(3, 7, 5, 4, 6)
    ),
)

if __name__ == "__main__":
    with TruthServer(SCENARIO) as server:
        print(
            f"verify-attn sweep --url {server.url} --contexts 1k,4k,16k,64k --max-tokens 400 "
            "--geometry kimi-k2.6-tp8 --gpu rtx-pro-6000",
            flush=True,
        )
        try:
            while server.alive:
                time.sleep(0.5)
        except KeyboardInterrupt:
            pass
