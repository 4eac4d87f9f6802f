"""Prompts that a drafter for SmolLM2 learns from and is measured on, in six kinds. All text is this project's own.

    python demo/smollm2/train/prompts.py --held-out --count 8 > prompts.jsonl
    paceline bench --sweep --prompts prompts.jsonl

A prompt is a kind and a conversation. Prompts for training and held-out ones are made from different words: each list is divided,
one of six entries is for measuring alone. So no held-out prompt has a subject that was trained on; objects of JSON have random
names and numbers in both. The same seed gives the same prompts on every machine.
"""

import argparse
import json
import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.append(str(ROOT / "demo"))

import corpus  # noqa: E402

KINDS = ("chat", "code", "json", "rewriting", "arithmetic", "prose")

TOPICS = """photosynthesis;volcanoes;the water cycle;black holes;vaccines;the Roman Empire;democracy;inflation;electric cars;the human heart
earthquakes;the moon;bees;coffee;chess;jazz;the French Revolution;recycling;solar power;wind turbines;dinosaurs;the ocean;tides;rainbows
gravity;magnets;batteries;bridges;trains;bicycles;cheese;bread;soup;gardening;compost;tomatoes;sleep;dreams;memory;stress;exercise;yoga
running;swimming;mountains;glaciers;deserts;rain forests;penguins;whales;dogs;cats;horses;owls;spiders;ants;trees;mushrooms;rivers
islands;maps;the compass;sailing;the printing press;the telephone;the internet;passwords;email;databases;computer viruses;robots
machine learning;the scientific method;statistics;probability;prime numbers;geometry;algebra;music theory;the piano;the guitar;painting
photography;architecture;poetry;novels;theatre;cinema;fashion;cooking rice;healthy breakfasts;vegetarian food;saving money;taxes;insurance
renting a flat;job interviews;writing a letter;public speaking;time management;meetings;teamwork;friendship;learning a language;teaching
parenting;first aid;colds;allergies;teeth;eyesight;skin care;vitamins;water;salt;sugar;plastic;glass;steel;paper;cotton;clocks;calendars
seasons;the weather;climate change;air pollution;forest fires;floods;farming;fishing;markets;trade;banks;money;laws;elections;museums
libraries;schools;universities;hospitals;airports;hotels;camping;hiking;picnics;birthdays;weddings;holidays;board games;football;tennis
the Olympic Games;ancient Egypt;the Vikings;the Middle Ages;the Renaissance;the Industrial Revolution;space travel;satellites;telescopes
microscopes;atoms;electricity;light;sound;heat;energy;DNA;evolution;bacteria;the brain;bones;muscles;the lungs;digestion;blood""".replace("\n", ";").split(";")
QUESTIONS = """What is {}?;What are the most important facts about {}?;Explain {} to a child.;Explain {} in two sentences.;Why does {} matter?
How would you describe {} to a friend?;Give me five tips about {}.;List three surprising facts about {}.;What should a beginner know about {}?
What are common mistakes people make with {}?;What is the history of {}?;Write a short introduction to {}.;Tell me something about {}.
What are the advantages and disadvantages of {}?;How can I learn more about {}?;Summarize what you know about {}.;What questions do people ask about {}?
I have to give a talk about {}. Can you help me with an outline?;What is the connection between {} and daily life?
Compare {} with {}.;Is there a link between {} and {}?""".replace("\n", ";").split(";")

TASKS = """returns the largest number of a list;reverses a string;counts the vowels of a word;checks whether a number is prime
returns the sum of the even numbers of a list;removes duplicates from a list;sorts a list of words by length;merges two sorted lists
finds the second largest number of a list;converts Celsius to Fahrenheit;computes the factorial of a number;returns the Fibonacci numbers up to n
checks whether a word is a palindrome;counts how often each word occurs in a text;reads a file and counts its lines;flattens a nested list
finds the longest word of a sentence;computes the average of a list of numbers;checks whether two words are anagrams;splits a list into chunks of size n
returns the index of a value in a list;rotates a list by k places;computes the greatest common divisor of two numbers;capitalizes each word of a text
finds the missing number in a list from 1 to n;returns the intersection of two lists;checks whether parentheses are balanced;sums the digits of a number
converts a number to binary;transposes a matrix;searches a sorted list by bisection;computes the median of a list;removes spaces from a text
groups words by their first letter;checks whether a year is a leap year;validates an email address;counts the characters of a text
finds all pairs of numbers with a given sum;prints a multiplication table;computes the distance between two points;converts seconds to hours and minutes
returns the common prefix of a list of words;generates a random password;shuffles a list;replaces negative numbers by zero;zips two lists into a dictionary
inverts a dictionary;filters the words that begin with a capital letter;computes the area of a circle;finds the smallest missing positive number
implements a stack with push and pop;implements a queue with two stacks;parses a CSV line;formats a date;counts the words of a file
checks whether a string has only digits;finds the first character that does not repeat;computes compound interest;simulates rolling two dice""".replace("\n", ";").split(";")
LANGUAGES = ["Python", "Python", "Python", "JavaScript", "Rust", "Java", "C", "Go"]
CODE = ["Write a {L} function that {t}.", "Write {L} code that {t}. Explain it shortly.", "How do I write a {L} function that {t}?",
        "Can you show me a {L} program that {t}?", "Write a {L} function that {t}, with a test."]
ABOUT_CODE = ["What does this do?\n\n{c}", "Explain this code:\n\n{c}", "Add comments to this code:\n\n{c}", "Rename the variables of this code:\n\n{c}",
              "Write a docstring for this:\n\n{c}"]

