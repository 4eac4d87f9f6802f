//! Why a regular expression cannot be enforced: what stands in it, and where. The compiler's own
//! error has neither, and not which of a schema's patterns it is.
//!
//! The compiler reads expressions with the same crate. It does without what is not regular: a text
//! is allowed or not by its characters from left to right, so nothing looks around or refers back.

use std::fmt;

use llguidance::regex_to_lark;
use regex_syntax::ast::{self, Ast, Span};
use regex_syntax::hir::{Hir, HirKind, Look};
use regex_syntax::{ParserBuilder, hir};

use super::text::brief;

/// Where an expression stands.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// In a schema: `\d` and `\w` are those of ECMA-262.
    Schema,
    /// Alone, as the whole answer.
    Alone,
}

/// A part of an expression that cannot be enforced.
#[derive(Debug)]
pub(super) struct PatternFault {
    /// Reason, as it follows "a part that".
    why: String,
    /// The part.
    part: String,
    /// Number of the part's first character, from 1 on.
    character: usize,
    pattern: String,
}

impl fmt::Display for PatternFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { why, part, character, pattern } = self;
        write!(f, "`{part}` at character {character} of `{pattern}`, which {why}")
    }
}

/// Checks that the compiler can enforce an expression, its size aside.
///
/// # Errors
/// The first part that it cannot enforce.
pub(super) fn check(pattern: &str, kind: Kind) -> Result<(), PatternFault> {
    let ascii = match kind {
        Kind::Schema => "dw",
        Kind::Alone => "",
    };
    let read = regex_to_lark(pattern, ascii);
    let origin = |offset: usize| origin(pattern, ascii, offset);
    let fault = |span: &Span, why: String| {
        let (start, end) = (origin(span.start.offset), origin(span.end.offset));
        fault(pattern, start, end.max(start), why)
    };
    let mut parser = ParserBuilder::new().build();
    let parsed = parser.parse(&read);
    let hir = parsed.map_err(|error| match &error {
        regex_syntax::Error::Parse(error) => {
            let start = origin(error.span().start.offset);
            match dialect(pattern, start) {
                Some((start, end, why)) => self::fault(pattern, start, end, why.to_owned()),
                None => fault(error.span(), reason(error.kind())),
            }
        }
        regex_syntax::Error::Translate(error) => fault(error.span(), translation(error.kind())),
        other => self::fault(pattern, 0, pattern.len(), format!("is refused: {other}")),
    })?;
    let Some(unserved) = unserved(&hir, true, true) else { return Ok(()) };
    let tree = ast::parse::Parser::new().parse(&read);
    let places = tree.map(|tree| assertions(&tree, &read, &unserved)).unwrap_or_default();
    let span = places.first();
    Err(match span {
        Some(span) => fault(span, unserved.why().to_owned()),
        None => self::fault(pattern, 0, pattern.len(), unserved.why().to_owned()),
    })
}

/// The pattern of a JSON text for which the compiler enforces `pattern`.
///
/// The compiler (`derivre` 0.3.13, `json_quote`) takes a class that has all control characters, or all
/// but the line break, for one with the quote and the backslash, once these are escaped. In a class
/// without U+0000 it takes each character for itself. No text needs U+0000.
pub(super) fn of_json(pattern: &str) -> String {
    let parsed = ParserBuilder::new().build().parse(&regex_to_lark(pattern, "dw"));
    let mut is_changed = false;
    let written = parsed.map(|parsed| without_nul(parsed, &mut is_changed).to_string());
    written.ok().filter(|_| is_changed).unwrap_or_else(|| pattern.to_owned())
}

