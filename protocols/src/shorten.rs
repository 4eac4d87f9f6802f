//! Texts of others, bounded: the words of clients in errors, and the reasons of the supervisor on
//! the status page.

/// Cuts a text after `most` characters. Three dots show that something is missing.
pub fn shorten(text: &mut String, most: usize) {
    if let Some((cut, _)) = text.char_indices().nth(most) {
        text.truncate(cut);
        text.push_str("...");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters_and_only_if_it_is_longer() {
        for (text, expected) in [("", ""), ("éé", "éé"), ("ééé", "éé..."), ("abcd", "ab...")]
        {
            let mut cut = text.to_owned();
            shorten(&mut cut, 2);
            assert_eq!(cut, expected);
        }
    }
}
