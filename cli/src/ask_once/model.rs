//! The model of `paceline run`.

use paceline_checkpoint::SMOLLM2;
use paceline_client::Failure;
use paceline_process::Loaded;

use crate::args::RunArgs;

/// The arguments of `run` with a model: if none is named, that of the configuration, and never a
/// stand-in.
///
/// # Errors
/// The configuration cannot be used.
pub fn with_model(mut args: RunArgs) -> Result<RunArgs, Failure> {
    if args.model.is_empty() {
        let loaded = Loaded::find(args.config.config.as_deref())?;
        args.model = match loaded.has_stand_in() {
            true => SMOLLM2.to_owned(),
            false => loaded.config.target.model,
        };
    }
    Ok(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_without_a_model_takes_that_of_the_configuration_else_smollm2() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let model = |named: &str, configured: &str| {
            std::fs::write(file.path(), configured).expect("written");
            let mut args = RunArgs { model: named.to_owned(), ..RunArgs::default() };
            args.config.config = Some(file.path().to_owned());
            with_model(args).expect("accepted").model
        };
        assert_eq!(model("", ""), "smollm2");
        assert_eq!(model("", "target.model = \"org/name\""), "org/name");
        assert_eq!(model("./d", "target.model = \"org/name\""), "./d");
    }
}
