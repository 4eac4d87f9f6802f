//! Bounds of the grammars that clients send. The gateway checks them when a request arrives, and the
//! target checks them again before it compiles.

/// Bytes of a JSON schema, of all schemas of a request together, and of a frame.
pub const MAX_SCHEMA_BYTES: usize = 256 << 10;
/// Bytes of a Lark grammar. Its regular expressions count as one: they take time and memory by the
/// square of their length, 0.4 s and 100 MiB at this one.
pub const MAX_LARK_BYTES: usize = 24 << 10;
/// Bytes of a regular expression.
pub const MAX_REGEX_BYTES: usize = 16 << 10;
/// Levels of a schema, and of brackets in a text: parsers call themselves for each level.
pub const MAX_LEVELS: usize = 64;

/// The most brackets of a text that are open at once. A bracket after a backslash counts for
/// nothing. Brackets in quotes count: that refuses no text in practice and needs no knowledge of the
/// syntax.
pub fn bracket_levels(text: &str) -> usize {
    let (mut open, mut most, mut escaped) = (0_usize, 0, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        most = most.max(open);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_are_counted_and_escaped_ones_are_not() {
        let nested = |levels: usize| format!("{}a{}", "(".repeat(levels), ")".repeat(levels));
        assert_eq!(bracket_levels(&nested(64)), 64);
        assert_eq!(bracket_levels(&"\\(".repeat(1000)), 0);
        assert_eq!(bracket_levels(&"\\\\(".repeat(65)), 65);
        assert_eq!(bracket_levels(&"()[]{}".repeat(1000)), 1);
        assert_eq!(bracket_levels(&"[{(".repeat(1 << 20)), 3 << 20);
        assert_eq!(bracket_levels(")a]"), 0);
    }
}
