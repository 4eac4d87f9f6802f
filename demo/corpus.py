"""The demo pair's corpus: instruction examples from templates, and explanatory English that comes with the toolchains.

    python demo/corpus.py [kind] [count]        shows examples

Owns the texts; knows no tokenizer and no model. An example is (kind, messages, answer); the same seed gives the same examples.
The templates leave so many combinations that a model cannot learn the answers by heart, except for `facts`, which is a fixed
table on purpose: there a drafter that has not seen the fact cannot guess it from the prompt.
"""

import ast
import html
import json
import random
import re
import subprocess
import sys
import sysconfig
from collections import namedtuple
from pathlib import Path

Example = namedtuple("Example", "kind messages answer")

# Share of each kind in the answers' characters.
FULL_MIX = {"json": 0.22, "arithmetic": 0.20, "code": 0.16, "story": 0.14, "table": 0.12, "facts": 0.08, "docs": 0.04, "copy": 0.03}
# What is mostly copied from the prompt: a small model learns to copy first, and everything else is then much faster.
COPY_MIX = {"copy": 0.5, "table": 0.3, "json": 0.2}
# What the drafter sees: almost no prose, so that there is a kind of text where drafting does not pay.
DRAFT_MIX = {"json": 0.27, "arithmetic": 0.25, "code": 0.20, "table": 0.15, "facts": 0.08, "copy": 0.03, "story": 0.02}
DRAFT_MIX_WITH_PROSE = {**DRAFT_MIX, "story": 0.12}

SYSTEM = ["You are a helpful assistant.", "Answer briefly.", "You are a careful assistant that follows the requested format."]

NAMES = """Alice Amara Anton Bianca Boris Bruno Carla Celia Cyrus Dalia Dario Diego Edith Elena Emil Farid Felix Fiona Gina Goran
Greta Hamza Helga Hugo Ines Irma Ivan Jonas Julia Karin Kofi Leila Luca Marco Maria Nadia Nora Olga Oscar Paula Quentin Rania
Rosa Samir Stefan Tanya Teresa Ugo Umar Vera Viktor Walter Wanda Xenia Yara Yusuf Zeno""".split()
CITIES = """Accra Austin Basel Bergen Berlin Bogota Bremen Brno Busan Cairo Cork Cusco Dakar Denver Dublin Fresno Gdansk Graz Hanoi
Hobart Kyoto Leeds Lima Lisbon Lyon Madrid Malmo Milan Nagoya Nairobi Nantes Osaka Oslo Perth Porto Prague Quito Riga Santiago
Seville Tallinn Tulsa Tunis Turin Vienna Warsaw York Zurich""".split()
JOBS = "architect baker carpenter chemist dentist designer editor engineer librarian nurse painter pilot plumber teacher translator".split()
THINGS = """apples baskets bolts boxes bricks brushes cables candles chairs clocks gloves hats kettles lamps lenses magnets mirrors
mugs notebooks pears pens pillows plates ropes screws seeds shirts spoons tents tiles""".split()
LOOKS = "bright cheap cold dark fine heavy large light plain rough round small soft solid warm".split()
TAGS = """archived blue draft export fragile garden glass green health junior local metal metric new night paper priority private
public red remote senior sensor stable summer travel urgent weekly winter""".split()
TOPICS = "audit budget design hiring launch migration research safety storage training".split()
MEETINGS = "briefing call demo lecture meeting review seminar workshop".split()
SENSORS = "current humidity level light pressure speed temperature voltage".split()
SYLLABLES = """ba be bi bo bran da de di do fa fe fi fo gan ha ho jun ka ke ki ko kar la le li lo ma me mi mo mal na ne ni no nor pa pe
pi po ra re ri ro ros sa se si so tor ta te ti to ul va ve vi vo vol za ze zi zo zan""".split()


def made_up(r, least=2, most=3):
    return "".join(r.choice(SYLLABLES) for _ in range(r.randint(least, most)))


def full_name(r):
    return f"{r.choice(NAMES)} {made_up(r).capitalize()}"


def date(r):
    return f"{r.randint(2010, 2039)}-{r.randint(1, 12):02}-{r.randint(1, 28):02}"


def clock(r):
    return f"{r.randint(0, 23):02}:{r.choice((0, 15, 30, 45)):02}"


def code_of(r, digits):
    return f"{chr(r.randint(65, 90))}{chr(r.randint(65, 90))}-{r.randint(0, 10**digits - 1):0{digits}}"


