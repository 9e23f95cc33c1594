"""Recording a prompt costs no more than reading it: canonical prefill, sealed and stored, against transformers."""

from collections.abc import Sequence

import torch

from cyberkv.runtime.live import Live

from .common import Claim, best_in_turns_s, options, report
from .real_model import fresh_engine, load_peer, load_smollm2, prompt


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv, __doc__ or "")
    tokens_count = 256 if args.quick else 2048
    loaded = load_smollm2()
    peer = load_peer(loaded)
    with fresh_engine(loaded, args.folder) as engine, torch.no_grad():
        salt = 0

        def ours() -> None:
            nonlocal salt
            salt += 1  # another prompt each time, so that nothing is reused
            live = Live(engine)
            live.append(prompt(tokens_count, loaded.config.vocab_size, salt))
            live.next_logits()
            live.close()

        def theirs() -> None:
            ids = torch.tensor([prompt(tokens_count, loaded.config.vocab_size, salt)])
            peer(ids, use_cache=True, logits_to_keep=1)

        recorded_s, plain_s = best_in_turns_s(ours, theirs, repeats=1 if args.quick else 4)
    claims = [Claim(f"recording prefill of {tokens_count} tokens, speed vs transformers", plain_s / recorded_s, 0.95)]
    figures = {
        "recording prefill, tokens/s": tokens_count / recorded_s,
        "transformers prefill, tokens/s": tokens_count / plain_s,
    }
    return report(args, "Recording prefill", claims, figures)


if __name__ == "__main__":
    raise SystemExit(main())