/// The expression without U+0000 in classes that lack the quote or the backslash.
fn without_nul(hir: Hir, is_changed: &mut bool) -> Hir {
    match hir.into_kind() {
        HirKind::Class(hir::Class::Unicode(mut class)) => {
            let has = |character: char| {
                class.iter().any(|range| (range.start()..=range.end()).contains(&character))
            };
            if has('\0') && !(has('"') && has('\\')) {
                let nul = [hir::ClassUnicodeRange::new('\0', '\0')];
                class.difference(&hir::ClassUnicode::new(nul));
                *is_changed = true;
            }
            Hir::class(hir::Class::Unicode(class))
        }
        HirKind::Repetition(mut repeated) => {
            repeated.sub = Box::new(without_nul(*repeated.sub, is_changed));
            Hir::repetition(repeated)
        }
        HirKind::Capture(mut group) => {
            group.sub = Box::new(without_nul(*group.sub, is_changed));
            Hir::capture(group)
        }
        HirKind::Concat(all) => {
            Hir::concat(all.into_iter().map(|one| without_nul(one, is_changed)).collect())
        }
        HirKind::Alternation(all) => {
            Hir::alternation(all.into_iter().map(|one| without_nul(one, is_changed)).collect())
        }
        HirKind::Class(class) => Hir::class(class),
        HirKind::Literal(literal) => Hir::literal(literal.0),
        HirKind::Look(look) => Hir::look(look),
        HirKind::Empty => Hir::empty(),
    }
}

/// The place in the client's text of a place in the text that is read.
fn origin(pattern: &str, ascii: &str, offset: usize) -> usize {
    let (mut start, mut read) = (0, 0);
    let mut characters = pattern.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        // A backslash is read together with the character after it.
        if character == '\\' {
            characters.next();
        }
        let end = characters.peek().map_or(pattern.len(), |(next, _)| *next);
        read += regex_to_lark(pattern.get(at..end).unwrap_or_default(), ascii).len();
        if read > offset {
            return at;
        }
        start = end;
    }
    start
}

fn fault(pattern: &str, start: usize, end: usize, why: String) -> PatternFault {
    let part = pattern.get(start..end).filter(|part| !part.is_empty());
    // A part that is missing is named by what follows.
    let rest = || pattern.get(start..).and_then(|rest| rest.chars().next());
    let part = match part {
        Some(part) => brief(part),
        None => rest().map_or_else(|| "the end".to_owned(), String::from),
    };
    let character = pattern.get(..start).unwrap_or_default().chars().count() + 1;
    PatternFault { why, part, character, pattern: brief(pattern) }
}

/// Syntax of other dialects, of which the parser names one character: the part of `pattern` around
/// `at`, and what it does.
fn dialect(pattern: &str, at: usize) -> Option<(usize, usize, &'static str)> {
    const GROUPS: &[(&str, &str)] = &[
        ("(?<=", "looks around: behind"),
        ("(?<!", "looks around: behind"),
        ("(?=", "looks around: ahead"),
        ("(?!", "looks around: ahead"),
        ("(?>", "is an atomic group: (?:…) takes its place"),
        ("(?|", "resets the numbers of groups: (?:…) takes its place"),
        ("(?#", "is a comment"),
        ("(?(", "is a condition"),
        ("(?P=", "refers back to a group"),
        ("(?P>", "calls a group again"),
        ("(?&", "calls a group again"),
        ("(?'", "names a group in another dialect: (?<name>…) takes its place"),
        ("\\k", "refers back to a group"),
        ("\\g", "refers back to a group, or calls it again"),
    ];
    let begins = |start: usize| {
        let rest = pattern.get(start..)?;
        let (part, why) = GROUPS.iter().find(|(part, _)| rest.starts_with(part))?;
        // The character that the parser names is one of this part.
        (start + part.len() > at).then_some((start, start + part.len(), *why))
    };
    let before = at.saturating_sub(3);
    (before..=at).find_map(begins)
}

/// Reason why the parser refuses a part, as it follows "a part that".
fn reason(kind: &ast::ErrorKind) -> String {
    use ast::ErrorKind;
    match kind {
        ErrorKind::UnsupportedLookAround => "looks around".to_owned(),
        ErrorKind::UnsupportedBackreference => {
            "refers back to a group, or is an octal number".to_owned()
        }
        ErrorKind::EscapeUnrecognized | ErrorKind::ClassEscapeInvalid => {
            "is an escape that is not known".to_owned()
        }
        ErrorKind::GroupUnclosed => "is not closed".to_owned(),
        ErrorKind::GroupUnopened => "closes no group".to_owned(),
        ErrorKind::ClassUnclosed => "is not closed".to_owned(),
        ErrorKind::RepetitionMissing => "repeats nothing".to_owned(),
        other => format!("is refused: {other}"),
    }
}

