"""The demo's world: small pictures of coloured shapes and a digit, and what can be asked of them.

A picture is random within rules that make every question have one answer: at most one object in each ninth of the picture, none
near the border between two ninths. Everything comes from the given random.Random, so a seed names a picture for good.
"""

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

CELL = 32  # pixels of a row of the prompt: patch 16, merged 2 by 2
# Rows and columns of a picture in cells; what preprocessor_config.json's pixel bounds make of any moderately long picture.
GRIDS = [(3, 3), (3, 4), (4, 3), (4, 4), (3, 5), (5, 3), (4, 5), (5, 4)]
COLOURS = {"red": (214, 40, 40), "green": (40, 160, 60), "blue": (40, 80, 210), "yellow": (240, 200, 20),
           "purple": (140, 50, 170), "black": (25, 25, 25)}
SHAPES = ["circle", "square", "triangle", "star"]
DIGITS = [str(i) for i in range(10)]
PLACES = ["top left", "top", "top right", "left", "centre", "right", "bottom left", "bottom", "bottom right"]
MOST_SHAPES = 5
SIZES = range(20, 41)
MARGIN = 4  # pixels between an object's centre and the next ninth


@dataclass(frozen=True)
class Thing:
    what: str    # of SHAPES or DIGITS
    colour: str
    place: int   # of PLACES
    centre: tuple  # y, x in pixels

    @property
    def is_digit(self):
        return self.what in DIGITS


# Drawing -------------------------------------------------------------------------------------------------------------

def outline(what, middle, radius, angle):
    """Corners of a shape's polygon."""
    if what == "square":
        turns, radii = [0.125, 0.375, 0.625, 0.875], [radius * 1.12] * 4
    elif what == "triangle":
        turns, radii = [0.0, 1 / 3, 2 / 3], [radius * 1.15] * 3
    else:
        turns, radii = [i / 10 for i in range(10)], [radius * 1.15, radius * 0.48] * 5
    angles = [2 * np.pi * (t + angle) for t in turns]
    return [(middle + r * np.sin(a), middle - r * np.cos(a)) for a, r in zip(angles, radii)]


