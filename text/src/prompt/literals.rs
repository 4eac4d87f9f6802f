//! Puts codes in the place of markup in a template's source: in the text outside of tags and in the
//! string literals inside.
//!
//! Literals that only inspect a client's text stay as they are: in `'</think>' in content` or
//! `content.split('</think>')` the literal has to match what the client wrote, as in the reference
//! implementation, and is never printed.

use super::markup::Markup;

/// Methods and filters that search a text for their arguments, and the function whose argument is
/// an error message.
const INSPECTING: [&str; 17] = [
    "split",
    "rsplit",
    "startswith",
    "endswith",
    "find",
    "rfind",
    "index",
    "count",
    "strip",
    "lstrip",
    "rstrip",
    "trim",
    "removeprefix",
    "removesuffix",
    "partition",
    "rpartition",
    "raise_exception",
];

/// The source with codes.
pub(super) fn coded(source: &str, markup: &Markup) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    loop {
        let open = ["{{", "{%", "{#"].into_iter().filter_map(|open| rest.find(open)).min();
        let Some(at) = open else {
            markup.code_into(rest, &mut out);
            return out;
        };
        markup.code_into(&rest[..at], &mut out);
        rest = &rest[at..];
        let length = if rest.starts_with("{#") {
            let length = rest.find("#}").map_or(rest.len(), |end| end + 2);
            out.push_str(&rest[..length]);
            length
        } else {
            Tag::new(rest, markup).write(&mut out)
        };
        // Everything between these tags is text, also what has the form of a tag.
        let raw = rest[..length].trim_matches(['{', '%', '}', '-', '+', ' ']) == "raw";
        rest = &rest[length..];
        if raw {
            let length =
                rest.find("endraw").and_then(|at| rest[..at].rfind("{%")).unwrap_or(rest.len());
            markup.code_into(&rest[..length], &mut out);
            rest = &rest[length..];
        }
    }
}

/// A bracket that is open.
struct Bracket {
    /// The word before it.
    word: String,
    /// Commas directly in it so far.
    commas: usize,
}

impl Bracket {
    /// Whether what is directly in it now inspects.
    fn inspects(&self) -> bool {
        match self.word.as_str() {
            "in" => true,
            "replace" => self.commas == 0,
            word => INSPECTING.contains(&word),
        }
    }
}

/// A tag from its first brace on.
struct Tag<'a> {
    rest: &'a str,
    markup: &'a Markup,
    /// The word or sign before `rest`.
    last: &'a str,
    open: Vec<Bracket>,
}

impl<'a> Tag<'a> {
    fn new(source: &'a str, markup: &'a Markup) -> Self {
        Self { rest: source, markup, last: "", open: vec![] }
    }

    /// Writes the tag with codes. Returns the length of its source in bytes.
    fn write(mut self, out: &mut String) -> usize {
        let all = self.rest.len();
        let close = if self.rest.starts_with("{{") { "}}" } else { "%}" };
        self.copy(2, out);
        while let Some(character) = self.rest.chars().next() {
            if self.open.is_empty() && self.rest.starts_with(close) {
                self.copy(close.len(), out);
                break;
            }
            match character {
                '\'' | '"' => self.literal(character, out),
                '(' | '[' | '{' => {
                    self.open.push(Bracket { word: self.last.to_owned(), commas: 0 });
                    self.sign(1, out);
                }
                ')' | ']' | '}' => {
                    self.open.pop();
                    self.sign(1, out);
                }
                ',' => {
                    if let Some(bracket) = self.open.last_mut() {
                        bracket.commas += 1;
                    }
                    self.sign(1, out);
                }
                _ if character.is_alphanumeric() || character == '_' => {
                    let word = |character: char| character.is_alphanumeric() || character == '_';
                    let length =
                        self.rest.find(|character| !word(character)).unwrap_or(self.rest.len());
                    self.sign(length, out);
                }
                _ if character.is_whitespace() => self.copy(character.len_utf8(), out),
                _ if self.rest.starts_with("==") || self.rest.starts_with("!=") => {
                    self.sign(2, out)
                }
                _ => self.sign(character.len_utf8(), out),
            }
        }
        all - self.rest.len()
    }

    fn copy(&mut self, length: usize, out: &mut String) {
        let (piece, rest) = self.rest.split_at(length);
        out.push_str(piece);
        self.rest = rest;
    }

    fn sign(&mut self, length: usize, out: &mut String) {
        self.last = &self.rest[..length];
        self.copy(length, out);
    }

    fn literal(&mut self, quote: char, out: &mut String) {
        let mut escaped = false;
        let end = self.rest[1..].find(|character| {
            let closes = character == quote && !escaped;
            escaped = character == '\\' && !escaped;
            closes
        });
        let length = end.map_or(self.rest.len(), |end| end + 2);
        let (literal, rest) = self.rest.split_at(length);
        let behind = rest.trim_start();
        let compared =
            ["==", "!=", "in ", "in(", "not in "].iter().any(|sign| behind.starts_with(sign));
        let inspects = compared
            || ["==", "!=", "in"].contains(&self.last)
            || self.open.iter().any(Bracket::inspects);
        if inspects {
            out.push_str(literal);
        } else {
            self.markup.code_into(literal, out);
        }
        (self.last, self.rest) = ("", rest);
    }
}
