//! The user's own prompts: a file with one JSON object in each line. Pure but for reading the file.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde::Deserialize;

use crate::prompts::Prompt;
use crate::{Failure, message};

/// Kind in reports of prompts whose lines name none.
pub const OWN: &str = "own";
/// Most bytes of the file: a thousand prompts of 64 KiB.
const MOST_BYTES: u64 = 64 << 20;
/// Most prompts. A benchmark of more would take days.
const MOST_PROMPTS: usize = 1_000;
/// Roles of a conversation that a template can have.
const ROLES: [&str; 3] = ["system", "user", "assistant"];
/// Most characters of a kind's name, which is a cell of tables.
const KIND_CHARACTERS: usize = 20;

#[derive(Deserialize)]
struct OwnLine {
    kind: Option<String>,
    prompt: Option<String>,
    messages: Option<Vec<OwnTurn>>,
}

#[derive(Deserialize)]
struct OwnTurn {
    role: String,
    content: String,
}

/// Reads the prompts of the file that this flag names: those of each kind, in the order of the file.
///
/// # Errors
/// The file cannot be read, is too large, or has no prompt; a line is none.
pub fn read(flag: &str, path: &Path) -> Result<Vec<Vec<Prompt>>, Failure> {
    let bad = |what: String| Failure::usage(format!("{flag} {}: {what}", path.display()));
    let mut text = String::new();
    let file = File::open(path).map_err(|error| bad(format!("cannot open it: {error}")))?;
    // One byte more shows that there is more.
    let read = file.take(MOST_BYTES + 1).read_to_string(&mut text);
    read.map_err(|error| bad(format!("cannot read it: {error}")))?;
    if text.len() as u64 > MOST_BYTES {
        return Err(bad(format!("expected at most {} MiB, found more", MOST_BYTES >> 20)));
    }
    prompts(&text).map_err(bad)
}

fn prompts(text: &str) -> Result<Vec<Vec<Prompt>>, String> {
    let (mut kinds, mut count): (Vec<Vec<Prompt>>, _) = (vec![], 0);
    for (at, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        if count == MOST_PROMPTS {
            return Err(format!("expected at most {MOST_PROMPTS} prompts, found more"));
        }
        count += 1;
        let (kind, turns) = turns(line).map_err(|what| format!("line {}: {what}", at + 1))?;
        let messages =
            turns.into_iter().map(|turn| message::text(&turn.role, turn.content)).collect();
        let prompt = |index| Prompt { kind: kind.clone(), index, messages, max_tokens: u32::MAX };
        match kinds.iter_mut().find(|prompts| prompts[0].kind == kind) {
            Some(prompts) => prompts.push(prompt(prompts.len())),
            None => kinds.push(vec![prompt(0)]),
        }
    }
    match kinds.is_empty() {
        true => Err("expected a prompt in each line, found none".to_owned()),
        false => Ok(kinds),
    }
}

/// Kind and conversation of a line.
fn turns(line: &str) -> Result<(String, Vec<OwnTurn>), String> {
    const EXPECTED: &str =
        r#"expected {"prompt": "…"} or {"messages": [{"role": "user", "content": "…"}]}"#;
    let line: OwnLine =
        serde_json::from_str(line).map_err(|error| format!("{EXPECTED}, found {error}"))?;
    let kind = line.kind.unwrap_or_else(|| OWN.to_owned());
    let is_name = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    if !(1..=KIND_CHARACTERS).contains(&kind.chars().count()) || !kind.chars().all(is_name) {
        return Err(format!(
            "expected a kind of at most {KIND_CHARACTERS} letters, digits, - and _, found {kind:?}"
        ));
    }
    match (line.prompt, line.messages) {
        (Some(content), None) => Ok((kind, vec![OwnTurn { role: "user".to_owned(), content }])),
        (None, Some(turns)) if turns.is_empty() => Err(format!("{EXPECTED}, found no message")),
        (None, Some(turns)) => {
            match turns.iter().find(|turn| !ROLES.contains(&turn.role.as_str())) {
                None => Ok((kind, turns)),
                Some(turn) => {
                    let (roles, found) = (ROLES.join(", "), &turn.role);
                    Err(format!("expected a role of {roles}, found {found:?}"))
                }
            }
        }
        (Some(_), Some(_)) => Err(format!("{EXPECTED}, found both")),
        (None, None) => Err(format!("{EXPECTED}, found neither")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_prompt_or_a_conversation() {
        let text = concat!(
            r#"{"prompt": "Name a river.", "id": 7}"#,
            "\n\n",
            r#"{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "名"}]}"#,
        );
        let found = prompts(text).expect("two prompts").concat();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].messages, [message::text("user", "Name a river.")]);
        let system = message::text("system", "Be brief.");
        assert_eq!(found[1].messages, [system, message::text("user", "名")]);
        assert_eq!((found[1].kind.as_str(), found[1].index), (OWN, 1));
    }

    #[test]
    fn the_prompts_of_each_kind_are_counted_by_themselves() {
        let line = |kind: &str| format!("{{\"kind\": \"{kind}\", \"prompt\": \"a\"}}\n");
        let text = [line("code"), line("chat"), line("code"), "{\"prompt\": \"a\"}".into()];
        let found = prompts(&text.concat()).expect("four prompts");
        let found: Vec<Vec<(&str, usize)>> = found
            .iter()
            .map(|kind| kind.iter().map(|one| (one.kind.as_str(), one.index)).collect())
            .collect();
        assert_eq!(found, [vec![("code", 0), ("code", 1)], vec![("chat", 0)], vec![(OWN, 0)]]);
    }

    #[test]
    fn a_bad_line_is_named_by_its_number() {
        let second = |line: &str| {
            let text = format!("{{\"prompt\": \"a\"}}\n{line}\n");
            prompts(&text).expect_err("a bad line")
        };
        for (line, found) in [
            ("hello", "line 2: expected {\"prompt\""),
            ("{}", "found neither"),
            (r#"{"prompt": 3}"#, "invalid type: integer"),
            (r#"{"prompt": "a", "kind": "a|b"}"#, "found \"a|b\""),
            (r#"{"prompt": "a", "kind": ""}"#, "found \"\""),
            (r#"{"prompt": "a", "messages": []}"#, "found both"),
            (r#"{"messages": []}"#, "found no message"),
            (r#"{"messages": [{"role": "robot", "content": "a"}]}"#, "found \"robot\""),
        ] {
            let what = second(line);
            assert!(what.starts_with("line 2: ") && what.contains(found), "{line}: {what}");
        }
        assert!(prompts("\n \n").expect_err("no prompt").contains("found none"));
        let many = "{\"prompt\": \"a\"}\n".repeat(MOST_PROMPTS + 1);
        assert!(prompts(&many).expect_err("too many").contains("at most 1000 prompts"));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let failure = read("--prompts", Path::new("/nowhere/prompts.jsonl")).expect_err("no file");
        assert!(
            failure.message.contains("--prompts /nowhere/prompts.jsonl: cannot open it"),
            "{failure}"
        );
    }
}