fn translation(kind: &hir::ErrorKind) -> String {
    match kind {
        hir::ErrorKind::UnicodePropertyNotFound | hir::ErrorKind::UnicodePropertyValueNotFound => {
            "names a class of Unicode that is not known".to_owned()
        }
        other => format!("is refused: {other}"),
    }
}

/// Parts of an expression that the parser reads and the compiler refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unserved {
    /// `^` or `$` where something stands before or after it.
    Anchor,
    /// `^` and `$` of lines.
    LineAnchor,
    /// `\b` and its like.
    WordBoundary,
    /// A group that the compiler takes for a sign of its own.
    Stop,
}

impl Unserved {
    fn why(self) -> &'static str {
        match self {
            Self::Anchor => "looks around: an anchor stands at the beginning or the end alone",
            Self::LineAnchor => "looks around: for the beginning or the end of a line",
            Self::WordBoundary => "looks around: for the boundary of a word",
            Self::Stop => "has a name that is taken: another one takes its place",
        }
    }
}

/// The first part that the compiler refuses. `at_start` and `at_end`: nothing stands before or after
/// `hir`. The rule is the compiler's (`derivre`, `syntax.rs`).
fn unserved(hir: &Hir, at_start: bool, at_end: bool) -> Option<Unserved> {
    match hir.kind() {
        HirKind::Look(Look::Start) if at_start => None,
        HirKind::Look(Look::End) if at_end => None,
        HirKind::Look(Look::Start | Look::End) => Some(Unserved::Anchor),
        HirKind::Look(Look::StartLF | Look::EndLF | Look::StartCRLF | Look::EndCRLF) => {
            Some(Unserved::LineAnchor)
        }
        HirKind::Look(_) => Some(Unserved::WordBoundary),
        HirKind::Capture(group) if group.name.as_deref() == Some("stop") => Some(Unserved::Stop),
        HirKind::Capture(group) => unserved(&group.sub, at_start, at_end),
        HirKind::Repetition(repeated) => unserved(&repeated.sub, false, false),
        HirKind::Alternation(all) => all.iter().find_map(|one| unserved(one, at_start, at_end)),
        HirKind::Concat(all) => {
            let is = |hir: &Hir, look| matches!(hir.kind(), HirKind::Look(found) if *found == look);
            let first = all.iter().position(|one| !is(one, Look::Start)).unwrap_or(all.len());
            let last = all.iter().rposition(|one| !is(one, Look::End)).unwrap_or(0);
            let mut parts = all.iter().enumerate();
            parts.find_map(|(at, one)| unserved(one, at_start && at <= first, at_end && at >= last))
        }
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) => None,
    }
}

