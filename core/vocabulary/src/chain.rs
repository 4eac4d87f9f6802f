//! An error and its causes in one line.

use std::error::Error;

/// The error's text and the texts of its causes, from the outermost to the innermost, with `: `
/// between. For places that show one line to a person: a report, a message of a status.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<Layer>>);

    impl fmt::Display for Layer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Layer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|inner| inner as &(dyn Error + 'static))
        }
    }

    #[test]
    fn causes_follow_the_error_from_the_outermost_to_the_innermost() {
        let inner = Layer("the disk is full", None);
        let outer =
            Layer("cannot load", Some(Box::new(Layer("cannot read x", Some(inner.into())))));
        assert_eq!(chain(&outer), "cannot load: cannot read x: the disk is full");
    }
}
