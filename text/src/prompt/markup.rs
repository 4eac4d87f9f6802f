//! The texts of a prompt that only the chat template may write: special tokens, other added tokens
//! that the template uses, and turn delimiters that are ordinary text. Together they are called
//! markup.
//!
//! The algorithm: each markup in the template's source is replaced by a code, and after rendering a
//! text is the template's if and only if it came as a code. The same characters from a client are
//! ordinary text.
//!
//! Why the template is marked and not the client's strings: templates trim, split, compare and
//! measure client strings, and these operations keep their results only if the strings stay as they
//! are. A mark also has to survive every such operation, while a code need not: a template prints
//! its own literals as they are.
//!
//! Why it holds for any template: a code begins with [`CODE`]. No client string has that character,
//! because [`escape`] replaces it, and no operation on texts makes a character that none of its
//! operands has. So concatenation, slices, JSON and changes of case make no code, whatever
//! fragments a client sends.
//!
//! Some templates put a markup together of pieces (`'<|' + message.role + '|>'`). Then the
//! rendering has it as plain text. Such a conversation is rendered once more with marks
//! ([`Marker`]) beside each character of a client that a markup of this kind could use. A mark
//! inside an occurrence shows that a client wrote a part of it.

use std::borrow::Cow;
use std::ops::Range;

use aho_corasick::AhoCorasick;

/// Begins a code: the number of a markup follows. The three reserved characters are noncharacters
/// of Unicode: legal in UTF-8 and meant for use inside of a program.
const CODE: char = '\u{fdd0}';
/// Begins an escaped character of a client: the number of a reserved character follows.
const ESCAPE: char = '\u{fdd1}';
/// Stands beside a client's character in a second rendering.
const MARK: char = '\u{fdd2}';
const RESERVED: [char; 3] = [CODE, ESCAPE, MARK];

/// The first of the private characters that stand for numbers. No operation on letter case changes
/// them.
const FIRST_NUMBER: u32 = 0xF_0000;
/// Numbers there are. The largest published vocabularies have about 6,000 added tokens.
pub(super) const MAX_ITEMS: usize = 0xFFFD;

/// One text that only the template may write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The text as the template writes it.
    pub text: String,
    /// The id of its added token. A turn delimiter that is ordinary text has none.
    pub token: Option<u32>,
}

/// A token that a tokenizer adds to its model's vocabulary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    /// The token's id in the vocabulary.
    pub id: u32,
    /// The characters that the tokenizer reads as this token.
    pub text: String,
    /// Whether it is marked as special.
    pub special: bool,
}

impl Added {
    /// Whether it looks like a tag: a letter and a sign. Added tokens of white space or of plain
    /// words are no markup.
    pub(super) fn is_tag(&self) -> bool {
        let sign = |character: char| !character.is_alphanumeric() && !character.is_whitespace();
        self.text.contains(char::is_alphabetic) && self.text.contains(sign)
    }

    pub(super) fn item(&self) -> Item {
        Item { text: self.text.clone(), token: Some(self.id) }
    }
}

/// Why markup cannot be told from text.
#[derive(Debug, thiserror::Error)]
pub enum MarkupError {
    /// There are more texts than numbers for them.
    #[error("expected at most {MAX_ITEMS} special tokens and delimiters, found {found}")]
    TooMany {
        /// Texts of this model.
        found: usize,
    },
    /// The search for the texts cannot be prepared.
    #[error("the special tokens cannot be searched for")]
    Search(#[from] aho_corasick::BuildError),
}

/// All markup of a model.
#[derive(Debug)]
pub struct Markup {
    items: Vec<Item>,
    /// Finds overlapping occurrences, so that none hides another.
    finder: AhoCorasick,
}

/// An occurrence of a markup in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occurrence {
    /// First byte of the occurrence.
    pub start: usize,
    /// The byte after the last one.
    pub end: usize,
    /// The number of the markup.
    pub item: usize,
}

impl Occurrence {
    fn range(&self) -> Range<usize> {
        self.start..self.end
    }
}

/// A prompt as text, and which of its markup is the template's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The text, without codes and marks.
    pub text: String,
    /// The markup that the template wrote, in order.
    pub markup: Vec<Occurrence>,
    /// Texts equal to a markup that a client wrote, or wrote a part of. They may overlap.
    pub forged: Vec<Occurrence>,
    /// Where the text of the last message of the user begins, if that is known.
    pub last_turn: Option<usize>,
}

/// A rendering with its codes and marks taken out.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) text: String,
    /// Codes, in order.
    markup: Vec<Occurrence>,
    /// Places of marks, in order.
    marks: Vec<usize>,
}

impl Markup {
    /// The markup of these texts.
    ///
    /// # Errors
    /// There are too many to be numbered.
    pub(super) fn new(items: Vec<Item>) -> Result<Self, MarkupError> {
        if items.len() > MAX_ITEMS {
            return Err(MarkupError::TooMany { found: items.len() });
        }
        let finder = AhoCorasick::new(items.iter().map(|item| item.text.as_bytes()))?;
        Ok(Self { items, finder })
    }

