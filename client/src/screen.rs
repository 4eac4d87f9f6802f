//! The only place that prints. It has two writers, so that a test can read the output.

use std::io::{self, IsTerminal as _, Write};

use crate::failure::Failure;

/// Standard output and error, and whether they are terminals.
pub struct Screen {
    out: Box<dyn Write + Send>,
    err: Box<dyn Write + Send>,
    out_is_terminal: bool,
    err_is_terminal: bool,
    /// The last line on the terminal has no end yet; the next one overwrites it.
    transient: bool,
    /// The same of standard error.
    passing: bool,
}

impl Screen {
    /// The streams of this process.
    pub fn standard() -> Self {
        Self {
            out: Box::new(io::stdout()),
            err: Box::new(io::stderr()),
            out_is_terminal: io::stdout().is_terminal(),
            err_is_terminal: io::stderr().is_terminal(),
            transient: false,
            passing: false,
        }
    }

    /// Other writers, which are no terminals.
    pub fn over(out: impl Write + Send + 'static, err: impl Write + Send + 'static) -> Self {
        Self {
            out: Box::new(out),
            err: Box::new(err),
            out_is_terminal: false,
            err_is_terminal: false,
            transient: false,
            passing: false,
        }
    }

    /// Whether a person reads standard error.
    pub fn err_is_terminal(&self) -> bool {
        self.err_is_terminal
    }

    /// Writes to standard output at once, as it is.
    ///
    /// # Errors
    /// The reader is gone.
    pub fn text(&mut self, text: &str) -> Result<(), Failure> {
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        written.map_err(|_| Failure::output_closed())
    }

    /// Writes a piece of a model's answer. A terminal is not sent characters that it would carry
    /// out, or that reorder others.
    ///
    /// # Errors
    /// The reader is gone.
    pub fn answer(&mut self, text: &str) -> Result<(), Failure> {
        match self.out_is_terminal {
            true => self.text(&harmless(text)),
            false => self.text(text),
        }
    }

    /// A whole line on standard output. It is ignored if the reader is gone.
    pub fn line(&mut self, line: &str) {
        self.clear();
        let _ = self.text(&format!("{line}\n"));
    }

    /// A line that the next one replaces. Shown only if standard output is a terminal.
    pub fn transient(&mut self, line: &str) {
        if self.out_is_terminal {
            self.transient = true;
            let _ = self.text(&format!("\r\x1b[2K{line}"));
        }
    }

    /// Whether [`Screen::transient`] shows anything.
    pub fn shows_transient(&self) -> bool {
        self.out_is_terminal
    }

    /// Progress on standard error. On a terminal the next line replaces it; elsewhere it is a whole
    /// line if it `stays`, else nothing.
    pub fn progress(&mut self, line: &str, stays: bool) {
        if self.err_is_terminal {
            self.passing = true;
            let _ = write!(self.err, "\r\x1b[2K{line}").and_then(|()| self.err.flush());
        } else if stays {
            self.note(line);
        }
    }

    /// A line on standard error.
    pub fn note(&mut self, line: &str) {
        self.clear();
        let _ = writeln!(self.err, "{line}");
    }

    /// A prompt for input on standard error, if a person reads it.
    pub fn prompt(&mut self, prompt: &str) {
        if self.err_is_terminal {
            let _ = write!(self.err, "{prompt}").and_then(|()| self.err.flush());
        }
    }

    /// Whether the person at the terminal says yes to a question.
    ///
    /// # Errors
    /// There is no terminal to ask at: `unasked` is the message.
    pub fn agreed(&mut self, question: &str, unasked: &str) -> Result<bool, Failure> {
        if !io::stdin().is_terminal() || !self.err_is_terminal {
            return Err(Failure::usage(unasked));
        }
        self.prompt(&format!("{question} [y/N] "));
        let mut answer = String::new();
        let read = io::stdin().read_line(&mut answer);
        read.map_err(|error| Failure::usage(format!("cannot read the answer: {error}")))?;
        Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
    }

    /// An error on standard error.
    pub fn complain(&mut self, what: &str) {
        self.note(&format!("paceline: {what}"));
    }

    /// Removes the lines of [`Screen::transient`] and [`Screen::progress`], if they are shown.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.transient) {
            let _ = self.text("\r\x1b[2K");
        }
        if std::mem::take(&mut self.passing) {
            let _ = write!(self.err, "\r\x1b[2K").and_then(|()| self.err.flush());
        }
    }
}

/// A text in which such characters are U+FFFD. Line ends and tabs stay, carriage returns are left
/// out.
fn harmless(text: &str) -> String {
    let shown = |character: char| match character {
        '\n' | '\t' => character,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => char::REPLACEMENT_CHARACTER,
        _ if character.is_control() => char::REPLACEMENT_CHARACTER,
        _ => character,
    };
    text.chars().filter(|character| *character != '\r').map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_of_an_answer_reaches_a_terminal_as_an_order() {
        let shown = |out_is_terminal| {
            let file = tempfile::NamedTempFile::new().expect("a temporary file");
            let out = file.reopen().expect("opened");
            let mut screen = Screen { out_is_terminal, ..Screen::over(out, io::sink()) };
            let pieces = ["a\r\n\tb \x1b[2J\u{9b}1m ", "\u{202e}c \u{1f469}\u{200d}\u{1f467}"];
            pieces.iter().for_each(|piece| screen.answer(piece).expect("open"));
            std::fs::read_to_string(file.path()).expect("readable")
        };
        let harmless = "a\n\tb \u{fffd}[2J\u{fffd}1m \u{fffd}c \u{1f469}\u{200d}\u{1f467}";
        assert_eq!(shown(true), harmless);
        assert!(shown(false).contains("\r\n\tb \x1b[2J"), "a program gets the text as it is");
    }
}
