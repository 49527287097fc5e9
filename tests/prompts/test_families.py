from collections import Counter
from pathlib import Path

import pytest

from fidelity.errors import PromptError
from fidelity.prompts.families import Family, placeholders, render
from fidelity.prompts.loading import load_families, read_families
from fidelity.prompts.select import choose, find

GOOD = """\
family: colours
kind: fact
about: "colours of things"
frames:
  - system: "Answer with one word."
    history:
      - {role: user, content: "Are you there?"}
      - {role: assistant, content: "Yes"}
    user: "Items {filler}. As JSON {\\"a\\": 1}: {question}"
  - user: "{filler} {question}"
items:
  - {id: sky, question: "the sky?", answer: blue}
  - {id: snow, question: "snow?", answer: white}
"""


def write(folder: Path, text: str, name: str = "colours.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_messages(tmp_path: Path) -> None:
    (family,) = load_families([write(tmp_path, GOOD)])
    assert render(family.frames[0], family.items[0], "1 2 3") == [
        {"role": "system", "content": "Answer with one word."},
        {"role": "user", "content": "Are you there?"},
        {"role": "assistant", "content": "Yes"},
        {"role": "user", "content": 'Items 1 2 3. As JSON {"a": 1}: the sky?'},
    ]
    assert placeholders(family.frames[0].text()) == ["filler", "question"]


def test_braces_in_a_value_are_not_placeholders(tmp_path: Path) -> None:
    text = GOOD.replace('"the sky?"', '"{filler} and {answer}"')
    (family,) = load_families([write(tmp_path, text)])
    assert render(family.frames[1], family.items[0], "1")[0]["content"] == "1 {filler} and {answer}"


def test_scalars_stay_text(tmp_path: Path) -> None:
    text = (
        GOOD.replace("answer: blue", "answer: yes")
        .replace("answer: white", "answer: 007")
        .replace("sky", "on")
    )
    (family,) = load_families([write(tmp_path, text)])
    assert [(item.id, item.answer) for item in family.items] == [("on", "yes"), ("snow", "007")]


SKY = '  - {id: sky, question: "the sky?", answer: blue}\n'
USER = '  - user: "{filler} {question}"\n'


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("answer: blue", "answr: blue", "line 12, entry 'sky': the key 'answer' is missing", "rename it"),
        (", answer: blue", "", "line 12, entry 'sky': the key 'answer' is missing", "add 'answer: ...'"),
        ("question: \"the sky?\"", "queston: hm", "no frame uses the key 'queston'", "mean 'question'?"),
        (", question: \"the sky?\"", "", "the key 'question' is missing, and", "add 'question: ...'"),
        ("answer: blue", "answer: blue, answer: red", "the key 'answer' is written twice", "keep one"),
        ("answer: blue", "answer: [blue]", "entry 'sky': 'answer' must be a text", "quotes"),
        ("answer: blue", "answer: ", "entry 'sky': 'answer' must be a text", "quotes"),
        ("answer: blue", 'answer: ""', "entry 'sky': 'answer' is empty", None),
        ("id: sky", "id: the/sky", "entry 'the/sky': 'id' is 'the/sky': only letters", None),
        ("id: sky", "id: snow", "line 13, entry 'snow': the id is used twice", None),
        (SKY, SKY + SKY.replace("sky,", "air,"), "entry 'air': it makes the same prompt as", None),
        (SKY, "  - sky\n", "line 12, entry 1: this must be a mapping with the keys id, answer", None),
    ],
)  # fmt: skip
def test_a_broken_entry_costs_only_itself(
    tmp_path: Path, old: str, new: str, message: str, hint: str | None
) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    other = write(tmp_path, GOOD.replace("family: colours", "family: tints"), "tints.yaml")
    families, problems = read_families([path, other])
    assert len(problems) == 1
    assert message in problems[0].message
    assert problems[0].message.startswith(f"{path}, line 1")
    if hint:
        assert hint in str(problems[0].hint)
    assert [family.family for family in families] == ["colours", "tints"]
    assert len(families[1].items) == 2
    assert families[0].items[-1].id in ("sky", "snow")
    assert len(families[0].items) == GOOD.replace(old, new, 1).count("\n  - ") - 3
    with pytest.raises(PromptError) as refused:
        load_families([path, other])
    assert refused.value.message == problems[0].message


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("kind: fact", "knd: fact", "line 2: there is no key 'knd'", "did you mean 'kind'?"),
        ("kind: fact\n", "", "line 1: the key 'kind' is missing", "add 'kind: ...'"),
        ("family: colours", "family: my colours", "line 1: 'family' is 'my colours': only letters", None),
        ("    user:", "    usr:", "line 5, frame 1: the key 'user' is missing", "rename it to 'user'"),
        (USER, '  - user: "{fller} {question}"\n', "frame 2: '{filler}' stands 0 times", "mean 'fller'?"),
        (USER, '  - user: "{filler} {filler} {question}"\n', "frame 2: '{filler}' stands 2 times", None),
        (USER, '  - user: "{filler} {queston}"\n', "frame 2: the frame uses no key", "mean 'question'?"),
        ("role: assistant", "role: user", "frame 1: 'history' must take turns", None),
        ("role: assistant", "role: bot", "frame 1: 'role': input should be 'user' or 'assistant'", None),
        ("content: \"Yes\"", "text: \"Yes\"", "frame 1: the key 'content' is missing", None),
        (GOOD[GOOD.index("items:"):], "items: []\n", "line 11: 'items' must list at least one entry", None),
        (GOOD[GOOD.index("items:"):], "", "'items' must list at least one entry", None),
        (GOOD[GOOD.index("frames:"):GOOD.index("items:")], "frames: []\n", "line 4: 'frames' is empty", None),
        (GOOD, "- a\n- b\n", "a mapping with the keys family, kind, about, frames, items", None),
        (GOOD, "", "is empty", None),
        (USER, USER + '    user: "{filler}"\n', "frame 2: the key 'user' is written twice", None),
        ("kind: fact", "kind: fact\nkind: other", "line 3: the key 'kind' is written twice", "keep one"),
        ("about: \"colours of things\"", "about: colours: of things", "line 3: not valid YAML", "quotes"),
        ("kind: fact", "kind: !!python/object:os.system {}", "not valid YAML", None),
    ],
)  # fmt: skip
def test_a_broken_family_costs_only_its_file(
    tmp_path: Path, old: str, new: str, message: str, hint: str | None
) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    write(tmp_path, GOOD.replace("family: colours", "family: tints"), "tints.yaml")
    families, problems = read_families([tmp_path])
    assert any(message in problem.message for problem in problems), [problem.message for problem in problems]
    assert all(str(path) in problem.message for problem in problems)
    if hint:
        assert any(hint in str(problem.hint) for problem in problems)
    assert [family.family for family in families] == ["tints"]


