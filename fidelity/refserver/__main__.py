"""`python -m fidelity.refserver`: serve one profile over HTTP until told to stop.

When it listens it writes one line of JSON to stdout (`port`, `pid`, `url`); everything else goes to stderr.
"""

import argparse
import os
import sys

from .settings import CHUNK, GUARDS, NAN_JSON, SPECULATIVE, STRATEGIES, Settings


def parse_arguments(arguments: list[str] | None = None) -> tuple[Settings, argparse.Namespace]:
    """Settings and the process's own options; exits 2, as argparse does, on a wrong command line."""
    default = Settings()
    parser = argparse.ArgumentParser("python -m fidelity.refserver", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0 takes a free one")
    add("--profile", default=default.profile, help="shipped profile, `random`, or a checkpoint folder")
    add("--fault", default=default.fault, help="NAME[:key=value...][,NAME...], or none")
    add("--guard", action="append", default=[], help=f"{', '.join(GUARDS)} or none; repeat or use commas")
    add("--strategy", default=default.strategy, choices=STRATEGIES)
    add("--cu", type=int, default=default.cu, help="virtual compute units: 16, 32, 64 act as TP 1, 2, 4")
    add("--noise", type=float, default=default.noise, help="relative run-to-run noise of expert outputs")
    add("--seed", type=int, default=default.seed)
    add("--page-size", type=int, help=f"tokens per KV page (default {CHUNK}, with no_buffer 1)")
    add("--max-cache-tokens", type=int, default=default.max_cache_tokens)
    add("--max-states", type=int, default=default.max_states)
    add("--max-running-requests", type=int, default=default.max_running_requests)
    add("--speculative", choices=SPECULATIVE, help="draft with the profile's head and verify (default: off)")
    add("--speculative-num-steps", type=int, default=default.speculative_num_steps, help="drafts at a time")
    add("--deterministic", action="store_true", help="compute each token in a forward of its own")
    add("--chunked-prefill-size", type=int, help="tokens of one prefill forward (default: any number)")
    add("--nan-json", default=default.nan_json, choices=NAN_JSON, help="what a NaN in a reply becomes")
    add("--enable-cache-report", action=argparse.BooleanOptionalAction, default=True)
    add("--watch-stdin", action="store_true", help="stop when stdin closes")
    options = parser.parse_args(arguments)
    guards = [name.strip() for given in options.guard for name in given.split(",")]
    page_size = options.page_size
    if page_size is None:
        page_size = 1 if options.strategy == "no_buffer" else CHUNK
    try:
        settings = Settings(
            profile=options.profile,
            fault=options.fault,
            guard=tuple(dict.fromkeys(name for name in guards if name not in ("", "none"))),
            strategy=options.strategy,
            cu=options.cu,
            noise=options.noise,
            seed=options.seed,
            page_size=page_size,
            max_cache_tokens=options.max_cache_tokens,
            max_states=options.max_states,
            nan_json=options.nan_json,
            enable_cache_report=options.enable_cache_report,
            max_running_requests=options.max_running_requests,
            chunked_prefill_size=options.chunked_prefill_size,
            speculative=options.speculative,
            speculative_num_steps=options.speculative_num_steps,
            deterministic=options.deterministic,
        )
    except ValueError as error:
        parser.error(str(error))
    return settings, options


def main() -> None:
    """Serve until SIGTERM, SIGINT or, with `--watch-stdin`, the end of stdin; then exit 0."""
    settings, options = parse_arguments()
    # Read by the BLAS when numpy is first imported; at these sizes its threads only wait for each other.
    for library in ("OPENBLAS", "OMP", "MKL", "VECLIB"):
        os.environ[f"{library}_NUM_THREADS"] = "1"
    from .process import serve

    sys.exit(serve(settings, options.host, options.port, options.watch_stdin))


if __name__ == "__main__":
    main()
