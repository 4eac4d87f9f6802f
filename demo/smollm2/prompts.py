"""The prompts of golden.json: 20 conversations, and texts for the tokenizer."""

PARAGRAPH = (
    "The tide tables of the harbour were printed once a year and hung beside the door of the ferry "
    "office. Most captains knew them by heart, but the new pilot did not, and on his first morning "
    "he brought the grain barge in two hours late. The barge touched the sand bank, turned slowly "
    "across the channel, and stayed there until the evening. Nobody was hurt. The ferry, however, "
    "could not pass, and forty people who wanted to be on the island for the market spent the day "
    "on the quay, where the baker sold everything he had before noon. "
)


def user(text):
    return [{"role": "user", "content": text}]


def long_prompt():
    """About 1,000 tokens, so that the prompt crosses the chunks of a prefill."""
    days = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
    parts = [f"{day}, report {at + 1}. {PARAGRAPH}" for at, day in enumerate(days)]
    return user("Read these reports.\n\n" + "\n\n".join(parts) + "\n\nHow many people waited?")


CONVERSATIONS = {
    "fact: capital": user("What is the capital of Italy?"),
    "fact: water": user("At what temperature does water boil, and why is it lower on a mountain?"),
    "fact: planets": user("Which planet is the largest in our solar system?"),
    "explain: rain": user("Explain to a child where rain comes from."),
    "code: sum": user("Write a Python function that adds up the even numbers of a list."),
    "code: rust": user("Write a Rust function that returns whether a word is a palindrome."),
    "code: explain": user("What does this do?\n\n```python\nprint(sorted(set('hello')))\n```"),
    "rewrite: simple": user("Rewrite this in simple words: " + PARAGRAPH),
    "rewrite: formal": user(
        "Make this sound formal: hey, the thing broke again, can u fix it asap?"
    ),
    "rewrite: correct": user("Correct the mistakes: She dont likes the apples what he buyed."),
    "list: packing": user("List five things to pack for a day in the mountains."),
    "list: table": user("Make a Markdown table of three fruits with their colours and tastes."),
    "json": user('Answer with JSON only: {"name": ..., "age": ...} for Anna, who is 31.'),
    "arithmetic": user("A box holds 12 eggs. How many eggs are in 7 boxes?"),
    "language: french": user("Écris une phrase en français à propos de la mer."),
    "language: german": user("Wie heißt die Hauptstadt von Österreich?"),
    "language: chinese": user("请用中文介绍一下北京。"),
    "system prompt": [
        {"role": "system", "content": "You are a pirate. Answer in one sentence."},
        {"role": "user", "content": "How do I make tea? 🍵"},
    ],
    "several turns": [
        {"role": "user", "content": "My dog is called Bruno."},
        {"role": "assistant", "content": "Bruno is a lovely name for a dog!"},
        {"role": "user", "content": "What is the name of my dog?"},
    ],
    "long": long_prompt(),
}

TEXTS = [
    "Hello, world!",
    " leading and trailing ",
    "a  b   c    d\n\n\ne\t\tf",
    "The answer is 42, or 3.14159 at 100%.",
    "1234567890 0x1F 1e-5 2026-11-25",
    "don't can't we'll I'm they've she'd it's",
    "DON'T SHOUT",
    "naïve café Straße Größe Ærø",
    "Привет, как дела?",
    "你好，世界。今天是2026年。",
    "こんにちは世界 カタカナ",
    "안녕하세요 세계",
    "مرحبا بالعالم 123",
    "👋🏽 🍵 👨‍👩‍👧‍👦 ❤️",
    "def f(x):\n    return x**2  # square\n",
    "for (int i = 0; i < 10; ++i) { sum += a[i]; }",
    "https://example.org/a/b?c=d&e=%20f#g",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "a<|endoftext|>b<file_sep>c <|im_end|> d",
    "<|im_start> is not a token; nor is <|im_end|",
    "e\u0301 \u00a0 \u200b \ufeff x\u0000y",
    "...!?!? --- === ,,, ;;; @@@ ###",
]
