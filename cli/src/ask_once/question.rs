//! The question of `paceline run` as messages: of the command line, or of standard input.

use std::io::{IsTerminal as _, Read};

use paceline_client::{Failure, message};
use paceline_proto::v1::Message;

use crate::args::RunArgs;
use crate::generate::read_image;
use crate::{messages, piped};

/// Whether the arguments ask for a conversation: there is no question, and a person at a terminal.
pub(super) fn talks(args: &RunArgs) -> bool {
    let asks = args.question.is_some() || args.json || !args.image.is_empty();
    !asks && std::io::stdin().is_terminal()
}

/// The messages that the arguments describe. Reads standard input and the images.
///
/// # Errors
/// There is no question, or a file cannot be used.
pub(super) fn messages(args: &RunArgs) -> Result<Vec<Message>, Failure> {
    let question = match args.question.as_deref() {
        Some(text) if text != "-" => text.to_owned(),
        None if std::io::stdin().is_terminal() => {
            return Err(Failure::usage(
                "expected a question after the model, or one on standard input, found neither",
            ));
        }
        _ => read(std::io::stdin().lock())?,
    };
    let images = args.image.iter().map(|path| read_image("--image", path).map(message::image));
    let images = images.collect::<Result<Vec<_>, _>>()?;
    let system = args.system.iter().map(|text| message::text("system", text.clone()));
    let mut messages: Vec<Message> = system.collect();
    messages.push(message::text("user", question));
    messages::show(&mut messages, images).map_err(|error| Failure::usage(error.message))?;
    Ok(messages)
}

/// The question in this input.
fn read(input: impl Read) -> Result<String, Failure> {
    match piped::read(input)? {
        text if text.is_empty() => Err(piped::missing("nothing")),
        question => Ok(question),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_read_to_the_end_of_the_input_within_a_bound() {
        assert_eq!(read("Why?\nWhy not?\r\n\n".as_bytes()).expect("text"), "Why?\nWhy not?");
        for (input, found) in [("\n", "nothing"), ("", "nothing")] {
            assert!(read(input.as_bytes()).expect_err("empty").message.contains(found));
        }
        assert!(read(&b"\xff"[..]).expect_err("bytes").message.contains("not UTF-8"));
        let endless = read(std::io::repeat(b'a')).expect_err("too long").message;
        assert!(endless.contains("more than 64 MiB"), "{endless}");
    }

    #[test]
    fn images_go_with_the_question_after_the_system_message() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), "an image").expect("written");
        let args = RunArgs {
            model: "D".into(),
            question: Some("What is it?".into()),
            system: Some("Be brief.".into()),
            image: vec![file.path().to_owned()],
            ..RunArgs::default()
        };
        let found = messages(&args).expect("messages");
        let roles: Vec<_> = found.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["system", "user"]);
        assert_eq!((found[0].content.len(), found[1].content.len()), (1, 2));
        let lost = RunArgs { image: vec!["/nowhere".into()], ..args };
        assert!(messages(&lost).expect_err("no file").message.contains("/nowhere"));
    }
}
