//! `paceline diagnose`: one archive for a bug report. It has state, events, logs, settings, and
//! facts about the machine; it has no prompt, no answer, no key. The command lists the content and
//! asks before it writes.
//!
//! ```text
//!  service · files · machine ──▶ parts ──▶ mask ──▶ table, question ──▶ archive
//! ```
//!
//! [`mask`] works on every part, because a secret may stand where nobody expects one.

mod archive;
mod logs;
mod machine;
mod mask;
mod parts;

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use paceline_client::print::bytes;
use paceline_client::{Failure, Screen};
use paceline_system::clock::unix_seconds;

use crate::args::DiagnoseArgs;
use archive::ArchiveError;
use mask::Mask;
use parts::Part;

/// The refusal without a person to ask.
const UNASKED: &str = "expected a terminal for the question whether this is written, found none; \
                       nothing was written, --yes writes without a question";
/// First line of the table of contents.
const INTRODUCTION: &str = "Made by `paceline diagnose`. Prompts, answers and contents of key files are not in it.\n\
                            Values that look like keys or tokens are replaced by [masked].\n";

/// Runs the command.
///
/// # Errors
/// The file is there already, or cannot be written; there is nobody to ask.
pub async fn run(args: &DiagnoseArgs, screen: &mut Screen) -> Result<(), Failure> {
    let now = unix_seconds();
    let path = args.output.clone().unwrap_or_else(|| default_name(now));
    refuse_existing(&path)?;
    let mut parts = parts::collect(args.config.config.as_deref()).await;
    let mask = Mask::of_environment();
    let masked = parts.iter_mut().map(|part| mask_part(&mask, part)).sum::<usize>();
    parts.insert(0, contents(&parts, now));
    screen.text(&table(&parts, masked))?;
    let question = format!("Write this to {}?", path.display());
    if !args.yes && !screen.agreed(&question, UNASKED)? {
        return screen.text("nothing was written\n");
    }
    let written = archive::write(&path, now, &parts).map_err(|error| failed(&path, error))?;
    screen.text(&format!("wrote {} ({})\n", path.display(), bytes(written)))
}

fn default_name(now: i64) -> PathBuf {
    format!("paceline-diagnose-{}.tar.gz", time(now).replace([':', '-'], "")).into()
}

/// The time as RFC 3339 has it.
fn time(unix_seconds: i64) -> String {
    Timestamp::from_second(unix_seconds)
        .map_or_else(|_| unix_seconds.to_string(), |time| time.to_string())
}

fn refuse_existing(path: &Path) -> Result<(), Failure> {
    match path.symlink_metadata() {
        Ok(_) => Err(failed(path, ArchiveError::Exists)),
        Err(_) => Ok(()),
    }
}

fn failed(path: &Path, error: ArchiveError) -> Failure {
    Failure::usage(format!("--output {}: {}", path.display(), paceline_process::chain(&error)))
}

/// Masks a part, and returns how many values were masked.
fn mask_part(mask: &Mask, part: &mut Part) -> usize {
    let (text, count) = mask.apply(&part.text);
    part.text = text;
    count
}

/// The part that explains the others.
fn contents(parts: &[Part], now: i64) -> Part {
    let lines: String =
        parts.iter().map(|part| format!("{}: {}\n", part.name, part.about)).collect();
    let text = format!("{INTRODUCTION}{}\n\n{lines}", time(now));
    Part { name: "contents.txt".into(), about: "this list".into(), text }
}

fn table(parts: &[Part], masked: usize) -> String {
    let width = parts.iter().map(|part| part.name.chars().count()).max().unwrap_or(0);
    let head = format!("{:width$}  {:>9}  CONTENT\n", "FILE", "SIZE");
    let line = |part: &Part| {
        format!("{:width$}  {:>9}  {}\n", part.name, bytes(part.text.len() as u64), part.about)
    };
    let lines: String = parts.iter().map(line).collect();
    let masked = match masked {
        0 => "No value looked like a key or a token.".to_owned(),
        1 => "One value that looked like a key or a token is masked.".to_owned(),
        count => format!("{count} values that looked like keys or tokens are masked."),
    };
    format!(
        "{head}{lines}{masked} Prompts and answers are not in it; paths and names of models are.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_every_part_with_its_size() {
        let part = |name: &str, text: &str| Part {
            name: name.into(),
            about: format!("about {name}"),
            text: text.into(),
        };
        let mut parts = vec![part("a", "12345"), part("logs/target.log", "")];
        parts.insert(0, contents(&parts, 1_764_232_323));
        let expected = "\
FILE                  SIZE  CONTENT
contents.txt         222 B  this list
a                      5 B  about a
logs/target.log        0 B  about logs/target.log
3 values that looked like keys or tokens are masked. Prompts and answers are not in it; paths and names of models are.
";
        let found = table(&parts, 3);
        assert_eq!(found, expected, "\n{found}");
        assert!(
            parts[0].text.contains("2025-11-27T08:32:03Z")
                && parts[0].text.contains("a: about a\n")
        );
        assert_eq!(
            default_name(1_764_232_323),
            Path::new("paceline-diagnose-20251127T083203Z.tar.gz")
        );
    }
}
