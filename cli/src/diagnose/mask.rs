//! Replaces what may be a secret. Masking too much costs a fact of a bug report, masking too little
//! costs a key, so a doubtful value is masked. Rules, line by line:
//!
//! - values of environment variables whose name says that they are secret
//! - blocks of PEM with a private key
//! - the user in a URL
//! - the value after a name such as `authorization`, `api_key` or `password`
//! - words with the beginning of a known kind of key, and long words of letters and digits

use std::borrow::Cow;
use std::ffi::OsString;

/// In the place of a secret.
const MASKED: &str = "[masked]";
/// Parts of the names of variables whose value is a secret.
const SECRET_VARIABLES: [&str; 6] = ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL"];
/// Least bytes of a variable's value: shorter ones are switches, and occur everywhere.
const LEAST_VALUE: usize = 6;
/// Beginnings of keys of services: ours, OpenAI's, Anthropic's, hubs', clouds', JSON web tokens.
const BEGINNINGS: [&str; 13] = [
    "pl_",
    "sk-",
    "sk_",
    "pk_",
    "hf_",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "AKIA",
    "eyJ",
];
/// Least bytes of a word with such a beginning.
const LEAST_KEY: usize = 12;
/// Least bytes of a word of letters and digits that may be a key: digests and encoded random bytes.
const LEAST_OPAQUE: usize = 32;
/// Names whose value is a secret. They are compared in lower case, with "_" for "-".
const NAMES: [&str; 14] = [
    "authorization",
    "proxy_authorization",
    "x_api_key",
    "api_key",
    "apikey",
    "access_key",
    "secret_key",
    "secret",
    "client_secret",
    "password",
    "passwd",
    "token",
    "access_token",
    "cookie",
];

/// Names whose values are ids, by which the logs of several processes are read together.
const PUBLIC_NAMES: [&str; 2] = ["request_id", "trace_id"];

/// The rules, with the secrets of this process's environment.
#[derive(Debug, Default)]
pub struct Mask {
    /// Longest first: one may be a part of another.
    values: Vec<String>,
}

/// A text while it is masked.
#[derive(Default)]
struct Masked {
    text: String,
    count: usize,
}

impl Masked {
    fn mask(&mut self) {
        self.text.push_str(MASKED);
        self.count += 1;
    }
}

impl Mask {
    /// The rules with the secrets of this process's environment.
    pub fn of_environment() -> Self {
        // All variables: any of them may be in a log.
        Self::of(std::env::vars_os())
    }

    fn of(variables: impl Iterator<Item = (OsString, OsString)>) -> Self {
        let secret = |(name, value): (OsString, OsString)| {
            let name = name.to_string_lossy().to_uppercase();
            let value = value.to_string_lossy().trim().to_owned();
            // A path is no secret, and stands in many places: PACELINE_API_KEYS_FILE=/etc/keys.
            let is_path = value.starts_with('/');
            let is_secret = SECRET_VARIABLES.iter().any(|part| name.contains(part));
            (is_secret && !is_path && value.len() >= LEAST_VALUE).then_some(value)
        };
        let mut values: Vec<String> = variables.filter_map(secret).collect();
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Self { values }
    }

    /// `text` without secrets, and the number of replaced values.
    pub fn apply(&self, text: &str) -> (String, usize) {
        let mut masked = Masked::default();
        let mut in_key = false;
        for line in text.split_inclusive('\n') {
            if line.contains("-----BEGIN") && line.contains("PRIVATE KEY") {
                in_key = true;
                masked.mask();
                masked.text.push('\n');
            }
            if in_key {
                in_key = !line.contains("-----END");
                continue;
            }
            let (line, count) = self.known(line);
            masked.count += count;
            words(&line, &mut masked);
        }
        (masked.text, masked.count)
    }

    fn known<'a>(&self, line: &'a str) -> (Cow<'a, str>, usize) {
        let mut line = Cow::Borrowed(line);
        let mut count = 0;
        for value in &self.values {
            let found = line.matches(value.as_str()).count();
            if found > 0 {
                count += found;
                line = Cow::Owned(line.replace(value.as_str(), MASKED));
            }
        }
        (line, count)
    }
}

/// Masks words and values after names.
fn words(line: &str, out: &mut Masked) {
    let mut rest = line;
    while let Some(next) = rest.chars().next() {
        if let Some(after) = user_of_url(rest) {
            out.text.push_str("://");
            out.mask();
            rest = after;
            continue;
        }
        let end = rest.find(|character| !is_word(character)).unwrap_or(rest.len());
        if end == 0 {
            out.text.push(next);
            rest = &rest[next.len_utf8()..];
            continue;
        }
        let (word, after) = rest.split_at(end);
        rest = after;
        if PUBLIC_NAMES.contains(&word)
            && let Some(id) = value_of(rest).filter(|id| is_id(&rest[id.clone()]))
        {
            out.text.push_str(word);
            out.text.push_str(&rest[..id.end]);
            rest = &rest[id.end..];
            continue;
        }
        if is_secret(word) {
            out.mask();
            continue;
        }
        out.text.push_str(word);
        if is_secret_name(word)
            && let Some(value) = value_of(rest)
        {
            out.text.push_str(&rest[..value.start]);
            out.mask();
            rest = &rest[value.end..];
        }
    }
}

/// Characters of names, keys and encoded bytes. A path is several words.
fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '-' | '+')
}