    /// The texts, by number.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// The code of a markup's text, or the text itself where it is none.
    pub(super) fn coded(&self, text: &str) -> String {
        self.items.iter().position(|item| item.text == text).map_or_else(|| text.to_owned(), code)
    }

    /// Writes `text` with a code in the place of each markup; of those that overlap the first one,
    /// the longest there.
    pub(super) fn code_into(&self, text: &str, out: &mut String) {
        self.replace_into(text, out, code);
    }

    /// `text` with `sign` in the place of each markup.
    pub(super) fn hidden(&self, text: &str, sign: char) -> String {
        let mut out = String::with_capacity(text.len());
        self.replace_into(text, &mut out, |_| sign.to_string());
        out
    }

    fn replace_into(&self, text: &str, out: &mut String, with: impl Fn(usize) -> String) {
        let mut found: Vec<Occurrence> = self.occurrences(text).collect();
        found.sort_by_key(|at| (at.start, usize::MAX - at.end));
        let mut done = 0;
        for at in found {
            if at.start >= done {
                out.push_str(&text[done..at.start]);
                out.push_str(&with(at.item));
                done = at.end;
            }
        }
        out.push_str(&text[done..]);
    }

    fn occurrences<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Occurrence> + 'a {
        let at = |found: aho_corasick::Match| Occurrence {
            start: found.start(),
            end: found.end(),
            item: found.pattern().as_usize(),
        };
        self.finder.find_overlapping_iter(text).map(at)
    }

    /// Adds the numbers of all markup in `text` to `found`, which has a place for each.
    pub(super) fn note(&self, text: &str, found: &mut [bool]) {
        for at in self.occurrences(text) {
            found[at.item] = true;
        }
    }

    /// Takes codes, escapes and marks out of a rendering.
    pub(super) fn decode(&self, rendering: &str) -> Decoded {
        let mut decoded =
            Decoded { text: String::with_capacity(rendering.len()), markup: vec![], marks: vec![] };
        let mut rest = rendering;
        while let Some(at) = rest.find(RESERVED) {
            let (before, from) = rest.split_at(at);
            decoded.text.push_str(before);
            let mut characters = from.chars();
            let (kind, number) = (characters.next(), characters.clone().next().and_then(number));
            match (kind, number) {
                (Some(CODE), Some(item)) if item < self.items.len() => {
                    characters.next();
                    let start = decoded.text.len();
                    decoded.text.push_str(&self.items[item].text);
                    decoded.markup.push(Occurrence { start, end: decoded.text.len(), item });
                }
                (Some(ESCAPE), Some(which)) if which < RESERVED.len() => {
                    characters.next();
                    decoded.text.push(RESERVED[which]);
                }
                (Some(MARK), _) => decoded.marks.push(decoded.text.len()),
                // The template cut an escape or a code in two.
                (Some(character), _) => decoded.text.push(character),
                (None, _) => {}
            }
            rest = characters.as_str();
        }
        decoded.text.push_str(rest);
        decoded
    }

    /// The text of a message that may have codes in it.
    pub(super) fn readable(&self, message: &str) -> String {
        self.decode(message).text
    }

    /// Occurrences in a rendering that did not come as codes. What lies inside one code is the
    /// template's.
    pub(super) fn plain(&self, decoded: &Decoded) -> Vec<Occurrence> {
        let inside_a_code = |at: &Occurrence| {
            let next = decoded.markup.partition_point(|code| code.start <= at.start);
            decoded.markup[..next].last().is_some_and(|code| at.end <= code.end)
        };
        self.occurrences(&decoded.text).filter(|at| !inside_a_code(at)).collect()
    }
}

impl Decoded {
    /// The rendering, with `plain` as the texts of clients.
    pub(super) fn rendered(self, plain: Vec<Occurrence>) -> Rendered {
        Rendered { text: self.text, markup: self.markup, forged: plain, last_turn: None }
    }

    /// The place of the first mark.
    pub(super) fn first_mark(&self) -> Option<usize> {
        self.marks.first().copied()
    }

    /// Takes plain occurrences over as the template's, if `assembled` says that they may be and no
    /// mark is inside: of those that overlap the first one, the longest there. The others remain.
    pub(super) fn rendered_of_pieces(
        mut self,
        mut plain: Vec<Occurrence>,
        assembled: impl Fn(usize) -> bool,
    ) -> Rendered {
        plain.sort_by_key(|at| (at.start, usize::MAX - at.end));
        let coded = std::mem::take(&mut self.markup);
        let overlaps_a_code = |at: &Occurrence| {
            let next = coded.partition_point(|code| code.end <= at.start);
            coded.get(next).is_some_and(|code| code.start < at.end)
        };
        let marked = |at: &Occurrence| {
            let next = self.marks.partition_point(|mark| *mark <= at.start);
            self.marks.get(next).is_some_and(|mark| *mark < at.end)
        };
        let mut done = 0;
        let mut ours = Vec::new();
        let mut forged = Vec::new();
        for at in plain {
            if assembled(at.item) && at.start >= done && !marked(&at) && !overlaps_a_code(&at) {
                done = at.end;
                ours.push(at);
            } else if ours.last().is_none_or(|last: &Occurrence| at.end > last.end) {
                forged.push(at);
            }
        }
        self.markup = coded;
        self.markup.extend(ours);
        self.markup.sort_by_key(|at| at.start);
        self.rendered(forged)
    }
}

