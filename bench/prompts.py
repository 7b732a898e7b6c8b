"""Prompts: unique from their first word on, so that no prefix cache helps, and the same for every server of a round."""

import random

Message = dict[str, str]

_TOPICS = (
    "a lighthouse keeper", "the history of bread", "how rivers form", "a robot learning to paint",
    "the city of Venice", "growing tomatoes", "the invention of printing", "a journey across the desert",
    "how bees make honey", "the life of a sailor", "volcanoes", "a mountain village", "the first railways",
    "deep sea animals", "a clockmaker", "the northern lights",
)  # fmt: skip
_WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state",
    "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system",
    "program", "question", "work", "government", "number", "night", "point", "home", "water", "room", "mother",
    "area", "money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business",
    "issue", "side", "kind", "head", "house", "service", "friend", "father", "power", "hour", "game", "line", "end",
    "member", "law", "car", "city", "community", "name", "president", "team", "minute", "idea", "body", "information",
    "back", "parent", "face", "others", "level", "office", "door", "health", "person", "art", "war", "history",
    "party", "result", "change",
)  # fmt: skip


_WORDS_A_TOKEN = 0.9


def essay(rng: random.Random) -> list[Message]:
    """About 30 tokens, 60 with a model's usual system prompt; asks for an answer longer than any test needs."""
    content = (
        f"[{rng.randrange(10**6)}] Write a long and detailed essay about {rng.choice(_TOPICS)}. "
        "Use many sentences and give many examples."
    )
    return [{"role": "user", "content": content}]


def notes(rng: random.Random, tokens: int) -> list[Message]:
    """About ``tokens`` tokens with the common vocabularies, a request for an essay at the end."""
    words: list[str] = []
    length = int(tokens * _WORDS_A_TOKEN)
    while len(words) < length:
        sentence = [rng.choice(_WORDS) for _ in range(rng.randint(6, 12))]
        words += [*sentence[:-1], sentence[-1] + "."]
    head = f"[{rng.randrange(10**6)}] Read these notes: {' '.join(words[:length])}\n"
    return [{"role": "user", "content": head + "Write a long and detailed essay about them."}]
