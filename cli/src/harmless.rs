//! Texts from outside on a terminal: reasons, names of models, lines of logs.

/// Most characters of a text that are shown.
const MOST_CHARS: usize = 1_000;

/// `text` on one line, without characters that a terminal carries out or that reorder others. Such
/// a character becomes U+FFFD; line ends and tabs become spaces.
pub fn harmless(text: &str) -> String {
    text.trim_end().chars().take(MOST_CHARS).map(shown).collect()
}

fn shown(character: char) -> char {
    match character {
        '\n' | '\t' => ' ',
        _ if character.is_control() || has_no_width(character) => char::REPLACEMENT_CHARACTER,
        _ => character,
    }
}

/// Characters without a place of their own on the screen: joiners, marks of direction, and tags.
fn has_no_width(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{61c}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_of_a_text_reaches_the_terminal_as_an_order() {
        assert_eq!(harmless("ended\nby\tsignal 9\n"), "ended by signal 9");
        assert_eq!(harmless("\x1b]0;owned\x07 \x1b[2J"), "\u{fffd}]0;owned\u{fffd} \u{fffd}[2J");
        assert_eq!(harmless("\u{9b}31m \u{202e}txt"), "\u{fffd}31m \u{fffd}txt");
        assert_eq!(harmless("模型 é /models/x"), "模型 é /models/x");
        assert_eq!(harmless(&"é".repeat(5_000)).chars().count(), MOST_CHARS);
    }
}
