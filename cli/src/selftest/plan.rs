//! Subject of the test: the configuration, with the models of the flags.

use paceline_client::Failure;
use paceline_client::own_service::settings::{Settings, drafter};

use crate::args::SelftestArgs;

/// The models, and the number of prompts.
#[derive(Clone, Debug)]
pub struct SelftestPlan {
    /// Settings of the service.
    pub settings: Settings,
    /// Prompts of each kind.
    pub prompts: usize,
    /// Time for the prompts, of each drafter; `None` is no bound.
    pub seconds: Option<u64>,
    /// Drafters to compare, as the supervisor takes them; empty: the configured one alone.
    pub drafters: Vec<String>,
}

impl SelftestPlan {
    /// The plan of the arguments.
    ///
    /// # Errors
    /// The configuration cannot be used, or a directory that was named is none.
    pub fn from_args(args: &SelftestArgs) -> Result<Self, Failure> {
        let (config, model) = (args.config.config.as_deref(), args.model.as_deref());
        let mut settings = Settings::find(config, model, args.drafter.as_deref())?;
        let drafters = args.drafters.iter().map(|one| drafter("--drafters", one));
        let drafters = drafters.collect::<Result<Vec<_>, _>>()?;
        if !drafters.is_empty() {
            // Each is started in turn.
            settings = settings.without_drafter()?;
        }
        let (prompts, seconds) = (args.prompts as usize, args.seconds);
        Ok(Self { settings, prompts, seconds, drafters })
    }
}
