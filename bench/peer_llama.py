# SPDX-License-Identifier: Apache-2.0
"""llama.cpp with one model through its C interface, in the environment that peer.py builds. Argument: JSON of model, threads, context, mapped, cgroup.

The first line of output says what llama.cpp was built for. Then one request a line until the input ends, {"ids", "n", "ignore_eos"}: the ids are
evaluated and the likeliest token is taken n times, which are n - 1 decode passes. The answer has the tokens (null: an end token, the last one), for each
the distance of its logit from the second, and the seconds of prefill and of all decode passes. The clock runs in llama_decode and
llama_synchronize alone: that the token is looked for is not counted.
"""
import json
import pathlib
import sys
import time

import llama_cpp as x
import numpy as np

how = json.loads(sys.argv[1])
if how["cgroup"]:  # what Python and its libraries take is not held against llama.cpp's limit
    (pathlib.Path(how["cgroup"]) / "cgroup.procs").write_text("0", encoding="ascii")
x.llama_backend_init()
model_params = x.llama_model_default_params()
if how["mapped"]:
    # Repacked weights are a second copy in memory, which a limit below the file's size kills: the mapped file alone it is.
    model_params.load_mode, model_params.use_extra_bufts = x.LLAMA_LOAD_MODE_MMAP, False
model = x.llama_model_load_from_file(how["model"].encode(), model_params)
context_params = x.llama_context_default_params()
context_params.n_ctx = how["context"]
context_params.n_threads = context_params.n_threads_batch = how["threads"]
context = x.llama_init_from_model(model, context_params) if model else None
if not context:
    sys.exit(f"{how['model']} could not be loaded")
vocab = x.llama_model_get_vocab(model)
n_vocab = x.llama_vocab_n_tokens(vocab)
end_ids = [i for i in range(n_vocab) if x.llama_vocab_is_eog(vocab, i)]


def evaluate(ids):
    """Seconds."""
    tokens = (x.llama_token * len(ids))(*ids)  # the batch points into it
    batch = x.llama_batch_get_one(tokens, len(ids))
    begin = time.perf_counter()
    if x.llama_decode(context, batch) != 0:
        sys.exit("llama_decode failed")
    x.llama_synchronize(context)
    return time.perf_counter() - begin


def likeliest(banned):
    """The id and its margin; exact ties go to the lower id."""
    logits = np.ctypeslib.as_array(x.llama_get_logits_ith(context, -1), (n_vocab,)).copy()
    logits[banned] = -np.inf
    second, first = np.partition(logits, -2)[-2:]
    return int(np.argmax(logits)), float(first - second)


print(json.dumps(x.llama_print_system_info().decode()), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    x.llama_memory_clear(x.llama_get_memory(context), True)
    seconds, ids, margins = {"prefill": evaluate(request["ids"]), "decode": 0.0}, [], []
    while True:
        token, margin = likeliest(end_ids if request["ignore_eos"] else [])
        margins.append(margin)
        ids.append(None if token in end_ids else token)
        if ids[-1] is None or len(ids) == request["n"]:
            break
        seconds["decode"] += evaluate([token])
    print(json.dumps({"ids": ids, "margins": margins, "seconds": seconds}), flush=True)