REWRITES = """Rewrite this in simple words:;Summarize this in one sentence:;Make this sound formal:;Correct the mistakes in this text:
Shorten this text:;Turn this into a list of points:;Explain this to a beginner:;Rewrite this in the past tense:;What is the main idea of this text?
Give this text a title:;Rewrite this paragraph as a question and an answer:;Repeat this text exactly:""".replace("\n", ";").split(";")

SUMS = """{N} has {a} {t} and buys {b} more. How many {t} does {N} have?;A box holds {a} {t}. How many {t} are in {b} boxes?
{N} shares {c} {t} among {b} friends. How many does each friend get?;What is {a} plus {b}?;What is {a} times {b}?;What is {c} minus {a}?
{a} {t} cost {b} euros each. What do they cost together?;A train goes {a} kilometres an hour. How far does it go in {b} hours?
{N} had {c} {t} and gave {a} away. How many are left?;Compute {a} + {b} * 2.;What is {b} percent of {c}?;What is the average of {a}, {b} and {c}?
{N} reads {b} pages a day. How long does a book of {c} pages take?;A rectangle is {a} metres long and {b} metres wide. What is its area?
Solve for x: x + {a} = {c}.;Convert {a} hours to minutes.;Which is larger, {a} times {b} or {c}?;Round {a}.{b} to the nearest whole number.""".replace("\n", ";").split(";")

PROSE = """Write a short story about {p} and {o}.;Write a poem about {o}.;Describe {o} on a quiet morning.;Write a letter from {p} to a friend.
Tell me a bedtime story about {p}.;Write a dialogue between {p} and {p}.;Write the beginning of a novel about {o}.;Describe a day in the life of {p}.
Write a fable about {p} with a moral.;Write a diary entry of {p} who found {o}.;Write a speech about {o}.;Invent a legend about {o}.""".replace("\n", ";").split(";")


def divided(entries, held_out):
    """The entries for measuring, one of six, or the others."""
    return [entry for at, entry in enumerate(entries) if (at % 6 == 5) == held_out]


def blocks(pattern, wanted, separator):
    """Parts of the project's files that `separator` divides, as far as they are `wanted`."""
    for path in sorted(ROOT.glob(pattern)):
        for part in path.read_text(encoding="utf-8").split(separator):
            if wanted(part.strip()):
                yield part.strip()


def paragraphs():
    """Paragraphs of the handbook."""
    def plain(text):
        return 120 < len(text) < 600 and text[0].isupper() and not any(sign in text for sign in ("|", "```", "- ", "<"))
    return [" ".join(part.split()) for part in blocks("docs/**/*.md", plain, "\n\n")]


def snippets():
    """Short functions of the scripts and of the cores."""
    def short(text):
        return text.startswith(("def ", "fn ", "pub fn ")) and 60 < len(text) < 500
    python = [f"```python\n{part}\n```" for part in blocks("scripts/**/*.py", short, "\n\n\n")]
    return python + [f"```rust\n{part}\n```" for part in blocks("core/**/src/*.rs", short, "\n\n")]


class Prompts:
    """An endless stream of prompts of each kind, from the words for training or those for measuring."""

    def __init__(self, seed, held_out=False):
        self.random, self.held_out = random.Random(seed), held_out
        self.lists = {}

    def of(self, name, entries):
        if name not in self.lists:
            self.lists[name] = divided(entries() if callable(entries) else entries, self.held_out)
        return self.random.choice(self.lists[name])

    def text(self, kind):
        r = self.random
        if kind == "chat":
            form = r.choice(QUESTIONS)
            return form.format(*(self.of("topics", TOPICS) for _ in range(form.count("{}"))))
        if kind == "code":
            if r.random() < 0.25:
                return r.choice(ABOUT_CODE).format(c=self.of("snippets", snippets))
            return r.choice(CODE).format(L=r.choice(LANGUAGES), t=self.of("tasks", TASKS))
        if kind == "json":
            return corpus.make_json(r)[0]
        if kind == "rewriting":
            return f"{r.choice(REWRITES)} {self.of('paragraphs', paragraphs)}"
        if kind == "arithmetic":
            a, b = r.randint(2, 99), r.randint(2, 30)
            return r.choice(SUMS).format(N=self.of("names", corpus.NAMES), t=self.of("things", corpus.THINGS), a=a, b=b, c=a * b)
        form = r.choice(PROSE)
        for slot, name, words in (("{p}", "people", corpus.PEOPLE), ("{o}", "objects", corpus.OBJECTS)):
            while slot in form:
                what = f"{r.choice(corpus.QUALITIES)} {self.of(name, words)}"
                article = r.choice(("the", "an" if what[0] in "aeiou" else "a"))
                form = form.replace(slot, f"{article} {what}", 1)
        return form

    def one(self, kind):
        """A conversation of one turn."""
        return [{"role": "user", "content": self.text(kind)}]


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--kinds", default=",".join(KINDS), help="with commas between")
    options.add_argument("--count", type=int, default=5, help="prompts of each kind")
    options.add_argument("--held-out", action="store_true", help="from the words for measuring")
    options.add_argument("--seed", type=int, default=0)
    options = options.parse_args()
    made = Prompts(options.seed, options.held_out)
    for _ in range(options.count):
        for kind in options.kinds.split(","):
            print(json.dumps({"kind": kind, "messages": made.one(kind)}))
