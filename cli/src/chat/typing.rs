//! A message while it is typed. A line that ends with a backslash goes on, and a text between lines
//! of `"""` is taken as it is.

/// Mark before and after a text that is taken as it is.
const QUOTES: &str = "\"\"\"";

/// A message, or a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatText {
    /// The text, without the marks of its lines.
    pub text: String,
    /// Whether it stood between quotes: then it is no command.
    pub is_quoted: bool,
}

impl ChatText {
    /// The message as it may be typed again.
    pub fn typed(&self) -> String {
        match self.is_quoted {
            true => format!("{QUOTES}\n{}\n{QUOTES}", self.text),
            false => self.text.clone(),
        }
    }
}

/// A message of which lines may be missing.
#[derive(Debug, Default)]
pub struct Typing {
    /// The lines so far. Empty before the first one.
    text: String,
    is_quoted: bool,
}

impl Typing {
    /// What stands before the next line.
    pub fn prompt(&self) -> &'static str {
        if self.text.is_empty() { "> " } else { ". " }
    }

    /// Adds what was typed before Enter; pasted lines come together. Returns the message if it is
    /// whole.
    pub fn add(&mut self, typed: &str) -> Option<ChatText> {
        self.is_quoted |= self.text.is_empty() && typed.trim_start().starts_with(QUOTES);
        self.text.push_str(typed);
        if self.is_quoted {
            let Some(text) = self.text.trim()[QUOTES.len()..].strip_suffix(QUOTES) else {
                self.text.push('\n');
                return None;
            };
            let text = text.strip_prefix('\n').unwrap_or(text);
            let text = text.strip_suffix('\n').unwrap_or(text).to_owned();
            return Some(ChatText { text, is_quoted: true });
        }
        if self.text.ends_with('\\') {
            self.text.pop();
            self.text.push('\n');
            return None;
        }
        Some(ChatText { text: std::mem::take(&mut self.text), is_quoted: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message of these pieces, each of which ended with Enter; the last one completes it.
    #[track_caller]
    fn typed(pieces: &[&str]) -> ChatText {
        let mut typing = Typing::default();
        let (last, first) = pieces.split_last().expect("a piece");
        for piece in first {
            assert_eq!(typing.add(piece), None, "{pieces:?} after {piece:?}");
            assert_eq!(typing.prompt(), ". ");
        }
        typing.add(last).unwrap_or_else(|| panic!("{pieces:?} is not whole"))
    }

    #[test]
    fn a_backslash_at_the_end_of_a_line_takes_the_next_line() {
        assert_eq!(Typing::default().prompt(), "> ");
        for (pieces, text) in [
            (&["one"][..], "one"),
            (&["one\\", "two\\", ""], "one\ntwo\n"),
            (&["\\", "/help"], "\n/help"),
            // Only the end of what was typed counts: a pasted text keeps its backslashes.
            (&["cc \\\n  -o x"], "cc \\\n  -o x"),
            (&["a \\ b"], "a \\ b"),
        ] {
            assert_eq!(typed(pieces), ChatText { text: text.into(), is_quoted: false });
        }
    }

    #[test]
    fn a_text_between_quotes_is_taken_as_it_is() {
        for (pieces, text) in [
            (&["\"\"\"", "  if x:\\", "", "/bye", "\"\"\""][..], "  if x:\\\n\n/bye"),
            (&["\"\"\"/help\"\"\""], "/help"),
            (&[" \"\"\"one", "two\"\"\" "], "one\ntwo"),
            (&["\"\"\"\na \"\"\" b\n\"\"\""], "a \"\"\" b"),
            (&["\"\"\"\"\"\""], ""),
        ] {
            let found = typed(pieces);
            assert_eq!(found, ChatText { text: text.into(), is_quoted: true }, "{pieces:?}");
            assert_eq!(typed(&[&found.typed()]), found, "typed again");
        }
    }
}
