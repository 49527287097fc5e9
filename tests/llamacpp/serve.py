"""llama.cpp's own HTTP server in this process, on one thread: prints its address, ends with its input.

python serve.py MODEL.gguf [OPTION=NUMBER ...]
"""

import sys

import xllamacpp

parameters = xllamacpp.CommonParams()
parameters.model.path = sys.argv[1]
parameters.port, parameters.n_ctx, parameters.n_parallel = 0, 2048, 1
# Its threads spin while they wait for one another: on cores that others use, one is faster than two.
parameters.cpuparams.n_threads = 1
parameters.endpoint_slots = parameters.endpoint_metrics = True
for option in sys.argv[2:]:
    name, value = option.split("=")
    setattr(parameters, name, int(value))
server = xllamacpp.Server(parameters)
sys.stdout.write(f"{server.listening_address}\n")
sys.stdout.flush()
sys.stdin.read()
