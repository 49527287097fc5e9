"""Open questions for long answers: no known answer, no fitted length."""

from dataclasses import dataclass

import yaml

from fidelity.paths import data_dir


@dataclass(frozen=True)
class OpenPrompt:
    id: str
    user: str

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.user}]


def open_prompts() -> list[OpenPrompt]:
    """All of them, in the order of use; the second thread's own comes first."""
    text = (data_dir("prompts") / "open" / "long.yaml").read_text(encoding="utf-8")
    return [OpenPrompt(**entry) for entry in yaml.safe_load(text)]
