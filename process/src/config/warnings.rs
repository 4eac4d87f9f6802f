//! Settings that an operator should know about when the service starts.

use super::Config;

/// One sentence for each.
pub(super) fn of(config: &Config) -> Vec<String> {
    let no_keys = config.gateway.api_keys_file.is_empty();
    let warned = [
        (
            no_keys && !config.classes.is_empty(),
            "classes has no effect: its names are those of API keys, and gateway.api_keys_file is not set",
        ),
        (
            config.log.prompts,
            "log.prompts is on: the texts of all prompts and answers are written to the gateway's log",
        ),
    ];
    warned.iter().filter(|(holds, _)| *holds).map(|(_, what)| (*what).to_owned()).collect()
}
