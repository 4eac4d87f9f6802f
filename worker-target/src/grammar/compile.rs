//! From a grammar's texts to a parser. The work is bounded by the bounds of the texts and by
//! [`limits`], because it cannot be cancelled.

use std::time::Duration;

use llguidance::api::{GrammarInit, GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::earley::ValidationResult;
use llguidance::{Matcher, ParserFactory, TokenParser, regex_to_lark};
use nix::time::{ClockId, clock_gettime};

use super::json;
use super::pattern;
use super::vocabulary::Vocabulary;
use super::{GrammarError, GrammarPart, GrammarSource, PartContent};

/// Bounds of the compiler and of masks. Speeds are those that `llguidance` states.
fn limits() -> ParserLimits {
    ParserLimits {
        // 20 ms at 50,000 a millisecond.
        initial_lexer_fuel: 1_000_000,
        // For one mask: 14 ms at 14,000 a millisecond.
        step_lexer_fuel: 200_000,
        // For one mask: 2.5 ms at 20,000 a millisecond.
        step_max_items: 50_000,
        // An object with 500 optional properties, the most that is served, has 2,007.
        max_items_in_row: 2_500,
        // Of one sequence: 16 MiB at 1 to 2 KiB a state.
        max_lexer_states: 8_192,
        max_grammar_size: 100_000,
        // It would run over the whole vocabulary while a grammar is compiled.
        precompute_large_lexemes: false,
        // Errors would have the text of the answer.
        verbose_errors: false,
    }
}

/// The compiler for a vocabulary.
///
/// # Errors
/// The library's own.
pub(super) fn factory(vocabulary: &Vocabulary) -> Result<ParserFactory, GrammarError> {
    let made = ParserFactory::new_simple(&vocabulary.env);
    let mut factory = made.map_err(|error| enforceable(&first_line(&error.to_string())))?;
    factory.quiet();
    *factory.limits_mut() = limits();
    Ok(factory)
}

/// Time of the thread's processor for the parts of a grammar, one after another. The whole is compiled
/// once more and takes about as long, so that both stay within the two seconds that a request waits.
const PARTS_TIME: Duration = Duration::from_millis(800);

/// Time of this thread's processor: it does not count what other threads take on a busy machine.
struct ThreadClock(Duration);

impl ThreadClock {
    fn start() -> Self {
        Self(Self::now())
    }

    /// Zero on a system without such a clock.
    fn now() -> Duration {
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
    }

    fn elapsed(&self) -> Duration {
        Self::now().saturating_sub(self.0)
    }
}

/// A part that is not served, and why.
pub(super) struct PartError<'a> {
    /// Field of the client's request.
    pub(super) field: &'a str,
    pub(super) error: GrammarError,
}

/// Compiles a grammar: the parser at the beginning of an answer.
///
/// # Errors
/// The first part that cannot be enforced, or that needs more than the bounds allow.
pub(super) fn compile<'a>(
    factory: &ParserFactory,
    source: &'a GrammarSource,
) -> Result<TokenParser, PartError<'a>> {
    let clock = ThreadClock::start();
    let mut parts = Vec::with_capacity(source.parts.len());
    for part in &source.parts {
        let refused = |error| PartError { field: &part.field, error };
        parts.push(made(factory, part).map_err(refused)?);
        if clock.elapsed() > PARTS_TIME {
            let expected = format!("a grammar whose parts compile within {PARTS_TIME:?}");
            return Err(refused(GrammarError::new(expected, "one that takes longer")));
        }
    }
    let named = parts
        .into_iter()
        .enumerate()
        .map(|(at, part)| GrammarWithLexer { name: Some(format!("part_{at}")), ..part });
    let frame = GrammarWithLexer::from_lark(source.frame.clone());
    let grammars = std::iter::once(frame).chain(named).collect();
    let whole = TopLevelGrammar { grammars, max_tokens: None };
    // With one part, an error of the whole is that part's.
    let field = match source.parts.as_slice() {
        [part] => part.field.as_str(),
        _ => "grammar",
    };
    let parser = factory.create_parser(whole).map_err(|error| PartError {
        field,
        error: enforceable(&first_line(&error.to_string())),
    })?;
    // A schema that no value matches has no first token.
    Matcher::new(Ok(parser.deep_clone())).compute_mask_or_eos().map_err(|_| PartError {
        field,
        error: GrammarError::new("a grammar that some text matches", "one without any text"),
    })?;
    Ok(parser)
}

/// A part as the compiler takes it. With several parts each is compiled alone, so that an error has
/// its part's field; one part alone is compiled once, as a part of the whole.
fn made(factory: &ParserFactory, part: &GrammarPart) -> Result<GrammarWithLexer, GrammarError> {
    let made = match &part.content {
        PartContent::JsonSchema(text) => {
            json::prepare(text).map(GrammarWithLexer::from_json_schema)
        }
        PartContent::Regex(text) => pattern::check(text, pattern::Kind::Alone)
            .map(|()| {
                let rule = format!("start: /{}/", regex_to_lark(text, ""));
                GrammarWithLexer::from_lark(rule)
            })
            .map_err(|fault| GrammarError::new("a regular expression that can be enforced", fault)),
        PartContent::Lark(text) => Ok(GrammarWithLexer::from_lark(text.clone())),
    };
    let checked = made.and_then(|made| check(factory, made));
    if checked.is_err() && part.lenient {
        return Ok(GrammarWithLexer::from_json_schema(json::any_object()));
    }
    checked
}

/// Checks that a part can be compiled.
fn check(
    factory: &ParserFactory,
    made: GrammarWithLexer,
) -> Result<GrammarWithLexer, GrammarError> {
    let whole = GrammarInit::Serialized(TopLevelGrammar::from_grammar(made.clone()));
    let env = Some(factory.tok_env().clone());
    let validated = llguidance::panic_utils::catch_unwind(std::panic::AssertUnwindSafe(|| {
        Ok(whole.validate(env, limits()))
    }));
    match validated {
        Ok(ValidationResult::Valid) => Ok(made),
        // A warning is about a keyword that is enforced in part.
        Ok(ValidationResult::Warnings(warnings)) => {
            Err(enforceable(&first_line(&warnings.join("; "))))
        }
        Ok(ValidationResult::Error(error)) => Err(enforceable(&first_line(&error))),
        Err(error) => Err(enforceable(&first_line(&error.to_string()))),
    }
}

/// The error of what the compiler does not serve, with the compiler's words.
pub(super) fn enforceable(found: &str) -> GrammarError {
    GrammarError::new("a grammar that can be enforced", found)
}

/// The first line of the library's message, with the line that gives the reason if the first one
/// announces it. Later ones have states and traces.
pub(super) fn first_line(message: &str) -> String {
    /// Characters of a message that are sent on, at most.
    const MOST: usize = 300;
    let mut lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or("no reason");
    let reason = lines.find(|line| first.ends_with(':') && line.starts_with("error:"));
    let line = match reason {
        Some(reason) => format!("{first} {reason}"),
        None => first.to_owned(),
    };
    line.chars().take(MOST).collect()
}

/// Bytes that a parser holds, estimated: the tables of its lexer, and its rules.
pub(super) fn bytes(parser: &TokenParser) -> u64 {
    let stats = parser.parser.lexer_stats();
    // An edge and a node of the lexer's expressions take about 64 bytes with their places in maps.
    let lexer = stats.num_bytes + 64 * (stats.num_ast_nodes + stats.num_derivatives);
    lexer as u64 + BASE_BYTES
}

/// Bytes of a small grammar beside its lexer.
const BASE_BYTES: u64 = 64 << 10;