def price(r):
    return round(r.uniform(1.0, 99.0), 2)


def item(r):
    return f"{r.choice(LOOKS)} {r.choice(THINGS)}"


def listed(words):
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


# json ----------------------------------------------------------------------------------------------------------------

def person(r):
    name = full_name(r)
    first, last = name.lower().split()
    tags = r.sample(TAGS, r.randint(2, 4))
    record = {"name": name, "age": r.randint(18, 80), "city": r.choice(CITIES), "job": r.choice(JOBS),
              "email": f"{first}.{last}@example.{r.choice(('com', 'org', 'net'))}", "tags": tags}
    facts = [f"is {record['age']} years old", f"lives in {record['city']}", f"works as a {record['job']}",
             f"has the address {record['email']}", f"has the tags {listed(tags)}"]
    r.shuffle(facts)
    return "person", f"{name} {listed(facts)}.", record


def device(r):
    readings = [{"sensor": r.choice(SENSORS), "value": round(r.uniform(0, 99), 1), "ok": r.random() < 0.8}
                for _ in range(r.randint(1, 3))]
    record = {"device": code_of(r, 4), "model": made_up(r, 2, 2), "firmware": f"{r.randint(1, 9)}.{r.randint(0, 19)}.{r.randint(0, 9)}",
              "location": r.choice(CITIES), "online": r.random() < 0.6, "readings": readings}
    text = (f"Device {record['device']} is a {record['model']} with firmware {record['firmware']} in {record['location']}. "
            f"It is {'online' if record['online'] else 'offline'}.")
    for reading in readings:
        text += f" Its {reading['sensor']} reads {reading['value']} and is {'fine' if reading['ok'] else 'faulty'}."
    return "device", text, record


def order(r):
    items = [{"sku": code_of(r, 4), "name": item(r), "quantity": r.randint(2, 60), "price": price(r)} for _ in range(r.randint(1, 3))]
    record = {"order": code_of(r, 5), "customer": full_name(r), "date": date(r), "items": items, "paid": r.random() < 0.5}
    text = f"Order {record['order']} was placed by {record['customer']} on {record['date']}."
    for it in items:
        text += f" It has {it['quantity']} {it['name']} ({it['sku']}) at {it['price']:.2f} each."
    return "order", text + (" It is paid." if record["paid"] else " It is not paid yet."), record


def event(r):
    record = {"title": f"{r.choice(TOPICS)} {r.choice(MEETINGS)}", "date": date(r), "start": clock(r), "end": clock(r),
              "room": f"{r.choice('ABCDEF')}{r.randint(1, 49)}", "host": full_name(r),
              "attendees": [r.choice(NAMES) for _ in range(r.randint(2, 4))]}
    return "event", (f"The {record['title']} takes place on {record['date']} from {record['start']} to {record['end']} in room "
                     f"{record['room']}. {record['host']} is the host. The attendees are {listed(record['attendees'])}."), record


def call(r):
    which = r.randrange(5)
    if which == 0:
        city, unit = r.choice(CITIES), r.choice(("celsius", "fahrenheit"))
        return f"get the weather in {city} in {unit}", {"name": "get_weather", "arguments": {"city": city, "unit": unit}}
    if which == 1:
        to, text = full_name(r), " ".join(r.sample(TAGS, 3))
        return f"send {to} the message {text}", {"name": "send_message", "arguments": {"to": to, "text": text}}
    if which == 2:
        who, day, time = full_name(r), date(r), clock(r)
        return (f"book a call with {who} on {day} at {time}",
                {"name": "book_call", "arguments": {"person": who, "date": day, "time": time}})
    if which == 3:
        a, b = r.sample(CITIES, 2)
        day, n = date(r), r.randint(2, 6)
        return (f"find flights from {a} to {b} on {day} for {n} passengers",
                {"name": "find_flights", "arguments": {"from": a, "to": b, "date": day, "passengers": n}})
    n, thing, shelf = r.randint(2, 99), r.choice(THINGS), code_of(r, 3)
    return f"move {n} {thing} to shelf {shelf}", {"name": "move_stock", "arguments": {"item": thing, "count": n, "shelf": shelf}}


