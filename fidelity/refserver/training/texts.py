"""Questions with a long answer that the model learns by heart, so that corrupted decoding can be read."""

from typing import Final

LONG_ANSWERS: Final[tuple[tuple[str, str], ...]] = (
    (
        "Explain in detail how a hash table handles collisions, with examples.",
        "# Hash Table Collisions\n\n"
        "A collision happens when two keys land in the same bucket. There are two common answers.\n\n"
        "**Chaining** keeps a short list in every bucket. If cat and dog share bucket 3, both stay "
        "in the list of bucket 3, and a lookup walks through it.\n\n"
        "**Open addressing** puts the second key into the next free bucket. If bucket 3 is taken, "
        "dog goes to bucket 4. A lookup walks on until it finds the key or an empty bucket.",
    ),
    (
        "Explain how a plant makes its food.",
        "A plant makes its food from light. Its leaves take in carbon dioxide from the air, and "
        "its roots take in water from the ground. With the energy of the sun the leaves turn both "
        "into sugar, and they give off oxygen. The plant uses the sugar to grow and keeps the rest "
        "for the night.",
    ),
    (
        "List the planets of the solar system and say one thing about each.",
        "1. Mercury is the smallest.\n"
        "2. Venus is the hottest.\n"
        "3. Earth has oceans.\n"
        "4. Mars is red.\n"
        "5. Jupiter is the largest.\n"
        "6. Saturn has wide rings.\n"
        "7. Uranus lies on its side.\n"
        "8. Neptune is the farthest from the sun.",
    ),
    (
        "Write a short story about a lighthouse.",
        "The keeper of the lighthouse lit the lamp every evening. One night a storm broke the "
        "window and the lamp went out. The keeper stood on the stairs with a lantern in each hand "
        "until the morning, and all the ships came home. The next day the whole town came with new glass.",
    ),
    (
        "What does a prefix cache do in a language model server?",
        "A prefix cache saves work. Two prompts that start with the same tokens need the same "
        "state for them, so the server keeps that state after the first prompt. When the second "
        "one comes, the server restores the saved state and computes only the tail. The answer "
        "must be the same as without the cache.",
    ),
    (
        "Write a Python function that returns the largest number of a list.",
        "```python\n"
        "def largest(numbers):\n"
        "    best = numbers[0]\n"
        "    for number in numbers:\n"
        "        if number > best:\n"
        "            best = number\n"
        "    return best\n"
        "```\n\n"
        "The function walks through the list once and keeps the largest number seen so far.",
    ),
)

THOUGHT: Final = "The question is short and I know the answer."
"""What the model thinks when thinking is on, before it closes the thought and answers."""
