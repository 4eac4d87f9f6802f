//! Texts cut and wrapped to columns of a terminal. A character may take none, one or two.

use ratatui::text::Span;

/// In the place of what does not fit.
const CUT: char = '…';

/// Columns of `text`.
pub fn columns(text: &str) -> usize {
    Span::raw(text).width()
}

fn columns_of(character: char) -> usize {
    columns(character.encode_utf8(&mut [0; 4]))
}

/// The beginning of `text` in at most `width` columns.
pub fn fit(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let mut room = width.saturating_sub(1);
    let fits = |character: &char| {
        let columns = columns_of(*character);
        let has_room = columns <= room;
        room = room.saturating_sub(columns);
        has_room
    };
    let mut kept: String = text.chars().take_while(fits).collect();
    if width > 0 {
        kept.push(CUT);
    }
    kept
}

/// The end of `text` in at most `width` columns: of a path it is the part that names the model.
pub fn fit_end(text: &str, width: usize) -> String {
    let turned: String = text.chars().rev().collect();
    fit(&turned, width).chars().rev().collect()
}

/// `text` in exactly `width` columns, aligned left.
pub fn padded(text: &str, width: usize) -> String {
    let mut text = fit(text, width);
    text.push_str(&" ".repeat(width.saturating_sub(columns(&text))));
    text
}

/// The lines of `text`, broken at spaces. A longer word is broken anywhere.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(2);
    let mut lines = vec![String::new()];
    for word in text.split_inclusive(' ') {
        let last = lines.last().map_or(0, |line| columns(line));
        if last > 0 && last + columns(word.trim_end()) > width {
            lines.push(String::new());
        }
        for character in word.chars() {
            let line = lines.last().map_or(0, |line| columns(line));
            let is_full = line + columns_of(character) > width;
            // A space at the end of a line is not shown.
            if is_full && character == ' ' {
                continue;
            }
            if is_full {
                lines.push(String::new());
            }
            if let Some(line) = lines.last_mut() {
                line.push(character);
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_by_columns_at_either_end() {
        assert_eq!((fit("target", 6), fit("target", 5)), ("target".into(), "targ…".into()));
        assert_eq!((fit("模型模型", 5), fit("模型", 0)), ("模型…".into(), String::new()));
        assert_eq!(fit("模型模型", 4), "模…");
        assert_eq!(fit_end("/models/smollm2", 8), "…smollm2");
        assert_eq!((padded("ab", 4), padded("abcdef", 4)), ("ab  ".into(), "abc…".into()));
        assert_eq!(padded("模型", 4), "模型");
    }

    #[test]
    fn a_text_is_wrapped_at_spaces_and_long_words_anywhere() {
        assert_eq!(wrap("one two three", 8), ["one two ", "three"]);
        assert_eq!(wrap("/a/very/long/path is", 8), ["/a/very/", "long/pat", "h is"]);
        assert_eq!(wrap("", 8), [""]);
        for width in 0..12 {
            let text = "模型 one 模型模型模型 two-and-three";
            let lines = wrap(text, width);
            assert!(lines.iter().all(|line| columns(line) <= width.max(2)), "{lines:?}");
            let letters = |text: &str| text.replace(' ', "");
            assert_eq!(letters(&lines.concat()), letters(text), "{width}");
        }
    }
}