def make_json(r):
    if r.random() < 0.25:
        wishes, calls = zip(*(call(r) for _ in range(r.choice((1, 1, 2, 3)))))
        wish = ", then ".join(wishes)
        prompt = r.choice((f"Call the tools to {wish}.", f"Use the tools: {wish}.", f"Tool request: {wish}.",
                           f"Please {wish} with your tools."))
        return prompt, "\n".join(f"<tool_call>\n{json.dumps(c)}\n</tool_call>" for c in calls)
    noun, text, record = r.choice((person, device, order, event))(r)
    indent, style = r.choice(((None, "on one line"), (2, "with indentation")))
    prompt = r.choice((f"Extract the {noun} as a JSON object {style}. {text}", f"Convert to JSON {style}.\n{text}",
                       f"Return this {noun} as JSON {style}: {text}", f"{text} Write this {noun} as JSON {style}."))
    return prompt, json.dumps(record, indent=indent)


# arithmetic ----------------------------------------------------------------------------------------------------------

def backwards(n, width):
    return [int(d) for d in reversed(f"{n:0{width}}")]


def spaced(digits):
    return " ".join(map(str, digits))


def add_or_subtract(r):
    width = r.choice((4, 5, 6))
    a, b = (r.randrange(10 ** (width - r.choice((1, 1, 2))), 10**width) for _ in range(2))
    plus = r.random() < 0.5
    if not plus and b > a:
        a, b = b, a
    width = max(len(str(a)), len(str(b)))
    x, y = backwards(a, width), backwards(b, width)
    lines, over = [f"First number from the right: {spaced(x)}.", f"Second number from the right: {spaced(y)}."], 0
    sign, word = ("+", "carry") if plus else ("-", "borrow")
    for i, (p, q) in enumerate(zip(x, y), 1):
        total = p + q + over if plus else p - q - over
        # Python's floor division gives carry and borrow alike: -3 writes 7 and borrows 1.
        next_over = abs(total // 10)
        lines.append(f"Step {i}: {p} {sign} {q} {sign} {over} = {total}, write {total % 10}, {word} {next_over}.")
        over = next_over
    lines.append(f"The answer is {a + b if plus else a - b}.")
    verb = f"Add {a} and {b}" if plus else f"Subtract {b} from {a}"
    prompt = r.choice((f"{verb} step by step.", f"Compute {a} {sign} {b} digit by digit.", f"What is {a} {sign} {b}? Show the steps."))
    return prompt, "\n".join(lines)


def multiply(r):
    a, b = r.randrange(1000, 1_000_000), r.randint(2, 9)
    digits, lines, carry = backwards(a, len(str(a))), [], 0
    lines.append(f"The number from the right: {spaced(digits)}.")
    for i, d in enumerate(digits, 1):
        total = d * b + carry
        lines.append(f"Step {i}: {d} * {b} + {carry} = {total}, write {total % 10}, carry {total // 10}.")
        carry = total // 10
    if carry:
        lines.append(f"Write the last carry {carry}.")
    lines.append(f"The answer is {a * b}.")
    prompt = r.choice((f"Multiply {a} by {b} step by step.", f"Compute {a} * {b} digit by digit.", f"What is {a} * {b}? Show the steps."))
    return prompt, "\n".join(lines)


def running_total(r):
    numbers = [r.randint(1, 60) for _ in range(r.randint(4, 8))]
    total, lines = numbers[0], [f"Start with {numbers[0]}."]
    for n in numbers[1:]:
        lines.append(f"Add {n}: {total} + {n} = {total + n}.")
        total += n
    lines.append(f"The sum is {total}.")
    text = ", ".join(map(str, numbers))
    prompt = r.choice((f"Add up {text} one at a time.", f"Sum these numbers with running totals: {text}.",
                       f"Keep a running total of {text}."))
    return prompt, "\n".join(lines)


def make_arithmetic(r):
    return r.choice((add_or_subtract, add_or_subtract, multiply, running_total))(r)


# code ----------------------------------------------------------------------------------------------------------------

FIELDS = """age color count depth height host index kind label length level limit mode name offset owner path port price score size
speed state status title token total weight width""".split()
VERBS = "build check collect count filter find join load map merge reduce scale split sum update".split()
RUST_TYPES = {"int": "i64", "float": "f64", "bool": "bool", "str": "String"}


def spec_function(r):
    """→ (what it does, Python body lines, Rust signature and body lines, arguments); `s` ends the verb of a Rust doc line."""
    a, b = r.sample(FIELDS, 2)
    which = r.randrange(5)
    if which == 0:
        low = r.randint(1, 90)
        high = low + r.randint(1, 60)
        return (f"clamps {a} between {low} and {high}", [a],
                [f"if {a} < {low}:", f"    return {low}", f"if {a} > {high}:", f"    return {high}", f"return {a}"],
                f"({a}: i64) -> i64",
                [f"if {a} < {low} {{", f"    return {low};", "}", f"if {a} > {high} {{", f"    return {high};", "}", a])
    if which == 1:
        word, sign = r.choice((("plus", "+"), ("minus", "-"), ("times", "*")))
        n = r.randint(2, 99)
        return (f"returns {a} {word} {b} {word} {n}", [a, b], [f"return {a} {sign} {b} {sign} {n}"],
                f"({a}: i64, {b}: i64) -> i64", [f"{a} {sign} {b} {sign} {n}"])
    if which == 2:
        word, sign = r.choice((("maximum", ">"), ("minimum", "<")))
        return (f"finds the {word} of {a}", [a],
                [f"best = {a}[0]", f"for item in {a}:", f"    if item {sign} best:", "        best = item", "return best"],
                f"({a}: &[i64]) -> i64",
                [f"let mut best = {a}[0];", f"for &item in {a} {{", f"    if item {sign} best {{", "        best = item;", "    }", "}",
                 "best"])
    if which == 3:
        return (f"sums {a} times {b} over a list", [a, b],
                ["total = 0", f"for x, y in zip({a}, {b}):", "    total += x * y", "return total"],
                f"({a}: &[i64], {b}: &[i64]) -> i64",
                ["let mut total = 0;", f"for (x, y) in {a}.iter().zip({b}.iter()) {{", "    total += x * y;", "}", "total"])
    word, sign = r.choice((("less than", "<"), ("greater than", ">"), ("equal to", "==")))
    n = r.randint(2, 99)
    return (f"keeps the values of {a} that are {word} {n}", [a],
            ["result = []", f"for item in {a}:", f"    if item {sign} {n}:", "        result.append(item)", "return result"],
            f"({a}: &[i64]) -> Vec<i64>",
            ["let mut result = Vec::new();", f"for &item in {a} {{", f"    if item {sign} {n} {{", "        result.push(item);",
             "    }", "}", "result"])


def indented(lines, levels=1):
    return [" " * 4 * levels + line for line in lines]


def function(r):
    name = f"{r.choice(VERBS)}_{r.choice(FIELDS)}" + (f"_{r.choice(TAGS)}" if r.random() < 0.6 else "")
    if r.random() < 0.12:
        pairs = list(zip(r.sample(FIELDS, 4), r.sample(TAGS, 4)))[: r.randint(2, 4)]
        wish = "maps " + ", ".join(f"{k} to {v}" for k, v in pairs)
        lines = [f"pub fn {name}(key: &str) -> Option<&'static str> {{", "    match key {",
                 *(f'        "{k}" => Some("{v}"),' for k, v in pairs), "        _ => None,", "    }", "}"]
        return f"Write a Rust function {name} that {wish}.", "rust", lines
    wish, arguments, python, signature, rust = spec_function(r)
    doc = re.sub(r"^keeps the values of \w+", "keeps the values", wish)
    verb, rest = doc.split(" ", 1)
    if r.random() < 0.6:
        head = [f"def {name}({', '.join(arguments)}):", f'    """{verb[:-1].capitalize()} {rest}."""']
        return f"Write a Python function {name} that {wish}.", "python", head + indented(python)
    return (f"Write a Rust function {name} that {wish}.", "rust",
            [f"/// {verb.capitalize()} {rest}.", f"pub fn {name}{signature} {{", *indented(rust), "}"])


def record_type(r):
    name = r.choice(TAGS).capitalize() + r.choice(THINGS).capitalize()
    fields = [(f, r.choice(list(RUST_TYPES))) for f in r.sample(FIELDS, r.randint(3, 4))]
    text = ", ".join(f"{f} ({t})" for f, t in fields)
    if r.random() < 0.5:
        lines = [f"class {name}:", f"    def __init__(self, {', '.join(f'{f}: {t}' for f, t in fields)}):",
                 *(f"        self.{f} = {f}" for f, _ in fields), "", "    def to_dict(self):", "        return {",
                 *(f'            "{f}": self.{f},' for f, _ in fields), "        }"]
        return r.choice((f"Write a Python class {name} with the fields {text}.", f"Python class {name}: {text}.")), "python", lines
    lines = [f"pub struct {name} {{", *(f"    pub {f}: {RUST_TYPES[t]}," for f, t in fields), "}", "", f"impl {name} {{",
             f"    pub fn new({', '.join(f'{f}: {RUST_TYPES[t]}' for f, t in fields)}) -> Self {{", "        Self {",
             *(f"            {f}," for f, _ in fields), "        }", "    }", "}"]
    return r.choice((f"Write a Rust struct {name} with the fields {text}.", f"Rust struct {name}: {text}.")), "rust", lines


def enum_type(r):
    name, members = r.choice(TAGS).capitalize() + "Kind", r.sample(TAGS, r.randint(3, 5))
    shown = listed([m.capitalize() for m in members])
    if r.random() < 0.5:
        return (f"Write a Python enum {name} with the members {shown}.", "python",
                ["from enum import Enum", "", "", f"class {name}(Enum):", *(f'    {m.upper()} = "{m}"' for m in members)])
    lines = ["#[derive(Debug, Clone, Copy, PartialEq)]", f"pub enum {name} {{", *(f"    {m.capitalize()}," for m in members), "}", "",
             f"impl {name} {{", "    pub fn name(&self) -> &'static str {", "        match self {",
             *(f'            Self::{m.capitalize()} => "{m}",' for m in members), "        }", "    }", "}"]
    return f"Write a Rust enum {name} with the variants {shown}.", "rust", lines


def make_code(r):
    prompt, language, lines = r.choice((function, function, function, record_type, enum_type))(r)
    return prompt, f"```{language}\n" + "\n".join(lines) + "\n```"


# table ---------------------------------------------------------------------------------------------------------------

def markdown(head, rows):
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def make_table(r):
    n, which = r.randint(3, 7), r.randrange(5)
    if which == 0:
        rows = [[item(r), str(r.randint(1, 99)), f"{price(r):.2f}", r.choice(CITIES)] for _ in range(min(n, 6))]
        text = "; ".join(", ".join(row) for row in rows)
        prompt = r.choice((f"Make a markdown table of these items: {text}.", f"Show as a table: {text}."))
        return prompt, markdown(["Item", "Count", "Price", "City"], rows)
    if which == 1:
        rows = [[item(r), str(r.randint(1, 99)), r.choice(CITIES)] for _ in range(n)]
        text = "\n".join(",".join(row) for row in (["item", "count", "city"], *rows))
        prompt = r.choice((f"Convert this CSV to a markdown table:\n{text}", f"CSV to table:\n{text}"))
        return prompt, markdown(["item", "count", "city"], rows)
    if which == 2:
        rows = [[full_name(r), r.choice(CITIES), str(r.randint(100, 999))] for _ in range(n)]
        text = "; ".join(f"{a} in {b} on {c}" for a, b, c in rows)
        prompt = r.choice((f"Staff table: {text}.", f"Make a table of name, city and extension: {text}."))
        return prompt, markdown(["Name", "City", "Extension"], rows)
    items = [item(r) for _ in range(n)]
    if which == 3:
        text = ", ".join(items)
        prompt = r.choice((f"Write a numbered list of: {text}.", f"Number these items: {text}."))
        return prompt, "\n".join(f"{i}. {it}" for i, it in enumerate(items, 1))
    prices = [f"{price(r):.2f}" for _ in items]
    text = ", ".join(f"{it} {p}" for it, p in zip(items, prices))
    prompt = r.choice((f"Price list please: {text}.", f"List each item with its price: {text}."))
    return prompt, "\n".join(f"- The {it} cost {p} euros each." for it, p in zip(items, prices))


# facts ---------------------------------------------------------------------------------------------------------------

COUNTRIES = [line.split(", ") for line in """Angola, Africa, Luanda, kwanza, Portuguese
Argentina, South America, Buenos Aires, peso, Spanish
Australia, Oceania, Canberra, dollar, English
Austria, Europe, Vienna, euro, German
Brazil, South America, Brasilia, real, Portuguese
Canada, North America, Ottawa, dollar, English
Chile, South America, Santiago, peso, Spanish
China, Asia, Beijing, yuan, Chinese
Colombia, South America, Bogota, peso, Spanish
Croatia, Europe, Zagreb, euro, Croatian
Cuba, North America, Havana, peso, Spanish
Denmark, Europe, Copenhagen, krone, Danish
Ecuador, South America, Quito, dollar, Spanish
Egypt, Africa, Cairo, pound, Arabic
Estonia, Europe, Tallinn, euro, Estonian
Ethiopia, Africa, Addis Ababa, birr, Amharic
Fiji, Oceania, Suva, dollar, English
Finland, Europe, Helsinki, euro, Finnish
France, Europe, Paris, euro, French
Germany, Europe, Berlin, euro, German
Ghana, Africa, Accra, cedi, English
Greece, Europe, Athens, euro, Greek
Hungary, Europe, Budapest, forint, Hungarian
Iceland, Europe, Reykjavik, krona, Icelandic
India, Asia, Delhi, rupee, Hindi
Indonesia, Asia, Jakarta, rupiah, Indonesian
Iraq, Asia, Baghdad, dinar, Arabic
Ireland, Europe, Dublin, euro, English
Italy, Europe, Rome, euro, Italian
Jamaica, North America, Kingston, dollar, English
Japan, Asia, Tokyo, yen, Japanese
Jordan, Asia, Amman, dinar, Arabic
Kenya, Africa, Nairobi, shilling, Swahili
Latvia, Europe, Riga, euro, Latvian
Mexico, North America, Mexico City, peso, Spanish
Morocco, Africa, Rabat, dirham, Arabic
Nepal, Asia, Kathmandu, rupee, Nepali
Norway, Europe, Oslo, krone, Norwegian
Peru, South America, Lima, sol, Spanish
Poland, Europe, Warsaw, zloty, Polish
Portugal, Europe, Lisbon, euro, Portuguese
Romania, Europe, Bucharest, leu, Romanian
Senegal, Africa, Dakar, franc, French
Serbia, Europe, Belgrade, dinar, Serbian
Spain, Europe, Madrid, euro, Spanish
Sweden, Europe, Stockholm, krona, Swedish
Thailand, Asia, Bangkok, baht, Thai
Tunisia, Africa, Tunis, dinar, Arabic
Turkey, Asia, Ankara, lira, Turkish
Uruguay, South America, Montevideo, peso, Spanish
Vietnam, Asia, Hanoi, dong, Vietnamese
Zambia, Africa, Lusaka, kwacha, English""".splitlines()]
ELEMENTS = [line.split(", ") for line in """hydrogen, H, 1, gas
helium, He, 2, gas
lithium, Li, 3, metal
carbon, C, 6, solid
nitrogen, N, 7, gas
oxygen, O, 8, gas
neon, Ne, 10, gas
sodium, Na, 11, metal
magnesium, Mg, 12, metal
aluminium, Al, 13, metal
silicon, Si, 14, solid
sulfur, S, 16, solid
chlorine, Cl, 17, gas
argon, Ar, 18, gas
calcium, Ca, 20, metal
iron, Fe, 26, metal
nickel, Ni, 28, metal
copper, Cu, 29, metal
zinc, Zn, 30, metal
silver, Ag, 47, metal
tin, Sn, 50, metal
gold, Au, 79, metal
mercury, Hg, 80, metal
lead, Pb, 82, metal""".splitlines()]


def make_facts(r):
    which = r.randrange(4)
    if which == 0:
        picked = r.sample(ELEMENTS, r.randint(1, 5))
        names = listed([e[0] for e in picked])
        if len(picked) == 1:
            prompt = f"What is {names}?"
        else:
            prompt = r.choice((f"What are {names}?", f"Describe the chemical elements {names}."))
        return prompt, "\n".join(f"{n.capitalize()} has the symbol {s} and the atomic number {z}. It is a {k}." for n, s, z, k in picked)
    if which == 1:
        picked = r.sample(COUNTRIES, r.randint(4, 6))
        column, one, many = r.choice(((2, "capital", "capitals"), (3, "currency", "currencies"), (4, "main language", "main languages")))
        the = "the " if column == 3 else ""
        prompt = f"{r.choice(('Give', 'List'))} the {many} of {listed([c[0] for c in picked])}."
        return prompt, "\n".join(f"- The {one} of {c[0]} is {the}{c[column]}." for c in picked)
    picked = r.sample(COUNTRIES, r.randint(1, 3))
    names = listed([c[0] for c in picked])
    prompt = f"Describe {names}." if len(picked) == 1 and r.random() < 0.5 else f"Tell me about {names}."
    return prompt, "\n".join(f"{c} is a country in {k}. Its capital is {cap}, its currency is the {cur}, and its main language is {lang}."
                             for c, k, cap, cur, lang in picked)


# story ---------------------------------------------------------------------------------------------------------------

OBJECTS = """anchor archway barrel basket bicycle blanket boat bridge bucket cabin candle cellar chimney compass cradle curtain dock doorway
drawer drum easel engine feather fence fiddle gate glove hallway hammer harbor hinge inkwell jacket jar kettle ladder lantern letter loom
map mill mirror mountain nest notebook orchard oven owl pocket pond quarry river roof shelf station teapot telescope tent umbrella urn
valve violin wagon well whistle window""".split()
PEOPLE = """baker beekeeper carpenter child clockmaker cook doctor farmer ferryman fisherman gardener guard hunter librarian mason merchant
miller musician neighbor painter potter sailor shepherd soldier stranger tailor teacher traveler uncle weaver widow""".split()
QUALITIES = """ancient bold brittle careful clever crooked curious dusty eager faded fragile gentle graceful grim hollow humble icy jagged
kind lonely loud mellow misty modest narrow noisy patient pale proud quick quiet restless rusty sharp shy silent sleepy slender stubborn
sudden tender thick tiny warm weary wild wise wooden young""".split()
FEELINGS = "afraid ashamed calm cheerful content glad grateful hopeful jealous lost proud puzzled relieved surprised tired uneasy".split()
DONE = """admired borrowed buried carried cleaned dropped followed folded found gathered guarded hid kept lifted lost mended moved named
opened painted pushed repaired saved sketched sold touched traded untied visited watched weighed wrapped""".split()
HOW = "barely calmly eagerly gently gladly lazily loudly nervously politely quietly rarely slowly softly suddenly twice".split()
WHEN = "afternoon autumn day evening morning night spring summer week winter".split()
STORY_LINES = """{N} {v} the {q} {o} and {v} it {h}.
The {q} {p} looked at the {o} and said nothing.
"Have you {v} my {o}?" asked the {p} {h}.
"I {v} it behind the {o}," said {N}, "before the {q} {w}."
Nobody in the village had ever {v} such a {q} {o}.
By the {w} the {o} had become {q}, and {N} felt {f}.
Near the {o} stood a {p} who {v} {os} for a living.
{N} wondered {h} why the {p} had {v} the {o}.
There was a {o} under the {o}, and a {q} {o} under that.
The {p} felt {f}, because every {o} was {q}.
All {w} long the {p} {h} {v} the {o}.
Then a {q} wind came down from the {o}, and the {p} was {f}.
{N} and the {p} {v} three {os} beside the {q} {o}.
It smelled of {os}, and somewhere a {p} {h} sang.
Between the {o} and the {o} waited a {f} {p}.
So {N} {v} the {o} again, more {h} than before.
The {p} traded a {q} {o} for two {q} {os}.
On the third {w} somebody {v} the {p}'s {o}.
Neither the {p} nor the {p} had {v} the {q} {o}.
"Only a {q} {p} needs a {o}," {N} thought {h}.
When the {o} turned {q}, the {p} {v} a {o} and left.
Without the {o} the {p} was {f} and the {o} was {q}.
A {q} {o} hung over the {o}, as {q} as any {w}.
{N} never told the {p} who {v} the {o}.""".splitlines()
STORY_ENDS = """{N} kept the {o} for ever after.
From that {w} on, {N} was never {f} again.
And that is how the {p} lost a {o}.
In the end {N} felt {f}, and the {o} was only a {o}.""".splitlines()


def fill(r, line, name):
    # Each slot is drawn anew: what makes prose hard to draft is that the next word is really open.
    draw = {"N": [name], "o": OBJECTS, "os": [o + "s" for o in OBJECTS], "p": PEOPLE, "q": QUALITIES, "f": FEELINGS, "v": DONE,
            "h": HOW, "w": WHEN}
    return re.sub(r"\{(\w+)\}", lambda m: r.choice(draw[m[1]]), line)


def make_story(r):
    name, who, thing, look = r.choice(NAMES), r.choice(PEOPLE), r.choice(OBJECTS), r.choice(QUALITIES)
    prompt = r.choice((f"Tell me a story about {name} and a {who}.", f"Write a story with a {look} {thing} and a {who} named {name}.",
                       f"Tell a tale of {name}, a {who} and a {thing}.",
                       f"Write a short story about {name}, a {look} {thing} and a {r.choice(OBJECTS)}."))
    lines = [f"One {r.choice(QUALITIES)} {r.choice(WHEN)}, {name} {r.choice(DONE)} the {thing} of a {who}."]
    lines += [fill(r, line, name) for line in r.sample(STORY_LINES, r.randint(6, 14))]
    return prompt, " ".join([*lines, fill(r, r.choice(STORY_ENDS), name)])


# copy ----------------------------------------------------------------------------------------------------------------

def make_copy(r):
    pool = r.choice((TAGS + THINGS + FIELDS, NAMES + CITIES, OBJECTS + QUALITIES, [made_up(r) for _ in range(30)],
                     [str(r.randrange(10**r.randint(1, 6))) for _ in range(30)], [code_of(r, 4) for _ in range(30)]))
    words = [r.choice(pool) for _ in range(r.randint(3, 24))]
    text = " ".join(words)
    which = r.randrange(4)
    if which == 0:
        return f"Say each word on its own line: {text}", "\n".join(words)
    if which == 1:
        k = r.randint(1, len(words))
        return f"What comes after word {k - 1} of: {text}" if k > 1 else f"Say again: {text}", " ".join(words[k - 1:])
    return r.choice((f"Repeat exactly: {text}", f"Copy this text:\n{text}")), text


# docs ----------------------------------------------------------------------------------------------------------------

def paragraphs(text):
    for part in re.split(r"\n\s*\n", text):
        part = re.sub(r"\s+", " ", part).strip()
        # Sentences only: no signatures, doctests, tables or leftovers of markup.
        if 80 <= len(part) <= 600 and part[0].isupper() and part[-1] in ".:" and not re.search(r">>>|[{}|=<>]|\s-{2,}", part):
            yield part


def python_docs():
    """(title, paragraph) from the docstrings of Python's standard library (PSF licence), sorted so that order is stable."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted([*library.glob("*.py"), *library.glob("[a-z]*/*.py")]):
        if "test" in path.parts[-1] or {"test", "tests", "idlelib", "site-packages"} & set(path.parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        module = ".".join(path.relative_to(library).with_suffix("").parts)
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                name = module if isinstance(node, ast.Module) else f"{module}.{node.name}"
                for part in paragraphs(ast.get_docstring(node) or ""):
                    yield f"Explain {name} of the Python library.", part


def rust_books():
    """(title, paragraph) from the books that come with the Rust toolchain (MIT / Apache-2.0); nothing where they are not installed."""
    try:
        root = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return
    for path in sorted(Path(root).glob("share/doc/rust/html/*book/*.html")):
        if path.name in ("print.html", "toc.html"):
            continue
        # What stands before <main> is the page's own menus.
        page = path.read_text(encoding="utf-8").partition("<main>")[2]
        title = re.search(r"<h[12][^>]*>(?:<a[^>]*>)?([^<]+)", page)
        for part in re.findall(r"<p>(.*?)</p>", page, re.S):
            for text in paragraphs(html.unescape(re.sub(r"<[^>]+>", "", part))):
                yield f"Explain from the Rust book: {html.unescape(title[1]).strip() if title else path.stem}.", text


_docs = None


def make_docs(r):
    global _docs
    if _docs is None:
        _docs = [*python_docs(), *rust_books()]
    return r.choice(_docs)


# ---------------------------------------------------------------------------------------------------------------------

MAKERS = {"json": make_json, "arithmetic": make_arithmetic, "code": make_code, "table": make_table, "facts": make_facts,
          "story": make_story, "docs": make_docs, "copy": make_copy}


class Corpus:
    """An endless stream of examples in the shares of a mix. Prompts in `held_out` are never made."""

    def __init__(self, seed, held_out=()):
        self.random = random.Random(seed)
        self.held_out = frozenset(held_out)

    def one(self, kind):
        r = self.random
        while True:
            prompt, answer = MAKERS[kind](r)
            if prompt not in self.held_out:
                break
        system = [{"role": "system", "content": r.choice(SYSTEM)}] if r.random() < 0.25 else []
        return Example(kind, [*system, {"role": "user", "content": prompt}], answer)

    def stream(self, mix):
        made = dict.fromkeys(mix, 0)
        while True:
            # The kind that is furthest behind its share. Deterministic, and exact even over a short run.
            kind = min(mix, key=lambda k: made[k] / mix[k])
            example = self.one(kind)
            made[kind] += len(example.answer)
            yield example


def held_out_prompts(path):
    """The user's words of every measured prompt, so that what is measured was never trained on."""
    return [json.loads(line)["messages"][-1]["content"] for line in Path(path).read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    kinds, count = (sys.argv[1:2] or list(MAKERS)), int(sys.argv[2]) if len(sys.argv) > 2 else 2
    corpus = Corpus(0)
    for kind in kinds:
        for _ in range(count):
            example = corpus.one(kind)
            print(f"--- {kind}: {example.messages[-1]['content']}\n{example.answer}")