def test_all_problems_are_listed_at_once(tmp_path: Path) -> None:
    write(tmp_path, GOOD.replace("answer: blue", "answr: blue").replace("kind:", "knd:"))
    write(tmp_path, "{", "broken.yaml")
    with pytest.raises(PromptError) as refused:
        load_families([tmp_path])
    assert refused.value.message.startswith("4 problems in the prompt files:")
    for part in (
        "broken.yaml, line 1",
        "there is no key 'knd' (did you mean 'kind'?)",
        "entry 'sky': the key 'answer'",
    ):
        assert part in refused.value.message


def test_one_family_name_in_two_files(tmp_path: Path) -> None:
    first, second = write(tmp_path, GOOD, "a.yaml"), write(tmp_path, GOOD, "b.yaml")
    with pytest.raises(PromptError, match="the family 'colours' is also in") as refused:
        load_families([tmp_path])
    assert str(first) in refused.value.message
    assert refused.value.message.startswith(str(second))


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="no prompt files"):
        load_families([tmp_path])
    with pytest.raises(PromptError, match=r"cannot read .*gone\.yaml: No such file"):
        load_families([tmp_path / "gone.yaml"])
    (tmp_path / "latin.yaml").write_bytes(b"family: caf\xe9")
    with pytest.raises(PromptError, match="not UTF-8"):
        load_families([tmp_path])


