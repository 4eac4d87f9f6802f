//! `paceline-target --device`: facts that need the library that computes, as one JSON object
//! ([`DeviceReport`]). With `--model` also whether the model's files are those that its graph needs, with
//! `--drafter` whether a drafter goes with it. Reads headers and configurations, and no weight.

use std::io::Write as _;
use std::path::Path;

use paceline_link::handshake;
use paceline_models::{
    DraftPlan, LoadError, ProductsError, Quantize, device, plan_draft, plan_target, planned_hello,
    products,
};
use paceline_process::config::{Config, ConfigError, DrafterQuantize, MTP, TARGET_HEAD};
use paceline_process::{Loaded, chain};
use paceline_proto::report::{DeviceReport, DrafterFiles, DrafterReport};
use paceline_system::platform;
use paceline_system::start;
use paceline_vocabulary::Exit;
use paceline_vocabulary::TensorType;
use paceline_vocabulary::link::Hello;

use crate::load::{device_choice, load_options};

/// Why a question cannot be answered.
#[derive(Debug, thiserror::Error)]
enum DeviceQuestionError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Device(#[from] paceline_models::DeviceError),
    #[error(transparent)]
    Products(#[from] ProductsError),
    #[error(transparent)]
    Model(#[from] LoadError),
}

/// Prints the report, or why there is none. `model` is a directory, `drafter` a directory or the name of
/// the model's own head.
pub(crate) fn run(model: Option<&Path>, drafter: Option<&Path>, config: Option<&Path>) -> Exit {
    start::settle();
    match report(model, drafter, config) {
        Ok(report) => {
            let object = serde_json::to_string(&report).expect("a report is plain JSON");
            // A reader that is gone needs no answer.
            let _ = writeln!(std::io::stdout(), "{object}");
            Exit::Asked
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{}", chain(&error));
            Exit::Unavailable
        }
    }
}

fn report(
    model: Option<&Path>,
    drafter: Option<&Path>,
    config: Option<&Path>,
) -> Result<DeviceReport, DeviceQuestionError> {
    let Loaded { config, .. } = Loaded::find(config)?;
    let on_gpu = device::choose(device_choice(&config))?;
    products::choose(config.products_choice())?;
    let mut report = DeviceReport {
        on_gpu,
        instructions: products::instructions().map(str::to_owned),
        usable_bytes: platform::available_memory().map(device::usable_memory),
        drafter: None,
    };
    if let Some(model) = model {
        let plan = plan_target(model, load_options(&config))?;
        let hello = planned_hello(&plan, model, handshake::VERSION, config.target.max_sequences);
        report.drafter = drafter.map(|drafter| drafter_report(drafter, model, &config, &hello));
    }
    Ok(report)
}

/// Whether a drafter goes with the target in `target`: the check of the link's handshake. A drafter
/// that cannot be read does not fit, which is no error of the target.
fn drafter_report(drafter: &Path, target: &Path, config: &Config, hello: &Hello) -> DrafterReport {
    let (dir, kind) = match drafter == Path::new(TARGET_HEAD) {
        true => (target, MTP),
        false => (drafter, config.drafter.kind.as_str()),
    };
    let quantize = match config.drafter.quantize {
        DrafterQuantize::None => Quantize::None,
        DrafterQuantize::Q8 => Quantize::Q8,
        DrafterQuantize::Q4 => Quantize::Q4,
    };
    let planned = plan_draft(dir, kind, Some(target), quantize).and_then(|plan| {
        let welcome = plan.info.welcome(hello.version, TensorType::F32, String::new())?;
        Ok((plan, welcome))
    });
    let (DraftPlan { info, storage }, welcome) = match planned {
        Ok(planned) => planned,
        Err(error) => {
            return DrafterReport { plan: None, fits: false, reason: Some(chain(&error)) };
        }
    };
    let reason = handshake::check_welcome(hello, &welcome).err();
    DrafterReport {
        plan: Some(DrafterFiles {
            kind: info.kind,
            block: info.block,
            parameters: storage.parameters(),
            disk_bytes: storage.disk_bytes(),
            memory_bytes: storage.memory_bytes(),
        }),
        fits: reason.is_none(),
        reason: reason.map(|reason| reason.to_string()),
    }
}
