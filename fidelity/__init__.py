"""Tell whether an LLM server computes the right next-token distribution on the paths evals never look at."""

__version__ = "0.1.0"
