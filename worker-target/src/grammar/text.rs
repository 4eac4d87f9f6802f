//! Bounds of texts before they are parsed: their size and the nesting of their brackets. The parsers
//! of regular expressions and of Lark call themselves for each level.

use super::GrammarError;

/// Bytes of a JSON schema, and of a frame.
pub(super) const MAX_BYTES: usize = 256 << 10;
/// Bytes of a Lark grammar. Its regular expressions count as one: they take time and memory by the
/// square of their length, 0.4 s and 100 MiB at this one.
pub(super) const MAX_LARK_BYTES: usize = 24 << 10;
/// Bytes of a regular expression.
pub(super) const MAX_REGEX_BYTES: usize = 16 << 10;

/// Checks a text's size.
///
/// # Errors
/// It is larger than `most`.
pub(super) fn check_size(text: &str, most: usize) -> Result<(), GrammarError> {
    if text.len() <= most {
        return Ok(());
    }
    Err(GrammarError::new(format!("at most {most} bytes"), text.len()))
}

/// Checks the nesting of brackets. A bracket after a backslash counts for nothing. Brackets in
/// quotes count: that refuses no text in practice and needs no knowledge of the syntax.
///
/// # Errors
/// There are more than `most` levels.
pub(super) fn check_brackets(text: &str, most: usize) -> Result<(), GrammarError> {
    let (mut depth, mut escaped) = (0_usize, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > most {
            return Err(GrammarError::new(format!("at most {most} levels of brackets"), "more"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_are_counted_and_escaped_ones_are_not() {
        let nested = |levels: usize| format!("{}a{}", "(".repeat(levels), ")".repeat(levels));
        assert!(check_brackets(&nested(64), 64).is_ok());
        assert!(check_brackets(&nested(65), 64).is_err());
        assert!(check_brackets(&"\\(".repeat(1000), 64).is_ok());
        assert!(check_brackets(&"\\\\(".repeat(65), 64).is_err());
        assert!(check_brackets(&"()[]{}".repeat(1000), 64).is_ok());
        assert!(check_brackets(&"[{(".repeat(1 << 20), 64).is_err());
        assert!(check_size("aa", 1).is_err() && check_size("a", 1).is_ok());
    }
}