def test_shipped_prompts_are_many_and_distinct(families: list[Family]) -> None:
    prompts = [
        str(render(frame, item, "1"))
        for family in families
        for item in family.items
        for frame in family.frames[-1:]
    ]
    assert len(set(prompts)) == len(prompts) >= 320
    assert len(families) >= 6
    kinds = {family.kind for family in families}
    assert kinds >= {
        "fact",
        "arithmetic",
        "yes-no",
        "multiple-choice",
        "classifier",
        "json",
        "code",
        "multi-turn",
    }
    assert any(frame.system for family in families for frame in family.frames)
    assert any(not char.isascii() for family in families for frame in family.frames for char in frame.text())


def test_choice_depends_on_the_seed_alone(families: list[Family]) -> None:
    chosen, reserve = choose(families, 30, 7)
    again, _ = choose(families[::-1], 30, 7)
    other, _ = choose(families, 30, 8)
    ids = [prompt.id for prompt in chosen]
    assert ids == [prompt.id for prompt in again]
    assert set(ids) != {prompt.id for prompt in other}
    everything = [prompt.id for prompt in chosen + reserve]
    assert len(set(everything)) == len(everything) == sum(len(family.items) for family in families)


@pytest.mark.parametrize("count", [1, 6, 30, 100, 299])
def test_choice_is_spread_evenly(families: list[Family], count: int) -> None:
    chosen, reserve = choose(families, count, 0)
    drawn = Counter(prompt.family.family for prompt in chosen)
    assert len(chosen) == count
    for family in families:
        share = drawn[family.family]
        assert share >= min(len(family.items), max(drawn.values()) - 1)
    left = {prompt.family.family for prompt in reserve[: len(families)]}
    assert len(left) >= min(6, len(families))


def test_an_added_item_leaves_the_other_families_as_they_are(families: list[Family]) -> None:
    for n, family in enumerate(families):
        extra = family.items[0].model_copy(update={"id": "extra"})
        grown = [
            *families[:n],
            family.model_copy(update={"items": (*family.items, extra)}),
            *families[n + 1 :],
        ]
        before, after = (
            [prompt.id for prompt in choose(some, 60, 3)[0] if prompt.family.family != family.family]
            for some in (families, grown)
        )
        assert before == after


def test_included_prompts_come_first(families: list[Family]) -> None:
    chosen, reserve = choose(
        families, 3, 1, include=["capital/france", "capital/france"], only=["code", "json"]
    )
    assert chosen[0].id == "capital/france"
    assert {prompt.family.family for prompt in chosen[1:]} == {"code", "json"}
    assert {prompt.family.family for prompt in reserve} == {"code", "json"}


def test_choice_that_cannot_be_made(families: list[Family]) -> None:
    with pytest.raises(PromptError, match="no prompt 'capital/frnce'") as refused:
        choose(families, 3, 1, include=["capital/frnce"])
    assert refused.value.hint == "did you mean 'capital/france'?"
    with pytest.raises(PromptError, match="no prompt family 'capitl'") as refused:
        choose(families, 3, 1, only=["capitl"])
    assert refused.value.hint == "did you mean 'capital'?"
    with pytest.raises(PromptError, match=r"10000 distinct prompts are wanted and \d+ are there"):
        choose(families, 10000, 1)
    with pytest.raises(PromptError, match="no prompt 'nonsense'"):
        find(families, "nonsense")
