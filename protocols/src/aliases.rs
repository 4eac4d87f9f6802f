//! The model names of clients that are served. Coding agents send the names of other vendors'
//! models, so a gateway for one machine serves any name, and one that other machines reach serves
//! only the names that its operator lists.

use paceline_settings::ModelAliases;
use paceline_vocabulary::Reason;

use crate::inference::error::{InferenceError, Result, quoted};

/// The names that are served besides the model's own.
#[derive(Clone, Debug)]
pub struct Aliases {
    /// `gateway.model_aliases`.
    pub names: ModelAliases,
    /// Whether only this machine reaches the listening socket.
    pub is_loopback: bool,
}

impl Aliases {
    /// Checks that a client's name for the model stands for the served one. Without a name the
    /// served one is meant.
    ///
    /// # Errors
    /// The name is not served; the message has the served one.
    pub fn check(&self, asked: &str, served: &str) -> Result<()> {
        let is_served =
            asked.is_empty() || asked == served || self.names.accepts(asked, self.is_loopback);
        if is_served {
            return Ok(());
        }
        let message = format!(
            "model: expected {served:?}, the model that is served here, found {}; set that name, or list this one in gateway.model_aliases",
            quoted(asked)
        );
        Err(InferenceError::new(Reason::UnknownModel, message)
            .field("model")
            .fact("served", served))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_names_and_the_served_one_are_served_and_others_name_it() {
        let listed =
            Aliases { names: ModelAliases::Named(vec!["gpt-5".into()]), is_loopback: true };
        for name in ["", "ours", "gpt-5"] {
            assert_eq!(listed.check(name, "ours"), Ok(()), "{name:?}");
        }
        let error = listed.check("gpt-4", "ours").expect_err("not listed");
        assert_eq!((error.kind, error.field.as_deref()), (Reason::UnknownModel, Some("model")));
        assert!(error.message.contains("\"ours\"") && error.message.contains("\"gpt-4\""));
        let auto = |is_loopback| Aliases { names: ModelAliases::Auto, is_loopback };
        assert_eq!(auto(true).check("anything", "ours"), Ok(()));
        assert!(auto(false).check("anything", "ours").is_err());
    }
}
