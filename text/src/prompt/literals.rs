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
    /// Lengths of `rest` at which a filter's bracket closes that the source does not have.
    closing: Vec<usize>,
}

impl<'a> Tag<'a> {
    fn new(source: &'a str, markup: &'a Markup) -> Self {
        Self { rest: source, markup, last: "", open: vec![], closing: vec![] }
    }

    /// Writes the tag with codes. Returns the length of its source in bytes.
    fn write(mut self, out: &mut String) -> usize {
        let all = self.rest.len();
        let close = if self.rest.starts_with("{{") { "}}" } else { "%}" };
        self.copy(2, out);
        while let Some(character) = self.rest.chars().next() {
            while self.closing.pop_if(|at| *at >= self.rest.len()).is_some() {
                out.push(')');
            }
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
        let length = literal_length(self.rest, quote);
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
        self.percent(out);
    }

    /// Writes `'text' % value` as a call of the filter `percent`, because the engine's operator is
    /// for numbers alone.
    fn percent(&mut self, out: &mut String) {
        let Some(value) = self.rest.trim_start().strip_prefix('%') else { return };
        if value.starts_with(['}', '=']) {
            return;
        }
        let length = operand(value);
        out.push_str(" | percent(");
        self.rest = value;
        self.closing.push(value.len() - length);
    }
}

/// Length of the operand in front: a word, a literal or brackets, with all attributes, calls and
/// filters after it.
fn operand(source: &str) -> usize {
    let primary = |source: &str| match source.chars().next() {
        Some('(' | '[' | '{') => group(source),
        Some(quote @ ('\'' | '"')) => literal_length(source, quote),
        _ => source
            .find(|character: char| !(character.is_alphanumeric() || character == '_'))
            .unwrap_or(source.len()),
    };
    let mut rest = source.trim_start().trim_start_matches('-');
    rest = &rest[primary(rest)..];
    loop {
        let behind = rest.trim_start();
        let next = match behind.chars().next() {
            Some('.' | '|') => {
                let name = behind[1..].trim_start();
                &name[primary(name)..]
            }
            Some('(' | '[') => &behind[group(behind)..],
            _ => return source.len() - rest.len(),
        };
        rest = next;
    }
}

/// Length of the brackets in front, with what is in them.
fn group(source: &str) -> usize {
    let mut depth = 0usize;
    let mut rest = source;
    while let Some(character) = rest.chars().next() {
        let length = match character {
            '\'' | '"' => literal_length(rest, character),
            _ => character.len_utf8(),
        };
        rest = &rest[length..];
        match character {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    source.len() - rest.len()
}

/// Length of the literal in front, with its quotes.
fn literal_length(source: &str, quote: char) -> usize {
    let mut escaped = false;
    let end = source[1..].find(|character| {
        let closes = character == quote && !escaped;
        escaped = character == '\\' && !escaped;
        closes
    });
    end.map_or(source.len(), |end| end + 2)
}
