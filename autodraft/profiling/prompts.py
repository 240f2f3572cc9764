"""What a pair is asked when its prior is learned: short tasks of many kinds, written for this."""

from typing import Final

PROMPTS: Final = (
    "Explain to a neighbour why bread dough rises, in one short paragraph.",
    "Write a Python function that returns the three largest numbers of a list.",
    "List six things to pack for a rainy weekend in the mountains.",
    "Summarise in two sentences: The old mill by the river stood empty for forty years. Last "
    "spring two sisters bought it, repaired the wheel and began to grind flour again. Now the "
    "village bakes its own bread, and visitors come on Sundays to watch the stones turn.",
    "A train leaves at 9:40 and travels 150 km at 60 km per hour. When does it arrive? Show the "
    "steps.",
    "Write a polite letter that asks a landlord to repair a dripping tap.",
    "What is the difference between weather and climate?",
    "Turn this list into a JSON object with name and age: Mara is 31, Ilya is 27, Tomas is 45.",
    "Tell a short story about a lighthouse keeper who finds a bottle.",
    "Translate into French: The library opens at ten and closes at six, except on Mondays.",
)