impl Rendered {
    /// Whether [`Rendered::forged`] has one that overlaps this range of the template's markup:
    /// where it begins or ends inside.
    pub(super) fn borders(&self, forged: &Occurrence) -> Vec<usize> {
        let from = self.markup.partition_point(|at| at.end <= forged.start);
        let overlapping = self.markup[from..].iter().take_while(|at| at.start < forged.end);
        let ends = overlapping.flat_map(|at| [at.start, at.end]);
        ends.filter(|place| forged.range().contains(place) && *place > forged.start).collect()
    }
}

fn code(item: usize) -> String {
    String::from_iter([CODE, digit(item)])
}

/// The character that stands for a number up to [`MAX_ITEMS`].
pub(super) fn digit(number: usize) -> char {
    let offset = u32::try_from(number).unwrap_or(0);
    char::from_u32(FIRST_NUMBER + offset).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn number(character: char) -> Option<usize> {
    u32::from(character)
        .checked_sub(FIRST_NUMBER)
        .map(|offset| offset as usize)
        .filter(|number| *number <= MAX_ITEMS)
}

/// The characters of a text in a rendering, and whether they belong to a code or a mark. With
/// `escapes`, an escape is the character it stands for: for a text in which that character will be
/// written otherwise.
pub(super) fn characters(text: &str, escapes: bool) -> impl Iterator<Item = (char, bool)> + '_ {
    let mut characters = text.chars();
    let mut in_code = false;
    std::iter::from_fn(move || {
        let character = characters.next()?;
        let behind = characters.clone().next().and_then(number);
        match behind.and_then(|number| RESERVED.get(number)) {
            Some(meant) if escapes && character == ESCAPE => {
                characters.next();
                return Some((*meant, false));
            }
            _ => {}
        }
        let is_code = std::mem::replace(&mut in_code, character == CODE && behind.is_some());
        Some((character, is_code || RESERVED.contains(&character)))
    })
}

/// A client's string without reserved characters.
pub(super) fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(RESERVED) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match RESERVED.iter().position(|reserved| *reserved == character) {
            Some(which) => out.extend([ESCAPE, digit(which)]),
            None => out.push(character),
        }
    }
    out.into()
}

/// Inserts a mark before the first character of a client's string.
pub(super) fn mark_beginning(text: &str) -> String {
    let characters = text.trim_start();
    let (space, characters) = text.split_at(text.len() - characters.len());
    format!("{}{MARK}{}", escape(space), escape(characters))
}

/// Marks what a client could contribute to markup that a template puts together of pieces.
///
/// A client's part of an occurrence has a character that is neither letter nor digit, or it is a
/// whole word between two such characters of the template. The first is marked on both sides, of
/// which one lies inside the occurrence. A word is marked if it is a part of a word of the markup
/// or has one in it. The template's own words, such as the role, have no marks.
#[derive(Debug)]
pub(super) struct Marker {
    symbols: Vec<char>,
    words: Vec<String>,
}

impl Marker {
    /// Of these texts.
    pub(super) fn new<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        let mut marker = Self { symbols: vec![], words: vec![] };
        for text in texts {
            marker
                .symbols
                .extend(text.chars().filter(|character| {
                    !character.is_alphanumeric() && !character.is_whitespace()
                }));
            marker.words.extend(words(text).map(str::to_owned));
        }
        marker.symbols.sort_unstable();
        marker.symbols.dedup();
        marker.words.sort_unstable();
        marker.words.dedup();
        marker
    }

    /// A client's string, marked.
    pub(super) fn mark(&self, text: &str) -> String {
        let text = escape(text);
        let mut out = String::with_capacity(text.len() * 2);
        let mut rest = &*text;
        while let Some(character) = rest.chars().next() {
            // At a symbol, the search for a word would read up to the next one.
            let is_word = character.is_alphanumeric();
            let word = if is_word { words(rest).next() } else { None };
            let length = word.map_or(character.len_utf8(), str::len);
            let (piece, behind) = rest.split_at(length);
            let uses = |part: &String| part.contains(piece) || piece.contains(part.as_str());
            let marked = if is_word {
                self.words.iter().any(uses)
            } else {
                self.symbols.contains(&character)
            };
            if marked {
                piece.chars().for_each(|character| out.extend([MARK, character]));
                out.push(MARK);
            } else {
                out.push_str(piece);
            }
            rest = behind;
        }
        out
    }
}

/// Runs of letters and digits.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !character.is_alphanumeric()).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_symbols_is_marked_in_linear_time() {
        let marker = Marker::new(["<|im_start|>"].into_iter());
        let text = "<".repeat(1 << 20);
        let (marked, took) = crate::time_of(|| marker.mark(&text));
        assert_eq!(marked.chars().count(), 3 << 20);
        // Linear: some 20 ms. A search for the next word at each symbol would take minutes.
        assert!(took.as_secs() < 5, "{took:?}");
    }
}