/// Where such a part may stand in the expression.
fn assertions(tree: &Ast, read: &str, unserved: &Unserved) -> Vec<Span> {
    let mut found = vec![];
    let mut waiting = vec![tree];
    while let Some(tree) = waiting.pop() {
        match tree {
            Ast::Assertion(one) => {
                let is_anchor = matches!(
                    one.kind,
                    ast::AssertionKind::StartLine
                        | ast::AssertionKind::EndLine
                        | ast::AssertionKind::StartText
                        | ast::AssertionKind::EndText
                );
                let at_an_end = one.span.start.offset == 0 || one.span.end.offset == read.len();
                let fits = match unserved {
                    Unserved::Anchor => is_anchor && !at_an_end,
                    Unserved::LineAnchor => is_anchor,
                    Unserved::WordBoundary => !is_anchor,
                    Unserved::Stop => false,
                };
                found.extend(fits.then_some(one.span));
            }
            Ast::Group(group) => {
                let name = match &group.kind {
                    ast::GroupKind::CaptureName { name, .. } => Some(name),
                    _ => None,
                };
                let is_stop = name.is_some_and(|name| name.name == "stop");
                let span = name.filter(|_| is_stop && *unserved == Unserved::Stop);
                found.extend(span.map(|name| name.span));
                waiting.push(&group.ast);
            }
            Ast::Repetition(repeated) => waiting.push(&repeated.ast),
            Ast::Alternation(all) => waiting.extend(all.asts.iter().rev()),
            Ast::Concat(all) => waiting.extend(all.asts.iter().rev()),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(pattern: &str) -> String {
        check(pattern, Kind::Schema).expect_err("refused").to_string()
    }

    #[test]
    fn a_part_that_is_refused_is_named_with_its_place_and_the_reason() {
        for (pattern, part, character, why) in [
            ("^(?!a)b$", "(?!", 2, "looks around: ahead"),
            ("^(?=.*\\d).{8,}$", "(?=", 2, "looks around: ahead"),
            ("é(?<=a)b", "(?<=", 2, "looks around: behind"),
            ("(?<!a)b", "(?<!", 1, "looks around: behind"),
            ("^(a|b)\\1$", "\\1", 7, "refers back"),
            ("(?<x>a)\\k<x>", "\\k", 8, "refers back"),
            ("(?P<x>a)(?P=x)", "(?P=", 9, "refers back"),
            ("(?>a+)b", "(?>", 1, "atomic group"),
            ("(?|a|b)", "(?|", 1, "numbers of groups"),
            ("(?'x'a)", "(?'", 1, "another dialect"),
            ("a(?#b)", "(?#", 2, "comment"),
            ("(a)?(?(1)b|c)", "(?(", 5, "condition"),
            ("\\d+\\q", "\\q", 4, "escape that is not known"),
            ("a\\Z", "\\Z", 2, "escape that is not known"),
            ("\\d/\\w\\bx", "\\b", 6, "boundary of a word"),
            ("a^b", "^", 2, "looks around: an anchor"),
            ("(?m)^a$", "^", 5, "a line"),
            ("^(a$", "(", 2, "is not closed"),
            ("a)", ")", 2, "closes no group"),
            ("[a-", "[", 1, "is not closed"),
            ("*a", "*", 1, "repeats nothing"),
            ("\\p{Klingon}", "\\p{Klingon}", 1, "class of Unicode"),
            ("(?<stop>a)", "stop", 4, "is taken"),
            ("a{3,1}", "{3,1}", 2, "is refused"),
        ] {
            let message = refused(pattern);
            let place = format!("`{part}` at character {character} of `{pattern}`, which ");
            assert!(message.starts_with(&place), "{place} in {message}");
            assert!(message.contains(why), "{why} in {message}");
        }
    }

    #[test]
    fn what_the_compiler_serves_passes() {
        for pattern in [
            "",
            "^a*$",
            "a|b",
            "^a|b$",
            "(^a|^b)$",
            "^(?:a|b)$",
            "(?<year>[0-9]{4})",
            "(?i)a",
            "[\\d-x]",
            "[\\w.-]+@x",
            "\\/a\\.b",
            "^\\S+$",
            "\\u0041",
            "\\p{L}+",
            "a+?",
            "[^\\D]",
        ] {
            check(pattern, Kind::Schema).unwrap_or_else(|fault| panic!("{pattern}: {fault}"));
        }
    }

    #[test]
    fn a_class_without_the_quote_is_written_for_the_compiler_of_json() {
        for pattern in ["^[^\"]*$", "^(a|[^\\\\]+)$", "[^\"\\n]{2,3}", "(?<x>[^\"])b"] {
            let written = of_json(pattern);
            assert_ne!(written, pattern);
            assert_eq!(of_json(&written), written);
            check(&written, Kind::Schema).unwrap_or_else(|fault| panic!("{written}: {fault}"));
        }
        for pattern in ["^[a-z]*$", ".*", "[^a]", "\\S+", "[^\"\\x00]", "a|b", ""] {
            assert_eq!(of_json(pattern), pattern);
        }
    }

    #[test]
    fn a_long_pattern_is_shortened_in_the_error() {
        let long = format!("{}(?!b)", "a".repeat(500));
        let message = refused(&long);
        assert!(message.len() < 300 && message.contains("at character 501"), "{message}");
    }
}