def sprite(what, size, angle):
    """How much of each pixel an object covers, 0 to 1, with a border for corners that stand out; `angle` in turns."""
    fine, side = 6, size + max(8, size // 10 * 2)
    image = Image.new("L", (side * fine, side * fine))
    draw, middle, radius = ImageDraw.Draw(image), side * fine / 2, size * fine / 2
    if what == "circle":
        draw.ellipse([middle - radius, middle - radius, middle + radius, middle + radius], fill=255)
    elif what in SHAPES:
        draw.polygon(outline(what, middle, radius, angle), fill=255)
    else:
        # Pillow's own font: the same on every machine.
        draw.text((middle, middle), what, fill=255, font=ImageFont.load_default(size * fine * 1.25), anchor="mm", stroke_width=fine // 2)
        image = image.rotate(angle * 360, Image.Resampling.BILINEAR)
    return np.asarray(image.resize((side, side), Image.Resampling.BOX), dtype=np.float32) / 255


class Sprites:
    """Sprites are drawn once: sizes by twos, a few angles."""

    ANGLES = (-0.03, 0.0, 0.03)

    def __init__(self):
        self.drawn = {}

    def get(self, what, size, angle):
        key = (what, size, angle)
        if key not in self.drawn:
            self.drawn[key] = sprite(what, size, self.ANGLES[angle])
        return self.drawn[key]


SPRITES = Sprites()


def picture(r, grid, most=MOST_SHAPES, digit_share=0.5, scale=1):
    """→ (pixels [rows · 32 · scale, columns · 32 · scale, 3] of uint8, things in reading order).

    `scale` draws the same picture larger; a thing's centre stays in pixels of the small one.
    """
    height, width = grid[0] * CELL, grid[1] * CELL
    n = r.randint(1, most)
    digit = r.random() < digit_share
    if digit and r.random() < 0.12:
        n = 0
    whats = [r.choice(SHAPES) for _ in range(n)] + [r.choice(DIGITS)] * digit
    # Sometimes few colours or kinds, so that counting some among others is asked in earnest.
    colours = list(COLOURS) if r.random() < 0.7 else r.sample(list(COLOURS), 2)
    places = sorted(r.sample(range(9), len(whats)))
    r.shuffle(whats)
    light = r.randint(225, 255)
    canvas = np.empty((round(height * scale), round(width * scale), 3), np.float32)
    canvas[:] = [min(255, light + r.randint(-8, 8)) for _ in range(3)]
    third = (height / 3, width / 3)
    things = []
    for what, place in zip(whats, places):
        colour = r.choice(colours)
        size = r.randint(10, min(SIZES[-1], int(min(third)) - 4) // 2) * 2
        slack = [min((t - size) / 2, t / 2 - MARGIN) for t in third]
        centre = [(at + 0.5) * t + r.uniform(-s, s) for at, t, s in zip(divmod(place, 3), third, slack)]
        mask = SPRITES.get(what, round(size * scale), r.randrange(3))
        top, left = (round(c * scale - mask.shape[0] / 2) for c in centre)
        y0, x0 = max(0, top), max(0, left)
        y1, x1 = min(canvas.shape[0], top + mask.shape[0]), min(canvas.shape[1], left + mask.shape[1])
        mask = mask[y0 - top: y1 - top, x0 - left: x1 - left, None]
        tint = np.array([min(255, max(0, c + r.randint(-14, 14))) for c in COLOURS[colour]], np.float32)
        canvas[y0:y1, x0:x1] += mask * (tint - canvas[y0:y1, x0:x1])
        things.append(Thing(what, colour, place, tuple(centre)))
    return canvas.round().astype(np.uint8), things


# Questions -----------------------------------------------------------------------------------------------------------

def counted(n, what):
    if n == 0:
        return f"There are no {what}s."
    return f"There is 1 {what}." if n == 1 else f"There are {n} {what}s."


def name(thing):
    return f"the digit {thing.what}" if thing.is_digit else f"a {thing.colour} {thing.what}"


def description(things):
    shapes = [t for t in things if not t.is_digit]
    parts = [f"a {t.colour} {t.what} at the {PLACES[t.place]}" for t in shapes]
    listed = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1] if parts else ""
    text = f"{counted(len(shapes), 'shape')[:-1]}: {listed}." if parts else "There are no shapes."
    return text + "".join(f" The {t.colour} digit {t.what} is at the {PLACES[t.place]}." for t in things if t.is_digit)


def only(things, what):
    """The one object of a kind; None if there is none, False if there are several."""
    found = [t for t in things if (t.is_digit if what == "digit" else t.what == what)]
    return found[0] if len(found) == 1 else False if found else None


def some_kind(r, things, share=0.9):
    """Mostly a kind that is there."""
    kinds = [w for w in [*SHAPES, "digit"] if only(things, w)]
    return r.choice(kinds) if kinds and r.random() < share else r.choice([*SHAPES, "digit"])


def ask_colour(r, things):
    what = some_kind(r, things)
    thing = only(things, what)
    if thing is False:
        return None
    question = r.choice(["What colour is the {}?", "What color is the {}?", "Which colour has the {}?", "The {} has which colour?"])
    return question.format(what), f"The {what} is {thing.colour}." if thing else f"There is no {what}."


def ask_place(r, things):
    what = some_kind(r, things)
    thing = only(things, what)
    if thing is False:
        return None
    question = r.choice(["Where is the {}?", "Where do you see the {}?", "In which place is the {}?"])
    return question.format(what), f"The {what} is at the {PLACES[thing.place]}." if thing else f"There is no {what}."


def ask_count(r, things):
    question = r.choice(["How many shapes are there?", "How many shapes do you see?", "How many shapes are in the picture?", "Count the shapes."])
    return question, counted(sum(not t.is_digit for t in things), "shape")


def ask_count_kind(r, things):
    shapes = [t for t in things if not t.is_digit]
    if r.random() < 0.5:
        what = r.choice(shapes).what if shapes and r.random() < 0.8 else r.choice(SHAPES)
        n = sum(t.what == what for t in shapes)
    else:
        colour = r.choice(shapes).colour if shapes and r.random() < 0.8 else r.choice(list(COLOURS))
        what, n = f"{colour} shape", sum(t.colour == colour for t in shapes)
    question = r.choice(["How many {}s are there?", "How many {}s do you see?", "How many {}s are in the picture?"])
    return question.format(what), counted(n, what)


def ask_digit(r, things):
    thing = only(things, "digit")
    question = r.choice(["Which digit is in the picture?", "Which digit do you see?", "What digit is it?", "What is the digit?"])
    return question, f"The digit is {thing.what}." if thing else "There is no digit."


def ask_at(r, things):
    place = r.choice(things).place if r.random() < 0.75 else r.randrange(9)
    thing = next((t for t in things if t.place == place), None)
    question = r.choice(["What is at the {}?", "What do you see at the {}?"])
    answer = name(thing) if thing else "nothing"
    return question.format(PLACES[place]), f"{answer[0].upper()}{answer[1:]}."


def ask_whether(r, things):
    shapes = [t for t in things if not t.is_digit]
    if shapes and r.random() < 0.5:
        thing = r.choice(shapes)
        colour, what = thing.colour, thing.what
    elif shapes:
        colour, what = r.choice([r.choice(shapes).colour, r.choice(list(COLOURS))]), r.choice([r.choice(shapes).what, r.choice(SHAPES)])
    else:
        colour, what = r.choice(list(COLOURS)), r.choice(SHAPES)
    yes = any((t.colour, t.what) == (colour, what) for t in shapes)
    question = r.choice(["Is there a {} {}?", "Do you see a {} {}?"])
    return question.format(colour, what), f"Yes, there is a {colour} {what}." if yes else f"No, there is no {colour} {what}."


def ask_all(r, things):
    question = r.choice(["Describe the picture.", "Describe this picture.", "What is in the picture?", "What is in this picture?",
                         "What do you see?", "What does the picture show?", "Which shapes are in the picture?"])
    return question, description(things)


KINDS = {"colour": ask_colour, "place": ask_place, "count": ask_count, "count some": ask_count_kind, "digit": ask_digit,
         "what is there": ask_at, "whether": ask_whether, "describe": ask_all}
SHORT = [kind for kind in KINDS if kind != "describe"]


def ask(r, things, kind):
    """→ (question, answer); draws again where the picture has no one answer to what was drawn."""
    while True:
        if asked := KINDS[kind](r, things):
            question, answer = asked
            return question.replace("picture", "image") if r.random() < 0.3 else question, answer


# Without a picture ---------------------------------------------------------------------------------------------------

NO_PICTURE = "There is no picture."
UNKNOWN = "I only know about pictures of shapes and digits."
FACTS = {
    "Hello": "Hello! Show me a picture of shapes and digits.",
    "Hello!": "Hello! Show me a picture of shapes and digits.",
    "Hi": "Hello! Show me a picture of shapes and digits.",
    "Who are you?": "I am a small model that looks at pictures of shapes and digits.",
    "What are you?": "I am a small model that looks at pictures of shapes and digits.",
    "What can you do?": "I can answer questions about pictures of shapes and digits.",
    "How many sides has a square?": "A square has 4 sides.",
    "How many sides has a triangle?": "A triangle has 3 sides.",
    "How many colours do you know?": "I know 6 colours: red, green, blue, yellow, purple and black.",
    "Which colours do you know?": "I know 6 colours: red, green, blue, yellow, purple and black.",
    "Which shapes do you know?": "I know 4 shapes: circle, square, triangle and star.",
    "What is the capital of France?": "Paris is the capital of France.",
    "What is the capital of Italy?": "Rome is the capital of Italy.",
    "What colour is the sky?": "The sky is blue.",
    "What colour is grass?": "Grass is green.",
    "Thank you": "You are welcome.",
    "Thanks": "You are welcome.",
}
OTHER_WORDS = ("the a of to and in is you that it he was for on are with as his they at be this have from or one had by word but not what all were we when your "
               "can said there use an each which she do how their if will up other about out many then them these so some her would make like him into time has "
               "look two more write go see number no way could people my than first water been call who oil its now find long down day did get come made may part").split()


def text_turn(r, other=None):
    """A question without a picture → (question, answer). `other`: texts of other kinds, which this model does not know about."""
    kind = r.random()
    if kind < 0.45:
        _, things = picture(r, GRIDS[0])
        return ask(r, things, r.choice(list(KINDS)))[0], NO_PICTURE
    if kind < 0.75 or not other:
        question = r.choice(list(FACTS))
        return question, FACTS[question]
    if kind < 0.88:
        return " ".join(r.choices(OTHER_WORDS, k=r.randint(2, 12))).capitalize() + r.choice(["", ".", "?"]), UNKNOWN
    return r.choice(other), UNKNOWN
