//! Subject of the test: the configuration, with the models of the flags.

use paceline_client::own_service::settings::{Settings, drafter};
use paceline_client::prompts::{self, Prompt};
use paceline_client::{Failure, own_prompts};

use crate::args::SelftestArgs;

/// The models, and the number of prompts.
#[derive(Clone, Debug)]
pub struct SelftestPlan {
    /// Settings of the service.
    pub settings: Settings,
    /// Prompts of each kind.
    pub per_kind: usize,
    /// All prompts, one of each kind in turn.
    pub prompts: Vec<Prompt>,
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
        let (per_kind, seconds) = (args.prompts as usize, args.seconds);
        let prompts = match &args.from {
            None => prompts::embedded(per_kind),
            Some(path) => {
                let own = own_prompts::read("--from", path)?;
                prompts::in_turn(own.into_iter().flatten(), per_kind)
            }
        };
        Ok(Self { settings, per_kind, prompts, seconds, drafters })
    }
}