fn is_secret(word: &str) -> bool {
    if word.len() >= LEAST_KEY && BEGINNINGS.iter().any(|beginning| word.starts_with(beginning)) {
        return true;
    }
    // Hyphens separate the words of a model's name and the parts of an id; a key has long parts.
    word.split(['-', '_']).any(|part| {
        part.len() >= LEAST_OPAQUE
            && part.bytes().any(|byte| byte.is_ascii_digit())
            && part.bytes().any(|byte| byte.is_ascii_alphabetic())
    })
}

/// Whether it is an id of ours: 16 bytes in hexadecimal digits.
fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_secret_name(word: &str) -> bool {
    let name = word.to_ascii_lowercase().replace('-', "_");
    NAMES.contains(&name.as_str()) || NAMES.iter().any(|end| name.ends_with(&format!("_{end}")))
}

/// Where the value stands in what follows a name: after `=` or `:`, with spaces and quotes around,
/// and after the scheme of an `authorization`. `None`: no value follows.
fn value_of(rest: &str) -> Option<std::ops::Range<usize>> {
    let skip = |from: usize, skipped: &[char]| {
        rest[from..].find(|character| !skipped.contains(&character)).map(|found| from + found)
    };
    let mark = skip(0, &['"', '\'', '\\', ' '])?;
    if !rest[mark..].starts_with(['=', ':']) {
        return None;
    }
    let mut start = skip(mark + 1, &['"', '\'', '\\', ' ', '>'])?;
    for scheme in ["Bearer ", "bearer ", "Basic ", "basic "] {
        if rest[start..].starts_with(scheme) {
            start += scheme.len();
        }
    }
    let is_end = |character: char| character.is_whitespace() || "\"'\\,;)}]".contains(character);
    let end = rest[start..].find(is_end).map_or(rest.len(), |found| start + found);
    let value = &rest[start..end];
    (!value.is_empty() && value != "[masked").then_some(start..end)
}

/// What follows the user of a URL, if `rest` begins with `://user@` or `://user:password@`.
fn user_of_url(rest: &str) -> Option<&str> {
    let after = rest.strip_prefix("://")?;
    let end = after
        .find(|character: char| character == '/' || character.is_whitespace())
        .unwrap_or(after.len());
    let at = after[..end].rfind('@')?;
    (at > 0 && &after[..at] != MASKED).then(|| &after[at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let mask = Mask::default();
        assert_eq!(mask.apply(text).0, expected);
        assert_eq!(mask.apply(expected), (expected.to_owned(), 0), "a second time");
    }

    #[test]
    fn keys_and_tokens_are_masked_wherever_they_stand() {
        for (text, expected) in [
            ("key pl_0123456789abcdefXYZ end", "key [masked] end"),
            ("model=\"sk-proj-0123456789\"", "model=\"[masked]\""),
            ("hf_abcdefghijklmnop", "[masked]"),
            ("authorization: Bearer abc.def", "authorization: Bearer [masked]"),
            ("Authorization=\"Basic dXNlcg==\" x", "Authorization=\"Basic [masked]\" x"),
            ("{\"x-api-key\":\"short\",\"a\":1}", "{\"x-api-key\":\"[masked]\",\"a\":1}"),
            ("PACELINE_API_KEY=short", "PACELINE_API_KEY=[masked]"),
            ("password = 'p w'", "password = '[masked] w'"),
            ("id=01a21c523dee76da95d0451ce7dd12f2", "id=[masked]"),
            ("token: abc, next", "token: [masked], next"),
            ("otlp = http://user:pass@host:4317/x", "otlp = http://[masked]@host:4317/x"),
            (
                "alice:2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90",
                "alice:[masked]",
            ),
            (
                "a\n-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\nb",
                "a\n[masked]\nb",
            ),
        ] {
            check(text, expected);
        }
    }

    #[test]
    fn what_helps_a_bug_report_stays() {
        for text in [
            "gateway.api_keys_file = /etc/paceline/keys  # file\n",
            "request_id=0193a4b0-7c1e-7d1a-9c55-0123456789ab tokens=512 max_tokens=7\n",
            "{\"request_id\":\"01a21c523dee76da95d0451ce7dd12f2\"} request_id=\"01a21c523dee76da95d0451ce7dd12f2\"",
            "/models/mlx-community/Qwen3.5-35B-A3B-Instruct-4bit (18.2 GiB)",
            "2026-01-02T03:04:05.678901Z  INFO paceline_target: worker phase epoch=4",
            "http://127.0.0.1:8061/status a@b",
            "the token budget: 512; no API key is set",
            "é 模型 \u{fffd}",
            "",
        ] {
            assert_eq!(Mask::default().apply(text), (text.to_owned(), 0));
        }
    }

    #[test]
    fn secrets_of_the_environment_are_masked_in_any_place() {
        let variables = [
            ("SOME_TOKEN", "tulip field"),
            ("LONGER_SECRET", "tulip field at dawn"),
            ("MY_API_KEYS_FILE", "/etc/tulips"),
            ("A_KEY", "on"),
            ("HOME", "/home/tulip"),
        ];
        let mask = Mask::of(variables.map(|(name, value)| (name.into(), value.into())).into_iter());
        let (text, count) =
            mask.apply("x=tulip field at dawn, tulip field; /etc/tulips on /home/tulip");
        assert_eq!((text.as_str(), count), ("x=[masked], [masked]; /etc/tulips on /home/tulip", 2));
    }

    #[test]
    fn a_key_without_an_end_masks_the_rest() {
        check("-----BEGIN EC PRIVATE KEY-----\nabc\ndef", "[masked]\n");
    }
}
