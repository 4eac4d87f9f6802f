//! Lists and mappings as Python prints them, which some templates write: they become JSON.

use std::iter::Peekable;
use std::str::Chars;

use serde_json::Value;

use super::super::json::{MAX_DEPTH, escape};
use super::word_of_json;

/// The JSON of a list, a tuple or a mapping; `None` if the text is none of them as a whole.
pub(super) fn json_of(text: &str) -> Option<String> {
    let text = text.trim();
    let mut reader = Reader { rest: text.chars().peekable(), out: String::new() };
    text.starts_with(['[', '{', '(']).then_some(())?;
    reader.value(0)?;
    reader.next_sign().is_none().then_some(reader.out)
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    out: String,
}

impl Reader<'_> {
    /// The next character that is no white space, which is not taken.
    fn next_sign(&mut self) -> Option<char> {
        while self.rest.next_if(|character| character.is_whitespace()).is_some() {}
        self.rest.peek().copied()
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        match self.next_sign()? {
            _ if depth > MAX_DEPTH => None,
            '[' => self.elements(']', depth),
            '(' => self.elements(')', depth),
            '{' => self.elements('}', depth),
            quote @ ('\'' | '"') => self.text(quote),
            _ => {
                let literal = self.literal()?;
                self.out.push_str(&literal);
                Some(())
            }
        }
    }

    /// The elements of a list, or the members of a mapping, up to the closing sign.
    fn elements(&mut self, close: char, depth: usize) -> Option<()> {
        self.rest.next();
        let (open, end) = if close == '}' { ('{', '}') } else { ('[', ']') };
        self.out.push(open);
        let mut is_first = true;
        while self.next_sign()? != close {
            if !std::mem::take(&mut is_first) {
                (self.rest.next()? == ',').then_some(())?;
                // A tuple of one element has a comma after it.
                if self.next_sign()? == close {
                    break;
                }
                self.out.push_str(", ");
            }
            if close == '}' {
                self.key()?;
            }
            self.value(depth + 1)?;
        }
        self.rest.next();
        self.out.push(end);
        Some(())
    }

    /// The key of a member with its colon. JSON's keys are texts.
    fn key(&mut self) -> Option<()> {
        match self.next_sign()? {
            quote @ ('\'' | '"') => self.text(quote)?,
            _ => {
                let literal = self.literal()?;
                self.out.push_str(&Value::from(literal).to_string());
            }
        }
        (self.next_sign()? == ':').then_some(())?;
        self.rest.next();
        self.out.push_str(": ");
        Some(())
    }

    /// A number or a word, as JSON writes it.
    fn literal(&mut self) -> Option<String> {
        let mut word = String::new();
        let goes_on = |one: &char| one.is_ascii_alphanumeric() || matches!(one, '+' | '-' | '.');
        while let Some(character) = self.rest.next_if(goes_on) {
            word.push(character);
        }
        let word = word_of_json(&word);
        serde_json::from_str::<Value>(word).is_ok().then(|| word.to_owned())
    }

    fn text(&mut self, quote: char) -> Option<()> {
        self.rest.next();
        self.out.push('"');
        loop {
            let character = match self.rest.next()? {
                '\\' => self.escaped()?,
                character if character == quote => break,
                character => character,
            };
            escape(character, &mut self.out);
        }
        self.out.push('"');
        Some(())
    }

    /// The character of an escape. Python prints no other ones.
    fn escaped(&mut self) -> Option<char> {
        let digits = match self.rest.next()? {
            'n' => return Some('\n'),
            'r' => return Some('\r'),
            't' => return Some('\t'),
            character @ ('\\' | '\'' | '"') => return Some(character),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => return None,
        };
        let code: String = self.rest.by_ref().take(digits).collect();
        char::from_u32(u32::from_str_radix(&code, 16).ok()?)
    }
}
